"""Credible intervals of released counts, apart from those of the measurements: the posterior drawn again.

A release by the estimator ``posterior`` holds one table of each family of leaves. The tables that it was
chosen from are functions of the same released answers, and are made here once more. In an area their sums
scatter as the posterior of its leaves does, given what is released of their parents. How wrong the parents
are comes on top: least squares of the same measurements say it for the parents' counts, each weighted by the
part of it that the area has.

Axes: ``a`` areas, ``t`` columns of a table, ``k`` draws, ``C`` children of a family, ``s`` its cells.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy import sparse

from opendas.arrays import Bools, Floats, Ints
from opendas.errors import ConfigError
from opendas.files.area_files import AreaWeights
from opendas.files.release_folder import ReleasedProduct
from opendas.geography.frame import Grouping
from opendas.intervals.answers import Areas
from opendas.intervals.laws import confidence_level
from opendas.runs.context.run import released_run
from opendas.runs.verification.estimate import estimate_again
from opendas.tables.counting import count_areas
from opendas.tables.interval_tables import INTERVAL_SCHEMA, MeasuredProduct
from opendas.topdown.family_data import FamilyData
from opendas.topdown.model import POSTERIOR
from opendas.topdown.posterior import Posterior

AT_ONCE = 1 << 25
"""Sums that are held at a time: draws times areas times columns."""


@dataclass(frozen=True)
class _Kept(Posterior):
    """The same estimator, which writes its draws into a folder, one file for each family."""

    folder: Path

    def keep(self, data: FamilyData, draws: npt.NDArray[np.int32]) -> None:
        codes = np.asarray(data.family.geocodes)
        name = bytes(codes[0]).hex()  # no leaf is in two families
        np.savez(self.folder / f"{name}.npz", geocodes=codes, cells=data.cells, draws=draws)


@dataclass(frozen=True, eq=False)
class _Draws:
    """Draws of one family: positions of its leaves in the frame, its cells, and the tables."""

    leaf: Ints
    cells: npt.NDArray[np.int32]
    tables: npt.NDArray[np.int32]


def areas_at(measured: MeasuredProduct, geolevel: str) -> AreaWeights:
    """Return the areas of a geolevel or entity category, as sets of leaves."""
    grouping: Grouping = measured.grouping(geolevel)
    leaf = np.flatnonzero(grouping.of_leaf >= 0)
    names = tuple(bytes(code).decode() for code in grouping.geocodes)
    return AreaWeights(names, grouping.of_leaf[leaf], leaf, np.ones(len(leaf)))


def credible_intervals(
    measured: MeasuredProduct,
    query: str,
    areas: AreaWeights,
    level: Fraction,
    *,
    workers: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> pa.Table:
    """Return credible intervals of a query in sets of leaves.

    - `query`: a published table or a query group.
    - `level`: strictly between 0 and 1.
    - `workers`: processes that estimate again.
    - Returns: pyarrow.Table: :data:`~opendas.tables.interval_tables.INTERVAL_SCHEMA`: estimate and variance
      are those of the posterior, law is ``posterior``. Without an interval where an area has people in a
      family that kept least squares.
    """
    released = measured.released
    if released is None:
        raise ConfigError("credible intervals need a release, with its frame and plan.")
    if released_run(released).resolved.estimator != POSTERIOR:
        raise ConfigError(
            f"{released.name} was not estimated with [run] estimator posterior; without --posterior, "
            "intervals come from its measurements."
        )
    confidence = float(confidence_level(level))
    table = measured.table(query)
    width = len(table.columns)
    with tempfile.TemporaryDirectory(prefix="opendas-") as folder:
        _draw_again(released, Path(folder), workers, progress)
        parents, known = _parents(measured, areas, Path(folder))
        step = max(1, AT_ONCE // (_number(Path(folder)) * max(1, len(areas.names))))
        parts = [
            _quantiles(measured, areas, parents, Path(folder), table.members[t : t + step], confidence)
            for t in range(0, width, step)
        ]
    mean, variance, lower, upper = np.concatenate(parts, axis=2)
    counts = None if measured.microdata is None else count_areas(
        measured.microdata, table, measured.tree.frame, areas
    )  # fmt: skip
    none = np.repeat(~known, width)
    return pa.Table.from_arrays(
        [
            pa.array(np.repeat(areas.names, width)).cast(pa.string()),
            pa.array(list(table.columns) * len(areas.names), pa.string()),
            *(pa.array(values.ravel(), mask=none) for values in (mean, variance, lower, upper)),
            pa.nulls(len(none), pa.float64()),
            pa.array([POSTERIOR] * len(none), pa.string()),
            pa.nulls(len(none), pa.float64()) if counts is None else pa.array(counts.ravel().astype(float)),
        ],
        schema=INTERVAL_SCHEMA,
    )


def _draw_again(
    released: ReleasedProduct,
    folder: Path,
    workers: int | None,
    progress: Callable[[str, int, int], None] | None,
) -> None:
    (folder / "again").mkdir()
    (folder / "draws").mkdir()
    estimate_again(
        released_run(released),
        released,
        folder / "again",
        workers=workers,
        progress=progress,
        fits=_Kept(folder / "draws"),
    )


def _families(folder: Path, geocodes: npt.NDArray[np.bytes_]) -> Iterator[_Draws]:
    for path in sorted((folder / "draws").iterdir()):
        with np.load(path) as found:
            leaf = np.searchsorted(geocodes, found["geocodes"])
            yield _Draws(leaf, found["cells"], found["draws"])


def _number(folder: Path) -> int:
    """Return how many tables were drawn of each family."""
    for path in sorted((folder / "draws").iterdir()):
        with np.load(path) as found:
            return len(found["draws"])
    return 1


def _parents(measured: MeasuredProduct, areas: AreaWeights, folder: Path) -> tuple[Areas, Bools]:
    """Return the part of each parent that an area has, as weights of all its children; and what is known.

    An area is not known if it has people in leaves of which nothing was drawn.
    """
    frame, tree = measured.tree.frame, measured.tree
    weight = _weights(areas, len(frame))
    drawn = np.zeros(len(frame), dtype=bool)
    # An area and a leaf of each row, and its weight.
    members, part = [np.empty((2, 0), np.int64)], [np.empty(0)]
    for family in _families(folder, frame.geocodes):
        drawn[family.leaf] = True
        people = family.tables.sum(axis=2).mean(axis=0)
        here = weight[:, family.leaf]
        shares = here @ people / max(1.0, float(people.sum()))
        touched = np.flatnonzero(shares)
        leaf = np.tile(tree.spine.place_of_leaf[family.leaf], len(touched))
        members.append(np.stack([np.repeat(touched, len(family.leaf)), leaf]))
        part.append(np.repeat(shares[touched], len(family.leaf)))
    populated = np.ones(len(frame), dtype=bool)
    if measured.microdata is not None:
        populated = measured.microdata.row_totals() > 0
    known = weight @ (populated & ~drawn).astype(float) == 0.0
    which, place = np.concatenate(members, axis=1)
    return Areas(len(areas.names), which, place, np.concatenate(part)), np.asarray(known)


def _weights(areas: AreaWeights, leaves: int) -> sparse.csc_matrix:
    shape = (len(areas.names), leaves)
    return sparse.csc_matrix((areas.weight, (areas.which, areas.leaf)), shape=shape)


def _quantiles(
    measured: MeasuredProduct,
    areas: AreaWeights,
    parents: Areas,
    folder: Path,
    members: Bools,
    confidence: float,
) -> Floats:
    """Return mean, variance, lower and upper end of some columns, float64 (4, a, t)."""
    frame = measured.tree.frame
    weight = _weights(areas, len(frame))
    draws = _number(folder)
    sums = np.zeros((draws, len(areas.names), len(members)))
    for family in _families(folder, frame.geocodes):
        here = weight[:, family.leaf]
        touched = np.unique(here.indices)
        counts = family.tables @ members[:, family.cells].T.astype(np.int32)
        sums[:, touched] += np.einsum("ac,kct->kat", here[touched].toarray(), counts, optimize=True)
    spread = np.sqrt(measured.estimates.areas(parents, members).variance)
    # The parents' error is independent of the draws: its quantiles are dealt to them in another order.
    order = np.argsort(np.arange(draws) * 0.6180339887 % 1.0)
    normal = np.array([NormalDist().inv_cdf((i + 0.5) / draws) for i in range(draws)])[order]
    sums += normal[:, None, None] * spread
    mean, variance = sums.mean(axis=0), sums.var(axis=0)
    sums.sort(axis=0)
    tail = (1.0 - confidence) / 2.0 * draws
    lower, upper = sums[int(tail)], sums[draws - 1 - int(tail)]
    return np.stack([mean, variance, np.maximum(0.0, np.floor(lower)), np.ceil(upper)])
