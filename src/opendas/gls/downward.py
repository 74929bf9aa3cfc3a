"""Down the tree: the estimate of every geounit from all measurements, with its covariance.

The root's estimate is that of its own subtree, conditioned on what is exact. Given its parent, a geounit's
estimate depends on nothing else above:

    x_c = V_c b*_c + V_c S^-1 (x_v - y_v),
    Var_c = V_c + V_c K_v V_c,  K_v = S^-1 Var_v S^-1 - S^-1,

with the quantities of :mod:`opendas.gls.upward`. Children of one parent with the same ``V`` have the same
covariance, which is found once.

Axes: ``g`` geounits, ``p`` parents, ``n`` cells, ``m`` rows of a query group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from opendas.arrays import Bools, Floats, Ints
from opendas.errors import EstimationError
from opendas.gls.information import regression, symmetric, transposed, without_rounding
from opendas.gls.kernels import add_applied, margins
from opendas.gls.model import Range, TreeModel
from opendas.gls.operators import Operators, QueryRows
from opendas.gls.subtree_estimate import Known, dual, pooled
from opendas.gls.upward import (
    Full,
    LevelStatistics,
    Sweep,
    chunks,
    conditioned,
    families,
    inner_known,
    leaf_known,
    union,
)
from opendas.schema.query_groups import QueryGroup
from opendas.solvers.blas import one_blas_thread

__all__ = ["Estimates", "down_pass", "whole_ranges"]

_UNKNOWN = 1e-6
"""A quadratic form of unknown directions above this is not zero."""


@dataclass(frozen=True, eq=False)
class Estimates:
    """Least-squares estimates of consecutive geounits from all measurements.

    Parameters
    ----------
    level, first : int
    mean : float64 (g, n)
        Unbiased estimates; zero outside the allowed cells, and without meaning in unknown directions.
    covariance : Operators
        Their covariances.
    unknown : Operators or None
        Positive on directions that no measurement sees; None for none.
    """

    level: int
    first: int
    mean: Floats
    covariance: Operators
    unknown: Operators | None = None

    def __len__(self) -> int:
        return len(self.mean)

    @classmethod
    def joined(cls, parts: Sequence[Estimates]) -> Estimates:
        """Put together the estimates of several runs of geounits of one level, in order."""
        unknown = [part.unknown for part in parts if part.unknown is not None]
        return cls(
            parts[0].level,
            parts[0].first,
            np.concatenate([part.mean for part in parts]),
            Operators.joined([part.covariance for part in parts]),
            Operators.joined(unknown) if unknown else None,
        )

    def take(self, start: int, stop: int) -> Estimates:
        """Return geounits ``start:stop``, by their numbers in the whole level."""
        here = slice(start - self.first, stop - self.first)
        unknown = None if self.unknown is None else self.unknown.take(here)
        return Estimates(self.level, start, self.mean[here], self.covariance.take(here), unknown)

    def answers(self, query: QueryGroup) -> tuple[Floats, Floats]:
        """Return estimate and variance of every answer of a query group.

        Parameters
        ----------
        query : QueryGroup
            Any of the product's, measured or not.

        Returns
        -------
        estimates, variances : float64 (g, m)
            In counts and squared counts; estimate not a number and variance infinite where the measurements
            say nothing.
        """
        found = np.zeros((len(self), query.size))
        margins(self.mean, query.row_of_cell, found)
        rows = QueryRows.build(self.covariance.domain, query)
        variances = np.maximum(rows.of(self.covariance), 0.0)
        if self.unknown is not None:
            nothing = rows.of(self.unknown) > _UNKNOWN
            variances[nothing], found[nothing] = np.inf, np.nan
        return found, variances


def whole_ranges(model: TreeModel) -> dict[int, Range]:
    """Return the ranges of all geounits of a model."""
    return {number: (level.first, level.first + len(level)) for number, level in enumerate(model.levels)}


def down_pass(sweep: Sweep, full: Full, parents: Estimates | None = None) -> Iterator[Estimates]:
    """Pass estimates down a part of the tree.

    Parameters
    ----------
    sweep : Sweep
        Of :func:`opendas.gls.upward.up_sweep`.
    full : callable
        Gives the noisy answers of the leaves once more.
    parents : Estimates, optional
        Of the parents of the highest level's geounits; without it, the highest level is the top of the tree.

    Yields
    ------
    Estimates
        Of each level, highest first; of the leaves in several runs of whole families.

    Raises
    ------
    EstimationError
        If `parents` are not those of the part.
    """
    numbers = sweep.numbers
    if (parents is None) != (numbers[0] == 0):
        raise EstimationError("parents are given where the part does not begin at the top of the tree.")
    above = parents
    if above is not None:
        below = sweep.below[numbers[0] - 1]
        above = above.take(below.first, below.first + len(below))
        if above.level != below.level or len(above) != len(below):
            raise EstimationError(
                f"the estimates of level {above.level} are not those of the part's parents."
            )
    last = len(sweep.model.levels) - 1
    for number in numbers:
        statistics = sweep.statistics[number]
        if number == last:
            yield from _leaf_estimates(sweep, statistics, above, full)
        else:
            above = Estimates.joined(list(_inner_estimates(sweep, statistics, above)))
            yield above


@dataclass(frozen=True, eq=False)
class _Given:
    """Estimates from everything, in block order, of parents or of divided geounits."""

    mean: Floats
    covariance: Operators
    unknown: Operators | None

    @classmethod
    def of(cls, estimates: Estimates) -> _Given:
        domain = estimates.covariance.domain
        return cls(domain.forward(estimates.mean), estimates.covariance, estimates.unknown)


def _level(
    sweep: Sweep, number: int, first: int, last: int, own: Known, above: Estimates | None
) -> Estimates:
    """Return the estimates of geounits ``first:last``, whole families, from what their subtrees say."""
    model = sweep.model
    level, domain = model.levels[number], model.domain
    allowed = level.allowed(first, last)
    parents, starts, groups = families(level, first, last)
    given: _Given | None = None
    together: Known | None = None
    if above is not None:
        below = sweep.below[number - 1]
        here = slice(int(parents[0]) - below.first, int(parents[-1]) + 1 - below.first)
        mean = domain.forward(below.mean[here])
        unknown = None if below.unknown is None else below.unknown.take(here)
        together = Known(below.covariance.take(here), unknown, mean)
        given = _Given.of(above.take(int(parents[0]), int(parents[-1]) + 1))
    plain_above = number > 0 and model.plain_below[number - 1]
    if level.joint is not None:
        chosen = level.joint.group[first - level.first + starts[:-1]].astype(np.int64)
        parts = pooled(own, starts, allowed)
        some = union(allowed, starts)
        wholes = conditioned(model, number, chosen, parts, some)
        if given is None or together is None:
            given = _Given(wholes.mean, wholes.covariance, wholes.unknown)
        else:
            shared = union(some, groups)
            given = _step(given, together, shared, wholes, _numbered(groups), plain=False)
        given = _step(given, parts, some, own, _numbered(starts), plain=False)
    elif given is None or together is None:
        given = _Given(own.mean, own.covariance, own.unknown)
    else:
        given = _step(given, together, union(allowed, starts), own, _numbered(starts), plain=plain_above)
    mean = domain.unplaced(domain.from_blocks(given.mean, allowed))
    return Estimates(number, first, mean, given.covariance, given.unknown)


def _numbered(starts: Ints) -> Ints:
    return np.repeat(np.arange(len(starts) - 1, dtype=np.int64), np.diff(starts))


def _step(given: _Given, together: Known, allowed: Bools, own: Known, family: Ints, *, plain: bool) -> _Given:
    """Go from parents to their children.

    Parameters
    ----------
    given : _Given
        The parents.
    together : Known
        Sums of what the children's subtrees say.
    allowed : bool (p, k)
    own : Known
        What each child's subtree says.
    family : int64 (g,)
        Parent of each child, as a position in `given`.
    """
    information, _ = dual(together.covariance, together.unknown, allowed, plain=plain)
    if plain:
        pull = information.apply_blocks(given.mean - together.mean)
        mean = own.mean  # nobody else has it
        for stack, kind in zip(own.covariance.stacks, own.domain.kinds, strict=True):
            shape = (kind.offsets, kind.copies, kind.dimension)
            add_applied(pull, family, stack, own.covariance.which, *shape, mean)
        return _Given(mean, _plain_covariance(given, information, own.covariance, family), None)
    return _loose_step(given, together, information, own, family)


def _plain_covariance(given: _Given, information: Operators, own: Operators, family: Ints) -> Operators:
    """Return ``V + V K V`` of each child, once for each pair of a parent and a matrix."""
    count = len(own.stacks[0])
    pairs, which = np.unique(family * count + own.which, return_inverse=True)
    parent, matrix = np.divmod(pairs, count)
    stacks = []
    for v, j, var in zip(own.stacks, information.stacks, given.covariance.stacks, strict=True):
        per_parent = j[information.which]
        k = per_parent @ var[given.covariance.which] @ per_parent - per_parent
        here = v[matrix]
        found = here @ k[parent] @ here
        found += here
        stacks.append(symmetric(found))
    return Operators(own.domain, tuple(stacks), which.ravel().astype(np.int64))


def _loose_step(given: _Given, together: Known, information: Operators, own: Known, family: Ints) -> _Given:
    """Go from parents to children where directions may be exact or unknown.

    Where several children are unknown, what the parent says of them is shared out; the shares themselves stay
    unknown (:func:`opendas.gls.information.regression`).
    """
    domain = own.domain
    apart = given.mean - together.mean
    every = np.arange(len(family), dtype=np.int64)
    finite, infinite, gains = [], [], []
    for number in range(len(domain.kinds)):
        v = own.covariance.stacks[number][own.covariance.which]
        j = information.stacks[number][information.which][family]
        s = together.covariance.stacks[number][together.covariance.which][family]
        var = given.covariance.stacks[number][given.covariance.which][family]
        unknown = None
        if own.unknown is not None and together.unknown is not None:
            u = _expanded(own.unknown, number)
            unknown = u, u, _expanded(together.unknown, number)[family]
        step = regression(v, v, s, j, unknown)
        finite.append(without_rounding(step.gain @ var @ transposed(step.gain) + step.rest, v))
        lost = np.zeros_like(v) if step.loose is None else step.loose
        if given.unknown is not None:
            lost = lost + step.gain @ _expanded(given.unknown, number)[family] @ transposed(step.gain)
        infinite.append(lost)
        gains.append(np.ascontiguousarray(step.gain))
    mean = own.mean + Operators(domain, tuple(gains), every).apply_blocks(apart[family])
    return _Given(mean, Operators.of(domain, finite), Operators.of(domain, infinite))


def _expanded(operators: Operators, number: int) -> Floats:
    return operators.stacks[number][operators.which]


def _family_starts(sweep: Sweep, statistics: LevelStatistics, above: Estimates | None) -> Ints:
    """Return where families begin among consecutive geounits, and their end."""
    level = sweep.model.levels[statistics.level]
    if above is None and level.joint is not None:
        return np.array([0, len(statistics)])  # parts that are roots hang together
    parent = level.parent[statistics.first - level.first : statistics.last - level.first]
    starts = np.arange(len(parent)) if above is None else np.flatnonzero(np.diff(parent, prepend=-1))
    return np.append(starts, len(parent)).astype(np.int64)


def _inner_estimates(
    sweep: Sweep, statistics: LevelStatistics, above: Estimates | None
) -> Iterator[Estimates]:
    """Yield the estimates of inner geounits, some families at a time."""
    model = sweep.model
    starts = _family_starts(sweep, statistics, above)
    for first, last in chunks(starts, 4 * model.domain.cells):
        low, high = statistics.first + int(starts[first]), statistics.first + int(starts[last])
        with one_blas_thread():
            own = inner_known(model, statistics, np.arange(low, high))
            found = _level(sweep, statistics.level, low, high, own, above)
        yield found


def _leaf_estimates(
    sweep: Sweep, leaves: LevelStatistics, above: Estimates | None, full: Full
) -> Iterator[Estimates]:
    """Yield the estimates of leaves, some families at a time."""
    model = sweep.model
    level = model.levels[-1]
    starts = _family_starts(sweep, leaves, above)
    for first, last in chunks(starts, max(1, sum(model.sizes(leaves.level)))):
        low, high = leaves.first + int(starts[first]), leaves.first + int(starts[last])
        answers = full(leaves.level, low, high - low) if level.measured else []
        with one_blas_thread():
            own = leaf_known(model, leaves, np.arange(low, high), answers)
            found = _level(sweep, leaves.level, low, high, own, above)
        yield found
