"""Runs of any shape: a product, a frame and counts given as arrays, written as a user would write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opendas.cli.failures import guarded
from opendas.cli.main import cli

Capture = pytest.CaptureFixture[str]


@dataclass(frozen=True)
class Shape:
    """A run in the making.

    Parameters
    ----------
    leaves : sequence of str
        Geocodes, ascending.
    counts : mapping of (leaf index, cell index) to count
        Cells in the order of the schema.
    attributes : mapping of attribute to levels
    levels : sequence of (name, prefix)
        Geolevels, top first; the leaf last.
    units : mapping of column to counts
        Of the frame.
    product, run, geography : str
        More lines of the product file, of ``[run]`` and of ``[geography]``.
    loss : str
        A line of ``[budget]``.
    shares : mapping of geolevel to Fraction
        By default equal.
    queries : str
        Line of ``[budget.queries]``.
    """

    leaves: Sequence[str]
    counts: Mapping[tuple[int, int], int]
    attributes: Mapping[str, Sequence[str]] = field(default_factory=lambda: {"kind": ("one", "two")})
    levels: Sequence[tuple[str, int]] = (("state", 1), ("county", 2), ("block", 3))
    units: Mapping[str, Sequence[int]] = field(default_factory=dict)
    product: str = ""
    run: str = ""
    geography: str = ""
    loss: str = 'rho = "2"'
    shares: Mapping[str, Fraction] = field(default_factory=dict)
    queries: str = '"*" = { total = "1/2", detailed = "1/2" }'
    name: str = "hostile"

    def write(self, folder: Path) -> Path:
        """Write product, frame, counts and run file; return the run file."""
        folder.mkdir(parents=True, exist_ok=True)
        lines = ["[product]", f"name = {json.dumps(self.name, ensure_ascii=False)}"]
        lines += ['provenance = "code-book"', "[attributes]"]
        lines += [
            f"{json.dumps(name, ensure_ascii=False)} = {json.dumps(list(levels), ensure_ascii=False)}"
            for name, levels in self.attributes.items()
        ]
        (folder / "product.toml").write_text("\n".join([*lines, self.product, ""]), encoding="utf-8")
        table = {"geocode": pa.array(list(self.leaves))}
        table |= {name: pa.array(np.asarray(column, dtype=np.int64)) for name, column in self.units.items()}
        pq.write_table(pa.table(table), folder / "frame.parquet")
        self._write_counts(folder / "counts.parquet")
        geography = ", ".join(f'{{ name = "{name}", prefix = {prefix} }}' for name, prefix in self.levels)
        shares = self.shares or {name: Fraction(1, len(self.levels)) for name, _ in self.levels}
        text = f"""\
[run]
product = "product.toml"
{self.run}
[input]
reader = "histogram"
path = "counts.parquet"
[geography]
levels = [{geography}]
frame = "frame.parquet"
provenance = "public"
{self.geography}
[budget]
{self.loss}
geolevels = {{ {", ".join(f'{name} = "{share}"' for name, share in shares.items())} }}
[budget.queries]
{self.queries}
"""
        path = folder / "run.toml"
        path.write_text(text, encoding="utf-8")
        return path

    def _write_counts(self, path: Path) -> None:
        entries = sorted(self.counts.items())
        leaf = np.array([place[0] for place, _ in entries], dtype=np.int64)
        cell = np.array([place[1] for place, _ in entries], dtype=np.int64)
        shape = [len(levels) for levels in self.attributes.values()]
        codes = np.unravel_index(cell, shape) if len(cell) else [cell] * len(shape)
        codes_of = np.array(list(self.leaves), dtype=object)
        table: dict[str, Any] = {"geocode": pa.array(codes_of[leaf], pa.string())}
        for (name, levels), code in zip(self.attributes.items(), codes, strict=True):
            table[name] = pa.array(np.array(list(levels), dtype=object)[code], pa.string())
        table["count"] = pa.array([count for _, count in entries], pa.int64())
        pq.write_table(pa.table(table), path)


def call(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    """Run a command; return its exit code, what it said on stdout and on stderr."""
    capsys.readouterr()
    code = guarded(cli, list(arguments))
    said = capsys.readouterr()
    return code, said.out, said.err


def finish(capsys: Capture, folder: Path, shape: Shape, *more: str, seed: int = 3) -> dict[str, Any]:
    """Run and verify; return the answer of ``run --json``."""
    path, out = shape.write(folder), folder / "out"
    code, said, err = call(capsys, "run", str(path), "--out", str(out), "--seed", str(seed), "--json", *more)
    assert code == 0, err
    answer: dict[str, Any] = json.loads(said)
    code, said, err = call(capsys, "verify", str(out), "--allow-seeded")
    assert code == 0, said + err
    return answer


def refuse(capsys: Capture, folder: Path, shape: Shape, *more: str) -> tuple[int, str]:
    """Run what must be refused before anything is drawn; return exit code and message."""
    path, out = shape.write(folder), folder / "out"
    code, said, err = call(capsys, "run", str(path), "--out", str(out), "--seed", "3", *more)
    assert code not in (0, 70), err
    assert said == ""
    ledger = out / "ledger.jsonl"
    assert not ledger.exists() or ledger.read_text() == ""
    assert not (out / "release" / "mdf").exists()
    return code, err


def released(folder: Path, shape: Shape) -> dict[tuple[int, int], int]:
    """Return the released counts, as ``Shape.counts`` without zeros."""
    place = {leaf: number for number, leaf in enumerate(shape.leaves)}
    size = [len(levels) for levels in shape.attributes.values()]
    codes = [{label: code for code, label in enumerate(levels)} for levels in shape.attributes.values()]
    counts: dict[tuple[int, int], int] = {}
    for part in sorted((folder / "out" / "release" / "mdf").rglob("*.parquet")):
        table = pq.read_table(part)
        for row in table.group_by(table.column_names).aggregate([([], "count_all")]).to_pylist():
            cell = np.ravel_multi_index(
                [code[row[name]] for name, code in zip(shape.attributes, codes, strict=True)], size
            )
            key = (place[row["geocode"]], int(cell))
            counts[key] = counts.get(key, 0) + int(row["count_all"])
    return counts
