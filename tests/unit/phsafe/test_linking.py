"""Joins, canonical order and key checks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.households import random_world, write_world

from opendas.phsafe.inputs.linking import bucket_digests, check_keys, link, sort_inputs
from opendas.phsafe.inputs.read_csv import read_csv
from opendas.phsafe.inputs.records import Inputs, Persons, Places, Units

STATES = ["06", "44"]


def inputs_of(
    persons: list[int], units: list[int], places: list[int], kinds: list[int] | None = None
) -> Inputs:
    n, u, p = len(persons), len(units), len(places)
    return Inputs(
        Persons.of(
            rtype=[3] * n, mafid=persons, qage=range(n), cenhisp=[1] * n, cenrace=[1] * n, relship=[20] * n
        ),
        Units.of(
            rtype=[2] * u,
            mafid=units,
            final_pop=[1] * u,
            npf=[0] * u,
            hhspan=[1] * u,
            hhrace=[1] * u,
            ten=[1] * u,
            hht=[1] * u,
            hht2=[1] * u,
            cplt=[1] * u,
        ),
        Places.of(rtype=kinds or [2] * p, mafid=places, state=[6] * p),
    )


def test_persons_find_their_units_whatever_the_order() -> None:
    linked = link(inputs_of([5, 3, 9, 3], [9, 3, 5], [3, 5, 9]), ["06"])
    assert linked.persons.mafid.tolist() == [3, 3, 5, 9]
    assert linked.units.mafid[linked.home].tolist() == [3, 3, 5, 9]


def test_group_quarters_of_the_geography_and_homeless_keys_join_nothing() -> None:
    linked = link(inputs_of([5, 3, 9, 4], [9, 3, 5], [3, 5, 9], [4, 2, 5]), ["06"])
    assert linked.units.mafid.tolist() == [5]
    assert linked.home.tolist() == [-1, -1, 0, -1]


def test_repeated_units_join_with_everyone_in_the_non_private_mode() -> None:
    linked = link(inputs_of([3, 5], [3, 3, 5], [3, 5]), ["06"])
    assert linked.persons.mafid.tolist() == [3, 3, 5]
    assert linked.home.tolist() == [0, 1, 2]


def test_codes_outside_their_lists_are_sorted_too() -> None:
    inputs = inputs_of([5, 3], [3, 5], [3, 5])
    strange = Inputs(inputs.persons.take(np.array([0, 1])), inputs.units, inputs.places)
    strange.persons.cenrace[:] = -1
    assert sort_inputs(strange).persons.mafid.tolist() == [3, 5]


def test_the_serialisation_does_not_depend_on_the_order_of_rows(tmp_path: Path) -> None:
    world = random_world(4, 40)
    first = read_csv(write_world(tmp_path / "a", world), STATES)
    turned = tuple(list(reversed(rows)) for rows in world)
    second = read_csv(write_world(tmp_path / "b", turned), STATES)  # type: ignore[arg-type]
    assert bucket_digests(first) == bucket_digests(second)
    world[0][0]["QAGE"] = "91"
    changed = read_csv(write_world(tmp_path / "c", world), STATES)
    assert bucket_digests(first) != bucket_digests(changed)


@pytest.mark.parametrize(
    ("persons", "units", "places", "expected"),
    [
        ([3], [3], [3], []),
        ([3], [3, 3], [3], ["units.csv, line 3, field MAFID: the key stands more than once"]),
        ([3], [3], [3, 3], ["geo.csv, line 3, field MAFID: the key stands more than once"]),
        ([3, 4], [3], [3], ["persons.csv, line 3, field MAFID: the key is not in units.csv"]),
        ([3], [3], [3, 7], ["geo.csv, line 3, field MAFID: the key is not in units.csv"]),
    ],
)
def test_keys_are_checked(
    persons: list[int], units: list[int], places: list[int], expected: list[str]
) -> None:
    assert [str(found) for found in check_keys(inputs_of(persons, units, places))] == expected


def test_columns_show_no_values() -> None:
    inputs = inputs_of([123456], [123456], [123456])
    assert "123456" not in repr(inputs) + repr(link(inputs, ["06"]))
