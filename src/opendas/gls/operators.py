"""Many symmetric operators on cells, as stacks of small matrices, equal ones stored once.

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
from opendas.gls.kernels import add_multiples, apply_blocks, invert, supported
from opendas.solvers.least_squares.paired import PairedCurvature

Stacks = tuple[Floats, ...]


def inverse(stack: Floats, allowed: Bools, dimension: int) -> Floats:
    """Invert matrices on the allowed rows, with zeros elsewhere.

    - `stack` (U, b, k d, k d): zero outside the allowed rows and columns, positive definite inside.
    - `allowed` (U, k).
    """
    found = np.zeros_like(stack)
    if not invert(stack, np.repeat(allowed, dimension, axis=1), found):
        raise EstimationError("what is known of a geounit is not positive definite where it was found to be")
    return found


@dataclass(frozen=True, eq=False)
class Operators:
    """Symmetric operators of N geounits."""

    domain: Domain
    stacks: Stacks  # (U, b, k d, k d): the different operators, one stack for each dimension of blocks
    which: Ints  # (N,): which of them each geounit has

    @classmethod
    def of(cls, domain: Domain, stacks: Sequence[Floats]) -> Operators:
        """Return operators that are all stored."""
        return cls(domain, tuple(stacks), np.arange(len(stacks[0]), dtype=np.int64))

    @classmethod
    def joined(cls, parts: Sequence[Operators]) -> Operators:
        """Return the operators of several runs of geounits, one after the other."""
        sizes = [len(part.stacks[0]) for part in parts]
        shifts = np.cumsum([0, *sizes[:-1]])
        return cls(
            parts[0].domain,
            tuple(np.concatenate(stacks) for stacks in zip(*(p.stacks for p in parts), strict=True)),
            np.concatenate([part.which + shift for part, shift in zip(parts, shifts, strict=True)]),
        )

    def __len__(self) -> int:
        return len(self.which)

    def take(self, index: npt.NDArray[np.integer] | slice) -> Operators:
        """Return the operators of some geounits; nothing is copied but their numbers."""
        return Operators(self.domain, self.stacks, self.which[index])

    def compact(self) -> Operators:
        """Return the same operators without those that no geounit has."""
        used, which = np.unique(self.which, return_inverse=True)
        return Operators(self.domain, tuple(stack[used] for stack in self.stacks), which.ravel())

    def matrices(self, number: int) -> Floats:
        """Return every geounit's matrices of one dimension of blocks, float64 (N, b, k d, k d)."""
        return self.stacks[number][self.which]

    def expanded(self) -> Stacks:
        """Return every geounit's matrices, float64 (N, b, k d, k d) for each dimension."""
        return tuple(stack[self.which] for stack in self.stacks)

    def sum(self, starts: Ints) -> Operators:
        """Return sums over geounits ``starts[i]:starts[i + 1]``, in their order."""
        return Operators.of(self.domain, [_segments(stack, self.which, starts) for stack in self.stacks])

    def pooled(self, starts: Ints) -> Operators:
        """Return sums over geounits ``starts[i]:starts[i + 1]``, equal ones counted and multiplied.

        In the order in which the different operators are stored; equal sums are stored once.
        """
        count = len(self.stacks[0])
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
        entry = np.repeat(cuts[chosen], sizes) + _within(sizes)
        indptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        stacks = []
        for stack in self.stacks:
            flat = stack.reshape(count, -1)
            out = np.zeros((len(first), flat.shape[1]))
            add_multiples(flat, kind[entry], times[entry].astype(np.float64), indptr, out)
            stacks.append(out.reshape(len(first), *stack.shape[1:]))
        return Operators(self.domain, tuple(stacks), which)

    def __add__(self, other: Operators) -> Operators:
        """Add operators of the same geounits; pairs of equal ones are added once."""
        others = max(1, len(other.stacks[0]))
        found, _, which = numbered(self.which * others + other.which, len(self.stacks[0]) * others)
        left, right = np.divmod(found, others)
        stacks = tuple(a[left] + b[right] for a, b in zip(self.stacks, other.stacks, strict=True))
        return Operators(self.domain, stacks, which)

    def masked(self, allowed: Bools) -> Operators:
        """Return the operators with zeros outside the allowed categories, bool (N, k)."""
        first, which, of_row = _pairs(self.which, allowed)
        rows = allowed[first]
        stacks = []
        for stack, kind in zip(self.stacks, self.domain.kinds, strict=True):
            wide = np.repeat(rows, kind.dimension, axis=1)
            stacks.append(stack[which] * wide[:, None, :, None] * wide[:, None, None, :])
        return Operators(self.domain, tuple(stacks), of_row)

    def inverse(self, allowed: Bools) -> Operators:
        """Return the inverse on the allowed categories, bool (N, k), zero elsewhere.

        The operators must be zero outside and positive definite inside. Equal ones are inverted once.
        """
        first, which, of_row = _pairs(self.which, allowed)
        rows = allowed[first]
        stacks = tuple(
            inverse(stack[which], rows, kind.dimension)
            for stack, kind in zip(self.stacks, self.domain.kinds, strict=True)
        )
        return Operators(self.domain, stacks, of_row)

    def apply_blocks(self, x: Floats) -> Floats:
        """Return ``A x`` of coordinates in block order, float64 (N, k, e)."""
        out = np.empty_like(x)
        for stack, kind in zip(self.stacks, self.domain.kinds, strict=True):
            apply_blocks(x, stack, self.which, kind.placement, out)
        return out

    def apply(self, x: Floats) -> Floats:
        """Return ``A x`` of cell vectors, float64 (N, n)."""
        return self.domain.backward(self.apply_blocks(self.domain.forward(x)))

    def on_support(self, support: npt.NDArray[np.integer]) -> Supported | PairedCurvature:
        """Return the operators on some cells, for solvers: as sums over places where they can be."""
        pairs = self.domain.pairs
        found = None if pairs is None else pairs.curvature(self.stacks, self.which, support)
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


def _within(sizes: Ints) -> Ints:
    """Return 0, 1, ... within each of some runs of these lengths."""
    starts = np.cumsum(sizes) - sizes
    return np.arange(int(sizes.sum())) - np.repeat(starts, sizes)


def _segments(stack: Floats, which: Ints, starts: Ints) -> Floats:
    size = int(np.prod(stack.shape[1:]))
    flat = stack.reshape(len(stack), size)
    out = np.zeros((len(starts) - 1, size))
    add_multiples(flat, which, np.ones(len(which)), starts, out)
    return out.reshape(len(out), *stack.shape[1:])


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
        for stack, kind in zip(small.stacks, domain.kinds, strict=True):
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
