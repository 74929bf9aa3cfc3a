"""Estimates from two files of measurements of one truth, each with independent noise.

Two products measured the same people on two hierarchies with the same blocks. Least squares of each file
gives estimates; in every area both know the counts of some cells, the *common rows*. With independent errors,
the best linear combination is least squares once more, on these rows:

    z = z1 + Cov(z1, q1) (Var q1 + Var q2)^-1 (q2 - q1),
    Var z = Var z1 - Cov(z1, q1) (Var q1 + Var q2)^-1 Cov(q1, z1),

where ``z1`` are the counts asked for and ``q1``, ``q2`` the two estimates of the common rows. So estimates of
age by sex from one file improve by what the other one knows of minors and adults.

Axes: ``a`` areas, ``t`` sums of cells asked for, ``k`` common rows, ``n`` cells of the first product, ``c``
of the other one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from opendas.arrays import Bools, Floats, Ints
from opendas.errors import FormatError
from opendas.intervals.answers import NO_NOISE, Areas, Estimated, match_geounits
from opendas.intervals.laws import Draws, NoiseSum
from opendas.intervals.noisy_tree import NoisyTree
from opendas.intervals.tree_estimates import MOST_APART, Covaried, TreeEstimates

MOST_ROWS = 300
"""With more common rows, estimates are means row by row: a matrix of that size for every area is too much."""

_LEAST_EIGENVALUE = 1e-10
"""Directions with less of the largest variance are exact in both files: nothing is learned from them."""

_ROWS_AT_ONCE = 4_000_000

_CHANCE = 1e-9
"""Totals this improbable contradict each other: far above what the law of a sum is rounded by."""


@dataclass(frozen=True, eq=False)
class OtherMeasurements:
    """Measurements of another product, and what both count."""

    estimates: TreeEstimates
    common: Ints  # (n,): common row in which the first product counts each of its cells; -1 for none
    own: Ints  # (c,): common row of each cell of this product; -1 for none
    possible: Bools  # (n,): cells of the first product in which a person is counted

    @property
    def tree(self) -> NoisyTree:
        """The measurements."""
        return self.estimates.tree

    @property
    def rows(self) -> Bools:
        """The common rows over the cells of the first product, bool (k, n)."""
        return _members(self.common)

    def rows_of(self, members: Bools) -> tuple[Bools, Bools]:
        """Return which sums over cells of the first product are sums of common rows, and of which.

        - Returns `whole` (t,).
        - Returns `inside` (t, k).
        """
        rows = self.rows & self.possible
        asked = members & self.possible
        sizes = rows.sum(axis=1)
        inside = asked.astype(np.int64) @ rows.T.astype(np.int64) == sizes
        return (asked.sum(axis=1) == (inside * sizes).sum(axis=1)) & asked.any(axis=1), inside


def common_rows(first: Ints, other: Ints, cells: int, others: int) -> tuple[Ints, Ints]:
    """Find the finest sums of cells that two products both count.

    - `first`, `other` (p,): cell of the one and of the other product in which a person is counted, for every
      possible person.
    - `cells`, `others`: numbers of cells.
    - Returns `common` (cells,): row of each cell; -1 where no person is counted.
    - Returns `own` (others,).
    """
    pairs = np.unique(first * others + other)
    left, right = np.divmod(pairs, others)
    size = cells + others
    graph = sparse.coo_array((np.ones(len(pairs)), (left, cells + right)), shape=(size, size))
    _, label = sparse.csgraph.connected_components(graph, directed=False)
    row = np.full(size, -1, dtype=np.int64)
    used = np.concatenate([np.unique(left), cells + np.unique(right)])
    row[used] = np.unique(label[used], return_inverse=True)[1]
    return row[:cells], row[cells:]


def _members(row: Ints) -> Bools:
    return np.asarray(row[None, :] == np.arange(int(row.max(initial=-1)) + 1)[:, None])


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """Some areas, as one of the hierarchies knows them."""

    chosen: Ints  # (a,): numbers of the areas
    level: int  # geolevel of the spine; -1 where they are none of its geounits
    geounits: Ints  # (a,)
    areas: Areas | None = None

    def estimates(self, tree: TreeEstimates, members: Bools) -> Estimated:
        """Return sums over cells."""
        if self.areas is not None:
            return tree.areas(self.areas, members)
        return tree.geounits(self.level, self.geounits, members)

    def covaried(self, tree: TreeEstimates, members: Bools, others: Bools) -> Covaried:
        """Return sums over cells and their covariances with others."""
        if self.areas is not None:
            return tree.covaried_areas(self.areas, members, others)
        return tree.covaried_geounits(self.level, self.geounits, members, others)


def _places(tree: NoisyTree, unit: Ints, areas: int) -> list[_Place]:
    """Return areas that do not overlap, given as their numbers by leaf of the frame: geounits if they are."""
    level, geounit = match_geounits(tree.spine, unit, areas)
    leaf = np.flatnonzero(unit >= 0)
    every = Areas(areas, unit[leaf], tree.spine.place_of_leaf[leaf], np.ones(len(leaf)))
    found = []
    for number in np.unique(level).tolist():
        chosen = np.flatnonzero(level == number)
        some = None if number >= 0 else every.take(chosen)
        found.append(_Place(chosen, number, geounit[chosen], some))
    return found


class CombinedEstimates:
    """Estimates from a tree and another one of the same truth; an ``EstimateSource``."""

    def __init__(self, first: TreeEstimates, other: OtherMeasurements) -> None:
        self._first = first
        self._other = other
        self._compare()

    def geounits(self, level: int, geounits: Ints, members: Bools) -> Estimated:
        """Return sums over `members`, bool (t, n), in geounits of a geolevel of the first spine."""
        spine = self._first.tree.spine
        starts = spine.leaf_starts(level)
        place = np.full(len(starts) - 1, -1, dtype=np.int64)
        place[geounits] = np.arange(len(geounits))
        unit = np.empty(len(spine.leaf), dtype=np.int64)
        unit[spine.leaf_order] = np.repeat(place, np.diff(starts))
        mine = _Place(np.arange(len(geounits)), level, geounits)
        return self._together(mine, _places(self._other.tree, unit, len(geounits)), members)

    def areas(self, areas: Areas, members: Bools) -> Estimated:
        """Return weighted sums over `members` in sets of leaves."""
        leaf = self._first.tree.spine.leaf_order[areas.leaf]
        there = dataclasses.replace(areas, leaf=self._other.tree.spine.place_of_leaf[leaf])
        every, none = np.arange(areas.number), np.zeros(0, dtype=np.int64)
        mine, other = (_Place(every, -1, none, of) for of in (areas, there))
        return self._together(mine, [other], members)

    def _together(self, mine: _Place, others: Sequence[_Place], members: Bools) -> Estimated:
        """Combine both files: rows of the common ones as means, and then all by least squares."""
        whole, inside = self._other.rows_of(members)
        first = mine.estimates(self._first, members)
        found = _merged([(mine.chosen, first)], *first.value.shape)
        normal = first.kind < 0
        columns = np.flatnonzero(whole)
        if len(columns):
            told = inside[whole][:, self._other.own] & (self._other.own >= 0)
            parts = [(place.chosen, place.estimates(self._other.estimates, told)) for place in others]
            known = _merged(parts, len(first.value), len(columns))
            mean = combined([_columns(first, whole), known])
            found.value[:, columns], found.variance[:, columns] = mean.value, mean.variance
            found.kind[:, columns] = np.where(mean.kind >= 0, mean.kind + len(found.kinds), -1)
            found = dataclasses.replace(found, kinds=found.kinds + mean.kinds)
            normal[:, columns] &= known.kind < 0
        if len(self._other.rows) <= MOST_ROWS:
            self._improve(found, first.variance, normal, mine, others, members)
        return found

    def _improve(
        self,
        found: Estimated,
        before: Floats,
        normal: Bools,
        mine: _Place,
        others: Sequence[_Place],
        members: Bools,
    ) -> None:
        """Put in the answers of least squares on the common rows, where both errors are normal."""
        rows = self._other.rows
        one = mine.covaried(self._first, np.vstack([members, rows]), rows)
        t = len(members)
        for place in others:
            tell = _members(self._other.own)
            two = place.covaried(self._other.estimates, tell, tell)
            here = one.take(place.chosen)
            apart = two.value - here.value[:, t:]
            pairs, which = np.unique(np.column_stack([here.which, two.which]), axis=0, return_inverse=True)
            step = max(1, _ROWS_AT_ONCE // max(1, len(rows) * (t + len(rows))))
            for start in range(0, len(pairs), step):
                left, right = pairs[start : start + step].T
                gain = _gain(here, left, two, right, t)
                less = np.einsum("ptk,ptk->pt", gain, here.covariance[left, :t])
                some = np.flatnonzero((which.ravel() >= start) & (which.ravel() < start + step))
                pair = which.ravel()[some] - start
                areas = place.chosen[some]
                value = here.value[some, :t] + np.einsum("atk,ak->at", gain[pair], apart[some])
                variance = before[areas] - less[pair]
                better = normal[areas] & np.isfinite(variance) & (variance > NO_NOISE)
                better &= found.variance[areas] > NO_NOISE
                found.value[areas] = np.where(better, value, found.value[areas])
                found.variance[areas] = np.where(better, variance, found.variance[areas])

    def _compare(self) -> None:
        """Compare leaves, and totals of counties: of two censuses, or two vintages, they differ."""
        first, other = self._first.tree, self._other.tree
        frame = first.frame
        unlike = np.setxor1d(frame.geocodes, other.frame.geocodes)
        if len(unlike):
            more = f" (one of {len(unlike):,} such blocks)" if len(unlike) > 1 else ""
            raise FormatError(
                f"{first.product.name} and {other.product.name} cover different blocks: "
                f"{unlike[0].decode()}{more} is in only one of them. Give files of the same blocks."
            )
        codes, unit = np.unique(frame.codes("county"), return_inverse=True)
        every = (self._other.own >= 0)[None]
        same = (self._other.common >= 0)[None]
        one, two = (
            _merged(
                [(p.chosen, p.estimates(tree, rows)) for p in _places(tree.tree, unit.ravel(), len(codes))],
                len(codes),
                1,
            )
            for tree, rows in ((self._first, same), (self._other.estimates, every))
        )
        apart = beyond_chance(one, two)[:, 0]
        worst = int(apart.argmax())
        if apart[worst]:
            raise FormatError(
                f"{first.product.name} and {other.product.name} differ about the total of county "
                f"{codes[worst].decode()} by {apart[worst]:.0f} standard deviations, more than chance "
                "allows. Give files of the same census and the same vintage."
            )


def beyond_chance(one: Estimated, two: Estimated) -> Floats:
    """Return the standard deviations by which two estimates of the same counts differ, float64 (a, t).

    Zero where noise alone brings that often enough. Many of them may be chance where a few draws of narrow
    noise, or of Laplace noise, are most of an error: then its own law is asked.
    """
    with np.errstate(invalid="ignore"):
        spread = np.sqrt(np.maximum(one.variance + two.variance, NO_NOISE))
        apart = np.nan_to_num(np.abs(one.value - two.value) / spread)
        share = np.nan_to_num(np.stack([one.variance, two.variance]) / spread**2)
    apart[apart <= MOST_APART] = 0.0
    kinds = np.stack([one.kind, two.kind])
    for area, column in np.argwhere((apart > 0) & (kinds >= 0).any(axis=0)).tolist():
        law = _law((one, two), kinds[:, area, column], share[:, area, column])
        if law.coverage(float(apart[area, column]) * (1 - 1e-6)) < 1 - _CHANCE:
            apart[area, column] = 0.0
    return np.asarray(apart)


def _gain(one: Covaried, left: Ints, two: Covaried, right: Ints, t: int) -> Floats:
    """Return ``Cov(z1, q1) (Var q1 + Var q2)^-1`` for pairs of covariances, float64 (p, t, k).

    Common rows of which one file knows nothing are left out, and directions in which both are exact.
    """
    cross, own = one.covariance[left, :t], one.covariance[left, t:]
    total = own + two.covariance[right]
    known = one.known[left, t:] & two.known[right]
    total = np.where(known[:, :, None] & known[:, None, :], total, 0.0)
    value, vector = np.linalg.eigh(0.5 * (total + np.swapaxes(total, 1, 2)))
    least = _LEAST_EIGENVALUE * np.maximum(value[:, -1:], NO_NOISE)
    inverse = np.where(value > least, 1.0 / np.maximum(value, least), 0.0)
    pulled = np.where(known[:, None, :], cross, 0.0) @ vector
    return np.asarray((pulled * inverse[:, None, :]) @ np.swapaxes(vector, 1, 2) * known[:, None, :])


def combined(parts: Sequence[Estimated]) -> Estimated:
    """Return the means of independent estimates of the same counts with the least variance."""
    variance = np.stack([part.variance for part in parts])
    exact = variance <= NO_NOISE
    # Where one is exact it has all the weight, and where nothing is known none.
    weight = np.where(exact.any(axis=0), exact, 1.0 / np.maximum(variance, NO_NOISE))
    value = np.stack([np.where(w > 0, part.value, 0.0) for w, part in zip(weight, parts, strict=True)])
    total = weight.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = (weight * value).sum(axis=0) / total
        spread = np.where(exact.any(axis=0), 0.0, 1.0 / total)
        share = np.nan_to_num(weight / total)
    laws: dict[NoiseSum, int] = {}
    kind = np.full(mean.shape, -1, dtype=np.int64)
    numbers = np.stack([part.kind for part in parts])
    unusual = ((numbers >= 0) & (share > 0)).any(axis=0) & (spread > 0)
    for area, column in np.argwhere(unusual).tolist():
        law = _law(parts, numbers[:, area, column], np.round(share[:, area, column], 12))
        if not law.is_normal:
            kind[area, column] = laws.setdefault(law, len(laws))
    return Estimated(mean, spread, tuple(laws), kind)


def _law(parts: Sequence[Estimated], numbers: Ints, share: Floats) -> NoiseSum:
    """Return the law of a mean or a difference, with variance 1, from the standardised laws of its parts."""
    draws: list[Draws] = []
    rest = 0.0
    for part, number, of_variance in zip(parts, numbers.tolist(), share.tolist(), strict=True):
        if number < 0:
            rest += of_variance
            continue
        law = part.kinds[number]
        rest += of_variance * law.rest
        draws += [Draws(d.law, d.weight * of_variance**0.5, d.number) for d in law.draws if of_variance > 0]
    return NoiseSum(tuple(draws), rest)


def _columns(found: Estimated, chosen: Bools) -> Estimated:
    return Estimated(found.value[:, chosen], found.variance[:, chosen], found.kinds, found.kind[:, chosen])


def _merged(parts: Sequence[tuple[Ints, Estimated]], areas: int, columns: int) -> Estimated:
    """Put estimates of several sets of areas in the areas' order, in arrays of their own."""
    value, variance = np.full((areas, columns), np.nan), np.full((areas, columns), np.inf)
    kind = np.full((areas, columns), -1, dtype=np.int64)
    kinds: list[NoiseSum] = []
    for chosen, found in parts:
        value[chosen], variance[chosen] = found.value, found.variance
        kind[chosen] = np.where(found.kind >= 0, found.kind + len(kinds), -1)
        kinds += found.kinds
    return Estimated(value, variance, tuple(kinds), kind)
