"""Least-squares estimates of a noisy tree, by the passes over the whole tree, with the laws of their errors.

Axes: ``g`` geounits, ``a`` areas, ``t`` sums of cells asked for, ``r`` kinds of these, ``n`` cells, ``U``
different covariances.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Codes, Floats, Ints
from opendas.errors import FormatError
from opendas.gls.areas import area_estimates
from opendas.gls.downward import Estimates, down_pass
from opendas.gls.model import TreeModel
from opendas.gls.upward import Sweep, up_sweep
from opendas.intervals.answers import Areas, Estimated
from opendas.intervals.error_laws import ErrorLaws
from opendas.intervals.laws import NoiseLaw
from opendas.intervals.noisy_tree import NoisyLevel, NoisyTree
from opendas.intervals.rows import Rows
from opendas.sampling.laws import DiscreteGaussian

MOST_APART = 7.0
"""Standard deviations by which measurements of one total may differ: chance is below 5e-11."""

_NUMBERS_AT_ONCE = 4_000_000


def tree_model(tree: NoisyTree) -> TreeModel:
    """Return the model of least squares of a noisy tree: its noise, masks and exact answers."""
    levels = [(level.queries, level.variances, level.which) for level in tree.levels]
    return TreeModel.of_noise(tree.product, tree.spine, levels, tree.constraints)


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """Answers to one request for a whole geolevel."""

    value: Floats
    variance: Floats
    kind: Ints
    which: Ints
    rows: Rows

    def take(self, geounits: Ints) -> tuple[Floats, Floats, Ints]:
        which = self.which[geounits]
        columns = self.rows.of_row
        return self.value[geounits], self.variance[which][:, columns], self.kind[which][:, columns]


@dataclass(frozen=True, slots=True, eq=False)
class Covaried:
    """Estimates of rows of cells, and how their errors go together with those of other rows."""

    value: Floats  # (g, t)
    covariance: Floats  # (c, t, k): with each of the other rows, of the different covariances
    known: Bools  # (c, t): whether the measurements say anything about a row
    which: Ints  # (g,): covariance of each geounit or area

    @classmethod
    def of(cls, found: Estimates, rows: Rows, others: Bools) -> Covaried:
        """Return estimates of rows, and their covariances with `others`, bool (k, n)."""
        _, first, which = np.unique(found.covariance.which, return_index=True, return_inverse=True)
        apart, members = others.astype(np.float64), rows.members.astype(np.float64)
        step = max(1, _NUMBERS_AT_ONCE // max(1, apart.size))
        parts = [np.zeros((0, len(members), len(others)))]
        for start in range(0, len(first), step):
            one = found.covariance.take(np.repeat(first[start : start + step], len(others)))
            pulled = one.apply(np.tile(apart, (len(one) // max(1, len(others)), 1)))
            parts.append(np.swapaxes((pulled @ members.T).reshape(-1, len(others), len(members)), 1, 2))
        variances, kinds = rows.variances(found)
        known = np.isfinite(variances)[kinds[first]][:, rows.of_row]
        return cls(rows.values(found.mean), np.concatenate(parts), known, which.ravel().astype(np.int64))

    @classmethod
    def joined(cls, parts: Sequence[Covaried]) -> Covaried:
        """Return several runs one after the other."""
        shifts = np.cumsum([0, *(len(part.covariance) for part in parts)])
        return cls(
            np.concatenate([part.value for part in parts]),
            np.concatenate([part.covariance for part in parts]),
            np.concatenate([part.known for part in parts]),
            np.concatenate([part.which + shift for part, shift in zip(parts, shifts, strict=False)]),
        )

    def take(self, chosen: Ints) -> Covaried:
        """Return some geounits or areas."""
        used, which = np.unique(self.which[chosen], return_inverse=True)
        return Covaried(self.value[chosen], self.covariance[used], self.known[used], which.ravel())


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredTotals:
    """What the own measurements of geounits say about their totals.

    Notes
    -----
    Canonne, Kamath and Steinke (2020), Corollary 17: a discrete Gaussian is sub-Gaussian with its own
    ``sigma2``, however narrow. So is a sum of them, with the sum of theirs: it is further than ``t`` of these
    standard deviations from its mean with a probability of at most ``2 exp(-t**2 / 2)``.
    """

    value: Floats  # (g,): weighted means
    # (g,): from the parameters of the noise: of a normal law whose tails bound those of the mean's error.
    variance: Floats

    @classmethod
    def none(cls, geounits: int) -> MeasuredTotals:
        """Return totals of which nothing is known yet."""
        return cls(np.zeros(geounits), np.full(geounits, np.inf))

    @classmethod
    def exact(cls, totals: Ints) -> MeasuredTotals:
        """Return totals, int64 (g,), that are known."""
        return cls(totals.astype(np.float64), np.zeros(len(totals)))

    def summed(self, group: npt.NDArray[np.integer], size: int) -> MeasuredTotals:
        """Return the totals of groups, of which each geounit is in one; unknown where one of its own is."""
        value = np.bincount(group, self.value, size).astype(np.float64)
        return MeasuredTotals(value, np.bincount(group, self.variance, size).astype(np.float64))

    def add(self, noisy: NoisyLevel, first: int, answers: Sequence[Ints]) -> None:
        """Note some geounits: the rows of every query group add up to the total."""
        here = slice(first, first + len(answers[0]) if answers else first)
        weighted = np.zeros(here.stop - first)
        weight = np.zeros(here.stop - first)
        for column, (query, values) in enumerate(zip(noisy.queries, answers, strict=True)):
            draws = query.size if query.draws is None else int(query.draws.sum())
            own = np.array([_information(laws[column]) for laws in noisy.laws])[noisy.which[here]] / draws
            weighted += own * values.sum(axis=1)
            weight += own
        with np.errstate(divide="ignore", invalid="ignore"):
            self.value[here] = np.where(weight > 0, weighted / weight, 0.0)
            self.variance[here] = 1.0 / weight


def _information(law: NoiseLaw | None) -> float:
    """Return one over the parameter of Gaussian noise; 0 for noise with heavy tails."""
    return float(1 / law.sigma2) if isinstance(law, DiscreteGaussian) else 0.0


@np.errstate(divide="ignore", invalid="ignore")  # where nothing was measured, the variance is infinite
def check_totals(tree: NoisyTree, own: Sequence[MeasuredTotals]) -> None:
    """Compare what was measured of each geounit with what was measured below it, and with exact totals.

    Raises `FormatError` if they differ about the total by more than :data:`MOST_APART` standard deviations.
    """
    below: MeasuredTotals | None = None
    for number in range(len(own) - 1, -1, -1):
        mine, held, codes = own[number], tree.constraints.levels[number], tree.spine.levels[number].geocodes
        refuse = partial(_refuse, f"{tree.product.name}: what was measured of {tree.spine.names[number]}")
        if below is not None:
            sums = below.summed(tree.spine.levels[number + 1].parent, len(codes))
            refuse(codes, mine, sums, f"what was measured below it (level {tree.spine.names[number + 1]})")
            one, two = 1.0 / mine.variance, 1.0 / sums.variance
            mean = np.where(one + two > 0, (one * mine.value + two * sums.value) / (one + two), 0.0)
            mine = MeasuredTotals(mean, 1.0 / (one + two))
        for exact in held.invariants:
            if exact.query.name == "total":
                refuse(codes, mine, MeasuredTotals.exact(exact.answers[:, 0]), "its exact total")
        if held.joint is not None:
            sums = mine.summed(held.joint.group, len(held.joint.totals))
            first = codes[np.unique(held.joint.group, return_index=True)[1]]
            exact_sums = MeasuredTotals.exact(held.joint.totals)
            refuse(first, sums, exact_sums, "the exact total of it and the other parts of its area together")
        below = mine


def _refuse(where: str, codes: Codes, one: MeasuredTotals, two: MeasuredTotals, what: str) -> None:
    apart = np.nan_to_num(np.abs(one.value - two.value) / np.sqrt(one.variance + two.variance))
    worst = int(apart.argmax())
    if apart[worst] > MOST_APART:
        raise FormatError(
            f"{where} {codes[worst].decode()} and {what} differ about its total by more than "
            f"{int(apart[worst]):,} standard deviations, more than chance allows. Check that all files are "
            "of one census and one vintage, and that the hierarchy is the one that was measured."
        )


class TreeEstimates:
    """Least-squares estimates of a noisy tree; an :class:`opendas.intervals.answers.EstimateSource`.

    Notes
    -----
    Every noisy answer is read once on the way up, those of the leaves once more on the way down. Estimates of
    all geounits above the leaves are kept; of the leaves, only the sums asked for last.
    """

    def __init__(self, tree: NoisyTree) -> None:
        self.tree = tree
        self._laws = ErrorLaws(tree)
        self._last: tuple[bytes, _Level] | None = None

    @cached_property
    def model(self) -> TreeModel:
        """Noise, masks and exact answers."""
        return tree_model(self.tree)

    @cached_property
    def sweep(self) -> Sweep:
        """What the pass up the tree found."""
        read: list[MeasuredTotals] = [MeasuredTotals.none(len(level)) for level in self.tree.levels]

        def full(level: int, first: int, geounits: int) -> list[Ints]:
            answers = self.tree.full(level, first, geounits)
            read[level].add(self.tree.levels[level], first, answers)
            return answers

        found = up_sweep(self.model, full)
        check_totals(self.tree, read)
        return found

    def geounits(self, level: int, geounits: Ints, members: Bools) -> Estimated:
        """Return sums over `members`, bool (t, n), in geounits of a geolevel of the spine."""
        found = self._whole_level(level, members)
        value, variance, kind = found.take(geounits)
        return Estimated(value, variance, self._laws.kinds, kind)

    def areas(self, areas: Areas, members: Bools) -> Estimated:
        """Return weighted sums over `members` in sets of leaves."""
        rows = Rows.build(self.model.domain, members)
        found = area_estimates(self.sweep, areas.which, areas.leaf, areas.weight, areas.number)
        kinds, which = rows.variances(found)
        variance = kinds[which]
        roots = next(self.estimates(0)).covariance
        kind = self._laws.of_areas(self.sweep, roots, areas, rows, variance)
        columns = rows.of_row
        return Estimated(rows.values(found.mean), variance[:, columns], self._laws.kinds, kind[:, columns])

    def covaried_geounits(self, level: int, geounits: Ints, members: Bools, others: Bools) -> Covaried:
        """Return sums over `members` in geounits, and their covariances with those over `others`."""
        rows = Rows.build(self.model.domain, members)
        parts = [Covaried.of(run, rows, others) for run in self.estimates(level)]
        return Covaried.joined(parts).take(geounits)

    def covaried_areas(self, areas: Areas, members: Bools, others: Bools) -> Covaried:
        """Return the same for weighted sums over sets of leaves."""
        rows = Rows.build(self.model.domain, members)
        found = area_estimates(self.sweep, areas.which, areas.leaf, areas.weight, areas.number)
        return Covaried.of(found, rows, others)

    @cached_property
    def _inner(self) -> tuple[Estimates, ...]:
        """Estimates of each geolevel above the leaves."""
        return tuple(itertools.islice(down_pass(self.sweep), len(self.model.levels) - 1))

    def estimates(self, level: int) -> Iterator[Estimates]:
        """Yield the estimates of a geolevel: above the leaves in one piece, the leaves in runs."""
        if level < len(self.model.levels) - 1:
            return iter((self._inner[level],))
        return (found for found in down_pass(self.sweep) if found.level == level)

    def _whole_level(self, level: int, members: Bools) -> _Level:
        key = bytes([level]) + np.packbits(members).tobytes() + bytes(str(members.shape), "ascii")
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        rows = Rows.build(self.model.domain, members)
        values, variances, kinds, which = [], [], [], []
        shift = 0
        for run in self.estimates(level):
            own, covariance = self._laws.classes(level, run.first, run.covariance.which)
            variance, kind = rows.variances(run)
            each = variance[kind[np.unique(own, return_index=True)[1]]]
            kinds.append(self._laws.of(self.sweep, run, rows, own, covariance, each))
            variances.append(each)
            values.append(rows.values(run.mean))
            which.append(own + shift)
            shift += len(each)
        found = _Level(
            np.concatenate(values),
            np.concatenate(variances),
            np.concatenate(kinds),
            np.concatenate(which),
            rows,
        )
        self._last = (key, found)
        return found
