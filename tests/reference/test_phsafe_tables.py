"""Every table against rows counted one at a time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from reference.phsafe_rows import Key, count, without_cell
from support.households import TABLES, World, random_world, write_world

from opendas.phsafe.counting import count_cube, counted_rows, level_counts
from opendas.phsafe.inputs.levels import regions
from opendas.phsafe.inputs.linking import Linked, link
from opendas.phsafe.inputs.read_csv import read_csv
from opendas.phsafe.tables import find_table

STATES = ["06", "44", "56"]


def read(world: World, folder: Path) -> Linked:
    return link(read_csv(write_world(folder, world), STATES), STATES)


def counted(name: str, linked: Linked) -> Counter[Key]:
    table = find_table(name)
    assert table is not None
    cube = count_cube(table, counted_rows(table, linked), linked.state, len(STATES))
    found: Counter[Key] = Counter()
    for level in table.levels:
        counts = level_counts(cube, level)
        grid = regions(level.geography, STATES)
        assert counts.shape == (len(grid), len(level.iteration.codes), len(table.cells))
        for at, value in np.ndenumerate(counts):
            region, group, cell = grid[at[0]], level.iteration.codes[at[1]], table.cells[at[2]]
            if value:
                found[region, level.geography.region_type, group, cell] = int(value)
    return found


@pytest.mark.parametrize("any_codes", [False, True], ids=["consistent", "any codes"])
@pytest.mark.parametrize("name", TABLES)
def test_counts_agree_with_the_literal_twin(name: str, any_codes: bool, tmp_path: Path) -> None:
    total = 0
    for seed in range(4):
        # One state of the world lies outside the filter, one state of the filter has no record.
        world = random_world(seed, 150, ("06", "44", "72"), any_codes=any_codes)
        linked = read(world, tmp_path / str(seed))
        expected = count(name, *world, STATES)
        assert counted(name, linked) == expected
        table = find_table(name)
        assert table is not None
        missing = int((table.cell_index(counted_rows(table, linked)) < 0).sum())
        assert missing == without_cell(name, *world, STATES)
        assert any_codes or missing == 0
        total += expected.total()
    assert total > 20


def test_no_person_of_another_state_is_read(tmp_path: Path) -> None:
    world = random_world(9, 40, ("06", "72"))
    linked = read(world, tmp_path)
    inside = {place["MAFID"] for place in world[2] if place["TABBLKST"] == "06"}
    assert {str(mafid) for mafid in linked.persons.mafid} <= inside
