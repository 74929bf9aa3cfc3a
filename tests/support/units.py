"""Small tables in which a unit has several records, and what is counted of them, the slow way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from opendas.readers.counting.contributions import Contributions
from opendas.readers.input.spec import SelectionKeys
from opendas.runs.context.run import Run, define
from opendas.sampling.ordering import keyed_labels, keyed_texts
from opendas.schema.declarations import ContributionBound, Distinct

Row = tuple[str, int, int]
"""Unit, leaf, cell."""

Record = tuple[int, int]
"""Leaf, cell."""

KEYS = SelectionKeys(b"\5" * 32, b"\6" * 32)
LEAVES = ("aa", "ab", "ba", "bb")
LEVELS = [{"name": "all", "prefix": 0}, {"name": "side", "prefix": 1}, {"name": "ward"}]
AGES, KINDS = ("young", "old"), ("x", "y", "z")


def key(number: int) -> SelectionKeys:
    """One pair of keys of many."""
    return SelectionKeys(number.to_bytes(32, "big"), (number + 1000).to_bytes(32, "big"))


def counted_slowly(
    rows: Iterable[Row], bound: ContributionBound, keys: SelectionKeys = KEYS
) -> Counter[Record]:
    """Order the records of every unit by their labels, one by one, and take the first that may be taken."""
    units: dict[str, list[Record]] = {}
    for unit, *record in rows:
        units.setdefault(unit, []).append((record[0], record[1]))
    found: Counter[Record] = Counter()
    for unit, records in units.items():
        name = keyed_texts(keys.units, np.array([unit.encode()])).view(np.int64)[0]
        seen: Counter[Record] = Counter()
        labelled = []
        for record in records:
            seen[record] += 1
            words = np.array([[*name, *record, seen[record]]], dtype=np.int64)
            labelled.append((int(keyed_labels(keys.records, words)[0]), record))
        kept: list[Record] = []
        for _, record in sorted(labelled):
            if len(kept) < bound.at_most and may_join(kept, record, bound.distinct):
                kept.append(record)
        found.update(kept)
    return found


def may_join(kept: Sequence[Record], record: Record, distinct: Distinct | None) -> bool:
    """Whether a record differs from those that are there as it must."""
    leaf, cell = record
    if distinct is Distinct.LEAF:
        return all(leaf != other for other, _ in kept)
    if distinct is Distinct.CELL:
        return all(cell != other for _, other in kept)
    return distinct is None or record not in kept


def counted(
    rows: Sequence[Row],
    bound: ContributionBound,
    keys: SelectionKeys = KEYS,
    *,
    size: int = 6,
    cache: Path | None = None,
    limit: int | None = None,
    batch: int = 7,
) -> Counter[Record]:
    """The same by the code of the product, in batches."""
    found: Counter[Record] = Counter()
    with Contributions(bound, keys, size, cache, limit) as units:
        for start in range(0, len(rows), batch):
            some = rows[start : start + batch]
            ids = np.array([unit.encode() for unit, _, _ in some])
            units.add(ids, np.array([leaf * size + cell for _, leaf, cell in some], dtype=np.int64))
        for numbers, counts in units.counted():
            assert np.all(np.diff(numbers) > 0)
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
                found[divmod(number, size)] += count
    return found


def table(rows: Iterable[Row]) -> pa.Table:
    """The rows as a table of labels."""
    columns: dict[str, list[Any]] = {"who": [], "ward": [], "age": [], "kind": []}
    for unit, leaf, cell in rows:
        for name, value in zip(columns, (unit, LEAVES[leaf], AGES[cell // 3], KINDS[cell % 3]), strict=True):
            columns[name].append(value)
    return pa.table(columns)


def unit_run(
    rows: Iterable[Row] = (("u", 0, 0),),
    *,
    run: dict[str, Any] | None = None,
    geography: dict[str, Any] | None = None,
    budget: dict[str, Any] | None = None,
    product: dict[str, Any] | None = None,
    **section: Any,
) -> Run:
    """A run over the rows: two sides of two wards, two attributes of two and three levels."""
    return define(
        {
            "run": run or {},
            "input": {"reader": "records", "geocode": "ward", **section},
            "geography": {"levels": LEVELS, "provenance": "public", **(geography or {})},
            "budget": {
                "rho": "7/3",
                "geolevels": {"all": "1/6", "side": "1/3", "ward": "1/2"},
                "queries": {"*": {"total": "1/5", "age": "3/10", "detailed": "1/2"}},
                **(budget or {}),
            },
        },
        input=table(rows),
        frame=pa.table({"ward": LEAVES}),
        product={
            "product": {"name": "visits", "provenance": "code-book"},
            "attributes": {"age": list(AGES), "kind": list(KINDS)},
            "queries": {"groups": ["age"]},
            **(product or {}),
        },
    )
