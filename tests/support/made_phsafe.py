"""Synthetic persons, units and places in the published layout: as many as wanted, the same for one seed.

For benchmarks, tests and rehearsals. Households have the shapes of a census (people alone, couples,
families, sizes with a tail beyond every tau), their codes agree with each other, and rows stand in an order
that has nothing to do with MAFID. Shares are invented, near those of the United States; nobody's data are in
them. Everything is made and written a piece at a time, in whole columns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from opendas.arrays import Floats, Ints
from opendas.custody.folders import make_folder, write_atomic
from opendas.errors import ConfigError
from opendas.geography.states import STATES
from opendas.phsafe.inputs.levels import PUERTO_RICO, STATE_CODES, Geography
from opendas.phsafe.inputs.read_csv import KINDS
from opendas.phsafe.margins import PRODUCTION_TAU, published_row
from opendas.phsafe.tables import TABLES

__all__ = ["Made", "production_config", "write_made"]

# The people of synthetic households. Columns are int64, one value a row; ``n`` persons, ``u`` units.


# Households by HHT2, 1 to 12.
_HHT2 = (0.185, 0.292, 0.025, 0.045, 0.152, 0.052, 0.062, 0.022, 0.118, 0.012, 0.020, 0.015)
# HHT by HHT2; the two of cohabiting couples by sex of the householder (male first).
_HHT: Final = {
    1: (1, 1),
    2: (1, 1),
    3: (2, 3),
    4: (5, 7),
    5: (6, 6),
    6: (3, 3),
    7: (3, 3),
    8: (7, 7),
    9: (4, 4),
    10: (2, 2),
    11: (2, 2),
    12: (5, 5),
}
_MARRIED, _COHABITING = (1, 2), (3, 4)
_WITH_MINORS, _WITH_RELATIVES, _WITH_OTHERS = (1, 3, 6, 10), (7, 11), (8, 12)
_MAY_HAVE_MORE = (1, 2, 3, 6, 7, 10, 11)
_SAME_SEX = {"married": 0.012, "cohabiting": 0.06}
# Own children below 18, 1, 2, ..., in households that have them.
_MINORS = (0.42, 0.36, 0.14, 0.05, 0.018, 0.007, 0.003, 0.001, 0.001)
_RELATIVES = (0.52, 0.24, 0.12, 0.06, 0.03, 0.015, 0.015)  # 1, 2, ... where there are any
_OTHERS = (0.72, 0.18, 0.06, 0.04)
_MORE_RELATIVES, _MORE_OTHERS, _CROWDED = 0.13, 0.03, 0.004
_CROWD = 6, 18  # relatives of a crowded household, from and to

# Relatives beyond partner and own children below 18, by share. Those by marriage need one: elsewhere they are
# "other relative".
_RELATIVE = (
    (25, 0.42),
    (26, 0.02),
    (27, 0.05),
    (28, 0.10),
    (29, 0.12),
    (30, 0.13),
    (31, 0.03),
    (32, 0.03),
    (33, 0.10),
)
_OTHER = ((34, 0.62), (35, 0.08), (36, 0.30))
_AGES: Final = {
    25: (18, 45),
    26: (18, 45),
    27: (18, 40),
    28: (15, 75),
    29: (50, 95),
    30: (0, 22),
    31: (50, 95),
    32: (19, 50),
    33: (0, 80),
    34: (18, 70),
    35: (0, 17),
    36: (5, 80),
}
_CHILD = ((25, 0.93), (26, 0.02), (27, 0.05))
_TENURE = ((1, 0.39), (2, 0.24), (3, 0.35), (4, 0.02))
# One race alone, then all combinations of several, which share what is left.
_RACES_ALONE = (0.66, 0.125, 0.011, 0.06, 0.002, 0.082)
_HISPANIC = 0.17
_SAME_RACE = 0.93
_QUARTERS_SIZE = 1, 60
_INSTITUTION = 0.45


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MadePersons:
    """Columns of persons, all int64 (n,); `unit` is the position of the unit in its piece."""

    unit: Ints
    rtype: Ints
    qage: Ints
    cenhisp: Ints
    cenrace: Ints
    relship: Ints


def make_households(rng: np.random.Generator, homes: Ints, count: int) -> tuple[dict[str, Ints], MadePersons]:
    """Make the persons of the units at `homes`, and what the units say about them."""
    n = len(homes)
    hht2 = 1 + np.searchsorted(cumulative(_HHT2), rng.random(n), side="right")
    male = rng.random(n) < 0.5
    same = rng.random(n)
    married, cohabiting = np.isin(hht2, _MARRIED), np.isin(hht2, _COHABITING)
    same_sex = np.where(married, same < _SAME_SEX["married"], same < _SAME_SEX["cohabiting"])
    cplt = np.where(married, 1 + same_sex, np.where(cohabiting, 3 + same_sex, 5))

    minors = np.where(np.isin(hht2, _WITH_MINORS), 1 + _pick(rng, _MINORS, n), 0)
    more = rng.random(n)
    some = np.isin(hht2, _WITH_RELATIVES) | (np.isin(hht2, _MAY_HAVE_MORE) & (more < _MORE_RELATIVES))
    relatives = np.where(some, 1 + _pick(rng, _RELATIVES, n), 0)
    crowd = _between(rng, *_CROWD, n)
    relatives = np.where(np.isin(hht2, _MAY_HAVE_MORE) & (more > 1 - _CROWDED), crowd, relatives)
    roomers = np.isin(hht2, _WITH_OTHERS) | (~np.isin(hht2, (5, 9)) & (rng.random(n) < _MORE_OTHERS))
    others = np.where(roomers, 1 + _pick(rng, _OTHERS, n), 0)

    couple = (married | cohabiting).astype(np.int64)
    roles = np.stack([np.ones(n, dtype=np.int64), couple, minors, relatives, others], axis=1)
    role = np.repeat(np.tile(np.arange(5), n), roles.reshape(-1))
    home = np.repeat(np.arange(n), roles.sum(axis=1))
    total = len(home)
    # 21 and 22 opposite-sex spouse and partner, 23 and 24 same-sex.
    partner = 21 + np.where(married, 0, 1) + np.where(same_sex, 2, 0)
    relship = np.select(
        [role == 0, role == 1, role == 2, role == 3],
        [20, partner[home], _code(rng, _CHILD, total), _code(rng, _RELATIVE, total)],
        _code(rng, _OTHER, total),
    )
    relship[np.isin(relship, (31, 32)) & ~married[home]] = 33
    head_age = np.clip(_between(rng, 19, 60, n) + _between(rng, 0, 34, n), 19, 94)
    head_age = np.where(minors > 0, np.minimum(head_age, 25 + head_age % 32), head_age)
    youngest, oldest = _age_limits()
    drawn = youngest[relship] + (rng.random(total) * (oldest[relship] - youngest[relship] + 1)).astype(
        np.int64
    )
    near = np.clip(head_age[home] + _between(rng, -8, 8, total), 18, 99)
    minor_age = (rng.random(total) * 18).astype(np.int64)
    qage = np.select([role == 0, role == 1, role == 2], [head_age[home], near, minor_age], drawn)

    head_race, head_hisp = _races(rng, n)
    own_race, own_hisp = _races(rng, total)
    alike = (role == 0) | (rng.random(total) < _SAME_RACE)
    related = (relship <= 23) & (relship != 22) | (relship >= 25) & (relship <= 33)
    family = np.bincount(home[related], minlength=n)

    def spread(values: Ints) -> Ints:
        column = np.zeros(count, dtype=np.int64)
        column[homes] = values
        return column

    hht = np.array([(0, 0), *_HHT.values()])[hht2, np.where(male, 0, 1)]
    units = {
        "npf": spread(np.where(family > 1, family, 0)),
        "hhspan": spread(head_hisp),
        "hhrace": spread(head_race),
        "ten": spread(_code(rng, _TENURE, n)),
        "hht": spread(hht),
        "hht2": spread(hht2),
        "cplt": spread(cplt),
    }
    persons = MadePersons(
        unit=homes[home],
        rtype=np.full(total, 3, dtype=np.int64),
        qage=qage,
        cenhisp=np.where(alike, head_hisp[home], own_hisp),
        cenrace=np.where(alike, head_race[home], own_race),
        relship=relship,
    )
    return units, persons


def make_residents(rng: np.random.Generator, quarters: Ints) -> MadePersons:
    """Make the persons of group quarters."""
    size = _between(rng, *_QUARTERS_SIZE, len(quarters))
    unit = np.repeat(quarters, size)
    institution = np.repeat(rng.random(len(quarters)) < _INSTITUTION, size)
    race, hispanic = _races(rng, len(unit))
    return MadePersons(
        unit=unit,
        rtype=np.full(len(unit), 5, dtype=np.int64),
        qage=_between(rng, 16, 95, len(unit)),
        cenhisp=hispanic,
        cenrace=race,
        relship=np.where(institution, 37, 38),
    )


def cumulative(weights: Sequence[float]) -> Floats:
    """Return the upper ends of shares proportional to weights; the last is 1."""
    ends = np.cumsum(weights)
    ends /= ends[-1]
    ends[-1] = 1.0
    return ends


def _pick(rng: np.random.Generator, weights: Sequence[float], n: int) -> Ints:
    """Draw positions among weights."""
    return np.searchsorted(cumulative(weights), rng.random(n), side="right").astype(np.int64)


def _code(rng: np.random.Generator, shares: Sequence[tuple[int, float]], n: int) -> Ints:
    """Draw codes by their shares."""
    return np.array([code for code, _ in shares])[_pick(rng, [share for _, share in shares], n)]


def _between(rng: np.random.Generator, low: int, high: int, n: int) -> Ints:
    """Draw integers of a closed range."""
    return low + (rng.random(n) * (high - low + 1)).astype(np.int64)


def _races(rng: np.random.Generator, n: int) -> tuple[Ints, Ints]:
    """Draw race codes 1 to 63 and Hispanic origin 1 or 2."""
    several = (1 - sum(_RACES_ALONE)) / 57
    race = 1 + _pick(rng, (*_RACES_ALONE, *[several] * 57), n)
    return race, 1 + (rng.random(n) < _HISPANIC)


def _age_limits() -> tuple[Ints, Ints]:
    """Return the youngest and the oldest age of each RELSHIP code."""
    youngest, oldest = np.zeros(39, dtype=np.int64), np.zeros(39, dtype=np.int64)
    for code, (low, high) in _AGES.items():
        youngest[code], oldest[code] = low, high
    return youngest, oldest


_PIECE = 1 << 18
"""Households made at a time; a constant, since it decides what is drawn."""

_FIRST_MAFID, _MAFIDS = 100_000_001, 799_999_999
_STRIDE = 494_427_191  # MAFID of unit number i: first + i * stride modulo a prime, so each stands once
_VACANT_PER, _QUARTERS_PER = 10, 400  # households to a vacant unit, and to group quarters

# Millions of people in 2020, rounded; the order of opendas.geography.states.
_PEOPLE: Final = (
    5.0, 0.7, 7.2, 3.0, 39.5, 5.8, 3.6, 1.0, 0.7, 21.5, 10.7, 1.5, 1.8, 12.8, 6.8, 3.2, 2.9, 4.5, 4.7, 1.4,
    6.2, 7.0, 10.1, 5.7, 3.0, 6.2, 1.1, 2.0, 3.1, 1.4, 9.3, 2.1, 20.2, 10.4, 0.8, 11.8, 4.0, 4.2, 13.0, 1.1,
    5.1, 0.9, 6.9, 29.1, 3.3, 0.6, 8.6, 7.7, 1.8, 5.9, 0.6, 3.3,
)  # fmt: skip
_NORTHEAST = ("09", "23", "25", "33", "34", "36", "42", "44", "50")
_MIDWEST = ("17", "18", "19", "20", "26", "27", "29", "31", "38", "39", "46", "55")
_WEST = ("02", "04", "06", "08", "15", "16", "30", "32", "35", "41", "49", "53", "56")


@dataclass(frozen=True, slots=True)
class Made:
    """How much was made.

    Parameters
    ----------
    persons, households, units, places : int
        Rows of persons, households (occupied housing units), rows of units and of places.
    """

    persons: int
    households: int
    units: int
    places: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Units:
    """Columns of units, all int64 (u,); `male` is the sex of the householder."""

    rtype: Ints
    mafid: Ints
    final_pop: Ints
    npf: Ints
    hhspan: Ints
    hhrace: Ints
    ten: Ints
    hht: Ints
    hht2: Ints
    cplt: Ints
    state: Ints


def write_made(folder: Path, households: int, seed: int = 0, states: Sequence[str] | None = None) -> Made:
    """Write ``persons.csv``, ``units.csv``, ``geo.csv`` and a ``config.json`` with the production budgets.

    Parameters
    ----------
    folder : Path
        Made if absent; the four files are replaced.
    households : int, >= 1
        Occupied housing units. Vacant units (a tenth as many) and group quarters come on top; a household has
        2.5 persons on average.
    seed : int, >= 0
    states : sequence of str, optional
        Two-digit FIPS codes; all 51 of the nation by default, each with its share of the people.

    Returns
    -------
    Made

    Raises
    ------
    ConfigError
        If the states are no states, or there are more units than keys.

    Notes
    -----
    Memory does not grow with `households`. The same arguments give the same bytes.
    """
    codes = sorted(set(states)) if states is not None else sorted(STATE_CODES - {PUERTO_RICO})
    if not codes or not set(codes) <= STATE_CODES:
        raise ConfigError("synthetic households need the two-digit codes of states.")
    if not 1 <= households <= _MAFIDS // 2 or seed < 0:
        raise ConfigError(f"synthetic households: from 1 to {_MAFIDS // 2}, with a seed of at least 0.")
    make_folder(folder)
    write_atomic(folder / "config.json", production_config(codes).encode())
    people = {state.fips: size for state, size in zip(STATES, _PEOPLE, strict=True)}
    shares = cumulative([people[code] for code in codes])
    persons = units = 0
    with ExitStack() as stack:
        sinks = [stack.enter_context(_Sink(folder / file.name, file.columns)) for file in KINDS]
        for piece, start in enumerate(range(0, households, _PIECE)):
            rng = np.random.Generator(np.random.Philox(key=[seed, piece]))
            count = min(_PIECE, households - start)
            some_units, some_persons = _make_piece(rng, count, units, np.array(codes, dtype=np.int64), shares)
            sinks[0].write(_person_columns(some_persons, some_units))
            sinks[1].write(_unit_columns(some_units))
            sinks[2].write(_place_columns(some_units))
            persons += len(some_persons.unit)
            units += len(some_units.mafid)
    return Made(persons, households, units, units)


def production_config(states: Sequence[str]) -> str:
    """Return a configuration with the budgets and thresholds of the 2020 production run.

    Parameters
    ----------
    states : sequence of str
        ``["72"]`` gives the run of Puerto Rico, without the levels of the nation.
    """
    budgets: dict[str, dict[str, float]] = {}
    for table in TABLES:
        for level in table.levels:
            nation = level.geography is Geography.USA and list(states) == [PUERTO_RICO]
            published = 0 if nation else float(published_row(table, level)[1])
            budgets.setdefault(table.name, {})[level.name] = published
    document = {
        "privacy_budget": budgets,
        "tau": dict(PRODUCTION_TAU),
        "state_filter": list(states),
        "reader": "csv",
        "privacy_defn": "zcdp",
    }
    return json.dumps(document, indent=2) + "\n"


def _make_piece(
    rng: np.random.Generator, households: int, first: int, states: Ints, shares: Floats
) -> tuple[_Units, MadePersons]:
    """Make households, vacant units and group quarters, in random order."""
    vacant, quarters = households // _VACANT_PER, -(-households // _QUARTERS_PER)
    count = households + vacant + quarters
    kind = np.repeat([0, 1, 2], [households, vacant, quarters])[np.argsort(rng.random(count), kind="stable")]
    homes, institutions = np.flatnonzero(kind == 0), np.flatnonzero(kind == 2)
    of_units, of_persons = make_households(rng, homes, count)
    residents = make_residents(rng, institutions)
    merged = MadePersons(
        **{
            column.name: np.concatenate([getattr(of_persons, column.name), getattr(residents, column.name)])
            for column in fields(MadePersons)
        }
    )
    order = np.argsort(merged.unit, kind="stable")
    persons = MadePersons(
        **{column.name: getattr(merged, column.name)[order] for column in fields(MadePersons)}
    )
    number = first + np.arange(count, dtype=np.int64)
    units = _Units(
        rtype=np.where(kind == 2, 4, 2),
        mafid=_FIRST_MAFID + number * _STRIDE % _MAFIDS,
        final_pop=np.bincount(persons.unit, minlength=count),
        state=states[np.searchsorted(shares, rng.random(count), side="right")],
        **of_units,
    )
    return units, persons


class _Sink:
    """One file being written, which takes its place when it is whole."""

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        self._path, self._columns = path, columns
        self._partial = path.with_name(f".{path.name}.partial")

    def __enter__(self) -> _Sink:
        self._file = self._partial.open("wb")
        self._file.write((",".join(self._columns) + "\n").encode("ascii"))
        return self

    def write(self, columns: dict[str, Any]) -> None:
        """Append rows, columns in the order of the header."""
        table = pa.table({name: columns[name] for name in self._columns})
        options = pacsv.WriteOptions(include_header=False, quoting_style="none", batch_size=1 << 16)
        pacsv.write_csv(table, self._file, options)

    def __exit__(self, kind: object, *_: object) -> None:
        self._file.close()
        if kind is None:
            self._partial.replace(self._path)
        else:
            self._partial.unlink()


def _texts(values: Ints, width: int) -> pa.Array:
    """Return codes as texts of a width."""
    largest = int(values.max(initial=0))
    codes = pa.array([f"{code:0{width}d}" for code in range(largest + 1)])
    return codes.take(pa.array(values))


def _person_columns(persons: MadePersons, units: _Units) -> dict[str, Any]:
    return {
        "RTYPE": _texts(persons.rtype, 1),
        "MAFID": units.mafid[persons.unit],
        "QAGE": persons.qage,
        "CENHISP": persons.cenhisp,
        "CENRACE": _texts(persons.cenrace, 2),
        "RELSHIP": _texts(persons.relship, 2),
    }


def _unit_columns(units: _Units) -> dict[str, Any]:
    widths = {"rtype": 1, "hhrace": 2, "ten": 1, "hht": 1, "hht2": 2, "cplt": 1}
    columns = {}
    for name in KINDS[1].columns:
        values = getattr(units, name.lower())
        columns[name] = _texts(values, widths[name.lower()]) if name.lower() in widths else values
    return columns


def _place_columns(units: _Units) -> dict[str, Any]:
    rows = len(units.mafid)
    region, division = _regions()
    tract = units.mafid // 97 % 900 + 1
    fixed = {"PLACEFP": "99999", "AIANNHCE": "9999"}
    return {
        "RTYPE": _texts(units.rtype, 1),
        "MAFID": units.mafid,
        "TABBLKST": _texts(units.state, 2),
        "TABBLKCOU": _texts(units.mafid // 7 % 30 * 2 + 1, 3),
        "TABTRACTCE": _texts(tract * 100, 6),
        "TABBLK": _texts(1000 + units.mafid // 13 % 40, 4),
        "TABBLKGRPCE": _texts(np.ones(rows, dtype=np.int64), 1),
        "REGIONCE": _texts(region[units.state], 1),
        "DIVISIONCE": _texts(division[units.state], 1),
        **{name: pa.repeat(text, rows) for name, text in fixed.items()},
    }


def _regions() -> tuple[Ints, Ints]:
    """Return region and, roughly, division by state code."""
    region, division = np.full(100, 3, dtype=np.int64), np.full(100, 5, dtype=np.int64)
    for codes, one, two in ((_NORTHEAST, 1, 1), (_MIDWEST, 2, 3), (_WEST, 4, 8), ((PUERTO_RICO,), 9, 0)):
        region[[int(code) for code in codes]] = one
        division[[int(code) for code in codes]] = two
    return region, division
