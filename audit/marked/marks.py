"""Values that can be recognised, and the forms in which they can stand in bytes."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Mark", "key_mark", "number_mark", "text_mark"]

_LEAST_NUMBER = 1 << 20
"""Smaller numbers turn up by chance."""


@dataclass(frozen=True)
class Mark:
    """A confidential value that stands nowhere by chance.

    Parameters
    ----------
    name : str
        What it is; goes into reports in the place of the value.
    forms : tuple of (str, bytes)
        Name of a form, and its bytes.
    number : int or None
        For columns of numbers.
    """

    name: str
    forms: tuple[tuple[str, bytes], ...]
    number: int | None = None

    def found(self, data: bytes) -> Iterator[str]:
        """Yield the forms that stand in `data`."""
        for form, wanted in self.forms:
            if not form.startswith("decimal"):
                if wanted in data:
                    yield form
            elif wanted in data and re.search(rb"(?<![0-9])" + re.escape(wanted) + rb"(?![0-9])", data):
                yield form


def number_mark(name: str, number: int) -> Mark:
    """Return the mark of a count: decimal, binary of each width and order, varint."""
    if not _LEAST_NUMBER <= number < 1 << 31:
        raise ValueError("a marked number has 21 to 31 bits")
    forms = [("decimal", f"{number}".encode()), ("decimal, grouped", f"{number:,}".encode())]
    forms += [(f"decimal, {k} places", f"{number:.{k}e}".encode()) for k in (7, 8)]
    for order, sign in (("little", "<"), ("big", ">")):
        forms += [
            (f"{kind}, {order} endian", struct.pack(sign + letter, number))
            for kind, letter in (("int32", "i"), ("int64", "q"), ("float64", "d"))
        ]
    forms += [("varint", _varint(number)), ("zigzag varint", _varint(2 * number))]
    return Mark(name, tuple(forms), number)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def text_mark(name: str, text: str) -> Mark:
    """Return the mark of a text: in each encoding and letter case, hexadecimal and base64."""
    plain = text.encode()
    forms = [("text", plain), ("text, lower case", text.lower().encode())]
    forms += [("UTF-16", text.encode("utf-16-le")), ("UTF-32", text.encode("utf-32-le"))]
    return Mark(name, (*forms, ("hexadecimal", plain.hex().encode()), *_base64(plain)))


def key_mark(name: str, secret: bytes) -> Mark:
    """Return the mark of a key, whole or its halves: raw, reversed, hexadecimal, base64, as Python has it."""
    forms: list[tuple[str, bytes]] = []
    half = len(secret) // 2
    for part, data in (("", secret), (", first half", secret[:half]), (", second half", secret[half:])):
        forms += [("raw" + part, data), ("reversed" + part, data[::-1])]
        forms += [
            ("hexadecimal" + part, data.hex().encode()),
            ("HEXADECIMAL" + part, data.hex().upper().encode()),
        ]
        forms += [("Python" + part, repr(data)[2:-1].encode())]
        forms += [("list" + part, ", ".join(map(str, data)).encode())]
        forms += [("list, short" + part, ",".join(map(str, data)).encode())]
        forms += [(form + part, coded) for form, coded in _base64(data)]
        forms += [
            (f"integer{part}, {order}", str(int.from_bytes(data, order)).encode())
            for order in ("big", "little")
        ]
    return Mark(name, tuple(forms))


def _base64(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield base64 of `data` as it stands within more, whatever stands before it."""
    for shift in range(3):
        whole = base64.b64encode(b"\0" * shift + data + b"\0" * 3)
        # Letters that depend on bytes before or after are cut off.
        first = (shift * 8 + 5) // 6
        last = (shift + len(data)) * 8 // 6
        yield f"base64, shifted by {shift}", whole[first:last]
        yield (
            f"base64 of URLs, shifted by {shift}",
            whole[first:last].translate(bytes.maketrans(b"+/", b"-_")),
        )
