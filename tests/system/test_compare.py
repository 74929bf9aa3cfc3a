"""``opendas compare``: figures against a slow twin, margins, the truth and its stamp, what is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.data import shared_data
from support.pl94_zip import Block, some_blocks, tables, write_zip

import opendas as od
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.errors import ConfigError
from opendas.metrics.output import CONFIDENTIAL
from opendas.tables.cells import pl94_cells

WIDTH = {"state": 2, "county": 5, "tract": 11, "block_group": 12, "block": 15}


def people() -> list[Block]:
    """The small state with a place on earth, and blocks that are urban or rural."""
    blocks = some_blocks("44")
    for number, block in enumerate(blocks):
        block.at = (f"+41.{number}", f"-071.{number}")
        block.urban = "U" if number < 2 else "R"
    return blocks


def write_run(folder: Path, product: str, path: Path) -> Path:
    run = folder / f"{product}.toml"
    run.write_text(
        f'[run]\nproduct = "pl94-{product}"\n[input]\nreader = "pl94-2020"\npath = "{path}"\n'
        f'[budget]\npreset = "pr2020-{product}"\nrho = "1/2"\n'
    )
    return run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare")
    path = write_zip(folder / "fb2020.pl.zip", people(), 2020)
    for product in ("persons", "units"):
        od.release(od.load(write_run(folder, product, path)), folder / "out", seed=1)
    od.release(od.load(folder / "persons.toml"), folder / "again", seed=2, mdf_format="pipe")
    return folder


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made / "out", tmp_path / "out")


def rows_of(comparison: Any) -> list[dict[str, Any]]:
    return comparison.table.to_arrow().to_pylist()


def test_every_figure_is_that_of_the_tables_of_either_side(made: Path) -> None:
    comparison = od.compare(made / "out", made / "fb2020.pl.zip")
    rows = rows_of(comparison)
    official = {block.code: tables(block) for block in people()}
    release = od.Release(made / "out")
    seen = set()
    for geolevel, width in WIDTH.items():
        published = {
            row["GEOID"]: row
            for name in ("P2", "P4", "H1")
            for row in release.table(name, geolevel=geolevel).to_arrow().to_pylist()
            for row in [{**row, "GEOID": (row["GEOID"], name)}]
        }
        for row in (row for row in rows if row["geolevel"] == geolevel):
            name = f"{row['variable'][0]}{row['variable'][3]}"
            cell = int(row["variable"][4:]) - 1
            below = [own for code, own in official.items() if code[:width] == row["geocode"]]
            assert row["value_2"] == sum(own[name][cell] for own in below)
            assert row["value_1"] == published[row["geocode"], name][row["variable"]]
            assert row["difference"] == row["value_1"] - row["value_2"]
            wanted = 100 * row["difference"] / row["value_2"] if row["value_2"] else None
            assert row["percent"] == wanted
            noise = published[row["geocode"], name].get(f"{row['variable']}_NOISE90")
            assert (row["margin"], row["margin_of"]) == (noise, None if noise is None else "measurement")
            assert pl94_cells(name)[cell].label in row["label"]
            seen.add((geolevel, name))
    assert len(seen) == 3 * len(WIDTH)
    assert {row["geolevel"] for row in rows} == {*WIDTH, "place", "cousub", "vtd", "cd"}
    assert next(row["name"] for row in rows if row["geolevel"] == "county") == "44001 Peña County, Fable"


def test_a_release_differs_from_itself_nowhere_and_from_its_own_microdata_nowhere(made: Path) -> None:
    for other in (made / "out" / "release", made / "out/release/mdf/persons"):
        assert {row["difference"] for row in rows_of(od.compare(made / "out", other))} == {0}
    pipe = made / "again" / "release" / "mdf" / "persons"
    assert {row["difference"] for row in rows_of(od.compare(made / "again", pipe))} == {0}


def test_three_sources_have_a_difference_and_a_margin_each(made: Path) -> None:
    comparison = od.compare(made / "out", made / "again", made / "fb2020.pl.zip", geolevels=["county"])
    for row in rows_of(comparison):
        assert row["difference"] == row["value_1"] - row["value_3"]
        assert row["difference_2"] == row["value_2"] - row["value_3"]
        assert {"margin", "margin_2"} <= set(row)
        assert "margin_3" not in row
    assert comparison.summary["reference"] == "fb2020.pl.zip"
    assert {row["source"] for row in comparison.summary["products"][0]["bias"]} == {"out", "again"}


def test_margins_are_of_the_published_count_where_there_are_replicates(out: Path, made: Path) -> None:
    release = od.Release(out)
    od.replicates(release, runs=12, product="pl94-persons", workers=1)
    rows = rows_of(od.compare(release, made / "fb2020.pl.zip", tables=["P2"], geolevels=["block", "place"]))
    for geolevel in ("block", "place"):
        wanted = {
            (row["geocode"], row["cell"]): row["margin"]
            for row in release.margin("P2", geolevel=geolevel).to_arrow().to_pylist()
        }
        found = [row for row in rows if row["geolevel"] == geolevel]
        assert all(row["margin"] == wanted[row["geocode"], row["variable"]] for row in found)
        assert {row["margin_of"] for row in found} == {"replicates"}
        rest = set(wanted) - {(row["geocode"], row["variable"]) for row in found}
        assert all(wanted[key] == 0 for key in rest)  # blocks that are no leaf of any source


def test_with_the_truth_everything_says_that_it_is_confidential(
    out: Path, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "changed"
    arguments = ["compare", str(out), "--truth", str(made / "persons.toml"), "--to", str(to), "--json"]
    before = (out / "ledger.jsonl").read_text().count('"act":"evaluate"')
    assert guarded(cli, arguments) == 0
    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    assert answer["confidential"] is True
    assert answer["notice"] == CONFIDENTIAL
    assert "confidential" in captured.err
    assert (out / "ledger.jsonl").read_text().count('"act":"evaluate"') == before + 1
    assert to.stat().st_mode & 0o777 == 0o700
    metadata = json.loads(pq.read_metadata(to / "compare.parquet").metadata[b"opendas"])
    assert (metadata["confidential"], metadata["notice"]) == (True, CONFIDENTIAL)
    assert "<strong>CONFIDENTIAL</strong>" in (to / "compare.html").read_text()
    assert all(check.ok for check in od.Release(out).verify(allow_seeded=True))


def test_the_errors_of_a_drawn_plan_are_those_of_its_districts(
    out: Path, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = [block.code for block in people()]
    plan = tmp_path / "plan.csv"
    district = {code: "east" if number % 2 else "west" for number, code in enumerate(blocks)}
    plan.write_text("GEOID20,district\n" + "".join(f"{code},{name}\n" for code, name in district.items()))
    asked = ["evaluate", str(out), "--truth", str(made / "persons.toml"), "--blocks"]
    before = (out / "ledger.jsonl").read_bytes()
    half = tmp_path / "half.csv"
    half.write_text(f"GEOID20,district,weight\n{blocks[0]},east,0.5\n")
    assert guarded(cli, [*asked, str(half)]) == 2
    assert (out / "ledger.jsonl").read_bytes() == before, "refused before the truth was read"
    assert guarded(cli, [*asked, str(plan), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    (found,) = [row for row in rows if (row["geolevel"], row["query"]) == ("district", "votingage")]

    released = od.tabulate(od.Release(out), ["votingage"], blocks=plan, to=tmp_path / "t")[0]
    truth: dict[tuple[str, str], int] = {}
    for block in people():
        for (age, *_), count in block.people.items():
            key = (district[block.code], "18plus" if age else "under18")
            truth[key] = truth.get(key, 0) + count
    counts = {(row["geocode"], row["label"]): row["value"] for row in pq.read_table(released).to_pylist()}
    errors = [abs(count - truth.get(key, 0)) for key, count in counts.items()]
    assert found["geounits"] == 2
    assert found["mean_abs_error"] == sum(errors) / 2 > 0


def test_without_the_truth_nothing_does(made: Path, tmp_path: Path) -> None:
    comparison = od.compare(made / "out", made / "fb2020.pl.zip")
    table, page = od.write_comparison(comparison, tmp_path / "changed")
    assert "confidential" not in json.loads(pq.read_metadata(table).metadata[b"opendas"])
    assert comparison.summary["confidential"] is False
    assert ">CONFIDENTIAL<" not in page.read_text()
    assert pq.read_table(table).to_pylist() == rows_of(comparison)
    assert not re.search(r'(?:src|href)="(?!#)', page.read_text())


def test_the_summaries_are_those_of_a_slow_count(made: Path) -> None:
    comparison = od.compare(made / "out", made / "fb2020.pl.zip", geolevels=["block", "county"])
    rows, (persons, _) = rows_of(comparison), comparison.summary["products"]
    for geolevel in ("block", "county"):
        cells: dict[str, dict[str, tuple[int, int]]] = {}
        for row in rows:
            if row["geolevel"] == geolevel and row["variable"].startswith("P002"):
                cells.setdefault(row["geocode"], {})[row["variable"]] = (row["value_1"], row["value_2"])
        total = {code: own["P0020001"] for code, own in cells.items()}

        def here(name: str, geolevel: str = geolevel) -> list[dict[str, Any]]:
            return [row for row in persons[name] if row["geolevel"] == geolevel]

        (empty,) = here("empty")
        assert empty["empty_made_populated"] == sum(a > 0 == b for a, b in total.values())
        assert empty["populated_made_empty"] == sum(b > 0 == a for a, b in total.values())
        minority = {
            code: [2 * (own["P0020001"][k] - own["P0020005"][k]) > own["P0020001"][k] for k in (0, 1)]
            for code, own in cells.items()
        }
        (flips,) = [row for row in here("majority_minority") if row["base"] == "total"]
        assert flips["became"] == sum(a and not b for a, b in minority.values())
        assert flips["ceased"] == sum(b and not a for a, b in minority.values())
        largest = here("largest_changes")
        moved = sorted((abs(a - b) for a, b in total.values()), reverse=True)
        assert [abs(row["difference"]) for row in largest] == [d for d in moved if d][:10]
        white = [
            row for row in here("bias") if row["size"] is None and row["group"] == "not_hispanic * white"
        ]
        assert white[0]["mean_difference"] == pytest.approx(
            sum(own["P0020005"][0] - own["P0020005"][1] for own in cells.values()) / len(cells)
        )
        groups = ["P0020002", *(f"P00200{number:02}" for number in range(5, 12))]
        mixed = {
            code: 1 - sum((own[name][1] / own["P0020001"][1]) ** 2 for name in groups)
            if own["P0020001"][1]
            else 0.0
            for code, own in cells.items()
        }
        classes = here("diversity")
        assert sum(row["geounits"] for row in classes) == len(cells)
        codes = iter(sorted(mixed, key=mixed.__getitem__))
        for row in classes:  # in order of diversity, each class has the next geounits
            inside = [next(codes) for _ in range(row["geounits"])]
            moved = [total[code][0] - total[code][1] for code in inside]
            assert row["mean_difference"] == pytest.approx(sum(moved) / len(moved))
            assert row["mean_abs_difference"] == pytest.approx(sum(map(abs, moved)) / len(moved))
        assert [row["quintile"] for row in classes][-1].endswith("5")


def test_urban_and_rural_are_told_apart_where_the_header_does(made: Path, tmp_path: Path) -> None:
    comparison = od.compare(made / "out", made / "fb2020.pl.zip")
    found = {row["geolevel"]: row["rows"] for row in comparison.summary["products"][0]["urban_rural"]}
    blocks = {block.code: (block.urban, sum(block.people.values())) for block in people()}
    wanted = {
        name: sum(n for kind, n in blocks.values() if kind == name[0].upper()) for name in ("urban", "rural")
    }
    assert {row["kind"]: row["reference"] for row in found["block"]} == wanted
    assert [row["kind"] for row in found["state"]] == ["both"]
    assert [row["value"] - row["reference"] for row in found["state"]] == [0]
    nowhere = write_zip(tmp_path / "plain2020.pl.zip", some_blocks("44"), 2020)
    assert "urban_rural" not in od.compare(nowhere, nowhere).summary["products"][0]


def test_tables_that_an_input_lacks_are_refused(made: Path, tmp_path: Path) -> None:
    earlier = write_zip(tmp_path / "fb2010.pl.zip", people(), 2010)
    with pytest.raises(ConfigError, match="no table P5"):
        od.compare(made / "out", earlier, tables=["P5"]).table.to_arrow()
    assert len(rows_of(od.compare(made / "out", made / "fb2020.pl.zip", tables=["P5"]))) > 0


def test_districts_of_a_plan_are_areas_as_others(made: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.csv"
    blocks = [block.code for block in people()]
    lines = [f"{code},{'east' if number % 2 else 'west'}" for number, code in enumerate(blocks)]
    plan.write_text("geocode,district\n" + "\n".join(lines) + "\n")
    comparison = od.compare(made / "out", made / "fb2020.pl.zip", blocks=plan)
    rows = {(row["geolevel"], row["geocode"], row["variable"]): row for row in rows_of(comparison)}
    for number, name in enumerate(("west", "east")):
        inside = [code for code in blocks[number::2] if ("block", code, "P0020001") in rows]
        for side in ("value_1", "value_2"):
            wanted = sum(rows["block", code, "P0020001"][side] for code in inside)
            assert rows["district", name, "P0020001"][side] == wanted
    (found,) = [
        row for row in comparison.summary["products"][0]["districts"] if row["geolevel"] == "district"
    ]
    sizes = [rows["district", name, "P0020001"]["value_1"] for name in ("west", "east")]
    assert found["range_percent"] == pytest.approx(100 * (max(sizes) - min(sizes)) / (sum(sizes) / 2))


def test_a_hierarchy_of_ones_own_may_have_a_geolevel_called_district(tmp_path: Path) -> None:
    wards = {"w1": "north", "w2": "north", "w3": "south"}
    records = [(ward, age) for ward in wards for age in ("young", "old", "old")]
    (tmp_path / "d.csv").write_text(
        "ward,district,age\n" + "".join(f"{w},{wards[w]},{a}\n" for w, a in records)
    )
    (tmp_path / "p.toml").write_text(
        '[product]\nname = "wards"\nprotected_unit = "person"\nprovenance = "public"\n'
        '[attributes]\nage = ["young", "old"]\n[queries]\ngroups = ["age"]\n'
    )
    (tmp_path / "run.toml").write_text(
        '[run]\nproduct = "p.toml"\n[input]\nreader = "records"\npath = "d.csv"\ngeocode = "ward"\n'
        '[geography]\nframe = "from-records"\nlevels = [{ name = "all", prefix = 0 }, '
        '{ name = "district", column = "district" }, { name = "ward" }]\n'
        '[budget]\nrho = "8"\ngeolevels = { all = "1/4", district = "1/4", ward = "1/2" }\n'
        '[budget.queries]\n"*" = { total = "1/2", age = "1/2" }\n'
    )
    run = od.load(tmp_path / "run.toml")
    od.release(run, tmp_path / "out", seed=1)
    (tmp_path / "plan.csv").write_text("ward,plan\nw1,a\nw2,b\nw3,b\n")
    alone = od.compare(tmp_path / "out", truth=run)
    beside = od.compare(tmp_path / "out", truth=run, blocks=tmp_path / "plan.csv")
    for comparison, plan in ((alone, set()), (beside, {"a", "b"})):
        found: dict[str, set[str]] = {}
        for row in rows_of(comparison):
            found.setdefault(row["geolevel"], set()).add(row["geocode"])
        assert found.get("district_of_plan", set()) == plan
        assert found["district"] == {"north", "south"}
    assert alone.summary["products"][0].get("districts", []) == []  # nobody drew them


def test_only_areas_that_all_cover_are_compared(made: Path, tmp_path: Path) -> None:
    part = write_zip(tmp_path / "part2020.pl.zip", [b for b in people() if b.code[:5] == "44003"], 2020)
    rows = rows_of(od.compare(made / "out", part))
    assert {row["geolevel"] for row in rows} == {"county", "tract", "block_group", "block", "cousub"}
    assert {row["geocode"][:5] for row in rows} == {"44003"}
    elsewhere = write_zip(tmp_path / "other2020.pl.zip", some_blocks("45"), 2020)
    with pytest.raises(ConfigError, match="no county has a block in every source"):
        od.compare(made / "out", elsewhere)


def test_blocks_of_two_censuses_are_not_compared(made: Path, tmp_path: Path) -> None:
    earlier = write_zip(tmp_path / "fb2010.pl.zip", people(), 2010)
    comparison = od.compare(made / "fb2020.pl.zip", earlier)
    levels = {row["geolevel"] for row in rows_of(comparison)}
    assert {"state", "county"} <= levels
    assert not levels & {"tract", "block_group", "block"}
    assert comparison.summary["left_out"] == ["tract", "block_group", "block"]


def test_areas_that_a_release_has_no_codes_for_have_no_margin_of_it(made: Path, tmp_path: Path) -> None:
    blocks = people()
    for block in blocks:
        block.place = block.cousub = ""
    path = write_zip(tmp_path / "without.pl.zip", blocks, 2020)
    od.release(od.load(write_run(tmp_path, "persons", path)), tmp_path / "out", seed=1)
    rows = rows_of(od.compare(made / "fb2020.pl.zip", tmp_path / "out", geolevels=["county", "place"]))
    margins = {(row["geolevel"], row["margin_of_2"]) for row in rows}
    assert {("county", "measurement"), ("place", None)} <= margins
    assert {kind for geolevel, kind in margins if geolevel == "place"} == {None}


@pytest.mark.parametrize(
    ("sources", "more", "code", "said"),
    [
        (["out"], [], 2, "takes two sources or more"),
        (["out", "absent"], [], 2, "no such file or folder"),
        (["out", "persons.toml"], [], 2, "no release, no official redistricting file"),
        (["out", "fb2020.pl.zip"], ["--to", "out/release/here"], 2, "a release holds what is certified"),
        (["out", "fb2020.pl.zip"], ["--geolevel", "contry"], 2, "did you mean county"),
        (["out", "fb2020.pl.zip"], ["--tables", "P9"], 2, "P9"),
        (["out", "fb2020.pl.zip"], ["--geometry", "nowhere.shp"], 2, "no such file"),
    ],
)
def test_what_cannot_be_compared_is_refused_and_leaves_nothing(
    out: Path,
    made: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    sources: list[str],
    more: list[str],
    code: int,
    said: str,
) -> None:
    for name in ("fb2020.pl.zip", "persons.toml"):
        shutil.copy(made / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    to = [] if "--to" in more else ["--to", "changed"]
    assert guarded(cli, ["compare", *sources, *to, *more]) == code
    assert said in capsys.readouterr().err
    assert not (tmp_path / "changed").exists()
    assert not (out / "release" / "here").exists()


@pytest.mark.slow
def test_a_release_of_rhode_island_beside_its_official_file(tmp_path: Path) -> None:
    path = shared_data("pl94_2010_ri/ri2010.pl.zip")
    run = tmp_path / "run.toml"
    run.write_text(
        f'[run]\nproduct = "pl94-persons"\n[input]\nreader = "pl94-2010"\npath = "{path}"\n'
        '[budget]\npreset = "pr2020-persons"\n'
    )
    od.release(od.load(run), tmp_path / "out", seed=1)
    comparison = od.compare(tmp_path / "out", path)
    table, page = od.write_comparison(comparison, tmp_path / "changed")
    rows = pq.read_table(table).to_pylist()
    total = {(row["geolevel"], row["geocode"]): row for row in rows if row["variable"] == "P0020001"}
    assert (total["state", "44"]["value_1"], total["state", "44"]["value_2"]) == (1_052_567, 1_052_567)
    town = total["cousub", "4400950500"]
    assert (town["name"], town["value_2"]) == ("New Shoreham town, Washington County, Rhode Island", 1_051)
    assert abs(town["difference"]) < 50
    counts = comparison.summary["products"][0]["geolevels"]
    assert (counts["block"], counts["tract"], counts["cousub"]) == (17_850, 241, 39)
    assert 3_000_000 < page.stat().st_size < 10_000_000
