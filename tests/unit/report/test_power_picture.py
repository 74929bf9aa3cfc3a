"""The picture of an attacker's two errors."""

from __future__ import annotations

import dataclasses
import re

from opendas.custody.stamps import NOT_FOR_RELEASE
from opendas.privacy.attacker import zcdp_power_bound
from opendas.report.facts import RunFacts
from opendas.report.html import _power
from opendas.report.pictures import POWER_LEVELS, power_svg


def points(svg: str) -> list[list[tuple[float, float]]]:
    lines = re.findall(r'<polyline points="([^"]*)"', svg)
    return [[tuple(map(float, pair.split(","))) for pair in line.split()] for line in lines]  # type: ignore[misc]


def test_curves_run_from_corner_to_corner_and_rise() -> None:
    powers = [zcdp_power_bound(1, level) for level in POWER_LEVELS]
    (curve, straight) = points(str(power_svg(POWER_LEVELS, {"by rho": powers, "none": POWER_LEVELS})))
    assert len(curve) == len(POWER_LEVELS) + 2
    assert curve[0] == straight[0]
    assert curve[-1] == straight[-1]
    # Downwards is larger in a picture: power rises, and lies above the straight line.
    assert [y for _, y in curve] == sorted((y for _, y in curve), reverse=True)
    assert all(y <= z for (_, y), (_, z) in zip(curve, straight, strict=True))


def test_names_are_escaped() -> None:
    assert "<b>" not in str(power_svg([0.5], {"<b>": [0.7]}))


def test_the_report_draws_what_holds_for_the_run(persons: RunFacts) -> None:
    assert points(_power(persons)[1])
    assert _power(dataclasses.replace(persons, stamps=(NOT_FOR_RELEASE,)))[1] == ""
    assert _power(dataclasses.replace(persons, mechanism="discrete-laplace"))[1] == ""
