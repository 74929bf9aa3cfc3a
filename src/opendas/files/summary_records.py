"""Which blocks a record of a redistricting file counts: those that agree with it in every field it fills in.

Axes: ``r`` records, ``b`` blocks, ``k`` geographic fields, ``c`` cells.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import sparse

from opendas.arrays import Ints


def sums_of_blocks(records: Ints, blocks: Ints, counts: Sequence[npt.NDArray[np.integer]]) -> Ints:
    """Return what records count, int64 (r, c).

    - `records` (r, k), `blocks` (b, k): fields as whole numbers; 0 is not filled in.
    - `counts`, sequence of (b, ...): of the blocks, ``c`` columns in all.
    """
    first, part_of_block = _groups(blocks)
    parts = blocks[first]
    of_parts = np.concatenate([_sums(table, part_of_block, len(parts)) for table in counts], axis=1)
    found = np.zeros((len(records), of_parts.shape[1]), dtype=np.int64)
    filled = records > 0
    first, pattern_of = _groups(filled.astype(np.int64))
    for number, pattern in enumerate(filled[first]):
        here = np.flatnonzero(pattern_of == number)
        areas, index = _groups(np.concatenate([records[here][:, pattern], parts[:, pattern]]))
        found[here] = _sums(of_parts, index[len(here) :], len(areas))[index[: len(here)]]
    return found


def _groups(codes: Ints) -> tuple[Ints, Ints]:
    """Number the distinct rows of `codes`; return (a row of each number, the number of each row)."""
    key = np.zeros(len(codes), dtype=np.int64)
    first = np.zeros(min(1, len(codes)), dtype=np.int64)
    for column in codes.T:
        # Numbers stay below rows * codes: no overflow, and no slow sort of whole rows.
        combined = key * (int(column.max(initial=0)) + 1) + column
        _, first, key = np.unique(combined, return_index=True, return_inverse=True)
    return first.astype(np.int64), key.astype(np.int64)


def _sums(counts: npt.NDArray[np.integer], group: Ints, groups: int) -> Ints:
    """Add up the rows of each group: int64 (groups, c)."""
    ones = np.ones(len(group), dtype=np.int64)
    indicator = sparse.csr_array((ones, (group, np.arange(len(group)))), shape=(groups, len(group)))
    return np.asarray(indicator @ np.ascontiguousarray(counts, dtype=np.int64), dtype=np.int64)
