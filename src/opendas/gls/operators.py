"""Many symmetric operators on cells, as stacks of small matrices, equal ones stored once.

An operator may be infinite in some directions (:class:`opendas.gls.information.Extended`): information where
something is published exactly, a covariance where nothing is known. What operators are applied to, they are
applied to with their finite part.

Axes as in :mod:`opendas.gls.cells`: ``N`` operators, ``U`` different ones, ``s`` support cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Floats, Ints
from opendas.errors import EstimationError
from opendas.gls.cells import Domain
from opendas.gls.information import Extended, Stacks
from opendas.gls.kernels import add_multiples, apply_blocks, invert, supported
from opendas.solvers.least_squares.paired import PairedCurvature


def inverse(stack: Floats, rows: Bools) -> Floats:
    """Invert matrices on some rows and columns, bool (U, s), with zeros elsewhere.

    `stack` (U, b, s, s): zero outside these rows and columns, positive definite inside.
    """
    found = np.zeros_like(stack)
    if not invert(stack, rows, found):
        raise EstimationError("what is known of a geounit is not positive definite where it was found to be")
    return found


@dataclass(frozen=True, eq=False)
class Operators:
    """Symmetric operators of N geounits."""

    domain: Domain
    stacks: Extended  # (U, b, k d, k d): the different operators
    which: Ints  # (N,): which of them each geounit has

    @classmethod
    def of(cls, domain: Domain, stacks: Extended) -> Operators:
        """Return operators that are all stored."""
        return cls(domain, stacks, np.arange(len(stacks), dtype=np.int64))

    @classmethod
    def joined(cls, parts: Sequence[Operators]) -> Operators:
        """Return the operators of several runs of geounits, one after the other."""
        shifts = np.cumsum([0, *(len(part.stacks) for part in parts[:-1])])
        which = np.concatenate([part.which + shift for part, shift in zip(parts, shifts, strict=True)])
        return cls(parts[0].domain, Extended.joined([part.stacks for part in parts]), which)

    def __len__(self) -> int:
        return len(self.which)

    @property
    def infinite(self) -> Operators | None:
        """Operators that are positive where these are infinite; None for nowhere."""
        stacks = self.stacks.infinite
        return None if stacks is None else Operators(self.domain, Extended(stacks), self.which)

    def take(self, index: npt.NDArray[np.integer] | slice) -> Operators:
        """Return the operators of some geounits; nothing is copied but their numbers."""
        return Operators(self.domain, self.stacks, self.which[index])

    def compact(self) -> Operators:
        """Return the same operators without those that no geounit has."""
        used, which = np.unique(self.which, return_inverse=True)
        return Operators(self.domain, self.stacks.take(used), which.ravel())

    def expanded(self) -> Extended:
        """Return every geounit's matrices, (N, b, k d, k d) for each dimension."""
        return self.stacks.take(self.which)

    def sum(self, starts: Ints) -> Operators:
        """Return sums over geounits ``starts[i]:starts[i + 1]``, in their order."""
        ones = np.ones(len(self.which))
        return Operators.of(self.domain, self.stacks.each(lambda s: _multiples(s, self.which, ones, starts)))

    def pooled(self, starts: Ints) -> Operators:
        """Return sums over geounits ``starts[i]:starts[i + 1]``, equal ones counted and multiplied.

        In the order in which the different operators are stored; equal sums are stored once.
        """
        count = len(self.stacks)
        family = np.repeat(np.arange(len(starts) - 1, dtype=np.int64), np.diff(starts))
        pairs, times = np.unique(family * count + self.which, return_counts=True)
        family, kind = np.divmod(pairs, count)
        cuts = np.searchsorted(family, np.arange(len(starts)))
        row = np.column_stack([kind, times])
        different: dict[bytes, int] = {}
        which = np.empty(len(starts) - 1, dtype=np.int64)
        first = []
        for i in range(len(which)):
            key = row[cuts[i] : cuts[i + 1]].tobytes()
            if key not in different:
                different[key] = len(different)
                first.append(i)
            which[i] = different[key]
        # Rows of the table of counts, in compressed form.
        chosen = np.array(first, dtype=np.int64)
        sizes = np.diff(cuts)[chosen]
        entry = np.repeat(cuts[chosen], sizes) + _positions_in_runs(sizes)
        indptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        multiple = times[entry].astype(np.float64)
        stacks = self.stacks.each(lambda stack: _multiples(stack, kind[entry], multiple, indptr))
        return Operators(self.domain, stacks, which)

    def __add__(self, other: Operators) -> Operators:
        """Add operators of the same geounits; pairs of equal ones are added once."""
        others = max(1, len(other.stacks))
        found, _, which = numbered(self.which * others + other.which, len(self.stacks) * others)
        left, right = np.divmod(found, others)
        return Operators(self.domain, self.stacks.take(left) + other.stacks.take(right), which)

    def masked(self, allowed: Bools) -> Operators:
        """Return the operators with zeros outside the allowed categories, bool (N, k)."""
        first, which, of_row = _pairs(self.which, allowed)
        rows = allowed[first]

        def cut(stack: Floats) -> Floats:
            wide = _wide(rows, stack)
            return stack[which] * wide[:, None, :, None] * wide[:, None, None, :]

        return Operators(self.domain, self.stacks.each(cut), of_row)

    def dual(self, allowed: Bools, *, plain: bool) -> Operators:
        """Invert information to covariance, or covariance to information, on the allowed categories.

        The operators must be zero outside, and so are the inverses. Equal ones are inverted once. A direction
        in which an operator is zero is one in which its inverse is infinite, and the other way round.

        - `allowed` (N, k).
        - `plain`: every operator is positive definite on its allowed categories, and infinite nowhere.
        """
        first, which, of_row = _pairs(self.which, allowed)
        rows, given = allowed[first], self.stacks.take(which)
        if plain:
            inverses = Extended(tuple(inverse(stack, _wide(rows, stack)) for stack in given.finite))
            return Operators(self.domain, inverses, of_row)
        filled = tuple(_set_apart(stack, _wide(rows, stack)) for stack in given.finite)
        found = Extended(filled, given.infinite).dual()
        finite, infinite = [], []
        for stack, (result, unknown) in zip(given.finite, found.parts(), strict=True):
            wide = _wide(rows, stack)
            keep = wide[:, None, :, None] & wide[:, None, None, :]
            result = np.where(keep, result, 0.0)
            # An eigenvalue of the inverse is at least one over the trace: anything less is rounding, and
            # would be taken for a direction known almost exactly one level further.
            least = np.trace(stack, axis1=2, axis2=3)
            result[np.trace(result, axis1=2, axis2=3) * least < 0.5] = 0.0
            finite.append(result)
            infinite.append(np.zeros_like(stack) if unknown is None else np.where(keep, unknown, 0.0))
        return Operators(self.domain, Extended(tuple(finite), tuple(infinite)), of_row)

    def apply_blocks(self, x: Floats) -> Floats:
        """Return ``A x`` of coordinates in block order, float64 (N, k, e)."""
        out = np.empty_like(x)
        for stack, kind in zip(self.stacks.finite, self.domain.kinds, strict=True):
            apply_blocks(x, stack, self.which, kind.placement, out)
        return out

    def apply(self, x: Floats) -> Floats:
        """Return ``A x`` of cell vectors, float64 (N, n)."""
        return self.domain.backward(self.apply_blocks(self.domain.forward(x)))

    def on_support(self, support: npt.NDArray[np.integer]) -> Supported | PairedCurvature:
        """Return the operators on some cells, for solvers: as sums over places where they can be."""
        pairs = self.domain.pairs
        found = None if pairs is None else pairs.curvature(self.stacks.finite, self.which, support)
        return found or Supported.build(self, np.asarray(support, dtype=np.int64))


def numbered(codes: Ints, most: int) -> tuple[Ints, Ints, Ints]:
    """Do ``np.unique(codes, return_index=True, return_inverse=True)``, by counting where that is faster.

    `codes` (N,): from 0 to `most` - 1.
    """
    if most > 4 * len(codes) + 256:  # a table would cost more than sorting
        found, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        return found, first.astype(np.int64), inverse.ravel().astype(np.int64)
    at = np.full(most, -1, dtype=np.int64)
    at[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)  # of equal ones the first is written last
    found = np.flatnonzero(at >= 0)
    number = np.empty(most, dtype=np.int64)
    number[found] = np.arange(len(found))
    return found, at[found], number[codes]


def _pairs(which: Ints, allowed: Bools) -> tuple[Ints, Ints, Ints]:
    """Find different pairs of matrix and mask: first geounit, matrix of each, pair of each geounit."""
    codes = mask_codes(allowed)
    masks = int(codes.max(initial=0)) + 1
    most = (int(which.max(initial=0)) + 1) * masks
    _, first, of_row = numbered(which * masks + codes, most)
    return first, which[first], of_row


def mask_codes(allowed: Bools) -> Ints:
    """Number the different rows of a mask, bool (N, k), in their lexical order: int64 (N,)."""
    packed = np.packbits(allowed, axis=1)
    if packed.shape[1] == 0:
        return np.zeros(len(allowed), dtype=np.int64)
    if packed.shape[1] <= 2:
        rows = packed[:, 0].astype(np.int64)
        if packed.shape[1] == 2:
            rows = rows << 8 | packed[:, 1]
        return numbered(rows, 1 << 8 * packed.shape[1])[2]
    if packed.shape[1] <= 8:  # numbers are sorted much faster than strings of bytes
        wide = np.zeros((len(packed), 8), dtype=np.uint8)
        wide[:, : packed.shape[1]] = packed
        rows = wide.view(">u8").ravel().astype(np.uint64)
    else:
        rows = np.ascontiguousarray(packed).view(f"V{packed.shape[1]}").ravel()
    _, codes = np.unique(rows, return_inverse=True)
    return codes.ravel().astype(np.int64)


def _positions_in_runs(sizes: Ints) -> Ints:
    """Return 0, 1, ... within each of some runs of these lengths."""
    starts = np.cumsum(sizes) - sizes
    return np.arange(int(sizes.sum())) - np.repeat(starts, sizes)


def _multiples(stack: Floats, which: Ints, times: Floats, starts: Ints) -> Floats:
    """Return the sums of ``times[j] * stack[which[j]]``, ``j`` in ``starts[i]:starts[i + 1]``, in order."""
    size = int(np.prod(stack.shape[1:]))
    out = np.zeros((len(starts) - 1, size))
    add_multiples(stack.reshape(len(stack), size), which, times, starts, out)
    return out.reshape(len(out), *stack.shape[1:])


def _wide(allowed: Bools, stack: Floats) -> Bools:
    """Return which rows of the matrices of a stack stand for allowed categories, bool (U, k d)."""
    return np.repeat(allowed, stack.shape[-1] // allowed.shape[1], axis=1)


def _set_apart(stack: Floats, wide: Bools) -> Floats:
    """Give what is not allowed an eigenvalue of the size of the others."""
    size = stack.shape[-1]
    scale = np.trace(stack, axis1=2, axis2=3) / np.maximum(wide.sum(axis=1), 1)[:, None]
    scale[scale == 0.0] = 1.0
    filled = stack.copy()
    filled[:, :, np.arange(size), np.arange(size)] += np.where(wide[:, None, :], 0.0, scale[:, :, None])
    return filled


@dataclass(frozen=True, eq=False)
class Supported:
    """Operators restricted to some cells: what a solver multiplies with.

    Made by :meth:`Operators.on_support`. Only the dense categories that the support touches are worked on.
    """

    operators: Operators
    support: Ints
    category: Ints
    column: Ints
    stacks: Stacks
    every: Bools

    @classmethod
    def build(cls, operators: Operators, support: Ints) -> Supported:
        """Find the dense categories in use and cut the matrices down to them."""
        domain = operators.domain
        place = np.empty(domain.cells, dtype=np.int64)
        place[domain.cell.ravel()] = np.arange(domain.cells)
        category, column = np.divmod(place[support], domain.cell.shape[1])
        used, category = np.unique(category, return_inverse=True)
        small = operators.compact()
        stacks = []
        for stack, kind in zip(small.stacks.finite, domain.kinds, strict=True):
            rows = (used[:, None] * kind.dimension + np.arange(kind.dimension)).ravel()
            stacks.append(np.ascontiguousarray(stack[:, :, rows[:, None], rows]))
        every = np.ones((len(operators), len(used)), dtype=bool)
        return cls(small, support, category.ravel(), column, tuple(stacks), every)

    def apply(self, x: Floats) -> Floats:
        """Return ``A x`` for each child, float64 (C, s)."""
        domain = self.operators.domain
        if len(self.stacks) == 1 and domain.kinds[0].dimension == 1:
            kind, which = domain.kinds[0], self.operators.which
            values = np.ascontiguousarray(x, dtype=np.float64)
            found = np.empty_like(values)
            supported(
                values,
                self.category,
                self.column,
                domain.transform,
                self.stacks[0],
                which,
                kind.placement,
                found,
            )
            return found
        full = np.zeros((len(x), self.every.shape[1], domain.cell.shape[1]))
        full[:, self.category, self.column] = x
        blocks = domain.to_blocks(full, self.every)
        out = np.empty_like(blocks)
        for stack, kind in zip(self.stacks, domain.kinds, strict=True):
            apply_blocks(blocks, stack, self.operators.which, kind.placement, out)
        back = domain.from_blocks(out, self.every)
        return np.asarray(back[:, self.category, self.column])

    def diagonal(self) -> Floats:
        """Return the diagonals, float64 (C, s)."""
        return self._diagonal

    @cached_property
    def _diagonal(self) -> Floats:
        domain = self.operators.domain
        k, count = self.every.shape[1], len(self.stacks[0])
        classes = domain.algebra.rows(domain.others.group("detailed"))
        found = np.zeros((count, k, len(classes)))
        for stack, kind, outer in zip(self.stacks, domain.kinds, classes.outer, strict=True):
            d = kind.dimension
            split = stack.reshape(count, -1, k, d, k, d)
            inner = np.einsum("ubkdke->ukbde", split).reshape(count, k, -1)
            found += inner @ outer.reshape(len(outer), -1).T
        return found[self.operators.which][:, self.category, classes.of_row[self.column]]
