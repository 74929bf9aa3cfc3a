"""The package's own source, parsed once: for tests of who imports, calls or writes what."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import opendas

__all__ = ["ROOT", "imports_of", "nodes_of", "path_of", "paths"]

ROOT = Path(opendas.__file__).parent


@cache
def paths() -> Mapping[str, Path]:
    """Every module of the package by name."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ("opendas", *path.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def path_of(name: str) -> str:
    """The path of a module below the package, as pages give it."""
    return paths()[name].relative_to(ROOT).as_posix()


@cache
def nodes_of(name: str) -> tuple[ast.AST, ...]:
    """All nodes of a module, the module itself first."""
    return tuple(ast.walk(ast.parse(paths()[name].read_text(encoding="utf-8"))))


@cache
def imports_of(name: str) -> tuple[tuple[str, str], ...]:
    """(module, name) of every import, wherever it stands in the module; an empty name for a whole module."""
    return tuple(_imports(name))


def _imports(name: str) -> Iterator[tuple[str, str]]:
    is_package = paths()[name].name == "__init__.py"
    for node in nodes_of(name):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, ""
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = name.split(".")[: len(name.split(".")) - node.level + is_package]
                base = ".".join([*parents, *([base] if base else [])])
            for alias in node.names:
                yield base, alias.name
