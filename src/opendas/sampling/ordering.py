"""A secret order of rows, and truncation by it: of each unit (a household, a patient) a few are kept.

A row's place in the order is a keyed label, the message authentication code CBC-MAC over AES-256 of the row's
words, cut to 64 bits: without the key, it is unpredictable which rows are kept. CBC-MAC is a pseudo-random
function on messages none of which is a prefix of another [Bellare, Kilian & Rogaway 2000; Petrank & Rackoff
2000], so a key is used for rows of one width only, or for texts that state their length first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from opendas.arrays import Bools, Codes, Ints, rank_in_run
from opendas.errors import EnvironmentFailure, PrivacyError

_KEY_BYTES = 32
_BLOCK_WORDS = 2
_WORD_BYTES = 8


def keyed_labels(key: bytes, words: NDArray[Any]) -> NDArray[np.uint64]:
    """Return a label for each row.

    - `key`, 32 bytes: from :meth:`opendas.custody.run_key.RunKey.derive`, for rows of this width only.
    - `words` (n, w): rows. Equal rows get equal labels, different ones different labels but for one chance in
      ``2**64``.

    Raises `PrivacyError` if the key is not 32 bytes, or the words are not 64-bit integers in two dimensions.
    Raises `EnvironmentFailure` on a big-endian machine, where words would have other bytes.
    """
    return _sealed(key, words)[:, 0].copy()


def keyed_texts(key: bytes, texts: Codes) -> NDArray[np.uint64]:
    """Return 128 bits that stand for each text: the same for equal texts, whatever stands beside them.

    - `key`, 32 bytes: from :meth:`opendas.custody.run_key.RunKey.derive`, for texts only.
    - `texts` (n,): of any lengths; null bytes at the end do not count.
    - Returns (n, 2): two of ``n`` different texts have the same with a chance below ``n^2 / 2^129``.
    """
    lengths = np.strings.str_len(texts).astype(np.int64)
    found = np.zeros((len(texts), _BLOCK_WORDS), dtype=np.uint64)
    # A message is its length and then the text: no message is a prefix of another.
    blocks = 1 + (lengths + _WORD_BYTES - 1) // (_WORD_BYTES * _BLOCK_WORDS)
    for count in np.unique(blocks).tolist():
        rows = np.flatnonzero(blocks == count)
        words = np.zeros((len(rows), count * _BLOCK_WORDS), dtype=np.int64)
        words[:, 0] = lengths[rows]
        width = (count * _BLOCK_WORDS - 1) * _WORD_BYTES
        words[:, 1:] = texts[rows].astype(f"S{width}").view(np.int64).reshape(len(rows), -1)
        found[rows] = _sealed(key, words)
    return found


def _sealed(key: bytes, words: NDArray[Any]) -> NDArray[np.uint64]:
    """Return the last block of CBC over each row, uint64 (n, 2)."""
    if not isinstance(key, bytes) or len(key) != _KEY_BYTES:
        raise PrivacyError(f"An ordering key is {_KEY_BYTES} bytes; what was given is not.")
    if words.ndim != 2 or words.dtype != np.int64 or words.shape[1] == 0:
        raise PrivacyError("Rows to be ordered are 64-bit integers, at least one a row.")
    if sys.byteorder != "little":
        raise EnvironmentFailure("Ordering labels are little-endian; this machine is not supported.")
    rows, width = words.shape
    blocks = -(-width // _BLOCK_WORDS)
    state = np.zeros((rows, _BLOCK_WORDS), dtype=np.uint64)
    # The cipher asks for room for one block more than it writes.
    sealed = np.zeros((rows + 1, _BLOCK_WORDS), dtype=np.uint64)
    # ECB over the rows' blocks is the block cipher itself; the chaining runs along each row.
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    for block in range(blocks):
        part = words[:, block * _BLOCK_WORDS : (block + 1) * _BLOCK_WORDS].astype(np.uint64)
        state[:, : part.shape[1]] ^= part
        if rows:
            plain = state.reshape(-1).view(np.uint8).data
            encryptor.update_into(plain, sealed.reshape(-1).view(np.uint8).data)
        state[:] = sealed[:rows]
    return state


def keep_at_most(
    most: int,
    unit: Ints,
    content: Sequence[NDArray[np.integer]],
    label: Callable[[Ints, Ints], NDArray[Any]],
    apart: Ints | None = None,
) -> Bools:
    """Keep a limited number of rows of each unit: the first by their labels.

    - `most`, >= 1: rows kept of a unit.
    - `unit` (n,): unit of each row.
    - `content` (n,): the other columns, by which rows are identical or not.
    - `label` (rows, twin): returns the labels of some rows, given by position, int64 (r,); `twin` numbers
      each among the rows identical to it, from 1.
    - `apart` (n,): rows of one unit that are kept differ in it: of those with the same value only the first
      is kept.
    - Returns (n,): True for rows kept. As a multiset, the rows kept of a unit are a function of the rows of
      this unit and of their labels; the order of the input has no effect.

    Notes
    -----
    Sexton et al. (2024), Algorithm 3, lines 2 to 10. Only units whose rows are not all kept anyway are
    labelled.
    """
    kept = np.ones(len(unit), dtype=np.bool_)
    number = np.unique(unit, return_inverse=True)[1]
    least = most if apart is None else 1
    rows = np.flatnonzero(np.bincount(number)[number] > least) if len(unit) > least else np.empty(0, np.int64)
    if not len(rows):
        return kept
    of = unit[rows]
    identity = _identity([column[rows].astype(np.int64) for column in (number, *content)])
    twin = _index_among_identical(identity)
    # The rows themselves decide ties of labels, so that the order of the input has no effect.
    order = np.lexsort((twin, identity, label(rows, twin), of))
    kept[rows] = False
    if apart is not None:
        order = order[_is_first(of[order], apart[rows][order])]
    kept[rows[order[rank_in_run(of[order]) < most]]] = True
    return kept


def _is_first(unit: Ints, apart: Ints) -> Bools:
    """Return where no earlier row has the same unit and value, bool (r,)."""
    order = np.lexsort((apart, unit))  # stable: equal pairs stay in their order
    same = (unit[order][1:] == unit[order][:-1]) & (apart[order][1:] == apart[order][:-1])
    first = np.ones(len(unit), dtype=np.bool_)
    first[order[1:][same]] = False
    return first


def _identity(columns: list[Ints]) -> Ints:
    """Return a number for each row, ordered as its columns, equal for identical rows only."""
    least = [int(column.min()) for column in columns]
    bits = [(int(column.max()) - low).bit_length() for column, low in zip(columns, least, strict=True)]
    if sum(bits) < 64:
        packed = np.zeros(len(columns[0]), dtype=np.int64)
        for column, low, width in zip(columns, least, bits, strict=True):
            packed = (packed << width) | (column - low)
        return packed
    order = np.lexsort(tuple(reversed(columns)))
    changes = np.zeros(len(order), dtype=np.int64)
    for column in columns:
        changes[1:] |= column[order][1:] != column[order][:-1]
    identity = np.empty_like(changes)
    identity[order] = np.cumsum(changes)
    return identity


def _index_among_identical(identity: Ints) -> Ints:
    """Number the rows among those identical to them, from 1, in input order."""
    order = np.argsort(identity, kind="stable")
    index = np.empty(len(identity), dtype=np.int64)
    index[order] = rank_in_run(identity[order]) + 1
    return index
