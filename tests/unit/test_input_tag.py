"""The input tag: one value for one table, however it is cut and ordered, and another for every other."""

from __future__ import annotations

import hashlib
import hmac
from functools import reduce

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from support.mini import mini_frame, mini_histogram
from support.seeds import examples

import opendas.engines.truth as truth
from opendas.custody.input_tag import TagSum, tag_entries, tag_key, tag_of
from opendas.custody.run_key import RunKey
from opendas.engines.truth import input_tag
from opendas.errors import DataError
from opendas.schema.histogram import Histogram

KEY = RunKey.seeded(3)


def twin(key: RunKey, table: Histogram) -> str:
    """Encrypt entry by entry, each laid out as one integer of 128 bits."""
    total = 0
    for leaf in range(table.rows):
        for cell, count in enumerate(table.dense(leaf).tolist()):
            if count:
                block = (leaf << 94 | cell << 63 | count).to_bytes(16, "little")
                cipher = Cipher(algorithms.AES(tag_key(key)), modes.ECB()).encryptor()
                total ^= int.from_bytes(cipher.update(block), "little")
    entries = len(table.cells)
    message = b"opendas histogram 2" + total.to_bytes(16, "big")
    message += b"".join(n.to_bytes(8, "big") for n in (entries, table.rows, table.size))
    return hmac.new(key._derive(b"tag"), message, hashlib.sha256).hexdigest()


def test_the_tag_is_what_it_is_said_to_be() -> None:
    table = mini_histogram(mini_frame())
    assert input_tag(KEY, table) == twin(KEY, table)


@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_pieces_do_not_matter(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    table = mini_histogram(mini_frame())
    expected = input_tag(KEY, table)
    monkeypatch.setattr(truth, "LEAVES_AT_ONCE", rows)
    assert input_tag(KEY, table) == expected


entries = st.sets(st.tuples(st.integers(0, 2**34 - 1), st.integers(0, 2**31 - 1)), max_size=20)


@given(entries, st.randoms(use_true_random=False))
@settings(max_examples=examples(60), deadline=None)
def test_order_and_partition_do_not_matter(places: set[tuple[int, int]], random) -> None:
    rows = [(leaf, cell, random.randint(1, 2**63 - 1)) for leaf, cell in places]
    secret = tag_key(KEY)

    def total(some: list[tuple[int, int, int]]) -> TagSum:
        arrays = np.array(some, dtype=np.int64).reshape(-1, 3).T
        return tag_entries(secret, *arrays)

    whole = total(rows)
    random.shuffle(rows)
    cut = random.randint(0, len(rows))
    assert total(rows[:cut]) + total(rows[cut:]) == whole
    assert reduce(TagSum.__add__, [total([row]) for row in rows], TagSum()) == whole
    if rows:
        leaf, cell, count = rows[0]
        assert total([(leaf, cell, count - 1 or 2), *rows[1:]]) != whole
        assert total(rows[1:]) != whole


def test_neighbouring_fields_do_not_run_into_each_other() -> None:
    """The largest value of each field beside the smallest of the next."""
    secret = tag_key(KEY)
    edges = np.array(
        [
            (leaf, cell, count)
            for leaf in (0, 1, 2**34 - 1)
            for cell in (0, 1, 2, 2**31 - 1)
            for count in (1, 2, 2**62, 2**63 - 1)
        ],
        dtype=np.int64,
    )
    sums = {tag_entries(secret, *row.reshape(3, 1)).blocks for row in edges}
    assert len(sums) == len(edges)


@pytest.mark.parametrize("entry", [(2**34, 0, 1), (-1, 0, 1), (0, 2**31, 1), (0, 0, 0)])
def test_what_does_not_fit_is_refused(entry: tuple[int, int, int]) -> None:
    with pytest.raises(DataError, match="out of the range"):
        tag_entries(tag_key(KEY), *(np.array([value], dtype=np.int64) for value in entry))


def test_key_shape_and_number_of_entries_matter() -> None:
    one = tag_of(KEY, TagSum(5, 2), (3, 4))
    others = [
        tag_of(RunKey.seeded(4), TagSum(5, 2), (3, 4)),
        tag_of(KEY, TagSum(5, 3), (3, 4)),
        tag_of(KEY, TagSum(5, 2), (4, 4)),
        tag_of(KEY, TagSum(5, 2), (3, 5)),
        tag_of(KEY, TagSum(6, 2), (3, 4)),
    ]
    assert len({one, *others}) == 6
