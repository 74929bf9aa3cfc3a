"""Where a record belongs whose leaf or label is not listed: the arrays against the rule, record by record."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from opendas.geography.frame import LevelRule
from opendas.readers.columns.coding import codes_or_other
from opendas.readers.columns.csv_parquet import Batch
from opendas.readers.counting.others import OtherLeaves, other_leaf

TEXTS = st.sampled_from(["", "a", "b", "c", "other", "other:top:a", "é", "a ", "0"])
ROWS = st.lists(st.tuples(TEXTS, TEXTS, TEXTS), min_size=1, max_size=20)
LEVELS = (LevelRule("all", prefix=0), LevelRule("top", column="top"), LevelRule("middle", column="middle"))
RULE = OtherLeaves("other", "leaf", LEVELS)


def batch(rows: list[tuple[str, str, str]]) -> Batch:
    names = ("top", "middle", "leaf")
    columns = {name: pa.array([row[k].encode() for row in rows]) for k, name in enumerate(names)}
    return Batch("rows.csv", 2, columns, len(rows))


def place(row: tuple[str, str, str], leaves: list[str]) -> str:
    """The leaf of one record: its own, else that of its lowest unit that has one for others, or of all."""
    top, middle, leaf = row
    tried = (leaf, other_leaf("other", "middle", middle), other_leaf("other", "top", top))
    return next((each for each in tried if each in leaves), "other")


@given(ROWS, st.sets(st.sampled_from(["a", "b", "other:top:a", "other:top:", "other:middle:b"])))
def test_every_record_has_the_place_that_the_rule_gives_it(
    rows: list[tuple[str, str, str]], listed: set[str]
) -> None:
    leaves = sorted({*listed, "other"})
    geocodes = np.array([leaf.encode() for leaf in leaves])
    RULE.check(geocodes)
    places = RULE.places(batch(rows), geocodes)
    assert [leaves[k] for k in places.tolist()] == [place(row, leaves) for row in rows]


@given(ROWS)
def test_a_label_that_is_not_listed_is_the_other_one(rows: list[tuple[str, str, str]]) -> None:
    labels = ("b", "other", "a")
    codes = codes_or_other(batch(rows), "leaf", labels, "other")
    assert [labels[k] for k in codes.tolist()] == [r[2] if r[2] in labels else "other" for r in rows]
