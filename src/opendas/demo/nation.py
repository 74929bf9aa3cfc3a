"""Makes a nation of any size and writes it county by county; a program of its own beside the synthetic state.

The generator of random numbers of every state and county starts from its address: any state can be made
alone, on any machine, and is the same as in the whole. The largest thing in memory is the land of one state
and the people of one county. Ordinary numpy makes the data up; it protects none.

Axes: ``s`` states.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from opendas.arrays import Codes, Ints
from opendas.custody.folders import write_atomic
from opendas.demo.generator import DemoState, frame_table, persons_table, run_file, units_table
from opendas.demo.land import NATION, Density, Land, make_land
from opendas.demo.people import Homes, draw_people, make_homes
from opendas.errors import ConfigError
from opendas.files.storage.parquet import ParquetSink, parquet_sink, write_parquet

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]

LEAST_BLOCKS = 100
MOST_BLOCKS = 10_000_000
MOST_STATES = 51

_BLOCKS_OF_A_STATE = 1000  # a nation that does not say has a state for that many blocks
_LEAST_STATE = 50
_SKEW = 0.9  # standard deviation of the logarithm of states' sizes
_WITH_RESERVATIONS = 37 / 51  # states that the AIAN spine divides
_RESERVATIONS = 92  # codes that a state has for areas of the AIAN branch, from 0001 to 4692
_STATISTICAL = 9500  # first code of areas outside that branch
_EMPTY = 0.28
_PEOPLE = 31.2  # people a block in the state that make_homes draws by default


@dataclass(frozen=True, slots=True)
class StatePlan:
    """One state of a nation that is to be made."""

    number: int  # from 0
    code: str  # two digits. Made codes: the digits of a real state say nothing about it.
    blocks: int  # the empty ones included
    reservations: bool  # whether it has areas of the AIAN branch, so that the AIAN spine divides it


@dataclass(frozen=True, slots=True)
class NationPlan:
    """A nation that is to be made: all that its parts need to know of the whole."""

    seed: int
    crowding: float  # housing units, relative to those that :func:`opendas.demo.make_state` draws
    states: tuple[StatePlan, ...]
    density: Density

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return sum(state.blocks for state in self.states)


@dataclass(frozen=True, slots=True)
class NationFiles:
    """What was written."""

    runs: tuple[Path, ...]  # run files: persons and units on the AIAN spine, then both on the standard spine
    states: int
    counties: int
    tracts: int
    block_groups: int
    blocks: int
    leaves: int  # blocks with housing units or group quarters
    people: int
    housing_units: int


def plan_nation(
    blocks: int,
    seed: int = 2020,
    states: int | None = None,
    *,
    people: float = 41.0,
    density: Density | None = None,
) -> NationPlan:
    """Divide a nation into states of uneven size.

    - `blocks`: the empty ones included, nearly three in ten. The real nation has 8.1 million, of which 5.9
      million have homes.
    - `states`: by default one for every thousand blocks, at most 51.
    - `people`: average number of people in a block.
    - `density`: by default that of the real nation.
    """
    if not LEAST_BLOCKS <= blocks <= MOST_BLOCKS:
        raise ConfigError(f"a synthetic nation has {LEAST_BLOCKS} to {MOST_BLOCKS:,} blocks, not {blocks}.")
    most = min(MOST_STATES, blocks // _LEAST_STATE)
    states = max(1, min(most, blocks // _BLOCKS_OF_A_STATE)) if states is None else states
    if not 1 <= states <= most:
        raise ConfigError(f"a synthetic nation of {blocks} blocks has from 1 to {most} states, not {states}.")
    if seed < 0:
        raise ConfigError("the seed of the synthetic nation must not be negative.")
    if not 1.0 <= people <= 1000.0:
        raise ConfigError("the synthetic nation must have from 1 to 1000 people a block.")
    rng = np.random.default_rng([seed, blocks, states])
    shares = rng.lognormal(0.0, _SKEW, states)
    ends = np.round(np.cumsum(shares) / shares.sum() * (blocks - _LEAST_STATE * states)).astype(np.int64)
    sizes = np.diff(ends, prepend=0) + _LEAST_STATE
    divided = np.zeros(states, dtype=np.bool_)
    divided[rng.permutation(states)[: max(1, round(states * _WITH_RESERVATIONS))]] = True
    return NationPlan(
        seed,
        people / _PEOPLE,
        tuple(
            StatePlan(k, f"{k + 1:02d}", size, inside)
            for k, (size, inside) in enumerate(zip(sizes.tolist(), divided.tolist(), strict=True))
        ),
        density or NATION,
    )


def make_state_land(plan: NationPlan, number: int) -> Land:
    """Return the blocks and areas of one state."""
    state = plan.states[number]
    rng = np.random.default_rng([plan.seed, 1, number, state.blocks])
    land = make_land(state.blocks, rng, plan.density, state.code)
    codes = _reservations(land.entities["aianhh"], state, rng)
    return Land(land.geocodes, land.group, land.entities | {"aianhh": codes})


def _reservations(codes: Codes, state: StatePlan, rng: np.random.Generator) -> Codes:
    """Number the areas of a state: half of them in the AIAN branch where it has any, all others outside.

    Codes are the nation's, and each state has its own: no area lies in two states.
    """
    b = len(codes)
    found, area = np.unique(codes, return_inverse=True)
    area = area - int(found[0] == b"")  # -1 outside all areas
    areas = int(area.max()) + 1
    if areas == 0:  # a small state gets one, a twentieth of its land
        width = max(1, b // 20)
        start = int(rng.integers(0, b - width + 1))
        area, areas = np.full(b, -1), 1
        area[start : start + width] = 0
    branch = state.reservations & ((np.arange(areas) % 2 == 0) | (rng.random(areas) < 0.3))
    own = np.arange(areas)
    number = np.where(
        branch,
        1 + state.number * _RESERVATIONS + own % _RESERVATIONS,
        _STATISTICAL + (state.number * 9 + own % 9) % 499,
    )
    text = np.array([b"", *(b"%04d" % code for code in number.tolist())], dtype="S4")
    return np.asarray(text[area + 1])


def make_county(plan: NationPlan, number: int, land: Land, start: int, stop: int) -> DemoState:
    """Return the blocks ``start:stop`` of a state, a county, with its people.

    `start`, `stop`: blocks of the county.
    """
    rng = np.random.default_rng([plan.seed, 2, number, int(land.geocodes[start][2:5])])
    group = land.group[start:stop] - land.group[start]
    own = Land(
        land.geocodes[start:stop],
        group,
        {category: codes[start:stop] for category, codes in land.entities.items()},
    )
    homes = make_homes(group, rng, empty=_EMPTY, crowding=plan.crowding)
    if number == 0 and start == 0 and not homes.housing.any():
        homes.housing[0] = 1  # a nation has a home at least
    _keep_reservations(plan.states[number], own, homes)
    return DemoState(own, homes, draw_people(homes, group, rng))


def _keep_reservations(state: StatePlan, land: Land, homes: Homes) -> None:
    """Put a vacant home on the reservations of a county where all their blocks are empty.

    Without one in the state they would be no leaves, and the AIAN spine would not divide it.
    """
    if not state.reservations:
        return
    codes = land.entities["aianhh"]
    inside = np.flatnonzero((codes != b"") & (codes < b"%04d" % _STATISTICAL))
    if len(inside) and not (homes.housing[inside].any() or homes.facilities[inside].any()):
        homes.housing[inside[0]] = 1


def counties_of(land: Land) -> Iterator[tuple[str, int, int]]:
    """Yield (three digits, first block, block behind the last) of the counties of a state."""
    codes = land.geocodes.astype("S5")
    starts = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(codes)], strict=True):
        yield codes[start][2:].decode(), start, stop


def write_nation(
    folder: Path | str,
    blocks: int,
    seed: int = 2020,
    states: int | None = None,
    *,
    people: float = 41.0,
    density: Density | None = None,
    only: Collection[str] | None = None,
    progress: Progress | None = None,
) -> NationFiles:
    """Generate a nation and write it into `folder`, county by county.

    Writes ``persons/state=SS/county=CCC/part-0.parquet`` and ``units/...`` alike (input of the ``histogram``
    reader), ``frame.parquet`` (every block with units and areas, one row group a county), and the run files
    ``persons.toml`` and ``units.toml`` on the AIAN spine, ``persons-standard.toml`` and
    ``units-standard.toml`` on the standard one.

    - `blocks`, `seed`, `states`, `people`, `density`: see :func:`plan_nation`.
    - `only`: codes of the states to write; their files are those of the whole, and the frame holds their
      blocks.
    - `progress`: called with ``(stage, blocks done, blocks in all)``.

    Raises `ConfigError` if the size is not usable, or there is no state of a code; `EnvironmentFailure` if
    the folder cannot be written.
    """
    folder = Path(folder)
    plan = plan_nation(blocks, seed, states, people=people, density=density)
    chosen = [state for state in plan.states if only is None or state.code in only]
    unknown = sorted(set(only or ()) - {state.code for state in plan.states})
    if unknown or not chosen:
        raise ConfigError(f"the synthetic nation has no state {unknown[0] if unknown else '...'!r}.")
    total = sum(state.blocks for state in chosen)
    numbers = np.zeros(7, dtype=np.int64)
    with parquet_sink(folder / "frame.parquet", _frame_schema()) as frame:
        for state in chosen:
            land = make_state_land(plan, state.number)
            for county, start, stop in counties_of(land):
                made = make_county(plan, state.number, land, start, stop)
                _write_county(folder, state.code, county, made, frame)
                numbers += _count(made)
                if progress is not None:
                    progress("making the nation", int(numbers[3]), total)
    runs = tuple(
        _write_run(folder, product, spine, plan)
        for spine in ("aian", "standard")
        for product in ("persons", "units")
    )
    written = NationFiles(runs, len(chosen), *numbers.tolist())
    logger.info(
        "generated a synthetic nation of %d blocks and %d people in %s", blocks, written.people, folder
    )
    return written


def _write_county(folder: Path, state: str, county: str, made: DemoState, frame: ParquetSink) -> None:
    frame.write(frame_table(made).cast(frame.schema))
    for name, table in (("persons", persons_table(made)), ("units", units_table(made))):
        write_parquet(folder / name / f"state={state}" / f"county={county}" / "part-0.parquet", table)


def _count(made: DemoState) -> Ints:
    """Return the numbers of one county, in the order of :class:`NationFiles`."""
    homes = made.homes
    tracts = len(np.unique(made.land.geocodes.astype("S11")))
    leaves = (homes.housing > 0) | homes.facilities.any(axis=1)
    people = made.entries[2].sum()
    numbers = (1, tracts, made.land.group[-1] + 1, len(leaves), leaves.sum(), people, homes.housing.sum())
    return np.array(numbers, dtype=np.int64)


def _frame_schema() -> pa.Schema:
    """Return the schema of the frame, from the smallest land there is."""
    rng = np.random.default_rng(0)
    land = make_land(LEAST_BLOCKS, rng)
    homes = make_homes(land.group, rng)
    return frame_table(DemoState(land, homes, draw_people(homes, land.group, rng))).schema


def _write_run(folder: Path, product: str, spine: str, plan: NationPlan) -> Path:
    path = folder / (f"{product}.toml" if spine == "aian" else f"{product}-{spine}.toml")
    made = f"synthetic nation: {plan.blocks} blocks, {len(plan.states)} states, seed {plan.seed}"
    text = run_file(
        product,
        made=made,
        path=product,
        root="us",
        spine=spine,
        preset=f"us2020-{product}",
        note="the production setting of 2020",
    )
    write_atomic(path, text.encode())
    return path
