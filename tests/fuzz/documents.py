"""Edits of documents that are trees: TOML, JSON, and lines of JSON."""

from __future__ import annotations

import datetime
import json
import tomllib
from collections.abc import Callable
from typing import Any

from fuzz.choices import Choices

__all__ = ["document_edit"]

_DEPTHS = (3, 90, 400, 1200, 100_000)
_RAW = "@raw{}@"
"""Stands for text that no writer of documents would write; put in afterwards."""

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**400, 0.5, -0.0,
    1e308,
    5e-324, "", " ", "0", "-1", "1", "1/2", "1/0", "2/1", "-1/3", "1e-10", "1e400", "1e-400", "9" * 400,
    "nan",
    "inf", "Infinity", "total", "detailed", "rest", "*", "x", "a" * 3000, "\x00", "\n",
    "\ud800".encode("utf-8",
    "surrogatepass").decode("utf-8", "replace"), "é", "\u202e", "../x", "/", ".", "~", "counts.csv", "[",
    "%s",
    [], {}, [[]], [{}], [None], [""], {"": ""}, {"a": {"b": {"c": 1}}}, [1, "a", None, 2.5], ["total",
    "total"],
    "kind * age", "kind * kind", " * ", "kind *", "region", "block", "us", "state", "file:///dev/null",
    datetime.date(2020, 4, 1), datetime.datetime(2020, 4, 1, tzinfo=datetime.UTC), datetime.time(1, 2),
)  # fmt: skip

RAW: tuple[str, ...] = (
    "nan", "inf", "-inf", "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000, "0x1F", "0o7",
    "1_000",
    "'''a\nb'''", '"""a\nb"""', '"\\ud800"', '"\\u0000"', "1979-05-27T07:32:00Z", "1979-05-27", "0.1",
    "1e-400",
    "-", ",", "{", "[", "truE", '"\\x"', "{a = 1, a = 2}", '{"a": 1, "a": 2}', "1" + "0" * 4400 + ".5",
)  # fmt: skip

Path = tuple[str | int, ...]


def _paths(node: Any, path: Path = ()) -> list[Path]:
    found = [path]
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        found += _paths(value, (*path, key))
    return found


def _at(tree: Any, path: Path) -> Any:
    for part in path:
        tree = tree[part]
    return tree


def _value(choices: Choices, raw: list[str]) -> Any:
    kind = choices.below(8)
    if kind == 0:
        raw.append(choices.of(RAW))
        return _RAW.format(len(raw) - 1)
    if kind == 1:
        depth = choices.of(_DEPTHS)
        opening, closing = choices.of((("[", "]"), ('{"a":', "}"), ("{a=", "}")))
        raw.append(opening * depth + "1" + closing * depth)
        return _RAW.format(len(raw) - 1)
    return choices.of(VALUES)


def _edited(tree: Any, choices: Choices, raw: list[str]) -> Any:
    """Return the tree with one node changed, removed, renamed, repeated or wrapped."""
    paths = _paths(tree)
    path = choices.of(paths)
    kind = choices.below(8)
    if not path:
        return _value(choices, raw) if kind == 0 else tree
    above, last = _at(tree, path[:-1]), path[-1]
    if kind == 0:
        del above[last]
    elif kind == 1 and isinstance(above, dict):
        names = [str(part) for other in paths for part in other if isinstance(part, str)]
        above[choices.of((*names, "", "x", "a b", "é", "*", "1", "total"))] = above.pop(last)
    elif kind == 1 and isinstance(above, list):
        above.insert(last, above[last])
    elif kind == 2:
        above[last] = [above[last]] * choices.of((1, 2, 300))
    elif kind == 3:
        above[last] = {choices.of(("", "a", "*", "total", "name")): above[last]}
    elif kind == 4:
        above[last] = json.loads(json.dumps(_at(tree, choices.of(paths)), default=str))
    elif kind == 5 and isinstance(above, dict):
        above[choices.of(("", "x", "total", "name", "*"))] = _value(choices, raw)
    else:
        above[last] = _value(choices, raw)
    return tree


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_toml_value(v)}" for key, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if value is None:
        return "null"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else repr(value)


def _key(key: str) -> str:
    return json.dumps(key, ensure_ascii=False)


def _toml(tree: Any) -> str:
    if not isinstance(tree, dict):
        return _toml_value(tree)
    return "".join(f"{_key(key)} = {_toml_value(value)}\n" for key, value in tree.items())


def _json(tree: Any) -> str:
    return json.dumps(tree, ensure_ascii=False, default=str)


def _filled(text: str, raw: list[str]) -> bytes:
    for number, value in enumerate(raw):
        text = text.replace(f'"{_RAW.format(number)}"', value)
    return text.encode("utf-8", "surrogatepass")


def document_edit(kind: str) -> Callable[[bytes, Choices], bytes]:
    """Return an edit of one node; what cannot be parsed any more is left as it is."""

    def edit(data: bytes, choices: Choices) -> bytes:
        raw: list[str] = []
        try:
            if kind == "toml":
                return _filled(_toml(_edited(tomllib.loads(data.decode()), choices, raw)), raw)
            if kind == "json":
                return _filled(_json(_edited(json.loads(data), choices, raw)), raw)
            lines = data.decode().split("\n")
            number = choices.below(len(lines))
            lines[number] = _json(_edited(json.loads(lines[number]), choices, raw))
            return _filled("\n".join(lines), raw)
        except (ValueError, RecursionError):
            return data

    return edit
