"""The counts that replicates start from; apart from the runs, because it is a model of what truth looks like.

Published counts have been through the algorithm once. Where the noise of a leaf hides how a kind of records
is spread over the leaves of one parent, the algorithm spreads it over them by chance: leaves with many
records lose, those with few gain. A second run on these counts finds nothing left to lose, and errs less than
the first did. So each replicate starts from published counts in which records whose leaf the noise hides are
put back to where records are.

Axes: ``b`` leaves in the spine's order, ``e`` entries of the histogram, ``k`` classes of cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Self

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Floats, Ints
from opendas.constraints.table import ConstraintTable
from opendas.geography.spine import Spine
from opendas.measurement.plan import MeasurementPlan
from opendas.schema.histogram import Histogram


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StartingCounts:
    """Published counts, and how likely each of their records stays in its leaf.

    Parameters
    ----------
    published : Histogram
        Public counts, one row per leaf in the spine's order.
    stays : float64 (e,)
        Of each entry; 1 everywhere where nothing may move.
    class_of_cell : int64 (n,)
        Cells of one class are counted by the same bounds.
    records : int64 (b, k)
        Published records of each leaf and class.
    parent : int64 (b,)
    constraints : ConstraintTable
    """

    published: Histogram
    stays: Floats
    class_of_cell: Ints
    records: Ints
    parent: Ints
    constraints: ConstraintTable

    @classmethod
    def of(cls, published: Histogram, plan: MeasurementPlan, constraints: ConstraintTable) -> Self:
        """Prepare to draw starting counts.

        Parameters
        ----------
        published : Histogram
            Public counts, one row per leaf in the spine's order.
        plan : MeasurementPlan
        constraints : ConstraintTable
            That the counts satisfy.

        Notes
        -----
        Of a cell with C published records below a parent, a leaf with the part f of the parent's records of
        that class would have m = f C if they were spread alike. With Poisson variance m around that, and the
        variance s of the noise in the leaf's answer for the cell, the weight of that answer is m / (m + s):
        so likely a record stays.
        """
        leaf, cell = _leaves(published), published.cells
        bounds = constraints.bound_cells
        class_of_cell = np.unique(bounds.T, axis=0, return_inverse=True)[1].ravel().astype(np.int64)
        classes = int(class_of_cell.max(initial=0)) + 1
        kind = class_of_cell[cell]
        records = np.bincount(
            leaf * classes + kind, published.counts, minlength=published.rows * classes
        ).astype(np.int64)
        records = records.reshape(published.rows, classes)
        parent, noise = _parents(plan.spine), _leaf_noise(plan)
        stays = np.ones(len(cell))
        last = constraints.levels[-1]
        if noise is not None and not last.invariants and last.joint is None and last.tied is None:
            above = np.zeros((int(parent.max(initial=0)) + 1, classes), dtype=np.int64)
            np.add.at(above, parent, records)
            _, same = np.unique(parent[leaf] * np.int64(published.size) + cell, return_inverse=True)
            together = np.bincount(same.ravel(), published.counts)[same.ravel()]
            expected = records[leaf, kind] / above[parent[leaf], kind] * together
            stays = expected / (expected + noise)
        return cls(published, stays, class_of_cell, records, parent, constraints)

    def draw(self, rng: np.random.Generator) -> Histogram:
        """Return starting counts: records moved within their parent, bounds and totals of parents kept.

        A parent below which a bound would no longer hold keeps its published counts.
        """
        published = self.published
        leaf, cell = _leaves(published), published.cells
        moving = rng.binomial(published.counts, 1.0 - self.stays)
        from_leaf, moved = np.repeat(leaf, moving), np.repeat(cell, moving)
        to_leaf = self._leaf_for(self.class_of_cell[moved], self.parent[from_leaf], rng)
        while True:
            found = Histogram.from_entries(
                np.concatenate([leaf, to_leaf]),
                np.concatenate([cell, moved]),
                np.concatenate(
                    [published.counts - _again(from_leaf, moved, published), np.ones(len(moved), np.int64)]
                ),
                shape=(published.rows, published.size),
            )
            wrong = np.isin(self.parent[from_leaf], self.parent[~self._holds(found)])
            if not wrong.any():
                return found
            from_leaf, moved, to_leaf = from_leaf[~wrong], moved[~wrong], to_leaf[~wrong]

    def _leaf_for(self, kind: Ints, parent: Ints, rng: np.random.Generator) -> Ints:
        """Draw a leaf of each parent, as likely as it has records of the class, int64 like `kind`."""
        found = np.zeros(len(kind), dtype=np.int64)
        first = np.searchsorted(self.parent, np.arange(int(self.parent.max(initial=0)) + 2))
        for one in range(self.records.shape[1]):
            here = np.flatnonzero(kind == one)
            sums = np.concatenate([[0], np.cumsum(self.records[:, one])])
            record = rng.integers(sums[first[parent[here]]], sums[first[parent[here] + 1]])
            found[here] = np.searchsorted(sums, record, side="right") - 1
        return found

    def _holds(self, counts: Histogram) -> Bools:
        """Return which leaves satisfy all bounds, bool (b,)."""
        last = self.constraints.levels[-1]
        leaf = _leaves(counts)
        holds = np.ones(counts.rows, dtype=bool)
        for bound, cells in enumerate(self.constraints.bound_cells):
            inside = cells[counts.cells]
            sums = np.bincount(leaf[inside], counts.counts[inside], minlength=counts.rows)
            holds &= (last.lower[:, bound] <= sums) & (sums <= last.upper[:, bound])
        return holds


def _leaves(counts: Histogram) -> Ints:
    return np.repeat(np.arange(counts.rows), np.diff(counts.indptr))


def _again(leaf: Ints, cell: npt.NDArray[np.int32], published: Histogram) -> Ints:
    """Return how many records leave each entry of the published counts, int64 (e,)."""
    keys = _leaves(published) * np.int64(published.size) + published.cells
    at = np.searchsorted(keys, leaf * np.int64(published.size) + cell)
    return np.bincount(at, minlength=len(keys)).astype(np.int64)


def _parents(spine: Spine) -> Ints:
    return (
        np.zeros(len(spine.leaf), np.int64) if len(spine.levels) < 2 else spine.leaf.parent.astype(np.int64)
    )


def _leaf_noise(plan: MeasurementPlan) -> float | None:
    """Return the variance of a leaf's answer for one cell; None where no query group asks each cell."""
    number = len(plan.levels) - 1
    each = [query for query in plan.levels[number].queries if query.query.name == "detailed"]
    return plan.distribution(number, each[0], Fraction(1)).variance if each else None
