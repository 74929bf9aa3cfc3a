"""A secret order: one keyed 64-bit label a row, as a pure function of a key and the row.

Used where a fixed number of rows is kept and nobody without the key may foresee which. The label is the
message authentication code CBC-MAC over AES-256 of the row's words, cut to 64 bits. CBC-MAC is a
pseudo-random function on messages of one fixed length [Bellare, Kilian & Rogaway 2000], so a key is used for
rows of one width only: bind it to the table by deriving it for that table.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from opendas.errors import EnvironmentFailure, PrivacyError

__all__ = ["keyed_labels"]

_KEY_BYTES = 32
_BLOCK_BYTES = 16
_BLOCK_WORDS = 2


def keyed_labels(key: bytes, words: NDArray[Any]) -> NDArray[np.uint64]:
    """Return a label for each row.

    Parameters
    ----------
    key : bytes, 32 of them
        From :meth:`opendas.custody.run_key.RunKey.derive`, for rows of this width only.
    words : int64 (n, w)
        Rows. Equal rows get equal labels, different ones different labels but for one chance in ``2**64``.

    Returns
    -------
    uint64 (n,)

    Raises
    ------
    PrivacyError
        If the key is not 32 bytes, or the words are not 64-bit integers in two dimensions.
    EnvironmentFailure
        On a big-endian machine, where words would have other bytes.
    """
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
    return state[:, 0].copy()
