"""Weighted sums over leaves that are not a geounit of the tree, such as districts and entities.

Given the total ``x_v`` of a geounit, its subtree is independent of everything outside. So a weighted sum over
leaves below it has the form ``G x_v + o`` plus a remainder of covariance ``R`` that is independent of
``x_v``. At a leaf, ``G`` is its weight. From children to their parent, with the upward messages ``V``, ``x``
of the children and ``S``, ``y`` of their sum,

    C = sum_c G_c V_c,   G = C S^-1,   o = sum_c (o_c + G_c x_c) - G y,
    R = sum_c (G_c V_c G_c' + R_c) - C S^-1 C'

(:func:`opendas.gls.information.regression`). Where all leaves below a geounit have the same weight, only that
weight is carried. The computation touches the leaves of the areas, their siblings through ``S`` and ``y``
alone, and their ancestors. Sums with the same children in the same class of subtree are computed once.
Without answers there are no ``x``, ``y`` and ``o``, and the same passes give variances alone.

Axes: ``p`` pairs of an area and a geounit that contains leaves of it; ``t`` those among them with unequal
weights, in ``u`` classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from opendas.arrays import Floats, Ints
from opendas.arrays.blas import one_blas_thread
from opendas.errors import EstimationError
from opendas.gls.cells import Domain
from opendas.gls.collapsed import CollapsedTree, UpwardMessage, families
from opendas.gls.downward import Estimates, down_pass
from opendas.gls.information import Extended, Stacks, product, regression, summed, symmetric, transposed
from opendas.gls.kernels import add_multiples
from opendas.gls.operators import Operators
from opendas.gls.subtree_estimate import SubtreeEstimates, pooled
from opendas.gls.upward import Sweep, conditioned, union

BATCH = 400
"""Areas whose estimates are carried up the tree together."""


@dataclass(frozen=True, eq=False)
class _Messages:
    """Upward messages of some geounits: their totals by their subtrees, or the sums of their children."""

    kind: Ints  # (g,): kind of each geounit
    covariance: Extended  # ``V`` or ``S`` of each kind
    information: Stacks | None = None  # (kinds, b, d, d): the inverse of ``S``
    mean: Floats | None = None  # (g, k, e): ``x`` or ``y`` in block order

    @classmethod
    def of(cls, known: SubtreeEstimates, information: Operators | None = None) -> _Messages:
        """Number the different matrices of some geounits."""
        columns = [known.covariance.which, *([] if information is None else [information.which])]
        first, kind = _different(*columns)
        return cls(
            kind,
            known.covariance.take(first).expanded(),
            None if information is None else information.take(first).expanded().finite,
            known.mean,
        )


def _different(*columns: Ints) -> tuple[Ints, Ints]:
    """Return the first position of each distinct row of some columns, and the number of each row's kind."""
    _, first, which = np.unique(np.column_stack(columns), axis=0, return_index=True, return_inverse=True)
    return first.astype(np.int64), which.ravel().astype(np.int64)


@dataclass(frozen=True, eq=False)
class _Step:
    """A step up the tree."""

    parent: Ints  # (children,): parent of each child
    leaves: Ints  # (parents,): number of leaves below it
    # own, together: give the upward messages of some children, and of the sums of the children of some
    # parents, by their numbers, ascending.
    own: Callable[[Ints], _Messages]
    together: Callable[[Ints], _Messages]


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Pairs of an area and a geounit, sorted by area and then by geounit."""

    # area, geounit (p,): the geounit by its number in the whole level.
    area: Ints
    geounit: Ints
    leaves: Ints  # (p,): number of leaves of the area below the geounit
    weight: Floats  # (p,): the weight of all leaves below the geounit, where it is one
    slot: Ints  # (p,): position among what is carried; -1 where one weight suffices

    def slice(self, here: slice) -> _Pairs:
        """Return some of the pairs."""
        return _Pairs(
            self.area[here], self.geounit[here], self.leaves[here], self.weight[here], self.slot[here]
        )


@dataclass(frozen=True, eq=False)
class _Carried:
    """``G``, ``R`` and what is unknown in the rest by class, (u, b, d, d); class (t,) and ``o`` (t, k, e)."""

    gain: Stacks
    rest: Stacks
    loose: Stacks
    which: Ints
    offset: Floats | None

    @classmethod
    def nothing(cls, like: Stacks) -> _Carried:
        empty = tuple(np.zeros((0, *stack.shape[1:])) for stack in like)
        return cls(empty, empty, empty, np.zeros(0, dtype=np.int64), None)


def _pairs(
    area: npt.NDArray[np.integer],
    leaf: npt.NDArray[np.integer],
    weight: Floats | None,
    areas: int,
    leaves: int,
) -> _Pairs:
    """Check members of areas and put them in order."""
    order = np.lexsort((leaf, area))
    place, member = (np.asarray(column, dtype=np.int64)[order] for column in (area, leaf))
    given = np.ones(len(order)) if weight is None else np.asarray(weight, dtype=np.float64)[order]
    if len(place) and not 0 <= place[0] <= place[-1] < areas:
        raise EstimationError(f"areas are numbered from {place[0]} to {place[-1]}; there are {areas}.")
    if len(member) and not 0 <= member.min() <= member.max() < leaves:
        raise EstimationError(f"a leaf of an area is not in the tree, whose leaves are 0 to {leaves - 1}.")
    if np.any((np.diff(place) == 0) & (np.diff(member) == 0)):
        raise EstimationError("a leaf appears twice in one area.")
    if not np.isfinite(given).all():
        raise EstimationError("a weight is not a finite number.")
    return _Pairs(place, member, np.ones_like(member), given, np.full(len(order), -1, dtype=np.int64))


def area_covariances(
    tree: CollapsedTree,
    known: Sequence[UpwardMessage],
    area: npt.NDArray[np.integer],
    leaf: npt.NDArray[np.integer],
    areas: int,
) -> Extended:
    """Return the covariance of the sum over each of several sets of leaves, from a plan alone.

    - `area`, `leaf` (p,): set and leaf of each membership, each pair once, in any order. Sets may overlap.
    - `areas`: number of sets. A set without members has variance zero.
    - Returns: one class for each set.

    Notes
    -----
    Cumings-Menon et al. (2024), equation (3.4), for the indicator of each set.
    """

    def own(number: int) -> Callable[[Ints], _Messages]:
        return lambda chosen: _Messages(tree.subtrees[number][chosen], known[number].covariance)

    def together(number: int) -> Callable[[Ints], _Messages]:
        total, below = known[number].sums
        return lambda chosen: _Messages(tree.subtrees[number][chosen], total, below.finite)

    steps, leaves = [], np.ones(len(tree.parents[-1]), dtype=np.int64)
    for number in range(len(tree) - 1, 0, -1):
        leaves = _gathered_leaves(tree.parents[number], leaves, len(tree.parents[number - 1]))
        steps.append(_Step(tree.parents[number], leaves, own(number), together(number - 1)))
    top = own(0)(np.arange(len(tree.subtrees[0])))
    pairs = _pairs(area, leaf, None, areas, len(tree.parents[-1]))
    return _carry_up(steps, top, pairs, areas, None)[0]


def _gathered_leaves(parent: Ints, leaves: Ints, parents: int) -> Ints:
    return np.bincount(parent, leaves, minlength=parents).astype(np.int64)


def area_estimates(
    sweep: Sweep,
    area: npt.NDArray[np.integer],
    leaf: npt.NDArray[np.integer],
    weight: Floats | None = None,
    areas: int | None = None,
) -> Estimates:
    """Return the estimate and covariance of weighted sums over leaves.

    - `sweep`: it is asked again for the answers of leaves in families that an area divides.
    - `area`, `leaf` (p,): area, counted from 0, and leaf of each membership, each pair once, in any order.
      Areas may overlap.
    - `weight` (p,): weight of each membership; 1 by default.
    - `areas`: number of areas; by default as many as are named. An area without members is exactly zero.
    - Returns: one row for each area; ``level`` is -1.

    Raises `EstimationError` if a leaf is not in the tree or twice in an area, or a weight is not finite.

    Notes
    -----
    Cumings-Menon et al. (2024), equations (3.3) and (3.4), for the weighted sum of each area.
    """
    model = sweep.model
    last = len(model.levels) - 1
    count = int(np.max(area, initial=-1)) + 1 if areas is None else areas
    pairs = _pairs(area, leaf, weight, count, len(model.levels[-1]))
    roots = next(down_pass(sweep)) if last else Estimates.joined(list(down_pass(sweep)))
    cuts = np.searchsorted(pairs.area, np.arange(0, count + BATCH, BATCH))
    domain = model.domain
    means = [np.zeros((0, domain.cells))]
    parts = [Extended(tuple(np.zeros((0, *kind.matrices.shape[1:])) for kind in domain.kinds))]
    with one_blas_thread():
        steps = list(_steps(sweep))
        if model.levels[0].joint is None:
            top = SubtreeEstimates(roots.covariance, domain.forward(roots.mean))
        else:
            top = _wholes(sweep, 0, np.arange(len(model.levels[0].joint.totals)))[1]
        for batch, first in enumerate(range(0, count, BATCH)):
            here = slice(int(cuts[batch]), int(cuts[batch + 1]))
            some = replace(pairs.slice(here), area=pairs.area[here] - first)
            found, mean = _carry_up(steps, _Messages.of(top), some, min(BATCH, count - first), domain)
            parts.append(found)
            means.append(np.zeros((0, domain.cells)) if mean is None else domain.backward(mean))
    covariance = Operators.of(domain, Extended.joined(parts))
    return Estimates(-1, 0, np.concatenate(means), covariance)


def _steps(sweep: Sweep) -> Iterator[_Step]:
    """Yield the steps up a tree with answers; divided geounits are a step of their own."""
    model = sweep.model
    leaves = np.ones(len(model.levels[-1]), dtype=np.int64)

    def parts(number: int) -> Callable[[Ints], _Messages]:
        return lambda chosen: _Messages.of(sweep.estimates(number, chosen))

    def wholes(number: int) -> Callable[[Ints], _Messages]:
        return lambda chosen: _Messages.of(_wholes(sweep, number, chosen)[1])

    def sums(number: int) -> Callable[[Ints], _Messages]:
        return lambda chosen: _Messages.of(*_wholes(sweep, number, chosen)[::2])

    def children(number: int) -> Callable[[Ints], _Messages]:
        return lambda chosen: _Messages.of(*_children(sweep, number, chosen))

    for number in range(len(model.levels) - 1, -1, -1):
        level, own = model.levels[number], parts(number)
        parent = level.parent
        if level.joint is not None:
            group = level.joint.group.astype(np.int64)
            leaves = _gathered_leaves(group, leaves, len(level.joint.totals))
            yield _Step(group, leaves, own, sums(number))
            parent, own = parent[np.flatnonzero(np.diff(group, prepend=-1))], wholes(number)
        if number:
            leaves = _gathered_leaves(parent, leaves, len(model.levels[number - 1]))
            yield _Step(parent, leaves, own, children(number - 1))


def _children(sweep: Sweep, number: int, chosen: Ints) -> tuple[SubtreeEstimates, Operators]:
    """Return the sums of the children of some geounits of a level, and the inverses of their covariances."""
    model, level = sweep.model, sweep.model.levels[number]
    together = sweep.below[number].estimates(model.domain, chosen)
    allowed, plain = level.patterns[level.pattern[chosen]], model.plain_below[number]
    return together, together.covariance.dual(allowed, plain=plain)


def _wholes(sweep: Sweep, number: int, chosen: Ints) -> tuple[SubtreeEstimates, SubtreeEstimates, Operators]:
    """Return sums over the parts of divided geounits, the same given the exact totals, and inverses."""
    model = sweep.model
    level = model.levels[number]
    if level.joint is None:
        raise EstimationError("no geounits of this level hold a total together")
    starts = np.searchsorted(level.joint.group, np.arange(len(level.joint.totals) + 1)).astype(np.int64)
    parts = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in chosen])
    sizes = np.append(0, np.cumsum(starts[chosen + 1] - starts[chosen])).astype(np.int64)
    allowed = level.patterns[level.pattern[parts]]
    together = pooled(sweep.estimates(number, parts), sizes, allowed)
    some = union(allowed, sizes)
    information = together.covariance.dual(some, plain=False)
    return together, conditioned(model, number, chosen, together, some), information


def _carry_up(
    steps: Sequence[_Step], top: _Messages, pairs: _Pairs, areas: int, domain: Domain | None
) -> tuple[Extended, Floats | None]:
    """Carry areas up the tree; returns covariances, and estimates (areas, k, e) in block order."""
    carried = _Carried.nothing(top.covariance.finite)
    for step in steps:
        above, mixed, inside, row = _gather(pairs, step.parent, step.leaves)
        if len(mixed):
            carried = _lifted(step, above.geounit[mixed], pairs, inside, row, carried, domain)
        else:
            carried = _Carried.nothing(top.covariance.finite)
        pairs = above
    parts = _Parts.of(carried, pairs, np.arange(len(pairs.slot)), top.kind[pairs.geounit])
    shape = areas, len(parts.kind)
    counts, _, which = families(pairs.area, parts.part, shape)
    finite, infinite = [], []
    for number, stack in enumerate(top.covariance.finite):
        gain, rest, loose = parts.matrices(carried, number, stack.shape)
        back = transposed(gain)
        finite.append(summed(counts, product(product(gain, stack[parts.kind]), back) + rest)[which])
        if top.covariance.infinite is not None:
            loose = loose + product(product(gain, top.covariance.infinite[number][parts.kind]), back)
        infinite.append(summed(counts, loose)[which])
    mean = None
    if top.mean is not None and domain is not None:
        mean = _totals(domain, top.mean[pairs.geounit], carried, pairs.slot, pairs.weight, pairs.area, areas)
    return Extended.of(finite, infinite), mean


def _gather(pairs: _Pairs, parent: Ints, leaves: Ints) -> tuple[_Pairs, Ints, Ints, Ints]:
    """Go one level up: gather the children of each pair of an area and a parent.

    - Returns `mixed` (t,): positions in `pairs` of those that must be carried.
    - Returns `inside` (i,): positions, among the pairs below, of what enters them.
    - Returns `row` (i,): which of the mixed each enters; ascending.
    """
    up = parent[pairs.geounit]
    starts = np.flatnonzero((np.diff(pairs.area, prepend=-1) != 0) | (np.diff(up, prepend=-1) != 0))
    group = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(up))))
    area, geounit = pairs.area[starts], up[starts]
    held = np.bincount(group, pairs.leaves, minlength=len(starts)).astype(np.int64)
    weight = pairs.weight[starts]
    alike = (pairs.slot < 0) & (pairs.weight == weight[group])
    apart = np.bincount(group, ~alike, minlength=len(starts)) > 0
    partly = apart | (held < leaves[geounit])
    slot = np.where(partly, np.cumsum(partly) - 1, -1).astype(np.int64)
    inside, mixed = np.flatnonzero(partly[group]).astype(np.int64), np.flatnonzero(partly).astype(np.int64)
    return _Pairs(area, geounit, held, weight, slot), mixed, inside, slot[group[inside]]


@dataclass(frozen=True, eq=False)
class _Parts:
    """The different parts of sums: one of a kind of geounits, and what is carried of it or its weight."""

    part: Ints  # (i,): number of each part
    # kind, carried (parts,): kind of geounits, and class of what is carried; -1 for one weight.
    kind: Ints
    carried: Ints
    weight: Floats  # (parts,)

    @classmethod
    def of(cls, carried: _Carried, pairs: _Pairs, inside: Ints, kind: Ints) -> _Parts:
        slot = pairs.slot[inside]
        which = np.full(len(slot), -1, dtype=np.int64)
        which[slot >= 0] = carried.which[slot[slot >= 0]]
        weight = np.where(slot < 0, pairs.weight[inside], 0.0)
        first, part = _different(kind, which, np.unique(weight, return_inverse=True)[1].ravel())
        return cls(part, kind[first], which[first], weight[first])

    def matrices(self, carried: _Carried, number: int, shape: tuple[int, ...]) -> tuple[Floats, ...]:
        """Return gain, rest, and what is unknown in the rest, for one dimension of blocks."""
        full = (len(self.kind), *shape[1:])
        gain, rest, loose = np.zeros((3, *full))
        gain[:] = self.weight[:, None, None, None] * np.eye(shape[-1])
        mixed = self.carried >= 0
        for found, stacks in ((gain, carried.gain), (rest, carried.rest), (loose, carried.loose)):
            found[mixed] = stacks[number][self.carried[mixed]]
        return gain, rest, loose


def _lifted(
    step: _Step,
    parents: Ints,
    pairs: _Pairs,
    inside: Ints,
    row: Ints,
    carried: _Carried,
    domain: Domain | None,
) -> _Carried:
    """Carry sums from children to parents, int64 (t,); `inside` and `row` as :func:`_gather` finds them."""
    count = len(parents)
    used, at = np.unique(parents, return_inverse=True)
    touched, child = np.unique(pairs.geounit[inside], return_inverse=True)
    own, together = step.own(touched), step.together(used)
    if together.information is None:
        raise AssertionError("sums of children come with their inverses")
    parts = _Parts.of(carried, pairs, inside, own.kind[child.ravel()])
    counts, first, which = families(row, parts.part, (count, len(parts.kind)), together.kind[at.ravel()])
    parent = together.kind[at.ravel()][first]
    gains, rests, looses = [], [], []
    for number, stack in enumerate(own.covariance.finite):
        gain, rest, loose = parts.matrices(carried, number, stack.shape)
        back = transposed(gain)
        gv = product(gain, stack[parts.kind])
        unknown, lost = None, summed(counts, loose)
        if together.covariance.infinite is not None:
            through = np.zeros_like(gv)
            if own.covariance.infinite is not None:
                through = product(gain, own.covariance.infinite[number][parts.kind])
            lost += summed(counts, product(through, back))
            unknown = summed(counts, through), lost, together.covariance.infinite[number][parent]
        found = regression(
            summed(counts, gv),
            summed(counts, product(gv, back) + rest),
            together.covariance.finite[number][parent],
            together.information[number][parent],
            unknown,
        )
        gains.append(np.ascontiguousarray(found.gain))
        rests.append(symmetric(found.rest))
        looses.append(lost if found.loose is None else found.loose)
    offset = None
    if own.mean is not None and together.mean is not None and domain is not None:
        slot, weight = pairs.slot[inside], pairs.weight[inside]
        offset = _totals(domain, own.mean[child.ravel()], carried, slot, weight, row, count)
        offset -= _applied(domain, tuple(gains), which, together.mean[at.ravel()])
    return _Carried(tuple(gains), tuple(rests), tuple(looses), which, offset)


def _totals(
    domain: Domain, mean: Floats, carried: _Carried, slot: Ints, weight: Floats, row: Ints, count: int
) -> Floats:
    """Return sums of ``weight * x``, or ``G x + o`` of what is carried, over equal rows, which ascend."""
    found = np.zeros((count, *domain.cell.shape))
    mixed, uniform = np.flatnonzero(slot >= 0), np.flatnonzero(slot < 0)
    if carried.offset is not None:
        values = carried.offset[slot[mixed]]
        values += _applied(domain, carried.gain, carried.which[slot[mixed]], mean[mixed])
        _add(values, np.arange(len(mixed)), np.ones(len(mixed)), row[mixed], found)
    _add(mean, uniform, weight[uniform], row[uniform], found)
    return found


def _applied(domain: Domain, stacks: Stacks, which: Ints, x: Floats) -> Floats:
    return Operators(domain, Extended(stacks), which).apply_blocks(x)


def _add(values: Floats, which: Ints, weight: Floats, row: Ints, out: Floats) -> None:
    """Add ``weight * values[which]`` to the rows of `out`; these ascend."""
    size = int(np.prod(values.shape[1:]))
    starts = np.searchsorted(row, np.arange(len(out) + 1)).astype(np.int64)
    flat = out.reshape(len(out), size)
    add_multiples(values.reshape(len(values), size), which.astype(np.int64), weight, starts, flat)
