"""Redistricting and DHC persons of the same people: estimates from both files, and files of other people."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from support.bureau_layout import write_bureau
from support.dhc_measurements import MadeCounty
from support.noisy_trees import MadeTree

from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.geography.frame import Frame, official_codes
from opendas.intervals.answers import Estimated
from opendas.intervals.combined import combined
from opendas.intervals.laws import Draws, NoiseSum
from opendas.sampling.laws import DiscreteGaussian
from opendas.schema.dhc_persons import PL94_CELL
from opendas.schema.histogram import Histogram
from opendas.schema.pl94 import GQ_COLUMNS, pl94_persons

QUERIES = ("age_18_64_116 * relgq_4_groups", "hispanic * sex", "detailed")
MADE = MadeCounty(1)
CODES = np.array([b"440010301001001", b"440010301001002", b"440010302002001"])


def redistricting(folder: Path, made: MadeCounty, seed: int) -> Path:
    """Write redistricting measurements of the synthetic people."""
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
        pl94_persons(),
        Frame(CODES, official_codes(CODES, "state"), "block", units),
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


@pytest.mark.parametrize("query", ["hispanic", "votingage", "total"])
@pytest.mark.parametrize("geolevel", ["county", "tract", "block"])
def test_the_mean_weighted_by_what_each_file_knows(files, capsys, query: str, geolevel: str) -> None:
    pl, dhc = map(str, files)
    asked = ["--query", query, "--geolevel", geolevel]
    both = rows(capsys, pl, "--with", dhc, *asked)
    for one, two, together in zip(rows(capsys, pl, *asked), rows(capsys, dhc, *asked), both, strict=True):
        assert (one["geocode"], one["cell"]) == (together["geocode"], together["cell"])
        if min(one["variance"], two["variance"]) < 1e-9:
            assert together["variance"] == pytest.approx(0.0, abs=1e-9)
            continue
        weights = np.array([1 / one["variance"], 1 / two["variance"]])
        mean = weights @ [one["estimate"], two["estimate"]] / weights.sum()
        assert together["estimate"] == pytest.approx(mean, abs=1e-7)
        assert together["variance"] == pytest.approx(1 / weights.sum(), rel=1e-9)


def test_blocks_that_somebody_drew(files, capsys, tmp_path: Path) -> None:
    pl, dhc = map(str, files)
    plan = tmp_path / "plan.csv"
    plan.write_text("geocode,area\n440010301001001,A\n440010302002001,A\n440010301001002,B\n")
    asked = ["--query", "hispanic", "--blocks", str(plan)]
    one, two = rows(capsys, pl, *asked), rows(capsys, dhc, *asked)
    for i, row in enumerate(rows(capsys, pl, "--with", dhc, *asked)):
        if row["law"] != "exact":
            assert row["variance"] == pytest.approx(1 / (1 / one[i]["variance"] + 1 / two[i]["variance"]))


def test_what_is_no_one_set_of_measurements_is_refused(files, tmp_path: Path, capsys) -> None:
    pl, dhc = files

    def refused(*arguments: object) -> tuple[int, str]:
        code = guarded(cli, ["interval", *map(str, arguments), "--query", "hispanic", "--geolevel", "county"])
        return code, capsys.readouterr().err

    code, said = refused(dhc, "--with", pl)
    assert (code, "give pl94-persons first" in said) == (2, True)
    code, said = refused(pl, "--with", dhc, "--with", dhc)
    assert (code, "there twice" in said) == (2, True)
    others = MadeCounty(5, people=(700, 450, 900)).write(tmp_path / "others", queries=QUERIES)
    code, said = refused(pl, "--with", others)
    assert code == 3
    assert "county 44001" in said
    assert "standard deviations" in said


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
