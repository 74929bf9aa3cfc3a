"""Compute the input tag, a keyed digest of the confidential table, independent of order and partition.

An engine that sees the table in pieces, on several machines, must bind its noise to the same input as one
that sees it whole. So the tag is a keyed multiset hash: AES-256 encrypts every entry (leaf, cell, count) as
one block, and the blocks are added without carry. Argument: docs/proofs/keys.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from opendas.custody.run_key import RunKey
from opendas.errors import DataError

_ENTRIES_AT_ONCE = 1 << 18
_MOST_LEAVES = 1 << 34
_MOST_CELLS = 1 << 31

Numbers = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True, repr=False)
class TagSum:
    """Partial sum of encrypted entries, to be combined with others. Confidential: it is not the tag."""

    blocks: int = 0  # bitwise sum without carry of the entries' blocks, 128 bits
    entries: int = 0  # number of entries

    def __add__(self, other: TagSum) -> TagSum:
        return TagSum(self.blocks ^ other.blocks, self.entries + other.entries)


def tag_key(key: RunKey) -> bytes:
    """Return the key that encrypts entries, and only these."""
    return key.derive("input tag, entries")


def tag_entries(key: bytes, leaves: Numbers, cells: Numbers, counts: Numbers) -> TagSum:
    """Return the partial sum of some entries of a table.

    - `key`: of :func:`tag_key`.
    - `leaves` (e,): positions of the leaves in the frame, below 2**34.
    - `cells` (e,): below 2**31. No two entries of a table have the same leaf and cell.
    - `counts` (e,): positive.

    Raises `DataError` if a number does not fit its field; none is truncated.
    """
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # each block is encrypted separately
    total = np.zeros(2, dtype=np.uint64)
    for start in range(0, len(leaves), _ENTRIES_AT_ONCE):
        piece = slice(start, start + _ENTRIES_AT_ONCE)
        block = np.frombuffer(encryptor.update(_pack(leaves[piece], cells[piece], counts[piece])), np.uint64)
        total ^= np.bitwise_xor.reduce(block.reshape(-1, 2), axis=0)
    return TagSum(int.from_bytes(total.tobytes(), "little"), len(leaves))


def _pack(leaves: Numbers, cells: Numbers, counts: Numbers) -> bytes:
    """Encode entries as count 63 bits, cell 31, leaf 34; different entries give different blocks."""
    for name, values, least, most in (
        ("leaf", leaves, 0, _MOST_LEAVES),
        ("cell", cells, 0, _MOST_CELLS),
        ("count", counts, 1, None),
    ):
        if len(values) and (values.min() < least or (most is not None and values.max() >= most)):
            raise DataError(f"a {name} is out of the range that the input tag can hold.")
    leaf, cell, count = (np.asarray(values, dtype=np.uint64) for values in (leaves, cells, counts))
    one = np.uint64(1)
    words = np.empty((len(leaf), 2), dtype="<u8")
    words[:, 0] = count | ((cell & one) << np.uint64(63))
    words[:, 1] = (cell >> one) | (leaf << np.uint64(30))
    return words.tobytes()


def tag_of(key: RunKey, total: TagSum, shape: tuple[int, int]) -> str:
    """Return the tag of a table, 64 hexadecimal digits that confirm no guess without the key.

    `shape`, (leaves, cells).
    """
    fields = (total.blocks.to_bytes(16, "big"), *(n.to_bytes(8, "big") for n in (total.entries, *shape)))
    return key.tag(b"opendas histogram 2" + b"".join(fields))
