"""Named budgets: the published allocations, ready to use."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from types import MappingProxyType

from opendas.budget import preset_tables
from opendas.budget.allocation import exact_shares
from opendas.errors import ConfigError

__all__ = ["Preset", "preset", "preset_names"]


@dataclass(frozen=True, slots=True)
class Preset:
    """A published allocation.

    Parameters
    ----------
    name : str
    description : str
        One line: what it was used for.
    source : str
        Where it is printed.
    product : str
        The built-in product it was made for.
    rho : Fraction
    geolevels : mapping of str to Fraction
        Top first; sums to exactly 1.
    queries : mapping of str to mapping of str to Fraction
        Geolevel -> query group -> share; each geolevel sums to exactly 1.
    """

    name: str
    description: str
    source: str
    product: str
    rho: Fraction
    geolevels: Mapping[str, Fraction]
    queries: Mapping[str, Mapping[str, Fraction]]


_PAPER = "TopDown paper, Tables 3 to 5"
_PRODUCTION = "TopDown paper, Tables 6 to 8; run certificates"
_CODE = "2020 redistricting production code and run certificates"
# name -> description, source, product, rho, table
_PRESETS = {
    "us2020-persons": (
        "2020 redistricting data, persons, 50 states and DC",
        _PRODUCTION,
        "pl94-persons",
        "293764/114921",
        preset_tables.US_2020_PERSONS,
    ),
    "pr2020-persons": (
        "2020 redistricting data, persons, Puerto Rico; fits any run rooted at a state",
        _CODE,
        "pl94-persons",
        "293764/114921",
        preset_tables.PR_2020_PERSONS,
    ),
    "us2020-units": (
        "2020 redistricting data, housing units, 50 states and DC",
        _PRODUCTION,
        "pl94-units",
        "11417641/152349649",
        preset_tables.US_2020_UNITS,
    ),
    "pr2020-units": (
        "2020 redistricting data, housing units, Puerto Rico; fits any run rooted at a state",
        _CODE,
        "pl94-units",
        "11417641/152349649",
        preset_tables.PR_2020_UNITS,
    ),
    "april2021-persons": (
        "April 2021 demonstration data, persons, the larger budget (rho 1.095 with units)",
        _PAPER,
        "pl94-persons",
        "1.05",
        preset_tables.APRIL_2021_PERSONS,
    ),
    "april2021-units": (
        "April 2021 demonstration data, housing units, the larger budget (rho 1.095 with persons)",
        _PAPER,
        "pl94-units",
        "0.045",
        preset_tables.APRIL_2021_UNITS,
    ),
    "april2021-low-persons": (
        "April 2021 demonstration data, persons, the smaller budget (rho 0.1885 with units)",
        _PAPER,
        "pl94-persons",
        "0.185",
        preset_tables.APRIL_2021_PERSONS,
    ),
    "april2021-low-units": (
        "April 2021 demonstration data, housing units, the smaller budget (rho 0.1885 with persons)",
        _PAPER,
        "pl94-units",
        "0.0035",
        preset_tables.APRIL_2021_UNITS,
    ),
}


def preset_names() -> tuple[str, ...]:
    """Names of all presets."""
    return tuple(_PRESETS)


@cache
def preset(name: str) -> Preset:
    """Return a preset by name.

    Raises
    ------
    ConfigError
        If there is none of this name; names the nearest.
    """
    if name not in _PRESETS:
        near = difflib.get_close_matches(name, _PRESETS, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"There is no budget preset {name!r}. {hint}The presets are {', '.join(_PRESETS)}.")
    description, source, product, rho, table = _PRESETS[name]
    geolevels, queries = _read_table(table, name)
    return Preset(
        name=name,
        description=description,
        source=source,
        product=product,
        rho=Fraction(rho),
        geolevels=geolevels,
        queries=queries,
    )


def _read_table(table: str, name: str) -> tuple[Mapping[str, Fraction], Mapping[str, Mapping[str, Fraction]]]:
    """Read a table of ``preset_tables``: a header, the geolevel shares, a line per query group."""
    header, level_shares, *lines = (line.split() for line in table.strip().splitlines())
    levels = header[1:]
    geolevels = exact_shares(dict(zip(levels, level_shares[1:], strict=True)), f"Preset {name}, geolevels")
    queries: dict[str, dict[str, str]] = {level: {} for level in levels}
    for query, *shares in lines:
        for level, share in zip(levels, shares, strict=True):
            if share != "-":
                queries[level][" * ".join(query.split("*"))] = share
    exact = {
        level: MappingProxyType(exact_shares(shares, f"Preset {name}, {level}"))
        for level, shares in queries.items()
    }
    return MappingProxyType(geolevels), MappingProxyType(exact)
