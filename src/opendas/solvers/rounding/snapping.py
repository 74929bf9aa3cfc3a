# mypy: allow-untyped-defs, allow-untyped-calls
"""Split an estimate into integer parts and exact fractions.

Axes: C children, n cells. Fractions are integers in units of 2**-20 (:data:`ONE`).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from opendas.arrays.kernels import inner, mix

BITS = 20
ONE = 1 << BITS
SNAP = 1e-6
TIE_SHIFT = np.uint64(24)
"""Ties keep the upper 40 bits of the hash."""

DONE, OUT_OF_RANGE, MISMATCH = 0, 1, 2
_LARGEST = 2.0**40


@inner
def heap_order(keys):
    """Return the positions, int64 (m,), of values, int64 (m,), as they rise.

    By heapsort: small to compile, ties in a fixed order.
    """
    m = len(keys)
    order = np.empty(m, np.int64)
    for k in range(m):
        order[k] = k
    for step in range(m + m // 2 - 1, 0, -1):
        end = m
        top = step - m
        if step < m:
            order[0], order[step] = order[step], order[0]
            end = step
            top = 0
        while True:
            below = 2 * top + 1
            if below >= end:
                break
            if below + 1 < end and keys[order[below + 1]] > keys[order[below]]:
                below += 1
            if keys[order[below]] <= keys[order[top]]:
                break
            order[top], order[below] = order[below], order[top]
            top = below
    return order


@inner
def _candidates(scaled, mask, j, picked):
    """Children that share column j's gap: the fractional ones, else the positive, else all allowed."""
    for kind in range(3):
        count = 0
        for c in range(len(scaled)):
            if not mask[c, j]:
                continue
            value = scaled[c, j]
            if kind == 2 or (kind == 1 and value > 0) or (kind == 0 and value & (ONE - 1)):
                picked[count] = c
                count += 1
        if count > 0:
            return count
    return 0


@inner
def _share(scaled, mask, j, gap, child_word, cell_word):
    """Spread ``gap`` quanta evenly over column j, odd ones by rising tie hash; False without room."""
    room = np.int64(0)
    for c in range(len(scaled)):
        room += scaled[c, j]
    if room + gap < 0:
        return False
    picked = np.empty(len(scaled), np.int64)
    key = np.empty(len(scaled), np.int64)
    while gap != 0:
        count = _candidates(scaled, mask, j, picked)
        if count == 0:
            return False
        for k in range(count):
            key[k] = np.int64(mix(child_word[picked[k]] ^ cell_word[j]) >> np.uint64(1))
        order = heap_order(key[:count])
        each, extra = divmod(abs(gap), count)
        spent = np.int64(0)
        for k in range(count):
            c = picked[order[k]]
            step = each + (1 if k < extra else 0)
            if gap < 0:
                step = -min(step, scaled[c, j])
            scaled[c, j] += step
            spent += step
        gap -= spent
    return True


@njit(cache=True, nogil=True)
def snap(x, total, has_total, mask, child_word, cell_word):
    """Split the estimate into integer parts and fractions that sum to the parent exactly.

    - `x`, float64 array, (C, n): estimate, in counts.
    - `total`, int64 array, (n,): parent; ignored unless ``has_total``.
    - `has_total`, bool: whether there is a parent.
    - `mask`, bool array, (C, n): cells that may be non-zero.
    - `child_word`, `cell_word`, uint64 array, (C,) and (n,): mixed keys.
    - Returns `status`: ``DONE``; ``OUT_OF_RANGE`` where a value is negative, not finite, too large or outside
      the mask; ``MISMATCH`` where a column is too far from its parent (more than 1e-4 of it) to be one
      estimate.
    - Returns `base`, `part` (C, n): integer parts, and fractions in units of 2**-20.
    - Returns `need` (n,): sum of each column's fractions in counts: the ones it receives. Zero without
      parent.
    """
    children, n = x.shape
    scaled = np.zeros((children, n), np.int64)
    part = np.zeros((children, n), np.int64)
    need = np.zeros(n, np.int64)
    for c in range(children):
        for j in range(n):
            v = x[c, j]
            if not (-SNAP <= v < _LARGEST) or (v > SNAP and not mask[c, j]):
                return OUT_OF_RANGE, scaled, part, need
            if mask[c, j]:
                near = np.rint(v)
                if abs(v - near) <= SNAP:
                    scaled[c, j] = np.int64(near) << BITS
                else:
                    scaled[c, j] = np.int64(np.rint(v * ONE))
    if has_total:
        for j in range(n):
            gap = total[j] << BITS
            for c in range(children):
                gap -= scaled[c, j]
            if gap != 0:
                allowed = 4.0 * children + 1e-4 * ONE * max(1.0, float(total[j]))
                if abs(gap) > allowed or not _share(scaled, mask, j, gap, child_word, cell_word):
                    return MISMATCH, scaled, part, need
    for c in range(children):
        for j in range(n):
            part[c, j] = scaled[c, j] & (ONE - 1)
            scaled[c, j] >>= BITS
            if has_total:
                need[j] += part[c, j]
    need >>= BITS
    return DONE, scaled, part, need
