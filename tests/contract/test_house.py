"""How the package is laid out: what stands at its root, how large folders are, what stands alone and why.

The order of the packages is the import contract's, in ``pyproject.toml``; here is what it cannot say.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from support.sources import ROOT, nodes_of, paths

PROJECT = Path(__file__).parents[2]

MOST_MODULES = 15
LONGEST = 500
"""Lines of a module beyond which its parts may stand alone."""

SHORTEST = 80
"""Lines of a part that is never worth a file of its own."""


MODULES = paths()


@cache
def importers(*, in_strings: bool = True) -> dict[str, set[str]]:
    """Who imports each module, or names it in a string, as tables of lazy names do."""
    found: dict[str, set[str]] = defaultdict(set)
    for name in MODULES:
        for node in nodes_of(name):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif in_strings and isinstance(node, ast.Constant) and isinstance(node.value, str):
                names = [node.value]
            else:
                continue
            for imported in names:
                if imported in MODULES and imported != name:
                    found[imported].add(name)
    return found


def lines_of(name: str) -> int:
    return len(MODULES[name].read_text(encoding="utf-8").splitlines())


def test_the_root_holds_the_public_surface_and_what_everybody_needs() -> None:
    assert {path.name for path in ROOT.glob("*.py")} == {
        "__init__.py",
        "__main__.py",
        "api.py",
        "errors.py",
        "version.py",
    }


def test_no_circle_among_modules() -> None:
    """Of imports inside functions, and of those for annotations alone, either."""
    edges: dict[str, set[str]] = defaultdict(set)
    for imported, who in importers(in_strings=False).items():
        for name in who:
            if not name.startswith(f"{imported}."):  # its own package, which Python imports first anyway
                edges[name].add(imported)
    TopologicalSorter(edges).prepare()


def test_no_circle_among_folders() -> None:
    """Of a package's folders and its loose modules, which are one node together, whatever they import where.

    The loose modules of the root are one node each: the public surface above, errors and version below.
    """
    folders = {name for name, path in MODULES.items() if path.name == "__init__.py"}

    def node(parts: list[str], at: int) -> str:
        name = ".".join(parts[:at])
        return name if at == 2 or name in folders else f"{'.'.join(parts[: at - 1])} (loose)"

    edges: dict[str, set[str]] = defaultdict(set)
    for imported, who in importers().items():
        for name in who:
            ours, theirs = name.split("."), imported.split(".")
            unlike = [n for n, (a, b) in enumerate(zip(ours, theirs, strict=False), start=1) if a != b]
            if unlike and node(ours, unlike[0]) != node(theirs, unlike[0]):  # else one is the other's package
                edges[node(ours, unlike[0])].add(node(theirs, unlike[0]))
    TopologicalSorter(edges).prepare()


def test_no_folder_holds_more_than_fifteen_modules() -> None:
    folders = {path.parent for path in MODULES.values()}
    crowded = {folder.relative_to(ROOT).as_posix(): len(list(folder.glob("*.py"))) for folder in folders}
    assert {folder: count for folder, count in crowded.items() if count > MOST_MODULES} == {}


def test_what_only_a_neighbour_imports_is_part_of_it_or_says_why_not() -> None:
    """Parts with one importer, beside it, where all of them together would be one readable module."""
    parts: dict[str, list[str]] = defaultdict(list)
    for name, who in importers().items():
        (neighbour, *others) = sorted(who)
        packages = {name, neighbour} & {n for n, path in MODULES.items() if path.name == "__init__.py"}
        if not others and not packages and MODULES[neighbour].parent == MODULES[name].parent:
            parts[neighbour].append(name)
    alone = []
    for neighbour, names in sorted(parts.items()):
        together = lines_of(neighbour) + sum(map(lines_of, names))
        for name in names:
            module = nodes_of(name)[0]
            assert isinstance(module, ast.Module)
            first = (ast.get_docstring(module) or "").split("\n\n")[0]
            if (together <= LONGEST or lines_of(name) < SHORTEST) and not re.search(r"\bapart\b", first):
                alone.append(f"{name} <- {neighbour}")
    assert alone == []


def test_every_module_is_reached() -> None:
    """From a command or a public name: what only tests use stands in ``tests/support``."""
    edges = importers()
    reached = {"opendas", "opendas.api", "opendas.__main__"}
    reached |= {name for name in MODULES if name.startswith("opendas.cli.")}
    while True:
        found = {name for name, who in edges.items() if who & reached}
        found |= {name.rpartition(".")[0] for name in found | reached if "." in name}
        if found <= reached:
            break
        reached |= found
    assert set(MODULES) - reached == set()


def test_every_package_has_a_line_of_its_own_in_the_contract() -> None:
    if not (PROJECT / "pyproject.toml").is_file():
        pytest.skip("pyproject.toml is not beside the tests")
    contracts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [c for c in contracts if c["type"] == "layers"]
    assert layers["exhaustive"]
    assert all(re.fullmatch(r"\w+", line) for line in layers["layers"]), "one package a line"
    packages = {path.name for path in ROOT.iterdir() if (path / "__init__.py").is_file()}
    files = {path.stem for path in ROOT.glob("*.py") if path.stem != "__init__"}
    assert set(layers["layers"]) == packages | files
