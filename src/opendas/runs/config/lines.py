"""On which line of a TOML text a key stands.

The standard parser reports lines for broken syntax only. This scanner follows a text that the parser has
accepted, so it may trust the grammar; it answers for keys, for keys of inline tables and for items of
arrays.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict

__all__ = ["Path", "line_of", "scan_lines"]

Path = tuple[str | int, ...]

_KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_STRING = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'', re.DOTALL)
_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE = re.compile(r"[^,\]}\s#]+(?: [0-9:.+Z-]+)?")


class _Scanner:
    """A position in the text, and the lines found so far."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.ends = [match.start() for match in re.finditer("\n", text)]
        self.lines: dict[Path, int] = {}
        self.tables: defaultdict[Path, int] = defaultdict(int)

    def skip(self) -> None:
        match = _SPACE.match(self.text, self.at)
        if match:
            self.at = match.end()

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def note(self, path: Path) -> None:
        self.lines.setdefault(path, bisect_left(self.ends, self.at) + 1)

    def keys(self) -> list[str]:
        """Read a dotted key."""
        found: list[str] = []
        while match := _KEY.match(self.text, self.at):
            found.append(match.group().strip("\"'"))
            self.at = match.end()
            self.skip()
            if self.peek() != ".":
                break
            self.at += 1
            self.skip()
        return found

    def pair(self, base: Path) -> None:
        """Read ``key = value``."""
        start = self.at
        path = base
        for key in self.keys():
            path = (*path, key)
            here, self.at = self.at, start
            self.note(path)
            self.at = here
        self.skip()
        self.at += 1
        self.skip()
        self.value(path)

    def value(self, path: Path) -> None:
        opening = self.peek()
        if opening == "[":
            self.items(path, "]")
        elif opening == "{":
            self.items(path, "}")
        else:
            match = (_STRING if opening in "\"'" else _BARE).match(self.text, self.at)
            self.at = match.end() if match else self.at + 1

    def items(self, path: Path, closing: str) -> None:
        """Read the items of an array, or the pairs of an inline table."""
        self.at += 1
        number = 0
        while True:
            self.skip()
            if self.peek() in (closing, ""):
                self.at += 1
                return
            if self.peek() == ",":
                self.at += 1
            elif closing == "}":
                self.pair(path)
            else:
                self.note((*path, number))
                self.value((*path, number))
                number += 1

    def header(self) -> Path:
        """Read ``[table]`` or ``[[array of tables]]``."""
        start = self.at
        double = self.text.startswith("[[", self.at)
        self.at += 2 if double else 1
        self.skip()
        path: Path = ()
        keys = self.keys()
        for position, key in enumerate(keys):
            path = (*path, key)
            last = position == len(keys) - 1
            if double and last:
                self.tables[path] += 1
            here, self.at = self.at, start
            self.note(path)
            if path in self.tables:
                path = (*path, self.tables[path] - 1)
                self.note(path)
            self.at = here
        self.skip()
        self.at += 2 if double else 1
        return path

    def document(self) -> dict[Path, int]:
        base: Path = ()
        while True:
            self.skip()
            if not self.peek():
                return self.lines
            if self.peek() == "[":
                base = self.header()
            else:
                self.pair(base)


def scan_lines(text: str) -> dict[Path, int]:
    """Return the 1-based line of every key and array item of a valid TOML text.

    Parameters
    ----------
    text : str
        Accepted by :mod:`tomllib`.

    Returns
    -------
    dict
        From the path of a key, array positions as integers, to its line.

    Examples
    --------
    >>> scan_lines("x = [1]")[("x", 0)]
    1
    """
    return _Scanner(text).document()


def line_of(lines: dict[Path, int], path: Path) -> int | None:
    """Return the line of a path, or of the nearest part of the file that holds it."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return None
