"""What the production plan states of its spine and within official areas, on a synthetic nation."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import opendas as od
from opendas.budget.noise import within_rho
from opendas.demo.nation import write_nation
from opendas.measurement.official_losses import AreaLoss, Areas, official_losses


@pytest.fixture(scope="module")
def nation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nation")
    write_nation(folder, 3000, states=3)
    return folder


def rounded(row: AreaLoss) -> tuple[int, float, float, int | None]:
    return row.areas, round(float(row.largest), 3), round(float(row.median), 3), row.above_spine


def test_official_areas_on_the_spine_of_production(nation: Path) -> None:
    """Of the official block groups, 85 % lose more than the 0.103 of their geolevel on the spine."""
    run = od.load(nation / "persons.toml")
    assert round(float(within_rho(run.budget)["block_group"]), 3) == 0.103
    found = {row.kind: rounded(row) for row in official_losses(run.plan, run.frame)}
    assert found["state"] == (3, 2.491, 2.491, 2)
    assert found["county"] == (6, 2.491, 1.315, 2)
    assert found["tract"] == (31, 2.491, 0.886, 2)
    assert found["block_group"] == (88, 2.491, 0.886, 75)
    assert found["place"] == (8, 1.593, 1.315, None)
    assert found["aianhh"] == (3, 0.886, 0.886, None)


def test_exact_facts_keep_records_where_they_are(nation: Path) -> None:
    """Between inputs with the same totals of states nobody moves from state to state."""
    run = od.load(nation / "persons-standard.toml")
    everywhere = {row.kind: row.largest for row in official_losses(run.plan, run.frame)}
    found = {row.kind: row.largest for row in official_losses(run.plan, run.frame, run.protection)}
    assert found["us"] == found["state"] == everywhere["state"] < everywhere["us"]
    # of one block group, the only block that lies elsewhere has a dormitory and no homes: nobody moves there
    run = od.load(nation / "persons.toml")
    found = {row.kind: row for row in official_losses(run.plan, run.frame, run.protection)}
    assert rounded(found["block_group"]) == (88, 2.491, 0.886, 74)
    # with the number of units of every block exact, none can move
    run = od.load(nation / "units.toml")
    assert {row.largest for row in official_losses(run.plan, run.frame, run.protection)} == {0}


@pytest.mark.parametrize("kind", ["block_group", "place", "vtd"])
def test_every_pair_of_blocks_on_the_spine_of_production(nation: Path, kind: str) -> None:
    """The slow way: geounit by geounit along both paths, for every two blocks of an area."""
    run = od.load(nation / "persons.toml")
    plan, spine = run.plan, run.spine
    geounit, cost = [np.arange(len(spine.leaf))], []
    for level in reversed(spine.levels[1:]):
        geounit.insert(0, level.parent[geounit[0]])
    for number, of_leaf in enumerate(geounit):
        multiples, which = spine.multiples(number)
        own = [plan.levels[number].share * multiple * plan.budget.total / 2 for multiple in multiples]
        cost.append([own[k] for k in which[of_leaf].tolist()])
    above = [of_leaf.tolist() for of_leaf in geounit]
    leaves: dict[bytes, list[int]] = {}
    for leaf, code in enumerate(run.frame.codes(kind)[spine.leaf_order].tolist()):
        leaves.setdefault(code, []).append(leaf)
    leaves.pop(b"", None)
    areas = Areas.of(plan, run.frame.codes(kind))
    for code, k in zip(sorted(leaves), areas.which.tolist(), strict=True):
        some = leaves[code][:: 1 + len(leaves[code]) // 40]  # of a large area, about 40 blocks
        worst = max(
            (
                sum(cost[n][a] + cost[n][b] for n in range(len(cost)) if above[n][a] != above[n][b])
                for a, b in combinations(some, 2)
            ),
            default=0,
        )
        assert worst <= areas.losses[k]
        assert worst == areas.losses[k] or len(some) < len(leaves[code])


def test_official_areas_on_the_official_spine(nation: Path) -> None:
    run = od.load(nation / "persons-standard.toml")
    stated = within_rho(run.budget)
    for row in official_losses(run.plan, run.frame):
        if row.kind in stated:
            assert (row.largest, row.above_spine) == (stated[row.kind], 0)
