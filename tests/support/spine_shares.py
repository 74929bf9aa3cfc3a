"""The share of one geounit."""

from __future__ import annotations

from fractions import Fraction

from opendas.geography.spine import Spine


def multiple(spine: Spine, level: int, geounit: int) -> Fraction:
    """Return the geounit's own multiple of its level's budget share."""
    multiples, which = spine.multiples(level)
    return multiples[int(which[geounit])]
