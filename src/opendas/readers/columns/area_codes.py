"""Codes of areas as columns of files hold them, and as the frame names the areas.

Axes: ``r`` rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from opendas.arrays import Bools, Codes

AREA_FORMS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "cousub": (5, 5),
        "place": (2, 5),
        "aianhh": (0, 4),
        "cd": (2, 2),
        "sldu": (2, 3),
        "sldl": (2, 3),
        "vtd": (5, 6),
        "sdelm": (2, 5),
        "sdsec": (2, 5),
        "sduni": (2, 5),
    }
)
"""Characters of the block's geocode that precede an area's own code, and characters of that code.

The frame names an area as the official GEOID does: by the code of its state, or of its state and county,
wherever codes repeat between states or counties, and then by its own. Voting districts may have fewer
characters than six, and blanks between them.
"""

NO_AREA = np.array([b"", b"9999", b"99999", b"99998", b"99997", b"999999", b"ZZ", b"ZZZ", b"ZZZZZZ"])
"""Codes that say "in no such area", "remainder" or "not defined"."""


def national_codes(category: str, own: Codes, blocks: Codes) -> tuple[Codes, Bools]:
    """Return the codes of areas as the frame has them, from their own codes and their blocks.

    - `own` (r,): with or without the code of the state (and county) in front.
    - `blocks` (r,): 15-character geocode of each row's block.
    - Returns (r,), (r,): codes, empty for none; and where a code has a wrong form or lies in another state or
      county than its block, so that it is empty too.
    """
    before, width = AREA_FORMS[category]
    none = np.isin(own, NO_AREA)
    length = np.strings.str_len(own)
    short = (length > 0) & (length <= width) if category == "vtd" else length == width
    front = blocks.astype(f"S{max(before, 1)}")
    usable = _is_code(own, ord(" ") if category == "vtd" else ord("!"))
    if before == 0:
        codes, good = own, usable & short
    else:
        whole = (length == before + width) & (own.astype(f"S{before}") == front)
        codes = np.where(whole, own, np.strings.add(front, own))
        good = usable & (short | whole)
    return np.where(none | ~good, b"", codes), ~none & ~good


def _is_code(own: Codes, least: int) -> Bools:
    """Return where a code consists of ASCII characters from `least` on."""
    width = max(own.dtype.itemsize, 1)
    letters = np.ascontiguousarray(own).view(np.uint8).reshape(len(own), width)
    return np.asarray(np.all((letters == 0) | ((letters >= least) & (letters < 127)), axis=1))
