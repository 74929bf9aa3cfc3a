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
from opendas.gls.information import Extended
from opendas.gls.kernels import add_groups
from opendas.gls.operators import Operators, mask_codes


def dual(
    finite: Operators, infinite: Operators | None, allowed: Bools, *, plain: bool
) -> tuple[Operators, Operators | None]:
    """Invert information to covariance, or covariance to information, on the allowed categories.

    - `finite`: zero outside the allowed categories.
    - `infinite`: positive where the operator is infinite; None for nowhere.
    - `allowed` (N, k).
    - `plain`: every operator is positive definite on its allowed categories, and infinite nowhere.
    - Returns `finite`, `infinite`: of the inverses; a direction in which the one is zero is one in which the
      other is infinite.
    """
    if plain:
        return finite.inverse(allowed), None
    domain = finite.domain
    other = finite.which * 0 if infinite is None else infinite.which
    codes = mask_codes(allowed)
    triples = (finite.which * (int(other.max(initial=0)) + 1) + other) * (int(codes.max(initial=0)) + 1)
    _, first, which = np.unique(triples + codes, return_index=True, return_inverse=True)
    rows = allowed[first]
    found, unknown = [], []
    for number, kind in enumerate(domain.kinds):
        stack = finite.stacks[number][finite.which[first]]
        loose = np.zeros_like(stack) if infinite is None else infinite.stacks[number][other[first]]
        wide = np.repeat(rows, kind.dimension, axis=1)
        keep = wide[:, None, :, None] & wide[:, None, None, :]
        # What is not allowed is set apart with an eigenvalue of the size of the others.
        size = stack.shape[-1]
        scale = np.trace(stack, axis1=2, axis2=3) / np.maximum(wide.sum(axis=1), 1)[:, None]
        scale[scale == 0.0] = 1.0
        filled = stack.copy()
        filled[:, :, np.arange(size), np.arange(size)] += np.where(wide[:, None, :], 0.0, scale[:, :, None])
        inverse = Extended((filled,), (loose.copy(),)).dual()
        result = np.where(keep, inverse.finite[0], 0.0)
        # An eigenvalue of the inverse is at least one over the trace: anything less is rounding, and would
        # be taken for a direction known almost exactly one level further.
        least = np.trace(stack, axis1=2, axis2=3)
        result[np.trace(result, axis1=2, axis2=3) * least < 0.5] = 0.0
        found.append(result)
        loose = np.zeros_like(stack) if inverse.infinite is None else inverse.infinite[0]
        unknown.append(np.where(keep, loose, 0.0))
    which = which.ravel().astype(np.int64)
    return Operators(domain, tuple(found), which), Operators(domain, tuple(unknown), which)


@dataclass(frozen=True, eq=False)
class SubtreeEstimates:
    """Estimates of consecutive geounits, or of groups of them, from their subtrees."""

    covariance: Operators  # ``V``
    unknown: Operators | None  # ``U``: directions of which nothing is known; None for none
    mean: Floats  # (N, k, e): ``x`` in block order; without meaning in unknown directions

    @classmethod
    def joined(cls, parts: Sequence[SubtreeEstimates]) -> SubtreeEstimates:
        """Return the estimates of several runs of geounits, one after the other."""
        unknown = [part.unknown for part in parts if part.unknown is not None]
        return cls(
            Operators.joined([part.covariance for part in parts]),
            Operators.joined(unknown) if unknown else None,
            np.concatenate([part.mean for part in parts]),
        )

    @property
    def domain(self) -> Domain:
        """The cell space."""
        return self.covariance.domain


def subtree_estimates(
    precision: Operators,
    linear: Floats,
    exact: Operators | None,
    exact_linear: Floats | None,
    allowed: Bools,
    *,
    plain: bool,
) -> SubtreeEstimates:
    """Turn information into an estimate.

    - `precision`, `exact`: ``P`` and ``M``, zero outside the allowed categories.
    - `linear`, `exact_linear` (N, k, e): ``b`` and ``r`` in block order.
    - `allowed` (N, k).
    - `plain`: see :func:`dual`.
    """
    covariance, unknown = dual(precision, exact, allowed, plain=plain)
    if exact is None or exact_linear is None:
        return SubtreeEstimates(covariance, unknown, covariance.apply_blocks(linear))
    held = dual(exact, None, allowed, plain=False)[0].apply_blocks(exact_linear)
    rest = linear - precision.apply_blocks(held)
    return SubtreeEstimates(covariance, unknown, held + covariance.apply_blocks(rest))


def pooled(part: SubtreeEstimates, starts: Ints, allowed: Bools) -> SubtreeEstimates:
    """Return the sums of the estimates of consecutive geounits ``starts[i]:starts[i + 1]``, in order."""
    family = np.repeat(np.arange(len(starts) - 1, dtype=np.int64), np.diff(starts))
    mean = np.zeros((len(starts) - 1, *part.mean.shape[1:]))
    add_groups(part.mean, family, allowed, mean)
    unknown = None if part.unknown is None else part.unknown.sum(starts)
    return SubtreeEstimates(part.covariance.sum(starts), unknown, mean)
