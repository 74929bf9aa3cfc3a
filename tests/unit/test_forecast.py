"""Forecasts: what they add up from, how they grow, and what is said where the machine is too small."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import opendas.runs.progress.forecast as module
from opendas.errors import EnvironmentFailure
from opendas.runs.progress.clock import STEPS
from opendas.runs.progress.forecast import COSTS, Costs, Work, check_room, forecast_run

GEOUNITS = (("state", 1), ("county", 10), ("tract", 100), ("block", 10_000))
WORK = Work(GEOUNITS, 100, 5_000_000)
PLAIN = Costs(
    cells=100,
    start=2.0,
    reading=10.0,
    planning=20.0,
    gathering=0.0,
    child=(100.0, 1000.0, 10_000.0),
    writing=30.0,
    answer=0.5,
    main_mb=100.0,
    main_leaf=1024.0,
    worker_mb=200.0,
    worker_leaf=2048.0,
    output_mb=1.0,
    output_leaf=100.0,
    scratch_leaf=50.0,
    answer_bytes=2.0,
)


def test_a_forecast_adds_up() -> None:
    found = forecast_run(WORK, PLAIN, cores=2)
    assert tuple(found.steps) == STEPS
    assert found.steps == pytest.approx(
        {
            "reading": 0.1,
            "planning": 2.2,
            "gathering": 0.0,
            "estimating": 1.0 + 0.1 + 0.1 + 0.01,  # blocks, tracts, counties, state
            "writing": 0.3,
        }
    )
    assert found.seconds == pytest.approx(sum(found.steps.values()))
    assert sum(found.levels.values()) == pytest.approx(1)
    assert found.levels["block"] == pytest.approx(1.0 / 1.21)
    assert tuple(found.levels) == tuple(name for name, _ in GEOUNITS)
    leaf_mb = 10_000 * 1024 / 2**20
    assert found.peak_rss_mb == found.memory_mb == pytest.approx(100 + leaf_mb + 2 * leaf_mb)
    assert found.output_mb == pytest.approx(1 + 1e6 / 2**20)


def test_workers_share_estimate_and_files_and_have_memory_of_their_own() -> None:
    one, two = (forecast_run(replace(WORK, workers=w), PLAIN, cores=2) for w in (1, 2))
    for step in ("estimating", "writing"):
        assert two.steps[step] == pytest.approx(one.steps[step] / 1.9)
    assert two.steps["reading"] == one.steps["reading"]
    assert two.memory_mb > one.memory_mb
    assert two.peak_rss_mb < two.memory_mb
    crowd = forecast_run(replace(WORK, workers=8), PLAIN, cores=2)
    assert crowd.seconds == two.seconds
    assert "8 workers share 2 cores" in crowd.assumptions


def test_all_measurements_cost_more_time_and_disk() -> None:
    used, full = (forecast_run(replace(WORK, full=f), PLAIN) for f in (False, True))
    assert full.steps["writing"] - used.steps["writing"] == pytest.approx(2.5)
    assert full.output_mb - used.output_mb == pytest.approx(1e7 / 2**20)


def test_a_product_between_the_measured_ones_costs_something_between() -> None:
    few, many = COSTS["topdown"]
    low = forecast_run(replace(WORK, cells=few.cells)).seconds
    high = forecast_run(replace(WORK, cells=many.cells)).seconds
    assert min(low, high) <= forecast_run(replace(WORK, cells=1000)).seconds <= max(low, high)
    assert forecast_run(replace(WORK, cells=10**6)).seconds == high
    assert any("was not measured" in line for line in forecast_run(WORK).assumptions)
    known = forecast_run(replace(WORK, cells=many.cells))
    assert not any("was not measured" in line for line in known.assumptions)


@pytest.mark.parametrize("estimator", sorted(COSTS))
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("cells", [2, 2016])
def test_more_leaves_never_cost_less(estimator: str, workers: int, cells: int) -> None:
    found = [
        forecast_run(Work((("state", 1), ("block", n)), cells, n, estimator, workers))
        for n in (100, 10_000, 1_000_000)
    ]
    for name in ("seconds", "peak_rss_mb", "memory_mb", "output_mb", "scratch_mb"):
        values = [getattr(one, name) for one in found]
        assert values == sorted(values)
        assert values[0] >= 0


def test_the_answer_is_strict_json_and_states_its_assumptions() -> None:
    document = forecast_run(WORK, PLAIN).to_dict()
    json.dumps(document, allow_nan=False)
    assert document["disk_mb"].keys() == {"outputs", "scratch"}
    text = " ".join(document["assumptions"])
    for word in ("a leaf", "a further leaf", "measured on", "within a factor", "10,000 block"):
        assert word in text


def room(monkeypatch: pytest.MonkeyPatch, *, disk: float, memory: float | None) -> None:
    free = SimpleNamespace(free=disk * 2**20)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: free)
    monkeypatch.setattr(module, "available_memory_mb", lambda: memory)


def test_a_disk_that_cannot_hold_the_outputs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed: Any = replace(forecast_run(WORK, PLAIN), output_mb=100.0, scratch_mb=50.0, memory_mb=1000.0)
    out = tmp_path / "not" / "there"
    room(monkeypatch, disk=200, memory=2000)
    assert check_room(needed, out) == ()
    room(monkeypatch, disk=120, memory=2000)
    (warning,) = check_room(needed, out)
    assert "--resume" in warning
    room(monkeypatch, disk=49, memory=2000)
    with pytest.raises(EnvironmentFailure, match="about 100 MB: nothing was drawn"):
        check_room(needed, out)


def test_too_little_memory_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed: Any = replace(forecast_run(replace(WORK, workers=2), PLAIN), memory_mb=1000.0)
    room(monkeypatch, disk=10_000, memory=900)
    (warning,) = check_room(needed, tmp_path)
    assert "900 MB" in warning
    assert "Fewer --workers" in warning
    (warning,) = check_room(replace(needed, workers=1), tmp_path)
    assert "Fewer" not in warning
    room(monkeypatch, disk=10_000, memory=None)
    assert check_room(needed, tmp_path) == ()
