"""PHSafe on households that we did not write, against queries written from the definitions of the tables."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pytest
from support.households import NUMERATORS, configuration, write_world
from support.real_households import SOURCES, Source

from opendas.errors import DataError, Finding
from opendas.phsafe.output import PART_FILE
from opendas.phsafe.run import HouseholdOptions, run_exact, run_private, validate_input

Key = tuple[str, ...]
TAU = 20

# The rows that a table counts, with their cell; from the published definitions, not from the program.
_JOINED = "persons p join homes u using (MAFID)"
_RELATED = "(20, 21, 23, 25, 26, 27, 28, 29, 30, 31, 32, 33)"
_OF_HOUSEHOLDER = "u.STATE, cast(u.HHRACE as int) race, u.HHSPAN = '2' hispanic"
_OF_PERSON = "u.STATE, cast(p.CENRACE as int) race, p.CENHISP = '2' hispanic"
_OCCUPIED = "from homes u where u.UNIT_TYPE = '2' and u.HHT <> '0'"
ROWS = {
    "PH1_num": f"""
        select {_OF_HOUSEHOLDER}, if(QAGE < 18, 2, 3) cell from {_JOINED} where p.RTYPE = '3'""",
    "PH1_denom": f"select {_OF_HOUSEHOLDER}, 1 cell {_OCCUPIED}",
    "PH2": f"""
        select {_OF_HOUSEHOLDER}, case
            when HHT2 in ('01', '02') and CPLT = '1' then 3
            when HHT2 in ('01', '02') and CPLT = '2' then 4
            when HHT2 in ('03', '04') and CPLT = '3' then 6
            when HHT2 in ('03', '04') and CPLT = '4' then 7
            when HHT2 = '09' then 9
            when HHT2 in ('10', '11', '12') then 10
            when HHT2 = '05' then 12
            when HHT2 in ('06', '07', '08') then 13 end cell
        from {_JOINED} where p.RTYPE = '3'""",
    "PH3": f"""
        select {_OF_PERSON}, case
            when RELSHIP in (20, 21, 22, 23, 24, 34, 35, 36) then 2
            when RELSHIP in (25, 26, 27) and HHT2 = '01' then 4
            when RELSHIP in (25, 26, 27) and HHT2 = '03' then 5
            when RELSHIP in (25, 26, 27) and HHT2 = '10' then 6
            when RELSHIP in (25, 26, 27) and HHT2 = '06' then 7
            when RELSHIP = 30 then 9
            when RELSHIP in (28, 29, 31, 32, 33) then 10 end cell
        from {_JOINED} where p.RTYPE = '3' and QAGE < 18""",
    "PH4": f"""
        select {_OF_HOUSEHOLDER}, if(QAGE < 18, 2, 3) cell from {_JOINED}
        where RELSHIP in {_RELATED} and u.HHT <= '3'""",
    "PH6": f"""
        select {_OF_HOUSEHOLDER},
            case HHT2 when '01' then 3 when '03' then 8 when '10' then 13 when '06' then 18 end
            + case when QAGE < 4 then 0 when QAGE < 6 then 1 when QAGE < 12 then 2 else 3 end cell
        from {_JOINED} where QAGE < 18 and RELSHIP in (25, 26, 27)""",
    "PH7": f"""
        select {_OF_HOUSEHOLDER}, case TEN when '1' then 2 when '2' then 3 else 4 end cell
        from {_JOINED} where p.RTYPE = '3'""",
    "PH8_denom": f"select {_OF_HOUSEHOLDER}, if(TEN in ('1', '2'), 2, 3) cell {_OCCUPIED}",
}
# Cells that the non-private mode adds, and the cells that each of them sums.
TOTALS: dict[str, dict[int, tuple[int, ...]]] = {
    "PH1_num": {1: (2, 3)},
    "PH1_denom": {2: (1,), 3: (1,)},
    "PH2": {1: (3, 4, 6, 7, 9, 10, 12, 13), 2: (3, 4), 5: (6, 7), 8: (9, 10), 11: (12, 13)},
    "PH3": {1: (2, 4, 5, 6, 7, 9, 10), 3: (4, 5, 6, 7), 8: (9, 10)},
    "PH4": {1: (2, 3)},
    "PH6": {
        1: tuple(cell for cell in range(3, 22) if cell not in (7, 12, 17)),
        2: (3, 4, 5, 6),
        7: (8, 9, 10, 11),
        12: (13, 14, 15, 16),
        17: (18, 19, 20, 21),
    },
    "PH7": {1: (2, 3, 4)},
    "PH8_denom": {1: (2, 3)},
}


@dataclass(frozen=True)
class Case:
    source: Source
    data: Path
    config: Path
    exact: Path
    seeded: Path


@pytest.fixture(scope="module", params=SOURCES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    source = SOURCES[request.param]()
    folder = tmp_path_factory.mktemp(request.param)
    data = write_world(folder / "data", source.world)
    config = folder / "config.json"
    config.write_text(json.dumps(configuration(budget=math.inf, tau=TAU, states=source.states)))
    _, errors = run_exact(config, data, folder / "exact", HouseholdOptions())
    assert errors == ()
    run_private(config, data, folder / "seeded", HouseholdOptions(seed=1))
    return Case(source, data, config, folder / "exact", folder / "seeded")


@pytest.fixture(scope="module")
def queries(case: Case) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        for name in ("persons", "units", "geo"):
            source = f"read_csv('{case.data / name}.csv', all_varchar = true)"
            connection.execute(f"create view {name}_text as select * from {source}")
        connection.execute(
            "create table persons as select * replace (cast(QAGE as int) as QAGE, "
            "cast(RELSHIP as int) as RELSHIP) from persons_text"
        )
        connection.execute(
            "create table homes as select u.* exclude (RTYPE), u.RTYPE UNIT_TYPE, g.TABBLKST STATE "
            "from units_text u join geo_text g using (MAFID) where g.RTYPE not in ('4', '5')"
        )
        yield connection


def expected(queries: duckdb.DuckDBPyConnection, name: str) -> Counter[Key]:
    """Count the rows of a table by region, group and cell, zeros left out."""
    grouped = f"""
        with counted as ({ROWS[name]}),
        iterated as (
            select STATE, '*' code, cell from counted
            union all select STATE, substr('ABCDEFG', least(race, 7), 1), cell from counted
            union all select STATE, if(hispanic, 'H', 'I'), cell from counted where hispanic or race = 1
        )
        select '1', 'USA', code, cell, count(*) from iterated group by all
        union all select STATE, 'STATE', code, cell, count(*) from iterated group by all
    """
    found: Counter[Key] = Counter()
    for region, kind, code, cell, count in queries.execute(grouped).fetchall():
        assert cell is not None
        if name not in ("PH2", "PH6"):
            found[region, kind, code, str(cell)] = count
        elif code == "*":
            found[region, kind, str(cell)] = count
    return found


def with_totals(name: str, interior: Counter[Key]) -> Counter[Key]:
    found = Counter(interior)
    for total, parts in TOTALS[name].items():
        for key, count in interior.items():
            if int(key[-1]) in parts:
                found[*key[:-1], str(total)] += count
    return found


def written(out: Path, name: str) -> Counter[Key]:
    """Read the counts of a table that are not zero."""
    with (out / name / PART_FILE).open(newline="") as file:
        rows = csv.DictReader(file, delimiter="|")
        columns = ("REGION_ID", "REGION_TYPE", "ITERATION_CODE", f"{name.upper()}_DATA_CELL")
        counts = {
            tuple(row[column] for column in columns if column in row): int(row["COUNT"]) for row in rows
        }
    return Counter({key: count for key, count in counts.items() if count})


def test_validation_finds_nothing(case: Case) -> None:
    found: list[Finding] = []
    answer = validate_input(case.config, case.data, HouseholdOptions(warn=found.extend))
    assert answer["ok"]
    assert found == []


def test_validation_looks_at_these_households(case: Case, tmp_path: Path) -> None:
    # A householder becomes a child without the unit saying so; then the relationship is no code at all.
    persons, units, places = case.source.world
    at = next(number for number, person in enumerate(persons) if person["RELSHIP"] == "20")
    for relship, error in (("36", False), ("39", True)):
        changed: list[dict[str, Any]] = [*persons]
        changed[at] = persons[at] | {"RELSHIP": relship}
        data = write_world(tmp_path / relship, (changed, units, places))
        found: list[Finding] = []
        options = HouseholdOptions(warn=found.extend)
        if error:
            with pytest.raises(DataError):
                validate_input(case.config, data, options)
        else:
            validate_input(case.config, data, options)
            assert {finding.rule for finding in found} == {
                "a household has exactly one person with RELSHIP 20"
            }


@pytest.mark.parametrize("name", ROWS)
def test_exact_tables_are_the_queries(case: Case, queries: duckdb.DuckDBPyConnection, name: str) -> None:
    interior = expected(queries, name)
    assert len(interior) >= 10
    assert written(case.exact, name) == with_totals(name, interior)


@pytest.mark.parametrize("name", NUMERATORS)
def test_without_noise_a_private_run_has_the_exact_cells(case: Case, name: str) -> None:
    exact, private = written(case.exact, name), written(case.seeded, name)
    sizes = Counter(person["MAFID"] for person in case.source.world[0] if person["RTYPE"] == "3")
    assert max(sizes.values()) < TAU
    totals = {str(cell) for cell in TOTALS[name]}
    assert private == Counter({key: count for key, count in exact.items() if key[-1] not in totals})
    assert private


def test_average_household_size_is_that_of_the_source(case: Case) -> None:
    persons, homes = (
        sum(count for key, count in written(case.seeded, name).items() if key[:3] == ("1", "USA", "*"))
        for name in ("PH1_num", "PH1_denom")
    )
    assert Fraction(persons, homes) == Fraction(case.source.household_persons, case.source.households)
    assert 2 < persons / homes < 3
