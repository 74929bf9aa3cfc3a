"""The synthetic state: repeatable, consistent with its own frame, and shaped like a population."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import opendas
from opendas.demo import DemoState, make_state, write_demo
from opendas.demo.land import LARGE_STATE, Land, make_land
from opendas.errors import ConfigError
from opendas.geography.partitions import standard_spine
from opendas.readers import ReaderSpec, UnitsSpec, make_reader
from opendas.runs.plan import make_plan
from opendas.schema.pl94 import pl94_persons, pl94_units


@pytest.fixture(scope="module")
def state() -> DemoState:
    return make_state(5000, seed=1)


def test_the_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_demo(tmp_path / name, blocks=300, seed=7)
    write_demo(tmp_path / "c", blocks=300, seed=8)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == ["frame.parquet", "persons.parquet", "persons.toml", "units.parquet", "units.toml"]
    same = {
        name: (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in files
    }
    assert all(same.values())
    assert (tmp_path / "a" / "persons.parquet").read_bytes() != (
        tmp_path / "c" / "persons.parquet"
    ).read_bytes()


@pytest.mark.parametrize("blocks", [50, 300, 5000])
def test_the_readers_take_it_as_what_it_is(tmp_path: Path, blocks: int) -> None:
    made = make_state(blocks, seed=3)
    write_demo(tmp_path, blocks, seed=3)
    frame = tmp_path / "frame.parquet"
    for product, name in ((pl94_persons(), "persons"), (pl94_units(), "units")):
        paths = (tmp_path / f"{name}.parquet",)
        units = UnitsSpec(frame, "GEOID")
        spec = ReaderSpec("histogram", paths, product, geocode="GEOID", frame=frame, units=units, strict=True)
        data = make_reader(spec).read()
        assert (data.stamps, data.declared) == ((), ())
        # People live in all blocks of the smallest state, which is a sign of a frame made from the records.
        inhabited = name == "persons" and bool((data.histogram.row_totals() > 0).all())
        assert [found.field for found in data.findings] == ["block"] * inhabited
        expected = made.homes.people.sum() if name == "persons" else made.homes.housing.sum()
        assert data.histogram.total() == expected
    assert len(data.frame) == int(((made.homes.housing > 0) | made.homes.facilities.any(axis=1)).sum())
    assert standard_spine(data.frame).names[0] == "state"


def test_geography_is_official_in_form_and_areas_cross_block_groups(state: DemoState) -> None:
    codes = state.land.geocodes
    assert codes.dtype == np.dtype("S15")
    assert len(np.unique(codes)) == len(codes) == 5000
    assert np.all(codes[1:] > codes[:-1])
    groups = codes.astype("S12")
    for category in ("cousub", "place", "vtd"):
        pairs = set(zip(groups.tolist(), state.land.entities[category].tolist(), strict=True))
        assert len(pairs) > 1.1 * len(np.unique(groups)), category
    assert set(np.strings.str_len(state.land.entities["cousub"])) == {10}
    assert set(np.strings.str_len(state.land.entities["place"])) == {0, 7}


def test_people_are_shaped_like_a_population(state: DemoState) -> None:
    block, cell, count = state.entries
    shape = np.zeros(2016, dtype=np.int64)
    np.add.at(shape, cell, count)
    shape4 = shape.reshape(8, 2, 2, 63)
    total = shape4.sum()
    assert 0.15 < shape4[:, 0].sum() / total < 0.35
    assert 0.05 < shape4[:, :, 1].sum() / total < 0.4
    assert 0.01 < shape4[..., 6:].sum() / total < 0.15
    assert 0.005 < shape4[1:].sum() / total < 0.1
    assert shape4[3, 0].sum() == 0
    people = np.bincount(block, count, minlength=5000)
    assert 0.2 < (people == 0).mean() < 0.4
    assert people.max() > 20 * np.median(people[people > 0])
    lower = state.homes.facilities
    assert np.all((state.homes.people[:, 1:] >= lower) & ((lower > 0) | (state.homes.people[:, 1:] == 0)))
    assert np.all((state.homes.people[:, 0] > 0) == (state.homes.occupied > 0))


def test_sizes_that_make_no_state_are_refused() -> None:
    for blocks, seed in ((10, 1), (10**8, 1), (100, -1)):
        with pytest.raises(ConfigError):
            make_state(blocks, seed)


@pytest.mark.parametrize("density", [None, LARGE_STATE], ids=["plain", "large state"])
def test_large_states_have_codes_of_one_width_that_tell_areas_apart(density) -> None:
    land = make_land(400_000, np.random.default_rng(4), density)
    assert bool(np.all(land.geocodes[1:] > land.geocodes[:-1]))
    assert set(np.strings.str_len(land.geocodes)) == {15}
    assert set(np.strings.str_len(land.entities["vtd"])) == {11}
    assert set(np.strings.str_len(land.entities["aianhh"])) == {0, 4}
    assert bool(np.char.isdigit(land.entities["cousub"]).all())
    counties = len(np.unique(land.geocodes.astype("S5")))
    tracts, sizes = np.unique(land.geocodes.astype("S11"), return_counts=True)
    assert 20 < len(tracts) / counties < 40
    assert sizes.max() > 3 * np.median(sizes)
    if density is None:
        assert len(np.unique(land.entities["vtd"])) > 400_000 // 60


def test_ragged_borders_change_the_code_of_an_area_several_times() -> None:
    def changes(land: Land) -> float:
        codes = land.entities["vtd"]
        return float((codes[1:] != codes[:-1]).sum()) / len(np.unique(codes))

    land = make_land(100_000, np.random.default_rng(4), LARGE_STATE)
    assert 5 < changes(land) < 10
    assert changes(make_land(100_000, np.random.default_rng(4))) == pytest.approx(1, abs=0.01)


def test_a_preset_made_for_another_estimator_is_named(tmp_path: Path) -> None:
    write_demo(tmp_path, blocks=150, seed=3)
    text = re.sub(r"\[budget\][^[]*", "", (tmp_path / "persons.toml").read_text())

    def warned(preset: str, estimator: str) -> list[str]:
        path = tmp_path / f"{preset}-{estimator}.toml"
        run = text.replace("[run]", f'[run]\nestimator = "{estimator}"', 1)
        path.write_text(f'{run}\n[budget]\npreset = "{preset}"\n')
        return [warning for warning in make_plan(opendas.load(path)).warnings if "preset" in warning]

    for preset in ("opendas2026-persons", "opendas2026-blocks-persons"):
        assert warned(preset, "informed") == []
        (warning,) = warned(preset, "topdown")
        assert all(word in warning for word in (preset, "'informed'", "'topdown'"))
    assert warned("pr2020-persons", "informed") == warned("pr2020-persons", "topdown") == []
