"""The tables of the S-DHC: nine that are measured, and two that are sums of their cells.

Cells have the published codes. A total is in no measured table; the shell of a table says which cells it
sums. An own child below 18 in a household whose HHT2 has none, or a combination of HHT2 and CPLT that no
household has, has no cell.

Notes
-----
Sexton et al. (2024), Table 1 to Table 8; which filters come before the join, Algorithm 1 and Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from opendas.arrays import Bools
from opendas.phsafe.inputs.codes import ADULT, CHILDREN, OUTSIDE, RELATIVES, lookup
from opendas.phsafe.inputs.records import Int8, Persons, Units
from opendas.phsafe.tables.declaration import Derived, IteratesBy, Joined, Kind, Table

_SIDE = 128
_PERSON_IN_HOUSING_UNIT, _HOUSING_UNIT = 3, 2
_LAST_FAMILY = 3  # of the codes HHT


# Filters.


def _in_housing_unit(persons: Persons) -> Bools:
    return np.asarray(persons.rtype == _PERSON_IN_HOUSING_UNIT)


def _minors_in_housing_unit(persons: Persons) -> Bools:
    return np.asarray((persons.rtype == _PERSON_IN_HOUSING_UNIT) & (persons.qage < ADULT))


def _related(persons: Persons) -> Bools:
    """The householder and relatives, whatever the type of their record."""
    return np.asarray(_IS_RELATED[persons.relship])


def _own_minors(persons: Persons) -> Bools:
    """Own children below 18, whatever the type of their record."""
    return np.asarray((persons.qage < ADULT) & _IS_OWN_CHILD[persons.relship])


def _occupied_housing_units(units: Units) -> Bools:
    return np.asarray((units.rtype == _HOUSING_UNIT) & (units.hht != 0))


def _families(units: Units) -> Bools:
    """Units whose household is a family (HHT 1, 2 or 3), whatever their type."""
    return np.asarray((units.hht >= 1) & (units.hht <= _LAST_FAMILY))


def _up_to_family(units: Units) -> Bools:
    """HHT up to 3. The published filter compares texts, and so lets 0 (not in universe) through."""
    return np.asarray((units.hht >= 0) & (units.hht <= _LAST_FAMILY))


_IS_RELATED = np.isin(np.arange(_SIDE), RELATIVES)
_IS_OWN_CHILD = np.isin(np.arange(_SIDE), CHILDREN)


# Cells: positions in the list of a table's cells.

_PH2_CELLS = (3, 4, 6, 7, 9, 10, 12, 13)
_PH3_CELLS = (2, 4, 5, 6, 7, 9, 10)
_PH6_CELLS = (3, 4, 5, 6, 8, 9, 10, 11, 13, 14, 15, 16, 18, 19, 20, 21)
_PH6_LAST_AGES = (3, 5, 11)
"""Last age of all bands but the last: under 4; 4 and 5; 6 to 11; 12 to 17."""


def _positions(cells: tuple[int, ...], by_codes: Mapping[tuple[int, int], int]) -> Int8:
    """Return the position of the cell of each pair of codes, :data:`OUTSIDE` where there is none."""
    table = np.full((_SIDE, _SIDE), OUTSIDE, dtype=np.int8)
    for pair, cell in by_codes.items():
        table[pair] = cells.index(cell)
    return table


# By HHT2 and CPLT: couples by CPLT, all others by HHT2.
_PH2_POSITIONS = _positions(
    _PH2_CELLS,
    {
        **{(hht2, cplt): cell for hht2 in (1, 2) for cplt, cell in ((1, 3), (2, 4))},
        **{(hht2, cplt): cell for hht2 in (3, 4) for cplt, cell in ((3, 6), (4, 7))},
        **{
            (hht2, cplt): cell
            for hht2, cell in {9: 9, 10: 10, 11: 10, 12: 10, 5: 12, 6: 13, 7: 13, 8: 13}.items()
            for cplt in range(_SIDE)
        },
    },
)
# By RELSHIP and HHT2: own children by HHT2, all others by RELSHIP.
_PH3_POSITIONS = _positions(
    _PH3_CELLS,
    {
        **{
            (relship, hht2): cell
            for relships, cell in (
                ((20, 21, 22, 23, 24, 34, 35, 36), 2),
                ((30,), 9),
                ((28, 29, 31, 32, 33), 10),
            )
            for relship in relships
            for hht2 in range(_SIDE)
        },
        **{(child, hht2): cell for child in CHILDREN for hht2, cell in {1: 4, 3: 5, 10: 6, 6: 7}.items()},
    },
)
# Of the first age band by HHT2: married couple, cohabiting couple, male, female householder.
_PH6_FIRST = lookup({1: 0, 3: 4, 10: 8, 6: 12}, _SIDE)
_PH7_POSITIONS = lookup({1: 0, 2: 1, 3: 2, 4: 2}, _SIDE)
_PH8_POSITIONS = lookup({1: 0, 2: 0, 3: 1, 4: 1}, _SIDE)


def _only_cell(rows: Joined) -> Int8:
    return np.zeros(len(rows), dtype=np.int8)


def _by_age(rows: Joined) -> Int8:
    return (rows.person("qage") >= ADULT).astype(np.int8)


def _by_household_type(rows: Joined) -> Int8:
    return np.asarray(_PH2_POSITIONS[rows.unit("hht2"), rows.unit("cplt")])


def _by_relationship(rows: Joined) -> Int8:
    return np.asarray(_PH3_POSITIONS[rows.person("relship"), rows.unit("hht2")])


def _by_household_type_and_age(rows: Joined) -> Int8:
    first = _PH6_FIRST[rows.unit("hht2")]
    band = np.searchsorted(_PH6_LAST_AGES, rows.person("qage"), side="left")
    return np.where(first == OUTSIDE, OUTSIDE, first + band).astype(np.int8)


def _by_tenure(rows: Joined) -> Int8:
    return np.asarray(_PH7_POSITIONS[rows.unit("ten")])


def _owned_or_rented(rows: Joined) -> Int8:
    return np.asarray(_PH8_POSITIONS[rows.unit("ten")])


PH1_NUM = Table(
    name="PH1_num",
    kind=Kind.PERSONS,
    cells=(2, 3),  # below 18; 18 and over
    cell_index=_by_age,
    cell_rule="any age has a cell",
    cell_field="QAGE",
    iterates_by=IteratesBy.HOUSEHOLDER,
    person_filter=_in_housing_unit,
    shell={1: (2, 3)},
    truth_filter=_occupied_housing_units,
)
PH1_DENOM = Table(
    name="PH1_denom",
    kind=Kind.UNITS,
    cells=(1,),
    cell_index=_only_cell,
    cell_rule="every unit has a cell",
    cell_field="HHT",
    iterates_by=IteratesBy.HOUSEHOLDER,
    unit_filter=_occupied_housing_units,
    shell={2: (1,), 3: (1,)},
)
PH2 = Table(
    name="PH2",
    kind=Kind.PERSONS,
    cells=_PH2_CELLS,
    cell_index=_by_household_type,
    cell_rule=(
        "the unit needs HHT2 01 or 02 with CPLT 1 or 2, HHT2 03 or 04 with CPLT 3 or 4, or HHT2 05 to 12"
    ),
    cell_field="HHT2",
    person_filter=_in_housing_unit,
    shell={1: _PH2_CELLS, 2: (3, 4), 5: (6, 7), 8: (9, 10), 11: (12, 13)},
)
PH3 = Table(
    name="PH3",
    kind=Kind.PERSONS,
    cells=_PH3_CELLS,
    cell_index=_by_relationship,
    cell_rule=(
        "a person below 18 needs RELSHIP 20 to 36, and an own child (RELSHIP 25 to 27) a unit with "
        "HHT2 01, 03, 06 or 10"
    ),
    cell_field="RELSHIP",
    iterates_by=IteratesBy.PERSON,
    person_filter=_minors_in_housing_unit,
    shell={1: _PH3_CELLS, 3: (4, 5, 6, 7), 8: (9, 10)},
)
PH4 = replace(PH1_NUM, name="PH4", person_filter=_related, unit_filter=_up_to_family, truth_filter=None)
PH5_DENOM = replace(PH1_DENOM, name="PH5_denom", unit_filter=_families)
PH6 = Table(
    name="PH6",
    kind=Kind.PERSONS,
    cells=_PH6_CELLS,
    cell_index=_by_household_type_and_age,
    cell_rule="an own child below 18 needs a unit with HHT2 01, 03, 06 or 10",
    cell_field="RELSHIP",
    person_filter=_own_minors,
    shell={1: _PH6_CELLS, 2: (3, 4, 5, 6), 7: (8, 9, 10, 11), 12: (13, 14, 15, 16), 17: (18, 19, 20, 21)},
)
PH7 = Table(
    name="PH7",
    kind=Kind.PERSONS,
    cells=(2, 3, 4),  # owned with a mortgage; owned free and clear; rented, or without payment of rent
    cell_index=_by_tenure,
    cell_rule="the unit needs TEN 1 to 4",
    cell_field="TEN",
    iterates_by=IteratesBy.HOUSEHOLDER,
    person_filter=_in_housing_unit,
    shell={1: (2, 3, 4)},
)
PH8_DENOM = Table(
    name="PH8_denom",
    kind=Kind.UNITS,
    cells=(2, 3),  # owned; rented, or without payment of rent
    cell_index=_owned_or_rented,
    cell_rule="an occupied housing unit needs TEN 1 to 4",
    cell_field="TEN",
    iterates_by=IteratesBy.HOUSEHOLDER,
    unit_filter=_occupied_housing_units,
    shell={1: (2, 3)},
)

TABLES: tuple[Table, ...] = (PH1_NUM, PH1_DENOM, PH2, PH3, PH4, PH5_DENOM, PH6, PH7, PH8_DENOM)
"""The nine measured tables."""

DERIVED: tuple[Derived, ...] = (
    Derived("PH5_num", "PH4", {2: (2,), 3: (3,)}),
    # The published non-private mode sums FINAL_POP over households instead.
    Derived(
        "PH8_num", "PH7", {2: (2, 3), 3: (4,)}, truth=replace(PH8_DENOM, name="PH8_num", weight="final_pop")
    ),
)
"""The two tables computed from measured ones (section 6.4.1)."""

OUTPUTS: tuple[str, ...] = (
    "PH1_num",
    "PH1_denom",
    "PH2",
    "PH3",
    "PH4",
    "PH5_num",
    "PH5_denom",
    "PH6",
    "PH7",
    "PH8_num",
    "PH8_denom",
)
"""The eleven folders of the published program, in order."""


def find_table(name: str, tables: tuple[Table, ...] = TABLES) -> Table | None:
    """Return the measured table with a name, None if there is none."""
    return next((table for table in tables if table.name == name), None)
