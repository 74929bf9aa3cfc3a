"""Exact inverse-CDF sampling from 64-bit words.

A draw reads a uniform number ``U`` in [0, 1), bit by bit, and returns the smallest ``k`` with
``U < P(X <= k)``. Both laws are symmetric, so the word is folded: ``half = min(word, 2**64 - 1 - word)`` and

    |X| = number of k >= 0 with floor(2**64 P(X > k)) > half,

unless ``half`` equals one of these floors. Then 64 bits do not decide, and the comparison is repeated with
128, 192, ... bits of ``U``. The list of floors ends with 0, so the words 0 and 2**64 - 1, which stand for
both infinite tails, always take more bits: nothing is truncated. Proof: docs/proofs/noise.md.

Axes: ``f`` floors, ``g`` guide cells, ``n`` draws.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from threading import Lock
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from opendas.arrays import Ints
from opendas.errors import PrivacyError
from opendas.sampling.laws import MAX_FLOORS, WORD_BITS, Noise

#: Refinement counters are 16 bits wide (reference: the address layout in :mod:`opendas.sampling.noise`).
LAST_REFINEMENT = (1 << 16) - 1
_CACHE_BYTES = 256 << 20
_GUIDE_BITS = (12, 17)


@dataclass(frozen=True, slots=True, eq=False)
class SamplerTable:
    """Thresholds of one law, with a guide that finds a word's place in one look-up.

    Make one with :meth:`build`; tables are cached per law and shared between threads.
    """

    distribution: Noise
    floors: Ints  # (f,): ``floor(2**64 P(X > k))`` for ``k = 0, 1, ...``, non-increasing, the last one 0
    # (g + 1,): for each leading pattern of a folded word: the magnitude it decides, or ``~m`` where
    # thresholds lie inside the cell and ``m`` is the largest magnitude possible there.
    guide: NDArray[np.int32]
    shift: int  # a folded word shifted right by this many bits is its guide cell

    @staticmethod
    def build(distribution: Noise) -> SamplerTable:
        """Return the table of a law, from the cache where it was built before.

        `distribution`: the law; equal laws share a table.

        Raises `PrivacyError` if the law is so wide that the table would need more than ``MAX_FLOORS``
        thresholds a side.
        """
        return _CACHE.get(distribution)

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes."""
        return int(self.floors.nbytes + self.guide.nbytes)

    def lookup(self, words: NDArray[np.uint64], out: Ints, ties: Ints) -> int:
        """Draw from the first column of ``words``; leave undecided words for :meth:`resolve`.

        - `words` (n, 2): column 0 holds the words.
        - `out` (n,): receives the draws; entries listed in ``ties`` are not final.
        - `ties`, at least (n,): receives the positions of undecided words.
        - Returns: number of undecided words.
        """
        return int(_lookup(words, self.guide, self.shift, self.floors, out, ties))

    def draw(self, words: NDArray[np.uint64], more: Callable[[int, int], int]) -> Ints:
        """Return a draw for each first word.

        - `words` (n,): the first 64 bits of each draw.
        - `more`: ``more(i, r)`` returns the word of refinement ``r = 1, 2, ...`` of draw ``i``.
        """
        pairs = np.zeros((len(words), 2), dtype=np.uint64)
        pairs[:, 0] = words
        out, ties = np.empty(len(words), dtype=np.int64), np.empty(len(words), dtype=np.int64)
        for i in ties[: self.lookup(pairs, out, ties)].tolist():
            out[i] = self.resolve(int(words[i]), partial(more, i))
        return out

    def resolve(self, word: int, more: Callable[[int], int], *, last: int = LAST_REFINEMENT) -> int:
        """Decide a word that ties with a threshold, with as many further words as it takes.

        - `word`: the first 64 bits.
        - `more`: ``more(r)`` returns the word of refinement ``r = 1, 2, ...`` of the same address.
        - `last`: largest refinement.
        """
        value = word
        for refinement in range(1, last + 1):
            value = value << WORD_BITS | more(refinement)
            bits = WORD_BITS * (refinement + 1)
            mirrored = (1 << bits) - 1 - value
            half = min(value, mirrored)
            floors = _refined_floors(self.distribution, bits)
            magnitude = bisect_left(floors, -half, key=int.__neg__)
            if floors[magnitude] != half:
                return -magnitude if value < mirrored else magnitude
        raise PrivacyError(
            f"A draw from {self.distribution.name} was still undecided after {last} refinements. With a "
            "working cipher this does not happen; check the machine and start a new run with a new key."
        )


@lru_cache(maxsize=2)  # ties are about as rare as 2**-50 a draw: keep the lists of one address only
def _refined_floors(distribution: Noise, bits: int) -> list[int]:
    return distribution.tail_floors(bits)


def _make(distribution: Noise) -> SamplerTable:
    if distribution.tail_length(WORD_BITS) > MAX_FLOORS:
        raise PrivacyError(
            f"A {distribution.name} of variance {distribution.variance:.3g} is too wide for an exact table: "
            f"at most {MAX_FLOORS} thresholds a side are kept, which is a variance of about 4.9e10 for "
            "discrete-gaussian and 4.4e9 for discrete-laplace. Give this query more budget, or leave it out."
        )
    floors = np.array(distribution.tail_floors(WORD_BITS), dtype=np.int64)
    low, high = _GUIDE_BITS
    bits = min(max(len(floors).bit_length() + 5, low), high)
    shift = WORD_BITS - 1 - bits
    edges = np.arange((1 << bits) + 1, dtype=np.uint64) << np.uint64(shift)
    # Number of floors >= the lower edge of each cell: the magnitude of words just below that edge.
    above = len(floors) - np.searchsorted(floors[::-1].astype(np.uint64), edges, side="left")
    guide = np.where(above[:-1] == above[1:], above[:-1], ~above[:-1])
    guide = np.append(guide, 0).astype(np.int32)
    for array in (floors, guide):
        array.flags.writeable = False
    return SamplerTable(distribution, floors, guide, shift)


class _Cache:
    """Tables by law, least recently used first, bounded in bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._tables: OrderedDict[Noise, SamplerTable] = OrderedDict()
        self._lock = Lock()

    def get(self, distribution: Noise) -> SamplerTable:
        with self._lock:
            table = self._tables.get(distribution)
            if table is None:
                table = self._tables[distribution] = _make(distribution)
                self._used += table.nbytes
            self._tables.move_to_end(distribution)
            while self._used > self._limit and len(self._tables) > 1:
                _, dropped = self._tables.popitem(last=False)
                self._used -= dropped.nbytes
            return table


_CACHE = _Cache(_CACHE_BYTES)


@njit(cache=True, nogil=True)
def _lookup(words: Any, guide: Any, shift: Any, floors: Any, out: Any, ties: Any) -> Any:
    # First pass without branches: the guide decides nearly all words, and the others are listed.
    listed = 0
    for i in range(out.shape[0]):
        word = np.int64(words[i, 0])
        sign = word >> np.int64(63)  # -1 in the upper half of [0, 1), else 0
        magnitude = np.int64(guide[(word ^ sign) >> shift])
        out[i] = sign - (magnitude ^ sign)  # +magnitude in the upper half, -magnitude in the lower
        ties[listed] = i
        listed += int(magnitude < 0)
    undecided = 0
    for j in range(listed):
        i = ties[j]
        word = np.int64(words[i, 0])
        sign = word >> np.int64(63)
        half = word ^ sign
        cell = half >> shift
        high = ~np.int64(guide[cell])
        low = np.int64(guide[cell + 1])
        low = max(low, ~low)  # ~m stands for m here too
        while low < high:
            middle = (low + high) >> 1
            if floors[middle] <= half:
                high = middle
            else:
                low = middle + 1
        out[i] = sign - (low ^ sign)
        if floors[low] == half:
            ties[undecided] = i
            undecided += 1
    return undecided
