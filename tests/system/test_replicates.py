"""``opendas replicates`` and ``opendas margin``: from a release alone, the same whatever interrupts them."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data import shared_data
from support.mini import to_dense, write_mini

import opendas as od
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.errors import ConfigError, FormatError
from opendas.files.replicate_files import ReplicateFile
from opendas.runs.simulated import pooled_margins
from opendas.runs.simulated import replicates as drawing
from opendas.runs.simulated.replicates import Base, starting_counts

RUNS = 12


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of ``release/`` alone: no input, no key, no state beside it."""
    folder = tmp_path_factory.mktemp("finished")
    write_mini(folder)
    od.release(od.load(folder / "run.toml"), folder / "out", seed=1)
    return shutil.copytree(folder / "out" / "release", folder / "copy")


@pytest.fixture
def release(finished: Path, tmp_path: Path) -> od.Release:
    return od.Release(shutil.copytree(finished, tmp_path / "copy"))


def content(release: od.Release) -> bytes:
    return (release.folder / "replicates" / "mini.parquet").read_bytes()


def test_margins_come_from_a_copy_of_the_release_alone(
    release: od.Release, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(release.path)
    assert guarded(cli, ["replicates", out, "--runs", str(RUNS), "--workers", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == RUNS
    assert guarded(cli, ["verify", out, "--allow-seeded"]) == 0
    assert f"replicates: {RUNS} of mini" in capsys.readouterr().out
    assert guarded(cli, ["margin", out, "--query", "kind", "--geolevel", "town", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    published = release.table("kind", geolevel="town").to_arrow().to_pylist()
    cells = [row[name] for row in published for name in ("home", "school", "prison")]
    assert [row["count"] for row in rows] == cells
    assert all(row["margin"] >= 0 and row["standard_error"] >= 0 for row in rows)
    assert any(row["margin"] > 0 for row in rows)
    assert guarded(cli, ["margin", out, "--query", "kind", "--geolevel", "town"]) == 0
    assert "margins of the published counts" in capsys.readouterr().err
    assert not release.scratch.exists() or not any(release.scratch.rglob("*.parquet"))


def test_invariants_and_structural_zeros_hold_in_every_replicate(release: od.Release) -> None:
    od.replicates(release, runs=RUNS, workers=1)
    exact = release.margin("total", geolevel="region").to_arrow()
    assert not any(exact.column(name).to_numpy().any() for name in ("margin", "bias", "standard_error"))
    file = ReplicateFile(release.folder / "replicates" / "mini.parquet")
    frame, counts = release.frame(), release.estimate()
    for number in range(1, RUNS + 1):
        found = file.differences(number, frame, counts.size)
        assert not np.any(found.cells == 6)  # a child in prison
        assert found.counts.sum() == 0


def test_areas_that_somebody_drew_have_margins(release: od.Release) -> None:
    od.replicates(release, runs=RUNS, workers=1)
    codes = [code.decode() for code in release.frame().geocodes]
    whole = release.margin("age", blocks=codes).to_arrow().to_pylist()
    regions = release.margin("age", geolevel="region").to_arrow().to_pylist()
    for row in whole:
        assert row["count"] == sum(one["count"] for one in regions if one["cell"] == row["cell"])
        assert row["bias"] == pytest.approx(sum(o["bias"] for o in regions if o["cell"] == row["cell"]))
    with pytest.raises(ConfigError, match="either"):
        release.margin("age")


def test_interrupted_or_extended_or_in_other_processes_replicates_are_the_same_bytes(
    release: od.Release, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    od.replicates(release, runs=RUNS, workers=1)
    straight = content(release)

    other = od.Release(shutil.copytree(finished, tmp_path / "other"))
    draw, drawn = drawing._Draw.__call__, []

    def stop_after_five(self: object, number: int) -> None:
        if len(drawn) == 5:
            raise KeyboardInterrupt
        drawn.append(number)
        draw(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(drawing._Draw, "__call__", stop_after_five)
        with pytest.raises(KeyboardInterrupt):
            od.replicates(other, runs=RUNS, workers=1)
    with pytest.raises(ConfigError, match="--resume"):
        od.replicates(other, runs=RUNS, workers=1)
    od.replicates(other, runs=RUNS, workers=1, resume=True)
    assert content(other) == straight

    third = od.Release(shutil.copytree(finished, tmp_path / "third"))
    od.replicates(third, runs=5, workers=2)
    first = pq.read_table(third.folder / "replicates" / "mini.parquet")
    od.replicates(third, runs=RUNS, workers=1)
    assert content(third) == straight
    both = pq.read_table(third.folder / "replicates" / "mini.parquet")
    assert both.slice(0, len(first)).equals(first)
    od.replicates(third, runs=3, workers=1)
    assert content(third) == straight, "fewer are asked for than there are"

    od.replicates(third, runs=RUNS, workers=1, seed=2)
    assert content(third) != straight


def test_replicates_of_other_counts_are_refused_and_fail_verification(release: od.Release) -> None:
    od.replicates(release, runs=RUNS, workers=1)
    part = next(iter(sorted((release.folder / "mdf" / "mini").glob("*.parquet"))))
    table = pq.read_table(part)
    pq.write_table(table.slice(1), part)
    with pytest.raises(FormatError, match="other counts"):
        release.margin("age", geolevel="town")
    failed = {check.name for check in release.verify(allow_seeded=True) if not check.ok}
    assert "replicates" in failed


def test_no_replicates_are_refused_and_a_table_may_be_named_alone(
    release: od.Release, tmp_path: Path
) -> None:
    for wrong in ({"runs": 0}, {"runs": 2, "seed": -1}):
        with pytest.raises(ConfigError, match="2 runs or more"):
            od.replicates(release, **wrong)
    assert not (release.folder / "replicates").exists()
    assert len(od.tabulate(release, "age", "town", to=tmp_path / "alone")) == 1


def test_without_replicates_the_command_that_draws_them_is_named(release: od.Release) -> None:
    with pytest.raises(ConfigError, match="opendas replicates OUT"):
        release.margin("age", geolevel="town")


def test_nothing_under_confidential_is_opened(tmp_path: Path) -> None:
    write_mini(tmp_path)
    out = tmp_path / "out"
    od.release(od.load(tmp_path / "run.toml"), out, seed=1)
    opened: list[str] = []
    watching = [True]

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if watching[0] and event == "open":
            opened.append(str(arguments[0]))

    sys.addaudithook(watch)
    try:
        od.replicates(od.Release(out), runs=3, workers=1)
    finally:
        watching[0] = False
    assert any("release" in path for path in opened)
    hidden = [path for path in opened if "confidential" in path or path.endswith(("counts.csv", ".key"))]
    assert hidden == []


def test_tables_print_the_margin_of_the_count_and_stay_valid_when_more_replicates_are_drawn(
    release: od.Release,
) -> None:
    od.tabulate(release, ["age"], "region")
    od.replicates(release, runs=RUNS, workers=1)
    for fmt in ("parquet", "csv"):
        od.tabulate(release, ["kind"], "town", format=fmt)
    path = release.folder / "tables" / "kind_town.parquet"
    table = pq.read_table(path).to_pylist()
    margins = release.margin("kind", geolevel="town").to_arrow().to_pylist()
    printed = [row[f"{name}_MOE90"] for row in table for name in ("home", "school", "prison")]
    assert printed == [row["margin"] for row in margins]
    assert "age_MOE90" not in pq.read_schema(release.folder / "tables" / "age_region.parquet").names
    assert all(check.ok for check in release.verify(allow_seeded=True))

    od.replicates(release, runs=RUNS + 8, workers=1)
    (release.folder / "tables" / "kind_town.csv").unlink()
    od.tabulate(release, ["kind"], "region", format="csv")
    assert pq.read_table(path).to_pylist() == table, "it says what it said"
    assert all(check.ok for check in release.verify(allow_seeded=True))

    changed = pq.read_table(path)
    at = changed.column_names.index("home_MOE90")
    column = np.asarray(changed.column(at)) + 1
    metadata = pq.read_schema(path).metadata
    lying = changed.set_column(at, "home_MOE90", [column]).replace_schema_metadata(metadata)
    pq.write_table(lying, path)
    failed = {check.name for check in release.verify(allow_seeded=True) if not check.ok}
    assert "tables" in failed


def test_a_share_has_the_margin_of_its_replicates_by_function_sql_and_ratio(
    release: od.Release, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    od.replicates(release, runs=RUNS, workers=1)
    file, frame = ReplicateFile(release.folder / "replicates" / "mini.parquet"), release.frame()
    towns, counts = np.array([code[:4] for code in frame.geocodes]), release.estimate()
    dense = [to_dense(counts)]
    dense += [dense[0] + to_dense(file.differences(k, frame, counts.size)) for k in range(1, RUNS + 1)]
    old = [[one[towns == town][:, 2::3].sum() for town in np.unique(towns)] for one in dense]
    everyone = [[one[towns == town].sum() for town in np.unique(towns)] for one in dense]
    share = np.array(old) / np.array(everyone)
    rank = int(np.ceil(0.9 * (RUNS + 1)))
    margin = np.sort(np.abs(share[1:] - share[0]), axis=0)[rank - 1]

    def of(table: pa.Table) -> dict[str, object]:
        total = sum(table.column(name).to_numpy() for name in ("child", "adult", "old"))
        return {"town": table.column("geocode"), "share": table.column("old").to_numpy() / total}

    sql = "select geocode, old / (child + adult + old) as share from counts"
    for made in (of, sql, "select * from (" + sql + ") order by share"):
        found = {
            row["geocode"]: row
            for row in release.margin("age", geolevel="town", of=made).to_arrow().to_pylist()
        }
        rows = [found[town.decode()] for town in np.unique(towns)]
        assert [row["count"] for row in rows] == pytest.approx(share[0])
        assert [row["margin"] for row in rows] == pytest.approx(margin)
        assert [row["bias"] for row in rows] == pytest.approx((share[1:] - share[0]).mean(axis=0))
        assert {row["cell"] for row in rows} == {"share"}

    query = ["margin", str(release.path), "--query", "age", "--geolevel", "town", "--json"]
    assert guarded(cli, [*query, "--ratio", "old", "adult"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    adult = [[one[towns == town][:, 1::3].sum() for town in np.unique(towns)] for one in dense]
    assert [row["count"] for row in rows] == pytest.approx(np.array(old)[0] / np.array(adult)[0])
    (tmp_path / "share.sql").write_text(sql)
    assert guarded(cli, [*query, "--sql", str(tmp_path / "share.sql")]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert sorted(row["margin"] for row in rows) == pytest.approx(sorted(margin))


def test_a_share_of_none_is_null_and_what_is_no_table_is_refused(release: od.Release) -> None:
    od.replicates(release, runs=RUNS, workers=1)
    rows = release.margin("kind", geolevel="block", of=("prison", "school")).to_arrow().to_pylist()
    none = [row for row in rows if row["count"] is None]
    assert none, "some block has neither school nor people in one"
    assert all(row["margin"] is None and row["bias"] is None for row in none)
    for wrong, word in (
        ("select * from nothing", "DuckDB refuses the SQL"),
        ("select 'one' as a, count(*) as n from counts group by geocode", "name of its own"),
        ("select geocode from counts", "no column of numbers"),
        (("prison", "castle"), "castle"),
        (lambda counts: 7, "must return a table"),
    ):
        with pytest.raises(ConfigError, match=word):
            release.margin("kind", geolevel="block", of=wrong)


def test_replicate_weights_give_the_sums_and_errors_that_survey_software_makes_of_them(
    release: od.Release, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    od.replicates(release, runs=RUNS, workers=1)
    for geolevel in ("block", "town"):
        frame = release.replicate_weights("detailed", geolevel=geolevel).to_pandas()
        assert [*frame.columns] == [
            "geocode",
            "kind",
            "age",
            "weight",
            *(f"rep{k}" for k in range(1, RUNS + 1)),
        ]
        kinds = release.margin("kind", geolevel="region").to_arrow().to_pylist()
        for row in kinds:
            inside = frame[frame.geocode.str.startswith(row["geocode"]) & (frame.kind == row["cell"])]
            reps = inside[[f"rep{k}" for k in range(1, RUNS + 1)]].sum().to_numpy()
            assert inside.weight.sum() == row["count"]
            assert reps.mean() - row["count"] == pytest.approx(row["bias"])
            assert reps.std(ddof=1) == pytest.approx(row["standard_error"])
    out = tmp_path / "weights.csv"
    query = ["margin", str(release.path), "--query", "age", "--geolevel", "town", "--weights"]
    assert guarded(cli, [*query, str(out)]) == 0
    assert out.read_text().splitlines()[0].replace('"', "").startswith("geocode,age,weight,rep1,rep2")
    assert guarded(cli, [*query, str(tmp_path / "weights.parquet")]) == 0
    assert len(pq.read_table(tmp_path / "weights.parquet")) == len(out.read_text().splitlines()) - 1
    assert guarded(cli, [*query, str(tmp_path / "weights.xls")]) == 2
    assert "P1" not in capsys.readouterr().out


def test_pooled_margins_are_those_of_cells_that_came_out_alike_taken_one_by_one(
    release: od.Release, capsys: pytest.CaptureFixture[str]
) -> None:
    od.replicates(release, runs=RUNS, workers=1)
    file, frame = ReplicateFile(release.folder / "replicates" / "mini.parquet"), release.frame()
    starts = list(starting_counts(Base(release.folder.absolute(), "mini"), file))
    ages = [range(k, 9, 3) for k in range(3)]
    towns = [code[:4] for code in frame.geocodes.tolist()]

    def cells(dense: np.ndarray) -> dict[tuple[int, int], tuple[int, tuple[int, int, int]]]:
        """Return the count and the pool of each leaf and age, slowly."""
        found = {}
        for leaf, code in enumerate(towns):
            beside = [k for k, other in enumerate(towns) if other == code]
            everyone = sum(dense[k].sum() for k in beside)
            for age, columns in enumerate(ages):
                count = sum(dense[leaf, column] for column in columns)
                of_town = sum(dense[k, column] for k in beside for column in columns)
                expected = of_town * (dense[leaf].sum() / max(1, everyone))
                size = sum(count > end for end in pooled_margins._COUNTS)
                found[leaf, age] = (
                    count,
                    (age, size, sum(expected > end for end in pooled_margins._EXPECTED)),
                )
        return found

    pools: dict[tuple[int, int, int], list[int]] = {}
    for number, start in enumerate(starts, 1):
        began = cells(to_dense(start))
        ended = cells(to_dense(start) + to_dense(file.differences(number, frame, start.size)))
        for key, (count, pool) in ended.items():
            pools.setdefault(pool, []).append(abs(count - began[key][0]))
    published = cells(to_dense(release.estimate()))
    own = release.margin("age", geolevel="block").to_arrow().to_pylist()
    asked = ["margin", str(release.path), "--query", "age", "--geolevel", "block", "--pooled", "--json"]
    assert guarded(cli, asked) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    wider = 0
    for (leaf, age), (count, pool) in published.items():
        alike = sorted(pools.get(pool, ()))
        n = len(alike)
        rank = min(n, -(-9 * (n + 1) // 10))
        row, before = rows[3 * leaf + age], own[3 * leaf + age]
        assert row["count"] == count == before["count"]
        assert row["margin"] == max(before["margin"], alike[rank - 1] if n else 0)
        assert (row["bias"], row["standard_error"]) == (before["bias"], before["standard_error"])
        wider += row["margin"] > before["margin"]
    assert wider > 0
    for more in (["--geolevel", "town"], ["--geolevel", "block", "--ratio", "old", "adult"]):
        assert guarded(cli, ["margin", str(release.path), "--query", "age", "--pooled", *more]) == 2


def test_records_of_replicates_are_those_that_the_errors_were_taken_of(
    release: od.Release, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = ["replicates", str(release.path), "--runs", str(RUNS), "--workers", "1", "--microdata"]
    assert guarded(cli, [*asked, str(release.folder / "records")]) == 2
    assert "outside" in capsys.readouterr().err
    assert not (release.folder / "replicates").exists(), "refused before a replicate is drawn"
    assert guarded(cli, [*asked, str(tmp_path / "records")]) == 0
    folder = tmp_path / "records" / "mini"
    names = [f"{k:04d}{end}.parquet" for k in range(1, RUNS + 1) for end in ("", "_start")]
    assert sorted(path.name for path in folder.iterdir()) == sorted(["about.json", *names])
    about = json.loads((folder / "about.json").read_text())
    certified = json.loads((release.folder / "certificate.json").read_text())["runs"][0]
    assert about["stamps"] == certified["stamps"] != []
    part = next(iter(sorted((release.folder / "mdf" / "mini").glob("*.parquet"))))
    drawn = ReplicateFile(release.folder / "replicates" / "mini.parquet")
    frame, size = release.frame(), release.estimate().size
    labels = [(kind, age) for kind in ("home", "school", "prison") for age in ("child", "adult", "old")]

    def counts(name: str) -> np.ndarray:
        """Count records one by one, in the order of the frame and of the product's cells."""
        table = pq.read_table(folder / name)
        assert table.schema.names == pq.read_schema(part).names
        found = np.zeros((len(frame), size), dtype=np.int64)
        for record in table.to_pylist():
            leaf = frame.geocodes.tolist().index(record["geocode"].encode())
            found[leaf, labels.index((record["kind"], record["age"]))] += 1
        return found

    for number in range(1, RUNS + 1):
        first, start = counts(f"{number:04d}.parquet"), counts(f"{number:04d}_start.parquet")
        assert np.array_equal(first - start, to_dense(drawn.differences(number, frame, size)))
        assert first.sum() == start.sum() == release.estimate().total()
    assert all(check.ok for check in release.verify(allow_seeded=True))


PPMF = """
[run]
product = "pl94-persons"
[input]
reader = "{reader}"
path = "not-looked-at.csv"
[budget]
preset = "pr2020-persons"
"""


def test_the_bureaus_own_microdata_have_margins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = shared_data("ppmf_sample/ppmf_20210428_eps12-2_P_perry_al.csv.gz")
    (tmp_path / "run.toml").write_text(PPMF.format(reader="ppmf"))
    named = [str(sample), "--run", str(tmp_path / "run.toml"), "--to", str(tmp_path / "drawn")]
    assert guarded(cli, ["replicates", *named, "--runs", str(RUNS), "--workers", "1"]) == 0
    assert [path.name for path in (tmp_path / "drawn").iterdir()] == ["pl94-persons.parquet"]
    capsys.readouterr()
    asked = ["margin", *named, "--query", "votingage", "--geolevel", "tract", "--json"]
    assert guarded(cli, asked) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    with gzip.open(sample, "rt") as file:
        records = list(csv.DictReader(file))
    for row in rows:
        adult = "2" if row["cell"] == "18plus" else "1"
        alike = [r for r in records if r["TABTRACT"] == row["geocode"][5:] and r["VOTING_AGE"] == adult]
        assert row["count"] == len(alike)
    assert any(row["margin"] > 0 for row in rows)
    (tmp_path / "run.toml").write_text(PPMF.format(reader="pl94-2010"))
    assert guarded(cli, asked) == 2
    assert "its reader is 'pl94-2010'" in capsys.readouterr().err
