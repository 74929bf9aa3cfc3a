"""Whatever a file holds, a reader gives data or an OpendasError; and what it gives is what is there."""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.pl94_zip import Block, members, some_blocks, tables, write_csv, write_zip
from support.seeds import examples

from opendas.errors import DataError, OpendasError
from opendas.geography.frame import LevelRule
from opendas.readers import ReaderSpec, make_reader
from opendas.readers.pl94.people import apportion, place_people
from opendas.schema.attributes import Attribute, Schema
from opendas.schema.pl94 import pl94_persons
from opendas.schema.product import PassPlan, Product

QUICK = settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
PASSES = PassPlan(least_squares={"*": (("rest",),)}, rounder={"*": (("total",),)})
SCHEMA = Schema((Attribute("age", ("young", "old")), Attribute("group", ("x", "y", "z"))))
PRODUCT = Product("p", SCHEMA, (), ("total",), (), (), (), "person", "p", PASSES)
LEAVES = ("a1", "a2", "b1")
LEVELS = (LevelRule("region", 1), LevelRule("ward", 2))

good_row = st.tuples(
    st.sampled_from(LEAVES), st.sampled_from(("young", "old")), st.sampled_from("xyz"), st.integers(0, 10**6)
)
odd_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
odd_row = st.lists(st.one_of(odd_text, st.sampled_from(("a1", "young", "x", "3"))), min_size=0, max_size=6)


def reader(folder: Path, content: bytes, kind: str = "histogram") -> ReaderSpec:
    (folder / "d.csv").write_bytes(content)
    frame = write_csv(folder / "f.csv", [["geocode", "n"], *([leaf, "1"] for leaf in LEAVES)])
    return ReaderSpec(kind, (folder / "d.csv",), PRODUCT, levels=LEVELS, frame=frame)


@QUICK
@given(rows=st.lists(good_row, min_size=1, max_size=30))
def test_good_rows_are_summed(tmp_path: Path, rows: list[tuple[str, str, str, int]]) -> None:
    path = write_csv(tmp_path / "g.csv", [["geocode", "age", "group", "count"], *map(list, rows)])
    data = make_reader(reader(tmp_path, path.read_bytes())).read()
    slow: Counter[tuple[int, int]] = Counter()
    for leaf, age, group, count in rows:
        slow[LEAVES.index(leaf), SCHEMA.cell({"age": age, "group": group})] += count
    rows_of = np.repeat(np.arange(3), np.diff(data.histogram.indptr))
    fast = zip(rows_of.tolist(), data.histogram.cells.tolist(), data.histogram.counts.tolist(), strict=True)
    assert {(row, cell): count for row, cell, count in fast} == {key: n for key, n in slow.items() if n}


@QUICK
@given(
    rows=st.lists(st.one_of(good_row, odd_row), max_size=12), kind=st.sampled_from(("histogram", "records"))
)
def test_odd_rows_never_escape_as_another_error(
    tmp_path: Path, rows: list[tuple[str, str, str, int] | list[str]], kind: str
) -> None:
    path = write_csv(tmp_path / "o.csv", [["geocode", "age", "group", "count"], *map(list, rows)])
    try:
        data = make_reader(reader(tmp_path, path.read_bytes(), kind)).read()
    except OpendasError:
        return
    assert data.histogram.rows == 3


@QUICK
@given(content=st.binary(max_size=300), header=st.booleans())
def test_odd_bytes_never_escape_as_another_error(tmp_path: Path, content: bytes, header: bool) -> None:
    text = b"geocode,age,group,count\n" + content if header else content
    try:
        make_reader(reader(tmp_path, text)).read()
    except OpendasError:
        return


@QUICK
@given(data=st.data(), year=st.sampled_from((2010, 2020)))
def test_damaged_redistricting_members_never_escape(tmp_path: Path, data: st.DataObject, year: int) -> None:
    texts = members(some_blocks(), year)
    name = data.draw(st.sampled_from(sorted(texts)))
    text = texts[name]
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, min(len(text), start + 40)))
    odd = data.draw(st.text(st.characters(max_codepoint=255), max_size=20))
    path = write_zip(tmp_path / "fb.zip", some_blocks(), year, {name: text[:start] + odd + text[stop:]})
    try:
        found = make_reader(ReaderSpec(f"pl94-{year}", (path,), pl94_persons())).read()
    except DataError:
        return
    assert found.histogram.rows == len(found.frame)


@QUICK
@given(content=st.binary(max_size=400))
def test_any_bytes_as_a_zip_never_escape(tmp_path: Path, content: bytes) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("fbgeo2010.pl", content)
        archive.writestr("fb000012010.pl", content)
        archive.writestr("fb000022010.pl", content[::-1])
    (tmp_path / "fb.zip").write_bytes(buffer.getvalue())
    with pytest.raises(OpendasError):
        make_reader(ReaderSpec("pl94-2010", (tmp_path / "fb.zip",), pl94_persons())).read()


people = st.dictionaries(
    st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 62)), st.integers(1, 50), max_size=8
)


@QUICK
@given(everybody=people, shares=st.lists(st.integers(0, 40), min_size=7, max_size=7), units=st.integers(1, 9))
def test_2020_files_with_group_quarters_read_back(
    tmp_path: Path, everybody: dict[tuple[int, int, int], int], shares: list[int], units: int
) -> None:
    left = sum(everybody.values())
    adults = sum(count for (age, _, _), count in everybody.items() if age)
    quarters = {}
    for kind, share in sorted(enumerate(shares, start=1), key=lambda pair: pair[0] != 3):
        number = min(share, left, adults if kind == 3 else left)
        left -= number
        if number:
            quarters[kind] = number
    block = Block("980010001001000", everybody, units, 0, quarters)
    path = write_zip(tmp_path / "fb.zip", [block], 2020)
    data = make_reader(ReaderSpec("pl94-2020", (path,), pl94_persons(), strict=True)).read()
    dense = data.histogram.dense(0).reshape(8, 2, 2, 63)
    assert dense[3, 0].sum() == 0
    assert dense[1:].sum(axis=(1, 2, 3)).tolist() == [quarters.get(k, 0) for k in range(1, 8)]
    summed = dense.sum(axis=0)
    assert {tuple(map(int, i)): int(summed[tuple(i)]) for i in np.argwhere(summed)} == everybody
    assert tables(block)["P1"][0] == data.histogram.total()


def slow_apportion(number: int, people: list[int]) -> list[int]:
    """Hamilton's method, one seat at a time."""
    total = sum(people)
    given_out = [number * count // total if total else 0 for count in people]
    rest = [(-(number * count % total), cell) for cell, count in enumerate(people)] if total else []
    for _, cell in sorted(rest)[: number - sum(given_out)]:
        given_out[cell] += 1
    return given_out


@QUICK
@given(people=st.lists(st.integers(0, 30), min_size=1, max_size=12), share=st.floats(0, 1))
def test_apportioning_is_hamiltons_method(people: list[int], share: float) -> None:
    number = int(share * sum(people))
    found = apportion(np.array([number]), np.array([people]))[0].tolist()
    assert found == slow_apportion(number, people)
    assert sum(found) == number
    assert all(0 <= given_out <= there for given_out, there in zip(found, people, strict=True))


@QUICK
@given(
    counts=st.lists(st.integers(0, 20), min_size=6, max_size=6),
    shares=st.lists(st.floats(0, 1), min_size=7, max_size=7),
)
def test_placing_people_keeps_everybody(counts: list[int], shares: list[float]) -> None:
    minors = np.array([True] * 3 + [False] * 3)
    left, adults = sum(counts), sum(counts[3:])
    quarters = [0] * 7
    for kind in (2, 0, 1, 3, 4, 5, 6):
        quarters[kind] = int(shares[kind] * (min(left, adults) if kind == 2 else left))
        left -= quarters[kind]
    placed = place_people(np.array([counts]), np.array([quarters]), minors)[0]
    assert placed.min() >= 0
    assert placed.sum(axis=0).tolist() == counts
    assert placed[1:].sum(axis=1).tolist() == quarters
    assert placed[3, :3].sum() == 0
