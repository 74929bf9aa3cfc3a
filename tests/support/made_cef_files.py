"""Writes the synthetic state as a census office holds it: person and unit records, and a GRF-C.

The records serve the tables of households too: relationships, ages and types of household agree.

All fields are filled, so that the record classes of the Census Bureau's own reader accept every record of a
state whose number they know (``experiments/cef_records.py``). Codes of detailed races and origins, and the
days of birth, are made up.
Axes: ``b`` blocks, ``u`` units, ``p`` persons.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints
from opendas.custody.folders import atomic_file, write_atomic
from opendas.demo.generator import DemoState, make_state
from opendas.demo.land import STATE, Land
from opendas.readers.cef.records import (
    GQ_CODES,
    MAFID_RANGE,
    PERSONS,
    UNITS,
    RecordLayout,
)
from opendas.readers.columns.area_codes import AREA_FORMS
from opendas.readers.columns.coding import BLOCK_COLUMNS, GROUP_COLUMN
from opendas.readers.frame.grfc import AREA_COLUMNS, OID_COLUMN
from opendas.schema.pl94 import RACES, race_combinations
from support.made_families import relate_people
from support.made_households import Residents, Units, house_people, list_units

__all__ = ["write_cef", "write_cef_state"]

Letters = npt.NDArray[np.uint8]

_CHUNK = 1 << 18
_FIRST_OID = 20_700_000_000_000


def write_cef(
    folder: Path | str, blocks: int = 5000, seed: int = 2020, code: str = STATE
) -> tuple[Path, Path]:
    """Make a state up and write it into `folder` in the layout of the Census Edited File.

    Writes ``CEF20_PER_99.txt``, ``CEF20_UNIT_99.txt``, ``GRFC_99.txt``, ``persons.toml``, ``units.toml`` and,
    for ``opendas phsafe``, ``cef_config.ini``. The histograms are those of the state that
    :func:`opendas.demo.write_demo` writes for the same size and seed.

    Parameters
    ----------
    folder : Path or str
    blocks, seed : int
    code : str
        Two-digit FIPS code to write instead of 99, for programs that take those of real states only.

    Returns
    -------
    (Path, Path)
        The run files of persons and units.

    Raises
    ------
    ConfigError
        If the size is not usable.
    EnvironmentFailure
        If the folder cannot be written.
    """
    return write_cef_state(Path(folder), make_state(blocks, seed), seed, code)


def write_cef_state(folder: Path, state: DemoState, seed: int, code: str = STATE) -> tuple[Path, Path]:
    """Write a state that is made already; see :func:`write_cef`."""
    rng = np.random.default_rng([seed, len(state.land.geocodes), 2])
    units = list_units(state)
    residents = house_people(state, units, rng)
    oid = _numbers(len(state.land.geocodes), _FIRST_OID, rng)
    mafid = _numbers(len(units), MAFID_RANGE[0], rng)
    quarters = _quarters_codes(units, rng)
    families = relate_people(units, residents, np.random.default_rng([seed, len(state.land.geocodes), 3]))
    in_state = {"BCUSTATEFP": np.int64(code)}
    _write_blocks(folder / f"GRFC_{code}.txt", state.land, oid, code)
    by_mafid = np.argsort(mafid)
    fields = _unit_fields(units, residents, rng) | {"MAFID": mafid, "QGQTYP": quarters}
    fields |= {"OIDTB": oid[units.block]}
    fields |= {name.upper(): getattr(families, name) for name in _OF_FAMILIES}
    _write_records(folder / f"CEF20_UNIT_{code}.txt", UNITS, fields | _filled(in_state, len(units)), by_mafid)
    days = np.random.default_rng([seed, len(state.land.geocodes), 4])
    fields = _person_fields(units, residents, days) | {"RELSHIP": families.relship}
    fields |= {"MAFID": mafid[residents.unit], "QGQTYP": quarters[residents.unit]}
    by_home = np.argsort(mafid[residents.unit], kind="stable")
    fields |= _filled(in_state, len(residents))
    _write_records(folder / f"CEF20_PER_{code}.txt", PERSONS, fields, by_home)
    write_atomic(folder / "cef_config.ini", _INI.format(state=code).encode())
    runs = []
    for name, label in (("persons", "People"), ("units", "Housing units")):
        runs.append(folder / f"{name}.toml")
        text = _RUN.format(name=name, label=label, state=code, blocks=len(oid), seed=seed)
        write_atomic(runs[-1], text.encode())
    return runs[0], runs[1]


def _numbers(size: int, first: int, rng: np.random.Generator) -> Ints:
    """Return distinct numbers from `first` on, in no order."""
    return rng.permutation(first + np.cumsum(rng.integers(1, 6, size)) - 1)


def _quarters_codes(units: Units, rng: np.random.Generator) -> Ints:
    """Return a code of QGQTYP for each unit, -1 (blank) for housing units."""
    codes = np.full(len(units), -1, dtype=np.int64)
    for kind in range(1, 8):
        known = [code for code, group in GQ_CODES.items() if group == kind]
        inside = np.flatnonzero(units.hhgq == kind)
        codes[inside] = rng.choice(known, size=len(inside))
    return codes


def _unit_fields(units: Units, residents: Residents, rng: np.random.Generator) -> dict[str, Ints]:
    """Return fields of units, int64 (u,) each; -1 is blank."""
    u = len(units)
    housing = units.hhgq == 0
    household = housing & units.occupied
    people = np.bincount(residents.unit, minlength=u)
    heads = residents.number == 1
    fields = {}
    for name, values in (
        ("HHLDRAGE", residents.age), ("HHSPAN", residents.hispanic + 1), ("HHRACE", residents.cenrace + 1),
        ("HHLDRACE", _RACES[residents.cenrace, 0]), ("HHSEX", residents.sex),
    ):  # fmt: skip
        of_head = np.full(u, -1, dtype=np.int64)
        of_head[residents.unit[heads]] = values[heads]
        fields[name] = np.where(household, of_head, -1)
    fields["HHSEX"] = np.maximum(fields["HHSEX"], 0)
    for least, most in ((0, 17), (60, 115), (65, 115), (75, 115)):
        here = (residents.age >= least) & (residents.age <= most)
        number = np.minimum(np.bincount(residents.unit[here], minlength=u), 99)
        fields[f"P{least or 18}"] = np.where(household, number, 0)
    men, women = (np.bincount(residents.unit[residents.sex == sex], minlength=u) > 0 for sex in (1, 2))
    tenure = np.where(household, rng.integers(1, 5, u), 0)
    return fields | {
        "RTYPE": np.where(housing, 2, 4),
        "GQSEX": np.where(housing, -1, men + 2 * women),
        "VERSION": np.ones(u, dtype=np.int64),
        "FINAL_POP": people,
        "TEN": tenure,
        "TEN_A": tenure,
        "TEN_R": tenure,
        "VACS": np.where(housing & ~units.occupied, rng.integers(1, 8, u), 0),
    }


_OF_FAMILIES = ("hht", "hht2", "cplt", "upart", "multg", "paoc", "pac")

_RACES = np.array(
    [[RACES.index(race) + 1 for race in races] + [0] * (8 - len(races)) for races in race_combinations()]
)
"""Races of each combination, 1 to 6 in order; 0 for none."""

_TWENTY_TEN = np.array(
    [
        max(1, sum(1 for other in race_combinations()[:number] if "sor" not in other) + 1)
        if "sor" not in races
        else 1
        for number, races in enumerate(race_combinations())
    ]
)
"""The recode of 2010, which knows 31 combinations of five races: others are made white."""


def _births(ages: Ints, rng: np.random.Generator) -> dict[str, Ints]:
    """Draw days of birth for ages on census day, 1 April 2020."""
    month, day = rng.integers(1, 13, len(ages)), rng.integers(1, 29, len(ages))
    year = 2020 - ages - ((month > 4) | ((month == 4) & (day > 1)))
    names = ("QDOB_YEAR", "QDOB_MONTH", "QDOB_DAY")
    return dict(zip(names, (year, month, day), strict=True)) | {"QDB": (year * 100 + month) * 100 + day}


def _person_fields(units: Units, residents: Residents, rng: np.random.Generator) -> dict[str, Ints]:
    """Return fields of persons, int64 (p,) each; -1 is blank."""
    races = _RACES[residents.cenrace]
    fields = {f"QRACE{k + 1}": np.where(races[:, k] > 0, 1000 * races[:, k], -1) for k in range(8)}
    fields |= _births(residents.age, rng)
    fields |= {"QRACEX": races[:, 0], "RACE2010": _TWENTY_TEN[residents.cenrace]}
    fields |= {"QSPAN": 1000 * (residents.hispanic + 1), "QSPANX": residents.hispanic + 1}
    hhgq = units.hhgq[residents.unit]
    people = np.bincount(residents.unit, minlength=len(units))[residents.unit]
    return fields | {
        "RTYPE": np.where(hhgq == 0, 3, 5),
        "CUF_PNC": residents.number,
        "VERSION": np.ones(len(hhgq), dtype=np.int64),
        "QSEX": residents.sex,
        "QAGE": residents.age,
        "CENHISP": residents.hispanic + 1,
        "CENRACE": residents.cenrace + 1,
        "LIVE_ALONE": np.where(hhgq > 0, 0, np.where(people == 1, 1, 2)),
    }


def _filled(values: dict[str, np.int64], rows: int) -> dict[str, Ints]:
    return {name: np.full(rows, value) for name, value in values.items()}


def _write_records(path: Path, layout: RecordLayout, fields: dict[str, Ints], order: Ints) -> None:
    """Write fixed-width records in the order given, a chunk at a time."""
    with atomic_file(path) as file:
        for start in range(0, len(order), _CHUNK):
            rows = order[start : start + _CHUNK]
            letters = np.full((len(rows), layout.width + 1), ord(" "), dtype=np.uint8)
            letters[:, -1] = ord("\n")
            for name, values in fields.items():
                first, end = layout.fields[name]
                letters[:, first:end] = _digits(values[rows], end - first)
            file.write(letters.tobytes())


def _digits(values: Ints, width: int) -> Letters:
    """Return numbers as text with zeros in front, uint8 (rows, width); negative numbers are blank."""
    powers = 10 ** np.arange(min(width, 18) - 1, -1, -1)
    shown = (values[:, None] // powers) % 10 + ord("0")
    shown = np.where(values[:, None] < 0, ord(" "), shown).astype(np.uint8)
    blank = np.full((len(values), width - shown.shape[1]), ord(" "), dtype=np.uint8)
    return np.concatenate([blank, shown], axis=1)


def _write_blocks(path: Path, land: Land, oid: Ints, state: str) -> None:
    columns: dict[str, list[str]] = {}
    text = [state + geocode[len(state) :] for geocode in land.geocodes.astype("U15").tolist()]
    start = 0
    for name, width in BLOCK_COLUMNS:
        columns[name] = [code[start : start + width] for code in text]
        start += width
    columns[GROUP_COLUMN] = [code[0] for code in columns["TABBLK"]]
    columns["REGIONCE"] = ["9"] * len(text)
    for category, (name, *_) in AREA_COLUMNS.items():
        before, width = AREA_FORMS[category]
        known = land.entities.get(category)
        codes = [] if known is None else known.astype("U16").tolist()
        columns[name] = [code[before:] or "9" * width for code in codes] or ["9" * width] * len(text)
    columns[OID_COLUMN] = [str(number) for number in oid.tolist()]
    rows = ["|".join(columns), *map("|".join, zip(*columns.values(), strict=True))]
    write_atomic(path, ("\n".join(rows) + "\n").encode())


_INI = """\
; Where the reader cef of `opendas phsafe` finds the records of a synthetic state. No real data.
[paths]
per_dir = ./
unit_dir = ./
per_dir_pr = ./
unit_dir_pr = ./
grfc_dir = GRFC_{state}.txt
per_file_format = CEF20_PER_%%s.txt
unit_file_format = CEF20_UNIT_%%s.txt
"""

_RUN = """\
# {label} of a synthetic state as records of a census: {blocks} blocks, seed {seed}. No real data.

[run]
product = "pl94-{name}"

[input]
reader = "cef"
path = "CEF20_PER_{state}.txt"              # person records
units = {{ path = "CEF20_UNIT_{state}.txt" }}  # unit records

[geography]
frame = "GRFC_{state}.txt"                  # the GRF-C: blocks and their areas
spine = "standard"

[budget]
preset = "pr2020-{name}"    # the production setting of 2020 where the state is the topmost level
"""
