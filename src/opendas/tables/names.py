"""How published tables name an area: in words, and by the identifier that other tables have for it.

Axes: ``g`` geounits.
"""

from __future__ import annotations

from opendas.files.official_areas import OfficialAreas
from opendas.files.release_folder import ReleasedProduct
from opendas.geography.frame import CENSUS_PREFIX, Frame, Grouping

_UNITED_STATES = {"1": "United States"}

_PREFIXES = {
    "us": "0100000US", "state": "0400000US", "county": "0500000US", "cousub": "0600000US",
    "tract": "1400000US", "block_group": "1500000US", "block": "1000000US", "place": "1600000US",
    "aianhh": "2500000US", "vtd": "7000000US", "sdelm": "9500000US", "sdsec": "9600000US",
    "sduni": "9700000US", "cd": "5000000US", "sldu": "6100000US", "sldl": "6200000US",
}  # fmt: skip
"""What stands before a code in the identifiers of data.census.gov: summary level, variant, component."""

_PLANS_OF_2010 = {"cd": "5001100US"}
"""The same where a code means nothing without its plan: of the 111th Congress."""

_WITHIN = {
    "block": ("block_group", "tract", "county", "state"),
    "block_group": ("tract", "county", "state"),
    "tract": ("county", "state"),
    "county": ("state",),
    "cousub": ("county", "state"),
    "vtd": ("county", "state"),
    **dict.fromkeys(("place", "cd", "sldu", "sldl", "sdelm", "sdsec", "sduni"), ("state",)),
}
"""Areas whose names follow an area's own; their codes are the first characters of its code."""


def geo_ids(released: ReleasedProduct, grouping: Grouping) -> list[str] | None:
    """Return the identifier of each geounit with its letters, such as ``1400000US44001030100``.

    Where the geographic header of the input has one for an area of a plan (districts of a Congress, of a
    legislature), it is that one.

    Returns None where the geolevel is none of the census.
    """
    prefix = _PREFIXES.get(grouping.geolevel)
    if prefix is None or released.frame.leaf not in CENSUS_PREFIX:
        return None
    codes = [code.decode() for code in grouping.geocodes.tolist()]
    official = released.official
    if official is None or grouping.geolevel not in ("cd", "sldu", "sldl"):
        return [prefix + code for code in codes]
    if official.census == 2010:
        prefix = _PLANS_OF_2010.get(grouping.geolevel, prefix)
    rows = official.rows(grouping.geolevel)
    known = dict(zip(official.field("geocode", rows), official.field("GEOID", rows), strict=True))
    return [known.get(code) or prefix + code for code in codes]


def area_names(frame: Frame, official: OfficialAreas | None, grouping: Grouping) -> list[str]:
    """Return the name of each geounit, with those of the areas around it: ``Census Tract 301, Bristol ...``.

    Empty where neither knows a name.
    """
    within = _WITHIN.get(grouping.geolevel, ()) if frame.leaf in CENSUS_PREFIX else ()
    known = {level: _names(frame, official, level) for level in (grouping.geolevel, *within)}
    found = []
    for code in (code.decode() for code in grouping.geocodes.tolist()):
        own = known[grouping.geolevel].get(code)
        around = (known[level].get(code[: CENSUS_PREFIX[level]]) for level in within)
        found.append(", ".join(name for name in (own, *around) if name) if own else "")
    return found


def _names(frame: Frame, official: OfficialAreas | None, geolevel: str) -> dict[str, str]:
    if geolevel == "us":
        return _UNITED_STATES
    names = dict(frame.names.get(geolevel, {}))
    return names if official is None else names | official.names(geolevel)
