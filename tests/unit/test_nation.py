"""The synthetic nation: repeatable part by part, shaped as it says, and readable without a warning."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.dataset as ds
import pytest

from opendas.demo.land import NATION
from opendas.demo.nation import (
    NationFiles,
    NationPlan,
    counties_of,
    make_county,
    make_state_land,
    plan_nation,
    write_nation,
)
from opendas.errors import ConfigError
from opendas.geography.recipe import PRODUCTION_AIAN, in_ranges
from opendas.runs.context.run import load


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, NationFiles]:
    folder = tmp_path_factory.mktemp("nation")
    return folder, write_nation(folder, 3000, 5, 3)


def test_the_same_numbers_give_the_same_files(small: tuple[Path, NationFiles], tmp_path: Path) -> None:
    folder, made = small
    again = write_nation(tmp_path / "again", 3000, 5, 3)
    assert contents(tmp_path / "again") == contents(folder)
    assert again.people == made.people
    write_nation(tmp_path / "other", 3000, 6, 3)
    assert contents(tmp_path / "other").keys() != contents(folder).keys() or (
        contents(tmp_path / "other") != contents(folder)
    )


def test_a_part_alone_is_the_part_of_the_whole(small: tuple[Path, NationFiles], tmp_path: Path) -> None:
    folder, made = small
    whole = {name: data for name, data in contents(folder).items() if "state=" in name}
    parts: dict[str, bytes] = {}
    people = 0
    for code in ("03", "01", "02"):
        part = write_nation(tmp_path / code, 3000, 5, 3, only=[code])
        people += part.people
        found = {name: data for name, data in contents(tmp_path / code).items() if "state=" in name}
        assert found
        assert all(f"state={code}" in name for name in found)
        parts |= found
    assert parts == whole
    assert people == made.people
    frames = [ds.dataset(tmp_path / code / "frame.parquet").to_table() for code in ("01", "02", "03")]
    rows = [row for frame in frames for row in frame.to_pylist()]
    assert rows == ds.dataset(folder / "frame.parquet").to_table().to_pylist()


def test_it_is_a_partitioned_data_set_that_others_read(small: tuple[Path, NationFiles]) -> None:
    folder, made = small
    for name, total in (("persons", made.people), ("units", made.housing_units)):
        table = ds.dataset(folder / name, format="parquet", partitioning="hive").to_table()
        assert sum(table["count"].to_pylist()) == total
        states = {f"{state:02d}" for state in set(table["state"].to_pylist())}
        assert states == {code[:2] for code in table["GEOID"].to_pylist()} == {"01", "02", "03"}


def land_of(plan: NationPlan) -> list[tuple[bool, np.ndarray, np.ndarray]]:
    """Return (divided, blocks, aianhh) of each state."""
    found = []
    for state in plan.states:
        land = make_state_land(plan, state.number)
        found.append((state.reservations, land.geocodes, land.entities["aianhh"]))
    return found


def test_reservations_divide_the_states_that_the_plan_says() -> None:
    plan = plan_nation(51_000)
    parts = sum(1 + state.reservations for state in plan.states)
    assert (len(plan.states), plan.blocks, parts) == (51, 51_000, 88)
    owners: dict[bytes, int] = {}
    for number, (divided, blocks, codes) in enumerate(land_of(plan)):
        inside = in_ranges(codes, PRODUCTION_AIAN)
        assert inside.any() == divided
        assert not inside.all()
        assert len(blocks) == plan.states[number].blocks
        for code in set(codes[inside].tolist()):
            assert owners.setdefault(code, number) == number


@pytest.mark.parametrize("product", ["persons", "units"])
def test_the_spines_have_their_parts_and_nothing_is_wrong(
    small: tuple[Path, NationFiles], product: str
) -> None:
    folder, made = small
    run = load(folder / f"{product}.toml", strict=True)
    data = run.read()
    assert (data.stamps, data.declared, data.findings) == ((), (), ())
    assert data.histogram.total() == (made.people if product == "persons" else made.housing_units)
    assert len(data.frame) == made.leaves
    plan = plan_nation(3000, 5, 3)
    assert run.spine.names == ("us", "state", "county", "tract", "block_group", "block")
    assert len(run.spine.levels[1]) == sum(1 + state.reservations for state in plan.states)
    standard = load(folder / f"{product}-standard.toml")
    assert [len(level) for level in standard.spine.levels] == [
        1, 3, made.counties, *(len(np.unique(data.frame.geocodes.astype(f"S{k}"))) for k in (11, 12)),
        made.leaves,
    ]  # fmt: skip


def test_sizes_are_those_of_the_real_nation_in_proportion() -> None:
    plan = plan_nation(400_000, 1)
    sizes = np.array([state.blocks for state in plan.states])
    assert len(sizes) == 51
    assert sizes.sum() == 400_000
    assert sizes.max() > 4 * np.median(sizes)
    tracts, groups, counties = 0, 0, []
    for _, blocks, _ in land_of(plan):
        assert bool(np.all(blocks[1:] > blocks[:-1]))
        tracts += len(np.unique(blocks.astype("S11")))
        groups += len(np.unique(blocks.astype("S12")))
        counties += np.unique(blocks.astype("S5"), return_counts=True)[1].tolist()
    assert 0.8 < tracts / (84_000 * 400_000 / 8_130_000) < 1.2
    assert 0.8 < groups / (240_000 * 400_000 / 8_130_000) < 1.2
    assert max(counties) > 8 * np.mean(counties)
    assert np.median(counties) < 0.6 * np.mean(counties)


def test_people_live_in_all_kinds_of_quarters_and_many_blocks_are_empty() -> None:
    plan = plan_nation(40_000, 2, 4)
    people = np.zeros(8, dtype=np.int64)
    empty = blocks = 0
    for state in plan.states:
        land = make_state_land(plan, state.number)
        for _, start, stop in counties_of(land):
            made = make_county(plan, state.number, land, start, stop)
            people += made.homes.people.sum(axis=0)
            empty += int(((made.homes.housing == 0) & ~made.homes.facilities.any(axis=1)).sum())
            blocks += stop - start
            assert made.entries[2].sum() == made.homes.people.sum()
    assert blocks == 40_000
    assert people.min() > 0
    assert 33 < people.sum() / blocks < 50
    assert 0.25 < empty / blocks < 0.31


def test_a_reservation_has_a_home() -> None:
    """A state whose reservations were all empty would not be divided, whatever the plan says."""
    for seed in range(12):
        plan = plan_nation(400, seed, 4)
        for state in plan.states:
            land = make_state_land(plan, state.number)
            found = False
            for _, start, stop in counties_of(land):
                made = make_county(plan, state.number, land, start, stop)
                lived = (made.homes.housing > 0) | made.homes.facilities.any(axis=1)
                found |= bool((in_ranges(made.land.entities["aianhh"], PRODUCTION_AIAN) & lived).any())
            assert found == state.reservations


@pytest.mark.parametrize(
    ("blocks", "seed", "states", "people"),
    [(99, 1, 1, 41.0), (10**8, 1, 1, 41.0), (1000, -1, 1, 41.0), (1000, 1, 0, 41.0), (1000, 1, 21, 41.0),
     (10_000, 1, 52, 41.0), (1000, 1, 1, 0.1)],
)  # fmt: skip
def test_sizes_that_make_no_nation_are_refused(blocks: int, seed: int, states: int, people: float) -> None:
    with pytest.raises(ConfigError, match="synthetic nation"):
        plan_nation(blocks, seed, states, people=people)


def test_a_state_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'77'"):
        write_nation(tmp_path, 3000, 5, 3, only=["77"])
    assert not list(tmp_path.iterdir())


def test_progress_counts_the_blocks(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    write_nation(tmp_path, 300, 5, 2, density=NATION, progress=lambda *report: told.append(report))
    assert told[-1] == ("making the nation", 300, 300)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
