"""Attributes of the DHC in records of the Census Edited File; apart from where people and units are.

Recodes are those of the production readers. Axes: ``r`` records of a chunk.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from opendas.arrays import Bools, Ints
from opendas.readers.cef.records import Records
from opendas.readers.columns.findings import FindingLog
from opendas.schema.dhc_persons import OLDEST, RELATIONSHIPS
from opendas.schema.dhc_units import (
    FIRST_QUARTERS,
    FIRST_VACANT,
    HOUSEHOLDER_AGES,
    LARGEST,
    household_type_codes,
)
from opendas.schema.product import Product

_RACES = 63


class UnitLevels(NamedTuple):
    """What a unit counts as in both histograms of the units product."""

    tenvacgq: np.typing.NDArray[np.int8]  # (r,)
    # (r,): cell of the household; -1 where nobody lives, or where it is not usable.
    household: np.typing.NDArray[np.int32]


def person_cells(records: Records, quarters: Ints, alone: Bools, product: Product, log: FindingLog) -> Ints:
    """Return the cell of ``dhc-persons`` of each person, int64 (r,); -1 where a field is not usable.

    - `quarters` (r,): type of group quarters of the person's unit, 1 to 24; 0 in a housing unit.
    - `alone` (r,): nobody else lives in the unit.
    """
    rule = "expected 20 to 36 in a housing unit, 37 or 38 in group quarters"
    relationship = records.codes("RELSHIP", {code: code for code in range(20, 39)}, rule, log)
    apart = (relationship >= 0) & ((relationship >= 37) != (quarters > 0))
    records.report(apart, "RELSHIP", rule, log)
    sex = records.codes("QSEX", {1: 0, 2: 1}, "expected 1 (male) or 2 (female)", log)
    age = records.numbers("QAGE", 0, OLDEST, log)
    hispanic = records.codes("CENHISP", {1: 0, 2: 1}, "expected 1 (not Hispanic) or 2 (Hispanic)", log)
    race = records.numbers("CENRACE", 1, _RACES, log) - 1
    at_home = np.where(relationship == 20, np.where(alone, 0, 1), relationship - 19)
    relgq = np.where(quarters > 0, quarters - 1 + len(RELATIONSHIPS), at_home)
    usable = (relationship >= 0) & ~apart & (sex >= 0) & (age >= 0) & (hispanic >= 0) & (race >= 0)
    codes = [np.where(usable, code, 0) for code in (relgq, sex, age, hispanic, race)]
    return _possible(records, product.schema.cells(codes), usable, product, "QAGE", log)


def unit_levels(
    records: Records, quarters: Ints, vacancy: Ints, people: Ints, product: Product, log: FindingLog
) -> UnitLevels:
    """Return what each unit counts as.

    - `quarters`, `vacancy`, `people` (r,): type of group quarters, 0 to 24; the field VACS; the field
      FINAL_POP.
    - `product`: of the households.
    """
    lived_in = (quarters == 0) & (vacancy == 0)
    rule = "expected 1 to 4 in an occupied housing unit"
    tenure = records.codes("TEN", {code: code for code in range(5)}, rule, log, blank=0)
    records.report(lived_in & (tenure == 0), "TEN", rule, log)
    level = np.where(vacancy > 0, FIRST_VACANT - 1 + vacancy, tenure - 1)
    level = np.where(quarters > 0, FIRST_QUARTERS - 1 + quarters, level)
    cells = household_cells(records, lived_in & (tenure > 0), np.minimum(tenure - 1, 2), people, product, log)
    return UnitLevels(level.astype(np.int8), cells.astype(np.int32))


def household_cells(
    records: Records, lived_in: Bools, tenure: Ints, people: Ints, product: Product, log: FindingLog
) -> Ints:
    """Return the cell of ``dhc-units`` of each household, int64 (r,); -1 where there is none."""
    usable = lived_in & (people > 0)

    def field(name: str, least: int, most: int) -> Ints:
        """Return a field, of which households have at least `least`."""
        value = records.numbers(name, 0, most, log, blank=0)
        missing = lived_in & (value >= 0) & (value < least)
        rule = f"expected a number from {least} to {most} in an occupied housing unit"
        records.report(missing, name, rule, log)
        usable[missing | (value < 0)] = False
        return value

    sex, age = field("HHSEX", 1, 2) - 1, field("HHLDRAGE", 15, OLDEST)
    hispanic, race = field("HHSPAN", 1, 2) - 1, np.minimum(field("HHRACE", 1, _RACES), 7) - 1
    elderly = np.select([field(name, 0, 99) > 0 for name in ("P75", "P65", "P60")], [3, 2, 1], 0)
    couple, generations = field("CPLT", 0, 5), field("MULTG", 0, 2)
    own, children = field("PAOC", 0, 4), field("PAC", 0, 4)
    related, minors = np.isin(field("HHT", 1, 7), (1, 2, 3)), field("P18", 0, 99) > 0
    parts = (
        np.minimum(people, LARGEST),
        np.where(couple == 0, 5, couple),  # 0 and blank: not asked of people who live alone
        generations == 2,
        np.where(own == 0, 4, own),
        np.where(children == 0, 4, children),
        minors,
        related,
    )
    kind = household_type_codes()[tuple(np.where(usable, part, 0).astype(np.int64) for part in parts)]
    rule = "FINAL_POP, HHT, CPLT, MULTG, PAOC, PAC and P18 together fit no household type"
    unknown = usable & (kind < 0)
    records.report(unknown, "HHT", rule, log)
    usable &= ~unknown
    head = np.searchsorted(HOUSEHOLDER_AGES[1:], age, side="right")
    codes = (sex, head, hispanic, race, elderly, tenure, kind)
    cells = product.schema.cells([np.where(usable, code, 0) for code in codes])
    return _possible(records, cells, usable, product, "HHLDRAGE", log)


def _possible(
    records: Records,
    cells: np.typing.NDArray[np.int32],
    usable: Bools,
    product: Product,
    field: str,
    log: FindingLog,
) -> Ints:
    """Return cells where they are usable and no structural zero, -1 elsewhere."""
    impossible = usable & ~product.possible[cells]
    rule = f"the age and the other answers of this record together are a structural zero of {product.name}"
    records.report(impossible, field, rule, log)
    return np.where(usable & ~impossible, cells, -1).astype(np.int64)
