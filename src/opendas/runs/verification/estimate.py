"""The estimate of a release made again, apart from other checks because it takes as long as the run did.

Microdata are a function of measurements, exact values and public things. Here that is not promised but done:
anyone with ``release/`` can estimate again, and must find the released records. Argument:
docs/proofs/rederivation.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from opendas.arrays import Ints
from opendas.custody.folders import write_atomic
from opendas.engines.checkpoint import Checkpoints
from opendas.engines.drive import Estimation, estimate_spine
from opendas.engines.local import workers_for
from opendas.engines.measurement_source import FileSource, check_measurement_files
from opendas.engines.outputs import FamilyFile, Leaves, Solved
from opendas.engines.work import Worker
from opendas.errors import CheckFailed, ConfigError
from opendas.files.geography_files import read_constraint_table
from opendas.files.mdf.unit_types import UnitTypes
from opendas.files.release_folder import ReleasedProduct
from opendas.files.replicate_files import REPLICATES, ReplicateFile
from opendas.files.storage.parquet import open_parquet
from opendas.measurement.noisy import measured_levels
from opendas.parts import Origin
from opendas.runs.context.run import Run, released_run
from opendas.runs.simulated.replicates import Base, check_earlier, draw_replicates
from opendas.schema.histogram import Histogram
from opendas.topdown.family_data import Estimator
from opendas.verify.check import require

Progress = Callable[[str, int, int], None]

_LEAVES_AT_ONCE = 1 << 16


def check_spine_again(released: ReleasedProduct) -> str:
    """The spine on file is the one that plan and frame give."""
    run = released_run(released)
    if run.resolved.published is not None:
        return (
            "not made again: it is the hierarchy that the published file tells by its geocodes, and that its "
            "measurements are about"
        )
    made = Run(run.path, run.resolved).on_frame(released.frame).spine
    require(
        made.digest() == released.spine.digest(),
        "the spine is not the one that the released plan makes of the released frame.",
    )
    return f"{len(made.leaf)} leaves under {len(made.levels) - 1} levels, made again"


def check_estimate_again(
    certified: Mapping[str, Any],
    released: ReleasedProduct,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> str:
    """Estimate again from the released measurements; every leaf must have the released counts.

    - `certified`: what the certificate says of the run.
    - `workers`: processes; by default as a run has.
    """
    run = released_run(released)
    if run.fits_whole_tree and certified["measurements"] != "full":
        raise CheckFailed(
            f"cannot be re-derived: the estimator {run.resolved.estimator} reads every measurement, and this "
            "release holds those that its families used. Where the key was kept, opendas measure RUN.toml "
            "--out OUT --resume writes all of them, with the same noise and no further charge; a new "
            "run does with --measurements full."
        )
    _check_parts(run, certified)
    with tempfile.TemporaryDirectory(prefix="opendas-") as folder:
        estimation = estimate_again(run, released, Path(folder), workers=workers, progress=progress)
        leaves: Callable[[Ints], Histogram] = Leaves(estimation, run.spine)
        if (types := UnitTypes.of(run.product, run.frame)) is not None:
            leaves = types.on(leaves)
        _compare(released, leaves)
        if types is not None:
            moved = sum(types.moved.values())
            require(
                moved == certified.get("moved"),
                f"{certified.get('moved') or 'no'} records with another type of unit are certified, and "
                f"{moved} found when estimated again.",
            )
        families = Path(folder) / "families.parquet"
        solved = FamilyFile(families, run.spine.names, estimation.finished()).write()
    _compare_families(certified, solved)
    return f"{len(released.frame)} leaves and {solved.families} families, as estimated again"


def check_replicates_again(
    released: ReleasedProduct,
    *,
    tied: Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> str:
    """Every replicate is the one that release, seed and number give: it is drawn again.

    That of a tied run needs the release that it is tied to, too.
    """
    path = released.release / REPLICATES / f"{released.name}.parquet"
    base = Base(released.release.absolute(), released.name, tied)
    if tied is None:
        try:
            check_earlier(base)
        except ConfigError as error:
            return f"not drawn again: {error}"
    about = ReplicateFile(path).about
    with tempfile.TemporaryDirectory(prefix="opendas-") as folder:
        again = draw_replicates(
            base,
            Path(folder) / path.name,
            Path(folder) / "parts",
            runs=about.runs,
            seed=about.seed,
            workers=workers,
            progress=progress,
        )
        same = about == again.about and open_parquet(path).read().equals(open_parquet(again.path).read())
        require(same, f"{REPLICATES}/{path.name}: not what the release gives under its seed.")
    return f"{about.runs} replicates, drawn again"


def estimate_again(
    run: Run,
    released: ReleasedProduct,
    folder: Path,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    fits: Estimator | None = None,
) -> Estimation:
    """Estimate a run from the measurements, constraints and spine of a release.

    - `run`: as :func:`opendas.runs.context.run.released_run` returns it.
    - `folder`: for results of tasks: noisy and estimated values, public as the release itself.
    - `fits`: in place of the run's, with the same answers.
    """
    constraints = read_constraint_table(released.measurements / "constraints.parquet", run.product, run.spine)
    source = FileSource(measured_levels(run.plan), released.measurements.absolute())
    check_measurement_files(source.levels, run.spine, source.folder)
    rules = run.rules(constraints)
    if fits is not None:
        rules = tuple(replace(rule, estimator=fits) for rule in rules)
    return estimate_spine(
        run.spine,
        constraints,
        Worker(rules, source, run.resolved.failsafe, keep_used=False),
        histogram=None,
        estimator=run.resolved.estimator,
        workers=workers_for(len(run.spine.leaf), run.product.schema.size, workers),
        model=run.model(constraints),
        checkpoints=Checkpoints(folder, "again", write_atomic),
        progress=progress,
    )


def _check_parts(run: Run, certified: Mapping[str, Any]) -> None:
    """The parts of other packages that are certified are installed here."""
    stated = tuple(Origin.from_dict(part) for part in certified.get("parts", ()))
    try:
        found = run.parts
    except ConfigError as error:
        raise CheckFailed(f"cannot be re-derived: {error}") from None
    require(
        found == stated,
        "cannot be re-derived: the certificate names "
        f"{'; '.join(map(str, stated)) or 'no part of another package'}, and this machine has "
        f"{'; '.join(map(str, found)) or 'none'}.",
    )


def _compare(released: ReleasedProduct, leaves: Callable[[Ints], Histogram]) -> None:
    """Compare the released counts with the estimate, leaf by leaf in the order of the frame."""
    differing, first = 0, None
    for start, found in released.estimate.pieces(_LEAVES_AT_ONCE):
        again = leaves(np.arange(start, start + found.rows))
        rows = found.unlike(again)
        differing += len(rows)
        if len(rows) and first is None:
            row = int(rows[0])
            first = (
                released.frame.geocodes[start + row].decode(),
                *(int(table.row_totals()[row]) for table in (found, again)),
            )
    if first is not None:
        code, here, there = first
        raise CheckFailed(
            f"the microdata are not what the measurements give: {differing} of {len(released.frame)} leaves "
            f"differ. The first is {code}. Its records: {here} in the release, {there} when estimated again."
        )


def _compare_families(certified: Mapping[str, Any], solved: Solved) -> None:
    for name in ("families", "fallbacks"):
        found, stated = getattr(solved, name), certified[name]
        require(found == stated, f"{stated} {name} are certified, and {found} found when estimated again.")
    relaxed = [(record["geolevel"], record["label"]) for record in solved.failsafe]
    stated = [(record["geolevel"], record["label"]) for record in certified["failsafe"]]
    require(relaxed == stated, "the failsafe relaxed other families than are certified.")
