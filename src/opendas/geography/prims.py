"""Prims, the primitive geographies of the DHC's spine; apart so that the rule of governments is found.

A prim is what lies of a county in one functioning county subdivision and one incorporated place, so that both
are unions of prims. Cumings-Menon et al. (2024), section 6; the rule is that of the 2020 production code.
Axes: ``b`` leaves in the order of the frame.
"""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Codes
from opendas.geography.frame import Frame, numbered

FUNCTIONING = MappingProxyType({"cousub": frozenset("ABC"), "place": frozenset("ABF")})
"""Functional statuses that count, by category."""

EXTRA_PLACES = frozenset({"1150000", "2236255", "1571550", "2071450"})
"""State and place codes that production counts as incorporated whatever their status."""

PUERTO_RICO = b"72"


def prim_columns(frame: Frame, cousub: Codes, place: Codes, strong: Bools) -> list[Codes]:
    """Return the codes whose combinations within a county are its prims; the empty code means none.

    - `cousub`, `place` (b,): areas that the leaves lie in.
    - `strong` (b,): leaves in states whose county subdivisions are governments: what decides where the frame
      knows no functional status of a subdivision.
    - Returns (b,): county subdivisions, in the counties of which one functions, and incorporated places. A
      place whose status the frame does not know counts as incorporated. Puerto Rico has neither: there a prim
      is a county.
    """
    governed = frame.geocodes.astype("S2") != PUERTO_RICO
    counties, county = numbered(frame.geocodes.astype("S5"))
    functioning = np.zeros(len(counties), dtype=np.bool_)
    status = _functions(frame, "cousub", cousub)
    functioning[county[(status == 1) | ((status < 0) & strong & (cousub != b""))]] = True
    incorporated = _functions(frame, "place", place) != 0
    return [
        np.where(governed & functioning[county], cousub, b""),
        np.where(governed & incorporated, place, b""),
    ]


def _functions(frame: Frame, category: str, column: Codes) -> npt.NDArray[np.int8]:
    """Return 1 for areas that function, 0 for others, -1 where it is not known; int8 (b,)."""
    statuses = frame.functional_status.get(category, {})
    codes, label = numbered(column)
    found = np.full(len(codes), -1, dtype=np.int8)
    for i, code in enumerate(codes.tolist()):
        text = code.decode()
        if category == "place" and text in EXTRA_PLACES:
            found[i] = 1
        elif text in statuses:
            found[i] = statuses[text] in FUNCTIONING[category]
    return found[label]
