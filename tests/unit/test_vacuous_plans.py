"""Exact facts that leave nothing to protect are refused, by name, wherever a plan is used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.mini import mini_frame, mini_histogram, to_dense, write_mini

import opendas
from opendas.errors import PrivacyError
from opendas.runs.context.run import load
from opendas.runs.options import RunOptions
from opendas.runs.release import measure, release

UNBOUNDED = 'neighbours = "unbounded"'
DROPPED = 'neighbours = "unbounded"\ndrop_invariants = ["total"]'
USES: dict[str, Callable[[Path], Any]] = {
    "plan": lambda path: opendas.plan(load(path)),
    "account": lambda path: opendas.account(load(path)),
    "run": lambda path: release(load(path), path.parent / "out", RunOptions()),
    "measure": lambda path: measure(load(path), path.parent / "out", RunOptions()),
}


def invariant(query: str, geolevel: str) -> str:
    return f'[[invariants]]\nquery = "{query}"\ngeolevel = "{geolevel}"\n'


def bound(query: str, cell: str, column: str, lower: int, upper: int) -> str:
    return (
        f'[[bounds]]\nquery = "{query}"\ncell = "{cell}"\ncolumn = "{column}"\n'
        f"lower = {lower}\nupper = {upper}\n"
    )


def declare(path: Path, *declarations: str, without: str = "") -> None:
    """Add declarations to a product file, perhaps in place of all that begin alike."""
    product = path.parent / "product.toml"
    text = product.read_text()
    if without:
        text = text[: text.index(without)]
    product.write_text(text + "".join(declarations))


def true_counts_as_units(folder: Path) -> Path:
    """Return a run whose public units are the true counts of every cell, with bounds from 1 to 1."""
    path = write_mini(folder)
    frame = mini_frame()
    dense = to_dense(mini_histogram(frame))
    kinds, ages = ("home", "school", "prison"), ("child", "adult", "old")
    names = [f"{kind} * {age}" for kind in kinds for age in ages]
    lines = ["geocode," + ",".join(f"n{cell}" for cell in range(9))]
    lines += [
        f"{code.decode()}," + ",".join(map(str, row))
        for code, row in zip(frame.geocodes, dense.tolist(), strict=True)
    ]
    (folder / "frame.csv").write_text("\n".join(lines) + "\n")
    bounds = [bound("detailed", name, f"n{cell}", 1, 1) for cell, name in enumerate(names)]
    declare(path, *bounds, without="[[invariants]]")
    return path


@pytest.mark.parametrize("use", list(USES))
def test_what_leaves_nothing_to_protect_is_refused(use: str, tmp_path: Path) -> None:
    every_cell = write_mini(tmp_path / "every cell")
    declare(every_cell, invariant("detailed", "block"), without="[[invariants]]")
    total = write_mini(tmp_path / "total", run=UNBOUNDED)
    bounds = true_counts_as_units(tmp_path / "bounds")
    for path, named in ((every_cell, "detailed@block"), (total, "total@region"), (bounds, "detailed=home")):
        with pytest.raises(PrivacyError, match="nothing is protected") as caught:
            USES[use](path)
        assert caught.value.exit_code == 4
        assert named in str(caught.value)
        assert not (path.parent / "out").exists()
    assert "detailed" not in str(_refusal(total, use))


def _refusal(path: Path, use: str) -> PrivacyError:
    with pytest.raises(PrivacyError) as caught:
        USES[use](path)
    return caught.value


def test_the_smallest_set_of_declarations_is_named(tmp_path: Path) -> None:
    """Kind and age together fix every cell of a block; totals of regions and towns are not needed."""
    path = write_mini(tmp_path)
    declare(path, invariant("kind", "block"), invariant("age", "region"), without="[[bounds]]")
    with pytest.raises(PrivacyError, match=r"with kind@block and age@region published exactly"):
        opendas.plan(load(path))


def test_unbounded_runs_need_a_record_that_can_be_added(tmp_path: Path) -> None:
    """Bounds that fix two of three kinds leave the third; bounds that fix all three leave nothing."""
    kinds = [bound("kind", kind, column, 1, 1) for kind, column in (("home", "homes"), ("school", "schools"))]
    path = write_mini(tmp_path / "two", run=DROPPED)
    declare(path, *kinds, without="[[bounds]]")
    assert opendas.plan(load(path)).rows
    path = write_mini(tmp_path / "three", run=DROPPED)
    declare(path, *kinds, bound("kind", "prison", "prisons", 1, 1), without="[[bounds]]")
    with pytest.raises(PrivacyError, match="unbounded"):
        opendas.plan(load(path))


def test_values_of_invariants_can_leave_nothing_where_the_plan_alone_cannot_tell(tmp_path: Path) -> None:
    """Regions hold as many people as their lower bounds ask for: then all of every block is exact."""
    path = write_mini(tmp_path)
    bounds = [
        bound("kind * minor", f"{kind} * {minor}", column, 1, 99)
        for kind, column in (("home", "homes"), ("school", "schools"), ("prison", "prisons"))
        for minor in ("minor", "major")
        if (kind, minor) != ("prison", "minor")
    ]
    declare(path, *bounds, without="[[bounds]]")
    product = path.parent / "product.toml"
    product.write_text(
        product.read_text()
        .replace('age = ["child", "adult", "old"]', 'age = ["child", "adult"]')
        .replace('major = ["adult", "old"]', 'major = ["adult"]')
    )
    frame = mini_frame()
    lines = ["geocode,kind,age,count"]
    for i, code in enumerate(frame.geocodes):
        for kind, column in (("home", "homes"), ("school", "schools"), ("prison", "prisons")):
            units = int(frame.units[column][i])
            ages = ("adult",) if kind == "prison" else ("child", "adult")
            lines += [f"{code.decode()},{kind},{age},{units}" for age in ages if units]
    (tmp_path / "counts.csv").write_text("\n".join(lines) + "\n")
    assert opendas.plan(load(path)).rows
    with pytest.raises(PrivacyError, match="total@region"):
        release(load(path), tmp_path / "out", RunOptions())
    assert not (tmp_path / "out").exists()
