"""What a run will need, from public things and before it starts: time, memory and disk.

Time is measured: a part of the run's own tree is estimated on this machine with synthetic counts, and a
geounit of
each geolevel is taken to cost as much in the run. Memory and disk are sizes of what is held and written, as
counted in runs of synthetic states, about 45 persons or 20 housing units a leaf: how many records there are
is confidential, and not known before the input is read.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from opendas.constraints.table import ConstraintTable, bound_table
from opendas.engines.drive import estimate_spine
from opendas.engines.work import KeyedSource, Worker
from opendas.errors import EnvironmentFailure
from opendas.measurement.noisy import measured_levels
from opendas.measurement.plan import MeasurementPlan
from opendas.runs.progress.clock import size_text
from opendas.runs.progress.processes import available_memory_mb
from opendas.runs.run import Run
from opendas.schema.histogram import Histogram

__all__ = ["Forecast", "check_room", "forecast_run", "measure_small_run"]

FIRST_LEAVES, MOST_LEAVES, SMALL_RUN_SECONDS = 50, 2000, 0.5
"""A small run has so many leaves at first, and then as many as take so long, up to a number."""

RECORDS = 45
"""Synthetic records a leaf."""

SECOND_WORKER = 0.9
"""What each further worker process adds to the speed of the first, where it has a core of its own."""

MAIN_MB, WORKER_MB = 320.0, 90.0
"""Resident set of the main process and of a worker, before the first leaf."""

MAIN_LEAF, MAPPED_LEAVES, MAPPED_LEAF = 1100.0, 1 << 18, 640.0
"""Bytes a leaf in the main process; leaves beyond so many take fewer, for counts stand on disk."""

TASK_LEAVES = 16_384
"""A worker holds about so many leaves at a time, see :mod:`opendas.engines.tasks`."""

LARGE_OUTPUT = 7000.0
"""Bytes a leaf of files, and of checkpoints, of products too large for a small run: a state's DHC."""

MANY_CELLS = 2016
"""Leaves have no more different records than those of the persons' product, however many cells there are."""

MAIN_CELL, WORKER_CELL = 300.0, 550.0
"""Bytes that a further cell takes in the main process and in a worker: query groups as row numbers and masks,
as counted in runs of DHC persons. The largest families come on top."""

TIMED_CELLS = 1 << 16
"""A small run of more possible cells would itself take minutes: its root is a family with all of them."""

_NO_KEY = bytes(32)
"""Instead of a key: the counts are synthetic, and nothing that is drawn here is kept."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a run is expected to need.

    Parameters
    ----------
    steps : mapping of str to float
        Seconds of each geolevel's estimate; empty where they were not measured.
    peak_rss_mb : float
        Largest resident set of one process.
    memory_mb : float
        Of all processes together.
    output_mb, scratch_mb : float
        Disk space of files that stay, and of files that are removed at the end.
    answers : int
        Noisy answers of all query groups at all geounits.
    full : bool
        Whether the run writes them all, not only those that its estimate used.
    full_mb : float
        Disk space of all of them.
    workers : int
    assumptions : tuple of str
    """

    steps: Mapping[str, float]
    peak_rss_mb: float
    memory_mb: float
    output_mb: float
    scratch_mb: float
    answers: int
    full: bool
    full_mb: float
    workers: int
    assumptions: tuple[str, ...]

    @property
    def seconds(self) -> float | None:
        """The whole estimate, None where it was not measured."""
        return sum(self.steps.values()) if self.steps else None

    @property
    def measurements(self) -> str:
        """What becomes of the noisy answers: of those left out, a run that destroyed its key has no more."""
        size = f"{self.answers:,} noisy answers, about {size_text(self.full_mb)}"
        if self.full:
            return f"all {size}, are written"
        return (
            f"of {size}, the run writes those that its estimate uses. opendas interval needs them all: "
            "opendas run --measurements full writes them, and opendas measure --resume later, free of "
            "budget, only while the key is kept (--keep-key)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the forecast as part of the answer of ``opendas plan --json``."""
        return {
            "seconds": None if self.seconds is None else round(self.seconds, 3),
            "steps": {name: round(seconds, 4) for name, seconds in self.steps.items()},
            "peak_rss_mb": round(self.peak_rss_mb),
            "memory_mb": round(self.memory_mb),
            "disk_mb": {"outputs": round(self.output_mb, 1), "scratch": round(self.scratch_mb, 1)},
            "measurements": {
                "stored": "full" if self.full else "used",
                "answers": self.answers,
                "full_mb": round(self.full_mb, 1),
                "text": self.measurements,
            },
            "workers": self.workers,
            "assumptions": list(self.assumptions),
        }


def forecast_run(
    plan: MeasurementPlan,
    estimator: str,
    workers: int,
    *,
    full: bool = False,
    estimates: bool = True,
    geounit_seconds: Mapping[str, float] | None = None,
) -> Forecast:
    """Forecast a run.

    Parameters
    ----------
    plan : MeasurementPlan
    estimator : str
    workers : int
        More than this machine has cores are no faster.
    full : bool
        Whether all noisy answers are written, not only those that the estimate used.
    estimates : bool
        False where measurements are all that is wanted.
    geounit_seconds : mapping of str to float, optional
        By geolevel, as :func:`measure_small_run` found them; without, no time is predicted.
    """
    sizes = {name: len(level) for name, level in zip(plan.spine.names, plan.spine.levels, strict=True)}
    leaves, cells = len(plan.spine.leaf), min(plan.product.schema.size, MANY_CELLS)
    cores = os.cpu_count() or 1
    speed = 1 + SECOND_WORKER * (min(workers, cores) - 1)
    steps = {name: sizes[name] * one / speed for name, one in (geounit_seconds or {}).items()}
    mapped = max(0, leaves - MAPPED_LEAVES)
    main = MAIN_MB + ((leaves - mapped) * MAIN_LEAF + mapped * MAPPED_LEAF) / 2**20
    task = min(leaves, TASK_LEAVES) * (1200 + 1.5 * cells) / 2**20
    further = (plan.product.schema.size - cells) / 2**20
    main, task = main + MAIN_CELL * further, task + WORKER_CELL * further
    alone = workers <= 1
    # Leaf by leaf, nearly every cell of the microdata is a record of its own, and all answers are used.
    dense = estimator == "block-by-block"
    leaf_output, leaf_scratch = (
        (30 + 0.34 * cells, 230 + 1.9 * cells) if dense else (28 + 0.09 * cells, 25 + 0.28 * cells)
    )
    if plan.product.schema.size > TIMED_CELLS:
        leaf_output = leaf_scratch = LARGE_OUTPUT
    output = 0.2 + (leaves * leaf_output / 2**20 if estimates else 0.0)
    full_mb = plan.draws * (0.14 + 0.00035 * cells) / 2**20
    if full:
        main += 6 + 0.085 * cells
        output += full_mb
    return Forecast(
        steps,
        main + task if alone else max(main, WORKER_MB + task),
        main + task if alone else main + workers * (WORKER_MB + task),
        output,
        leaves * leaf_scratch / 2**20 if estimates else 0.0,
        plan.draws,
        full,
        full_mb,
        workers,
        tuple(_assumptions(plan, estimator, workers, cores, measured=bool(steps))),
    )


def _assumptions(
    plan: MeasurementPlan, estimator: str, workers: int, cores: int, *, measured: bool
) -> list[str]:
    levels = zip(plan.spine.names, plan.spine.levels, strict=True)
    size = ", ".join(f"{len(level):,} {name}" for name, level in reversed(list(levels)))
    lines = [f"geounits: {size}; {plan.product.schema.size:,} cells; estimator {estimator}"]
    if measured:
        lines += [
            "the time is that of the estimate: a part of this tree was estimated on this machine just now, "
            "with synthetic counts; other work on the machine makes it longer",
            "reading the input and writing the release come on top: they take as long as there are records",
        ]
    possible = np.count_nonzero(plan.product.possible)
    if possible > TIMED_CELLS:
        lines.append(
            f"no time is predicted, and no memory of the topmost families: they have {possible:,} possible "
            f"cells, and a small run is made for at most {TIMED_CELLS:,}"
        )
    lines.append(
        "memory and disk are those of synthetic states (45 persons or 20 housing units a leaf) in Parquet "
        "files: how many records there are is known only when the input is read"
    )
    if workers > cores:
        lines.append(f"{workers} workers share {cores} cores")
    return lines


def measure_small_run(run: Run) -> dict[str, float]:
    """Estimate a part of a run's tree with synthetic counts; return seconds a geounit of each geolevel.

    The part is the first leaves of the frame and what lies above them, with the run's spine, budget, query
    groups, structural zeros and bounds, and without its invariants. It takes about a second. Nothing is
    measured, and nothing returned, of a product with more than :data:`TIMED_CELLS` possible cells.
    """
    if np.count_nonzero(run.product.possible) > TIMED_CELLS:
        return {}
    _small_run(run, FIRST_LEAVES)  # compiled code is loaded with the first call
    began = time.perf_counter()
    found = _small_run(run, FIRST_LEAVES)
    leaves = int(FIRST_LEAVES * SMALL_RUN_SECONDS / (time.perf_counter() - began))
    return _small_run(run, min(leaves, MOST_LEAVES)) if leaves > 2 * FIRST_LEAVES else found


def _small_run(run: Run, leaves: int) -> dict[str, float]:
    """Return the seconds a geounit of each geolevel took, in a part with so many leaves."""
    frame = run.frame.take(np.arange(min(leaves, len(run.frame))))
    run = run.changed(product=replace(run.product, invariants=())).on_frame(frame)
    spine = run.spine
    constraints = bound_table(run.product, frame, spine, {})
    source = KeyedSource(measured_levels(run.plan), _NO_KEY)
    worker = Worker(run.rules(constraints), source, run.resolved.failsafe, keep_used=True)
    counts = _made_counts(constraints)
    model = run.model(constraints)
    began = time.perf_counter()
    estimation = estimate_spine(
        spine,
        constraints,
        worker,
        histogram=counts,
        estimator=run.resolved.estimator,
        workers=1,
        model=model,
    )
    whole = time.perf_counter() - began
    seconds = dict.fromkeys(spine.names, 0.0)
    for task in estimation.finished():
        result = task.read()
        for record, one in zip(result.records, result.seconds.tolist(), strict=True):
            seconds[record.geolevel] += one
    # What no family took, aggregating and the informed estimator's way up, grows with the leaves.
    seconds[spine.names[-1]] += max(0.0, whole - sum(seconds.values()))
    return {name: seconds[name] / len(level) for name, level in zip(spine.names, spine.levels, strict=True)}


def _made_counts(constraints: ConstraintTable) -> Histogram:
    """Return :data:`RECORDS` synthetic records a leaf, in cells that its bounds allow; few hold most."""
    leaf, n = constraints.levels[-1], len(constraints.possible)
    # Leaves whose bounds close the same groups of cells have the same cells open.
    closed, kind = np.unique(leaf.upper == 0, axis=0, return_inverse=True)
    open_cells = [
        np.flatnonzero(constraints.possible & ~constraints.bound_cells[groups].any(axis=0))
        for groups in closed
    ]
    some = np.array([len(cells) for cells in open_cells])[kind]
    rows = np.repeat(np.flatnonzero(some), RECORDS)
    # Ranks whose frequency falls as their square, drawn evenly rather than by chance.
    part = (np.arange(len(rows)) * 0.618034) % 1.0
    rank = np.minimum(1 / (1 - part), some[rows]).astype(np.int64) - 1
    cells = np.empty(len(rows), dtype=np.int64)
    for number, available in enumerate(open_cells):
        here = kind[rows] == number
        cells[here] = available[rank[here]]
    return Histogram.from_entries(rows, cells, np.ones(len(rows), np.int64), shape=(len(leaf.upper), n))


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
    if memory < forecast.memory_mb:
        fewer = " Fewer --workers need less." if forecast.workers > 1 else ""
        warnings.append(
            f"{size_text(memory)} of memory are available, and the run needs about "
            f"{size_text(forecast.memory_mb)}.{fewer}"
        )
    return tuple(warnings)
