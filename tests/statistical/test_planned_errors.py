"""What a plan says of housing units, whose number in every block is exact, is what runs have."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import opendas as od
from opendas.demo.generator import write_demo
from opendas.metrics.evaluate import evaluate
from opendas.runs.simulated.simulation import Simulation
from opendas.runs.simulated.trial import Trial

RUNS = 30
TWO_CELLS = 2 * math.sqrt(2 / math.pi)
"""Occupied and vacant units err by the same: mean of both errors together, in standard errors of one."""


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo(tmp_path_factory.mktemp("state"), blocks=1500, seed=1)[1]


@pytest.mark.parametrize("estimator", ["topdown", "informed"])
def test_errors_of_units_are_planned_at_every_geolevel(units: Path, estimator: str) -> None:
    """Within 15 %, or three standard errors of means over so many runs: those of the trial vary as much.

    By the noise alone above blocks, which are too small for that; by the trial where it speaks.
    """
    run = od.load(units).with_(estimator=estimator)
    trial, truth = Trial.of(run), run.read()
    assert trial is not None
    said = [
        (row.geolevel, TWO_CELLS * getattr(row, estimator))
        for row in od.plan(run).gains
        if row.query == "detailed" and row.geolevel != "block"
    ]
    said += [
        (row.geolevel, row.mean_abs_error) for row in trial.tried(draws=RUNS).rows if row.query == "detailed"
    ]
    assert [level for level, _ in said] == [
        *("state", "county", "tract", "block_group"),
        *("tract", "block_group", "block"),
    ]
    simulation = Simulation.of(run.on_frame(truth.frame), truth.histogram)
    runs: dict[str, list[float]] = {}
    for seed in range(RUNS):
        estimate = simulation.estimate(seed, "planned errors")
        for row in evaluate(truth.histogram, estimate, truth.frame, run.product).errors:
            if row.query == "detailed" and row.errors.mean_abs_error is not None:
                runs.setdefault(row.geolevel, []).append(row.errors.mean_abs_error)
    for level, error in said:
        mean, standard_error = np.mean(runs[level]), math.sqrt(2 / RUNS) * np.std(runs[level], ddof=1)
        assert abs(error - mean) <= max(0.15 * mean, 3 * standard_error), (level, error, mean)
