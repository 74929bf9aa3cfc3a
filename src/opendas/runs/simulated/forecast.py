"""What a run will need, from public things and before it starts: time, memory and disk.

Time is measured: a part of the run's own tree is estimated on this machine with synthetic counts, and a
geounit of each geolevel is taken to cost as much in the run. Where there are many cells, the cost of a family
is its children times the cells in which its parent has records, and small runs measure the seconds of each.
Memory and disk are sizes of what is held and written, as counted in runs of synthetic states, about 45
persons or 20 housing units a leaf: how many records there are is confidential, and not known before the input
is read.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from opendas.arrays import Floats, Ints
from opendas.constraints.table import ConstraintTable, bound_table
from opendas.engines.drive import estimate_spine
from opendas.engines.local import cores
from opendas.engines.work import KeyedSource, Worker
from opendas.errors import EnvironmentFailure
from opendas.geography.spine import Spine
from opendas.measurement.noisy import measured_levels
from opendas.measurement.plan import MeasurementPlan
from opendas.runs.context.machine import TIMED_CELLS
from opendas.runs.context.run import Run
from opendas.runs.progress.clock import size_text
from opendas.runs.progress.processes import available_memory_mb
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product
from opendas.topdown.family_data import FamilyData
from opendas.topdown.model import FamilyRecord

FIRST_LEAVES, MOST_LEAVES, SMALL_RUN_SECONDS = 50, 2000, 0.5
"""A small run has so many leaves at first, and then as many as take so long, up to a number."""

RECORDS = 45
"""Synthetic records a leaf."""

SKEWED = 0.5
"""Cells with records, of those that as many records would have that fall into all cells alike."""

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

FEW_LEAVES = 10
"""Leaves of a small run with many cells: its records, not its leaves, make it like the run."""

INNER_RECORDS, STEEPEST = (6000.0, 20000.0), 3.0
"""Records of the two small runs for geolevels between top and leaves, and the largest power of the cells by
which the seconds for a child and cell grow."""

ONE_BY_ONE = 1 << 22
"""Synthetic records that are drawn one by one; where there are more, each of so many stands for several."""

SQUARE = 27.0
"""Bytes for each entry of the matrix of cells by cells with which families of fewer cells are solved, its
factor and copies included; those of more are solved without one, unless bounds are declared."""

CHILD_CELL = 300.0
"""Bytes that a family takes for each of its children in each cell of their parent, as counted in runs of
30,000 cells and of 2 million."""

_NO_KEY = bytes(32)
"""Instead of a key: the counts are synthetic, and nothing that is drawn here is kept."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a run is expected to need."""

    steps: Mapping[str, float]  # seconds of each geolevel's estimate; empty where they were not measured
    peak_rss_mb: float  # largest resident set of one process
    memory_mb: float  # of all processes together
    output_mb: float  # disk space of files that stay
    scratch_mb: float  # disk space of files that are removed at the end
    answers: int  # noisy answers of all query groups at all geounits
    full: bool  # whether the run writes them all, not only those that its estimate used
    full_mb: float  # disk space of all of them
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
            "opendas run --measurements full writes them. So does opendas measure --resume later, which "
            "spends no budget and needs the key of the run (--keep-key)"
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


def expected_support(records: Floats, cells: int) -> Floats:
    """Return in how many cells a geounit with so many records has some after an estimate, (g,).

    Records that fall evenly into the cells would have some in ``cells (1 - exp(-records / cells))``. Those
    of synthetic tables with 30,000 and 2 million cells, skewed as Zipf's law says, had 0.44 to 0.82 of it.
    """
    return 1.0 + SKEWED * cells * -np.expm1(-records / cells)


def _families(spine: Spine, level: int, records: float, cells: int) -> tuple[Floats, Floats]:
    """Return the children of each family at a level below the top, and its parent's cells, (families,)."""
    share = np.diff(spine.leaf_starts(level - 1)) / len(spine.leaf)
    return np.diff(spine.child_starts(level - 1)).astype(float), expected_support(records * share, cells)


@dataclass(frozen=True, slots=True)
class _Largest:
    """The family that takes most memory, as forecast."""

    level: int  # of its children
    children: int
    cells: float  # in which its parent has records
    square: float  # bytes of the matrix of cells by cells, 0 without one

    @property
    def bytes(self) -> float:
        return CHILD_CELL * self.children * self.cells + self.square


def _largest_family(plan: MeasurementPlan, records: float) -> _Largest:
    """Return the largest family below the top; the plan has two geolevels or more."""
    cells, found = int(np.count_nonzero(plan.product.possible)), []
    for level in range(1, len(plan.spine.levels)):
        children, parents = _families(plan.spine, level, records, cells)
        square = SQUARE * (parents < (np.inf if plan.product.bounds else MANY_CELLS + 1)) * parents**2
        at = int((CHILD_CELL * children * parents + square).argmax())
        found.append(_Largest(level, int(children[at]), float(parents[at]), float(square[at])))
    return max(found, key=lambda family: family.bytes)


def _by_children(plan: MeasurementPlan) -> bool:
    """Return whether memory grows with children times cells: with few cells, or a tie, families are small."""
    many = plan.product.schema.size > MANY_CELLS and plan.product.tie is None
    return many and len(plan.spine.levels) > 1


def forecast_run(
    plan: MeasurementPlan,
    estimator: str,
    workers: int,
    *,
    full: bool = False,
    estimates: bool = True,
    geounit_seconds: Mapping[str, float] | None = None,
    records: float | None = None,
) -> Forecast:
    """Forecast a run.

    - `workers`: more than this machine has cores are no faster.
    - `full`: whether all noisy answers are written, not only those that the estimate used.
    - `estimates`: False where measurements are all that is wanted.
    - `geounit_seconds`: by geolevel, as :func:`measure_small_run` found them; without, no time is predicted.
    - `records`: about how many there are; :data:`RECORDS` a leaf by default.
    """
    sizes = {name: len(level) for name, level in zip(plan.spine.names, plan.spine.levels, strict=True)}
    leaves, cells = len(plan.spine.leaf), min(plan.product.schema.size, MANY_CELLS)
    speed = 1 + SECOND_WORKER * (min(workers, cores()) - 1)
    steps = {name: sizes[name] * one / speed for name, one in (geounit_seconds or {}).items()}
    mapped = max(0, leaves - MAPPED_LEAVES)
    main = MAIN_MB + ((leaves - mapped) * MAIN_LEAF + mapped * MAPPED_LEAF) / 2**20
    task = min(leaves, TASK_LEAVES) * (1200 + 1.5 * cells) / 2**20
    further = (plan.product.schema.size - cells) / 2**20
    main, task = main + MAIN_CELL * further, task + WORKER_CELL * further
    if _by_children(plan):
        family = _largest_family(plan, RECORDS * leaves if records is None else records).bytes / 2**20
        main, task = main + family * (workers <= 1), task + family * (workers > 1)
    alone = workers <= 1
    # Leaf by leaf, nearly every cell of the microdata is a record of its own, and all answers are used.
    dense = estimator == "block-by-block"
    leaf_output, leaf_scratch = (
        (30 + 0.34 * cells, 230 + 1.9 * cells) if dense else (28 + 0.09 * cells, 25 + 0.28 * cells)
    )
    if further and not timed(plan.product):
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
        tuple(_assumptions(plan, estimator, workers, measured=bool(steps), records=records)),
    )


def _assumptions(
    plan: MeasurementPlan, estimator: str, workers: int, *, measured: bool, records: float | None
) -> list[str]:
    levels = zip(plan.spine.names, plan.spine.levels, strict=True)
    size = ", ".join(f"{len(level):,} {name}" for name, level in reversed(list(levels)))
    lines = [f"geounits: {size}; {plan.product.schema.size:,} cells; estimator {estimator}"]
    if measured:
        lines += [
            "the time is that of the estimate: a part of this tree was estimated on this machine just now, "
            "with synthetic counts; other work on the machine makes it longer",
            "reading the input and writing the release come on top: their time grows with the records",
        ]
    elif not _measurable(plan.product):
        lines.append(
            f"no time is predicted: that takes a product with at most {TIMED_CELLS:,} possible cells, and "
            "with a tie if it is estimated in stages"
        )
    if plan.product.schema.size > MANY_CELLS:
        taken = f"{RECORDS} a leaf; give the number with --records" if records is None else f"{records:,.0f}"
        lines.append(f"a family's time and memory grow with its parent's records; assumed: {taken}")
    lines.append(
        "memory and disk are those of synthetic states (45 persons or 20 housing units a leaf) in Parquet "
        "files: how many records there are is known only when the input is read"
    )
    if workers > cores():
        lines.append(f"{workers} workers share {cores()} cores")
    return lines


def timed(product: Product) -> bool:
    """Return whether a product can be tried alone: no tie, no stages, and a root that is no hours."""
    return product.tie is None and _measurable(product)


def why_untried(product: Product) -> str:
    """Say why a product cannot be tried alone; empty where it can."""
    if product.tie is not None:
        return f"its counts agree with those of {product.tie.product}, which synthetic records do not have"
    if product.passes.earlier and not _measurable(product):
        return "it is estimated in stages, and its root takes too long without a tie"
    return "" if _measurable(product) else f"its root has more than {TIMED_CELLS:,} cells"


def _measurable(product: Product) -> bool:
    """Return whether a small run of a product can be made: with stages, a tie is what divides its root."""
    few = int(np.count_nonzero(product.possible)) <= TIMED_CELLS
    return few and (product.tie is not None or not product.passes.earlier)


def measure_small_run(run: Run, records: float | None = None) -> dict[str, float]:
    """Estimate a part of a run's tree with synthetic counts; return seconds a geounit of each geolevel.

    The part is the first leaves of the frame and what lies above them, with the run's spine, budget, query
    groups, structural zeros and bounds, and without its invariants; what it is tied to are the sums of the
    synthetic counts. It takes about a second; with many cells as long as their root does. Nothing is measured
    of a product without a tie that is not :func:`timed`.

    `records`: about how many there are; :data:`RECORDS` a leaf by default. They matter where there are many
    cells.
    """
    if not _measurable(run.product):
        return {}
    if run.product.schema.size > MANY_CELLS:
        return _by_support(run, RECORDS * len(run.frame) if records is None else records)
    _small_run(run, FIRST_LEAVES)  # compiled code is loaded with the first call
    began = time.perf_counter()
    found = _small_run(run, FIRST_LEAVES).geounit_seconds()
    leaves = int(FIRST_LEAVES * SMALL_RUN_SECONDS / (time.perf_counter() - began))
    return _small_run(run, min(leaves, MOST_LEAVES)).geounit_seconds() if leaves > 2 * FIRST_LEAVES else found


def _by_support(run: Run, records: float) -> dict[str, float]:
    """Return the seconds a geounit of each geolevel, by the children and the parent's cells of its family.

    Families of leaves are measured with as many cells as they have; those between top and leaves, whose time
    grows faster than their cells, with fewer and twice.
    """
    spine, cells, leaves = run.spine, int(np.count_nonzero(run.product.possible)), len(run.frame)
    last, few = len(spine.levels) - 1, min(FEW_LEAVES, leaves)
    if not last:
        return _small_run(run, leaves, round(records / leaves)).geounit_seconds()
    typical = float(np.median(np.diff(spine.leaf_starts(last - 1)))) * records / leaves
    _small_run(run, few, round(typical / few), root=False)  # compiled code is loaded with the first call
    bottom = _small_run(run, few, round(typical / few))
    inner = [
        _small_run(run, few, round(min(records, each) / few), spread=True, root=False)
        for each in INNER_RECORDS
        if last > 1
    ]
    found = {spine.names[0]: bottom.top / len(spine.levels[0])}
    for level, name in enumerate(spine.names[1:], start=1):
        children, parents = _families(spine, level, records, cells)
        runs = [bottom] if level == last else inner
        measured = [each.of((name,)) for each in runs]
        if not any(one for _, one in measured):  # its geounits are only children in these runs
            measured = [each.of(spine.names[1:]) for each in runs]
        seconds = (children * parents * _seconds_a_child_cell(measured, parents)).sum()
        found[name] = float(seconds) / len(spine.levels[level])
    found[spine.names[-1]] += bottom.rest / few
    return found


def _seconds_a_child_cell(measured: list[tuple[float, float]], cells: Floats) -> Floats:
    """Return the seconds for each child in each cell of its parent: a power of the cells through two points.

    `measured`, list of (cells, seconds): the power is 0 where there is one point; and at most
    :data:`STEEPEST`.
    """
    points = [point for point in measured if point[1] > 0]
    if not points:
        return np.zeros(len(cells))
    (few, first), (many, second) = points[0], points[-1]
    power = np.log(second / first) / np.log(many / few) if many > 1.2 * few else 0.0
    found: Floats = second * (cells / many) ** np.clip(power, 0.0, STEEPEST)
    return found


@dataclass(frozen=True, slots=True)
class _SmallRun:
    """The families of a small run in the spine's order, their seconds, and those that none of them took."""

    spine: Spine
    families: tuple[FamilyRecord, ...]
    seconds: tuple[float, ...]
    rest: float

    def geounit_seconds(self) -> dict[str, float]:
        """Return the seconds a geounit of each geolevel took."""
        found = dict.fromkeys(self.spine.names, 0.0)
        for family, one in zip(self.families, self.seconds, strict=True):
            found[family.geolevel] += one
        # What no family took, aggregating and the informed estimator's way up, grows with the leaves.
        found[self.spine.names[-1]] += self.rest
        sizes = zip(self.spine.names, self.spine.levels, strict=True)
        return {name: found[name] / len(level) for name, level in sizes}

    @property
    def top(self) -> float:
        """Seconds of the topmost families."""
        pairs = zip(self.families, self.seconds, strict=True)
        return sum(one for family, one in pairs if family.geolevel == self.spine.names[0])

    def of(self, geolevels: tuple[str, ...]) -> tuple[float, float]:
        """Return the most cells of a family of some geolevels, and the seconds for each child in each cell.

        An only child is its parent, and takes none.
        """
        pairs = zip(self.families, self.seconds, strict=True)
        found = [(f, one) for f, one in pairs if f.geolevel in geolevels and f.children > 1]
        work = sum(family.children * family.cells for family, _ in found)
        most = max((family.cells for family, _ in found), default=1)
        return float(most), sum(one for _, one in found) / max(1, work)


@dataclass(frozen=True, slots=True)
class _Known:
    """In place of an estimator at the root: its synthetic counts, int64 (n,), which take no time to find."""

    counts: Ints
    name = "known"

    def fit(self, data: FamilyData) -> Floats:
        return self.counts[data.cells][None, :].astype(np.float64)


def _small_run(
    run: Run, leaves: int, records: int = RECORDS, *, spread: bool = False, root: bool = True
) -> _SmallRun:
    """Estimate a part with so many leaves, the first or some from everywhere, and so many records in each.

    Without `root` a single root has its synthetic counts: with many cells it takes longer than all else.
    """
    few = min(leaves, len(run.frame))
    last = len(run.frame) - 1 if spread else few - 1
    frame = run.frame.take(np.linspace(0, last, few).round().astype(np.int64))
    run = run.changed(product=replace(run.product, invariants=())).on_frame(frame)
    spine = run.spine
    constraints = bound_table(run.product, frame, spine, {})
    source = KeyedSource(measured_levels(run.plan), _NO_KEY)
    counts = _synthetic_counts(constraints, max(1, records))
    tie = run.product.tie
    if tie is not None:
        query = run.product.workload.group(tie.query)
        sums = counts.recoded(query.row_of_cell, query.size)
        constraints = constraints.tied_to(tie.product, query, sums, spine)
    top, *rules = run.rules(constraints)
    if not root and len(spine.levels[0]) == 1:
        known = np.bincount(counts.cells, counts.counts, len(top.possible))
        top = replace(top, estimator=_Known(known.astype(np.int64)), earlier=())
    worker = Worker((top, *rules), source, run.resolved.failsafe, keep_used=True)
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
    results = [task.read() for task in estimation.finished()]
    seconds = tuple(one for result in results for one in result.seconds.tolist())
    families = tuple(record for result in results for record in result.records)
    return _SmallRun(spine, families, seconds, max(0.0, whole - sum(seconds)))


def _synthetic_counts(constraints: ConstraintTable, records: int) -> Histogram:
    """Return so many synthetic records a leaf, in cells that its bounds allow; few hold most.

    The frequency of a cell falls as the square of its rank, as in a census; where there are many cells, as
    the rank itself (Zipf's law), which spreads records over more of them.
    """
    leaf, n = constraints.levels[-1], len(constraints.possible)
    # Leaves whose bounds close the same groups of cells have the same cells open.
    closed, kind = np.unique(leaf.upper == 0, axis=0, return_inverse=True)
    open_cells = [
        np.flatnonzero(constraints.possible & ~constraints.bound_cells[groups].any(axis=0))
        for groups in closed
    ]
    some = np.array([len(cells) for cells in open_cells])[kind]
    populated = np.flatnonzero(some)
    drawn = min(records, max(1, ONE_BY_ONE // max(1, len(populated))))
    times = np.full(drawn, records // drawn)
    times[: records % drawn] += 1
    rows = np.repeat(populated, drawn)
    # Ranks are drawn evenly rather than by chance.
    part = (np.arange(len(rows)) * 0.618034) % 1.0
    rank = 1 / (1 - part) if n <= MANY_CELLS else some[rows] ** part
    rank = np.minimum(rank, some[rows]).astype(np.int64) - 1
    cells = np.empty(len(rows), dtype=np.int64)
    for number, available in enumerate(open_cells):
        here = kind[rows] == number
        cells[here] = available[rank[here]]
    return Histogram.from_entries(rows, cells, np.tile(times, len(populated)), shape=(len(leaf.upper), n))


def check_room(forecast: Forecast, out: Path) -> tuple[str, ...]:
    """Compare a forecast with what the machine has.

    `out`: output folder; it, or a folder above it, exists.
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
            f"{size_text(memory)} of memory is available, and the run needs about "
            f"{size_text(forecast.memory_mb)}.{fewer}"
        )
    return tuple(warnings)


def check_families(plan: MeasurementPlan, records: float) -> None:
    """Refuse a run whose largest family this machine certainly cannot hold.

    A family's noisy answers are drawn together, for each child in the rows that its parent's cells touch;
    those of the whole file are drawn in pieces, and need no such check.

    `records`: how many there are; where that is protected, nothing can be said for certain.
    """
    if not _by_children(plan):
        return
    family, memory = _largest_family(plan, records), available_memory_mb() * 2**20
    measured = plan.levels[family.level].queries
    if memory >= family.bytes / 2 or not measured:
        return
    query = max((planned.query for planned in measured), key=lambda query: query.size)
    answers = family.children * min(query.size, round(family.cells))
    fewer = int((memory - family.square) / (CHILD_CELL * family.cells))
    nearest = "Join levels of attributes, or make two releases of fewer attributes each"
    if fewer >= 2:
        nearest = f"Add a geolevel between them, so that no geounit has more than {fewer:,} children"
    above, below = plan.spine.names[family.level - 1 : family.level + 1]
    raise EnvironmentFailure(
        f"query group {query.name} at geolevel {below}: the {family.children:,} children of one {above} are "
        f"estimated together, from about {answers:,} noisy answers of this group. With what the estimate "
        f"needs beside them that is about {size_text(family.bytes / 2**20)}, where "
        f"{size_text(memory / 2**20)} of memory is available: nothing was drawn. {nearest}."
    )
