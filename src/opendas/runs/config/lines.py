"""On which line of a TOML text a key stands: the standard parser tells lines of broken syntax only.

The text has been accepted by that parser, so that its grammar is taken for granted.
"""

from __future__ import annotations

import re
from collections import Counter

Path = tuple[str | int, ...]

_TOKEN = re.compile(
    r"""[ \t\r]+|\#[^\n]*|"{3}(?:[^\\]|\\.)*?"{3,5}|'{3}.*?'{3,5}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'"""
    r"""|[\n\[\]{},.=]|[^\s\[\]{},.=#"']+""",
    re.DOTALL,
)
_CLOSING = {"[": "]", "{": "}"}


class _Scanner:
    """A place among the tokens of a text, and the lines found so far."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, int]] = []
        self.lines: dict[Path, int] = {}
        self.at = 0
        line = 1
        for token in _TOKEN.findall(text):
            if token[0] not in " \t\r#":
                self.tokens.append((token, line))
            line += token.count("\n")
        tables: Counter[Path] = Counter()
        base: Path = ()
        while self.at < len(self.tokens):
            if self.skipped("\n"):
                continue
            start = self.line
            if not self.skipped("["):
                self.pair(base)
                continue
            is_item, base = self.skipped("["), ()
            keys = self.keys()
            for number, key in enumerate(keys, start=1):
                base = (*base, key)
                self.lines.setdefault(base, start)
                tables[base] += is_item and number == len(keys)
                if tables[base]:  # an array of tables: its last item
                    base = (*base, tables[base] - 1)
                    self.lines.setdefault(base, start)

    @property
    def line(self) -> int:
        return self.tokens[self.at][1]

    def skipped(self, *texts: str) -> bool:
        found = self.at < len(self.tokens) and self.tokens[self.at][0] in texts
        self.at += found
        return found

    def keys(self) -> list[str]:
        """Read a dotted key, and the signs behind it."""
        found = []
        while not self.skipped("=", "]"):
            if not self.skipped("."):
                found.append(self.tokens[self.at][0].strip("\"'"))
                self.at += 1
        self.skipped("]")
        return found

    def pair(self, path: Path) -> None:
        """Read ``key = value``."""
        start = self.line
        for key in self.keys():
            path = (*path, key)
            self.lines.setdefault(path, start)
        self.value(path)

    def value(self, path: Path) -> None:
        """Read a value; the items of an array and the pairs of an inline table have lines of their own."""
        closing = _CLOSING.get(self.tokens[self.at][0])
        number = 0
        self.at += 1
        while self.at < len(self.tokens) and closing is None and self.tokens[self.at][0] not in "\n,]}":
            self.at += 1
        while closing is not None and not self.skipped(closing):
            if self.skipped(",", "\n"):
                continue
            if closing == "}":
                self.pair(path)
                continue
            self.lines.setdefault((*path, number), self.line)
            self.value((*path, number))
            number += 1


def scan_lines(text: str) -> dict[Path, int]:
    """Return the 1-based line of every key and array item of a valid TOML text.

    - `text`: accepted by :mod:`tomllib`.
    - Returns: from the path of a key, array positions as integers, to its line.

    Examples
    --------
    >>> scan_lines("x = [1]")[("x", 0)]
    1
    """
    return _Scanner(text).lines


def line_of(lines: dict[Path, int], path: Path) -> int | None:
    """Return the line of a path, or of the nearest part of the file that holds it."""
    return next((lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in lines), None)
