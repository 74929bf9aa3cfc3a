"""How long a run will take, and how much memory and disk: from public things, before it starts.

A cost is a constant, or grows with the leaves, or with the geounits of a level; the coefficients were fitted
to runs of made states by ``benchmarks/forecast.py``, for the two census products, and are interpolated by the
number of cells for others. The number of records is confidential and not known before the input is read: a
forecast takes a leaf to have as many as in the made states, about 20.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from opendas.errors import EnvironmentFailure
from opendas.measurement.plan import MeasurementPlan
from opendas.runs.progress.clock import size_text
from opendas.runs.progress.processes import available_memory_mb

__all__ = [
    "COSTS",
    "MACHINE",
    "MAPPED_LEAF",
    "MAPPED_LEAVES",
    "RECORDS_A_LEAF",
    "SECOND_WORKER",
    "TASK_LEAVES",
    "TOLERANCE",
    "Costs",
    "Forecast",
    "Work",
    "check_room",
    "forecast_run",
    "work_of",
]

# What runs cost: coefficients that ``python benchmarks/forecast.py fit`` found, for forecasts.


MACHINE = "one core of an AMD EPYC server, November 2026"
"""Where the coefficients were measured, in processor time: on a machine with other work, runs take longer."""

TOLERANCE = 1.5
"""Within this factor, either way, forecasts of time were on that machine for states of other sizes."""

RECORDS_A_LEAF = "about 45 persons, or 20 housing units, a leaf, as in the made states"

MAPPED_LEAVES = 1 << 18
MAPPED_LEAF = 640.0
"""Leaves beyond so many take so many bytes of the main process: counts stand on disk."""

TASK_LEAVES = 16_384
"""A worker holds about so many leaves at a time, see :mod:`opendas.engines.tasks`."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured costs of one estimator with a product of `cells` cells.

    Parameters
    ----------
    cells : int
    start : float
        Seconds of any run: start of the program, certificate and report.
    reading, planning, gathering, writing : float
        Microseconds a leaf.
    child : tuple of float
        Microseconds a geounit, by its height above the leaves: leaves first; the last is that of all above.
    answer : float
        Microseconds a noisy answer, where all are written.
    main_mb, main_leaf : float
        Resident set of the main process: constant in MB, and bytes a leaf, as long as all are in memory.
    worker_mb, worker_leaf : float
        Of a worker process: constant in MB, and bytes a leaf of its task.
    output_mb, output_leaf : float
        Files that stay: constant in MB, and bytes a leaf.
    scratch_leaf : float
        Files that are removed when the run is finished: bytes a leaf.
    answer_bytes : float
        Bytes a noisy answer, where all are written.
    full_mb : float
        MB that the main process has more, where all noisy answers are written.
    """

    cells: int
    start: float
    reading: float
    planning: float
    gathering: float
    child: tuple[float, ...]
    writing: float
    answer: float
    main_mb: float
    main_leaf: float
    worker_mb: float
    worker_leaf: float
    output_mb: float
    output_leaf: float
    scratch_leaf: float
    answer_bytes: float
    full_mb: float = 0.0


SECOND_WORKER = 0.9
"""What each further worker process adds to the speed of the first, where it has a core of its own."""

COSTS: Mapping[str, tuple[Costs, Costs]] = {
    "topdown": (
        Costs(
            cells=2,
            start=1.78,
            reading=2.31,
            planning=1.51,
            gathering=0.0,
            child=(14.7, 74.8, 19.0, 22500.0),
            writing=4.37,
            answer=0.0687,
            main_mb=287.0,
            main_leaf=1180.0,
            worker_mb=86.0,
            worker_leaf=1190.0,
            output_mb=0.0969,
            output_leaf=28.4,
            scratch_leaf=22.2,
            answer_bytes=0.138,
            full_mb=5.43,
        ),
        Costs(
            cells=2016,
            start=1.93,
            reading=7.16,
            planning=2.88,
            gathering=0.0,
            child=(48.8, 365.0, 303.0, 40400.0),
            writing=23.5,
            answer=0.0242,
            main_mb=303.0,
            main_leaf=1000.0,
            worker_mb=91.2,
            worker_leaf=3030.0,
            output_mb=0.205,
            output_leaf=210.0,
            scratch_leaf=353.0,
            answer_bytes=0.841,
            full_mb=177.0,
        ),
    ),
    "block-by-block": (
        Costs(
            cells=2,
            start=2.93,
            reading=3.5,
            planning=0.0,
            gathering=0.0,
            child=(454.0, 0.0, 0.0, 0.0),
            writing=114.0,
            answer=0.0687,
            main_mb=339.0,
            main_leaf=1180.0,
            worker_mb=86.0,
            worker_leaf=191.0,
            output_mb=0.0723,
            output_leaf=30.6,
            scratch_leaf=235.0,
            answer_bytes=0.138,
            full_mb=5.43,
        ),
        Costs(
            cells=2016,
            start=2.2,
            reading=2.35,
            planning=0.0,
            gathering=0.0,
            child=(2360.0, 0.0, 0.0, 0.0),
            writing=249.0,
            answer=0.0242,
            main_mb=381.0,
            main_leaf=1000.0,
            worker_mb=91.2,
            worker_leaf=1210.0,
            output_mb=0.162,
            output_leaf=715.0,
            scratch_leaf=4110.0,
            answer_bytes=0.841,
            full_mb=177.0,
        ),
    ),
    "informed": (
        Costs(
            cells=2,
            start=1.36,
            reading=2.64,
            planning=0.0,
            gathering=9.71,
            child=(22.1, 107.0, 25.1, 8640.0),
            writing=4.51,
            answer=0.0687,
            main_mb=299.0,
            main_leaf=1180.0,
            worker_mb=86.0,
            worker_leaf=1170.0,
            output_mb=0.0976,
            output_leaf=28.3,
            scratch_leaf=0.817,
            answer_bytes=0.138,
            full_mb=5.43,
        ),
        Costs(
            cells=2016,
            start=1.85,
            reading=3.65,
            planning=0.0,
            gathering=29.8,
            child=(41.6, 169.0, 174.0, 18900.0),
            writing=22.2,
            answer=0.0242,
            main_mb=321.0,
            main_leaf=1000.0,
            worker_mb=91.2,
            worker_leaf=4250.0,
            output_mb=0.211,
            output_leaf=211.0,
            scratch_leaf=580.0,
            answer_bytes=0.841,
            full_mb=177.0,
        ),
    ),
}
"""By estimator: costs of a product of few cells and of one of many."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a run has to do, as far as it is public.

    Parameters
    ----------
    geounits : tuple of (str, int)
        Geolevels of the spine with their sizes, top first; the last are the leaves.
    cells : int
        Cells of the product's histogram.
    answers : int
        Noisy answers of the whole plan.
    estimator : str
    workers : int
    full : bool
        Whether all noisy answers are written, not only those that the estimate used.
    estimates : bool
        False where measurements are all that is wanted.
    """

    geounits: tuple[tuple[str, int], ...]
    cells: int
    answers: int
    estimator: str = "topdown"
    workers: int = 1
    full: bool = False
    estimates: bool = True

    @property
    def leaves(self) -> int:
        """Leaves of the spine."""
        return self.geounits[-1][1]


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a run is expected to need.

    Parameters
    ----------
    steps : mapping of str to float
        Seconds of each of :data:`opendas.runs.progress.clock.STEPS`.
    levels : mapping of str to float
        Part of the step ``estimating`` that each geolevel takes; they add to 1.
    peak_rss_mb : float
        Largest resident set of one process.
    memory_mb : float
        Of all processes together.
    output_mb, scratch_mb : float
        Disk space of files that stay, and of files that are removed at the end.
    workers : int
    assumptions : tuple of str
    """

    steps: Mapping[str, float]
    levels: Mapping[str, float]
    peak_rss_mb: float
    memory_mb: float
    output_mb: float
    scratch_mb: float
    workers: int
    assumptions: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """The whole run."""
        return sum(self.steps.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the forecast as part of the answer of ``opendas plan --json``."""
        return {
            "seconds": round(self.seconds, 1),
            "steps": {name: round(seconds, 2) for name, seconds in self.steps.items()},
            "peak_rss_mb": round(self.peak_rss_mb),
            "memory_mb": round(self.memory_mb),
            "disk_mb": {"outputs": round(self.output_mb, 1), "scratch": round(self.scratch_mb, 1)},
            "workers": self.workers,
            "tolerance": TOLERANCE,
            "assumptions": list(self.assumptions),
        }


def work_of(
    plan: MeasurementPlan, estimator: str, workers: int, *, full: bool = False, estimates: bool = True
) -> Work:
    """Return what a run with this plan has to do."""
    levels = plan.spine.levels
    return Work(
        tuple((name, len(level)) for name, level in zip(plan.spine.names, levels, strict=True)),
        plan.product.schema.size,
        sum(
            len(level) * sum(planned.query.size for planned in measured.queries)
            for level, measured in zip(levels, plan.levels, strict=True)
        ),
        estimator,
        workers,
        full,
        estimates,
    )


def _between(few: Costs, many: Costs, cells: int) -> Costs:
    """Return costs for a product of `cells` cells, between two that were measured, or like the nearer one."""
    part = min(1.0, max(0.0, (cells - few.cells) / (many.cells - few.cells)))

    def mix(low: Any, high: Any) -> Any:
        if isinstance(low, tuple):
            return tuple(mix(a, b) for a, b in zip(low, high, strict=True))
        return low + part * (high - low)

    values = {field.name: mix(getattr(few, field.name), getattr(many, field.name)) for field in fields(Costs)}
    return Costs(**{**values, "cells": cells})


def forecast_run(work: Work, costs: Costs | None = None, cores: int | None = None) -> Forecast:
    """Forecast a run.

    Parameters
    ----------
    work : Work
    costs : Costs, optional
        By default those measured for the estimator, interpolated by the number of cells.
    cores : int, optional
        Of this machine; more workers than cores are no faster.
    """
    if costs is None:
        costs = _between(*COSTS.get(work.estimator, COSTS["topdown"]), work.cells)
    usable = cores or os.cpu_count() or 1
    speed = 1 + SECOND_WORKER * (min(work.workers, usable) - 1)
    leaves = work.leaves
    by_level = {}
    for height, (name, count) in enumerate(reversed(work.geounits)):
        by_level[name] = 1e-6 * count * costs.child[min(height, len(costs.child) - 1)]
    estimating = sum(by_level.values())
    solved = 1.0 if work.estimates else 0.0  # what only estimating needs
    answers = work.answers if work.full else 0
    steps = {
        "reading": 1e-6 * leaves * costs.reading,
        "planning": costs.start + 1e-6 * leaves * costs.planning,
        "gathering": solved * 1e-6 * leaves * costs.gathering / speed,
        "estimating": solved * estimating / speed,
        "writing": solved * 1e-6 * leaves * costs.writing / speed + 1e-6 * answers * costs.answer,
    }
    mapped = max(0, leaves - MAPPED_LEAVES)
    table = (leaves - mapped) * costs.main_leaf + mapped * min(costs.main_leaf, MAPPED_LEAF)
    main = costs.main_mb + table / 2**20 + (costs.full_mb if work.full else 0.0)
    task = min(leaves, TASK_LEAVES) * costs.worker_leaf / 2**20
    worker = costs.worker_mb + task
    alone = work.workers <= 1
    output = costs.output_mb + solved * leaves * costs.output_leaf / 2**20
    return Forecast(
        steps,
        {name: by_level[name] / estimating for name, _ in work.geounits} if estimating else {},
        main + task if alone else max(main, worker),
        main + task if alone else main + work.workers * worker,
        output + answers * costs.answer_bytes / 2**20,
        solved * leaves * costs.scratch_leaf / 2**20,
        work.workers,
        _assumptions(work, costs, speed, usable),
    )


def _assumptions(work: Work, costs: Costs, speed: float, cores: int) -> tuple[str, ...]:
    size = ", ".join(f"{count:,} {name}" for name, count in reversed(work.geounits))
    lines = [
        f"geounits: {size}; {work.cells:,} cells; estimator {work.estimator}",
        f"a further leaf adds {_leaf_seconds(work, costs, speed):.2g} s and "
        f"{costs.output_leaf * work.estimates:.3g} bytes of files",
        f"{RECORDS_A_LEAF}: how many records there are is known only when the input is read",
        f"measured on {MACHINE}; times within a factor of {TOLERANCE:g} there, memory and disk within 30 %; "
        "other work on the machine makes it longer",
        "input in Parquet files: text files take longer to read, and more memory",
        "kernels are compiled already; the first run on a machine takes about a minute longer",
    ]
    if work.workers > cores:
        lines.append(f"{work.workers} workers share {cores} cores")
    known = {few_or_many.cells for pair in COSTS.values() for few_or_many in pair}
    if work.cells not in known:
        lines.append("the product was not measured: costs lie between those of units and of persons")
    return tuple(lines)


def _leaf_seconds(work: Work, costs: Costs, speed: float) -> float:
    """Return what one more leaf would take."""
    once = costs.reading + costs.planning
    if work.estimates:
        once += (costs.writing + costs.gathering + costs.child[0]) / speed
    return 1e-6 * once


def check_room(forecast: Forecast, out: Path) -> tuple[str, ...]:
    """Compare a forecast with what the machine has.

    Parameters
    ----------
    forecast : Forecast
    out : Path
        Output folder; it, or a folder above it, exists.

    Returns
    -------
    tuple of str
        Warnings.

    Raises
    ------
    EnvironmentFailure
        If the disk certainly cannot hold the outputs: not even half of what is expected.
    """
    warnings = []
    place = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free / 2**20
    if free < forecast.output_mb / 2:
        raise EnvironmentFailure(
            f"the disk of {out} has {size_text(free)} free, and the outputs need about "
            f"{size_text(forecast.output_mb)}: nothing was drawn. Make room, or choose another folder "
            "with --out."
        )
    if free < forecast.output_mb + forecast.scratch_mb:
        warnings.append(
            f"the disk of {out} has {size_text(free)} free, and the run needs about "
            f"{size_text(forecast.output_mb + forecast.scratch_mb)}. If it gets full, make room and use "
            "--resume."
        )
    memory = available_memory_mb()
    if memory is not None and memory < forecast.memory_mb:
        fewer = " Fewer --workers need less." if forecast.workers > 1 else ""
        warnings.append(
            f"{size_text(memory)} of memory are available, and the run needs about "
            f"{size_text(forecast.memory_mb)}.{fewer}"
        )
    return tuple(warnings)
