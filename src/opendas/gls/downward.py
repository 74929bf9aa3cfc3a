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
from opendas.arrays.blas import one_blas_thread
from opendas.gls.information import Extended, conditional, symmetric
from opendas.gls.kernels import add_applied
from opendas.gls.operators import Operators
from opendas.gls.subtree_estimate import SubtreeEstimates, pooled
from opendas.gls.upward import (
    Sweep,
    chunks,
    conditioned,
    families,
    union,
)


@dataclass(frozen=True, eq=False)
class Estimates:
    """Least-squares estimates of consecutive geounits from all measurements."""

    level: int
    first: int
    # (g, n): unbiased estimates; zero outside the allowed cells, and without meaning in unknown directions.
    mean: Floats
    covariance: Operators  # their covariances, infinite in directions that no measurement sees

    def __len__(self) -> int:
        return len(self.mean)

    @classmethod
    def joined(cls, parts: Sequence[Estimates]) -> Estimates:
        """Put together the estimates of several runs of geounits of one level, in order."""
        return cls(
            parts[0].level,
            parts[0].first,
            np.concatenate([part.mean for part in parts]),
            Operators.joined([part.covariance for part in parts]),
        )

    def take(self, start: int, stop: int) -> Estimates:
        """Return geounits ``start:stop``, by their numbers in the whole level."""
        here = slice(start - self.first, stop - self.first)
        return Estimates(self.level, start, self.mean[here], self.covariance.take(here))


def down_pass(sweep: Sweep) -> Iterator[Estimates]:
    """Pass estimates down a tree.

    - `sweep`: of :func:`opendas.gls.upward.up_sweep`.
    - Returns: of each level, highest first; of the leaves in several runs of whole families.

    Notes
    -----
    Cumings-Menon et al. (2024), equations (3.3) and (3.4): the estimates and their variances.
    """
    above: Estimates | None = None
    for number in range(len(sweep.model.levels) - 1):
        above = Estimates.joined(list(_runs(sweep, number, above)))
        yield above
    yield from _runs(sweep, len(sweep.model.levels) - 1, above)


def _runs(sweep: Sweep, number: int, above: Estimates | None) -> Iterator[Estimates]:
    """Yield the estimates of the geounits of a level, some families at a time."""
    model = sweep.model
    level = model.levels[number]
    inner = number < len(model.levels) - 1
    width = 4 * model.domain.cells if inner else max(1, sum(model.sizes(number)))
    starts = np.arange(len(level)) if above is None else np.flatnonzero(np.diff(level.parent, prepend=-1))
    if above is None and level.joint is not None:
        starts = np.zeros(1, dtype=np.int64)  # parts that are roots are estimated together
    starts = np.append(starts, len(level)).astype(np.int64)
    for first, last in chunks(starts, width):
        low, high = int(starts[first]), int(starts[last])
        with one_blas_thread():
            yield _level(sweep, number, low, high, above)


def _level(sweep: Sweep, number: int, first: int, last: int, above: Estimates | None) -> Estimates:
    """Return the estimates of geounits ``first:last``, whole families."""
    model = sweep.model
    level, domain = model.levels[number], model.domain
    own = sweep.estimates(number, np.arange(first, last))
    allowed = level.allowed(first, last)
    parents, starts, groups = families(level, first, last)
    given: SubtreeEstimates | None = None
    together: SubtreeEstimates | None = None
    if above is not None:
        here = slice(int(parents[0]), int(parents[-1]) + 1)
        together = sweep.below[number - 1].estimates(domain, here)
        upper = above.take(here.start, here.stop)
        given = SubtreeEstimates(upper.covariance, domain.forward(upper.mean))
    if level.joint is not None:
        chosen = level.joint.group[first + starts[:-1]].astype(np.int64)
        parts = pooled(own, starts, allowed)
        some = union(allowed, starts)
        wholes = conditioned(model, number, chosen, parts, some)
        if given is None or together is None:
            given = wholes
        else:
            given = _step(given, together, union(some, groups), wholes, _numbered(groups), plain=False)
        given = _step(given, parts, some, own, _numbered(starts), plain=False)
    elif given is None or together is None:
        given = own
    else:
        plain = model.plain_below[number - 1]
        given = _step(given, together, union(allowed, starts), own, _numbered(starts), plain=plain)
    mean = domain.unplaced(domain.from_blocks(given.mean, allowed))
    return Estimates(number, first, mean, given.covariance)


def _numbered(starts: Ints) -> Ints:
    return np.repeat(np.arange(len(starts) - 1, dtype=np.int64), np.diff(starts))


def _step(
    given: SubtreeEstimates,
    together: SubtreeEstimates,
    allowed: Bools,
    own: SubtreeEstimates,
    family: Ints,
    *,
    plain: bool,
) -> SubtreeEstimates:
    """Go from parents to their children.

    - `given`: the parents, from everything.
    - `together`: sums of what the children's subtrees say.
    - `allowed` (p, k).
    - `own`: what each child's subtree says.
    - `family` (g,): parent of each child, as a position in `given`.
    """
    information = together.covariance.dual(allowed, plain=plain)
    if plain:
        pull = information.apply_blocks(given.mean - together.mean)
        mean = own.mean  # nobody else has it
        for stack, kind in zip(own.covariance.stacks.finite, own.domain.kinds, strict=True):
            add_applied(pull, family, stack, own.covariance.which, kind.placement, mean)
        return SubtreeEstimates(_plain_covariance(given, information, own.covariance, family), mean)
    return _loose_step(given, together, information, own, family)


def _plain_covariance(
    given: SubtreeEstimates, information: Operators, own: Operators, family: Ints
) -> Operators:
    """Return ``V + V K V`` of each child, once for each pair of a parent and a matrix."""
    count = len(own.stacks)
    pairs, which = np.unique(family * count + own.which, return_inverse=True)
    parent, matrix = np.divmod(pairs, count)
    stacks = []
    for v, j, var in zip(
        own.stacks.finite, information.stacks.finite, given.covariance.stacks.finite, strict=True
    ):
        per_parent = j[information.which]
        k = per_parent @ var[given.covariance.which] @ per_parent - per_parent
        here = v[matrix]
        found = here @ k[parent] @ here
        found += here
        stacks.append(symmetric(found))
    return Operators(own.domain, Extended(tuple(stacks)), which.ravel().astype(np.int64))


def _loose_step(
    given: SubtreeEstimates,
    together: SubtreeEstimates,
    information: Operators,
    own: SubtreeEstimates,
    family: Ints,
) -> SubtreeEstimates:
    """Go from parents to children where directions may be exact or unknown.

    Where several children are unknown, what the parent says of them is shared out; the shares themselves stay
    unknown (:func:`opendas.gls.information.regression`).
    """
    above = (together.covariance, information, given.covariance)
    gains, covariance = conditional(
        own.covariance.expanded(), *(operators.take(family).expanded() for operators in above)
    )
    pull = Operators.of(own.domain, Extended(tuple(np.ascontiguousarray(gain) for gain in gains)))
    mean = own.mean + pull.apply_blocks((given.mean - together.mean)[family])
    return SubtreeEstimates(Operators.of(own.domain, covariance), mean)
