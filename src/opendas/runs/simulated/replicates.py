"""Replicates of a release: the same run again and again, on counts like the released ones.

How far a replicate lies from the counts it started from estimates how far the released counts lie from the
truth. Replicates are made of published things alone, and cost no budget: the argument is in
``docs/proofs/replicates.md``.

Notes
-----
Approximate Monte Carlo, as the Census Bureau publishes it for the 2020 redistricting data; but for where
replicates start (:mod:`opendas.runs.simulated.starting_counts`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from opendas.engines.local import WorkerPool, cores
from opendas.engines.protocol import in_turn
from opendas.errors import ConfigError
from opendas.files.atomic import make_folder, write_atomic
from opendas.files.mdf.layout import record_counts, record_frame
from opendas.files.mdf.writing import PartFile
from opendas.files.release_folder import ReleasedProduct
from opendas.files.replicate_files import (
    About,
    ReplicateFile,
    counts_digest,
    difference,
    replicate_sink,
    write_replicate,
)
from opendas.runs.run import Run
from opendas.runs.simulated.microdata import MicrodataBase
from opendas.runs.simulated.simulation import Simulation
from opendas.runs.simulated.starting_counts import StartingCounts
from opendas.runs.verification.plan import released_run
from opendas.schema.histogram import Histogram

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Base:
    """Whose replicates are drawn; it goes to other processes, which read it there.

    Parameters
    ----------
    release : Path
        The folder ``release/``.
    product : str
    """

    release: Path
    product: str

    def read(self) -> tuple[Run, Histogram]:
        """Return the run on its frame and spine, and the released counts in the frame's order."""
        released = ReleasedProduct(self.release, self.product)
        return released_run(released), released.estimate


@lru_cache(maxsize=1)
def _prepared(base: Base | MicrodataBase) -> tuple[Simulation, StartingCounts]:
    """Return what all replicates share; once a process."""
    run, counts = base.read()
    simulation = Simulation.of(run, counts)
    return simulation, StartingCounts.of(simulation.counts, run.plan, simulation.constraints)


def _start(published: StartingCounts, about: About, number: int) -> tuple[tuple[bytes, ...], Histogram]:
    """Return what a replicate's noise is bound to, and the counts it starts from, in the spine's order."""
    bound = (bytes.fromhex(about.counts), bytes.fromhex(about.estimation), number.to_bytes(8, "big"))
    chance = np.random.default_rng([about.seed, *(int.from_bytes(b, "big") for b in bound)])
    return bound, published.draw(chance)


@dataclass(frozen=True, slots=True)
class _Draw:
    """Draws replicates, each into a file of its own."""

    base: Base | MicrodataBase
    about: About
    parts: Path

    def part(self, number: int) -> Path:
        return self.parts / f"{number:06d}.parquet"

    def __call__(self, number: int) -> None:
        simulation, published = _prepared(self.base)
        about, run = self.about, simulation.run
        bound, start = _start(published, about, number)
        found = simulation.with_counts(start).estimate(about.seed, "replicate/" + about.product, *bound)
        error = difference(found, start.take(run.spine.place_of_leaf))
        with replicate_sink(self.part(number), replace(about, runs=number)) as sink:
            write_replicate(sink, number, run.frame, error)


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

    Parameters
    ----------
    base : Base or MicrodataBase
    path : Path
        The file.
    scratch : Path
        Folder for replicates that are drawn one by one.
    runs : int
        How many the file shall hold; one that holds more already is left as it is.
    seed : int
    workers : int, optional
        Processes; by default one for each core. Each takes the memory of a run.
    resume : bool
        Keep what an interrupted command left in `scratch`.
    progress : callable(stage, done, total), optional

    Raises
    ------
    ConfigError
        If an interrupted command left something, and `resume` is not set.
    """
    run, counts = base.read()
    about = About(base.product, runs, seed, counts_digest(counts), run.estimation_digest())
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
    todo = [number for number in range(there + 1, runs + 1) if not draw.part(number).is_file()]
    _draw_all(draw, todo, runs, workers or cores(), progress)
    make_folder(path.parent)
    with replicate_sink(path, about) as sink:
        for number in range(1, runs + 1):
            source = known if known is not None and number <= there else ReplicateFile(draw.part(number))
            write_replicate(sink, number, run.frame, source.differences(number, run.frame, counts.size))
    shutil.rmtree(parts)
    return ReplicateFile(path)


def starting_counts(base: Base | MicrodataBase, file: ReplicateFile) -> Iterator[Histogram]:
    """Yield the counts that each replicate of a file started from, one row per leaf of the frame."""
    simulation, published = _prepared(base)
    for number in range(1, file.about.runs + 1):
        yield _start(published, file.about, number)[1].take(simulation.run.spine.place_of_leaf)


def write_replicate_microdata(
    base: Base | MicrodataBase, file: ReplicateFile, folder: Path, stamps: Sequence[str]
) -> tuple[Path, ...]:
    """Write the records of each replicate, and those of the counts it started from; no run is repeated.

    ``FOLDER/0001.parquet`` is what the first repeated run gave, ``FOLDER/0001_start.parquet`` what it started
    from, both in the layout of the release's microdata, and ``FOLDER/about.json`` says of what they are.

    Parameters
    ----------
    base : Base or MicrodataBase
    file : ReplicateFile
        Of the same base.
    folder : Path
        Outside of the release: anyone can make these files of it.
    stamps : sequence of str
        Of the release.
    """
    run = _prepared(base)[0].run
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
    _prepared.cache_clear()
    write_atomic(folder / "about.json", (json.dumps(said, indent=2) + "\n").encode())
    return tuple(paths)


def _draw_all(draw: _Draw, todo: list[int], runs: int, workers: int, progress: Progress | None) -> None:
    """Draw those that are missing, in worker processes if there are several."""
    done = runs - len(todo)
    pool = WorkerPool(workers) if workers > 1 and len(todo) > 1 else None
    try:
        drawn = in_turn(draw, todo) if pool is None else pool.spread(draw, todo)
        if progress is not None:
            progress("replicates", done, runs)
        for _ in drawn:
            done += 1
            if progress is not None:
                progress("replicates", done, runs)
    finally:
        if pool is not None:
            pool.close()
        _prepared.cache_clear()
