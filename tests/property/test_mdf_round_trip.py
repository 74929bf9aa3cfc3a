"""Whatever the counts, microdata and measurement files give back what was written."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.mdf import write_mdf
from support.seeds import examples

from opendas.files.mdf import writing as mdf_writer
from opendas.files.mdf.layout import mdf_parts
from opendas.files.mdf.reading import read_mdf_records
from opendas.files.nmf.reading import Answers
from opendas.geography.frame import Frame
from opendas.schema.attributes import Attribute, Schema
from opendas.schema.histogram import Histogram
from opendas.schema.product import PassPlan, Product

CHARACTERS = st.characters(codec="utf-8", exclude_characters="\r\n\0", exclude_categories=["Cs"])
LABELS = st.lists(st.text(CHARACTERS, min_size=1, max_size=4), min_size=1, max_size=4, unique=True)


@st.composite
def products(draw):
    attributes = [Attribute(name, tuple(draw(LABELS))) for name in ("a", "b")]
    return Product("p", Schema(tuple(attributes)), (), ("total", "detailed"), (), (), (), "record", "p",
                   PassPlan({}, {}))  # fmt: skip


@st.composite
def frames(draw):
    codes = sorted(draw(st.sets(st.text("ab/._%#|", min_size=3, max_size=3), min_size=1, max_size=8)))
    geocodes = np.array([code.encode() for code in codes])
    depth = draw(st.integers(0, 2))
    levels = {f"l{k}": geocodes.astype(f"S{k + 1}") for k in range(depth)}
    return Frame(geocodes, levels, "leaf")


@settings(max_examples=examples(60), deadline=None)
@given(products(), frames(), st.data())
def test_any_counts_come_back(product, frame, data):
    shape = (len(frame), product.schema.size)
    flat = data.draw(st.lists(st.integers(0, 7), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    dense = np.array(flat).reshape(shape)
    rows, cells = np.nonzero(dense)
    estimate = Histogram.from_entries(rows, cells, dense[rows, cells], shape=shape)
    fmt = data.draw(st.sampled_from(["parquet", "pipe"]))
    with TemporaryDirectory() as folder, patch.object(mdf_writer, "ROW_GROUP", data.draw(st.integers(1, 9))):
        records = write_mdf(Path(folder), product, frame, estimate, fmt=fmt)
        seen = read_mdf_records(Path(folder), product, frame)
        files = len(list(Path(folder).iterdir()))
    assert records == seen.records == dense.sum()
    assert seen.sorted_by_leaf
    assert files == len(mdf_parts(product, frame))
    assert np.array_equal(np.stack([seen.counts.dense(row) for row in range(shape[0])]), dense)


@given(st.lists(st.lists(st.integers(-50, 50), max_size=5), min_size=1, max_size=6), st.data())
def test_answers_divide_and_join(lists, data):
    lengths = [len(values) for values in lists]
    flat = np.array([value for values in lists for value in values], dtype=np.int64)
    cells = np.array([cell for length in lengths for cell in range(length)], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    answers = Answers(flat, offsets, cells, np.arange(len(lists), dtype=np.float64))
    cut = data.draw(st.integers(0, len(lists)))
    joined = Answers.concatenate([answers.slice(0, cut), answers.slice(cut, len(lists))])
    for name in ("values", "offsets", "cells", "variance"):
        assert np.array_equal(getattr(joined, name), getattr(answers, name))
    assert np.array_equal(answers.listed_cells(), cells)
