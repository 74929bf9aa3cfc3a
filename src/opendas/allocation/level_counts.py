"""Counts or numbers of nodes of the levels of a hierarchy, from JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from opendas.allocation.clamped_error import LARGEST_COUNT
from opendas.allocation.histogram import CountHistogram, Level, unknown_counts
from opendas.arrays import Ints
from opendas.custody.folders import at_once
from opendas.errors import ConfigError, Finding, FormatError, nearest

_LEVEL_KEYS = ("name", "values", "mult", "nodes", "fixed")
_KEYS = ("levels", "source")
_WHOLE = "expected a whole number from 0 to 2**53"


@dataclass(frozen=True, slots=True, eq=False)
class LevelCounts:
    """The levels of a file."""

    levels: tuple[Level, ...]
    source: str | None  # where the counts come from, by the file itself

    @property
    def known(self) -> bool:
        """Whether there are counts, and not numbers of nodes only."""
        return any(level.known for level in self.levels)


def read_level_counts(path: Path | str) -> LevelCounts:
    """Read levels from JSON.

    `path`: ``{"levels": [{"name": "state", "values": [1052567], "mult": [1]}, ...], "source": "..."}``: the
    distinct counts of a level and how many nodes have each. Without ``mult`` every value is one node;
    ``"nodes": 25181`` in place of both says how many nodes there are, and nothing of their counts; ``"fixed":
    true`` marks counts that are published exactly. ``source`` is optional.
    """
    path = Path(path)
    document = _document(path)
    findings: list[Finding] = []
    levels: list[Level] = []
    rows = document.get("levels")
    if not isinstance(rows, list) or not rows:
        findings.append(Finding(path.name, None, "levels", "expected a list with at least one level"))
        rows = []
    findings += [
        Finding(path.name, None, ascii(key)[1:-1], f"is not known; {nearest(key, _KEYS)}")
        for key in document
        if key not in _KEYS
    ]
    source = document.get("source")
    if source is not None and not _is_text(source):
        findings.append(Finding(path.name, None, "source", "expected text on one line"))
    for number, row in enumerate(rows):
        where = f"levels[{number}]"
        wrong = list(_form_errors(row, {level.name for level in levels}))
        if not wrong:
            try:
                levels.append(_level(row))
            except _FieldError as error:
                wrong = [(error.field, error.rule)]
            except FormatError as error:
                wrong = [("values", str(error))]
        findings += [Finding(path.name, None, ".".join(filter(None, (where, f))), rule) for f, rule in wrong]
    if findings:
        raise FormatError(f"{path.name}: the counts of levels are not usable.", findings)
    return LevelCounts(tuple(levels), source.strip() if isinstance(source, str) else None)


class _FieldError(Exception):
    """A field that breaks a rule."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__()
        self.field, self.rule = field, rule


def _document(path: Path) -> Mapping[str, Any]:
    try:
        with open(path, encoding="utf-8-sig", opener=at_once) as file:
            text = file.read()
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file.") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: this is a folder; give a JSON file.") from None
    except UnicodeDecodeError:
        raise FormatError(f"{path.name}: not UTF-8 text.") from None
    try:
        document = json.loads(text, object_pairs_hook=_once)
    except _FieldError as error:
        raise FormatError(
            f"{path.name}: not JSON that describes levels.",
            [Finding(path.name, None, error.field, error.rule)],
        ) from None
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise FormatError(
            f"{path.name}: not valid JSON.", [Finding(path.name, line, None, "cannot be read from here on")]
        ) from None
    if not isinstance(document, dict):
        raise FormatError(f'{path.name}: expected an object {{"levels": [...]}}.')
    return document


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object, whose keys may not repeat: JSON readers differ on which value counts."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _FieldError(ascii(key)[1:-1], "appears twice in one object")
        found[key] = value
    return found


def _is_text(value: object) -> bool:
    """Whether a value is text that can be printed: no control characters, no half of a surrogate pair."""
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()


def _form_errors(row: object, names: set[str]) -> Iterator[tuple[str, str]]:
    """Yield (field, rule) of what is wrong with the form of a level."""
    if not isinstance(row, dict):
        yield "", "expected an object with a name, and values and mult or nodes"
        return
    name = row.get("name")
    if not _is_text(name):
        yield "name", "expected text on one line"
    elif name in names:
        yield "name", f"{name!r} appears twice"
    for key in row:
        if key not in _LEVEL_KEYS:
            yield ascii(key)[1:-1], f"is not known; {nearest(key, _LEVEL_KEYS)}"
    if not isinstance(row.get("fixed", False), bool):
        yield "fixed", "expected true or false"
    if ("nodes" in row) == ("values" in row):
        yield "values", "expected values, or nodes in their place"
    if "mult" in row and "values" not in row:
        yield "mult", "goes with values"


def _level(row: Mapping[str, Any]) -> Level:
    name, fixed = row["name"], bool(row.get("fixed"))
    if "nodes" in row:
        nodes = row["nodes"]
        if isinstance(nodes, bool) or not isinstance(nodes, int) or not 1 <= nodes <= LARGEST_COUNT:
            raise _FieldError("nodes", "expected a whole number from 1 to 2**53")
        return unknown_counts(name, nodes, fixed=fixed)
    values = _numbers(row["values"], "values")
    mult = _numbers(row["mult"], "mult") if "mult" in row else np.ones(len(values), dtype=np.int64)
    if len(values) != len(mult):
        raise _FieldError("mult", f"expected one number for each value: {len(values)}, not {len(mult)}")
    if not mult.any():
        raise _FieldError("values", "the level is empty; expected at least one node")
    return Level(name, CountHistogram(values, mult), fixed=fixed)


def _numbers(values: object, field: str) -> Ints:
    if not isinstance(values, list):
        raise _FieldError(field, "expected a list of numbers")
    for number, value in enumerate(values):
        # A float that is whole is a count that passed through a program without integers.
        whole = type(value) is int or (type(value) is float and value == value // 1)
        if not (whole and 0 <= value <= LARGEST_COUNT):
            raise _FieldError(f"{field}[{number}]", _WHOLE)
    return np.array(values, dtype=np.float64).astype(np.int64)
