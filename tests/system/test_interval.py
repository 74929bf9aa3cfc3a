"""``opendas interval`` and ``opendas tabulate --intervals``, from a copy of what is published."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.bureau_layout import write_bureau
from support.dense_intervals import DenseIntervals
from support.mini import mini_frame, mini_histogram, to_dense, write_mini

import opendas
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.demo import write_demo
from opendas.files.release_folder import ReleaseFolder
from opendas.files.release_tree import noisy_tree


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release with full measurements; nothing confidential beside it."""
    folder = tmp_path_factory.mktemp("interval")
    run = opendas.load(write_mini(folder))
    opendas.release(run, folder / "whole", measurements="full", seed=3)
    shutil.copytree(folder / "whole" / "release", folder / "public" / "release")
    return folder / "public"


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert guarded(cli, [*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(word))


def cells(query: str) -> np.ndarray:
    from support.mini import mini_product

    group = mini_product().workload.group(query)
    return group.row_of_cell[None, :] == np.arange(group.size)[:, None]


@pytest.mark.parametrize("query", ["total", "kind", "detailed", "age * kind"])
@pytest.mark.parametrize("geolevel", ["region", "town", "block"])
def test_geounits_against_dense_algebra(made: Path, capsys, query: str, geolevel: str) -> None:
    found = answer(capsys, "interval", str(made), "--query", query, "--geolevel", geolevel)
    assert found["level"] == 0.9
    tree = noisy_tree(ReleaseFolder(made)["mini"])
    dense, members = DenseIntervals(tree), cells(query)
    level = tree.spine.index(geolevel)
    starts = tree.spine.leaf_starts(level)
    rows = iter(found["rows"])
    truth = to_dense(mini_histogram(mini_frame()))
    covered = []
    for i, code in enumerate(tree.spine.levels[level].geocodes):
        weights = np.zeros(len(tree.spine.leaf))
        weights[starts[i] : starts[i + 1]] = 1.0
        estimate, variance = dense.answer(weights, members)
        for k, row in enumerate(members):
            one = next(rows)
            assert one["geocode"] == code.decode()
            assert one["estimate"] == pytest.approx(estimate[k], abs=1e-8)
            assert one["variance"] == pytest.approx(variance[k], abs=1e-10)
            assert 0 <= one["lower"] <= one["upper"]
            assert one["lower"] == int(one["lower"])
            assert isinstance(one["count"], int)
            covered.append(one["lower"] <= weights @ truth @ row <= one["upper"])
    assert next(rows, None) is None
    if len(covered) >= 50:  # a few intervals may all miss
        assert np.mean(covered) > 0.8


def test_the_published_count_is_that_of_the_microdata(made: Path, capsys) -> None:
    found = answer(capsys, "interval", str(made), "--query", "total", "--geolevel", "town")
    table = opendas.Release(made).table("total", geolevel="town").to_arrow()
    assert [row["count"] for row in found["rows"]] == table.column("total").to_pylist()


def test_selected_counts_are_those_above_zero_in_wider_intervals(made: Path, capsys) -> None:
    question = ("interval", str(made), "--query", "detailed", "--geolevel", "block")
    every = {(row["geocode"], row["cell"]): row for row in answer(capsys, *question)["rows"]}
    picked = answer(capsys, *question, "--selected")["rows"]
    above = {name for name, row in every.items() if row["variance"] > 0 and row["lower"] > 0}
    assert {(row["geocode"], row["cell"]) for row in picked} == above
    assert 0 < len(above) < len(every)
    for row in picked:
        plain = every[row["geocode"], row["cell"]]
        assert row["estimate"] == plain["estimate"]
        assert row["margin"] > plain["margin"]
        assert row["lower"] <= plain["lower"] <= plain["upper"] <= row["upper"]
    block = picked[0]["geocode"]
    drawn = opendas.Release(made).interval("detailed", blocks=[block], selected=True).to_arrow()
    assert set(drawn["cell"].to_pylist()) == {cell for code, cell in above if code == block}


def test_every_path_to_the_same_measurements(made: Path, capsys) -> None:
    wanted = answer(capsys, "interval", str(made), "--query", "kind", "--geolevel", "town")
    for path in (made / "release", made / "release" / "measurements" / "mini"):
        assert answer(capsys, "interval", str(path), "--query", "kind", "--geolevel", "town") == wanted


def test_a_release_is_all_it_takes(made: Path, tmp_path: Path, capsys) -> None:
    """Only measurements and public geography: no microdata, no certificate, no run file, no key."""
    for name in ("measurements", "geography"):
        shutil.copytree(made / "release" / name, tmp_path / name)
    found = answer(capsys, "interval", str(tmp_path), "--query", "total", "--geolevel", "region")
    assert all("count" not in row for row in found["rows"])
    whole = answer(capsys, "interval", str(made), "--query", "total", "--geolevel", "region")
    assert [row["estimate"] for row in found["rows"]] == [row["estimate"] for row in whole["rows"]]


def test_a_release_that_is_nearly_noiseless(tmp_path: Path, capsys) -> None:
    """The variance of noise that is nothing but zeros is zero in double precision: no damaged file."""
    run = opendas.load(write_mini(tmp_path, loss='rho = "1000000"'))
    opendas.release(run, tmp_path / "out", measurements="full")
    found = answer(capsys, "interval", str(tmp_path / "out"), "--query", "detailed", "--geolevel", "block")
    truth = to_dense(mini_histogram(mini_frame())).ravel()
    assert [row["lower"] for row in found["rows"]] == truth.tolist()
    assert [row["upper"] for row in found["rows"]] == truth.tolist()


def test_an_invariant_is_exact(made: Path, capsys) -> None:
    for row in answer(capsys, "interval", str(made), "--query", "total", "--geolevel", "region")["rows"]:
        assert row["variance"] == pytest.approx(0.0, abs=1e-9)
        assert row["lower"] == row["upper"] == row["count"]
        assert row["law"] == "exact"


def test_wider_at_a_higher_level(made: Path, capsys) -> None:
    def widths(level: str) -> np.ndarray:
        found = answer(
            capsys, "interval", str(made), "--query", "kind", "--geolevel", "block", "--level", level
        )
        return np.array([row["upper"] - row["lower"] for row in found["rows"]])

    assert np.all(widths("0.5") <= widths("0.9"))
    assert np.all(widths("0.9") <= widths("0.99"))
    assert np.any(widths("0.5") < widths("0.99"))


def test_the_text_answer(made: Path, capsys) -> None:
    assert guarded(cli, ["interval", str(made), "--query", "kind", "--geolevel", "town"]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0].split() == [
        "geocode", "cell", "count", "estimate", "sd", "lower", "upper",
    ]  # fmt: skip
    assert "nothing else" in captured.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--query", "total"], 2, "either --blocks or --geolevel"),
        (["--query", "total", "--geolevel", "town", "--level", "1"], 2, "between 0 and 1"),
        (["--query", "total", "--geolevel", "town", "--level", "0"], 2, "between 0 and 1"),
        (["--query", "total", "--geolevel", "town", "--level", "nan"], 2, "such as 0.90"),
        (["--query", "total", "--geolevel", "town", "--level", "90 %"], 2, "such as 0.90"),
        (["--query", "sex", "--geolevel", "town"], 2, "neither attribute nor recode"),
        (["--query", "P1", "--geolevel", "town"], 2, "needs the product pl94-persons"),
        (["--query", "total", "--geolevel", "twon"], 2, "did you mean town"),
        (["--query", "total", "--blocks", "none.csv"], 2, "no such file"),
    ],
)
def test_refusals(made: Path, capsys, arguments: list[str], code: int, words: str) -> None:
    before = sorted(path for path in made.rglob("*"))
    assert guarded(cli, ["interval", str(made), *arguments]) == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""
    assert sorted(path for path in made.rglob("*")) == before


def test_a_folder_that_is_none(tmp_path: Path, capsys) -> None:
    assert guarded(cli, ["interval", str(tmp_path), "--query", "total", "--geolevel", "town"]) == 2
    assert "no release" in capsys.readouterr().err
    assert guarded(cli, ["interval", str(tmp_path / "x"), "--query", "total", "--geolevel", "town"]) == 2


def test_files_with_used_answers_only_say_what_writes_the_others(tmp_path: Path, capsys) -> None:
    run = opendas.load(write_mini(tmp_path))
    opendas.release(run, tmp_path / "out", measurements="used")
    for arguments in (
        ["interval", str(tmp_path / "out"), "--query", "total", "--geolevel", "town"],
        ["tabulate", str(tmp_path / "out"), "--tables", "total", "--geolevel", "town", "--intervals", "0.9"],
    ):
        assert guarded(cli, arguments) == 3
        said = " ".join(capsys.readouterr().err.split())
        assert said.index("opendas measure RUN.toml --out OUT --resume") < said.index("--measurements full")
        assert "if the run kept its key" in said
    assert not (tmp_path / "out" / "release" / "tables").exists()


# Sets of blocks.


def districts(folder: Path, *, weight: bool = False) -> tuple[Path, dict[str, np.ndarray]]:
    """Draw three districts: across towns and regions, one block, one town; returns file and leaf weights."""
    codes = [code.decode() for code in mini_frame().geocodes]
    rng = np.random.default_rng(7)
    drawn = {
        "east": np.sort(rng.choice(24, 9, replace=False)),
        "one": np.array([5]),
        "town": np.arange(8, 12),
    }
    lines, weights = [], {}
    for name, blocks in drawn.items():
        each = np.round(rng.uniform(0.1, 1.0, len(blocks)), 2) if weight else np.ones(len(blocks))
        weights[name] = np.zeros(24)
        weights[name][blocks] = each
        lines += [f"{codes[b]},{name},{w}" for b, w in zip(blocks, each, strict=True)]
    path = folder / "districts.csv"
    path.write_text("\n".join(["GEOID20,district,weight", *lines]) + "\n")
    return path, weights


@pytest.mark.parametrize("weight", [False, True])
def test_districts_against_dense_algebra(made: Path, tmp_path: Path, capsys, weight: bool) -> None:
    path, weights = districts(tmp_path, weight=weight)
    found = answer(capsys, "interval", str(made), "--query", "kind", "--blocks", str(path))
    tree = noisy_tree(ReleaseFolder(made)["mini"])
    dense, members = DenseIntervals(tree), cells("kind")
    counts = to_dense(opendas.Release(made).estimate("mini"))
    rows = iter(found["rows"])
    for name, each in weights.items():
        estimate, variance = dense.answer(each[tree.spine.leaf_order], members)
        for k, row in enumerate(members):
            one = next(rows)
            assert one["geocode"] == name
            assert one["estimate"] == pytest.approx(estimate[k], abs=1e-8)
            assert one["variance"] == pytest.approx(variance[k], abs=1e-10)
            assert one["count"] == pytest.approx(each @ counts @ row)
            assert one["lower"] <= one["upper"]
            if not weight:
                assert one["lower"] == int(one["lower"])
    assert next(rows, None) is None


def test_a_district_that_is_a_geounit_is_that_geounit(made: Path, tmp_path: Path, capsys) -> None:
    path, _ = districts(tmp_path)
    found = answer(capsys, "interval", str(made), "--query", "kind", "--blocks", str(path))["rows"]
    town = answer(capsys, "interval", str(made), "--query", "kind", "--geolevel", "town")["rows"]
    for row, other in zip(found[6:9], town[6:9], strict=True):
        assert row["estimate"] == pytest.approx(other["estimate"])
        assert (row["lower"], row["upper"]) == (other["lower"], other["upper"])


def test_blocks_from_python(made: Path, tmp_path: Path) -> None:
    release = opendas.Release(made)
    path, _ = districts(tmp_path)
    whole = release.interval("kind", blocks=path).to_arrow()
    codes = [code.decode() for code in mini_frame().geocodes]
    frame = release.interval("kind", blocks={"geocode": codes[8:12], "area": ["town"] * 4}).to_arrow()
    import pandas as pd

    # Sums of doubles over one area and over many may differ in the last digit.
    pd.testing.assert_frame_equal(frame.to_pandas(), whole.slice(6, 3).to_pandas().reset_index(drop=True))

    table = pd.DataFrame({"geocode": codes[8:12], "area": "town"})
    assert release.interval("kind", blocks=table).to_arrow().equals(frame)
    listed = release.interval("kind", blocks=codes[8:12]).to_arrow()
    assert listed.column("geocode").to_pylist() == ["area"] * 3
    assert listed.column("lower").equals(frame.column("lower"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("geocode\n999999\n", "no blocks of this release"),
        ("geocode\n000000\n000000\n", "rows repeat a geocode"),
        ("geocode,weight\n000000,x\n", "not a number"),
        ("", "is empty"),
    ],
)
def test_block_files_that_are_refused(made: Path, tmp_path: Path, capsys, text: str, words: str) -> None:
    path = tmp_path / "blocks.csv"
    path.write_text(text)
    assert guarded(cli, ["interval", str(made), "--query", "total", "--blocks", str(path)]) == 3
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


def test_unknown_blocks_can_be_left_out(made: Path, tmp_path: Path, capsys) -> None:
    path = tmp_path / "blocks.txt"
    path.write_text("000000\n999999\n")
    arguments = ["interval", str(made), "--query", "total", "--blocks", str(path)]
    assert len(answer(capsys, *arguments, "--skip-unknown")["rows"]) == 1


# Tables with intervals.


def test_columns_beside_each_count(made: Path, tmp_path: Path, capsys) -> None:
    arguments = ["tabulate", str(made), "--tables", "kind", "--geolevel", "town", "--intervals", "0.90"]
    assert guarded(cli, [*arguments, "--to", str(tmp_path)]) == 0
    table = pq.read_table(tmp_path / "kind_town_intervals.parquet")
    assert table.column_names[:5] == ["GEOID", "home", "home_EST", "home_EST_MOE90", "home_LOW90"]
    capsys.readouterr()
    rows = answer(capsys, "interval", str(made), "--query", "kind", "--geolevel", "town")["rows"]
    for row in rows:
        place = table.column("GEOID").to_pylist().index(row["geocode"])
        assert table.column(row["cell"])[place].as_py() == row["count"]
        assert table.column(f"{row['cell']}_EST")[place].as_py() == pytest.approx(row["estimate"], abs=1e-4)
        assert table.column(f"{row['cell']}_EST_MOE90")[place].as_py() == pytest.approx(
            row["margin"], abs=1e-4
        )
        assert table.column(f"{row['cell']}_LOW90")[place].as_py() == row["lower"]
        assert table.column(f"{row['cell']}_HIGH90")[place].as_py() == row["upper"]
    assert guarded(cli, [*arguments, "--to", str(tmp_path), "--format", "csv"]) == 0
    with open(tmp_path / "kind_town_intervals.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["home_LOW90"] for line in lines] == [
        str(value) for value in table.column("home_LOW90").to_pylist()
    ]


def test_tables_with_intervals_are_verified(tmp_path: Path, capsys) -> None:
    opendas.release(opendas.load(write_mini(tmp_path)), tmp_path / "out", measurements="full")
    out = str(tmp_path / "out")
    for form in ("parquet", "csv"):
        arguments = ["tabulate", out, "--tables", "total,kind", "--geolevel", "block", "--format", form]
        assert guarded(cli, [*arguments, "--intervals", "0.95"]) == 0
    assert guarded(cli, ["verify", out]) == 0
    path = tmp_path / "out" / "release" / "tables" / "kind_block_intervals.csv"
    text = path.read_text().splitlines()
    fields = text[1].split(",")
    fields[text[0].split(",").index("home_EST")] = "123.5"
    path.write_text("\n".join([text[0], ",".join(fields), *text[2:]]) + "\n")
    capsys.readouterr()
    assert guarded(cli, ["verify", out]) == 1


def test_the_legacy_format_has_no_room(made: Path, capsys) -> None:
    arguments = ["tabulate", str(made), "--tables", "P1", "--geolevel", "town", "--format", "pl94"]
    assert guarded(cli, [*arguments, "--intervals", "0.9"]) == 2
    assert "no columns for intervals" in capsys.readouterr().err


# From Python.


def test_from_python(made: Path) -> None:
    release = opendas.Release(made)
    towns = release.intervals("kind", geolevel="town", level="0.95").to_pandas()
    assert list(towns.columns[:4]) == ["geocode", "cell", "estimate", "variance"]
    assert len(towns) == 6 * 3
    again = opendas.NoisyFile(made / "release").intervals("kind", geolevel="town", level=0.95).to_pandas()
    assert again.equals(towns)


# The Bureau's layout.


def test_the_bureaus_layout_gives_the_same_answers(tmp_path: Path, capsys) -> None:
    persons, _ = write_demo(tmp_path / "input", blocks=60)
    opendas.release(opendas.load(persons), tmp_path / "out", measurements="full", workers=1)
    tree = noisy_tree(ReleaseFolder(tmp_path / "out")["pl94-persons"])
    nmf = write_bureau(tmp_path / "nmf", tree)
    capsys.readouterr()
    codes = [code.decode() for code in tree.frame.geocodes[3:30]]
    (tmp_path / "blocks.txt").write_text("\n".join(codes))
    for more in (
        ["--geolevel", "tract"],
        ["--geolevel", "block"],
        ["--blocks", str(tmp_path / "blocks.txt")],
    ):
        for query in ("votingage", "hhgq", "P5"):
            ours, theirs = (
                answer(capsys, "interval", str(path), "--query", query, *more)["rows"]
                for path in (tmp_path / "out", nmf)
            )
            # A measurement file has no official block outside the frame: ours are exact zeros.
            listed = {row["geocode"] for row in theirs}
            beside = [row for row in ours if row["geocode"] not in listed]
            assert all(
                row["estimate"] == row["lower"] == row["upper"] == row["variance"] == 0 for row in beside
            )
            ours = [row for row in ours if row["geocode"] in listed]
            assert len(ours) == len(theirs) > 0
            for one, other in zip(ours, theirs, strict=True):
                assert (one["geocode"], one["cell"]) == (other["geocode"], other["cell"])
                assert other["estimate"] == pytest.approx(one["estimate"], abs=1e-3)
                assert other["variance"] == pytest.approx(one["variance"], rel=1e-5, abs=1e-6)
                assert abs(one["lower"] - other["lower"]) <= 1
                assert "count" not in other
    tables = {}
    for name, source in (("ours", tmp_path / "out"), ("theirs", nmf)):
        to = ["--product", "pl94-persons", "--to", str(tmp_path / name)]
        assert guarded(cli, ["export", str(source), "--format", "long", *to]) == 0
        tables[name] = {
            path.relative_to(tmp_path / name): pq.read_table(path)
            for path in sorted((tmp_path / name).rglob("*.parquet"))
        }
    assert list(tables["ours"]) == list(tables["theirs"])
    for path, table in tables["ours"].items():
        other = tables["theirs"][path]
        asked = table.filter(pc.is_in(table["geocode"], other["geocode"]))
        order = [("geocode", "ascending")]
        one, two = asked.sort_by(order), other.sort_by(order)
        assert one.drop(["variance"]).equals(two.drop(["variance"])), path
        assert np.allclose(one["variance"], two["variance"], rtol=1e-6)
    shutil.rmtree(nmf / "Tract.parquet")
    assert guarded(cli, ["interval", str(nmf), "--query", "total", "--geolevel", "county"]) == 3
    assert "Tract is missing" in capsys.readouterr().err


def test_another_products_table_is_refused(tmp_path: Path, made: Path, capsys) -> None:
    persons, units = write_demo(tmp_path / "input", blocks=50)
    for run_file in (persons, units):
        opendas.measure(opendas.load(run_file), tmp_path / "out", workers=1)
    capsys.readouterr()
    nmf = write_bureau(tmp_path / "nmf", noisy_tree(ReleaseFolder(tmp_path / "out")["pl94-units"]))
    assert guarded(cli, ["interval", str(nmf), "--query", "P1", "--geolevel", "county"]) == 2
    assert "pl94-persons" in capsys.readouterr().err
    out = ["interval", str(tmp_path / "out")]
    assert len(answer(capsys, *out, "--query", "H1", "--geolevel", "county")["rows"]) == 6
    assert guarded(cli, [*out, "--query", "total", "--geolevel", "county"]) == 2
    assert "pl94-units:total" in capsys.readouterr().err
    assert len(answer(capsys, *out, "--query", "pl94-units:total", "--geolevel", "block")["rows"]) > 20
