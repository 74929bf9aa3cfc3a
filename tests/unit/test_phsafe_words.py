"""Rows as words and the digests of buckets, against the obvious."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
from support.households import random_world, write_world

from opendas.phsafe.inputs.linking import BUCKETS, bucket_digests, bucket_of, canonical_bytes, sort_inputs
from opendas.phsafe.inputs.read_csv import read_csv
from opendas.phsafe.inputs.records import Inputs, Persons, Places, Units, from_words, to_words


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    return read_csv(write_world(tmp_path, random_world(8, 90, any_codes=True)), ["06", "44"])


def test_words_hold_every_column(inputs: Inputs) -> None:
    inputs.persons.qage[:3] = -1, 115, 32_767
    inputs.units.final_pop[:2] = -1, 99_999
    for rows in (inputs.persons, inputs.units, inputs.places):
        words = to_words(rows)
        wider = np.column_stack([words, np.full(len(rows), 7)])
        again = from_words(type(rows), rows.mafid, wider, rows.line)
        for name, kind in rows.dtypes().items():
            assert getattr(again, name).dtype == kind
            assert np.array_equal(getattr(again, name), getattr(rows, name)), name


def test_every_bucket_is_digested_alone(inputs: Inputs) -> None:
    """The slow twin: rows one by one, fields by their width."""

    def slow(bucket: int) -> bytes:
        ordered = sort_inputs(inputs)
        parts = []
        for rows, form, names in (
            (ordered.persons, "<qbhbbbxx", ("mafid", "rtype", "qage", "cenhisp", "cenrace", "relship")),
            (
                ordered.units,
                "<qbibbbbbbbxxxx",
                ("mafid", "rtype", "final_pop", "npf", "hhspan", "hhrace", "ten", "hht", "hht2", "cplt"),
            ),
            (ordered.places, "<qbbxxxxxx", ("mafid", "rtype", "state")),
        ):
            parts.append(
                [
                    struct.pack(form, *(int(getattr(rows, name)[i]) for name in names))
                    for i in range(len(rows))
                    if rows.mafid[i] % BUCKETS == bucket
                ]
            )
        lengths = b"".join(struct.pack("<q", len(part)) for part in parts)
        return hashlib.sha256(lengths + b"".join(row for part in parts for row in part)).digest()

    digests = bucket_digests(inputs)
    assert digests == {bucket: slow(bucket) for bucket in set(bucket_of(inputs.units.mafid).tolist())}


def test_digests_come_together_from_parts_of_whole_buckets(inputs: Inputs) -> None:
    together: dict[int, bytes] = {}
    for part in range(3):
        together |= bucket_digests(
            Inputs(
                *(
                    rows.take(bucket_of(rows.mafid) % 3 == part)
                    for rows in (inputs.persons, inputs.units, inputs.places)
                )
            )
        )
    assert canonical_bytes(together) == canonical_bytes(bucket_digests(inputs))
    assert len(canonical_bytes(together)) == 32 * BUCKETS


def test_nothing_has_a_digest_too() -> None:
    empty = Inputs(*(kind.of(**dict.fromkeys(kind.dtypes(), ())) for kind in (Persons, Units, Places)))
    assert bucket_digests(empty) == {}
    assert canonical_bytes({}) == bytes(32 * BUCKETS)
