"""Makes a state and writes it as input: two tables, a frame and two run files.

The generator of random numbers here is ordinary numpy: it generates data and protects none.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opendas.arrays import Ints
from opendas.custody.folders import write_atomic
from opendas.demo.land import Land, make_land
from opendas.demo.people import Homes, draw_people, make_homes
from opendas.errors import ConfigError
from opendas.files.storage.parquet import bytes_column, text_column, write_parquet
from opendas.geography.frame import CENSUS_PREFIX, GQ_COLUMNS, official_geolevels
from opendas.schema.pl94 import pl94_persons

logger = logging.getLogger(__name__)

LEAST_BLOCKS = 50
MOST_BLOCKS = 5_000_000


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DemoState:
    """A synthetic state."""

    land: Land
    homes: Homes
    # (block, cell of the persons product, count), ascending.
    entries: tuple[Ints, npt.NDArray[np.int32], Ints]


def make_state(blocks: int = 5000, seed: int = 2020) -> DemoState:
    """Make a state up.

    - `blocks`: number of blocks, the empty ones included; about 20 people each.
    - `seed`: the same seed, size and numpy version give the same state.
    """
    if not LEAST_BLOCKS <= blocks <= MOST_BLOCKS:
        raise ConfigError(f"a synthetic state has {LEAST_BLOCKS} to {MOST_BLOCKS} blocks, not {blocks}.")
    if seed < 0:
        raise ConfigError("the seed of the synthetic state must not be negative.")
    rng = np.random.default_rng([seed, blocks])
    land = make_land(blocks, rng)
    homes = make_homes(land.group, rng)
    return DemoState(land, homes, draw_people(homes, land.group, rng))


def write_demo(folder: Path | str, blocks: int = 5000, seed: int = 2020) -> tuple[Path, Path]:
    """Generate a synthetic state and write it into `folder`.

    Writes ``persons.parquet`` and ``units.parquet`` (input of the ``histogram`` reader), ``frame.parquet``
    (every block, with units and areas), ``persons.toml`` and ``units.toml``.

    Returns the run files of persons and units.

    Raises `ConfigError` if the size is not usable; `EnvironmentFailure` if the folder cannot be written.
    """
    folder = Path(folder)
    state = make_state(blocks, seed)
    write_parquet(folder / "frame.parquet", frame_table(state))
    write_parquet(folder / "persons.parquet", persons_table(state))
    write_parquet(folder / "units.parquet", units_table(state))
    runs = []
    for name in ("persons", "units"):
        runs.append(folder / f"{name}.toml")
        made = f"synthetic state: {blocks} blocks, seed {seed}"
        note = "the production setting of 2020 where the state is the topmost level"
        text = run_file(name, made=made, path=f"{name}.parquet", preset=f"pr2020-{name}", note=note)
        write_atomic(runs[-1], text.encode())
    logger.info(
        "generated a synthetic state of %d blocks and %d people in %s",
        blocks,
        int(state.homes.people.sum()),
        folder,
    )
    return runs[0], runs[1]


def frame_table(state: DemoState) -> pa.Table:
    """Return every block with its units and areas."""
    columns = {"GEOID": bytes_column(state.land.geocodes), "hu": pa.array(state.homes.housing)}
    columns |= {name: pa.array(state.homes.facilities[:, k]) for k, name in enumerate(GQ_COLUMNS)}
    columns |= {name: bytes_column(codes) for name, codes in state.land.entities.items()}
    return pa.table(columns)


def persons_table(state: DemoState) -> pa.Table:
    """Return the input of a run of persons, one row a block and cell."""
    block, cell, count = state.entries
    schema = pl94_persons().schema
    columns = {"GEOID": text_column(block, bytes_column(state.land.geocodes))}
    for name, codes in zip(schema.names, schema.codes(cell), strict=True):
        columns[name] = pa.array(codes.astype(np.int8))
    return pa.table(columns | {"count": pa.array(count)})


def units_table(state: DemoState) -> pa.Table:
    """Return the input of a run of units, one row a block and occupancy."""
    counts = np.stack([state.homes.housing - state.homes.occupied, state.homes.occupied], axis=1)
    block, occupancy = np.nonzero(counts)
    return pa.table(
        {
            "GEOID": text_column(block, bytes_column(state.land.geocodes)),
            "occupancy": text_column(occupancy, ["vacant", "occupied"]),
            "count": pa.array(counts[block, occupancy]),
        }
    )


def level_lines(root: str) -> str:
    """Return the official levels from a root as a run file lists them: by characters of the geocode."""
    names = official_geolevels(root, "block")
    return "\n".join(f'    {{ name = "{name}", prefix = {CENSUS_PREFIX[name]} }},' for name in names)


def run_file(
    product: str,
    *,
    made: str,
    path: str,
    root: str = "state",
    spine: str = "standard",
    preset: str,
    note: str,
) -> str:
    """Return the text of a run file for the ``histogram`` reader.

    - `product`, ``"persons"`` or ``"units"``.
    - `made`: what was made, for the first line.
    - `path`: of the counts, beside the run file; so is ``frame.parquet``.
    - `root`: topmost geolevel.
    """
    label = {"persons": "People", "units": "Housing units"}[product]
    return f"""\
# {label} of a {made}. No real data.

[run]
product = "pl94-{product}"
mechanism = "discrete-gaussian"
neighbours = "bounded"

[input]
reader = "histogram"
path = "{path}"
geocode = "GEOID"
count = "count"
units = {{ path = "frame.parquet", geocode = "GEOID" }}   # hu, gq1 ... gq7

[geography]
spine = "{spine}"
frame = "frame.parquet"     # every block, the empty ones included
levels = [                  # the official levels, by characters of the geocode
{level_lines(root)}
]

[budget]
preset = "{preset}"    # {note}
"""
