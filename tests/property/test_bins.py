"""Numbers in classes: every value stands in the last class that begins at it or below."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opendas.readers.columns.coding import binned
from opendas.readers.columns.csv_parquet import Batch
from opendas.readers.columns.findings import FindingLog

EDGES = st.lists(st.integers(-50, 50), min_size=1, max_size=6, unique=True).map(sorted)
NUMBERS = st.decimals(-60, 60, places=1)
TEXTS = st.one_of(NUMBERS.map(str), st.sampled_from(["", "x", "nan", "inf", " 3", "1e1", "--1"]))


def place(text: str, edges: list[int]) -> int:
    """Return the class of a number, one comparison at a time; -1 where there is none."""
    try:
        number = Decimal(text.strip())
    except ArithmeticError:
        return -1
    if not number.is_finite():
        return -1
    return sum(number >= edge for edge in edges) - 1


@given(EDGES, st.lists(TEXTS, min_size=1, max_size=20), st.booleans())
def test_every_value_is_in_its_class(edges: list[int], texts: list[str], with_other: bool) -> None:
    levels = [f"from {edge}" for edge in edges] + (["other"] if with_other else [])
    batch = Batch("t.csv", 1, {"age": pa.array([text.encode() for text in texts])}, len(texts))
    log = FindingLog()
    other = "other" if with_other else None
    found = binned(batch, "age", np.array(edges, float), levels, other, log)
    wanted = [place(text, edges) for text in texts]
    if with_other:
        wanted = [len(edges) if code < 0 else code for code in wanted]
    assert found.tolist() == wanted
    assert bool(log) == (-1 in wanted)


@pytest.mark.parametrize("values", [pa.array([5, None, 70]), pa.array([5.0, float("nan"), 70.0])])
def test_numbers_of_parquet_files_are_numbers(values: pa.Array) -> None:
    batch = Batch("t.parquet", 1, {"age": values}, 3)
    found = binned(batch, "age", np.array([0.0, 65.0]), ["a", "b", "other"], "other", FindingLog())
    assert found.tolist() == [0, 2, 1]
