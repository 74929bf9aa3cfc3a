"""Up the tree: what each subtree says about its own total.

With ``w = 1 / variance``, a geounit's own measurements say ``P = sum_q w_q Q_q'Q_q`` and
``b = sum_q w_q Q_q' m_q``. A subtree says

    V_c = (P*_c)^-1,  S = sum_c V_c,  y = sum_c V_c b*_c,  P* = P + S^-1,  b* = b + S^-1 y,

with ``P* = P`` and ``b* = b`` at the leaves, all inverses on the allowed cells, zero elsewhere. Leaves of one
parent with the same mask and noise have the same ``V``, so their answers are summed, as integers, before
anything else is done with them; equal matrices are inverted once.

Axes: ``g`` geounits, ``q`` query groups, ``n`` cells; see also :mod:`opendas.whole_tree.domain`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opendas.errors import EstimationError
from opendas.optimize.blas import one_blas_thread
from opendas.whole_tree.domain import Floats, Ints
from opendas.whole_tree.kernels import add_integers, add_segments, spread
from opendas.whole_tree.model import Range, TreeModel
from opendas.whole_tree.operators import Operators

__all__ = ["Below", "Full", "LevelStatistics", "own_linear", "up_pass"]

Full = Callable[[int, int, int], list[npt.NDArray[np.int64]]]
"""All answers, int64 (geounits, m_q), of each measured query group: of (level, first, geounits)."""

CHUNK = 8_000_000
"""Answers of leaves that are held at once."""


@dataclass(frozen=True, eq=False)
class LevelStatistics:
    """What the subtrees of consecutive geounits say about their own totals.

    Parameters
    ----------
    level, first : int
    precision : Operators
        ``P*`` of each geounit, zero outside its allowed cells.
    linear : float64 (g, n) or None
        ``b*``, zero outside the allowed cells. None at the leaves, where it is that of a geounit's own
        answers and found when needed (:func:`own_linear`).
    weights : float64 (g, q)
        Weight that each query group would have in ``P*`` if nothing were masked and all children were alike.
    """

    level: int
    first: int
    precision: Operators
    linear: Floats | None
    weights: Floats

    def __len__(self) -> int:
        return len(self.precision)

    @property
    def last(self) -> int:
        """The number after that of the last geounit."""
        return self.first + len(self)


@dataclass(frozen=True, eq=False)
class Below:
    """What all children of consecutive geounits say together about the geounits.

    Parameters
    ----------
    level, first : int
        Of the parents.
    covariance : Operators
        ``S``, one for each parent.
    mean : float64 (g, n)
        ``y``.
    weights : float64 (g, q)
        One over the sum, over the children, of one over their weights.
    """

    level: int
    first: int
    covariance: Operators
    mean: Floats
    weights: Floats

    def __len__(self) -> int:
        return len(self.covariance)

    @classmethod
    def joined(cls, parts: Sequence[Below]) -> Below:
        """Put together what tasks found for consecutive parents, in order."""
        for one, other in itertools.pairwise(parts):
            if other.level != one.level or other.first != one.first + len(one):
                raise EstimationError(
                    f"what lies below level {other.level} does not join: geounit {other.first} follows "
                    f"{one.first + len(one)}."
                )
        covariance = Operators.joined([part.covariance for part in parts])
        return cls(
            parts[0].level,
            parts[0].first,
            covariance,
            np.concatenate([part.mean for part in parts]),
            np.concatenate([part.weights for part in parts]),
        )


def own_linear(model: TreeModel, level: int, first: int, answers: Sequence[npt.NDArray[np.int64]]) -> Floats:
    """Return ``b = sum_q w_q Q_q' m_q`` of consecutive geounits on their allowed cells, float64 (g, n)."""
    return model.domain.unplaced(_placed(model, level, first, answers))


def _placed(model: TreeModel, level: int, first: int, answers: Sequence[npt.NDArray[np.int64]]) -> Floats:
    """Return ``b`` by dense category, float64 (g, k, e)."""
    here = model.levels[level]
    count = len(answers[0]) if answers else 0
    together = np.concatenate(answers, axis=1) if answers else np.zeros((count, 0), dtype=np.int64)
    out = np.zeros((count, *model.domain.cell.shape))
    own = here.own[first - here.first : first - here.first + count]
    allowed = here.allowed(first, first + count)
    used = np.array(here.measured, dtype=np.int64)
    spread(together, here.weights, own, model.columns[level], used, allowed, out)
    return out


def up_pass(
    model: TreeModel, ranges: Mapping[int, Range], full: Full, below: Below | None = None
) -> tuple[tuple[LevelStatistics, ...], Below | None]:
    """Pass information up a part of the tree.

    Parameters
    ----------
    model : TreeModel
    ranges : mapping of level to (first, stop)
        Consecutive levels; the children of the geounits of one are the geounits of the next. The families
        of the highest must be whole, unless it is the top of the tree.
    full : callable
        Gives the noisy answers (:data:`Full`).
    below : Below, optional
        What lies below the lowest level named, where it is not that of the leaves.

    Returns
    -------
    statistics : tuple of LevelStatistics
        One for each level named, highest first.
    below : Below or None
        What the geounits of the highest level named say about their parents; None at the top of the tree.

    Notes
    -----
    The same bytes however a tree is cut into parts: sums run over the children of one geounit, in order.
    """
    numbers = sorted(ranges)
    last = len(model.levels) - 1
    if numbers != list(range(numbers[0], numbers[-1] + 1)):
        raise EstimationError(f"the levels of one pass follow each other, found {numbers}.")
    if (below is None) != (numbers[-1] == last):
        raise EstimationError("what lies below is given where the lowest level is not that of the leaves.")
    found: list[LevelStatistics] = []
    with one_blas_thread():
        for number in reversed(numbers):
            start, stop = ranges[number]
            if number == last:
                statistics = _leaves(model, start, stop)
            else:
                if below is None or (below.level, below.first, len(below)) != (number, start, stop - start):
                    raise EstimationError(f"what lies below level {number} is not that of its geounits.")
                statistics = _inner(model, number, start, stop, full, below)
            found.append(statistics)
            if number == 0:
                below = None
            elif number == last:
                below = _below_leaves(model, statistics, full)
            else:
                below = _below(model, statistics)
    return tuple(reversed(found)), below


def _leaves(model: TreeModel, start: int, stop: int) -> LevelStatistics:
    level = model.levels[-1]
    own = level.own[start - level.first : stop - level.first]
    precision = model.own_information[-1].take(own).masked(level.allowed(start, stop))
    return LevelStatistics(len(model.levels) - 1, start, precision, None, level.weights[own])


def _inner(model: TreeModel, number: int, start: int, stop: int, full: Full, below: Below) -> LevelStatistics:
    level, domain = model.levels[number], model.domain
    own = level.own[start - level.first : stop - level.first]
    allowed = level.allowed(start, stop)
    information = below.covariance.inverse(allowed)
    precision = model.own_information[number].take(own).masked(allowed) + information
    linear = domain.backward(information.apply_blocks(domain.forward(below.mean)))
    if level.measured:
        linear += own_linear(model, number, start, full(number, start, stop - start))
    linear *= domain.cells_of(allowed)
    return LevelStatistics(number, start, precision, linear, level.weights[own] + below.weights)


def _below(model: TreeModel, children: LevelStatistics) -> Below:
    """Sum what inner geounits say over their parents."""
    level, domain = model.levels[children.level], model.domain
    here = slice(children.first - level.first, children.last - level.first)
    parents, starts = _families(level.parent[here])
    if children.linear is None:
        raise EstimationError("the leaves are summed by themselves")
    allowed = level.allowed(children.first, children.last)
    covariance = children.precision.inverse(allowed)
    means = covariance.apply_blocks(domain.forward(children.linear))
    total = np.zeros((len(parents), *means.shape[1:]))
    every = np.arange(len(children), dtype=np.int64)
    add_segments(means.reshape(len(means), -1), every, starts, total.reshape(len(total), -1))
    return Below(
        children.level - 1,
        int(parents[0]),
        covariance.sum(starts),
        domain.backward(total),
        _series(children.weights, starts),
    )


def _below_leaves(model: TreeModel, leaves: LevelStatistics, full: Full) -> Below:
    """Sum what leaves say over their parents, some families at a time."""
    level = model.levels[leaves.level]
    parents, starts = _families(level.parent[leaves.first - level.first : leaves.last - level.first])
    width = max(1, sum(model.sizes(leaves.level)))
    total = np.zeros((len(parents), *model.domain.cell.shape))
    allowed = level.allowed(leaves.first, leaves.last)
    covariance = leaves.precision.inverse(allowed)
    first = 0
    while first < len(parents):
        last = int(np.searchsorted(starts, starts[first] + CHUNK // width, side="right")) - 1
        last = min(max(last, first + 1), len(parents))
        _sum_leaves(model, leaves, covariance, starts[first : last + 1], full, total[first:last])
        first = last
    return Below(
        leaves.level - 1,
        int(parents[0]),
        covariance.sum(starts),
        model.domain.backward(total),
        _series(leaves.weights, starts),
    )


def _sum_leaves(
    model: TreeModel, leaves: LevelStatistics, covariance: Operators, starts: Ints, full: Full, out: Floats
) -> None:
    """Set ``sum_c V_c b_c``, float64 (g, k, e) in block order, of some families of leaves."""
    level, domain = model.levels[leaves.level], model.domain
    low, high = int(starts[0]), int(starts[-1])
    if not level.measured:
        return
    answers = full(leaves.level, leaves.first + low, high - low)
    family = np.repeat(np.arange(len(starts) - 1, dtype=np.int64), np.diff(starts))
    which = covariance.which[low:high]
    # Leaves of one parent with the same mask and noise: one sum of integers, one right-hand side.
    pairs = family * len(covariance.stacks[0]) + which
    _, first, group = np.unique(pairs, return_index=True, return_inverse=True)
    sums = np.zeros((len(first), sum(model.sizes(leaves.level))), dtype=np.int64)
    column = 0
    for values in answers:
        add_integers(values, group.ravel().astype(np.int64), sums, column)
        column += values.shape[1]
    place = leaves.first + low - level.first
    allowed = level.patterns[level.pattern[place + first]]
    linear = np.zeros((len(first), *domain.cell.shape))
    used = np.array(level.measured, dtype=np.int64)
    spread(sums, level.weights, level.own[place + first], model.columns[-1], used, allowed, linear)
    means = covariance.take(low + first).apply_blocks(domain.to_blocks(linear, allowed))
    groups = np.searchsorted(family[first], np.arange(len(starts))).astype(np.int64)
    every = np.arange(len(first), dtype=np.int64)
    add_segments(means.reshape(len(means), -1), every, groups, out.reshape(len(out), -1))


def _families(parent: Ints) -> tuple[Ints, Ints]:
    """Return the parents of consecutive children, and where each one's children begin, with the end."""
    starts = np.flatnonzero(np.diff(parent, prepend=-1))
    return parent[starts], np.append(starts, len(parent)).astype(np.int64)


def _series(weights: Floats, starts: Ints) -> Floats:
    """Return one over the sum of one over the children's weights; zero where one of them has none."""
    with np.errstate(divide="ignore"):
        variances = 1.0 / weights
        out = np.zeros((len(starts) - 1, weights.shape[1]))
        add_segments(variances, np.arange(len(weights), dtype=np.int64), starts, out)
        return np.asarray(1.0 / out)
