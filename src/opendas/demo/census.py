"""Makes a census up: full records of people on the blocks and margins of an official redistricting file.

What the file says of a block is kept exactly; relationship, sex and age are invented. Axes: ``b`` blocks,
``e`` entries of the redistricting file's histogram, ``p`` people.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opendas.arrays import Bools, Floats, Ints
from opendas.arrays.kernels import mix
from opendas.custody.folders import write_atomic
from opendas.demo.generator import level_lines
from opendas.demo.homes import (
    Households,
    describe,
    draw_tenure,
    draw_vacancy,
    household_codes,
)
from opendas.demo.households import ADULT, CODE, HouseholdPool, allowed_ages, synthetic_households
from opendas.demo.placement import Relations, place_in_households, place_in_quarters
from opendas.demo.pums import read_microdata
from opendas.errors import ConfigError
from opendas.files.storage.parquet import bytes_column, text_column, write_parquet
from opendas.geography.frame import Frame
from opendas.readers.input.spec import InputData, ReaderSpec
from opendas.readers.pl94.reader import official_reader
from opendas.readers.registry import make_reader
from opendas.schema.dhc_persons import GQ_CODES
from opendas.schema.dhc_units import FIRST_QUARTERS, dhc_units
from opendas.schema.pl94 import HHGQ_LEVELS, pl94_persons, pl94_units, race_combinations

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SyntheticCensus:
    """What was written."""

    runs: tuple[Path, ...]  # run files, one for each product
    blocks: int  # with housing units or group quarters
    people: int
    households: int
    housing_units: int
    # Blocks whose number of households is not the occupied units of the file: fewer people than occupied
    # units, or people and no occupied unit. The noise in files since 2020 makes such blocks.
    adjusted: int


def make_census(
    path: Path | str, to: Path | str, *, pums: Sequence[Path | str] = (), seed: int = 2020
) -> SyntheticCensus:
    """Make a census up and write it into a folder.

    Writes ``persons.parquet`` (one row a person), ``units.parquet`` (one row a housing unit),
    ``quarters.parquet`` (one row a facility of group quarters), ``frame.parquet`` and run files.

    - `path`: official redistricting file of one state, the zip of 2010 or 2020.
    - `to`: folder, new or empty.
    - `pums`: person files of public-use microdata, from which households are drawn; without them they are
      invented.
    - `seed`: the same seed, inputs and numpy version give the same records.

    Raises `ConfigError` if the folder is not empty, or the seed negative; `DataError` with what is wrong in a
    file; a ``FormatError`` if it is of another kind or lacks columns; `EnvironmentFailure` if a file cannot
    be read or the folder cannot be written.
    """
    path, folder = Path(path), Path(to)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not empty; give a new folder.")
    if seed < 0:
        raise ConfigError("the seed of a synthetic census must not be negative.")
    reader = official_reader(path)
    persons, units = (
        make_reader(ReaderSpec(reader, (path,), product)).read() for product in (pl94_persons(), pl94_units())
    )
    pool = read_microdata([Path(p) for p in pums]) if pums else synthetic_households()
    return write_census(folder, margins_of(persons, units), pool, path.name, seed)


def write_census(
    folder: Path, margins: Margins, pool: HouseholdPool, name: str, seed: int
) -> SyntheticCensus:
    """Make a census up on margins, and write it into a folder; `name` says whose margins they are."""
    people = draw_persons(margins, pool, seed)
    made = {"source": f"synthetic census: {name}, seed {seed}; its records are synthetic"}
    write_parquet(folder / "frame.parquet", _frame_table(margins, people), metadata=made)
    write_parquet(folder / "persons.parquet", _persons_table(margins, people), metadata=made)
    write_parquet(folder / "units.parquet", _housing_table(margins, people, seed), metadata=made)
    write_parquet(folder / "quarters.parquet", _quarters_table(margins, people), metadata=made)
    runs = []
    for product in _TABLES:
        runs.append(folder / f"run-{product}.toml")
        write_atomic(runs[-1], _run_file(product, made["source"]).encode())
    logger.info("generated a synthetic census of %d people in %s", len(people.age), folder)
    units = margins.frame.units["hu"]
    return SyntheticCensus(
        tuple(runs),
        len(margins.frame),
        len(people.age),
        int(margins.households.sum()),
        int(units.sum()),
        int((margins.households != margins.occupied).sum()),
    )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Margins:
    """What the redistricting file says of every block."""

    frame: Frame  # with housing units and facilities of the seven major types
    block: Ints  # int64 (e,)
    hhgq: Ints  # int64 (e,)
    adult: Bools  # bool (e,)
    race: Ints  # int64 (e,). Hispanic origin and race together, 0 to 125.
    count: Ints  # int64 (e,)
    occupied: Ints  # int64 (b,)

    @property
    def in_households(self) -> Ints:
        """Int64 (b,): people who live in households."""
        inside = self.hhgq == 0
        return _sums(self.block[inside], self.count[inside], len(self.frame))

    @property
    def households(self) -> Ints:
        """Int64 (b,): occupied units; at least one where people live, and at most one for each of them."""
        people = self.in_households
        return np.minimum(np.maximum(self.occupied, people > 0), people)


def _sums(index: Ints, count: Ints, size: int) -> Ints:
    return np.bincount(index, weights=count, minlength=size).astype(np.int64)


def margins_of(data: InputData, units: InputData) -> Margins:
    """Return the margins of redistricting persons and units, of the same blocks."""
    histogram = data.histogram
    schema = pl94_persons().schema
    hhgq, votingage, hispanic, cenrace = schema.codes(histogram.cells)
    races = len(schema.attribute("cenrace"))
    is_occupied = units.histogram.cells == 1
    b = len(data.frame)
    return Margins(
        data.frame,
        np.repeat(np.arange(b), np.diff(histogram.indptr)),
        hhgq.astype(np.int64),
        votingage == 1,
        (hispanic * races + cenrace).astype(np.int64),
        histogram.counts.astype(np.int64),
        _sums(
            np.repeat(np.arange(b), np.diff(units.histogram.indptr))[is_occupied],
            units.histogram.counts[is_occupied],
            b,
        ),
    )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class People:
    """Everybody, by block; people in households first, one household after another: int64 arrays (p,)."""

    block: Ints
    household: Ints  # counts from 1 in every block; 0 in group quarters
    relgq: Ints
    sex: Ints
    age: Ints
    race: Ints
    facilities: Ints  # int64 (b, 24). Group quarters by detailed type.


def draw_persons(margins: Margins, pool: HouseholdPool, seed: int) -> People:
    """Draw relationship, sex and age of everybody whom the margins count.

    Each block draws from a stream of its own, which its geocode and the seed determine: what a block gets
    does not depend on the blocks beside it.
    """
    inside = np.flatnonzero(margins.hhgq == 0)
    outside = np.flatnonzero(margins.hhgq > 0)
    at_home = int(margins.count[inside].sum())
    total = int(margins.count.sum())
    household, relgq, sex, age, race = (np.zeros(total, dtype=np.int64) for _ in range(5))
    starts = np.searchsorted(margins.block[inside], np.arange(len(margins.frame) + 1))
    allowed = allowed_ages()
    streams = _streams(margins.frame, seed)
    place_in_households(
        streams,
        starts.astype(np.int64),
        margins.race[inside],
        margins.adult[inside],
        margins.count[inside],
        margins.households,
        pool,
        allowed,
        _RELATIONS,
        tuple(column[:at_home] for column in (household, relgq, sex, age, race)),
    )
    kinds, facilities = _detailed_types(margins, streams)
    kind = kinds[margins.block[outside], margins.hhgq[outside] - 1]
    count = margins.count[outside]
    cells = (margins.hhgq[outside] * 2 + margins.adult[outside]) * _RACES + margins.race[outside]
    words = _mixed(_mixed(streams[margins.block[outside]]) ^ cells.astype(np.uint64))
    weights, male = _quarters_ages(allowed)
    out = (sex[at_home:], age[at_home:])
    place_in_quarters(words, kind, margins.adult[outside], count, weights, male, out)
    relgq[at_home:] = np.repeat(kind, count) + len(CODE)
    race[at_home:] = np.repeat(margins.race[outside], count)
    block = np.concatenate(
        [np.repeat(margins.block[part], margins.count[part]) for part in (inside, outside)]
    )
    order = np.argsort(block, kind="stable")
    block, household, relgq = block[order], household[order], relgq[order]
    return People(block, household, relgq, sex[order], age[order], race[order], facilities)


_RACES = 2 * len(race_combinations())
"""Combinations of Hispanic origin and race."""

_UNITS = np.uint64(1 << 32)
"""Where the random words of a block's units begin, beside those of its people."""

_RELATIONS = Relations(
    *(
        CODE[word]
        for word in (
            "householder_alone", "householder_not_alone", "biological_child", "sibling", "grandchild",
            "other_relative", "roommate", "other_nonrelative",
        )
    )
)  # fmt: skip


Words = npt.NDArray[np.uint64]


_mix: Callable[[Words], Words] = mix.py_func


def _mixed(words: Words) -> Words:
    """Return pseudo-random words, one for each."""
    with np.errstate(over="ignore"):
        return np.asarray(_mix(words), dtype=np.uint64)


def _fractions(words: Words) -> Floats:
    """Return the numbers in [0, 1) that random words stand for."""
    return np.asarray((words >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _streams(frame: Frame, seed: int) -> Words:
    """Return where the random words of each block start, uint64 (b,)."""
    return _mixed(_mixed(np.full(1, seed, dtype=np.uint64)) ^ frame.geocodes.astype(np.uint64))


# Detailed types of group quarters: share of the major type's facilities, share of men, mean and standard
# deviation of the age of adults and of minors. Invented, and about as in the United States.
_QUARTERS: dict[str, tuple[float, float, float, float, float, float]] = {
    "101": (0.03, 0.85, 33, 10, 16.5, 1), "102": (0.12, 0.93, 39, 11, 16.5, 1),
    "103": (0.50, 0.93, 37, 11, 16.5, 1), "104": (0.25, 0.86, 34, 11, 16.5, 1),
    "105": (0.09, 0.80, 36, 11, 16.5, 1), "106": (0.01, 0.95, 27, 6, 17, 1),
    "201": (0.50, 0.60, 19, 1.5, 15, 2.5), "202": (0.25, 0.65, 19, 1.5, 15, 2.5),
    "203": (0.25, 0.88, 18.5, 1, 16, 1.2),
    "301": (1.00, 0.30, 82, 11, 15, 2),
    "401": (0.35, 0.60, 42, 14, 14, 2.5), "402": (0.15, 0.55, 55, 18, 8, 8),
    "403": (0.10, 0.45, 76, 12, 8, 8),
    "404": (0.05, 0.85, 27, 7, 17, 1), "405": (0.35, 0.60, 21, 3, 13, 3),
    "501": (1.00, 0.46, 20, 1.7, 17.5, 0.6),
    "601": (0.90, 0.85, 22, 3.5, 17, 1), "602": (0.10, 0.85, 25, 5, 17, 1),
    "701": (0.12, 0.62, 41, 13, 7, 8), "801": (0.45, 0.60, 45, 16, 16.5, 1),
    "802": (0.15, 0.68, 38, 12, 16.5, 1),
    "900": (0.02, 0.95, 42, 11, 16.5, 1), "901": (0.06, 0.85, 33, 10, 12, 5),
    "997": (0.20, 0.50, 50, 20, 10, 7),
}  # fmt: skip

_MAJOR = tuple(min(int(code[0]), 7) - 1 for code in GQ_CODES)
"""Major type, 0 to 6, of each detailed type."""


def _detailed_types(margins: Margins, streams: Words) -> tuple[Ints, Ints]:
    """Draw one detailed type for the facilities of each major type of each block.

    Returns (int64 (b, 7), int64 (b, 24)): detailed type of each major type, and facilities by detailed type.
    """
    b, majors = len(margins.frame), len(HHGQ_LEVELS) - 1
    kinds = np.zeros((b, majors), dtype=np.int64)
    facilities = np.zeros((b, len(GQ_CODES)), dtype=np.int64)
    shares = np.array([_QUARTERS[code][0] for code in GQ_CODES])
    for major in range(majors):
        types = np.flatnonzero(np.array(_MAJOR) == major)
        uniform = _fractions(_mixed(streams ^ np.uint64(major + 1)))
        ends = np.cumsum(shares[types]) / shares[types].sum()
        kinds[:, major] = types[np.minimum(np.searchsorted(ends, uniform, side="right"), len(types) - 1)]
        facilities[np.arange(b), kinds[:, major]] = margins.frame.units[f"gq{major + 1}"]
    return kinds, facilities


def _quarters_ages(allowed: Bools) -> tuple[Floats, Floats]:
    """Return cumulative weights of ages by type, of minors and of adults, (24, 2, 117), and shares of men."""
    years = np.arange(allowed.shape[1])
    weights = np.zeros((len(GQ_CODES), 2, len(years) + 1))
    for k, code in enumerate(GQ_CODES):
        for grown, mean, deviation in ((1, *_QUARTERS[code][2:4]), (0, *_QUARTERS[code][4:6])):
            density = np.exp(-0.5 * ((years - mean) / deviation) ** 2) + 1e-9
            density[((years >= ADULT) != bool(grown)) | ~allowed[len(CODE) + k]] = 0.0
            weights[k, grown, 1:] = np.cumsum(density)
    return weights, np.array([_QUARTERS[code][1] for code in GQ_CODES])


def _frame_table(margins: Margins, people: People) -> pa.Table:
    """Return every block with its units, facilities of both kinds of types, and areas, with none too."""
    frame = margins.frame
    columns = {"GEOID": bytes_column(frame.geocodes)}
    columns |= {name: pa.array(numbers) for name, numbers in frame.units.items()}
    columns |= {f"gq{code}": pa.array(people.facilities[:, k]) for k, code in enumerate(GQ_CODES)}
    columns |= {name: bytes_column(codes) for name, codes in frame.entities.items()}
    return pa.table(columns)


def _persons_table(margins: Margins, people: People) -> pa.Table:
    """Return one row a person, with the codes of dhc-persons and of pl94-persons."""
    races = len(pl94_persons().schema.attribute("cenrace"))
    major = np.concatenate([np.zeros(len(CODE), dtype=np.int64), np.array(_MAJOR) + 1])
    codes: dict[str, npt.NDArray[np.generic]] = {
        "relgq": people.relgq,
        "sex": people.sex,
        "age": people.age,
        "hispanic": people.race // races,
        "cenrace": people.race % races,
        "hhgq": major[people.relgq],
        "votingage": people.age >= ADULT,
    }
    columns = {"GEOID": text_column(people.block, bytes_column(margins.frame.geocodes))}
    columns["household"] = pa.array(people.household.astype(np.int32))
    columns |= {name: pa.array(values.astype(np.int8)) for name, values in codes.items()}
    return pa.table(columns)


def _housing_table(margins: Margins, people: People, seed: int) -> pa.Table:
    """Return one row a housing unit, occupied ones first in a block; null where a unit has no such answer."""
    housing, households = margins.frame.units["hu"], margins.households
    block = np.repeat(np.arange(len(housing)), housing)
    number = np.arange(len(block)) - np.repeat(np.cumsum(housing) - housing, housing)
    occupied = number < households[block]
    at_home = people.household > 0
    relgq, sex, age, race = (x[at_home] for x in (people.relgq, people.sex, people.age, people.race))
    answers = describe(relgq, sex, age, race // (_RACES // 2), race % (_RACES // 2))
    words = _mixed(_mixed(_streams(margins.frame, seed)[block]) ^ (_UNITS + number.astype(np.uint64)))
    uniform = _fractions(words)
    tenvacgq = np.zeros_like(block)
    tenvacgq[occupied] = draw_tenure(answers, uniform[occupied])
    tenvacgq[~occupied] = draw_vacancy(uniform[~occupied])
    codes = household_codes(answers, tenvacgq[occupied])
    codes |= {part: getattr(answers, part) for part in Households.__slots__ if part not in codes}
    columns = {
        "GEOID": text_column(block, bytes_column(margins.frame.geocodes)),
        "household": pa.array(np.where(occupied, number + 1, 0).astype(np.int32)),
        "occupancy": pa.array(occupied.astype(np.int8)),
        "tenvacgq": pa.array(tenvacgq.astype(np.int8)),
    }
    return pa.table(columns | {name: _answers(values, occupied) for name, values in codes.items()})


def _quarters_table(margins: Margins, people: People) -> pa.Table:
    """Return one row a facility of group quarters, which has none of a household's attributes."""
    facility, kind = (
        np.repeat(x, people.facilities[people.facilities > 0]) for x in np.nonzero(people.facilities)
    )
    nobody = np.zeros(len(kind), dtype=np.bool_)
    columns = {
        "GEOID": text_column(facility, bytes_column(margins.frame.geocodes)),
        "tenvacgq": pa.array((FIRST_QUARTERS + kind).astype(np.int8)),
    }
    return pa.table(columns | {name: _answers(kind[nobody], nobody) for name in dhc_units().schema.names})


def _answers(values: Ints, asked: Bools) -> pa.Array:
    """Return a column with values where they are asked for, and nulls elsewhere."""
    column = np.zeros(len(asked), dtype=np.int16)
    column[asked] = values
    return pa.array(column, mask=~asked)


_TABLES = {
    "pl94-persons": '"persons.parquet"',
    "pl94-units": '"units.parquet"',
    "dhc-persons": '"persons.parquet"',
    "dhc-units": '["units.parquet", "quarters.parquet"]',
}
"""What each product is made from."""

_TIE = """
# [tie]                     # agree with the {earlier} release of the same blocks, made before
# release = "../{earlier}"
"""


def _run_file(product: str, source: str) -> str:
    is_dhc, preset = product.startswith("dhc"), f"pr2020-{product.removeprefix('pl94-')}"
    return f"""\
# {product} of a {source}.

[run]
product = "{product}"
mechanism = "discrete-gaussian"
neighbours = "bounded"

[input]
reader = "records"
path = {_TABLES[product]}
geocode = "GEOID"
units = {{ path = "frame.parquet", geocode = "GEOID" }}   # hu, gq1 ... gq7, gq101 ... gq997

[geography]
spine = "{"dhc" if is_dhc else "standard"}"
frame = "frame.parquet"     # every block with housing units or group quarters
levels = [                  # the official levels, by characters of the geocode
{level_lines("state")}
]

[budget]
preset = "{preset}"    # the production setting of 2020 where the state is the topmost level
{_TIE.format(earlier=product.replace("dhc", "pl94")) if is_dhc else ""}"""
