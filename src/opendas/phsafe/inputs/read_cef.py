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

from opendas.arrays import Ints
from opendas.errors import DataError, EnvironmentFailure, Finding, FormatError, GeographyError
from opendas.phsafe.inputs.codes import RELATIVES
from opendas.phsafe.inputs.findings import InputFiles, Source, list_lines
from opendas.phsafe.inputs.records import Inputs, Persons, Places, Units
from opendas.phsafe.model import PUERTO_RICO
from opendas.readers.cef.records import OID_COLUMN, PERSONS, UNITS, RecordLayout, Records, read_records
from opendas.readers.columns.coding import whole_numbers
from opendas.readers.columns.csv_parquet import column_names, read_batches
from opendas.readers.columns.findings import FindingLog
from opendas.readers.counting.entries import Lookup
from opendas.readers.paths import is_file, is_folder

__all__ = ["CefPaths", "read_cef"]

Tell = Callable[[str, int, int], None]

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
_BLANK, _NO_CODE = -2, -1
_SPACE, _ZERO = ord(" "), ord("0")
_MOST = 10**18 - 1


@dataclass(frozen=True, slots=True)
class CefPaths:
    """The files of a run.

    Parameters
    ----------
    persons, units : tuple of Path
        In the order of the state filter.
    blocks : tuple of Path
        The GRF-C.
    """

    persons: tuple[Path, ...]
    units: tuple[Path, ...]
    blocks: tuple[Path, ...]

    @classmethod
    def of(cls, config: Path, state_filter: Sequence[str]) -> CefPaths:
        """Read the ini file of the reader; relative paths are relative to it.

        Raises
        ------
        DataError
            If it is missing, no ini file, or names files that do not exist: everything together.
        """
        paths = _read_ini(config)
        findings: list[Finding] = []

        def files(kind: str) -> tuple[Path, ...]:
            found = []
            for code in state_filter:
                folder = paths[f"{kind}_dir_pr" if code == PUERTO_RICO else f"{kind}_dir"]
                name = paths[f"{kind}_file_format"].replace("%s", code)
                found.append(config.parent / f"{folder.rstrip('/')}/{name}")
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
        return cls(persons, units, blocks)


def read_cef(config: Path, state_filter: Sequence[str], tell: Tell | None = None) -> Inputs:
    """Read persons, units and places.

    Parameters
    ----------
    config : Path
        The ini file.
    state_filter : sequence of str
        Two-digit FIPS codes.
    tell : callable(stage, done, total), optional
        Progress.

    Returns
    -------
    Inputs
        Confidential. What is no code is -1, for validation to report.

    Raises
    ------
    FormatError
        If files are missing, or lines are no records: everything together.
    GeographyError
        If units lie in no block of the states of the run.
    EnvironmentFailure
        If a file cannot be read.
    """
    paths = CefPaths.of(config, state_filter)
    log = FindingLog()
    oids, states = _read_blocks(paths.blocks, {int(code) for code in state_filter}, log)
    _tell(tell, 1)
    units, unit_files = _read_files(paths.units, UNITS, _unit_columns, log)
    _tell(tell, 2)
    persons, person_files = _read_files(paths.persons, PERSONS, _person_columns, log)
    log.raise_if_any(f"{config}: files of the reader cef that cannot be read.")
    oid = units.pop("oid")
    place = Lookup.of(oids).positions(oid) if len(oids) else np.full(len(oid), -1, dtype=np.int64)
    _refuse_elsewhere(units["line"][place < 0], unit_files, config)
    units["npf"] = _family_sizes(units, persons)
    found = Units(**units)
    places = Places(found.rtype, found.mafid, states[place], found.line)
    _tell(tell, 3)
    return Inputs(Persons(**persons), found, places, InputFiles(person_files, unit_files, unit_files))


def _tell(tell: Tell | None, done: int) -> None:
    if tell is not None:
        tell("reading", done, 3)


def _read_ini(config: Path) -> Mapping[str, str]:
    parser = configparser.ConfigParser()
    try:
        parser.read_string(config.read_text(encoding="utf-8-sig"), source=config.name)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise DataError(f"{config}: the reader cef takes an ini file with the section [paths].") from None
    except (configparser.Error, UnicodeDecodeError):
        raise DataError(f"{config} is no ini file with the section [paths].") from None
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
    paths: Sequence[Path],
    layout: RecordLayout,
    columns: Callable[[Records], dict[str, npt.NDArray[Any]]],
    log: FindingLog,
) -> tuple[dict[str, npt.NDArray[Any]], Source]:
    """Return the columns of all files one after another, and where their lines stand."""
    empty = np.zeros((0, layout.width), dtype=np.uint8)
    parts = [columns(Records("", 1, empty, layout)) | {"line": np.empty(0, dtype=np.int64)}]
    before, ends = 0, []
    for path in paths:
        last = 0
        for records in read_records(path, layout, log):
            last = records.first + len(records) - 1
            lines = np.arange(before + records.first, before + last + 1, dtype=np.int64)
            parts.append(columns(records) | {"line": lines})
        before += last
        ends.append(before)
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return joined, Source(tuple(path.name for path in paths), tuple(ends[:-1]))


def _person_columns(records: Records) -> dict[str, npt.NDArray[Any]]:
    return {
        "rtype": _codes(records, "RTYPE"),
        "mafid": _numbers(records, "MAFID", _MOST),
        "qage": _numbers(records, "QAGE", 999).astype(np.int16),
        "cenhisp": _codes(records, "CENHISP"),
        "cenrace": _codes(records, "CENRACE"),
        "relship": _codes(records, "RELSHIP"),
    }


def _unit_columns(records: Records) -> dict[str, npt.NDArray[Any]]:
    return {
        "rtype": _codes(records, "RTYPE"),
        "mafid": _numbers(records, "MAFID", _MOST),
        "final_pop": _numbers(records, "FINAL_POP", 99_999, blank=0).astype(np.int32),
        "hhspan": _codes(records, "HHSPAN", blank=0),
        "hhrace": _codes(records, "HHRACE", blank=0),
        "ten": _codes(records, "TEN"),
        "hht": _codes(records, "HHT"),
        "hht2": _codes(records, "HHT2"),
        "cplt": _codes(records, "CPLT"),
        "oid": _numbers(records, "OIDTB", _MOST),
    }


def _numbers(records: Records, field: str, largest: int, blank: int | None = None) -> Ints:
    """Return whole numbers, -1 where there is none; validation, which knows the mode, tells."""
    return records.numbers(field, 0, largest, FindingLog(), blank=blank)


def _codes(records: Records, field: str, blank: int = _NO_CODE) -> npt.NDArray[np.int8]:
    """Return codes of one or two digits, all of which must be there; -1 for anything else."""
    start, end = records.layout.fields[field]
    letters = records.letters[:, start:end]
    digits = letters - np.uint8(_ZERO)  # wraps around below "0"
    value = np.zeros(len(letters), dtype=np.int16)
    for column in digits.T:
        value = value * 10 + np.minimum(column, 9)
    known = (digits < 10).all(axis=1)
    blanks = (letters == _SPACE).all(axis=1)
    return np.where(known, value, np.where(blanks, blank, _NO_CODE)).astype(np.int8)


def _refuse_elsewhere(lines: Ints, files: Source, config: Path) -> None:
    findings = list_lines(
        files, lines, "OIDTB", "expected a block of the GRF-C in the states of state_filter"
    )
    if findings:
        raise GeographyError(f"{config}: units without a block.", findings)


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
