"""The address of a draw: one AES block that names a cell of a measurement.

Bits, most significant first::

    geolevel 8 | geounit 40 | query 16 || cell 48 | refinement 16

The two 64-bit halves are stored in this order, each little-endian, as the 16 bytes of the block. Nothing is
hashed or cut: an index that does not fit is refused, so that different cells have different blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from opendas.errors import PrivacyError

__all__ = ["CELL_BITS", "LEVEL_BITS", "QUERY_BITS", "UNIT_BITS"]

LEVEL_BITS = 8
UNIT_BITS = 40
QUERY_BITS = 16
CELL_BITS = 48


def index_array(field: str, values: ArrayLike, bits: int) -> tuple[NDArray[np.int64], tuple[int, ...]]:
    """Check that all ``values`` fit in ``bits`` bits.

    Parameters
    ----------
    field : str
        Name for the message.
    values : array of int
        Indices.
    bits : int
        Width of the field.

    Returns
    -------
    indices : ndarray of int64, one dimension
        The values, contiguous and read-only (so that one compiled version of the kernels serves all callers).
    shape : tuple of int
        Shape of ``values``.

    Raises
    ------
    PrivacyError
        If a value is not an integer, negative, or too large.
    """
    array = np.asarray(values)
    if array.dtype != np.int64:
        if array.dtype.kind not in "iu" and array.size:
            raise PrivacyError(f"{field} indices have type {array.dtype}; an address is made of integers.")
        # An unsigned value beyond int64 turns negative here, and is refused below.
        array = array.astype(np.int64)
    indices = np.ascontiguousarray(array.reshape(-1)).view()
    indices.flags.writeable = False
    if not _fit(indices, bits):
        raise PrivacyError(
            f"A {field} index does not fit in the {bits} bits that a noise address has for it "
            f"(0 to {2**bits - 1}). Two draws would share noise, so nothing is drawn."
        )
    return indices, array.shape


def scalar_index(field: str, value: int, bits: int) -> int:
    """Check one index as :func:`index_array` does, without making an array."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and 0 <= value < 1 << bits:
        return int(value)
    index_array(field, value, bits)
    raise PrivacyError(f"The {field} of a draw is a single integer, not an array.")


@njit(cache=True, nogil=True)
def _fit(values: Any, bits: Any) -> Any:
    seen = np.int64(0)
    for value in values:
        seen |= value >> bits  # 0 exactly for values from 0 to 2**bits - 1
    return seen == 0


@njit(cache=True, nogil=True)
def fill_addresses(blocks: Any, level: Any, query: Any, units: Any, cells: Any, start: Any) -> Any:
    """Write the addresses ``start, start + 1, ...`` of the grid units x cells into ``blocks``.

    All indices were checked before. ``blocks`` has shape (n, 2), ``units`` (C,), ``cells`` (m,).
    """
    m = cells.shape[0]
    count = blocks.shape[0]
    unit, cell = start // m, start % m
    written = 0
    while written < count:
        head = np.uint64(level << 56 | units[unit] << 16 | query)
        stretch = min(m - cell, count - written)
        rows, run = blocks[written : written + stretch], cells[cell : cell + stretch]
        for j in range(stretch):  # over slices: the compiler vectorises it, three times as fast
            rows[j, 0] = head
            rows[j, 1] = np.uint64(run[j] << 16)
        written += stretch
        cell = 0
        unit += 1


@njit(cache=True, nogil=True)
def fill_pairs(blocks: Any, level: Any, query: Any, units: Any, cells: Any, start: Any) -> Any:
    """Write the addresses of the pairs ``start, start + 1, ...`` of a unit and a cell into ``blocks``.

    All indices were checked before. ``units`` and ``cells`` have shape (N,).
    """
    count = blocks.shape[0]
    of, run = units[start : start + count], cells[start : start + count]
    for j in range(count):
        blocks[j, 0] = np.uint64(level << 56 | of[j] << 16 | query)
        blocks[j, 1] = np.uint64(run[j] << 16)


@njit(cache=True, nogil=True)
def add_to_groups(values: Any, start: Any, group: Any, cells: Any, sums: Any) -> Any:
    """Add the values at ``start, start + 1, ...`` of the grid units x cells to their unit's row of ``sums``.

    Each in the column of its cell. ``group`` has shape (C,), ``cells`` (m,), ``sums`` (G, M).
    """
    m = cells.shape[0]
    unit, cell = start // m, start % m
    added = 0
    while added < values.shape[0]:
        stretch = min(m - cell, values.shape[0] - added)
        run, places, to = values[added : added + stretch], cells[cell : cell + stretch], sums[group[unit]]
        for j in range(stretch):
            to[places[j]] += run[j]
        added += stretch
        cell = 0
        unit += 1
