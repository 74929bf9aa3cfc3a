"""Tables that someone opens in a spreadsheet: no label of a release is computed there."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.mini import write_mini

from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.schema.attributes import cell_text

LABELS = {"home": "=cmd|'/c calc'!A1", "school": "+1", "child": "-5 to 0", "adult": "@SUM(1)", "old": "'=2"}


def command(*words: str | Path) -> int:
    return guarded(cli, [str(word) for word in words])


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    run = write_mini(tmp_path)
    for name in ("product.toml", "counts.csv"):
        text = (tmp_path / name).read_text()
        for old, new in LABELS.items():
            text = re.sub(rf'"{old}"', f'"{new}"', text) if name == "product.toml" else text.replace(old, new)
        (tmp_path / name).write_text(text)
    assert command("run", run, "--out", tmp_path / "out") == 0
    return tmp_path / "out"


def test_headers_and_cells_of_tables_are_shown_and_not_computed(out: Path) -> None:
    words = ("tabulate", out, "--tables", "kind,age,kind * age", "--geolevel", "town")
    assert command(*words, "--format", "csv") == 0
    assert command(*words) == 0
    assert command("verify", out) == 0
    seen = set()
    for path in (out / "release" / "tables").glob("*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
        exact = pq.read_table(path.with_suffix(".parquet"))
        assert rows[0] == [cell_text(name) for name in exact.column_names]
        for row, known in zip(rows[1:], exact.to_pylist(), strict=True):
            texts = ["" if value is None else str(value) for value in known.values()]  # no known margin
            assert texts == row, "numbers and geocodes are as they are"
        for name in rows[0]:
            assert not name.startswith(("=", "+", "-", "@", "\t", "\r"))
            seen.add(name)
    assert any(name.startswith("'=cmd") for name in seen)
    assert any(name.startswith("''=2") for name in seen)


@given(st.text(alphabet="'=+-@\t\ra1 ", max_size=6), st.text(alphabet="'=+-@\t\ra1 ", max_size=6))
def test_cells_are_harmless_and_different_texts_stay_different(one: str, two: str) -> None:
    assert not cell_text(one).startswith(("=", "+", "-", "@", "\t", "\r"))
    assert (cell_text(one) == cell_text(two)) == (one == two)
    if one[:1].isalnum():
        assert cell_text(one) == one
