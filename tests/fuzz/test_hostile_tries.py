"""Whole commands as a hostile user gives them: a part of the tries that ``python -m fuzz.hostile`` makes."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from support.hostile import Capture, Shape, call, finish, refuse
from support.mini import write_mini

import opendas
from fuzz import hostile
from fuzz.oracle import Defect
from opendas.errors import ConfigError, OpendasError
from opendas.runs.context.run import define, load
from opendas.runs.finished_release import Release

TRIES = 12
"""Of each kind."""


@pytest.fixture(autouse=True)
def _fixed_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


@pytest.mark.parametrize("kind", hostile.KINDS)
def test_tries_break_no_rule_and_do_not_all_end_alike(kind: str) -> None:
    assert len({hostile.attempt(kind, number) for number in range(TRIES)}) > 1


def test_a_broken_rule_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `verify` that passes everything."""
    monkeypatch.setattr(Release, "verify", lambda *_, **__: ())
    with pytest.raises(Defect, match="passes"):
        hostile.attempt("tampering", 0)


# What these tries found -------------------


@pytest.mark.parametrize("label", ["GEOID", "a * b", "* a", "a *", "a_MOE90", "a_EST", "a_LOW99.9"])
def test_labels_that_columns_of_tables_have_are_refused(tmp_path: Path, capsys: Capture, label: str) -> None:
    shape = Shape(hostile.LEAVES, {(0, 0): 5}, attributes={"kind": ("a", label)})
    code, said = refuse(capsys, tmp_path, shape)
    assert code == 2
    assert repr(label) in said


def test_labels_that_look_like_signs_are_columns(tmp_path: Path, capsys: Capture) -> None:
    labels = {"kind": ("*", "**", "a*b"), "age": ("*", "MOE90")}
    finish(capsys, tmp_path, Shape(hostile.LEAVES, {(0, 0): 5}, attributes=labels))
    out = str(tmp_path / "out")
    assert call(capsys, "tabulate", out, "--tables", "detailed", "--geolevel", "county")[0] == 0
    names = pq.read_schema(tmp_path / "out/release/tables/detailed_county.parquet").names
    wanted = [f"{kind} * {age}" for kind in labels["kind"] for age in labels["age"]]
    assert [name for name in names if name in wanted] == wanted


def test_a_table_is_found_by_a_name_of_two_lines(tmp_path: Path, capsys: Capture) -> None:
    attributes = {"a\nb": ("x", "y"), "kind": ("x", "y")}
    finish(capsys, tmp_path, Shape(hostile.LEAVES, {(0, 0): 5}, attributes=attributes))
    out = str(tmp_path / "out")
    assert call(capsys, "tabulate", out, "--tables", "hostile:a\nb", "--geolevel", "county")[0] == 0
    (made,) = (tmp_path / "out/release/tables").iterdir()
    assert made.name.startswith("hostile.a")


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_workers_have_the_streams_that_were_closed(tmp_path: Path, closed: str) -> None:
    line = f"{shlex.quote(sys.executable)} -m opendas run run.toml --out out --seed 1 --workers 2 {closed}"
    write_mini(tmp_path)
    assert subprocess.run(["sh", "-c", line], cwd=tmp_path, check=False).returncode == 0


@pytest.mark.parametrize("levels", [("state", "county"), ("state", "county", "block"), ("state", "leaf")])
@pytest.mark.parametrize("estimator", ["topdown", "informed"])
def test_one_query_is_invariant_at_several_geolevels(
    tmp_path: Path, capsys: Capture, levels: tuple[str, ...], estimator: str
) -> None:
    facts = "\n".join(f'[[invariants]]\nquery = "total"\ngeolevel = "{level}"' for level in levels)
    counts = {(leaf, leaf % 2): 3 for leaf in range(len(hostile.LEAVES))}
    finish(capsys, tmp_path, Shape(hostile.LEAVES, counts, product=facts, run=f'estimator = "{estimator}"'))


def test_tables_at_several_geolevels_are_written_by_one_command(tmp_path: Path, capsys: Capture) -> None:
    opendas.release(load(write_mini(tmp_path)), tmp_path / "out", seed=3)
    levels = ["region", "block", "town", "region"]
    line = ["tabulate", str(tmp_path / "out"), "--tables", "age,kind,age"]
    code, said, err = call(capsys, *line, *(word for level in levels for word in ("--geolevel", level)))
    assert code == 0, err
    wanted = [
        f"{table}_{level}.parquet" for level in ("region", "block", "town") for table in ("age", "kind")
    ]
    assert [Path(line).name for line in said.splitlines()] == wanted
    assert sorted(path.name for path in (tmp_path / "out/release/tables").iterdir()) == sorted(wanted)
    assert call(capsys, "verify", str(tmp_path / "out"), "--allow-seeded")[0] == 0
    before = (tmp_path / "out/release/certificate.json").read_bytes()
    assert call(capsys, *line[:2], "--tables", "minor", "--geolevel", "town", "--geolevel", "zip")[0] == 2
    assert (tmp_path / "out/release/certificate.json").read_bytes() == before
    assert not (tmp_path / "out/release/tables/minor_town.parquet").exists()


@pytest.mark.parametrize("line", [("doctor",), ("tabulate", "out", "--tables", "x", "--geolevel", "y")])
def test_a_working_folder_that_is_gone_gets_a_sentence(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, line: tuple[str, ...]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    code, _, err = call(capsys, *line)
    assert code == 6
    assert "working folder" in err


ODD: dict[str, Callable[[int], Any]] = {
    "complex numbers": lambda n: np.full(n, 1j),
    "complex objects": lambda n: [1j] * n,
    "more than 64 bits": lambda n: [2**70] * n,
    "long doubles": lambda n: np.ones(n, np.longdouble),
    "periods": lambda n: pd.period_range("2020", periods=n),
    "intervals": lambda n: pd.interval_range(0, n),
    "lists": lambda n: [[1]] * n,
    "anything": lambda n: [object()] * n,
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("column", ["count", "kind", "homes"])
def test_frames_of_odd_columns_are_refused(tmp_path: Path, odd: str, column: str) -> None:
    path = write_mini(tmp_path)
    tables = {
        name: pd.read_csv(tmp_path / f"{name}.csv", dtype={"geocode": str}) for name in ("counts", "frame")
    }
    table = tables["frame" if column == "homes" else "counts"]
    table[column] = ODD[odd](len(table))
    with pytest.raises(OpendasError) as refused:
        define(path.read_text(), input=tables["counts"], frame=tables["frame"], folder=tmp_path).read()
    assert "1j" not in str(refused.value), "no value is quoted"


def test_a_frame_with_one_name_twice_is_refused(tmp_path: Path) -> None:
    counts = pd.DataFrame([["000000", "home", "old", 1]], columns=["geocode", "kind", "kind", "count"])
    with pytest.raises(ConfigError, match="one name for each column"):
        define(write_mini(tmp_path).read_text(), input=counts, folder=tmp_path)
