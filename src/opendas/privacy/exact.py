"""Read and write exact numbers.

A budget is a :class:`~fractions.Fraction` as soon as it is read. Binary floats are refused: the decimal
``0.1`` and the float ``0.1`` differ, and the difference would enter the noise scale and the sum that must be
exactly one.
"""

from __future__ import annotations

import json
import re
from fractions import Fraction

from opendas.errors import ConfigError

_NUMBER = re.compile(
    r"(?P<sign>[+-]?)(?:"
    r"(?P<numerator>[0-9]+)\s*/\s*(?P<denominator>[0-9]+)"
    r"|(?P<whole>[0-9]*)(?:\.(?P<decimals>[0-9]*))?(?:[eE](?P<exponent>[+-]?[0-9]{1,6}))?"
    r")"
)
# Limits on the size of one configuration value; no budget comes near them.
_MAX_TEXT = 2000
_MAX_EXPONENT = 2000


def parse_fraction(value: object, what: str = "value") -> Fraction:
    """Read an exact number.

    - `value`: ``"293764/114921"``, ``"0.1885"``, ``"1e-10"``, ``4`` or a fraction. Text may carry a sign and
      surrounding spaces.
    - `what`: source of the number, for error messages.
    - Returns: exactly the number written.

    Raises `ConfigError` for a float (write the number in quotes), a bool, anything that is not a number, or a
    number too long for a budget.

    Examples
    --------
    >>> parse_fraction("0.1885")
    Fraction(377, 2000)
    >>> parse_fraction("1e-10")
    Fraction(1, 10000000000)
    """
    if isinstance(value, Fraction):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return Fraction(value)
    if isinstance(value, float):
        raise ConfigError(
            f"{what}: {value!r} is a binary floating-point number, which cannot hold most decimals exactly. "
            f'Write it in quotes, as a decimal or a fraction: "{value!r}" or "1/8".'
        )
    if not isinstance(value, str):
        raise ConfigError(
            f"{what}: expected a number in quotes or an integer, found {type(value).__name__}. "
            'Write it like "1/8", "0.125" or "1e-10".'
        )
    return _parse_text(value, what)


def _parse_text(text: str, what: str) -> Fraction:
    match = _NUMBER.fullmatch(text.strip()) if len(text) <= _MAX_TEXT else None
    if match is None:
        shown = text if len(text) <= 60 else text[:57] + "..."
        raise ConfigError(
            f"{what}: {shown!r} is not a number. "
            'Write a fraction, a decimal or an integer: "1/8", "0.125", "1e-10".'
        )
    sign = -1 if match["sign"] == "-" else 1
    if match["numerator"] is not None:
        denominator = int(match["denominator"])
        if denominator == 0:
            raise ConfigError(f"{what}: the fraction {text.strip()!r} has denominator zero.")
        return sign * Fraction(int(match["numerator"]), denominator)
    whole, decimals = match["whole"] or "", match["decimals"] or ""
    if not whole and not decimals:
        raise ConfigError(f'{what}: {text!r} has no digits. Write a number such as "1/8" or "0.125".')
    exponent = int(match["exponent"] or 0)
    if abs(exponent) > _MAX_EXPONENT:
        raise ConfigError(f"{what}: the exponent of {text.strip()!r} lies beyond {_MAX_EXPONENT}.")
    return sign * Fraction(int(whole + decimals)) * Fraction(10) ** (exponent - len(decimals))


def format_fraction(value: Fraction | int) -> str:
    """Return a number as text that :func:`parse_fraction` reads as exactly the same number.

    Returns: lowest terms, ``"n/d"``, or ``"n"`` for an integer: one text per number, suitable for a digest.

    Examples
    --------
    >>> format_fraction(Fraction(377, 2000))
    '377/2000'
    """
    return str(Fraction(value))


def canonical_json(value: object) -> bytes:
    """Return plain data as JSON with one text per value, suitable for a digest.

    - `value`: dicts with text keys, lists, text, integers, booleans, None.
    - Returns: ASCII, keys sorted, no spaces, no NaN or infinity.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


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
