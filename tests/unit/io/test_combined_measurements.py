"""Redistricting and DHC persons of the same people: estimates from both files, and files of other people."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.bureau_layout import write_bureau
from support.dense_intervals import DenseIntervals
from support.dhc_measurements import MadeCounty
from support.each import each
from support.noisy_trees import MadeTree
from support.pl94_zip import some_blocks, write_zip

from opendas import NoisyFile
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.errors import FormatError
from opendas.geography.frame import GQ_COLUMNS, Frame, official_codes
from opendas.intervals.answers import Estimated
from opendas.intervals.combined import combined, common_rows
from opendas.intervals.laws import Draws, NoiseSum
from opendas.readers.public_totals import read_public_totals
from opendas.sampling.laws import DiscreteGaussian
from opendas.schema.dhc_persons import PL94_CELL
from opendas.schema.histogram import Histogram
from opendas.schema.pl94 import pl94_persons
from opendas.tables.interval_tables import open_measured

QUERIES = ("age_18_64_116 * relgq_4_groups", "hispanic * sex", "detailed")
MADE = MadeCounty(1)
CODES = np.array([b"440010301001001", b"440010301001002", b"440010302002001"])


def redistricting(folder: Path, made: MadeCounty, seed: int, codes: np.ndarray = CODES) -> Path:
    """Write redistricting measurements of the synthetic people, without totals of states, as published."""
    cell = made.product.workload.group(PL94_CELL).row_of_cell
    leaf = [cell[cells] for cells in made.blocks]
    counts = Histogram.from_entries(
        np.repeat(np.arange(3), [len(c) for c in leaf]), np.concatenate(leaf),
        np.ones(sum(map(len, leaf)), dtype=np.int64), shape=(3, 2016),
    )  # fmt: skip
    units = {name: np.full(3, 400, dtype=np.int64) for name in ("hu",)}
    hhgq = pl94_persons().workload.group("hhgq")
    people = hhgq.answers(np.stack([counts.dense(i) for i in range(3)]))
    units |= {name: np.minimum(people[:, k], 1) for k, name in enumerate(GQ_COLUMNS, start=1)}
    tree = MadeTree(
        replace(pl94_persons(), invariants=()),
        Frame(codes, official_codes(codes, "state"), "block", units),
        counts,
        rho=Fraction(1, 4),
        queries={"*": {"total": Fraction(1, 4), "hispanic": Fraction(1, 4), "detailed": Fraction(1, 2)}},
    )
    return write_bureau(folder, tree.draw(seed))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("files")
    return redistricting(root / "pl", MADE, 3), MADE.write(root / "dhc", queries=QUERIES)


def rows(capsys, *arguments: str) -> list[dict]:
    assert guarded(cli, ["interval", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["rows"]


WEIGHTS = {"county": [1.0, 1.0, 1.0], "tract": [1.0, 1.0, 0.0], "block": [0.0, 1.0, 0.0]}
GEOCODE = {"county": "44001", "tract": "44001030100", "block": "440010301001002"}


def pair(path: Path, query: str, weights: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Estimates of two rows by one file, and their covariance from the variances of both and of their sum."""
    own, total = (
        NoisyFile(path).interval(name, blocks={"geocode": CODES[np.array(weights) > 0].tolist()}).to_pandas()
        for name in (query, "total")
    )
    v = np.diag(own["variance"])
    v[0, 1] = v[1, 0] = (total["variance"][0] - v.sum()) / 2
    return own["estimate"].to_numpy(), v


def expected(pl: Path, dhc: Path, query: str, common: str, weights: list[float]) -> tuple[np.ndarray, ...]:
    """Least squares of two independent estimates of the common rows, written out."""
    q, w = pair(pl, common, weights)
    measured, _ = open_measured(dhc, query)
    dense, members = DenseIntervals(measured.tree), measured.table(query).members
    members = np.vstack([members, AGE_ROWS @ members.astype(int) > 0 if query in AGES else members])
    draws = dense.draws(np.array(weights), members)
    (z, _), v = dense.answer(np.array(weights), members), (draws * dense.variances) @ draws.T
    t = len(z) - 2
    gain = v[:t, t:] @ np.linalg.pinv(v[t:, t:] + w, rcond=1e-12)
    return z[:t] + gain @ (q - z[t:]), np.diag(v)[:t] - np.einsum("tk,tk->t", gain, v[:t, t:])


AGES = ("age_18_64_116 * sex",)
AGE_ROWS = np.array([[1, 0, 0, 1, 0, 0], [0, 1, 1, 0, 1, 1]])


@pytest.mark.parametrize("geolevel", ["county", pytest.param("tract", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("query", "common"),
    [("hispanic", "hispanic"), ("votingage", "votingage"), (AGES[0], "votingage")],
)
def test_least_squares_on_what_both_count(files, capsys, query: str, common: str, geolevel: str) -> None:
    """Against dense algebra, in either order of the files: ages gain from what is known of minors."""
    pl, dhc = files
    estimate, variance = expected(pl, dhc, query, common, WEIGHTS[geolevel])
    for order in ((pl, dhc), (dhc, pl)):
        found = rows(capsys, *map(str, order), "--query", query, "--geolevel", geolevel)
        own = [row for row in found if row["geocode"] == GEOCODE[geolevel]]
        normal = [i for i, row in enumerate(own) if row["law"] == "normal"]
        assert [own[i]["estimate"] for i in normal] == pytest.approx(estimate[normal], abs=1e-6)
        assert [own[i]["variance"] for i in normal] == pytest.approx(variance[normal], rel=1e-7, abs=1e-7)


def test_ages_gain_from_what_is_known_of_adults(files, capsys) -> None:
    """Also ages that the other file cannot tell apart: it knows their sum."""
    asked = ["--query", "age_18_64_116", "--geolevel", "tract"]
    alone = rows(capsys, str(files[1]), *asked)
    both = rows(capsys, *map(str, files), *asked)
    for one, two in zip(alone, both, strict=True):
        assert one["cell"] == two["cell"]
        assert two["variance"] < 0.995 * one["variance"]


@pytest.mark.parametrize("query", ["hispanic", "votingage", "total"])
@pytest.mark.parametrize(
    "geolevel", ["county", *(pytest.param(level, marks=pytest.mark.slow) for level in ("tract", "block"))]
)
def test_never_worse_than_the_mean_row_by_row(files, capsys, query: str, geolevel: str) -> None:
    pl, dhc = map(str, files)
    asked = ["--query", query, "--geolevel", geolevel]
    both = rows(capsys, pl, dhc, *asked)
    for one, two, together in zip(rows(capsys, pl, *asked), rows(capsys, dhc, *asked), both, strict=True):
        assert (one["geocode"], one["cell"]) == (together["geocode"], together["cell"])
        if min(one["variance"], two["variance"]) < 1e-9:
            assert together["variance"] == pytest.approx(0.0, abs=1e-9)
            continue
        weights = np.array([1 / one["variance"], 1 / two["variance"]])
        mean = weights @ [one["estimate"], two["estimate"]] / weights.sum()
        assert together["variance"] <= (1 + 1e-9) / weights.sum()
        if together["law"] != "normal" or query == "total":
            assert together["estimate"] == pytest.approx(mean, abs=1e-7)
            assert together["variance"] == pytest.approx(1 / weights.sum(), rel=1e-9)


def test_blocks_that_somebody_drew(files, capsys, tmp_path: Path) -> None:
    pl, dhc = map(str, files)
    plan = tmp_path / "plan.csv"
    plan.write_text("geocode,area\n440010301001001,A\n440010302002001,A\n440010301001002,B\n")
    asked = ["--query", "hispanic", "--blocks", str(plan)]
    estimate, variance = expected(*files, "hispanic", "hispanic", [1.0, 0.0, 1.0])
    found = rows(capsys, pl, dhc, *asked)[:2]
    assert [row["estimate"] for row in found] == pytest.approx(estimate, abs=1e-6)
    assert [row["variance"] for row in found] == pytest.approx(variance, rel=1e-7)


@pytest.mark.slow
def test_what_is_no_one_set_of_measurements_is_refused(files, tmp_path: Path, capsys) -> None:
    pl, dhc = files

    def refused(*arguments: object) -> tuple[int, str]:
        code = guarded(cli, ["interval", *map(str, arguments), "--query", "hispanic", "--geolevel", "county"])
        return code, capsys.readouterr().err

    code, said = refused(pl, dhc, dhc)
    assert (code, "appear twice" in said) == (2, True)
    code, said = refused(pl, tmp_path)
    assert (code, "not a noisy measurement file" in said) == (2, True)
    others = MadeCounty(5, people=(700, 450, 900)).write(tmp_path / "others", queries=QUERIES)
    code, said = refused(pl, others)
    assert code == 3
    assert "county 44001" in said
    assert "standard deviations" in said
    elsewhere = redistricting(tmp_path / "elsewhere", MADE, 3, np.char.replace(CODES, b"44001", b"44003"))
    code, said = refused(elsewhere, dhc)
    assert (code, "cover different blocks" in said) == (3, True)
    assert guarded(cli, ["interval", str(pl), str(dhc), "--query", "H1", "--geolevel", "county"]) == 2
    assert "neither a table nor a query group of pl94-persons, dhc-persons" in capsys.readouterr().err


def test_finest_common_sums() -> None:
    """Four cells by two others by hand: 0 and 1 share, 2 is alone, 3 counts nobody."""
    common, own = common_rows(np.array([0, 1, 2]), np.array([0, 0, 2]), 4, 3)
    assert common.tolist() == [0, 0, 1, -1]
    assert own.tolist() == [0, -1, 1]


def totals(folder: Path, text: str) -> Path:
    path = folder / "totals.csv"
    path.write_text(text)
    return path


PEOPLE = sum(MADE.people)


@pytest.mark.parametrize(
    "text",
    [
        f"GEO_ID,NAME,P1_001N\n0400000US44,Rhode Island,{PEOPLE}\n0500000US44001,Bristol,7\n",
        f"GEOID|POP100\n44|{PEOPLE}\n",
        "GEOID,P0010001\n" + "".join(f"{c.decode()},{n}\n" for c, n in zip(CODES, MADE.people, strict=True)),
    ],
)
def test_totals_of_states_are_exact(files, tmp_path: Path, capsys, text: str) -> None:
    pl, _ = files
    path = totals(tmp_path, text)
    asked = ["--totals", str(path), "--query", "total", "--geolevel"]
    (state,) = rows(capsys, str(pl), *asked, "state")
    assert (state["estimate"], state["law"]) == (pytest.approx(PEOPLE), "exact")
    before = rows(capsys, str(pl), *asked[2:], "tract")
    after = rows(capsys, str(pl), *asked, "tract")
    assert all(b["variance"] > a["variance"] > 0.0 for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize("year", [2010, 2020])
def test_the_official_zip_of_a_state(files, tmp_path: Path, capsys, year: int) -> None:
    blocks = some_blocks()
    path = write_zip(tmp_path / "fb.pl.zip", blocks, year)
    found = read_public_totals(path)
    assert found.people == {"98": sum(sum(block.people.values()) for block in blocks)}
    wanted = {block.code: block.occupied + block.vacant for block in blocks}
    assert dict(zip([c.decode() for c in found.blocks], found.housing.tolist(), strict=True)) == wanted
    asked = ["--totals", str(path), "--query", "total", "--geolevel", "county"]
    assert guarded(cli, ["interval", str(files[0]), *asked]) == 3
    assert "Give the totals of the same census and of all measured blocks" in capsys.readouterr().err


@each(
    "text, line",
    [
        ("GEO_ID,P1_001N\nGeography,Total\n0400000US44,five\n", 3),
        ("GEOID;P0010001;NAME\n44;5;x\n45;-5;x\n", 3),
        ("GEOID,P0010001,P0010001\n44,5,6\n", 1),
        ("GEOID,H0010001\n440010001001000,2,3\n", 2),
    ],
)
def test_totals_that_cannot_be_are_told_by_line(tmp_path: Path, text: str, line: int) -> None:
    with pytest.raises(FormatError) as caught:
        read_public_totals(totals(tmp_path, text))
    assert [(found.file, found.line) for found in caught.value.findings] == [("totals.csv", line)]


def test_totals_in_parquet(tmp_path: Path) -> None:
    path = tmp_path / "totals.parquet"
    pq.write_table(pa.table({"GEOID": [4, 44001], "P0010001": [5.0, None]}), path)
    assert read_public_totals(path).people == {"04": 5}
    pq.write_table(pa.table({"GEOID": [44], "P0010001": [[5]]}), path)
    with pytest.raises(FormatError, match="P0010001: expected text or numbers"):
        read_public_totals(path)


def test_totals_that_contradict_what_was_measured(files, tmp_path: Path, capsys) -> None:
    pl, dhc = files

    def refused(text: str, *paths: Path) -> str:
        given = [*map(str, paths or (pl,)), "--totals", str(totals(tmp_path, text))]
        assert guarded(cli, ["interval", *given, "--query", "total", "--geolevel", "county"]) == 3
        return capsys.readouterr().err

    said = refused(f"GEOID,P0010001\n44,{PEOPLE + 300}\n")
    assert f"{PEOPLE + 300:,} people in state 44" in said or f"{PEOPLE + 300} people in state 44" in said
    assert "standard deviations away" in said
    assert "pl94_con" in refused(f"GEOID,P0010001\n44,{PEOPLE + 1}\n", dhc)
    assert "no other totals are used" in refused("GEOID,P0010001\n44001,3\n")
    assert "lacks 2 of the " in refused(f"GEOID,H0010001\n{CODES[0].decode()},3\n")
    assert "appears twice" in refused("GEOID,P0010001\n44,3\n44,3\n")
    assert "a column of geography" in refused("state,people\n44,3\n")


def test_blocks_without_housing_hold_no_household(files, tmp_path: Path, capsys) -> None:
    pl, _ = files
    text = "GEO_ID,H1_001N\n" + "".join(
        f"1000000US{c.decode()},{n}\n" for c, n in zip(CODES, (0, 9, 9), strict=True)
    )
    asked = [str(pl), "--totals", str(totals(tmp_path, text)), "--query", "hhgq", "--geolevel", "block"]
    found = rows(capsys, *asked)
    assert (found[0]["cell"], found[0]["law"], found[0]["upper"]) == ("household", "exact", 0)
    assert found[8]["law"] != "exact"


def test_the_law_of_a_mean() -> None:
    """One draw in each file, by hand: the mean covers as often as it says, and exactness wins."""
    narrow, wide = DiscreteGaussian(Fraction(1, 4)), DiscreteGaussian(Fraction(2))
    parts = [
        Estimated(
            np.array([[value]]), np.array([[law.variance]]),
            (NoiseSum((Draws(law, law.variance**-0.5),)),), np.array([[0]]),
        )
        for value, law in ((4.0, narrow), (6.0, wide))
    ]  # fmt: skip
    found = combined(parts)
    share = (1 / narrow.variance) / (1 / narrow.variance + 1 / wide.variance)
    assert found.value[0, 0] == pytest.approx(4 * share + 6 * (1 - share))
    half, _ = found.half_widths(0.9)
    a, b = np.meshgrid(np.arange(-40, 41), np.arange(-40, 41), indexing="ij")
    chance = np.exp(-(a**2) / 0.5 - b**2 / 4.0)
    chance /= chance.sum()
    inside = np.abs(share * a + (1 - share) * b) <= half[0, 0] + 1e-9
    assert 0.9 <= chance[inside].sum() < 0.97
    nothing = Estimated(np.array([[np.nan]]), np.array([[np.inf]]), (), np.array([[-1]]))
    exact = Estimated(np.array([[5.0]]), np.array([[0.0]]), (), np.array([[-1]]))
    assert combined([parts[0], nothing]).value[0, 0] == 4.0
    assert combined([nothing, nothing]).variance[0, 0] == np.inf
    both = combined([parts[1], exact])
    assert (both.value[0, 0], both.variance[0, 0]) == (5.0, 0.0)
