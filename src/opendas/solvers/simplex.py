# mypy: allow-untyped-defs, allow-untyped-calls
"""Projection onto a scaled simplex, for many families at once, in reals and exactly in integers.

The nearest point v >= 0 with sum(v) = T to a vector z is v = max(0, z - theta) with one theta [Held, Wolfe &
Crowder 1974]. With z sorted downwards and k of its entries kept, theta = (z_1 + ... + z_k - T) / k, and k is
the largest for which the last entry kept stays positive. Both are written here through

    D_k = sum over i <= k of (z_i - z_k),      v_i = (z_i - z_k) + (T - D_k) / k,

which subtracts like from like: D_k grows with k, entries are kept while D_k < T, and no sum of large numbers
of either sign is ever taken.

Nearest integers: the cost of one count more to a child is linear in what the child has, with the same slope
for all, so the T cheapest steps are the integer parts of the real solution and, of what is left, one count
each for the largest remainders (docs/explanation/allocation.md). Reals are taken in multiples of
2**-20, so the integer answer is found in integers throughout and is the same on every machine. Equal
remainders are decided by the public hash of :mod:`opendas.solvers.rounding.snapping`.

Axes: n entries, f families.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from opendas.arrays import Floats, Ints
from opendas.arrays.kernels import mix
from opendas.solvers.rounding.snapping import BITS, TIE_SHIFT

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST_SUM = 2.0**62
"""Sums of absolute values in a family stay below it, in units of the entries (2**-20 for reals)."""


def project(z: Floats, family: Ints, totals: Floats) -> Floats:
    """Project the entries of each family onto its scaled simplex.

    - `z` (n,): entries of all families, in any order; finite.
    - `family` (n,): family of each entry.
    - `totals` (f,), >= 0: what each family adds up to. One without entries is left out.
    - Returns (n,): minimum of ``||v - z||`` within each family; all zero in a family with total zero.

    Raises `ValueError` if something is not finite, a total is negative, or an index is no family.

    Examples
    --------
    >>> z = np.array([3.5, 0.0, 1.0, 0.0])
    >>> project(z, np.zeros(4, np.int64), np.array([10.0])).tolist()
    [4.875, 1.375, 2.375, 1.375]
    """
    order, starts = _sorted(z, family, totals)
    return np.asarray(_project(np.ascontiguousarray(z, np.float64), order, starts, _plain(totals)))


def project_integers(
    z: NDArray[Any], family: Ints, totals: Ints, tie_keys: NDArray[np.uint64] | None = None
) -> Ints:
    """Find the nearest whole numbers that are not negative and add up to each family's total.

    - `z` (n,): entries. Reals are rounded to multiples of 2**-20 first.
    - `family` (n,): family of each entry.
    - `totals` (f,), >= 0.
    - `tie_keys` (n,): public key of each entry, unique within its family; by default its position.
    - Returns: a minimum of ``||v - z||`` among the whole numbers; among several, the one that gives to the
      least ``mix(mix(key) ^ mix(0)) >> 24``, as the controlled rounding of one cell does.

    Examples
    --------
    >>> z = np.array([7, -4, 2, 2])
    >>> project_integers(z, np.zeros(4, np.int64), np.array([11])).tolist()
    [7, 0, 2, 2]
    """
    order, starts = _sorted(z, family, totals)
    exact = z.dtype.kind in "iu"
    bits = 0 if exact else BITS
    sums = np.bincount(family, np.abs(z.astype(np.float64)), minlength=len(totals)) + totals
    if len(sums) and float(sums.max()) * 2.0**bits >= LARGEST_SUM:
        raise ValueError("a family is too large: its counts do not fit 64-bit integers")
    entries = z.astype(np.int64) if exact else np.rint(np.ldexp(z, bits)).astype(np.int64)
    keys = np.arange(len(z), dtype=np.uint64) if tie_keys is None else np.ascontiguousarray(tie_keys)
    if keys.shape != z.shape or keys.dtype != np.uint64:
        raise ValueError(f"tie keys are 64-bit words, one for each of the {len(z)} entries")
    return np.asarray(_project_integers(entries, order, starts, _plain(totals), keys, bits))


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """Return a writable contiguous array: compiled code is specialised on it, and would be compiled twice."""
    return array if array.flags.c_contiguous and array.flags.writeable else array.copy()


def _sorted(z: NDArray[Any], family: Ints, totals: NDArray[Any]) -> tuple[Ints, Ints]:
    """Check the arguments; return entries family by family, the largest first, and where families begin."""
    if z.ndim != 1 or family.shape != z.shape or totals.ndim != 1:
        raise ValueError(f"{z.shape} entries, {family.shape} families and {totals.shape} totals do not fit")
    if len(family) and not 0 <= int(family.min()) <= int(family.max()) < len(totals):
        raise ValueError("an entry belongs to no family")
    if not (np.all(np.isfinite(z)) and np.all(np.isfinite(totals)) and np.all(totals >= 0)):
        raise ValueError("entries and totals must be finite, and totals not negative")
    order = np.lexsort((-z.astype(np.float64) if z.dtype.kind == "u" else -z, family)).astype(np.int64)
    starts = np.zeros(len(totals) + 1, dtype=np.int64)
    np.cumsum(np.bincount(family, minlength=len(totals)), out=starts[1:])
    return order, starts


@njit(cache=True, nogil=True)
def _project(z, order, starts, totals):
    v = np.zeros(len(z))
    for f in range(len(totals)):
        first, last, total = starts[f], starts[f + 1], totals[f]
        if first == last or total <= 0.0:
            continue
        kept = 1
        lead = 0.0  # D_k
        while first + kept < last:
            grown = lead + kept * (z[order[first + kept - 1]] - z[order[first + kept]])
            if grown >= total:
                break
            lead = grown
            kept += 1
        least = z[order[first + kept - 1]]
        rest = (total - lead) / kept
        for i in range(first, first + kept):
            v[order[i]] = (z[order[i]] - least) + rest
    return v


@njit(cache=True, nogil=True)
def _project_integers(z, order, starts, totals, keys, bits):
    v = np.zeros(len(z), np.int64)
    mask = (np.int64(1) << bits) - np.int64(1)
    zero = mix(np.uint64(0))
    for f in range(len(totals)):
        first, last = starts[f], starts[f + 1]
        total = totals[f] << bits
        if first == last or total <= 0:
            continue
        kept = 1
        lead = np.int64(0)
        while first + kept < last:
            gap = z[order[first + kept - 1]] - z[order[first + kept]]
            if gap > (total - lead - 1) // kept:  # lead + kept * gap >= total, without the product
                break
            lead += kept * gap
            kept += 1
        least = z[order[first + kept - 1]]
        rest = (total - lead) // kept  # what is cut off here is the same for all, below one unit
        left = totals[f]
        remainder = np.empty(kept, np.int64)
        tie = np.empty(kept, np.int64)
        for i in range(kept):
            entry = order[first + i]
            value = (z[entry] - least) + rest
            v[entry] = value >> bits
            left -= v[entry]
            remainder[i] = value & mask
            tie[i] = np.int64(mix(mix(keys[entry]) ^ zero) >> TIE_SHIFT)
        if left > 0:
            by_tie = np.argsort(tie, kind="mergesort")
            ranked = by_tie[np.argsort(-remainder[by_tie], kind="mergesort")]
            for i in range(left):
                v[order[first + ranked[i]]] += 1
    return v
