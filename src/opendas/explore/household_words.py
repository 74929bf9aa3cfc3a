"""Names of household tables and population group levels in words."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from opendas.phsafe.model import Geography, Iteration, find_level
from opendas.phsafe.sensitivity import Sensitivity
from opendas.privacy.relations import Neighbours

__all__ = ["bound_words", "level_words", "table_words"]

_TABLES: Final = MappingProxyType(
    {
        "PH1_num": "persons in households by age",
        "PH1_denom": "households",
        "PH2": "persons by type of household and couple",
        "PH3": "persons below 18 by relationship",
        "PH4": "persons in families by age",
        "PH5_num": "persons in families by age, from PH4",
        "PH5_denom": "families",
        "PH6": "own children by household type and age",
        "PH7": "persons in households by tenure",
        "PH8_num": "persons in households by tenure, from PH7",
        "PH8_denom": "households by tenure",
    }
)
_GEOGRAPHIES: Final = {Geography.USA: "nation", Geography.STATE: "state"}
_ITERATIONS: Final = {Iteration.ALL: "everybody"}


def table_words(name: str) -> str:
    """Say what a table counts; empty for a table of the agency's own."""
    return _TABLES.get(name, "")


def level_words(name: str) -> str:
    """Write a population group level in words, for instance ``state_A-G`` as "state, groups A-G"."""
    level = find_level(name)
    if level is None:
        return name
    groups = _ITERATIONS.get(level.iteration, f"groups {level.iteration.value.replace(',', ', ')}")
    return f"{_GEOGRAPHIES.get(level.geography, level.geography.value)}, {groups}"


def bound_words(bound: tuple[Sensitivity, Neighbours]) -> str:
    """Write a bound and a relation in words."""
    return f"{bound[0].value}, {bound[1].value}"
