"""The estimate of a total from its subtree, with exact directions and unknown directions.

Information comes in two parts: a finite one, ``P x = b`` with weight, and an infinite one, ``M x = r``, for
what is published exactly. Its inverse is a covariance with an unknown part ``U`` in the directions of which
nothing is known:

    e = M^+ r,   V = (P on the null space of M)^+,   x = e + V (b - P e).

Where a level's information has full rank and nothing is exact, this is plain inversion (``plain``). See
:mod:`opendas.gls.information` for the inverses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opendas.arrays import Bools, Floats, Ints
from opendas.gls.cells import Domain
from opendas.gls.kernels import add_groups
from opendas.gls.operators import Operators


@dataclass(frozen=True, eq=False)
class SubtreeEstimates:
    """Estimates of consecutive geounits, or of groups of them, from their subtrees."""

    covariance: Operators  # ``V``, infinite in the directions ``U`` of which nothing is known
    mean: Floats  # (N, k, e): ``x`` in block order; without meaning in unknown directions

    @classmethod
    def joined(cls, parts: Sequence[SubtreeEstimates]) -> SubtreeEstimates:
        """Return the estimates of several runs of geounits, one after the other."""
        covariance = Operators.joined([part.covariance for part in parts])
        return cls(covariance, np.concatenate([part.mean for part in parts]))

    @property
    def domain(self) -> Domain:
        """The cell space."""
        return self.covariance.domain


def subtree_estimates(
    precision: Operators, linear: Floats, exact_linear: Floats | None, allowed: Bools, *, plain: bool
) -> SubtreeEstimates:
    """Turn information into an estimate.

    - `precision`: ``P``, infinite where ``M`` is positive; zero outside the allowed categories.
    - `linear`, `exact_linear` (N, k, e): ``b`` and ``r`` in block order.
    - `allowed` (N, k).
    - `plain`: see :meth:`opendas.gls.operators.Operators.dual`.
    """
    covariance, exact = precision.dual(allowed, plain=plain), precision.infinite
    if exact is None or exact_linear is None:
        return SubtreeEstimates(covariance, covariance.apply_blocks(linear))
    held = exact.dual(allowed, plain=False).apply_blocks(exact_linear)
    rest = linear - precision.apply_blocks(held)
    return SubtreeEstimates(covariance, held + covariance.apply_blocks(rest))


def pooled(part: SubtreeEstimates, starts: Ints, allowed: Bools) -> SubtreeEstimates:
    """Return the sums of the estimates of consecutive geounits ``starts[i]:starts[i + 1]``, in order."""
    family = np.repeat(np.arange(len(starts) - 1, dtype=np.int64), np.diff(starts))
    mean = np.zeros((len(starts) - 1, *part.mean.shape[1:]))
    add_groups(part.mean, family, allowed, mean)
    return SubtreeEstimates(part.covariance.sum(starts), mean)
