"""Off-spine areas and names from a redistricting header."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opendas.geography.frame import ENTITY_CATEGORIES
from opendas.io.readers.area_codes import NO_AREA
from opendas.io.readers.pl94_header import Header

__all__ = ["area_names", "entity_codes"]

Codes = npt.NDArray[np.bytes_]

_PREFIX = {
    "cousub": ("STATE", "COUNTY"), "place": ("STATE",), "aianhh": (), "cd": ("STATE",), "sldu": ("STATE",),
    "sldl": ("STATE",), "vtd": ("STATE", "COUNTY"), "sdelm": ("STATE",), "sdsec": ("STATE",),
    "sduni": ("STATE",),
}  # fmt: skip
"""What makes an area's code unique in the nation, as in the official GEOID."""

_LEVELS = {
    b"040": ("state", ("STATE",)),
    b"050": ("county", ("STATE", "COUNTY")),
    b"140": ("tract", ("STATE", "COUNTY", "TRACT")),
    b"060": ("cousub", ("STATE", "COUNTY", "COUSUB")),
    b"160": ("place", ("STATE", "PLACE")),
    b"280": ("aianhh", ("AIANHH",)),
    b"500": ("cd", ("STATE", "CD")),
    b"610": ("sldu", ("STATE", "SLDU")),
    b"620": ("sldl", ("STATE", "SLDL")),
    b"700": ("vtd", ("STATE", "COUNTY", "VTD")),
    b"950": ("sdelm", ("STATE", "SDELM")),
    b"960": ("sdsec", ("STATE", "SDSEC")),
    b"970": ("sduni", ("STATE", "SDUNI")),
}
"""Summary levels whose records name an area."""


def entity_codes(header: Header, rows: npt.NDArray[np.integer]) -> dict[str, Codes]:
    """Return the codes of the areas that the records `rows` lie in; the empty code means none.

    Codes are prefixed by state, or state and county, wherever they repeat between states or counties, so
    that they stay unique in a run of several states.
    """
    areas = {}
    for category in ENTITY_CATEGORIES:
        own = header.fields[category.upper()][rows]
        code = own
        for name in reversed(_PREFIX[category]):
            code = np.strings.add(header.fields[name][rows], code)
        areas[category] = np.where(np.isin(own, NO_AREA), b"", code)
    return areas


def area_names(header: Header) -> dict[str, dict[str, str]]:
    """Return the names of states, counties, tracts and off-spine areas, by category and code."""
    names: dict[str, dict[str, str]] = {}
    for level, (category, fields) in _LEVELS.items():
        rows = np.flatnonzero((header.fields["SUMLEV"] == level) & (header.fields["GEOCOMP"] == b"00"))
        own = header.fields[fields[-1]][rows]
        rows = rows[~np.isin(own, NO_AREA)]
        if len(rows) == 0:
            continue
        codes = [b"".join(parts) for parts in zip(*(header.fields[f][rows] for f in fields), strict=True)]
        labels = header.fields["NAME"][rows]
        named = zip(codes, labels, strict=True)
        names[category] = {code.decode("latin-1"): _text(label) for code, label in named if label}
    return names


def _text(label: bytes) -> str:
    try:
        return label.decode("utf-8")
    except UnicodeDecodeError:
        return label.decode("latin-1")
