"""The sensitivity of PHSafe tables by exhaustive search, on answers that the production counting gave.

Worlds have up to two addresses. Everything an address can hold is listed from a small menu of persons and
units (absent, vacant and inconsistent ones included), each world is linked, filtered, truncated and counted
by the production code, and all neighbouring pairs are compared. The tight bounds must be attained and never
exceeded; the published ones never exceeded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement

import numpy as np
import pytest
from numpy.typing import NDArray

from opendas.phsafe import counting
from opendas.phsafe.counting import count_cube, counted_rows, level_counts, truncated
from opendas.phsafe.inputs.codes import CHILDREN
from opendas.phsafe.inputs.levels import Geography, Level
from opendas.phsafe.inputs.linking import check_keys, link
from opendas.phsafe.inputs.records import Inputs, Persons, Places, Units
from opendas.phsafe.tables import TABLES, Kind, Table
from opendas.phsafe.tables.sensitivity import Answers, Sensitivity
from opendas.phsafe.truncation import Truncation
from opendas.privacy.relations import Neighbours

KEY = bytes(range(32))
STATES = ("01", "02")
TAUS = (1, 2, 3)

Person = tuple[int, int, int, int]  # age, Hispanic origin, race, relationship
Unit = tuple[int, int, int, int, int, int]  # origin, race, tenure, HHT, HHT2, CPLT

HOUSEHOLDER: Person = (40, 1, 1, 20)
CHILD: Person = (3, 1, 1, 25)
OTHER_CHILD: Person = (13, 2, 7, 26)
LODGER: Person = (17, 1, 1, 34)
MENU = (HOUSEHOLDER, CHILD, OTHER_CHILD, LODGER)

MARRIED: Unit = (1, 1, 1, 1, 1, 1)
FATHER: Unit = (2, 2, 3, 2, 10, 5)
VACANT: Unit = (0, 0, 0, 0, 0, 0)
UNITS = (MARRIED, FATHER, VACANT)


@dataclass(frozen=True)
class Address:
    """An address and what it holds. Place and key are public; no unit: the address is not there."""

    mafid: int
    state: int
    persons: tuple[Person, ...] = ()
    units: tuple[Unit, ...] = ()


HERE, NEXT_DOOR, ELSEWHERE = (100_000_001, 1), (100_000_002, 1), (100_000_003, 2)


def inputs(world: Iterable[Address]) -> Inputs:
    people = [(3, one.mafid, *person) for one in world for person in one.persons]
    homes = [(2, one.mafid, len(one.persons), 0, *unit) for one in world for unit in one.units]
    places = [(2, one.mafid, one.state) for one in world]
    p, u, g = (
        np.array(rows, dtype=np.int64).reshape(-1, width).T
        for rows, width in ((people, 6), (homes, 10), (places, 3))
    )
    names = ("rtype", "mafid", "qage", "cenhisp", "cenrace", "relship")
    unit_names = ("rtype", "mafid", "final_pop", "npf", "hhspan", "hhrace", "ten", "hht", "hht2", "cplt")
    return Inputs(
        Persons.of(**dict(zip(names, p, strict=True))),
        Units.of(**dict(zip(unit_names, u, strict=True))),
        Places.of(**dict(zip(("rtype", "mafid", "state"), g, strict=True))),
    )


Vector = NDArray[np.int64]
Question = tuple[str, int]  # table and tau; 0 for tables of units


def questions() -> list[tuple[Table, int]]:
    return [(table, tau) for table in TABLES for tau in (TAUS if table.kind is Kind.PERSONS else (0,))]


def count(world: Iterable[Address], mode: Truncation = Truncation.KEYED) -> dict[Question, Vector]:
    """All cubes of a world: states x races x origins x cells, through the production path."""
    linked = link(inputs(list(world)), STATES)
    cubes = {}
    for table, tau in questions():
        rows = counted_rows(table, linked)
        if tau:
            rows = truncated(rows, tau, mode, KEY)
        cubes[table.name, tau] = count_cube(table, rows, linked.state, len(STATES))
    return cubes


@lru_cache(maxsize=1)
def contents() -> tuple[tuple[tuple[Person, ...], tuple[Unit, ...]], ...]:
    """All that an address can hold: up to four persons of the menu and a unit, or nothing at all."""
    households = [
        people for size in range(max(TAUS) + 2) for people in combinations_with_replacement(MENU, size)
    ]
    return ((), ()), *((people, (unit,)) for people in households for unit in UNITS)


@lru_cache(maxsize=3)
def cubes_of(mafid: int, state: int) -> dict[Question, NDArray[np.int64]]:
    """Cubes of every world of one address, stacked: contents x states x races x origins x cells."""
    worlds = [count([Address(mafid, state, *held)]) for held in contents()]
    return {key: np.stack([world[key] for world in worlds]) for key in worlds[0]}


def vectors(place: tuple[int, int], table: Table, tau: int, level: Level) -> NDArray[np.int64]:
    """Answers of a level in every world of one address, (contents, regions * groups * cells)."""
    cubes = cubes_of(*place)[table.name, tau]
    return np.stack([level_counts(cube, level).ravel() for cube in cubes])


def differences(answers: NDArray[np.int64]) -> NDArray[np.int64]:
    """All changes of one address, each once."""
    distinct = np.unique(answers, axis=0)
    return np.unique((distinct[:, None] - distinct[None]).reshape(-1, distinct.shape[1]), axis=0)


def worst(one: NDArray[np.int64], other: NDArray[np.int64] | None = None) -> tuple[int, int]:
    """Largest squared L2 and L1 norm of a change, or of the sum of two changes."""
    if other is None:
        return int((one**2).sum(axis=1).max()), int(np.abs(one).sum(axis=1).max())
    squares = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1)[None] + 2 * one @ other.T
    l1 = max(int(np.abs(change + other).sum(axis=1).max()) for change in one)
    return int(squares.max()), l1


def asked() -> list[tuple[Table, int, Level]]:
    return [(table, tau, level) for table, tau in questions() for level in table.levels]


def answers_of(table: Table, tau: int, level: Level) -> Answers:
    return Answers.of(table, level, tau or None)


def bounds(answers: Answers, sensitivity: Sensitivity, relation: Neighbours) -> tuple[int, int]:
    return answers.l2_squared(sensitivity, relation), answers.l1(sensitivity, relation)


def all_at_most(found: tuple[int, int], bound: tuple[int, int]) -> bool:
    return found[0] <= bound[0] and found[1] <= bound[1]


def test_unbounded_pairs_attain_the_tight_bound_and_never_exceed_it() -> None:
    """One address changes in any way: 211 contents each side, every table, tau and level."""
    assert len(contents()) == 1 + 70 * 3
    for table, tau, level in asked():
        answers = answers_of(table, tau, level)
        found = worst(differences(vectors(HERE, table, tau, level)))
        assert found == bounds(answers, Sensitivity.TIGHT, Neighbours.UNBOUNDED), (table.name, tau, level)
        assert all_at_most(found, bounds(answers, Sensitivity.PAPER, Neighbours.UNBOUNDED))


def test_bounded_pairs_attain_the_tight_bound_and_never_exceed_it() -> None:
    """Two addresses of one state change in any way."""
    for table, tau, level in asked():
        answers = answers_of(table, tau, level)
        one, other = (differences(vectors(place, table, tau, level)) for place in (HERE, NEXT_DOOR))
        found = worst(one, other)
        assert found == bounds(answers, Sensitivity.TIGHT, Neighbours.BOUNDED), (table.name, tau, level)
        assert all_at_most(found, bounds(answers, Sensitivity.PAPER, Neighbours.BOUNDED))


def test_two_addresses_of_different_states_change_less_at_state_level() -> None:
    for table, tau, level in asked():
        one, other = (differences(vectors(place, table, tau, level)) for place in (HERE, ELSEWHERE))
        found = worst(one, other)
        answers = answers_of(table, tau, level)
        if level.geography is Geography.USA:
            assert found == bounds(answers, Sensitivity.TIGHT, Neighbours.BOUNDED)
        else:
            single = bounds(answers, Sensitivity.TIGHT, Neighbours.UNBOUNDED)
            assert found == (2 * single[0], 2 * single[1])


def test_two_addresses_count_as_the_sum_of_each() -> None:
    """The first step of the proof, on the production path: no address decides what another counts."""
    few = contents()[:: len(contents()) // 12]
    for first in few:
        for second in few:
            both = count([Address(*HERE, *first), Address(*NEXT_DOOR, *second)])
            here, there = count([Address(*HERE, *first)]), count([Address(*NEXT_DOOR, *second)])
            for key, cube in both.items():
                assert np.array_equal(cube, here[key] + there[key]), key


@pytest.mark.parametrize("mode", list(Truncation))
def test_no_address_ever_counts_with_more_than_tau_rows(mode: Truncation) -> None:
    for held in contents():
        for (_, tau), cube in count([Address(*HERE, *held)], mode).items():
            assert cube.sum() <= max(tau, 1)


# Neighbours that differ in one person, the unit derived from the persons that live there.

SPOUSE: Person = (38, 1, 1, 21)
OTHER_HOUSEHOLDER: Person = (40, 2, 2, 20)


def derived_unit(persons: tuple[Person, ...]) -> tuple[Unit, ...]:
    """A unit as a function of its persons: householder's race and origin, type from relationships."""
    heads = [person for person in persons if person[3] == 20]
    if len(heads) != 1:
        return (VACANT,)
    _, origin, race, _ = heads[0]
    spouse = any(person[3] == 21 for person in persons)
    own = any(person[3] in CHILDREN and person[0] < 18 for person in persons)
    if spouse:
        return ((origin, race, 1, 1, 1 if own else 2, 1),)
    if own:
        return ((origin, race, 1, 2, 10, 5),)
    alone = len(persons) == 1
    return ((origin, race, 1, 4 if alone else 5, 9 if alone else 12, 5),)


@lru_cache(maxsize=1)
def persons_worlds() -> tuple[dict[tuple[Person, ...], int], dict[Question, NDArray[np.int64]]]:
    menu = (HOUSEHOLDER, OTHER_HOUSEHOLDER, SPOUSE, CHILD, OTHER_CHILD)
    households = [
        people
        for size in range(max(TAUS) + 4)
        for people in combinations_with_replacement(sorted(menu), size)
        if sum(person[3] == 20 for person in people) <= 1
    ]
    worlds = [count([Address(*HERE, people, derived_unit(people))]) for people in households]
    stacked = {key: np.stack([world[key] for world in worlds]) for key in worlds[0]}
    return {people: number for number, people in enumerate(households)}, stacked


def test_one_person_more_or_less_stays_within_the_tight_bound_and_attains_it_in_most_tables() -> None:
    """What 'one person' means in the paper: the person, and the household it turns into another."""
    place, cubes = persons_worlds()
    pairs = [
        (number, place[smaller])
        for people, number in place.items()
        for left_out in range(len(people))
        if (smaller := people[:left_out] + people[left_out + 1 :]) in place
    ]
    larger, smaller_ones = np.array(pairs).T
    attained = set()
    for table, tau, level in asked():
        answers = answers_of(table, tau, level)
        one = np.stack([level_counts(cube, level).ravel() for cube in cubes[table.name, tau]])
        found = worst(one[larger] - one[smaller_ones])
        bound = bounds(answers, Sensitivity.TIGHT, Neighbours.UNBOUNDED)
        assert all_at_most(found, bound)
        if found == bound:
            attained.add((table.name, level.name))
    assert {("PH2", "usa_*"), ("PH3", "state_A-G"), ("PH6", "state_*")} <= attained
    assert not any(name == "PH7" for name, _ in attained), "tenure is not made of persons"


# What breaks the assumption, and is therefore refused or built otherwise.


def test_units_that_share_a_key_break_the_bound_and_are_refused() -> None:
    """k unit rows of one address change together: k sqrt(2); persons join each of them."""
    twice = [Address(*HERE, (CHILD,), (unit, unit)) for unit in (MARRIED, FATHER)]
    for name, tau, bound in (("PH8_denom", 0, 2), ("PH2", 1, 2)):
        before, after = (count([world])[name, tau] for world in twice)
        assert ((after - before) ** 2).sum() == 4 * bound
    findings = check_keys(inputs(twice[:1]))
    assert {(found.file, found.field) for found in findings} == {("units.csv", "MAFID")}
    assert all("more than once" in found.rule for found in findings)


def test_places_that_share_a_key_are_refused() -> None:
    world = [Address(*HERE, (CHILD,), (MARRIED,)), Address(*HERE)]
    assert any(found.file == "geo.csv" for found in check_keys(inputs(world)))


def test_a_selection_that_looks_at_other_addresses_breaks_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant draws who is kept from one sequence over all rows, as a generator would."""
    genuine: Callable[..., NDArray[np.bool_]] = counting.select

    def sequential(mafid, columns, tau, *, mode, key):  # type: ignore[no-untyped-def]
        shifted = (len(mafid)).to_bytes(32, "little")
        return genuine(mafid, columns, tau, mode=mode, key=shifted)

    others = [
        Address(200_000_000 + i, 1, (HOUSEHOLDER, CHILD, LODGER, SPOUSE), (MARRIED,)) for i in range(40)
    ]

    def change() -> int:
        answers = [
            count([*others, Address(*HERE, (HOUSEHOLDER,) * size, (MARRIED,))])["PH1_num", 2]
            for size in range(3, 9)
        ]
        return max(int(((after - before) ** 2).sum()) for after in answers for before in answers)

    assert change() <= 2 * 2**2
    monkeypatch.setattr(counting, "select", sequential)
    assert change() > 2 * 2**2
