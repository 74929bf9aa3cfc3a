"""What is typed into a form: numbers as people write them, what is wrong with them, shares that sum to 1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeVar

from opendas.errors import ConfigError
from opendas.privacy.exact import decimal_text, format_fraction, parse_fraction

Typed = Mapping[str, str]
"""Field name to what stands in it."""

_LONGEST = 120
"""Characters of a number that is typed."""

_UNITS = 1_000_000
"""Shares that were moved often are distributed in parts of this size, so that fractions stay readable."""

_LONGEST_FRACTION = 60

_LARGEST_SHARE = 1_000_000
"""Shares may miss 1 while they are typed, and be rescaled, but not by more."""

_T = TypeVar("_T")


@dataclass(slots=True)
class Problems:
    """Messages by field name, in the order found; the first of a field is kept."""

    by_field: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, message: str) -> None:
        """Note what is wrong at a field."""
        self.by_field.setdefault(name, message)

    def __bool__(self) -> bool:
        return bool(self.by_field)

    @property
    def sentence(self) -> str:
        """How many fields cannot be used, in words."""
        count = len(self.by_field)
        return f"{count} {'entry' if count == 1 else 'entries'} cannot be used yet."

    def under(self, prefix: str) -> bool:
        """Return whether something is wrong at a field whose name starts so."""
        return any(name.startswith(prefix) for name in self.by_field)


def read_number(
    text: str, name: str, problems: Problems, *, empty: Fraction | None = None
) -> Fraction | None:
    """Read a number that someone typed: a fraction, a decimal or a percentage.

    - `name`: of the field, where a message goes.
    - `empty`: what an empty field means; without it, an empty field is wrong.
    - Returns: None where something is wrong.
    """
    plain = text.strip().replace("\u2212", "-")
    if not plain:
        if empty is None:
            problems.add(name, "Give a number, such as 1/8, 0.125 or 12.5 %.")
        return empty
    percent = plain.endswith("%")
    try:
        if len(plain) > _LONGEST:
            raise ConfigError("too long")
        value = parse_fraction(plain.rstrip("%").strip())
    except ConfigError:
        shown = plain if len(plain) <= 24 else plain[:21] + "..."
        problems.add(name, f"{shown!r} is not a number. Write 1/8, 0.125, 12.5 % or 1e-10.")
        return None
    value = value / 100 if percent else value
    if value < 0:
        problems.add(name, f"{plain} is negative. Give 0 or more.")
        return None
    return value


def read_delta(text: str, name: str, problems: Problems) -> Fraction | None:
    """Read a delta; None where it is none."""
    delta = read_number(text, name, problems)
    if delta is not None and not Fraction(1, 10**300) <= delta < 1:
        problems.add(name, "delta lies between 0 and 1 (at least 1e-300), for instance 1e-10.")
    return None if name in problems.by_field else delta


def read_choice(text: str, name: str, known: Mapping[str, _T], problems: Problems) -> _T | None:
    """Return what a word of a selection stands for; None where it is none of them."""
    if text not in known:
        problems.add(name, f"{text[:40]!r} is unknown. Choose {' or '.join(known)}.")
    return known.get(text)


def read_shares(
    texts: Sequence[str], names: Sequence[str], group: str, problems: Problems
) -> tuple[list[Fraction] | None, Fraction | None]:
    """Read shares that must sum to 1; the message about their sum goes to the group.

    Returns `total`: None where one of them is no number.
    """
    read = [
        read_number(text, name, problems, empty=Fraction(0)) for text, name in zip(texts, names, strict=True)
    ]
    for value, name in zip(read, names, strict=True):
        if value is not None and value > _LARGEST_SHARE:
            problems.add(name, "A share is a part of 1.")
    found = [value for value in read if value is not None and value <= _LARGEST_SHARE]
    if len(found) < len(read):
        return None, None
    total = sum(found, Fraction(0))
    if total != 1:
        problems.add(group, f"{sum_sentence(total)} Shares sum to exactly 1.")
    return found, total


def sum_sentence(total: Fraction | None) -> str:
    """Say what shares sum to, beside their fields."""
    if total is None:
        return "The sum waits for a number."
    if total == 1:
        return "Sum: 1"
    off = abs(total - 1)
    exact = decimal_text(off, 9) or format_fraction(off)
    shown = exact if len(exact) <= 24 else f"about {float(off):.3g}"
    return f"Sum: {float(total):.6g}, that is {shown} too {'much' if total > 1 else 'little'}."


def rescale_shares(texts: Sequence[str]) -> Sequence[str]:
    """Scale shares so that they sum to 1; what cannot be scaled stays as it is."""
    shares = [read_number(text, "", Problems(), empty=Fraction(0)) for text in texts]
    known = [share for share in shares if share is not None]
    total = sum(known, Fraction(0))
    if len(known) < len(texts) or total == 0:
        return texts
    return _written([share / total for share in known], texts)


def move_share(texts: Sequence[str], place: int) -> Sequence[str]:
    """Scale the other shares in proportion, so that with the one that was moved they sum to 1.

    Where the others are all zero there is nothing to scale: what is left goes to them evenly.
    """
    shares = [read_number(text, "", Problems(), empty=Fraction(0)) for text in texts]
    known = [share for share in shares if share is not None]
    if len(known) < len(texts) or not 0 <= place < len(known) or known[place] > 1:
        return texts
    rest = 1 - known[place]
    others = sum(known, Fraction(0)) - known[place]
    even = rest / (len(known) - 1) if len(known) > 1 else Fraction(0)
    new = [share * rest / others if others else even for share in known]
    new[place] = known[place]
    return _written(new, texts)


def _written(shares: Sequence[Fraction], before: Iterable[str]) -> list[str]:
    """Write shares that sum to 1, in whole millionths where the exact fractions have grown too long."""
    if max(len(format_fraction(share)) for share in shares) > _LONGEST_FRACTION or sum(shares) != 1:
        shares = _round_to_millionths(shares)
    empty = [not text.strip() for text in before]
    return [
        "" if none and not share else share_text(share) for share, none in zip(shares, empty, strict=True)
    ]


def _round_to_millionths(shares: Sequence[Fraction]) -> list[Fraction]:
    """Round to millionths by the largest remainder, so that the sum stays 1 and no share changes sides."""
    scaled = [share * _UNITS for share in shares]
    floors = [int(value) for value in scaled]
    left = _UNITS - sum(floors)
    order = sorted(range(len(shares)), key=lambda i: (floors[i] - scaled[i], i))
    for i in order[: max(left, 0)]:
        floors[i] += 1
    return [Fraction(value, _UNITS) for value in floors]


def share_text(value: Fraction) -> str:
    """Write a share exactly: a decimal where it is short, a fraction where not."""
    return decimal_text(value, 6) or format_fraction(value)
