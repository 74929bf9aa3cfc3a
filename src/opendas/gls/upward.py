"""Up the tree: what each subtree says about its own total.

With ``w = 1 / variance``, a geounit's own measurements say ``P = sum_q w_q Q_q'Q_q`` and
``b = sum_q w_q Q_q' m_q``. A subtree says

    V_c = (P*_c)^-1,  S = sum_c V_c,  y = sum_c V_c b*_c,  P* = P + S^-1,  b* = b + S^-1 y,

with ``P* = P`` and ``b* = b`` at the leaves, all inverses on the allowed cells, zero elsewhere; what is
exact or unknown is carried beside (:mod:`opendas.gls.subtree_estimate`). Leaves of one parent with the same
mask and noise have the same ``V``, so their answers are summed, as integers, before anything else is done
with them; equal matrices are inverted once.

Axes: ``g`` geounits, ``q`` query groups, ``n`` cells; see also :mod:`opendas.gls.cells`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opendas.arrays import Bools, Floats, Ints
from opendas.arrays.blas import one_blas_thread
from opendas.errors import EstimationError
from opendas.gls.cells import Domain
from opendas.gls.information import Extended
from opendas.gls.kernels import add_groups, add_integers, add_multiples, spread
from opendas.gls.model import ModelLevel, Range, TreeModel
from opendas.gls.operators import Operators
from opendas.gls.subtree_estimate import SubtreeEstimates, pooled, subtree_estimates

Full = Callable[[int, int, int], list[Ints]]
"""All answers, int64 (geounits, m_q), of each measured query group: of (level, first, geounits)."""

Sums = Callable[[int, int, Ints], list[Ints]]
"""Sums, int64 (G, m_q), of the answers of consecutive leaves over their groups: of (level, first, group).

Of answers that touch no cell that the group may use anything may be given: they are ignored.
"""

CHUNK = 250_000
"""Numbers that are worked on at once: few, so that what is made of them stays in the cache."""


@dataclass(frozen=True, eq=False)
class UpwardMessages:
    """The information of subtrees about the totals of consecutive geounits."""

    level: int
    first: int
    # ``P*`` of each geounit, zero outside its allowed cells; infinite where ``M`` is positive: on what the
    # subtree knows exactly. A solver that holds the constraints of the run needs no more: what is exact is
    # among them, or follows from them.
    precision: Operators
    # (g, n): ``b*``, zero outside the allowed cells. None at the leaves, where it is that of a geounit's own
    # answers and found when needed (:func:`placed_linear`).
    linear: Floats | None
    # (g, q): weight that each query group would have in ``P*`` if nothing were masked and all children were
    # alike.
    weights: Floats
    exact_linear: Floats | None = None  # (g, n): ``r``, with ``M x = r``. None at the leaves.

    def __len__(self) -> int:
        return len(self.precision)

    @property
    def last(self) -> int:
        """The number after that of the last geounit."""
        return self.first + len(self)


@dataclass(frozen=True, eq=False)
class ChildSums:
    """The sums of the estimates of all children of consecutive geounits."""

    # level, first: of the parents.
    level: int
    first: int
    covariance: Operators  # ``S``, one for each parent, infinite in what the children leave unknown
    mean: Floats  # (g, n): ``y``
    weights: Floats  # (g, q): one over the sum, over the children, of one over their weights

    def __len__(self) -> int:
        return len(self.covariance)

    def estimates(self, domain: Domain, chosen: Ints | slice) -> SubtreeEstimates:
        """Return the sums below some geounits, by their places here."""
        return SubtreeEstimates(self.covariance.take(chosen), domain.forward(self.mean[chosen]))


@dataclass(frozen=True, eq=False)
class Sweep:
    """All upward messages of a tree, for the pass down. Made by :func:`up_sweep`."""

    model: TreeModel
    statistics: tuple[UpwardMessages, ...]  # of each level, top first
    below: tuple[ChildSums, ...]  # what lies below the geounits of each level but the last
    full: Full  # gives noisy answers once more (:data:`Full`)

    def estimates(self, number: int, chosen: Ints) -> SubtreeEstimates:
        """Return the estimates of some geounits of a level from their subtrees; numbers ascend."""
        level, statistics = self.model.levels[number], self.statistics[number]
        if statistics.linear is not None:
            return inner_known(self.model, statistics, chosen)
        runs = []
        if level.measured:  # runs of consecutive numbers
            cuts = np.flatnonzero(np.diff(chosen, prepend=-2) != 1).tolist()
            for low, high in zip(cuts, [*cuts[1:], len(chosen)], strict=True):
                runs.append(self.full(number, int(chosen[low]), high - low))
        answers = runs[0] if len(runs) == 1 else [np.concatenate(parts) for parts in zip(*runs, strict=True)]
        return leaf_known(self.model, statistics, chosen, answers)


def placed_linear(model: TreeModel, level: int, own: Ints, allowed: Bools, answers: Sequence[Ints]) -> Floats:
    """Return ``b`` by dense category, float64 (N, k, e), of geounits, or of groups that are alike."""
    here = model.levels[level]
    out = np.zeros((len(own), *model.domain.cell.shape))
    for query, values in zip(here.measured, answers, strict=True):
        weights = np.ascontiguousarray(here.weights[own, query])
        spread(values, weights, model.domain.shares[query], model.rows[query], allowed, out)
    return out


def exact_placed(model: TreeModel, answers: Mapping[int, Ints], allowed: Bools) -> Floats:
    """Return ``r = sum_q w_q Q_q' a_q`` by dense category, float64 (N, k, e); `answers` by query group."""
    out = np.zeros((len(allowed), *model.domain.cell.shape))
    for query, values in answers.items():
        weights = np.full(len(values), model.unit_weight(query))
        spread(values, weights, model.domain.shares[query], model.rows[query], allowed, out)
    return out


def up_sweep(model: TreeModel, full: Full) -> Sweep:
    """Pass information up a tree.

    `full`: gives the noisy answers (:data:`Full`).

    Notes
    -----
    Cumings-Menon et al. (2024), equation (3.3), eliminated from the leaves.
    """
    ranges = {number: (0, len(level)) for number, level in enumerate(model.levels)}
    with one_blas_thread():
        statistics, below = _climb(model, list(ranges), ranges, full, _summed(model, full))
    count = len(ranges)
    return Sweep(
        model, tuple(statistics[i] for i in range(count)), tuple(below[i] for i in range(count - 1)), full
    )


def up_statistics(
    model: TreeModel,
    ranges: Mapping[int, Range],
    full: Full,
    lowest: UpwardMessages | None = None,
    sums: Sums | None = None,
) -> tuple[UpwardMessages, ...]:
    """Return the information of subtrees about some geounits, highest level first.

    - `ranges`, level -> (first, stop): consecutive levels; the children of the geounits of one are the
      geounits of the next. Those of the highest need not be whole families.
    - `lowest`: what is known of the geounits of the lowest level, if these are not leaves.
    - `sums`: gives sums of the leaves' answers (:data:`Sums`), if they need not be taken from `full`.

    Notes
    -----
    The same bytes however a tree is cut into parts: sums run over the children of one geounit, in order.
    """
    numbers = sorted(ranges)
    if not numbers or numbers != list(range(numbers[0], numbers[-1] + 1)):
        raise EstimationError(f"the levels of one pass follow each other, found {numbers}.")
    if (lowest is None) != (numbers[-1] == len(model.levels) - 1):
        raise EstimationError("what is known is given where the lowest level is not that of the leaves.")
    with one_blas_thread():
        statistics, _ = _climb(model, numbers, ranges, full, sums or _summed(model, full), lowest)
    return tuple(statistics[number] for number in numbers)


def _climb(
    model: TreeModel,
    numbers: Sequence[int],
    ranges: Mapping[int, Range],
    full: Full,
    sums: Sums,
    lowest: UpwardMessages | None = None,
) -> tuple[dict[int, UpwardMessages], dict[int, ChildSums]]:
    """Return what is known of the geounits of each level, and what lies below them."""
    statistics: dict[int, UpwardMessages] = {}
    lower: dict[int, ChildSums] = {}
    below: ChildSums | None = None
    for number in reversed(numbers):
        start, stop = ranges[number]
        if number == len(model.levels) - 1:
            statistics[number] = _leaves(model, start, stop)
        elif lowest is not None and number == numbers[-1]:
            if (lowest.level, lowest.first, len(lowest)) != (number, start, stop - start):
                raise EstimationError(f"what is known at level {number} is not that of its geounits.")
            statistics[number] = lowest
        else:
            if below is None or (below.level, below.first, len(below)) != (number, start, stop - start):
                raise EstimationError(f"what lies below level {number} is not that of its geounits.")
            lower[number] = below
            statistics[number] = _inner_messages(model, number, start, stop, full, below)
        if number > numbers[0]:
            below = _below(model, statistics[number], sums)
    return statistics, lower


def _leaves(model: TreeModel, start: int, stop: int) -> UpwardMessages:
    level = model.levels[-1]
    own = level.own[start - level.first : stop - level.first]
    allowed = level.allowed(start, stop)
    precision = model.own_information[-1].take(own).masked(allowed)
    return UpwardMessages(len(model.levels) - 1, start, precision, None, level.weights[own])


def _inner_messages(
    model: TreeModel, number: int, start: int, stop: int, full: Full, below: ChildSums
) -> UpwardMessages:
    level, domain = model.levels[number], model.domain
    step = _step(model)
    linear = np.empty((stop - start, domain.cells))
    precisions, exact_linears = [], []
    for low in range(start, stop, step):
        high = min(low + step, stop)
        precision, found, exact_linear = _inner_part(model, number, low, high, full, below)
        precisions.append(precision)
        linear[low - start : high - start] = domain.unplaced(found)
        if exact_linear is not None:
            exact_linears.append(domain.unplaced(exact_linear))
    return UpwardMessages(
        number,
        start,
        Operators.joined(precisions),
        linear,
        level.weights[level.own[start - level.first : stop - level.first]] + below.weights,
        np.concatenate(exact_linears) if exact_linears else None,
    )


def _step(model: TreeModel) -> int:
    """Return how many inner geounits are processed at once."""
    return max(1, CHUNK // (4 * model.domain.cells))


def _inner_part(
    model: TreeModel, number: int, start: int, stop: int, full: Full, below: ChildSums
) -> tuple[Operators, Floats, Floats | None]:
    """Return ``P*``, ``b*`` and ``r`` of some inner geounits, vectors by dense category."""
    level, domain = model.levels[number], model.domain
    here, there = (slice(start - first, stop - first) for first in (level.first, below.first))
    own, allowed = level.own[here], level.allowed(start, stop)
    information = below.covariance.take(there).dual(allowed, plain=model.plain_below[number])
    precision = model.own_information[number].take(own).masked(allowed) + information
    mean = domain.forward(below.mean[there], allowed)
    linear = domain.from_blocks(information.apply_blocks(mean), allowed)
    if level.measured:
        linear += placed_linear(model, number, own, allowed, full(number, start, stop - start))
    exact_linear = None
    if information.infinite is not None:
        exact_linear = domain.from_blocks(information.infinite.apply_blocks(mean), allowed)
    if level.exact:
        answers = {held.query: np.ascontiguousarray(held.answers[here]) for held in level.exact}
        added = exact_placed(model, answers, allowed)
        exact_linear = added if exact_linear is None else exact_linear + added
    return precision, linear, exact_linear


def inner_known(model: TreeModel, children: UpwardMessages, chosen: Ints | None = None) -> SubtreeEstimates:
    """Return the estimates of inner geounits from their subtrees; of some of them, by their numbers."""
    level, domain = model.levels[children.level], model.domain
    if children.linear is None:
        raise EstimationError("leaves are looked at some at a time")
    at = np.arange(len(children)) if chosen is None else chosen - children.first
    exact_linear = children.exact_linear
    allowed = level.patterns[level.pattern[children.first - level.first + at]]
    return subtree_estimates(
        children.precision.take(at),
        domain.forward(children.linear[at], allowed),
        None if exact_linear is None else domain.forward(exact_linear[at], allowed),
        allowed,
        plain=model.plain[children.level],
    )


def leaf_known(
    model: TreeModel, leaves: UpwardMessages, chosen: Ints, answers: Sequence[Ints]
) -> SubtreeEstimates:
    """Return the estimates of leaves, by their numbers, from their own answers."""
    level, domain = model.levels[-1], model.domain
    place = chosen - level.first
    allowed = level.patterns[level.pattern[place]]
    linear = domain.to_blocks(placed_linear(model, leaves.level, level.own[place], allowed, answers), allowed)
    exact_linear = None
    if level.exact:
        held = {e.query: np.ascontiguousarray(e.answers[place]) for e in level.exact}
        exact_linear = domain.to_blocks(exact_placed(model, held, allowed), allowed)
    precision = leaves.precision.take(chosen - leaves.first)
    return subtree_estimates(precision, linear, exact_linear, allowed, plain=model.plain[-1])


def families(level: ModelLevel, first: int, last: int) -> tuple[Ints, Ints, Ints]:
    """Return how consecutive geounits, whole families, are put together.

    - Returns `parents` (p,).
    - Returns `starts` (t + 1,): where each family begins, among the geounits; where a divided geounit's parts
      hold a total together, where each divided geounit begins.
    - Returns `groups` (p + 1,): where the families (or the divided geounits) of each parent begin.
    """
    parent = level.parent[first - level.first : last - level.first]
    cuts = np.flatnonzero(np.diff(parent, prepend=-1))
    parents = parent[cuts]
    if level.joint is not None:
        whole = level.joint.group[first - level.first : last - level.first]
        starts = np.flatnonzero(np.diff(whole, prepend=-1))
        groups = np.searchsorted(starts, np.append(cuts, len(parent)))
    else:
        starts, groups = cuts, np.arange(len(cuts) + 1)
    return parents, np.append(starts, len(parent)).astype(np.int64), groups.astype(np.int64)


def union(allowed: Bools, starts: Ints) -> Bools:
    """Return where any of the geounits ``starts[i]:starts[i + 1]`` is allowed."""
    return np.asarray(np.logical_or.reduceat(allowed, starts[:-1], axis=0))


def conditioned(
    model: TreeModel, number: int, chosen: Ints, parts: SubtreeEstimates, allowed: Bools
) -> SubtreeEstimates:
    """Condition the sums over the parts of divided geounits on their exact totals.

    - `number`: level of the parts.
    - `chosen` (t,): numbers of the divided geounits.
    - `parts`: the sums.
    - `allowed` (t, k).
    """
    joint = model.levels[number].joint
    if joint is None:
        raise EstimationError("no geounits of this level hold a total together")
    plain = model.plain[number] and parts.covariance.infinite is None
    information, query = parts.covariance.dual(allowed, plain=plain), model.total
    totals = np.asarray(joint.totals[chosen, None], dtype=np.int64)
    exact_linear = model.domain.to_blocks(exact_placed(model, {query: totals}, allowed), allowed)
    if information.infinite is not None:
        exact_linear += information.infinite.apply_blocks(parts.mean)
    held = model.exact_information([query])
    added = Operators(
        model.domain,
        Extended(tuple(np.zeros_like(stack) for stack in held), held),
        np.zeros(len(allowed), dtype=np.int64),
    )
    linear = information.apply_blocks(parts.mean)
    return subtree_estimates(information + added.masked(allowed), linear, exact_linear, allowed, plain=False)


def _below(model: TreeModel, children: UpwardMessages, sums: Sums) -> ChildSums:
    """Sum what geounits say over their parents."""
    number = children.level
    level, domain = model.levels[number], model.domain
    parents, starts, groups = families(level, children.first, children.last)
    mask = level.allowed(children.first, children.last)
    if number == len(model.levels) - 1:
        together = _pooled_leaves(model, children, starts, sums)
    else:
        together = _pooled_inner(model, children, starts)
    if level.joint is not None:
        chosen = level.joint.group[children.first - level.first + starts[:-1]].astype(np.int64)
        allowed = union(mask, starts)
        together = pooled(conditioned(model, number, chosen, together, allowed), groups, allowed)
        starts = starts[groups]
    return ChildSums(
        number - 1,
        int(parents[0]),
        together.covariance,
        domain.backward(together.mean, union(mask, starts)),
        _series(children.weights, starts),
    )


def _pooled_inner(model: TreeModel, children: UpwardMessages, starts: Ints) -> SubtreeEstimates:
    """Sum the estimates of inner geounits over their families, some families at a time."""
    parts = []
    for first, last in chunks(starts, 4 * model.domain.cells):
        low, high = children.first + int(starts[first]), children.first + int(starts[last])
        own = inner_known(model, children, np.arange(low, high))
        allowed = model.levels[children.level].allowed(low, high)
        parts.append(pooled(own, starts[first : last + 1] - starts[first], allowed))
    return SubtreeEstimates.joined(parts)


def _pooled_leaves(model: TreeModel, leaves: UpwardMessages, starts: Ints, sums: Sums) -> SubtreeEstimates:
    """Sum the estimates of leaves over their families, some families at a time."""
    level = model.levels[-1]
    allowed = level.allowed(leaves.first, leaves.last)
    covariance = leaves.precision.dual(allowed, plain=model.plain[-1])
    groups = _Groups.of(covariance.which, starts)
    mean = np.zeros((len(starts) - 1, *model.domain.cell.shape))
    for first, last in chunks(groups.starts, model.domain.cells):
        _sum_leaves(model, leaves, covariance, groups.of_families(first, last), sums, mean[first:last])
    return SubtreeEstimates(covariance.pooled(starts), mean)


@dataclass(frozen=True, eq=False)
class _Groups:
    """Leaves of one family with the same mask and noise: one sum of integers, one right-hand side."""

    low: int  # place of the first leaf
    group: Ints  # (g,): of each leaf; those of one family follow each other
    first: Ints  # (G,): place of the first leaf of each group
    family: Ints  # (G,): of each group
    # leaf_starts, starts (families + 1,): where the leaves, and the groups, of each family begin.
    leaf_starts: Ints
    starts: Ints

    @classmethod
    def of(cls, which: Ints, leaf_starts: Ints) -> _Groups:
        """Put leaves together by family and operator."""
        count = int(which.max(initial=0)) + 1
        family = np.repeat(np.arange(len(leaf_starts) - 1, dtype=np.int64), np.diff(leaf_starts))
        pairs, first, group = np.unique(family * count + which, return_index=True, return_inverse=True)
        mine = pairs // count
        starts = np.searchsorted(mine, np.arange(len(leaf_starts))).astype(np.int64)
        return cls(0, group.ravel().astype(np.int64), first.astype(np.int64), mine, leaf_starts, starts)

    def of_families(self, start: int, stop: int) -> _Groups:
        """Return those of some families, numbered from 0."""
        leaves, some = self.leaf_starts[start : stop + 1], self.starts[start : stop + 1]
        here = slice(int(some[0]), int(some[-1]))
        return _Groups(
            int(leaves[0]),
            self.group[leaves[0] - self.low : leaves[-1] - self.low] - some[0],
            self.first[here],
            self.family[here] - start,
            leaves,
            some - some[0],
        )


def chunks(starts: Ints, width: int) -> Iterator[Range]:
    """Cut families into runs whose geounits have no more than a set number of answers, `width` each."""
    first = 0
    while first < len(starts) - 1:
        last = int(np.searchsorted(starts, starts[first] + CHUNK // width, side="right")) - 1
        last = min(max(last, first + 1), len(starts) - 1)
        yield first, last
        first = last


def _sum_leaves(
    model: TreeModel, leaves: UpwardMessages, covariance: Operators, groups: _Groups, sums: Sums, out: Floats
) -> None:
    """Add the estimates of leaves over some families to `out`, float64 (families, k, e) in block order."""
    level, domain = model.levels[-1], model.domain
    answers = sums(leaves.level, leaves.first + groups.low, groups.group) if level.measured else []
    place = leaves.first - level.first + groups.first
    allowed = level.patterns[level.pattern[place]]
    linear = domain.to_blocks(placed_linear(model, leaves.level, level.own[place], allowed, answers), allowed)
    if not level.exact:
        means = covariance.take(groups.first).apply_blocks(linear)
    else:
        held_answers = {}
        for held in level.exact:
            low = leaves.first - level.first + groups.low
            here = np.ascontiguousarray(held.answers[low : low + len(groups.group)])
            held_answers[held.query] = np.zeros((len(groups.first), here.shape[1]), dtype=np.int64)
            add_integers(here, groups.group, held_answers[held.query])
        exact_linear = domain.to_blocks(exact_placed(model, held_answers, allowed), allowed)
        precision = leaves.precision.take(groups.first)
        means = subtree_estimates(precision, linear, exact_linear, allowed, plain=False).mean
    add_groups(means, groups.family, allowed, out)


def _summed(model: TreeModel, full: Full) -> Sums:
    """Return what sums answers over groups of leaves, some leaves at a time."""
    step = max(1, CHUNK // max(1, sum(model.sizes(len(model.levels) - 1))))

    def sums(level: int, first: int, group: Ints) -> list[Ints]:
        groups = int(group.max(initial=-1)) + 1
        out = [np.zeros((groups, size), dtype=np.int64) for size in model.sizes(level)]
        for low in range(0, len(group), step):
            part = group[low : low + step]
            for values, total in zip(full(level, first + low, len(part)), out, strict=True):
                add_integers(values, part, total)
        return out

    return sums


def _series(weights: Floats, starts: Ints) -> Floats:
    """Return one over the sum of one over the children's weights; zero where one of them has none."""
    with np.errstate(divide="ignore"):
        out = np.zeros((len(starts) - 1, weights.shape[1]))
        every = np.arange(len(weights), dtype=np.int64)
        add_multiples(1.0 / weights, every, np.ones(len(weights)), starts, out)
        return np.asarray(1.0 / out)
