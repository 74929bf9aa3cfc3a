"""The architecture page names every package, in the order of the contract, and nothing that is gone."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

import opendas

ROOT = Path(opendas.__file__).parent
PROJECT = Path(__file__).resolve().parents[2]
PAGE = PROJECT / "docs" / "architecture.md"
TEXT = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""

pytestmark = pytest.mark.skipif(not TEXT, reason="the docs are not beside the tests")

PATH = r"`((?:[a-z_0-9]+/)+[a-z_0-9]+(?:\.py)?)`"


def layers() -> list[str]:
    """Return the packages of the import contract, from the top."""
    contracts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (found,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    return list(found)


def storeys(text: str) -> dict[str, list[str]]:
    """Return the packages of each storey: those that its paragraph names in bold."""
    section = text.split("\n## The storeys\n")[1].split("\n## ")[0]
    parts = re.split(r"^### (.+)$", section, flags=re.MULTILINE)[1:]
    return {
        title: re.findall(r"\*\*`(\w+)`\*\*", body)
        for title, body in zip(parts[::2], parts[1::2], strict=True)
    }


def names_in(path: Path) -> set[str]:
    """Return what a module defines: functions, classes, and ``Class.method``."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return found


def absent(text: str) -> list[str]:
    """Return the paths in backticks that are not there, and names beside a path that it does not define."""
    found = []
    for match in re.finditer(PATH + r"(?: \(((?:`[\w.]+`(?:, )?)+)\)|: ((?:`[\w.]+`(?:, )?)+))?", text):
        path, names = match[1], re.findall(r"`([\w.]+)`", match[2] or match[3] or "")
        if not (ROOT / path).exists() and not (PROJECT / path).exists():
            found.append(path)
        elif names:
            found += [f"{path}: {name}" for name in names if name not in names_in(ROOT / path)]
    return found


def test_every_package_stands_in_a_storey_in_the_order_of_the_contract() -> None:
    assert [name for packages in storeys(TEXT).values() for name in packages] == layers()
    assert all(storeys(TEXT).values()), "a storey without a package"


def test_every_package_and_module_of_the_root_is_named() -> None:
    there = {path.name for path in ROOT.iterdir() if (path / "__init__.py").is_file()}
    there |= {path.stem for path in ROOT.glob("*.py")} - {"__init__"}
    assert there == {name for packages in storeys(TEXT).values() for name in packages}


def test_every_path_and_name_on_the_page_exists() -> None:
    assert len(re.findall(PATH, TEXT)) > 60
    assert absent(TEXT) == []


def test_what_is_gone_is_seen() -> None:
    assert absent("`runs/act.py` (`open_act`) and `runs`") == []
    assert absent("`runs/walk.py` does it") == ["runs/walk.py"]
    assert absent("`runs/act.py` (`Act.charge`, `Act.draw`)") == ["runs/act.py: Act.draw"]
    assert absent("(`runs/act.py`: `fly`)") == ["runs/act.py: fly"]
    assert storeys("\n## The storeys\n\n### A\n\n**`x`** and **`y`**\n\n## B\n") == {"A": ["x", "y"]}
