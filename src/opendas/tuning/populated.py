"""Expected errors by least squares over the cells that have records, and their derivatives.

Counts are not negative, which makes cells that nobody has harmless: a release errs as if it knew which they
are. So each geounit gets its own populated cells alone, and least squares over the whole tree (or from the
top down) is a recursion of small matrices. Its figures are guesses that guide a search; what a plan does is
found by simulation.

Axes: ``s`` populated cells of a geounit, ``r`` rows of query groups that count one of them, ``q`` query
groups, ``l`` geolevels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np

from opendas.arrays import Floats, Ints
from opendas.geography.spine import Spine
from opendas.runs.simulated.trial import far_apart
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product

LEAVES, CELLS = 300, 400
"""Most leaves that are looked at, and most cells that they populate together."""

EXACT = 1e4
"""Precision of what is invariant."""

_LEAST = 1e-6  # precision of a cell that nothing measures: a standard error of a thousand
_MEAN = float(np.sqrt(2 / np.pi))  # mean absolute value of a normal law, in standard errors


@dataclass(frozen=True, slots=True, eq=False)
class _Geounit:
    level: int
    parent: int  # number of the parent; -1 at the top
    rows: Floats  # (r, s): which populated cells each row counts, zeros and ones
    query: Ints  # (r,): the query group of each row
    fixed: Floats  # (r,): precision of the row by invariants
    place: tuple[Ints, ...]  # of the cells, among those of the parent: an index of (s, s) entries


@dataclass(slots=True, eq=False)
class _Found:
    """What the recursion finds for one geounit, float64 (s, s)."""

    own: Floats  # covariance by its own answers and, over the whole tree, those below
    final: Floats  # covariance by all answers
    below: Floats | None = None  # covariance by the sums of its children; None for a leaf
    precise: Floats | None = None  # inverse of `below`
    gain: Floats | None = None  # how far knowing the geounit better helps its children


@dataclass(frozen=True, slots=True, eq=False)
class Populated:
    """A part of a tree, its populated cells, and query groups that are measured or judged there."""

    geounits: tuple[_Geounit, ...]  # top first
    number: Ints  # (l,): how many there are at each geolevel
    # (l,): children of a geounit of the level above in the whole tree, for each one in the part; at least 1.
    ratio: Floats
    queries: tuple[str, ...]
    whole_tree: bool

    @classmethod
    def of(
        cls,
        counts: Histogram,
        spine: Spine,
        product: Product,
        queries: Sequence[str],
        *,
        whole_tree: bool,
        part_of: Spine | None = None,
    ) -> Self:
        """Look at a part of a spine.

        - `counts`: public, a row for each leaf in the order of the frame.
        - `part_of`: the whole spine, where this is the spine of a part of its leaves.
        - `whole_tree`: by least squares over the whole tree, else from the top down.
        """
        groups = product.workload.groups(queries)
        sizes = [len(level) for level in (part_of or spine).levels]
        exact = product.invariant_levels(spine)
        counts = counts.take(spine.leaf_order)
        leaves = _chosen(counts, spine.leaf_starts(max(0, len(spine.levels) - 3)))
        geounits: list[_Geounit] = []
        numbers, ratios = [1], []
        above: list[Ints] = []
        units_above = np.zeros(1, np.int64)
        for number, level in enumerate(spine.levels):
            unit_of_leaf = np.searchsorted(spine.leaf_starts(number), leaves, side="right") - 1
            units, first_leaf = np.unique(unit_of_leaf, return_index=True)
            table = counts.take(leaves).aggregate(np.append(first_leaf, len(leaves)))
            held = [table.cells[i:j].astype(np.int64) for i, j in pairwise(table.indptr.tolist())]
            fixed = np.array([EXACT if exact.get(group.name, -1) >= number else 0.0 for group in groups])
            first = len(geounits) - len(above)
            parents = np.searchsorted(units_above, level.parent[units])
            for cells, parent in zip(held, parents.tolist(), strict=True):
                of_cell = [group.row_of_cell[cells] for group in groups]
                rows = [np.equal.outer(np.unique(row), row).astype(np.float64) for row in of_cell]
                query = np.repeat(np.arange(len(groups)), [len(each) for each in rows])
                place = np.searchsorted(above[parent], cells) if number else np.arange(len(cells))
                geounits.append(
                    _Geounit(
                        number,
                        first + parent if number else -1,
                        np.concatenate(rows),
                        query,
                        fixed[query],
                        np.ix_(place, place),
                    )
                )
            whole = sizes[number] / sizes[number - 1] if number else 1.0
            ratios.append(max(1.0, whole * numbers[-1] / len(held)))
            numbers.append(len(held))
            above, units_above = held, units
        return cls(tuple(geounits), np.array(numbers[1:]), np.array(ratios), tuple(queries), whole_tree)

    def errors(self, precisions: Floats) -> Floats:
        """Return mean absolute errors, float64 (l, q): summed over rows, averaged over geounits.

        `precisions` (l, q): inverse variances of the noise.
        """
        return self._errors(self._solve(precisions))[0]

    def slopes(
        self, precisions: Floats, weigh: Callable[[Floats], tuple[float, Floats]]
    ) -> tuple[float, Floats]:
        """Return a function of the errors, and its derivatives by the precisions, float64 (l, q).

        `weigh`: the function's value and its derivatives by the errors (l, q), given the errors.
        """
        found = self._solve(precisions)
        errors, deviations = self._errors(found)
        value, by_error = weigh(errors)
        by_final: list[Floats] = []
        by_own: list[Floats] = []
        by_below: list[Floats] = []
        for g, sd in zip(self.geounits, deviations, strict=True):
            by_row = by_error[g.level, g.query] * _MEAN / (2 * self.number[g.level] * np.maximum(sd, 1e-9))
            by_final.append(g.rows.T @ (by_row[:, None] * g.rows))
        by_gain = [np.zeros_like(one.own) for one in found]
        by_precise = [np.zeros_like(one.own) for one in found]
        for u in range(len(found) - 1, -1, -1):  # back through the way down
            g, one = self.geounits[u], found[u]
            if one.precise is not None:
                by_final[u] -= one.precise @ by_gain[u] @ one.precise
                half = by_gain[u] @ one.precise @ one.final
                by_precise[u] += by_gain[u] - half - half.T
            if g.parent < 0:
                by_own.append(by_final[u])
                continue
            gain = found[g.parent].gain
            assert gain is not None
            half = by_final[u] @ one.own @ gain[g.place]
            by_own.append(by_final[u] - half - half.T)
            by_gain[g.parent][g.place] -= one.own @ by_final[u] @ one.own
        by_own.reverse()
        slopes = np.zeros_like(precisions)
        for u, (g, one) in enumerate(zip(self.geounits, found, strict=True)):  # back through the way up
            if g.parent >= 0:
                by_own[u] = by_own[u] + self.ratio[g.level] * by_below[g.parent][g.place]
            by_information = -one.own @ by_own[u] @ one.own
            if one.precise is not None:
                inner = by_precise[u] + by_information if self.whole_tree else by_precise[u]
                by_below.append(-one.precise @ inner @ one.precise)
            else:
                by_below.append(by_information)  # of a leaf: nothing stands below it
            answers = ((g.rows @ by_information) * g.rows).sum(axis=1)
            slopes[g.level] += np.bincount(g.query, answers, minlength=len(self.queries))
        return value, slopes

    def _solve(self, precisions: Floats) -> list[_Found]:
        below: list[Floats | None] = [None] * len(self.geounits)
        found: list[_Found] = []
        for u in range(len(self.geounits) - 1, -1, -1):
            g, under = self.geounits[u], below[u]
            weight = precisions[g.level, g.query] + g.fixed
            information = g.rows.T @ (weight[:, None] * g.rows) + _LEAST * np.eye(g.rows.shape[1])
            precise = None if under is None else _inverse(under)
            if precise is not None and self.whole_tree:
                information += precise
            own = _inverse(information)
            found.append(_Found(own, own, under, precise))
            if g.parent >= 0:
                sums = below[g.parent]
                if sums is None:
                    size = self.geounits[g.parent].rows.shape[1]
                    sums = below[g.parent] = np.zeros((size, size))
                sums[g.place] += self.ratio[g.level] * own
        found.reverse()
        for g, one in zip(self.geounits, found, strict=True):
            gain = found[g.parent].gain if g.parent >= 0 else None
            if gain is not None:
                one.final = one.own - one.own @ gain[g.place] @ one.own
            if one.precise is not None:
                one.gain = one.precise - one.precise @ one.final @ one.precise
        return found

    def _errors(self, found: Sequence[_Found]) -> tuple[Floats, list[Floats]]:
        errors = np.zeros((len(self.number), len(self.queries)))
        deviations = []
        for g, one in zip(self.geounits, found, strict=True):
            sd = np.sqrt(np.maximum(((g.rows @ one.final) * g.rows).sum(axis=1), 0.0))
            errors[g.level] += np.bincount(g.query, _MEAN * sd, minlength=len(self.queries))
            deviations.append(sd)
        return errors / self.number[:, None], deviations


def _inverse(matrix: Floats) -> Floats:
    return np.asarray(np.linalg.inv(matrix), dtype=np.float64)


def _chosen(counts: Histogram, starts: Ints) -> Ints:
    """Return leaves that stand for all, ascending: whole geounits, looked at far apart from each other.

    `starts`: below which leaves of each geounit lie. Of the last leaves only those come in that bring a cell.
    """
    chosen: list[Ints] = []
    seen: set[int] = set()
    for unit in far_apart(len(starts) - 1).tolist():
        leaves = np.arange(starts[unit], starts[unit + 1])
        cells = seen.union(counts.cells[counts.indptr[leaves[0]] : counts.indptr[leaves[-1] + 1]].tolist())
        number = sum(map(len, chosen))
        few = number + len(leaves) <= LEAVES and len(cells) <= CELLS
        if few and (len(cells) > len(seen) or number + len(leaves) <= LEAVES // 2):
            chosen.append(leaves)
            seen = cells
    if chosen:
        return np.sort(np.concatenate(chosen))
    found = 1  # the geounits are too large: leaves as far as they have few cells
    while (
        found < min(LEAVES, counts.rows) and len(np.unique(counts.cells[: counts.indptr[found + 1]])) <= CELLS
    ):
        found += 1
    return np.arange(found)
