"""Estimates of sums over leaves that are no geounit of the tree: districts, entities, any weighting.

Given the total ``x_v`` of a geounit, what is inside its subtree depends on nothing outside. So a weighted sum
over leaves below it is carried up the tree as ``G x_v + o`` and a rest of covariance ``R`` that is
independent of ``x_v``: at a leaf ``G`` is its weight, and from children to their parent, with the quantities
of :mod:`opendas.gls.upward`,

    C = sum_c G_c V_c,   G = C S^-1,   o = sum_c (o_c + G_c x_c) - G y,
    R = sum_c (G_c V_c G_c' + R_c) - C S^-1 C'.

Where all leaves below a geounit have one weight, that weight is all there is to carry. The work touches the
leaves of the areas, their siblings through ``S`` and ``y`` alone, and their ancestors.

Axes: ``p`` pairs of an area and a geounit that holds leaves of it; ``t`` those among them that are not alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Floats, Ints
from opendas.errors import EstimationError
from opendas.gls.cells import Domain
from opendas.gls.downward import Estimates, down_pass
from opendas.gls.extended import transposed
from opendas.gls.kernels import add_multiples, apply_blocks
from opendas.gls.model import TreeModel
from opendas.gls.operators import Operators
from opendas.gls.subtree_estimate import Known, dual, pooled
from opendas.gls.upward import Full, Sweep, conditioned, inner_known, leaf_known, union
from opendas.solvers.blas import one_blas_thread

__all__ = ["area_estimates"]

BATCH = 400
"""Areas that are carried up the tree together."""

_CLEAN = 1e-9


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Pairs of an area and a geounit, sorted by area and then by geounit.

    Parameters
    ----------
    area, geounit : int64 (p,)
        The geounit by its number in the whole level.
    leaves : int64 (p,)
        Number of leaves of the area below the geounit.
    weight : float64 (p,)
        The weight of all leaves below the geounit, where it is one.
    slot : int64 (p,)
        Place among what is carried; -1 where one weight says all.
    """

    area: Ints
    geounit: Ints
    leaves: Ints
    weight: Floats
    slot: Ints


@dataclass(frozen=True, eq=False)
class _Carried:
    """``G``, ``R``, what is unknown in the rest, and ``o``: stacks (t, b, k d, k d) and float64 (t, k, e)."""

    gain: tuple[Floats, ...]
    rest: tuple[Floats, ...]
    loose: tuple[Floats, ...]
    offset: Floats

    @classmethod
    def nothing(cls, domain: Domain) -> _Carried:
        empty = tuple(np.zeros((0, *kind.matrices.shape[1:])) for kind in domain.kinds)
        return cls(empty, empty, empty, np.zeros((0, *domain.cell.shape)))


def area_estimates(
    sweep: Sweep,
    full: Full,
    area: npt.NDArray[np.integer],
    leaf: npt.NDArray[np.integer],
    weight: Floats | None = None,
    areas: int | None = None,
) -> Estimates:
    """Return the estimate and covariance of weighted sums over leaves.

    Parameters
    ----------
    sweep : Sweep
        Up the whole tree.
    full : callable
        Gives noisy answers; of the leaves, those of families that an area divides.
    area, leaf : int (p,)
        Area, counted from 0, and leaf of each membership, each pair once, in any order. Areas may overlap.
    weight : float64 (p,), optional
        Of each membership; 1 by default.
    areas : int, optional
        Number of areas; by default as many as are named. One without members is zero, exactly.

    Returns
    -------
    Estimates
        One row for each area; ``level`` is -1.

    Raises
    ------
    EstimationError
        If a leaf is not in the tree or twice in an area, a weight is not a finite number, or the sweep is not
        that of the whole tree.
    """
    model = sweep.model
    last = len(model.levels) - 1
    if sweep.numbers != list(range(last + 1)):
        raise EstimationError("sums over leaves need a sweep of the whole tree, from the leaves to its top.")
    given = np.ones(len(leaf)) if weight is None else np.asarray(weight, dtype=np.float64)
    place = np.asarray(area, dtype=np.int64)
    member = np.asarray(leaf, dtype=np.int64)
    count = int(place.max(initial=-1)) + 1 if areas is None else areas
    order = np.lexsort((member, place))
    place, member, given = place[order], member[order], given[order]
    _check(model, place, member, given, count)
    roots = next(down_pass(sweep, full)) if last else Estimates.joined(list(down_pass(sweep, full)))
    cuts = np.searchsorted(place, np.arange(0, count + BATCH, BATCH))
    found = [
        _batch(sweep, full, roots, place[low:high] - first, member[low:high], given[low:high], number)
        for first, number, low, high in (
            (i * BATCH, min(BATCH, count - i * BATCH), int(cuts[i]), int(cuts[i + 1]))
            for i in range(-(-count // BATCH))
        )
    ]
    if not found:
        empty = Operators.of(model.domain, _Carried.nothing(model.domain).rest)
        return Estimates(-1, 0, np.zeros((0, model.domain.cells)), empty, None)
    return Estimates.joined(found)


def _check(model: TreeModel, area: Ints, leaf: Ints, weight: Floats, areas: int) -> None:
    leaves = len(model.levels[-1])
    if len(area) and not 0 <= area[0] <= area[-1] < areas:
        raise EstimationError(f"areas are numbered from {area[0]} to {area[-1]}; there are {areas}.")
    if len(leaf) and not 0 <= leaf.min() <= leaf.max() < leaves:
        raise EstimationError(f"a leaf of an area is not in the tree, whose leaves are 0 to {leaves - 1}.")
    if np.any((np.diff(area) == 0) & (np.diff(leaf) == 0)):
        raise EstimationError("a leaf is twice in one area.")
    if not np.isfinite(weight).all():
        raise EstimationError("a weight is not a finite number.")


def _batch(
    sweep: Sweep, full: Full, roots: Estimates, area: Ints, leaf: Ints, weight: Floats, areas: int
) -> Estimates:
    """Carry some areas up the tree."""
    model = sweep.model
    domain = model.domain
    pairs = _Pairs(area, leaf, np.ones_like(leaf), weight, np.full(len(leaf), -1, dtype=np.int64))
    carried = _Carried.nothing(domain)
    below = np.ones(len(model.levels[-1]), dtype=np.int64)
    with one_blas_thread():
        for number in range(len(model.levels) - 1, -1, -1):
            level = model.levels[number]
            if level.joint is not None:
                pairs, carried, below = _to_wholes(sweep, full, number, pairs, carried, below)
            if number:
                parent = _parents(model, number)
                below = np.bincount(parent, below, minlength=len(model.levels[number - 1])).astype(np.int64)
                pairs, carried = _to_parents(sweep, full, number, parent, pairs, carried, below)
        top = model.levels[0]
        if top.joint is None:
            given = Known(roots.covariance, roots.unknown, domain.forward(roots.mean))
        else:
            given = _wholes(sweep, full, 0, np.arange(len(top.joint.totals)))[1]
        return _at_top(domain, pairs, carried, given, areas)


def _parents(model: TreeModel, number: int) -> Ints:
    """Return the parent of each geounit of a level, or of each divided geounit where parts hang together."""
    level = model.levels[number]
    if level.joint is None:
        return level.parent
    return level.parent[np.flatnonzero(np.diff(level.joint.group, prepend=-1))]


def _own(sweep: Sweep, full: Full, number: int, geounits: Ints) -> Known:
    """Return what the subtrees of some geounits, ascending, say about them."""
    statistics, model = sweep.statistics[number], sweep.model
    if number < len(model.levels) - 1:
        return inner_known(model, statistics, geounits)
    runs = (
        [full(number, low, high - low) for low, high in _runs(geounits)] if model.levels[-1].measured else []
    )
    answers = [np.concatenate(parts) for parts in zip(*runs, strict=True)]
    return leaf_known(model, statistics, geounits, answers)


def _runs(numbers: Ints) -> Iterator[tuple[int, int]]:
    """Yield the runs of consecutive numbers, first and the one after the last."""
    cuts = np.flatnonzero(np.diff(numbers, prepend=-2) != 1).tolist()
    for low, high in zip(cuts, [*cuts[1:], len(numbers)], strict=True):
        yield int(numbers[low]), int(numbers[high - 1]) + 1


def _wholes(sweep: Sweep, full: Full, number: int, chosen: Ints) -> tuple[Known, Known, Bools]:
    """Return sums over the parts of divided geounits, the same given the exact totals, and their masks."""
    model = sweep.model
    level, statistics = model.levels[number], sweep.statistics[number]
    if level.joint is None:
        raise EstimationError("no geounits of this level hold a total together")
    starts = np.searchsorted(level.joint.group, np.arange(len(level.joint.totals) + 1)).astype(np.int64)
    parts = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in chosen])
    sizes = np.append(0, np.cumsum(starts[chosen + 1] - starts[chosen])).astype(np.int64)
    allowed = level.patterns[level.pattern[parts]]
    together = pooled(_own(sweep, full, statistics.level, parts), sizes, allowed)
    some = union(allowed, sizes)
    return together, conditioned(model, number, chosen, together, some), some


def _to_wholes(
    sweep: Sweep, full: Full, number: int, pairs: _Pairs, carried: _Carried, below: Ints
) -> tuple[_Pairs, _Carried, Ints]:
    joint = sweep.model.levels[number].joint
    if joint is None:
        return pairs, carried, below
    whole = joint.group.astype(np.int64)
    below = np.bincount(whole, below, minlength=len(joint.totals)).astype(np.int64)
    gathered = _gather(pairs, whole, below)
    if not len(gathered.mixed):
        return gathered.pairs, _Carried.nothing(sweep.model.domain), below
    used, at = np.unique(gathered.pairs.geounit[gathered.mixed], return_inverse=True)
    together, _, allowed = _wholes(sweep, full, number, used)
    own = _own(sweep, full, number, np.unique(pairs.geounit[gathered.inside]))
    lifted = _lifted(gathered, pairs, carried, own, together, allowed, at.ravel(), plain=False)
    return gathered.pairs, lifted, below


def _to_parents(
    sweep: Sweep, full: Full, number: int, parent: Ints, pairs: _Pairs, carried: _Carried, below: Ints
) -> tuple[_Pairs, _Carried]:
    model = sweep.model
    gathered = _gather(pairs, parent, below)
    if not len(gathered.mixed):
        return gathered.pairs, _Carried.nothing(model.domain)
    used, at = np.unique(gathered.pairs.geounit[gathered.mixed], return_inverse=True)
    lower = sweep.below[number - 1]
    unknown = None if lower.unknown is None else lower.unknown.take(used)
    together = Known(lower.covariance.take(used), unknown, model.domain.forward(lower.mean[used]))
    above = model.levels[number - 1]
    allowed = above.patterns[above.pattern[used]]
    touched = np.unique(pairs.geounit[gathered.inside])
    if model.levels[number].joint is None:
        own = _own(sweep, full, number, touched)
    else:
        own = _wholes(sweep, full, number, touched)[1]
    plain = model.plain_below[number - 1]
    return gathered.pairs, _lifted(gathered, pairs, carried, own, together, allowed, at.ravel(), plain=plain)


@dataclass(frozen=True, eq=False)
class _Gathered:
    """Pairs one level up, and which of those below enter those that are not alike.

    Parameters
    ----------
    pairs : _Pairs
    mixed : int64 (t,)
        Positions in `pairs` of those that must be carried.
    inside : int64 (u,)
        Positions, among the pairs below, of what enters them.
    starts : int64 (t + 1,)
        Where the ones that enter each begin in `inside`.
    """

    pairs: _Pairs
    mixed: Ints
    inside: Ints
    starts: Ints


def _gather(pairs: _Pairs, parent: Ints, leaves: Ints) -> _Gathered:
    """Go one level up: gather the children of each pair of an area and a parent."""
    up = parent[pairs.geounit]
    starts = np.flatnonzero((np.diff(pairs.area, prepend=-1) != 0) | (np.diff(up, prepend=-1) != 0))
    group = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(up))))
    area, geounit = pairs.area[starts], up[starts]
    held = np.bincount(group, pairs.leaves, minlength=len(starts)).astype(np.int64)
    weight = pairs.weight[starts]
    alike = (pairs.slot < 0) & (pairs.weight == weight[group])
    apart = np.bincount(group, ~alike, minlength=len(starts)) > 0
    partly = apart | (held < leaves[geounit])
    mixed = np.flatnonzero(partly)
    slot = np.where(partly, np.cumsum(partly) - 1, -1).astype(np.int64)
    inside = np.flatnonzero(partly[group])
    sizes = np.bincount(slot[group[inside]], minlength=len(mixed))
    return _Gathered(
        _Pairs(area, geounit, held, weight, slot),
        mixed.astype(np.int64),
        inside.astype(np.int64),
        np.append(0, np.cumsum(sizes)).astype(np.int64),
    )


def _lifted(
    gathered: _Gathered,
    pairs: _Pairs,
    carried: _Carried,
    own: Known,
    together: Known,
    allowed: Bools,
    parent: Ints,
    *,
    plain: bool,
) -> _Carried:
    """Carry sums from children to parents.

    Parameters
    ----------
    own : Known
        What the subtrees of the touched children say, ascending.
    together : Known
        What all children of the touched parents say together.
    allowed : bool
        Masks of these parents.
    parent : int64 (t,)
        Position among these parents of each sum.
    """
    domain = own.domain
    information, _ = dual(together.covariance, together.unknown, allowed, plain=plain)
    inside, starts = gathered.inside, gathered.starts
    slot = pairs.slot[inside]
    child = np.searchsorted(np.unique(pairs.geounit[inside]), pairs.geounit[inside])
    row = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    uniform, mixed = np.flatnonzero(slot < 0), np.flatnonzero(slot >= 0)
    weight = np.where(slot < 0, pairs.weight[inside], 0.0)
    offset = _multiples(own.mean, child[uniform], weight[uniform], row[uniform], len(starts) - 1)
    gains, rests, looses = [], [], []
    added = np.zeros((len(mixed), *domain.cell.shape))
    apart = np.zeros_like(offset)
    for number, kind in enumerate(domain.kinds):
        v, which = own.covariance.stacks[number], own.covariance.which[child]
        gain = carried.gain[number][slot[mixed]]
        gv = gain @ v[which[mixed]]
        count = len(starts) - 1
        cross = _multiples(v, which[uniform], weight[uniform], row[uniform], count)
        square = _multiples(v, which[uniform], weight[uniform] ** 2, row[uniform], count)
        cross += _summed(gv, row[mixed], count)
        square += _summed(gv @ transposed(gain) + carried.rest[number][slot[mixed]], row[mixed], count)
        lost = _summed(carried.loose[number][slot[mixed]], row[mixed], count)
        fixed = np.zeros_like(cross)
        s = together.covariance.stacks[number][together.covariance.which[parent]]
        if own.unknown is not None and together.unknown is not None:
            u, kinds = own.unknown.stacks[number], own.unknown.which[child]
            gu = gain @ u[kinds[mixed]]
            through = _multiples(u, kinds[uniform], weight[uniform], row[uniform], count)
            through += _summed(gu, row[mixed], count)
            lost += _multiples(u, kinds[uniform], weight[uniform] ** 2, row[uniform], count)
            lost += _summed(gu @ transposed(gain), row[mixed], count)
            # Where children are unknown, the parent's total is all there is to know: all of them must carry
            # the same gain, or the sum has no finite variance.
            total = together.unknown.stacks[number][together.unknown.which[parent]]
            fixed = through @ np.linalg.pinv(total, rcond=_CLEAN, hermitian=True)
            lost += fixed @ total @ transposed(fixed)
            lost -= through @ transposed(fixed) + fixed @ transposed(through)
            lost[np.abs(lost) < _CLEAN] = 0.0
            square += fixed @ s @ transposed(fixed)
            square -= cross @ transposed(fixed) + fixed @ transposed(cross)
            cross = cross - fixed @ s
        regression = cross @ information.stacks[number][information.which[parent]]
        full_gain = np.ascontiguousarray(fixed + regression)
        rest = square - regression @ transposed(cross)
        gains.append(full_gain)
        rests.append((rest + transposed(rest)) * 0.5)
        looses.append(lost)
        shape = (kind.offsets, kind.copies, kind.dimension)
        gain = np.ascontiguousarray(gain)
        apply_blocks(own.mean[child[mixed]], gain, np.arange(len(mixed)), *shape, added)
        apply_blocks(together.mean[parent], full_gain, np.arange(len(parent)), *shape, apart)
    added += carried.offset[slot[mixed]]
    offset += _summed(added, row[mixed], len(starts) - 1)
    return _Carried(tuple(gains), tuple(rests), tuple(looses), offset - apart)


def _multiples(values: Floats, which: Ints, weight: Floats, row: Ints, count: int) -> Floats:
    """Return sums of ``weight * values[which]`` over equal rows, which ascend."""
    size = int(np.prod(values.shape[1:]))
    flat = values.reshape(len(values), size)
    out = np.zeros((count, size))
    starts = np.searchsorted(row, np.arange(count + 1)).astype(np.int64)
    add_multiples(flat, which.astype(np.int64), weight, starts, out)
    return out.reshape(count, *values.shape[1:])


def _summed(values: Floats, row: Ints, count: int) -> Floats:
    """Return sums over equal rows, which ascend."""
    return _multiples(values, np.arange(len(values), dtype=np.int64), np.ones(len(values)), row, count)


def _at_top(domain: Domain, pairs: _Pairs, carried: _Carried, given: Known, areas: int) -> Estimates:
    """Put in what is known of the roots; an area may have leaves below several."""
    mean = np.zeros((areas, *domain.cell.shape))
    uniform, mixed = np.flatnonzero(pairs.slot < 0), np.flatnonzero(pairs.slot >= 0)
    weight, slot = pairs.weight[uniform], pairs.slot[mixed]
    mean += _multiples(given.mean, pairs.geounit[uniform], weight, pairs.area[uniform], areas)
    part = np.zeros((len(mixed), *domain.cell.shape))
    finite, infinite = [], []
    for number, kind in enumerate(domain.kinds):
        v, which = given.covariance.stacks[number], given.covariance.which[pairs.geounit]
        gain = np.ascontiguousarray(carried.gain[number][slot])
        found = _multiples(v, which[uniform], weight**2, pairs.area[uniform], areas)
        here = gain @ v[which[mixed]] @ transposed(gain) + carried.rest[number][slot]
        finite.append(found + _summed(here, pairs.area[mixed], areas))
        lost = _summed(carried.loose[number][slot], pairs.area[mixed], areas)
        if given.unknown is not None:
            u, kinds = given.unknown.stacks[number], given.unknown.which[pairs.geounit]
            lost += _multiples(u, kinds[uniform], weight**2, pairs.area[uniform], areas)
            lost += _summed(gain @ u[kinds[mixed]] @ transposed(gain), pairs.area[mixed], areas)
        infinite.append(lost)
        apply_blocks(
            given.mean[pairs.geounit[mixed]],
            gain,
            np.arange(len(mixed)),
            kind.offsets,
            kind.copies,
            kind.dimension,
            part,
        )
    part += carried.offset[slot]
    mean += _summed(part, pairs.area[mixed], areas)
    unknown = Operators.of(domain, infinite) if any(stack.any() for stack in infinite) else None
    return Estimates(-1, 0, domain.backward(mean), Operators.of(domain, finite), unknown)
