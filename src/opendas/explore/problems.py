"""What is wrong with a form, each thing at the field where it was typed; and numbers as people type them."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from opendas.errors import ConfigError
from opendas.privacy.exact import format_fraction, parse_fraction

__all__ = ["Problems", "decimal_text", "read_number", "share_text"]

_LONGEST = 120
"""Characters of a number that is typed."""


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
    """Read a number that somebody typed: a fraction, a decimal or a percentage.

    Parameters
    ----------
    text : str
    name : str
        Of the field, where a message goes.
    problems : Problems
    empty : Fraction, optional
        What an empty field means; without it, an empty field is wrong.

    Returns
    -------
    Fraction or None
        None where something is wrong.
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


def share_text(value: Fraction) -> str:
    """Write a share exactly: a decimal where it is short, a fraction where not."""
    return decimal_text(value, 6) or format_fraction(value)


def decimal_text(value: Fraction, digits: int) -> str | None:
    """Write a number as a decimal of at most so many places; None where that is not exact.

    Examples
    --------
    >>> decimal_text(Fraction(1, 8), 6), decimal_text(Fraction(1, 3), 6)
    ('0.125', None)
    """
    scaled = value * 10**digits
    if scaled.denominator != 1:
        return None
    whole, rest = divmod(abs(scaled.numerator), 10**digits)
    text = f"{whole}.{rest:0{digits}d}".rstrip("0").rstrip(".")
    return f"-{text}" if value < 0 else text
