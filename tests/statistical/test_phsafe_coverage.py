"""Credible intervals at production variances hold the truth about 90 times in a hundred.

Groups are as large as those of states. Cells much smaller than their noise are covered less often, and others
more: see the coverage table in docs/experiments.md.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.phsafe_measurements import Key, Truth, made_truth, measurements, write_measurements

from opendas.phsafe.posterior.files import COUNTS, Model
from opendas.phsafe.posterior.post_processing import post_process

STATES = [f"{code:02d}" for code in range(1, 57) if code not in (3, 7, 14, 43, 52)]
LOW, HIGH = 0.88, 0.92


def _count(truth: Truth, table: str, key: Key, cell: int) -> float:
    declared = COUNTS[table]
    parts = declared.margins.get(cell, (cell,))
    return sum(truth.tables[table][key][declared.cells.index(part)] for part in parts)


def _average(truth: Truth, table: str, key: Key, cell: int) -> float:
    if table == "PH8":
        mortgage, clear, rented = truth.tables["PH7"][key]
        owners, renters = truth.tables["PH8_denom"][key]
        people, households = (mortgage + clear, rented), (owners, renters)
        return sum(people) / sum(households) if cell == 1 else people[cell - 2] / households[cell - 2]
    young, old = truth.tables["PH4" if table == "PH5" else "PH1_num"][key]
    return {1: young + old, 2: young, 3: old}[cell] / truth.tables[f"{table}_denom"][key][0]


def _hits(
    out: Path, table: str, exact: Callable[[Truth, str, Key, int], float], truth: Truth, widen: float
) -> list[bool]:
    """Whether each interval holds the truth; `widen` stretches it about its middle, to see the test fail."""
    column = "PRED" if table in COUNTS else "RATIO_PRED"
    hits = []
    for place, region_type in (("state", "STATE"), ("nation", "USA")):
        with open(out / table / "estimates" / f"{table}_{place}_trunc_normal.csv", newline="") as file:
            for row in csv.DictReader(file, delimiter="|"):
                region = row["GEOID"] if region_type == "STATE" else "1"
                key = (region_type, region, row["ITERATION_CODE"])
                low, high = float(row[f"{column}_LO"]), float(row[f"{column}_HI"])
                middle, half = (low + high) / 2, widen * (high - low) / 2
                hits.append(abs(exact(truth, table, key, int(row["DATA_CELL"])) - middle) <= half)
    return hits


@pytest.fixture(scope="module", params=list(Model))
def nation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    rng = np.random.default_rng(2020)
    truth = made_truth(rng, STATES, like_states=True)
    out = tmp_path_factory.mktemp("coverage")
    write_measurements(out, measurements(truth, rng))
    assert post_process(out, model=request.param, workers=2).ok
    return out, truth


def test_counts_are_covered(nation: tuple[Path, Truth]) -> None:
    out, truth = nation
    hits = np.concatenate([_hits(out, table, _count, truth, 1.0) for table in COUNTS])
    assert LOW <= hits.mean() <= HIGH
    for factor in (0.85, 1.15):
        wrong = np.concatenate([_hits(out, table, _count, truth, factor) for table in COUNTS])
        assert not LOW <= wrong.mean() <= HIGH


def test_averages_are_covered(nation: tuple[Path, Truth]) -> None:
    out, truth = nation
    hits = np.concatenate([_hits(out, table, _average, truth, 1.0) for table in ("PH1", "PH5", "PH8")])
    assert LOW <= hits.mean() <= HIGH
    for factor in (0.85, 1.15):
        wrong = [_hits(out, table, _average, truth, factor) for table in ("PH1", "PH5", "PH8")]
        assert not LOW <= np.concatenate(wrong).mean() <= HIGH
