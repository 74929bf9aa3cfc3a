"""The published ``csv`` reader: ``persons.csv``, ``units.csv`` and ``geo.csv`` in one folder.

Comma-delimited with a header whose columns stand in the published order. All three files are restricted to
the state filter first: places by their state, units and persons by the places of their key. A file that is
missing or has other columns is an error here; values are turned into codes, and what is no code becomes -1,
for validation to report.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv

from opendas.errors import EnvironmentFailure, Finding, FormatError
from opendas.phsafe.inputs.fields import check_values
from opendas.phsafe.inputs.findings import MOST_LINES
from opendas.phsafe.inputs.records import Inputs, Persons, Places, Units

__all__ = ["GEO_COLUMNS", "PERSON_COLUMNS", "UNIT_COLUMNS", "read_csv"]

PERSON_COLUMNS = ("RTYPE", "MAFID", "QAGE", "CENHISP", "CENRACE", "RELSHIP")
UNIT_COLUMNS = (
    "RTYPE",
    "MAFID",
    "FINAL_POP",
    "NPF",
    "HHSPAN",
    "HHRACE",
    "TEN",
    "HHT",
    "HHT2",
    "CPLT",
)
GEO_COLUMNS = (
    "RTYPE",
    "MAFID",
    "TABBLKST",
    "TABBLKCOU",
    "TABTRACTCE",
    "TABBLK",
    "TABBLKGRPCE",
    "REGIONCE",
    "DIVISIONCE",
    "PLACEFP",
    "AIANNHCE",
)

_TEXT_WIDTHS = {
    "RTYPE": 1,
    "CENRACE": 2,
    "RELSHIP": 2,
    "HHRACE": 2,
    "TEN": 1,
    "HHT": 1,
    "HHT2": 2,
    "CPLT": 1,
    "TABBLKST": 2,
}
"""Columns that hold codes of so many digits; the others hold integers in any form."""

_COLUMNS = {"persons.csv": PERSON_COLUMNS, "units.csv": UNIT_COLUMNS, "geo.csv": GEO_COLUMNS}
_NOT_READ = "does not hold the three files of the reader csv, row by row with the fields of the header."
_KEY = "MAFID"
_BLOCK_BYTES = 1 << 24
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_DIGITS = re.compile(r"[0-9]+")

Tell = Callable[[str, int, int], None]


def read_csv(folder: Path, state_filter: Sequence[str], tell: Tell | None = None) -> Inputs:
    """Read the three files.

    Parameters
    ----------
    folder : Path
    state_filter : sequence of str
        Two-digit FIPS codes.
    tell : callable(stage, done, total), optional
        Progress.

    Returns
    -------
    Inputs
        Confidential; rows of the states of the filter only, in file order.

    Raises
    ------
    FormatError
        If files are missing, headers differ from the published ones, or rows have another number of fields:
        everything together, with the wrong values of what could be read.
    EnvironmentFailure
        If a file cannot be read.
    """
    found: dict[str, list[Finding]] = {
        name: _check_header(folder / name, columns) for name, columns in _COLUMNS.items()
    }
    if found["geo.csv"]:  # without it nobody knows which rows are in the states of the run
        raise FormatError(f"{folder} {_NOT_READ}", _all(found))
    states = np.zeros(128, dtype=np.bool_)
    states[[int(code) for code in state_filter]] = True
    places = _read_places(_File(folder / "geo.csv", GEO_COLUMNS, found["geo.csv"]), states)
    known = np.sort(places.mafid)
    tables: dict[str, Any] = {}
    kinds: tuple[tuple[str, type[Any]], ...] = (("units.csv", Units), ("persons.csv", Persons))
    for done, (name, kind) in enumerate(kinds, start=1):
        if tell is not None:
            tell("reading", done, 3)
        if found[name]:
            tables[name] = kind.of(**dict.fromkeys(kind.dtypes(), ()))
        else:
            tables[name] = _read_columns(_File(folder / name, _COLUMNS[name], found[name]), kind, known)
    inputs = Inputs(tables["persons.csv"], tables["units.csv"], places)
    if any(found.values()):
        findings = [*_all(found), *check_values(inputs)]
        raise FormatError(f"{folder} {_NOT_READ}", findings, shown=len(findings))
    if tell is not None:
        tell("reading", 3, 3)
    return inputs


def _all(found: dict[str, list[Finding]]) -> list[Finding]:
    """Return the findings of all files, the first lines of each."""
    findings: list[Finding] = []
    for name in sorted(found, key=list(_COLUMNS).index):
        listed = sorted(found[name], key=lambda finding: finding.line or 0)
        findings += listed[:MOST_LINES]
        if len(listed) > MOST_LINES:
            more = f"expected the fields of the header ({len(listed) - MOST_LINES} further lines)"
            findings.append(Finding(name, None, None, more))
    return findings


def _check_header(path: Path, columns: tuple[str, ...]) -> list[Finding]:
    """Compare the first line with the published columns; names are public, values are not."""
    try:
        with path.open("rb") as file:
            line = file.readline(1 << 16)
    except (FileNotFoundError, NotADirectoryError):
        return [Finding(path.name, None, None, "is missing")]
    except OSError as error:
        raise EnvironmentFailure(
            f"could not read {path.name}: {error.strerror or 'unknown reason'}."
        ) from None
    return check_header(path.name, line.decode("utf-8-sig", errors="replace"), columns)


def check_header(file: str, line: str, columns: tuple[str, ...]) -> list[Finding]:
    """Compare a first line with the published columns."""
    text = line.removeprefix("\ufeff").rstrip("\r\n")
    found = tuple(name.strip().strip('"') for name in text.split(","))
    if found == columns:
        return []
    if set(found) == set(columns) and len(found) == len(columns):
        rule = f"the columns stand in another order; expected {','.join(columns)}"
    else:
        rule = f"expected the columns {','.join(columns)}"
        missing = [name for name in columns if name not in found]
        if missing and len(missing) < len(columns):
            rule += f"; missing: {', '.join(missing)}"
    return [Finding(file, 1, None, rule)]


class _File:
    """One file, read by columns; rows with another number of fields become findings and are left out."""

    def __init__(self, path: Path, columns: tuple[str, ...], findings: list[Finding]) -> None:
        self.path = path
        self.columns = columns
        self._findings = findings

    def read(self, names: Sequence[str]) -> pa.Table:
        """Return some columns: the key as int64 where that is what it holds, the others as dictionaries."""
        if not self._has_rows():
            return pa.schema({**_kinds(names), _KEY: pa.int64()}).empty_table()
        try:
            return self._read(names, plain=True)
        except pa.ArrowInvalid:  # a key that is no integer, a broken row, no text: the message quotes them
            return self._read(names, plain=False)

    def _has_rows(self) -> bool:
        """Whether something follows the header; Arrow takes its absence for an error."""
        with self.path.open("rb") as file:
            file.readline()
            return any(line.strip() for line in file)

    def _read(self, names: Sequence[str], *, plain: bool) -> pa.Table:
        """Read fast where the file is `plain`; else in one thread, which alone knows the numbers of rows."""
        try:
            return _parse(self.path, self.columns, names, None if plain else self._broken_row, skip=1)
        except OSError as error:
            raise EnvironmentFailure(
                f"could not read {self.path.name}: {error.strerror or 'unknown reason'}."
            ) from None

    def _broken_row(self, row: Any) -> str:
        rule = f"expected {row.expected_columns} fields, found {row.actual_columns}"
        self._findings.append(Finding(self.path.name, row.number, None, rule))
        return "skip"


def _parse(
    source: Any,
    columns: Sequence[str],
    names: Sequence[str],
    on_broken: Callable[[Any], str] | None,
    *,
    skip: int = 0,
) -> pa.Table:
    """Parse lines: fast, or, where something is told what is broken, in one thread, which knows the numbers.

    The fast way raises ``ArrowInvalid`` for a key that is no integer, bytes that are no text, a broken row.
    """
    plain = on_broken is None
    kinds = {name: pa.dictionary(pa.int32(), pa.string()) for name in names if name != _KEY}
    return pacsv.read_csv(
        source,
        read_options=pacsv.ReadOptions(
            use_threads=plain,
            block_size=_BLOCK_BYTES,
            skip_rows=skip,
            column_names=list(columns),
            encoding="utf8" if plain else "latin1",  # in which every byte is a character
        ),
        parse_options=pacsv.ParseOptions(invalid_row_handler=on_broken),
        convert_options=pacsv.ConvertOptions(
            column_types={**kinds, _KEY: pa.int64() if plain else pa.string()},
            include_columns=list(names),
            null_values=[],
            strings_can_be_null=False,
        ),
    )


def _kinds(names: Sequence[str]) -> dict[str, pa.DataType]:
    return {name: pa.dictionary(pa.int32(), pa.string()) for name in names}


def _read_places(file: _File, states: npt.NDArray[np.bool_]) -> Places:
    table = file.read((_KEY, "RTYPE", "TABBLKST"))
    state = _codes(table, "TABBLKST", np.int8)
    kept = _kept((state >= 0) & states[state])
    return Places(
        _codes(table, "RTYPE", np.int8)[kept], _keys(table)[kept], state[kept], _lines(table.num_rows)[kept]
    )


def _read_columns(file: _File, kind: type[Any], known: npt.NDArray[np.int64]) -> Any:
    """Read persons or units, and keep the rows whose key is among the `known`."""
    table = file.read(file.columns)
    keys = _keys(table)
    kept = _kept(_among(keys, known))
    columns = {"mafid": keys[kept], "line": _lines(table.num_rows)[kept]}
    for name, dtype in kind.dtypes().items():
        if name not in columns:
            columns[name] = _codes(table, name.upper(), dtype)[kept]
    return kind(**columns)


def parse_rows(
    text: pa.Buffer, columns: tuple[str, ...], kind: type[Any], first: int
) -> tuple[Any, dict[int, int]]:
    """Parse consecutive lines of a file, for engines that read in parts; nothing is left out by state.

    Parameters
    ----------
    text : Buffer
        Lines without anything between them but line ends.
    columns : tuple of str
        Of the file.
    kind : type
        Persons, Units or Places.
    first : int
        Number of the first line.

    Returns
    -------
    rows : Persons, Units or Places
    broken : dict of int to int
        Number of fields by line, of lines that do not have the fields of the header.
    """
    broken: dict[int, int] = {}

    def note(row: Any) -> str:
        broken[first + row.number - 1] = row.actual_columns
        return "skip"

    wanted = {name: name.upper() for name in kind.dtypes() if name not in ("line", "state")}
    if "state" in kind.dtypes():
        wanted["state"] = "TABBLKST"
    try:
        table = _parse(pa.BufferReader(text), columns, tuple(wanted.values()), None)
    except pa.ArrowInvalid:
        table = _parse(pa.BufferReader(text), columns, tuple(wanted.values()), note)
    lines = np.arange(first, first + table.num_rows + len(broken), dtype=np.int64)
    rows = {"mafid": _keys(table), "line": lines[~np.isin(lines, list(broken))]}
    for name, dtype in kind.dtypes().items():
        if name not in rows:
            rows[name] = _codes(table, wanted[name], dtype)
    return kind(**rows), broken


def _lines(rows: int) -> npt.NDArray[np.int64]:
    return np.arange(2, rows + 2, dtype=np.int64)


def _kept(mask: npt.NDArray[np.bool_]) -> Any:
    """Return an index of the rows to keep; a slice, which copies nothing, where that is all of them."""
    return slice(None) if mask.all() else mask


def _among(keys: npt.NDArray[np.int64], known: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which keys are among the sorted `known`."""
    if not len(known):
        return np.zeros(len(keys), dtype=np.bool_)
    order = np.argsort(keys)  # searches in order stay in the cache, and pay for the sort
    ordered = keys[order]
    position = np.searchsorted(known, ordered)
    found = np.empty(len(keys), dtype=np.bool_)
    found[order] = known[np.minimum(position, len(known) - 1)] == ordered
    return found


def _keys(table: pa.Table) -> npt.NDArray[np.int64]:
    column = table.column(_KEY)
    if column.type == pa.int64():
        return np.asarray(column.to_numpy())
    return np.array([_number(text, 0) for text in _texts(column)], dtype=np.int64)


def _codes(table: pa.Table, name: str, dtype: Any) -> npt.NDArray[Any]:
    """Return a column as numbers: each distinct text is looked at once a chunk."""
    parts = []
    width, largest = _TEXT_WIDTHS.get(name, 0), np.iinfo(dtype).max
    for chunk in table.column(name).chunks:
        values = [_number(text, width) for text in _texts(chunk.dictionary)]
        codes = np.array([value if 0 <= value <= largest else -1 for value in values], dtype=dtype)
        parts.append(codes[chunk.indices.to_numpy()] if len(codes) else np.empty(0, dtype=dtype))
    return np.concatenate(parts) if parts else np.empty(0, dtype=dtype)


def _texts(column: Any) -> list[str]:
    """Return texts, whatever bytes they are."""
    return [text.decode("utf-8", errors="replace") for text in column.cast(pa.binary()).to_pylist()]


def _number(text: str, width: int) -> int:
    """Return the number of a text, -1 if it has none of the wanted form.

    Parameters
    ----------
    text : str
    width : int
        Exactly so many digits; 0 for an integer in any form.
    """
    if width:
        return int(text) if len(text) == width and _DIGITS.fullmatch(text) else -1
    return int(text) if _INTEGER.fullmatch(text) else -1
