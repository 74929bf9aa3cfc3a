"""Sums of cells as rows, in the coordinates in which least squares works: variances of all of them at once.

Axes: ``t`` rows, ``r`` different kinds of rows, ``n`` cells, ``U`` different operators; blocks as in
:mod:`opendas.gls.cells`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opendas.arrays import Bools, Floats, Ints
from opendas.arrays.kernels import GOLDEN, mixed
from opendas.gls.cells import Domain
from opendas.gls.downward import Estimates
from opendas.gls.operators import Operators
from opendas.schema.query_groups import QueryGroup

_CHUNK = 8_000_000
"""Numbers held at once."""

_DIGITS = 9

_UNKNOWN = 1e-6
"""A quadratic form of unknown directions above this is not zero."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Sums over cells; rows that every operator of the domain treats alike are one kind."""

    domain: Domain
    members: Bools  # (t, n)
    of_row: Ints  # (t,): kind of each row
    first: Ints  # (r,): one row of each kind

    @classmethod
    def build(cls, domain: Domain, members: Bools) -> Rows:
        """Find out which rows are of one kind."""
        keys = []
        for outer in _outers(domain, members):
            # Two numbers made of thousands tell rows apart as all of these would, with factors that follow no
            # rule: multiples of a root have equal sums where the places have.
            key = np.zeros((len(outer[0]), 2))
            done = 1
            for stack in outer:
                place = np.arange(done, done + stack[0].size, dtype=np.uint64)
                key += stack.reshape(len(stack), -1) @ _scattered(place)
                done += len(place)
            keys.append(key)
        found = np.concatenate([np.zeros((0, 2)), *keys])
        scale = max(1.0, float(np.abs(found).max(initial=0.0)))
        _, first, which = np.unique(
            np.round(found / scale, _DIGITS), axis=0, return_index=True, return_inverse=True
        )
        return cls(domain, members, which.ravel().astype(np.int64), first.astype(np.int64))

    @classmethod
    def of_query(cls, domain: Domain, query: QueryGroup) -> Rows:
        """Return the rows of any query group of the product, measured or not."""
        return cls.build(domain, query.members)

    def __len__(self) -> int:
        return len(self.members)

    @property
    def kinds(self) -> Bools:
        """One row of each kind, bool (r, n)."""
        return self.members[self.first]

    def values(self, mean: Floats) -> Floats:
        """Return the sums, float64 (g, t), of cell vectors, float64 (g, n)."""
        return np.asarray(mean @ self.members.T.astype(np.float64))

    def variances(self, found: Estimates) -> tuple[Floats, Ints]:
        """Return the variance of every kind of row for the different covariances, and each geounit's.

        - Returns `variances` (c, r): in squared counts; infinite where the measurements say nothing.
        - Returns `which` (g,).
        """
        variance, which = np.maximum(self.quadratic(found.covariance), 0.0), found.covariance.which
        unknown = found.covariance.infinite
        if unknown is not None:
            variance = np.where(self.quadratic(unknown) > _UNKNOWN, np.inf, variance)
        return variance, which

    def answers(self, found: Estimates) -> tuple[Floats, Floats]:
        """Return estimate and variance of every row, float64 (g, t).

        In counts and squared counts; estimate not a number and variance infinite where the measurements say
        nothing.
        """
        kinds, which = self.variances(found)
        variances = kinds[which][:, self.of_row]
        return np.where(np.isinf(variances), np.nan, self.values(found.mean)), variances

    def quadratic(self, operators: Operators) -> Floats:
        """Return ``row' A row`` for every different operator and kind of row, float64 (U, r)."""
        found = []
        for outer in _outers(self.domain, self.kinds):
            part = np.zeros((len(operators.stacks), len(outer[0])))
            for stack, products in zip(operators.stacks.finite, outer, strict=True):
                part += stack.reshape(len(stack), products[0].size) @ products.reshape(len(products), -1).T
            found.append(part)
        empty = np.zeros((len(operators.stacks), 0))
        return np.concatenate([empty, *found], axis=1)


def _scattered(place: NDArray[np.uint64]) -> Floats:
    """Return two numbers in [0, 1) for each place, float64 (p, 2), as SplitMix64 mixes them (Steele 2014)."""
    steps = np.stack([2 * place - np.uint64(1), 2 * place], axis=1) * GOLDEN
    return np.asarray(mixed(steps) * 2.0**-64)


def _outers(domain: Domain, members: Bools) -> Iterator[list[Floats]]:
    """Yield, for some rows at a time and each dimension of blocks, sums of outer products of coordinates."""
    largest = max(len(kind.offsets) * (domain.categories * kind.dimension) ** 2 for kind in domain.kinds)
    step = max(1, _CHUNK // max(largest, domain.cells))
    for start in range(0, len(members), step):
        some = members[start : start + step].astype(np.float64)
        x = domain.forward(some)
        found = []
        for kind in domain.kinds:
            size = domain.categories * kind.dimension
            outer = np.zeros((len(some), len(kind.offsets), size, size))
            for block, (offset, copies) in enumerate(
                zip(kind.offsets.tolist(), kind.copies.tolist(), strict=True)
            ):
                part = x[:, :, offset : offset + kind.dimension * copies].reshape(len(some), size, copies)
                outer[:, block] = part @ np.swapaxes(part, 1, 2)
            found.append(outer)
        yield found
