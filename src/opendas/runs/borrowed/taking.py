"""Published measurements taken into an output folder, and estimated from.

They are written as a run that measured writes them, so that estimation, checks and tables know no difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from opendas.arrays import Ints
from opendas.custody.folders import remove_file, remove_tree, write_atomic
from opendas.engines.outputs import Draw, write_full
from opendas.errors import ConfigError, PrivacyError
from opendas.files.nmf.bureau import is_bureau_folder
from opendas.files.official_areas import official_areas_path
from opendas.geography.states import find_state
from opendas.intervals.tree_estimates import MeasuredTotals, check_totals
from opendas.measurement.protection import ProtectionMap
from opendas.readers.frame.official import official_areas
from opendas.runs.act import open_act
from opendas.runs.borrowed.run import BorrowedRun, borrow_together
from opendas.runs.context.workspace import RunState, Workspace
from opendas.runs.finished_release import Release
from opendas.runs.options import RunOptions
from opendas.runs.release import estimate, write_public
from opendas.schema.declarations import PUBLISHED_LIST
from opendas.version import __version__


def estimate_published(
    paths: Sequence[str | Path],
    out: str | Path,
    *,
    frame: Sequence[str | Path] = (),
    estimator: str = "topdown",
    state: str | None = None,
    totals: str | Path | None = None,
    budget: Sequence[str] = (),
    tie: str | Path | None = None,
    **options: Any,
) -> Release:
    """Estimate consistent microdata from noisy measurements that the Census Bureau published.

    Opens nothing confidential, creates no key and charges no budget.

    Parameters
    ----------
    paths : sequence of path
        Measurements of the redistricting product or of the DHC (persons, units or both), each a folder
        with ``State.parquet`` and so on.
    out : path
        Output folder: new, or with the other product.
    frame : sequence of path
        Public geography: official redistricting zips, one per state, or a table of blocks (CSV, Parquet).
    estimator : str
        ``topdown``, ``informed``, ``posterior``, or the name of another package's estimator.
    state : str, optional
        Name, postal or FIPS code of the only state to read.
    totals : path, optional
        Published table or zip with exact counts that the files omit.
    budget : sequence of str
        Presets or run files of the measurements; by default, inferred from their variances.
    tie : path, optional
        Output folder with a redistricting release, with which the DHC agrees in every block.
    **options
        As for :func:`estimate`.

    Raises
    ------
    ConfigError, FormatError, GeographyError, DataError, EstimationError, EnvironmentFailure
        See :mod:`opendas.errors`. Nothing of a refused file remains in `out`.
    """
    asked = RunOptions.of("estimate", options)
    for borrowed in borrow_together(
        [Path(path) for path in paths],
        estimator=estimator,
        frame=[Path(path) for path in frame],
        state=None if state is None else find_state(state).fips,
        totals=None if totals is None else Path(totals),
        budgets=budget,
        tie=None if tie is None else Path(tie),
    ):
        estimate_borrowed(borrowed, Path(out), asked)
    return Release(out)


def estimate_borrowed(borrowed: BorrowedRun, out: Path, options: RunOptions) -> None:
    """Take published measurements into an output folder, and estimate from them.

    Raises `ConfigError` if the folder lies in noisy measurements, or the product was estimated there already
    and it is not to be resumed;
    `PrivacyError` if the folder holds other measurements of the product; `FormatError` if an answer is
    missing or cut off: then nothing of it stays.
    """
    if any(map(is_bureau_folder, (out.resolve(), *out.resolve().parents))):
        raise ConfigError(f"{out} lies in a folder of noisy measurements. Choose an output folder outside.")
    with Workspace(out, options.ledger, group_writable=options.group_writable) as space, ExitStack() as undo:
        for one in (borrowed.companion, borrowed):
            if one is not None:
                _write_taken(one, space, options, undo)
        undo.pop_all()
    estimate(borrowed.run, out, options)


def _write_taken(borrowed: BorrowedRun, space: Workspace, options: RunOptions, undo: ExitStack) -> None:
    """Write measurements and public facts as a run that measured them would have, with how to undo it."""
    run, name = borrowed.run, borrowed.run.product.name
    published = run.resolved.published
    assert published is not None
    with open_act(space, name, "estimate", options, options.workers) as act:
        if act.earlier is not None:
            if (act.earlier.input_tag, act.earlier.plan_digest) != (published.sha256, run.plan.digest()):
                same = act.earlier.input_tag == published.sha256
                held = "these measurements of {} with another plan" if same else "other measurements of {}"
                raise PrivacyError(
                    f"{space.out} holds {held.format(name)}. Choose another output folder: a release states "
                    "what it was made from."
                )
            return
        protection = ProtectionMap.of(run.plan, run.frame, borrowed.constraints)
        protection.check()
        folder = space.release / "measurements" / name
        frame, areas, toml = (
            space.release / "geography" / f"{name}.parquet",
            official_areas_path(space.release, name),
            space.release / "run" / f"{name}.toml",
        )
        for tree in (folder, space.state / name):
            undo.callback(remove_tree, tree)
        for path in (frame, areas, toml):
            undo.callback(remove_file, path)
        read = [MeasuredTotals.none(len(level)) for level in run.spine.levels]
        # Told as of files that are read: one cannot be had without the other.
        write_full(folder, run.plan, _draws(borrowed, read), lambda _, *parts: act.tell("reading", *parts))
        check_totals(borrowed.tree, read)
        write_atomic(folder / PUBLISHED_LIST, borrowed.listing.encode())
        known = None if borrowed.geography is None else official_areas(borrowed.geography, run.frame)
        write_public(space, run, borrowed.constraints, run.resolved.domain, known)
        act.clock.lap("read measurements")
        space.save_state(
            RunState(
                run_id=published.sha256[:32],
                product=name,
                version=__version__,
                plan_digest=run.plan.digest(),
                estimation_digest=run.estimation_digest(),
                input_tag=published.sha256,
                key_commitment="",
                seed=None,
                phase="measured",
                result={
                    "stamps": list(borrowed.stamps),
                    "declared": [],
                    "domain": run.resolved.domain.to_dict(),
                    "measurements": "full",
                },
            )
        )


def _draws(borrowed: BorrowedRun, totals: Sequence[MeasuredTotals]) -> Draw:
    """Return what stands in place of drawing: answers that are read, of which the totals are noted."""
    tree, plan = borrowed.tree, borrowed.run.plan

    def draw(number: int, step: int) -> Iterator[tuple[int, int, list[Ints]]]:
        names = [query.name for query in tree.levels[number].queries]
        order = [names.index(planned.query.name) if names else -1 for planned in plan.levels[number].queries]
        size = len(plan.spine.levels[number])
        for start in range(0, size, step):
            stop = min(start + step, size)
            read = tree.full(number, start, stop - start) if names else []
            totals[number].add(tree.levels[number], start, read)
            yield (
                start,
                stop,
                [
                    read[column]
                    if column >= 0
                    else np.zeros((stop - start, planned.query.size), dtype=np.int64)
                    for column, planned in zip(order, plan.levels[number].queries, strict=True)
                ],
            )

    return draw
