"""The counts that replicates start from; apart from the runs, because it is a model of what truth looks like.

Published counts have been through the algorithm once. Where the noise of a leaf hides how a kind of records
is spread over the leaves of one parent, the algorithm spreads it over them by chance: leaves with many
records lose, those with few gain. A second run on these counts finds nothing left to lose, and errs less than
the first did. So each replicate starts from published counts in which records whose leaf the noise hides are
put back to where records are.

A tied release agrees with an earlier one in every leaf. Its records change places only with others of the
same tied row, and what the replicate of the earlier release starts from is then made of them.

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
from opendas.files.replicate_files import difference
from opendas.geography.spine import Spine
from opendas.measurement.plan import MeasurementPlan
from opendas.schema.histogram import Histogram


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StartingCounts:
    """Published counts, and how likely each of their records stays in its leaf."""

    published: Histogram  # public counts, one row per leaf in the spine's order
    stays: Floats  # float64 (e,). Of each entry; 1 everywhere where nothing may move.
    class_of_cell: Ints  # int64 (n,). Cells of one class are counted by the same bounds.
    records: Ints  # int64 (b, k). Published records of each leaf and class.
    parent: Ints  # int64 (b,)
    constraints: ConstraintTable

    @classmethod
    def of(cls, published: Histogram, plan: MeasurementPlan, constraints: ConstraintTable) -> Self:
        """Prepare to draw starting counts.

        - `published`: public counts, one row per leaf in the spine's order.
        - `constraints`: that the counts satisfy.

        Notes
        -----
        Of a cell with C published records below a parent, a leaf with the part f of the parent's records of
        that class would have m = f C if they were spread alike. With Poisson variance m around that, and the
        variance s of the noise in the leaf's answer for the cell, the weight of that answer is m / (m + s):
        so likely a record stays.
        """
        leaf, cell = published.row_of_entries(), published.cells
        bounds = constraints.bound_cells
        class_of_cell = np.unique(bounds.T, axis=0, return_inverse=True)[1].ravel().astype(np.int64)
        classes = int(class_of_cell.max(initial=0)) + 1
        kind = class_of_cell[cell]
        flat = np.bincount(leaf * classes + kind, published.counts, minlength=published.rows * classes)
        records = flat.astype(np.int64).reshape(published.rows, classes)
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
        leaf, cell = published.row_of_entries(), published.cells
        moving = rng.binomial(published.counts, 1.0 - self.stays)
        from_leaf, moved = np.repeat(leaf, moving), np.repeat(cell, moving)
        to_leaf = self._leaf_for(self.class_of_cell[moved], self.parent[from_leaf], rng)
        while True:
            found = Histogram.from_entries(
                np.concatenate([leaf, to_leaf]),
                np.concatenate([cell, moved]),
                np.concatenate(
                    [published.counts - _leaving(from_leaf, moved, published), np.ones(len(moved), np.int64)]
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
        leaf = counts.row_of_entries()
        holds = np.ones(counts.rows, dtype=bool)
        for bound, cells in enumerate(self.constraints.bound_cells):
            inside = cells[counts.cells]
            sums = np.bincount(leaf[inside], counts.counts[inside], minlength=counts.rows)
            holds &= (last.lower[:, bound] <= sums) & (sums <= last.upper[:, bound])
        return holds


def exchanged(
    published: Histogram, plan: MeasurementPlan, constraints: ConstraintTable, rng: np.random.Generator
) -> Histogram:
    """Return starting counts of a tied product: records of one held sum change leaves within their parent.

    - `published`: public counts, one row per leaf in the spine's order.
    - `constraints`: that the counts satisfy. Every sum that a leaf holds, those of the tie among them, stays.

    Notes
    -----
    A record stays as likely as in :meth:`StartingCounts.of`, with the records of its held sum for those of
    its class.
    """
    leaf, cell, counts = published.row_of_entries(), published.cells, published.counts
    last, noise = constraints.levels[-1], _leaf_noise(plan)
    if noise is None:
        return published
    held = [*constraints.bound_cells, *(one.query.row_of_cell for one in last.invariants)]
    held += [] if last.tied is None else [last.tied.query.row_of_cell]
    kind = np.zeros(len(cell), dtype=np.int64)
    for rows in held:
        kind = _numbered(kind, rows[cell])
    above = _parents(plan.spine)[leaf]
    here, family, together = _numbered(leaf, kind), _numbered(above, kind), _numbered(above, cell)
    expected = _sums(here, counts) / _sums(family, counts) * _sums(together, counts)
    moving = rng.binomial(counts, noise / (expected + noise))
    from_leaf, moved = np.repeat(leaf, moving), np.repeat(cell, moving)
    family = np.repeat(family, moving)
    by_chance = np.lexsort((rng.random(len(moved)), family))
    return Histogram.from_entries(
        np.concatenate([leaf, from_leaf[np.argsort(family, kind="stable")]]),
        np.concatenate([cell, moved[by_chance]]),
        np.concatenate([counts - moving, np.ones(len(moved), np.int64)]),
        shape=(published.rows, published.size),
    )


def with_sums(
    counts: Histogram, row_of_cell: Ints, before: Histogram, after: Histogram, rng: np.random.Generator
) -> Histogram:
    """Return counts whose records were moved, each within its row, until leaves have other sums of the rows.

    A leaf that has too many gives some by chance, to the next in order that has too few: where the sums of a
    range of leaves stay, so do its records.

    - `counts`: one row per leaf, in the order of geocodes.
    - `row_of_cell` (n,).
    - `before`, `after`: sums of the rows at each leaf: those of `counts`, and those wanted; each row has the
      same in all.
    """
    change = difference(after, before)
    key = change.row_of_entries() * np.int64(change.size) + change.cells
    losing, gaining = change.counts < 0, np.maximum(change.counts, 0)
    leaf = counts.row_of_entries()
    sought, short = key[losing], -change.counts[losing]
    own = leaf * np.int64(change.size) + row_of_cell[counts.cells]
    at = np.minimum(np.searchsorted(sought, own), max(0, len(sought) - 1))
    entries = np.flatnonzero(sought[at] == own) if len(sought) else np.zeros(0, np.int64)
    entry = np.repeat(entries, counts.counts[entries])
    entry = entry[np.lexsort((rng.random(len(entry)), own[entry]))]
    first = np.searchsorted(own[entry], sought)
    entry = entry[np.arange(len(entry)) - np.repeat(first, np.diff([*first, len(entry)])) < short[at[entry]]]
    entry = entry[np.lexsort((leaf[entry], row_of_cell[counts.cells[entry]]))]
    to = np.repeat(np.arange(len(key)), gaining)
    to = to[np.lexsort((key[to] // change.size, change.cells[to]))]
    if not np.array_equal(row_of_cell[counts.cells[entry]], change.cells[to]):
        raise ValueError("the rows have other sums in all")
    return Histogram.from_entries(
        np.concatenate([leaf, key[to] // change.size]),
        np.concatenate([counts.cells, counts.cells[entry]]),
        np.concatenate([counts.counts - np.bincount(entry, minlength=len(leaf)), np.ones(len(to), np.int64)]),
        shape=(counts.rows, counts.size),
    )


def _numbered(one: Ints, other: npt.NDArray[np.integer] | Bools) -> Ints:
    """Number the pairs of two columns, equal ones alike."""
    return np.unique(one * np.int64(int(other.max(initial=0)) + 1) + other, return_inverse=True)[1].astype(
        np.int64
    )


def _sums(group: Ints, counts: Ints) -> Floats:
    """Return the sum of the counts of each entry's group."""
    return np.bincount(group, counts)[group].astype(np.float64)


def _leaving(leaf: Ints, cell: npt.NDArray[np.int32], published: Histogram) -> Ints:
    """Return how many records leave each entry of the published counts, int64 (e,)."""
    keys = published.row_of_entries() * np.int64(published.size) + published.cells
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
