"""Replicates of a release: the same run again and again, on counts like the released ones.

How far a replicate lies from the counts it started from estimates how far the released counts lie from the
truth. Replicates are made of published things alone, and cost no budget: the argument is in
``docs/proofs/replicates.md``. A replicate of a tied run is tied to the one of the earlier release with
the same number, which is drawn for it.

Notes
-----
Approximate Monte Carlo, as the Census Bureau publishes it for the 2020 redistricting data; but for where
replicates start (:mod:`opendas.runs.simulated.starting_counts`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from opendas.arrays import Ints
from opendas.constraints.table import PublicCounts
from opendas.custody.folders import make_folder, write_atomic
from opendas.engines.local import WorkerPool, cores
from opendas.engines.tasks import in_turn
from opendas.errors import ConfigError
from opendas.files.mdf.layout import record_counts, record_frame
from opendas.files.mdf.unit_types import UnitTypes
from opendas.files.mdf.writing import PartFile
from opendas.files.release_folder import ReleasedProduct, counts_of_tie, is_estimated, tie_to
from opendas.files.replicate_files import (
    About,
    ReplicateFile,
    counts_digest,
    difference,
    replicate_sink,
    write_replicate,
)
from opendas.runs.context.run import Run, released_run
from opendas.runs.simulated.published_replicates import MicrodataBase
from opendas.runs.simulated.simulation import Simulation
from opendas.runs.simulated.starting_counts import StartingCounts, exchanged, with_sums
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Base:
    """Whose replicates are drawn; it goes to other processes, which read it there."""

    release: Path  # the folder ``release/``
    product: str
    tied: Path | None = None  # ``release/`` of the release that it is tied to, if that is not the same folder

    def read(self) -> tuple[Run, Histogram]:
        """Return the run on its frame and spine, and the released counts in the frame's order."""
        released = ReleasedProduct(self.release, self.product)
        return released_run(released), released.estimate

    def prior(self, run: Run) -> PublicCounts | None:
        """Return the table that the posterior of the run starts from; the release has it."""
        if run.product.prior is None:
            return None
        return ReleasedProduct(self.release, self.product).constraint_table.levels[-1].prior

    def earlier(self, run: Run) -> Base | None:
        """Return the release that this one is tied to, None where it is not tied."""
        tie = run.product.tied
        if tie is None:
            return None
        beside = (self.release,) if is_estimated(self.release, tie.product) else ()
        named = (*beside, self.tied) if self.tied is not None else beside
        for folder in named:
            if tie_to(folder, run.product, run.resolved.geolevels).microdata == tie.microdata:
                return Base(folder, tie.product, None if folder is self.tied else self.tied)
        others = f"; that of {' and of '.join(map(str, named))} has other microdata" if named else ""
        raise ConfigError(
            f"{run.product.name} is tied to a release of {tie.product}, and each of its replicates to a "
            f"replicate of that release{others}. Name that release with --tied EARLIER."
        )


def check_earlier(base: Base) -> None:
    """Check that what a product is tied to is there, and what that is tied to."""
    earlier = base.earlier(base.read()[0])
    if earlier is not None:
        check_earlier(earlier)


@dataclass(frozen=True, slots=True, eq=False)
class _Earlier:
    """The release that a product is tied to, and the sums that it fixes, in the frame's order."""

    base: Base
    product: Product
    rows: Ints  # (n,) row of each cell in the tie's query group
    sums: Histogram


@dataclass(frozen=True, slots=True, eq=False)
class _Original:
    """What is repeated: a run on its published counts, under the tie of the release."""

    simulation: Simulation
    about: About  # of any seed and number of runs
    starting: StartingCounts | None  # None for a tied run
    earlier: _Earlier | None

    def chance(self, seed: int, number: int) -> tuple[tuple[bytes, ...], np.random.Generator]:
        """Return what the noise of a replicate is bound to, and the generator of its starting counts."""
        about = self.about
        bound = (bytes.fromhex(about.counts), bytes.fromhex(about.estimation), number.to_bytes(8, "big"))
        return bound, np.random.default_rng([seed, *(int.from_bytes(b, "big") for b in bound)])


def _about_replicates(base: Base | MicrodataBase, run: Run, counts: Histogram, runs: int, seed: int) -> About:
    return About(base.product, runs, seed, counts_digest(counts), run.estimation_digest())


@lru_cache
def _original(base: Base | MicrodataBase) -> _Original:
    """Return what all replicates share; once a process."""
    run, counts = base.read()
    found, tie = base.earlier(run) if isinstance(base, Base) else None, run.product.tie
    if found is None or tie is None:
        prior = base.prior(run) if isinstance(base, Base) else None
        simulation, earlier = Simulation.of(run, counts, prior), None
        starting = StartingCounts.of(simulation.counts, run.plan, simulation.constraints)
    else:
        released = ReleasedProduct(found.release, found.product)
        rows = run.product.workload.group(tie.query).row_of_cell.astype(np.int64)
        sums = counts_of_tie(run.product, released.product, released.estimate, run.frame)
        simulation, starting = Simulation.of_tied(run, counts, sums), None
        earlier = _Earlier(found, released.product, rows, sums)
    return _Original(simulation, _about_replicates(base, run, counts, 0, 0), starting, earlier)


def _start(base: Base | MicrodataBase, seed: int, number: int) -> Histogram:
    """Return the counts that a replicate starts from, in the frame's order.

    Those of a tied product have the sums that the earlier release's replicate starts from.
    """
    original = _original(base)
    simulation, chance = original.simulation, original.chance(seed, number)[1]
    run, earlier = simulation.run, original.earlier
    if original.starting is not None:
        own = original.starting.draw(chance)
    else:
        own = exchanged(simulation.counts, run.plan, simulation.constraints, chance)
    own = own.take(run.spine.place_of_leaf)
    if earlier is None:
        return own
    sums = counts_of_tie(run.product, earlier.product, _start(earlier.base, seed, number), run.frame)
    return _of_types(run, with_sums(own, earlier.rows, earlier.sums, sums, chance))


def _replicate(base: Base | MicrodataBase, seed: int, number: int) -> tuple[Histogram, Histogram]:
    """Return the counts that a replicate starts from, and what the run makes of them, in the frame's order.

    A tied run is tied to the replicate of the earlier release with the same number.
    """
    original, start = _original(base), _start(base, seed, number)
    run, earlier = original.simulation.run, original.earlier
    if earlier is None:
        simulation = original.simulation.with_counts(start.take(run.spine.leaf_order))
    else:
        _, found = _replicate(earlier.base, seed, number)
        sums = counts_of_tie(run.product, earlier.product, found, run.frame)
        simulation = Simulation.of_tied(run, start, sums)
    bound = original.chance(seed, number)[0]
    return start, _of_types(run, simulation.estimate(seed, "replicate/" + base.product, *bound))


def _of_types(run: Run, counts: Histogram) -> Histogram:
    """Return counts with people of the types of unit that the frame has, as the run makes its own."""
    types = UnitTypes.of(run.product, run.frame)
    return counts if types is None else types.mended(np.arange(counts.rows), counts)


@dataclass(frozen=True, slots=True)
class _Draw:
    """Draws replicates, each into a file of its own."""

    base: Base | MicrodataBase
    about: About
    parts: Path

    def part(self, number: int) -> Path:
        return self.parts / f"{number:06d}.parquet"

    def is_drawn(self, number: int) -> bool:
        part = self.part(number)
        return part.is_file() and ReplicateFile(part).about == replace(self.about, runs=number)

    def __call__(self, number: int) -> None:
        start, found = _replicate(self.base, self.about.seed, number)
        with replicate_sink(self.part(number), replace(self.about, runs=number)) as sink:
            write_replicate(sink, number, _original(self.base).simulation.run.frame, difference(found, start))


def draw_replicates(
    base: Base | MicrodataBase,
    path: Path,
    scratch: Path,
    *,
    runs: int,
    seed: int = 0,
    workers: int | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> ReplicateFile:
    """Draw replicates of a product's release, and write them into one file.

    Replicate number k is a function of the release, the seed and k: those of a file that is there already
    are kept, and only more are drawn.

    - `scratch`: folder for replicates that are drawn one by one.
    - `runs`: how many the file shall hold; one that holds more already is left as it is.
    - `workers`: processes; by default one for each core. Each takes the memory of a run.
    - `resume`: keep what an interrupted command left in `scratch`.
    """
    run, counts = base.read()
    if isinstance(base, Base):
        check_earlier(base)
    about = _about_replicates(base, run, counts, runs, seed)
    known = ReplicateFile(path) if path.is_file() else None
    if known is None or replace(known.about, runs=runs) != about:
        there = 0  # a file of other counts, of another plan or of another seed is replaced
    else:
        there = known.about.runs
        if there >= runs:
            return known
    parts = scratch / f"{base.product}-{seed}-{about.counts[:16]}"
    if parts.exists() and not resume:
        raise ConfigError(
            f"replicates of {base.product} were begun and not finished; --resume finishes them. To begin "
            f"again, remove {parts}."
        )
    make_folder(parts)
    draw = _Draw(base, about, parts)
    todo = [number for number in range(there + 1, runs + 1) if not draw.is_drawn(number)]
    _draw_all(draw, todo, runs, workers or cores(), progress)
    make_folder(path.parent)
    with replicate_sink(path, about) as sink:
        for number in range(1, runs + 1):
            source = known if known is not None and number <= there else ReplicateFile(draw.part(number))
            write_replicate(sink, number, run.frame, source.differences(number, run.frame, counts.size))
    shutil.rmtree(parts)
    if not any(scratch.iterdir()):
        scratch.rmdir()
    return ReplicateFile(path)


def starting_counts(base: Base | MicrodataBase, file: ReplicateFile) -> Iterator[Histogram]:
    """Yield the counts that each replicate of a file started from, one row per leaf of the frame."""
    for number in range(1, file.about.runs + 1):
        yield _start(base, file.about.seed, number)


def write_replicate_microdata(
    base: Base | MicrodataBase, file: ReplicateFile, folder: Path, stamps: Sequence[str]
) -> tuple[Path, ...]:
    """Write the records of each replicate, and those of the counts it started from; no run is repeated.

    ``FOLDER/0001.parquet`` is what the first repeated run gave, ``FOLDER/0001_start.parquet`` what it started
    from, both in the layout of the release's microdata, and ``FOLDER/about.json`` says of what they are.

    - `file`: of the same base.
    - `folder`: outside of the release: anyone can make these files of it.
    """
    run = _original(base).simulation.run
    frame = record_frame(run.product, run.frame)
    said = {"format": "opendas microdata of replicates 1", **asdict(file.about), "stamps": list(stamps)}
    make_folder(folder)
    paths = []
    for number, start in enumerate(starting_counts(base, file), start=1):
        error = file.differences(number, run.frame, start.size)
        found = difference(start, Histogram(error.indptr, error.cells, -error.counts, error.size))
        for name, counts in ((f"{number:04d}", found), (f"{number:04d}_start", start)):
            path = folder / f"{name}.parquet"
            PartFile(path, run.product, frame, record_counts(run.product, frame, counts, None), 0).write()
            paths.append(path)
    _original.cache_clear()
    write_atomic(folder / "about.json", (json.dumps(said, indent=2) + "\n").encode())
    return tuple(paths)


def _draw_all(draw: _Draw, todo: list[int], runs: int, workers: int, progress: Progress | None) -> None:
    """Draw those that are missing, in worker processes if there are several."""
    tell = progress or (lambda *_: None)
    several = workers > 1 and len(todo) > 1
    try:
        with closing(WorkerPool(workers)) if several else nullcontext() as pool:
            tell("replicates", runs - len(todo), runs)
            drawn = in_turn(draw, todo) if pool is None else pool.spread(draw, todo)
            for done, _ in enumerate(drawn, start=runs - len(todo) + 1):
                tell("replicates", done, runs)
    finally:
        _original.cache_clear()
