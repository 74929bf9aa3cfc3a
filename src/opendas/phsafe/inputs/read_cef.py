"""The published ``cef`` reader: person and unit records of the Census Edited File, and the GRF-C.

The data argument is an ini file with the section ``[paths]``::

    [paths]
    per_dir = records/
    unit_dir = records/
    per_dir_pr = records/
    unit_dir_pr = records/
    grfc_dir = geography/
    per_file_format = CEF20_PER_%%s.txt
    unit_file_format = CEF20_UNIT_%%s.txt

One person and one unit file a state of the filter (72 in the ``_pr`` folders); a unit's field OIDTB names its
block in the GRF-C, ``|``-delimited files with the columns OIDTABBLK and TABBLKST. NPF is not in the records:
it is the number of related persons where there are at least two of them. Blank HHSPAN and HHRACE are 0, not
in universe; a blank FINAL_POP is 0.

Axes: ``r`` records of a chunk.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints, Lookup
from opendas.errors import DataError, EnvironmentFailure, Finding, FormatError, GeographyError
from opendas.phsafe.inputs.codes import RELATIVES
from opendas.phsafe.inputs.findings import InputFiles, Source, list_lines
from opendas.phsafe.inputs.levels import PUERTO_RICO
from opendas.phsafe.inputs.records import Inputs, Persons, Places, Units
from opendas.readers.cef.records import PERSONS, UNITS, RecordLayout, Records, read_records
from opendas.readers.columns.coding import whole_numbers
from opendas.readers.columns.csv_parquet import column_names, read_batches
from opendas.readers.columns.findings import FindingLog
from opendas.readers.frame.grfc import OID_COLUMN
from opendas.readers.input.paths import is_file, is_folder

_KEYS = (
    "per_dir",
    "unit_dir",
    "per_dir_pr",
    "unit_dir_pr",
    "grfc_dir",
    "per_file_format",
    "unit_file_format",
)
_STATE_COLUMN = "TABBLKST"
_STATE_IN_NAME = re.compile(r"grfc_\w+?_([0-9]{2})[0-9]*\.", re.IGNORECASE)
_HOUSING_UNIT = 2
_LEAST_FAMILY = 2
_MOST_FAMILY = 127
_NO_CODE = -1
_SPACE, _ZERO = ord(" "), ord("0")
_MOST = 10**18 - 1


@dataclass(frozen=True, slots=True)
class _Field:
    """How a field is read: -1 where it holds no value; validation, which knows the mode, reports it."""

    dtype: Any = np.int8  # numpy type
    # Largest number; None for a code of one or two digits, all of which must be there.
    most: int | None = None
    blank: int | None = None  # what blanks stand for; None where they are no value
    name: str = ""  # of the field, where it is not that of the column in capitals

    def of(self, records: Records, column: str) -> npt.NDArray[Any]:
        """Return the values of some records."""
        name = self.name or column.upper()
        if self.most is not None:
            return records.numbers(name, 0, self.most, FindingLog(), blank=self.blank).astype(self.dtype)
        start, end = records.layout.fields[name]
        letters = records.letters[:, start:end]
        digits = letters - np.uint8(_ZERO)  # wraps around below "0"
        value = np.zeros(len(letters), dtype=np.int16)
        for digit in digits.T:
            value = value * 10 + np.minimum(digit, 9)
        blanks = (letters == _SPACE).all(axis=1)
        other = np.where(blanks & (self.blank is not None), self.blank or 0, _NO_CODE)
        return np.where((digits < 10).all(axis=1), value, other).astype(self.dtype)


_CODE, _CODE_OR_BLANK, _KEY = _Field(), _Field(blank=0), _Field(np.int64, _MOST)
_PERSON_FIELDS = {
    "rtype": _CODE,
    "mafid": _KEY,
    "qage": _Field(np.int16, 999),
    "cenhisp": _CODE,
    "cenrace": _CODE,
    "relship": _CODE,
}
_UNIT_FIELDS = {
    "rtype": _CODE,
    "mafid": _KEY,
    "final_pop": _Field(np.int32, 99_999, blank=0),
    "hhspan": _CODE_OR_BLANK,
    "hhrace": _CODE_OR_BLANK,
    "ten": _CODE,
    "hht": _CODE,
    "hht2": _CODE,
    "cplt": _CODE,
    "oid": _Field(np.int64, _MOST, name="OIDTB"),
}


def read_cef(
    config: Path, state_filter: Sequence[str], progress: Callable[[str, int, int], None] | None = None
) -> Inputs:
    """Read persons, units and places.

    - `progress` (stage, done, total).
    - Returns: confidential. What is no code is -1, for validation to report.

    Raises `FormatError` if files are missing, or lines are no records: everything together.
    """

    def report(done: int) -> None:
        if progress is not None:
            progress("reading", done, 3)

    person_paths, unit_paths, block_paths = find_files(config, state_filter)
    log = FindingLog()
    oids, states = _read_blocks(block_paths, {int(code) for code in state_filter}, log)
    report(1)
    units, unit_files = _read_files(unit_paths, UNITS, _UNIT_FIELDS, log)
    report(2)
    persons, person_files = _read_files(person_paths, PERSONS, _PERSON_FIELDS, log)
    log.raise_if_any(f"{config}: files of the reader cef that cannot be read.")
    oid = units.pop("oid")
    place = Lookup.of(oids).positions(oid) if len(oids) else np.full(len(oid), -1, dtype=np.int64)
    rule = "expected a block of the GRF-C in the states of state_filter"
    elsewhere = list_lines(unit_files, units["line"][place < 0], "OIDTB", rule)
    if elsewhere:
        raise GeographyError(f"{config}: units without a block.", elsewhere)
    units["npf"] = _family_sizes(units, persons)
    found = Units(**units)
    places = Places(found.rtype, found.mafid, states[place], found.line)
    report(3)
    return Inputs(Persons(**persons), found, places, InputFiles(person_files, unit_files, unit_files))


def find_files(
    config: Path, state_filter: Sequence[str]
) -> tuple[tuple[Path, ...], tuple[Path, ...], tuple[Path, ...]]:
    """Return the files of persons and units in the order of the filter, and of the GRF-C, from the ini file.

    Relative paths are relative to it.

    Raises `DataError` if it is missing, no ini file, or names files that do not exist: everything together.
    """
    paths = _read_ini(config)
    findings: list[Finding] = []

    def files(kind: str) -> tuple[Path, ...]:
        found = []
        for code in state_filter:
            folder = paths[f"{kind}_dir_pr" if code == PUERTO_RICO else f"{kind}_dir"]
            name = paths[f"{kind}_file_format"].replace("%s", code)
            found.append(config.parent / folder / name.lstrip("/"))
            if not is_file(found[-1]):
                findings.append(Finding(found[-1].name, None, None, "is missing"))
        return tuple(found)

    persons, units = files("per"), files("unit")
    blocks = _block_files(config.parent / paths["grfc_dir"], state_filter)
    if not blocks:
        rule = "expected a file of the GRF-C, or a folder with some"
        findings.append(Finding(config.name, None, "grfc_dir", rule))
    if findings:
        raise FormatError(f"{config} names files that are not there.", findings)
    return persons, units, blocks


def _read_ini(config: Path) -> Mapping[str, str]:
    parser = configparser.ConfigParser()
    try:
        parser.read_string(config.read_text(encoding="utf-8-sig"), source=config.name)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise DataError(
            f"there is no file {config}. The reader cef takes an ini file with the section [paths]."
        ) from None
    except (configparser.Error, UnicodeDecodeError):
        raise DataError(f"{config} is not an ini file with the section [paths].") from None
    except OSError as error:
        raise EnvironmentFailure(f"could not read {config}: {error.strerror or 'unknown reason'}.") from None
    if not parser.has_section("paths"):
        raise DataError(f"{config} has no section [paths].")
    findings = []
    values: dict[str, str] = {}
    for key in _KEYS:
        try:
            values[key] = parser.get("paths", key)
        except configparser.NoOptionError:
            findings.append(Finding(config.name, None, key, "is missing"))
        except configparser.InterpolationError:
            findings.append(Finding(config.name, None, key, "write %% where the file name has a %"))
    findings += [
        Finding(config.name, None, key, "expected one %%s, where the state code stands")
        for key in ("per_file_format", "unit_file_format")
        if key in values and values[key].count("%s") != 1
    ]
    if findings:
        raise DataError(f"{config} is not a usable configuration of the reader cef.", findings)
    return values


def _block_files(where: Path, state_filter: Sequence[str]) -> tuple[Path, ...]:
    """Return the files of the GRF-C; those named by a state outside the filter are left out."""
    if is_file(where):
        return (where,)
    if not is_folder(where):
        return ()
    names = sorted(path for path in where.iterdir() if path.is_file() and not path.name.startswith("."))
    kept = []
    for path in names:
        state = _STATE_IN_NAME.match(path.name)
        if state[1] in state_filter if state else OID_COLUMN in _columns(path):
            kept.append(path)
    return tuple(kept)


def _columns(path: Path) -> Sequence[str]:
    try:
        return column_names(path)
    except DataError:
        return ()


def _read_blocks(
    paths: Iterable[Path], states: set[int], log: FindingLog
) -> tuple[Ints, npt.NDArray[np.int8]]:
    """Return the numbers of the blocks in some states, each once, and their states."""
    numbers, codes = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for path in paths:
        for batch in read_batches(path, [OID_COLUMN, _STATE_COLUMN], log):
            oid = whole_numbers(batch, OID_COLUMN, log)
            state = whole_numbers(batch, _STATE_COLUMN, log)
            inside = np.isin(state, list(states)) & (oid >= 0)
            numbers.append(oid[inside])
            codes.append(state[inside])
    oids, first = np.unique(np.concatenate(numbers), return_index=True)
    return oids, np.concatenate(codes)[first].astype(np.int8)


def _read_files(
    paths: Sequence[Path], layout: RecordLayout, fields: Mapping[str, _Field], log: FindingLog
) -> tuple[dict[str, npt.NDArray[Any]], Source]:
    """Return the columns of all files one after another, and where their lines stand."""

    def columns(records: Records, lines: Ints) -> dict[str, npt.NDArray[Any]]:
        return {name: field.of(records, name) for name, field in fields.items()} | {"line": lines}

    empty = Records("", 1, np.zeros((0, layout.width), dtype=np.uint8), layout)
    parts = [columns(empty, np.empty(0, dtype=np.int64))]
    before, ends = 0, []
    for path in paths:
        last = 0
        for records in read_records(path, layout, log):
            last = records.first + len(records) - 1
            parts.append(columns(records, np.arange(before + records.first, before + last + 1)))
        before += last
        ends.append(before)
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return joined, Source(tuple(path.name for path in paths), tuple(ends[:-1]))


def _family_sizes(
    units: Mapping[str, npt.NDArray[Any]], persons: Mapping[str, npt.NDArray[Any]]
) -> npt.NDArray[np.int8]:
    """Return NPF: how many persons of a household are related, where at least two are; else 0."""
    related = np.zeros(128, dtype=np.bool_)
    related[list(RELATIVES)] = True
    chosen = np.sort(persons["mafid"][related[persons["relship"]]])
    mafid = units["mafid"]
    people = np.searchsorted(chosen, mafid, side="right") - np.searchsorted(chosen, mafid, side="left")
    families = (people >= _LEAST_FAMILY) & (units["rtype"] == _HOUSING_UNIT) & (units["final_pop"] >= 2)
    return np.where(families, np.minimum(people, _MOST_FAMILY), 0).astype(np.int8)
