"""Validate the persons, units and places of a run, and report all errors together.

The published program has three phases (form of the files, values of each field, keys across files) and stops
at the first that fails. Here the reader checks the form, and what it can of the rest; this module checks
everything else together. It adds a fourth phase: a person or household that a table counts must have a cell.
Without one, the published program stops in the middle of a run.

Inconsistencies that the published program tabulates silently are warnings in every mode. A household with
contradictory records (no householder, a tenure on a vacant unit, a household type that its members do not
form) is counted as its records state.

Axes: ``n`` persons, ``u`` units, both sorted by MAFID.

Notes
-----
Sexton et al. (2024), section 6.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from opendas.arrays import Bools, Ints, positions_of
from opendas.errors import DataError, Finding
from opendas.phsafe.config import Config
from opendas.phsafe.counting import counted_rows
from opendas.phsafe.inputs.codes import ADULT, CHILDREN, OUTSIDE, group_index
from opendas.phsafe.inputs.fields import check_values, usable_rows
from opendas.phsafe.inputs.findings import CSV_FILES, InputFiles, list_lines
from opendas.phsafe.inputs.levels import Iteration
from opendas.phsafe.inputs.linking import Linked, check_keys, sort_inputs
from opendas.phsafe.inputs.records import Inputs, Persons, Units
from opendas.phsafe.tables import IteratesBy, Joined, Table

_HOUSEHOLDER = 20
_HOUSING_UNIT, _PERSON_IN_HOUSING_UNIT = 2, 3
_MARRIED, _MALE_ALONE, _FEMALE_ALONE = 1, 4, 6
_MARRIED_TYPES, _COHABITING_TYPES = (1, 2), (3, 4)
_FEMALE_ALONE_TYPE, _MALE_ALONE_TYPE = 5, 9
_WITH_CHILDREN = (1, 3, 6, 10)
_NO_COUPLE = 5

Rule = tuple[str, str, Bools]
"""A field, the expected values, and the rows that violate them."""


@dataclass(frozen=True, slots=True)
class Validation:
    """Errors and warnings of validation. Confidential: they identify input records."""

    errors: tuple[Finding, ...]  # findings that a private run refuses
    warnings: tuple[Finding, ...]  # findings that it counts as recorded

    def refuse_errors(self, data: Path | str) -> None:
        """Refuse an input with errors."""
        if self.errors:
            raise DataError(
                f"{data}: the input does not pass validation; nothing was drawn or written.",
                self.errors,
                shown=len(self.errors),
            )


def validate(inputs: Inputs, linked: Linked, config: Config, *, every_table: bool = False) -> Validation:
    """Validate an input, before truncation and before any draw.

    - `inputs`: restricted to the state filter.
    - `linked`: the same records, joined.
    - `every_table`: also check the cells of tables without a budget, which the non-private mode produces.
    """
    errors = [*check_values(inputs), *check_keys(inputs)]
    usable = usable_rows(linked.persons), usable_rows(linked.units)
    errors += check_cells(linked, config, inputs.files, every_table=every_table, usable=usable)
    return Validation(tuple(errors), tuple(find_inconsistencies(inputs)))


def check_cells(
    linked: Linked,
    config: Config,
    files: InputFiles = CSV_FILES,
    *,
    every_table: bool = False,
    usable: tuple[Bools, Bools] | None = None,
) -> list[Finding]:
    """Find every person or unit that a budgeted table counts but that has no cell or no race group.

    The check precedes truncation, so that refusal does not depend on who is kept.

    - `every_table`: also tables without a budget, for the non-private mode.
    - `usable` (bool (n,), bool (u,)): Persons and units with valid codes; by default all. The others are
      skipped, because they are reported already.
    - Returns: by table, then by line.
    """
    findings = []
    for table in config.tables:
        levels = table.levels if every_table else tuple(config.budgets.get(table.name, {}))
        if not levels:
            continue
        rows = counted_rows(table, linked)
        good: Bools | bool = True
        if usable is not None:
            good = usable[1][rows.unit_rows]
            if rows.person_rows is not None:
                good = good & usable[0][rows.person_rows]
        by_race = any(level.iteration is Iteration.RACE for level in levels)
        for field, rule, wrong in _cell_rules(table, rows, by_race=by_race):
            if wrong.any():
                rule = f"counted by {table.name}, without a cell: {rule}"
                findings += _list_counted(rows, np.flatnonzero(wrong & good), files, field, rule)
    return findings


def _cell_rules(table: Table, rows: Joined, *, by_race: bool) -> Iterable[Rule]:
    """Yield the rules for rows without a valid cell, and for rows without a race group."""
    cell = table.cell_index(rows)
    yield table.cell_field, table.cell_rule, np.asarray((cell < 0) | (cell >= len(table.cells)))
    if by_race and table.iterates_by is not None:
        of_person = table.iterates_by is IteratesBy.PERSON
        race = rows.person("cenrace") if of_person else rows.unit("hhrace")
        field = "CENRACE" if of_person else "HHRACE"
        rule = f"{'the person' if of_person else 'the unit'} needs {field} 01 to 63"
        yield field, rule, np.asarray(group_index(Iteration.RACE, race, race) == OUTSIDE)


def _list_counted(rows: Joined, found: Ints, files: InputFiles, field: str, rule: str) -> list[Finding]:
    unit_lines = rows.unit("line")[found]
    if rows.person_rows is None:
        return list_lines(files.units, unit_lines, field, rule)

    def unit_of(position: int) -> str:
        name, line = files.units.locate(int(unit_lines[position]))
        return f" (its unit: {name}, line {line})"

    return list_lines(files.persons, rows.person("line")[found], field, rule, unit_of)


def find_inconsistencies(inputs: Inputs) -> list[Finding]:
    """Find records that contradict each other.

    - `inputs`: restricted to the state filter.
    - Returns: by rule and line: the first lines of each rule, and the number of further ones.
    """
    inputs = sort_inputs(inputs)
    persons, units, places, files = inputs.persons, inputs.units, inputs.places, inputs.files
    home = positions_of(units.mafid, persons.mafid)
    findings = []
    if len(units):
        in_unit = persons.rtype == _PERSON_IN_HOUSING_UNIT
        apart = (home >= 0) & (in_unit != (units.rtype[home] == _HOUSING_UNIT))
        rule = "expected 3 in a unit of type 2, and 5 in one of type 4"
        findings += list_lines(files.persons, persons.line[apart], "RTYPE", rule)
    for field, rule, wrong in (*_unit_rules(units), *_member_rules(persons, units, home)):
        findings += list_lines(files.units, units.line[wrong], field, rule)
    if len(places):
        place = positions_of(places.mafid, units.mafid)
        apart = (place >= 0) & (places.rtype[place] != units.rtype)
        rule = f"expected the type that {files.places.title} has for this unit"
        findings += list_lines(files.units, units.line[apart], "RTYPE", rule)
    return findings


def _unit_rules(units: Units) -> list[Rule]:
    """Return rules that compare the codes of each unit with each other."""
    household = (units.rtype == _HOUSING_UNIT) & (units.hht != 0)
    married, cohabiting = (np.isin(units.hht2, types) for types in (_MARRIED_TYPES, _COHABITING_TYPES))
    same_family = (units.hht == _MARRIED) == married
    same_alone = ((units.hht == _MALE_ALONE) == (units.hht2 == _MALE_ALONE_TYPE)) & (
        (units.hht == _FEMALE_ALONE) == (units.hht2 == _FEMALE_ALONE_TYPE)
    )
    couple = np.where(
        married,
        np.isin(units.cplt, (1, 2)),
        np.where(cohabiting, np.isin(units.cplt, (3, 4)), units.cplt == _NO_COUPLE),
    )
    codes = ("hhrace", "hhspan", "ten", "hht2", "cplt")
    filled = np.logical_and.reduce([getattr(units, name) != 0 for name in codes])
    blank = np.logical_and.reduce([getattr(units, name) == 0 for name in codes])
    return [
        ("HHT", "expected an HHT2 of the same kind of household", household & ~(same_family & same_alone)),
        ("CPLT", "expected 1 or 2 with HHT2 01 or 02, 3 or 4 with 03 or 04, else 5", household & ~couple),
        ("HHT", "a household needs HHRACE, HHSPAN, TEN, HHT2 and CPLT in universe", household & ~filled),
        ("HHT", "where HHT is 0, HHRACE, HHSPAN, TEN, HHT2 and CPLT are 0 too", (units.hht == 0) & ~blank),
    ]


def _member_rules(persons: Persons, units: Units, home: Ints) -> list[Rule]:
    """Return rules on units and their persons; `home`, int64 (n,), is the unit's position, -1 for none."""
    placed = home >= 0

    def count(chosen: Bools) -> Ints:
        return np.bincount(home[chosen & placed], minlength=len(units))

    is_householder = persons.relship == _HOUSEHOLDER
    householders = count(is_householder)
    householder = np.full(len(units), -1, dtype=np.int64)  # the last householder, if there are several
    householder[home[is_householder & placed]] = np.flatnonzero(is_householder & placed)
    household = (units.rtype == _HOUSING_UNIT) & (units.hht != 0)
    one = household & (householders == 1)
    race, origin = (
        one.copy() if not len(persons) else one & (column[householder] != codes)
        for column, codes in ((persons.cenrace, units.hhrace), (persons.cenhisp, units.hhspan))
    )
    own_child = np.isin(persons.relship, CHILDREN)
    minors = count(own_child & (persons.qage < ADULT))
    with_children = np.isin(units.hht2, _WITH_CHILDREN)
    return [
        (
            "FINAL_POP",
            "expected the number of persons with this key",
            units.final_pop != count(np.ones(len(persons), dtype=np.bool_)),
        ),
        ("HHT", "a household has exactly one person with RELSHIP 20", household & (householders != 1)),
        ("HHRACE", "expected the race of the householder", race),
        ("HHSPAN", "expected the origin of the householder", origin),
        (
            "HHT2",
            "expected 01, 03, 06 or 10 where an own child (RELSHIP 25 to 27) is below 18, and only there",
            household & (with_children != (minors > 0)),
        ),
    ]
