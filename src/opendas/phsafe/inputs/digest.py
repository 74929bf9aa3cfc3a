"""The serialisation behind the keyed input tag: the same for any order of rows and any engine.

Households are assigned to a fixed number of buckets by their key. Each bucket has a digest of all of its rows
in canonical order; the digests together, bucket by bucket, are what is tagged. Anyone who has whole buckets
can digest them, so an engine digests a nation in parts. The digests are confidential like the rows: unkeyed
digests of small buckets confirm guesses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from opendas.phsafe.inputs.linking import sort_inputs
from opendas.phsafe.inputs.records import Inputs, Persons, Places, Units, to_words

BUCKETS = 4096
"""Part of the format of the tag."""

_AT_A_TIME = 256
_DIGEST = 32


def bucket_of(mafid: npt.NDArray[np.int64]) -> npt.NDArray[np.uint16]:
    """Return the bucket of each key."""
    return (mafid % BUCKETS).astype(np.uint16)


def bucket_digests(inputs: Inputs) -> dict[int, bytes]:
    """Return the digest of each bucket that holds a row.

    `inputs`: all rows of the buckets that it holds rows of.
    """
    inputs = sort_inputs(inputs)
    parts = [_Part(rows) for rows in (inputs.persons, inputs.units, inputs.places)]
    digests = {}
    for start in range(0, BUCKETS, _AT_A_TIME):
        blocks = [part.blocks(start, start + _AT_A_TIME) for part in parts]
        for bucket, rows in enumerate(zip(*blocks, strict=True), start=start):
            lengths = np.array([len(block) for block in rows], dtype="<i8")
            if lengths.any():
                digest = hashlib.sha256(lengths.tobytes())
                for block in rows:
                    digest.update(block.data)
                digests[bucket] = digest.digest()
    return digests


def canonical_bytes(digests: Mapping[int, bytes]) -> bytes:
    """Return what is tagged: the digest of every bucket, zeros for those without rows."""
    return b"".join(digests.get(bucket, bytes(_DIGEST)) for bucket in range(BUCKETS))


class _Part:
    """Sorted rows, in buckets."""

    def __init__(self, rows: Persons | Units | Places) -> None:
        self._rows = rows
        bucket = bucket_of(rows.mafid)
        self._order = np.argsort(bucket, kind="stable")
        self._ends = np.concatenate([[0], np.cumsum(np.bincount(bucket, minlength=BUCKETS))])

    def blocks(self, first: int, last: int) -> list[npt.NDArray[Any]]:
        """Return the words of the rows of buckets `first` to `last` - 1, key included, one array a bucket."""
        ends = self._ends[first : last + 1]
        rows = self._rows.take(self._order[ends[0] : ends[-1]])
        words = np.column_stack([rows.mafid.astype("<i8"), to_words(rows)])
        return [words[start - ends[0] : end - ends[0]] for start, end in pairwise(ends.tolist())]
