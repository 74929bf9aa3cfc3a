"""Counts of one level, as a histogram: how many nodes have which count.

A level of eleven million blocks has about a thousand distinct counts, and every error of a level is a sum
over them.

Axes: ``n`` nodes, ``v`` distinct counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from opendas.allocation.clamped_error import LARGEST_COUNT
from opendas.arrays import Ints, sum_by_key
from opendas.errors import DataError, FormatError

_DENSE = 1 << 22
"""Counts below this are counted in an array of their own; above, they are few and are sorted."""


@dataclass(frozen=True, slots=True, eq=False)
class CountHistogram:
    """How many nodes have which count.

    Raises `FormatError` if a count is negative, no whole number or too large, a multiplicity is negative, or
    there are more than 2**53 nodes; `DataError` if there is no node.
    """

    values: Ints  # (v,): distinct counts, ascending, from 0 to 2**53
    mult: Ints  # (v,): number of nodes with each, > 0

    def __post_init__(self) -> None:
        values, mult = whole_numbers(self.values, "values"), whole_numbers(self.mult, "mult")
        if values.ndim != 1 or values.shape != mult.shape:
            raise FormatError(
                f"values and mult are lists of one length; they have {values.size} and {mult.size} entries."
            )
        kept = mult > 0
        values, mult = values[kept], mult[kept]
        if len(values) == 0:
            raise DataError("a level has at least one node.")
        if float(mult.sum(dtype=np.float64)) > LARGEST_COUNT:
            raise FormatError("mult: expected at most 2**53 nodes in a level.")
        if not bool(np.all(values[1:] > values[:-1])):
            values, mult = sum_by_key(values, mult)
        for name, array in (("values", values), ("mult", mult)):
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    @classmethod
    def of(cls, counts: npt.ArrayLike) -> CountHistogram:
        """Return the histogram of one count a node, in any order and shape; raises what the class does."""
        flat = whole_numbers(np.ravel(np.asarray(counts)), "counts")
        if len(flat) == 0:
            raise DataError("a level has at least one node.")
        small = flat if int(flat.max()) < _DENSE else flat[flat < _DENSE]
        mult = np.bincount(small)
        values = np.flatnonzero(mult)
        mult = mult[values]
        if len(small) < len(flat):
            above, times = np.unique(flat[flat >= _DENSE], return_counts=True)
            values, mult = np.concatenate([values, above]), np.concatenate([mult, times])
        return cls(values, mult)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return int(self.mult.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """One level of a hierarchy: everything that is released with one budget."""

    name: str
    counts: CountHistogram
    known: bool = True  # False where only the number of nodes is known, as :func:`unknown_counts` makes it
    fixed: bool = False  # the counts are published exactly: they get no budget and have no error


def unknown_counts(name: str, nodes: int | np.integer[Any], *, fixed: bool = False) -> Level:
    """Return a level of which only the number of released counts is known.

    Every count is taken to be so large that clamping never happens, which gives errors an upper bound and
    allocations by count only: in proportion to ``nodes**(1/3)`` (epsilon) or ``nodes**(1/2)`` (rho) where
    the noise is continuous, and by the exact slope of the variance where it is whole numbers.

    Raises `FormatError` if the number is no positive whole number.
    """
    if isinstance(nodes, bool) or not isinstance(nodes, int | np.integer) or nodes < 1:
        raise FormatError(f"level {name!r}: nodes must be a positive whole number.")
    values = np.array([LARGEST_COUNT], dtype=np.int64)
    return Level(name, CountHistogram(values, np.array([nodes])), known=False, fixed=fixed)


def whole_numbers(values: npt.ArrayLike | Sequence[object], what: str) -> Ints:
    """Return whole numbers from 0 to 2**53 as int64."""
    array = np.asarray(values)
    if array.dtype.kind == "b" or array.dtype.kind not in "iuf":
        if array.size:
            raise FormatError(f"{what}: expected numbers.")
        return np.zeros(array.shape, dtype=np.int64)
    if array.dtype.kind != "f":
        if array.size and (int(array.min()) < 0 or int(array.max()) > LARGEST_COUNT):
            bad = np.flatnonzero((array < 0) | (array > LARGEST_COUNT))
            raise FormatError(f"{what}[{bad[0]}]: expected a whole number from 0 to 2**53.")
        return array.astype(np.int64, copy=False)
    with np.errstate(invalid="ignore"):
        good = (array >= 0) & (array <= LARGEST_COUNT) & (array == np.floor(array))
    if not bool(good.all()):
        raise FormatError(f"{what}[{np.flatnonzero(~good)[0]}]: expected a whole number from 0 to 2**53.")
    return array.astype(np.int64)
