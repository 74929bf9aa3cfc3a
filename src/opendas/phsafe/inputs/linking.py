"""Persons beside their units beside their places, in one canonical order.

Everything is sorted once by MAFID; joins are binary searches in sorted keys. The order within a household is
that of the codes, so that nothing that follows depends on the order of the input files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from opendas.arrays import positions_of
from opendas.errors import Finding
from opendas.phsafe.inputs.findings import Source, list_lines
from opendas.phsafe.inputs.records import Inputs, Persons, Places, Units, to_words

_GROUP_QUARTERS = (4, 5)

_Rows = TypeVar("_Rows", Units, Places)

# Bits of each column in a sort key of one word, most significant first; MAFID has the rest.
_PERSON_BITS = (("rtype", 3), ("qage", 8), ("cenhisp", 2), ("cenrace", 6), ("relship", 6))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Linked:
    """Inputs sorted and joined. Confidential."""

    persons: Persons  # sorted by MAFID, then by the other columns
    units: Units  # those that are in a place of the grid and not in group quarters, sorted by MAFID
    state: npt.NDArray[np.int8]  # (u,): position of each unit's state in the sorted state filter
    home: npt.NDArray[np.int64]  # (n,): position in `units` of each person's unit, -1 where there is none

    def __repr__(self) -> str:
        return f"Linked({self.persons!r}, {self.units!r})"


def sort_inputs(inputs: Inputs) -> Inputs:
    """Return the same rows in canonical order: by MAFID, then by all other columns but the line."""
    return replace(
        inputs,
        persons=_sorted_persons(inputs.persons),
        units=_sorted_rows(inputs.units),
        places=_sorted_rows(inputs.places),
    )


def link(inputs: Inputs, state_filter: Sequence[str]) -> Linked:
    """Sort and join.

    `inputs`: restricted to the state filter. Keys that stand several times (which validation refuses but in
    the non-private mode) join with every partner.

    Notes
    -----
    Sexton et al. (2024), Algorithm 3, line 17; units that share a key (lines 11 to 16) were refused.
    """
    inputs = sort_inputs(inputs)
    persons, units, places = inputs.persons, inputs.units, _housing(inputs.places)
    unit_rows, place_rows = _join(units.mafid, places.mafid)
    if not np.array_equal(unit_rows, np.arange(len(units))):
        units = units.take(unit_rows)
    number = np.full(128, -1, dtype=np.int8)
    number[[int(code) for code in state_filter]] = np.arange(len(state_filter), dtype=np.int8)
    state = number[places.state[place_rows]]
    if _repeated(units.mafid).any():
        person_rows, home = _join(persons.mafid, units.mafid)
        return Linked(persons.take(person_rows), units, state, home)
    return Linked(persons, units, state, positions_of(units.mafid, persons.mafid))


def check_keys(inputs: Inputs) -> list[Finding]:
    """Find keys that stand twice, and keys without their partner in another file.

    Returns: by rule and line, the first lines of each rule. All rows are in the state filter; what lies
    outside it was never looked at.
    """
    inputs = sort_inputs(inputs)
    persons, units, places = inputs.persons, inputs.units, inputs.places
    files = inputs.files
    not_a_unit = f"the key is not in {files.units.title}"
    checks: list[tuple[Source, Persons | Units | Places, npt.NDArray[np.bool_], str]] = [
        (files.persons, persons, positions_of(units.mafid, persons.mafid) < 0, not_a_unit),
        (files.units, units, _repeated(units.mafid), "the key stands more than once"),
        (
            files.units,
            units,
            positions_of(places.mafid, units.mafid) < 0,
            f"the key is not in {files.places.title}",
        ),
        (files.places, places, _repeated(places.mafid), "the key stands more than once"),
        (files.places, places, positions_of(units.mafid, places.mafid) < 0, not_a_unit),
    ]
    return [
        finding
        for source, rows, wrong, rule in checks
        for finding in list_lines(source, rows.line[wrong], "MAFID", rule)
    ]


def _repeated(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which sorted keys stood before."""
    again = np.zeros(len(keys), dtype=np.bool_)
    again[1:] = keys[1:] == keys[:-1]
    return again


def _housing(places: Places) -> Places:
    """Places that are no group quarters."""
    outside = np.isin(places.rtype, _GROUP_QUARTERS)
    return places.take(~outside) if outside.any() else places


def _sorted_rows(rows: _Rows) -> _Rows:
    mafid = rows.mafid
    if (mafid[1:] > mafid[:-1]).all():
        return rows
    order = np.argsort(mafid, kind="stable")
    if _repeated(mafid[order]).any():
        others: list[npt.NDArray[Any]] = [
            getattr(rows, name) for name in rows.dtypes() if name not in ("line", "mafid")
        ]
        order = np.lexsort((*reversed(others), mafid))
    return rows.take(order)


def _sorted_persons(persons: Persons) -> Persons:
    key = persons.mafid.copy()
    room = 63 - sum(bits for _, bits in _PERSON_BITS)
    fits = not len(key) or (int(key.min()) >= 0 and int(key.max()) < 1 << room)
    for name, bits in _PERSON_BITS:
        column = getattr(persons, name)
        fits = fits and (not len(column) or (int(column.min()) >= 0 and int(column.max()) < 1 << bits))
        key <<= bits
        key |= column
    if not fits:  # codes outside their lists, in the non-private mode
        columns = [getattr(persons, name) for name, _ in _PERSON_BITS]
        return persons.take(np.lexsort((*reversed(columns), persons.mafid)))
    if (key[1:] >= key[:-1]).all():
        return persons
    return persons.take(np.argsort(key, kind="stable"))


def _join(
    left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the pairs of positions with equal keys; both sides sorted."""
    first = np.searchsorted(right, left, side="left")
    partners = np.searchsorted(right, left, side="right") - first
    rows = np.repeat(np.arange(len(left)), partners)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(partners) - partners, partners)
    return rows, np.repeat(first, partners) + within


# The serialisation behind the keyed input tag: the same for any order of rows and any engine.
#
# Households are assigned to a fixed number of buckets by their key. Each bucket has a digest of all of its
# rows in canonical order; the digests together, bucket by bucket, are what is tagged. Anyone who has whole
# buckets can digest them, so an engine digests a nation in parts. The digests are confidential like the rows:
# unkeyed digests of small buckets confirm guesses.

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
