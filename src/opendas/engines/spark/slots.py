"""Which rows of a DataFrame go where: numbers whose hash is wanted, so that each task has its own partition.

Spark deals rows out by a hash of a column. With the right numbers in that column, task ``t`` is partition
``t``, in any version of Spark, and no sampling or sorting is needed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["slots"]

_SEED = 42  # of HashPartitioning

Words = npt.NDArray[np.uint32]


def slots(partitions: int) -> npt.NDArray[np.int32]:
    """Return, for each partition, a number that ``repartition(partitions, column)`` sends to it.

    Returns
    -------
    int32 (partitions,)
        Non-negative.
    """
    found = np.full(partitions, -1, dtype=np.int64)
    first, count = 0, 4 * partitions
    while (found < 0).any():
        numbers = np.arange(first, first + count, dtype=np.uint32)
        place = _hash(numbers).view(np.int32).astype(np.int64) % partitions  # never negative, as pmod
        where, index = np.unique(place, return_index=True)
        new = found[where] < 0
        found[where[new]] = numbers[index[new]]
        first += count
    return found.astype(np.int32)


def _hash(numbers: Words) -> Words:
    """Return Murmur3 of 32-bit integers, as Spark's function ``hash`` [Appleby, x86 32-bit variant]."""
    with np.errstate(over="ignore"):
        word = _turned(numbers * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        mixed = _turned(np.uint32(_SEED) ^ word, 13) * np.uint32(5) + np.uint32(0xE6546B64)
        mixed ^= np.uint32(4)  # bytes
        mixed ^= mixed >> np.uint32(16)
        mixed *= np.uint32(0x85EBCA6B)
        mixed ^= mixed >> np.uint32(13)
        mixed *= np.uint32(0xC2B2AE35)
        mixed ^= mixed >> np.uint32(16)
    return np.asarray(mixed)


def _turned(words: Words, by: int) -> Words:
    return np.asarray((words << np.uint32(by)) | (words >> np.uint32(32 - by)))
