"""Exact numbers: what is read, what is refused."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from support.each import each

from opendas.errors import ConfigError
from opendas.privacy.exact import canonical_json, format_fraction, parse_fraction


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("293764/114921", Fraction(293764, 114921)),
        ("2/4", Fraction(1, 2)),
        (" 1 / 8 ", Fraction(1, 8)),
        ("0.1885", Fraction(1885, 10000)),
        (".5", Fraction(1, 2)),
        ("5.", Fraction(5)),
        ("1e-10", Fraction(1, 10**10)),
        ("1.5E+2", Fraction(150)),
        ("-3/4", Fraction(-3, 4)),
        ("+7", Fraction(7)),
        (4, Fraction(4)),
        (Fraction(2, 3), Fraction(2, 3)),
    ],
)
def test_reads_exactly_the_number_written(text: object, expected: Fraction) -> None:
    assert parse_fraction(text) == expected


@pytest.mark.parametrize("value", [0.1, math.inf, math.nan, 1e-10])
def test_floats_are_refused_with_the_way_out(value: float) -> None:
    with pytest.raises(ConfigError, match="in quotes"):
        parse_fraction(value, "rho")


@each(
    "value",
    [
        *("", " ", ".", "e5", "1/0", "1//2", "1/2/3", "1.5/2", "inf", "Infinity", "nan", "0x10", "1_000"),
        *("1e9999999", "1e5000", "9" * 3000, "١", None, True, [1], b"1", 1j),
    ],
)
def test_everything_else_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^rho: "):
        parse_fraction(value, "rho")


def test_writes_lowest_terms() -> None:
    assert format_fraction(Fraction(377, 2000)) == "377/2000"
    assert format_fraction(Fraction(4, 2)) == "2"
    assert format_fraction(3) == "3"


def test_canonical_json_has_one_text_per_value() -> None:
    assert canonical_json({"b": [1, None], "a": "é"}) == b'{"a":"\\u00e9","b":[1,null]}'
    with pytest.raises(ValueError, match="Out of range"):
        canonical_json({"a": math.inf})
