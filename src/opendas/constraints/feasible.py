"""Contradictions that public bounds and declared invariants show by themselves, before anything is drawn.

The check spends no budget: no noise has been drawn, and it reads only values that will be published anyway.
It has two parts:

- every geounit by itself, at every geolevel: from the smallest set of cells that a constraint counts to the
  largest, the least that is asked for and the room that there is;
- geounits together, where invariants are taken at several geolevels or their sets of cells cross: one program
  in whole numbers for each geounit of the topmost of these levels.

The message gives the smallest contradictory set of constraints.

Axes: ``g`` geounits of a level, ``B`` bounds, ``n`` cells, ``a`` atoms, ``r`` rows of constraints.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from opendas.arrays import Bools, Ints
from opendas.constraints.conflicts import forest, is_laminar
from opendas.constraints.table import ConstraintTable
from opendas.constraints.tiers import Tiers
from opendas.errors import InfeasibleFamily
from opendas.geography.spine import Spine
from opendas.schema.product import Product
from opendas.solvers.problem.conflict import NO_LIMIT, RangeSystem, can_hold

log = logging.getLogger(__name__)

STEP = "before anything is drawn"
ADVICE = (
    "Nothing was drawn and nothing is charged. Check the frame's unit counts against the data. In a run "
    "file, drop_invariants in [run] gives up an invariant."
)
PUBLIC_ADVICE = (
    "Nothing was drawn and nothing is charged. Check the frame's unit counts, the bounds of the product, and "
    "the release that the run is tied to, if any."
)
"""The same where no invariant is held."""
CHUNK = 100_000
"""Geounits that are looked at together, one by one."""
BATCH = 20_000
"""Variables of a program in whole numbers; geounits of a level share one, a large one has its own."""
LARGEST = 400_000
MOST = 3_000_000
"""Variables that are looked at in one program, and in all."""


def check_feasible(product: Product, spine: Spine, table: ConstraintTable) -> None:
    """Refuse constraints that no table of non-negative counts can satisfy.

    Raises `InfeasibleFamily` naming a geounit of the lowest geolevel that shows the contradiction, and the
    smallest set of constraints of it, and if need be of what lies below, that cannot hold together.

    Notes
    -----
    Complete but for two cases: a component above :data:`LARGEST` variables, and a question that branch and
    bound gives up. Both are found when their family is estimated.
    """
    tiers = Tiers.of(product, spine, table)
    laminar = is_laminar(tiers.sets)
    for number in reversed(range(len(tiers.tiers))):
        bad = _contradicting_themselves(tiers, number, laminar=laminar)
        if len(bad):
            _refuse(tiers, number, bad)
    span = tiers.span(laminar=laminar)
    if span is not None:
        _check_with_descendants(tiers, *span)


def _refuse(tiers: Tiers, number: int, bad: Ints) -> None:
    """Raise for the first of some geounits whose contradiction can be proved."""
    tier = tiers.tiers[number]
    for geounit in bad[:20].tolist():
        others = [tier.label(other) for other in bad.tolist() if other != geounit]
        conflict = tiers.explain(number, geounit, others)
        if conflict is not None:
            advice = ADVICE if any(each.invariants for each in tiers.tiers) else PUBLIC_ADVICE
            raise InfeasibleFamily(tier.label(geounit), STEP, (), conflict, advice)


# Geounits by themselves -------------------------------------------------------------------------------------


def _contradicting_themselves(tiers: Tiers, number: int, *, laminar: bool) -> Ints:
    """Return geounits of a tier whose own constraints contradict each other.

    Exact where the sets of cells are laminar; else no feasible geounit is named, though some that are not
    may be missed.
    """
    tier = tiers.tiers[number]
    if not tier.invariants and not tier.lower.any():
        return np.zeros(0, dtype=np.int64)
    order, below, open_below = forest(tiers.sets, tiers.possible, laminar=laminar)
    found = []
    for start in range(0, len(tier), CHUNK):
        lower, upper = tiers.rows(number, start, min(start + CHUNK, len(tier)))
        found.append(start + np.flatnonzero(_crossed(lower, upper, order, below, open_below)))
    return np.concatenate([*found, np.zeros(0, np.int64)])


def _crossed(
    lower: Ints,
    upper: Ints,
    order: list[int],
    below: list[list[int]],
    leaves_out: Bools,
) -> Bools:
    """Go from small sets to large; return the geounits in which more is asked for than there is room for."""
    low, high = lower.copy(), np.minimum(upper, NO_LIMIT)
    wrong = np.zeros(lower.shape[1], dtype=bool)
    for one in order:
        asked = np.zeros(lower.shape[1], dtype=np.int64)
        room = np.full(lower.shape[1], NO_LIMIT if leaves_out[one] else 0, dtype=np.int64)
        for inner in below[one]:
            asked = np.minimum(asked + low[inner], NO_LIMIT)
            room = np.minimum(room + high[inner], NO_LIMIT)
        np.maximum(low[one], asked, out=low[one])
        np.minimum(high[one], room, out=high[one])
        wrong |= low[one] > high[one]
        np.minimum(low[one], high[one], out=low[one])
    return wrong


# Geounits together ------------------------------------------------------------------------------------------


def _check_with_descendants(tiers: Tiers, top: int, bottom: int) -> None:
    """Look at each geounit of a tier with what lies below it, down to another."""
    starts = tiers.starts(top, bottom)
    width = np.diff(starts) * len(tiers.atoms)
    skipped = int((width > LARGEST).sum())
    if int(width.sum()) > MOST or skipped:
        log.info(
            "%d geounits of geolevel %s are too large to be checked before the draw together with all that "
            "lies below them; a contradiction there would be found by the estimation",
            len(width) if int(width.sum()) > MOST else skipped,
            tiers.tiers[top].name,
        )
        if int(width.sum()) > MOST:
            return
    for first, last in _batches(width):
        for geounit in _infeasible_geounits(tiers, top, bottom, first, last):
            _refuse(tiers, top, np.array([geounit]))


def _batches(width: Ints) -> Iterator[tuple[int, int]]:
    """Cut geounits into runs of about :data:`BATCH` variables, without those that are too large."""
    start, size = 0, 0
    for i, own in enumerate(width.tolist()):
        if i > start and (own > LARGEST or size + own > BATCH):
            yield start, i
            start, size = i, 0
        if own > LARGEST:
            start, size = i + 1, 0
        else:
            size += own
    if start < len(width):
        yield start, len(width)


def _infeasible_geounits(tiers: Tiers, top: int, bottom: int, first: int, last: int) -> Iterator[int]:
    """Yield the geounits of a run whose constraints cannot hold, by halving."""
    if can_hold(_program(tiers, top, bottom, first, last)):
        return
    if last - first == 1:
        yield first
        return
    middle = (first + last) // 2
    yield from _infeasible_geounits(tiers, top, bottom, first, middle)
    yield from _infeasible_geounits(tiers, top, bottom, middle, last)


def _program(tiers: Tiers, top: int, bottom: int, first: int, last: int) -> RangeSystem:
    """Return the constraints of a run of geounits of the top tier down to the bottom tier.

    Variables: possible atoms of each geounit of the bottom tier.
    """
    starts = tiers.starts(top, bottom)
    low, high = int(starts[first]), int(starts[last])
    count = high - low
    possible = np.flatnonzero(tiers.possible)
    matrices, lowers, uppers = [], [], []

    def add(matrix: Any, lower: Ints, upper: Ints) -> None:
        keep = np.flatnonzero((lower > 0) | (upper < NO_LIMIT))
        matrices.append(sparse.csr_array(matrix)[keep])
        lowers.append(lower[keep])
        uppers.append(upper[keep])

    tier = tiers.tiers[bottom]
    bounds = sparse.csr_array(tiers.bound_sets[:, possible].astype(np.int64))
    bound_rows: Any = sparse.kron(sparse.eye_array(count, dtype=np.int64), bounds, format="csr")
    add(bound_rows, tier.lower[low:high].ravel(), tier.upper[low:high].ravel())
    if tier.linear is not None:
        sums = sparse.csr_array(tier.linear.coefficients[:, possible])
        at_most = tier.linear.at_most[low:high].ravel()
        linear_rows: Any = sparse.kron(sparse.eye_array(count, dtype=np.int64), sums, format="csr")
        add(linear_rows, np.full(len(at_most), -NO_LIMIT), at_most)
    for number in range(top, bottom + 1):
        inside = tiers.starts(top, number)
        a, b = int(inside[first]), int(inside[last])
        down = tiers.starts(number, bottom)[a : b + 1] - low
        place = (np.repeat(np.arange(b - a), np.diff(down)), np.arange(count))
        member: Any = sparse.csr_array((np.ones(count, np.int64), place), shape=(b - a, count))
        for invariant in tiers.tiers[number].own:
            rows = tiers.atoms.rows(invariant.query)[:, possible]
            answers = invariant.answers[a:b].ravel()
            add(sparse.kron(member, rows, format="csr"), answers, answers)
    return RangeSystem(
        sparse.csr_array(sparse.vstack(matrices, format="csr")),
        np.concatenate(lowers),
        np.concatenate(uppers),
    )
