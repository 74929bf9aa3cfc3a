"""A byte string read as a sequence of choices: what a fuzzer grows, and what damages a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

__all__ = ["Choices"]

_T = TypeVar("_T")


class Choices:
    """Reads numbers from bytes; at the end every number is 0.

    Small inputs are small damages: a fuzzer that shortens or mixes them does something sensible.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def done(self) -> bool:
        return self._at >= len(self._data)

    def bytes(self, number: int) -> bytes:
        part = self._data[self._at : self._at + number]
        self._at += len(part)
        return part

    def below(self, number: int) -> int:
        """Return a number from 0 to `number` - 1, spread over the range."""
        if number <= 1:
            return 0
        width = 1 if number <= 256 else 2 if number <= 65536 else 4
        value = int.from_bytes(self.bytes(width), "little")
        return value % number if width == 1 else (value * number) >> (8 * width)

    def of(self, items: Sequence[_T]) -> _T:
        return items[self.below(len(items))]
