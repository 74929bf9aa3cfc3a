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
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv

from opendas.arrays import Bools, Ints
from opendas.custody.folders import at_once
from opendas.errors import EnvironmentFailure, Finding, FormatError
from opendas.phsafe.inputs.fields import check_values
from opendas.phsafe.inputs.findings import MOST_LINES
from opendas.phsafe.inputs.records import Inputs, Persons, Places, Units


class InputFile(NamedTuple):
    """One of the three files of the layout."""

    name: str
    columns: tuple[str, ...]
    rows: type[Any]

    def broken(self, file: str, line: int, fields: int) -> Finding:
        """Return what is wrong with a line of another number of fields than the header."""
        return Finding(file, line, None, f"expected {len(self.columns)} fields, found {fields}")


KINDS: Final = (
    InputFile("persons.csv", ("RTYPE", "MAFID", "QAGE", "CENHISP", "CENRACE", "RELSHIP"), Persons),
    InputFile(
        "units.csv",
        ("RTYPE", "MAFID", "FINAL_POP", "NPF", "HHSPAN", "HHRACE", "TEN", "HHT", "HHT2", "CPLT"),
        Units,
    ),
    InputFile(
        "geo.csv",
        (
            *("RTYPE", "MAFID", "TABBLKST", "TABBLKCOU", "TABTRACTCE", "TABBLK", "TABBLKGRPCE"),
            *("REGIONCE", "DIVISIONCE", "PLACEFP", "AIANNHCE"),
        ),
        Places,
    ),
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

_NOT_READ = "does not hold the three files of the reader csv, row by row with the fields of the header."
_KEY = "MAFID"
_BLOCK_BYTES = 1 << 24
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_DIGITS = re.compile(r"[0-9]+")

_SOURCES = {"state": "TABBLKST"}
"""Columns of the files, where they are not called as ours are in capitals."""

_Rows = TypeVar("_Rows", Persons, Units, Places)


def read_csv(
    folder: Path, state_filter: Sequence[str], progress: Callable[[str, int, int], None] | None = None
) -> Inputs:
    """Read the three files.

    - `progress` (stage, done, total).
    - Returns: confidential; rows of the states of the filter only, in file order.
    """
    of_persons, of_units, of_places = KINDS
    found = {file.name: _check_first_line(folder / file.name, file.columns) for file in KINDS}
    if found[of_places.name]:  # without it nobody knows which rows are in the states of the run
        raise FormatError(f"{folder} {_NOT_READ}", _all_findings(found))
    states = np.zeros(128, dtype=np.bool_)
    states[[int(code) for code in state_filter]] = True

    def in_filter(table: pa.Table) -> Bools:
        state = _codes(table, _SOURCES["state"], np.int8)
        return np.asarray((state >= 0) & states[state])

    places: Places = _read_file(folder, of_places, found, in_filter)
    known = np.sort(places.mafid)

    def read(file: InputFile, done: int) -> Any:
        if progress is not None:
            progress("reading", done, 3)
        if found[file.name]:
            return _no_rows(file.rows)
        return _read_file(folder, file, found, lambda table: _is_known(_keys(table), known))

    units: Units = read(of_units, 1)
    inputs = Inputs(read(of_persons, 2), units, places)
    if any(found.values()):
        findings = [*_all_findings(found), *check_values(inputs)]
        raise FormatError(f"{folder} {_NOT_READ}", findings, shown=len(findings))
    if progress is not None:
        progress("reading", 3, 3)
    return inputs


def _all_findings(found: dict[str, list[Finding]]) -> list[Finding]:
    """Return the findings of all files, the first lines of each."""
    findings: list[Finding] = []
    for name, of_file in found.items():
        listed = sorted(of_file, key=lambda finding: finding.line or 0)
        findings += listed[:MOST_LINES]
        if len(listed) > MOST_LINES:
            more = f"expected the fields of the header ({len(listed) - MOST_LINES} further lines)"
            findings.append(Finding(name, None, None, more))
    return findings


def _check_first_line(path: Path, columns: tuple[str, ...]) -> list[Finding]:
    try:
        with open(path, "rb", opener=at_once) as file:
            line = file.readline(1 << 16)
    except (FileNotFoundError, NotADirectoryError):
        return [Finding(path.name, None, None, "is missing")]
    except OSError as error:
        raise _unreadable(path, error) from None
    return check_header(path.name, line.decode("utf-8-sig", errors="replace"), columns)


def check_header(file: str, line: str, columns: tuple[str, ...]) -> list[Finding]:
    """Compare a first line with the published columns; names are public, values are not."""
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


def _unreadable(path: Path, error: OSError) -> EnvironmentFailure:
    return EnvironmentFailure(f"could not read {path.name}: {error.strerror or 'unknown reason'}.")


def _read_file(
    folder: Path, file: InputFile, found: dict[str, list[Finding]], keep: Callable[[pa.Table], Bools]
) -> Any:
    """Read the rows of a file that are kept; those with another number of fields become findings."""
    path = folder / file.name
    with open(path, "rb", opener=at_once) as text:
        text.readline()
        if not any(line.strip() for line in text):  # Arrow takes the absence of rows for an error
            return _no_rows(file.rows)
    try:
        table, lines, broken = _parse(path, file, skip=1)
    except OSError as error:
        raise _unreadable(path, error) from None
    found[file.name] += [file.broken(file.name, *line) for line in broken.items()]
    mask = keep(table)
    # A slice copies nothing where everything is kept.
    return _rows(table, file.rows, lines, slice(None) if mask.all() else mask)


def _no_rows(kind: type[_Rows]) -> _Rows:
    return kind.of(**dict.fromkeys(kind.dtypes(), ()))


def parse_rows(text: pa.Buffer, file: InputFile, first: int) -> tuple[Any, dict[int, int]]:
    """Parse consecutive lines of a file, for engines that read in parts; nothing is left out by state.

    - `text`: lines without anything between them but line ends.
    - `first`: number of the first line.
    - Returns `rows`: Persons, Units or Places.
    - Returns `broken`: number of fields by line, of lines that do not have the fields of the header.
    """
    table, lines, broken = _parse(text, file, first)
    return _rows(table, file.rows, lines), broken


def _parse(
    source: Path | pa.Buffer, file: InputFile, first: int = 1, *, skip: int = 0
) -> tuple[pa.Table, Ints, dict[int, int]]:
    """Parse lines into the columns that the rows have: the key as int64, the others as dictionaries.

    Fast first. A key that is not an integer, bytes that are no text, or a broken row stop that; then in one
    thread, which alone knows the numbers of rows, with keys as text and every byte a character.

    - `first`: number of the first line, of which `skip` are passed over.
    - Returns the rows, the line of each, and `broken` as :func:`parse_rows`.
    """
    names = [_SOURCES.get(name, name.upper()) for name in file.rows.dtypes() if name != "line"]
    codes = {name: pa.dictionary(pa.int32(), pa.string()) for name in names if name != _KEY}
    broken: dict[int, int] = {}

    def note(row: Any) -> str:
        broken[first + row.number - 1] = row.actual_columns
        return "skip"

    def parsed(*, fast: bool) -> pa.Table:
        return pacsv.read_csv(
            source if isinstance(source, Path) else pa.BufferReader(source),
            read_options=pacsv.ReadOptions(
                use_threads=fast,
                block_size=_BLOCK_BYTES,
                skip_rows=skip,
                column_names=list(file.columns),
                encoding="utf8" if fast else "latin1",
            ),
            parse_options=pacsv.ParseOptions(invalid_row_handler=None if fast else note),
            convert_options=pacsv.ConvertOptions(
                column_types={**codes, _KEY: pa.int64() if fast else pa.string()},
                include_columns=names,
                null_values=[],
                strings_can_be_null=False,
            ),
        )

    try:
        table = parsed(fast=True)
    except pa.ArrowInvalid:
        table = parsed(fast=False)
    lines = np.arange(first + skip, first + skip + table.num_rows + len(broken), dtype=np.int64)
    return table, lines[~np.isin(lines, list(broken))] if broken else lines, broken


def _rows(table: pa.Table, kind: type[_Rows], lines: Ints, kept: Any = slice(None)) -> _Rows:
    columns: dict[str, Any] = {"mafid": _keys(table)[kept], "line": lines[kept]}
    for name, dtype in kind.dtypes().items():
        if name not in columns:
            columns[name] = _codes(table, _SOURCES.get(name, name.upper()), dtype)[kept]
    return kind(**columns)


def _is_known(keys: Ints, known: Ints) -> Bools:
    """Return which keys are among the sorted `known`."""
    if not len(known):
        return np.zeros(len(keys), dtype=np.bool_)
    order = np.argsort(keys)  # searches in order stay in the cache, and pay for the sort
    ordered = keys[order]
    position = np.searchsorted(known, ordered)
    found = np.empty(len(keys), dtype=np.bool_)
    found[order] = known[np.minimum(position, len(known) - 1)] == ordered
    return found


def _keys(table: pa.Table) -> Ints:
    column = table.column(_KEY)
    if column.type == pa.int64():
        return np.asarray(column.to_numpy())
    return np.array([_number(text, 0) for text in _texts(column)], dtype=np.int64)


def _codes(table: pa.Table, name: str, dtype: Any) -> npt.NDArray[Any]:
    """Return a column as numbers: each distinct text is examined once a chunk."""
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

    `width`: exactly so many digits; 0 for an integer in any form.
    """
    if width:
        return int(text) if len(text) == width and _DIGITS.fullmatch(text) else -1
    return int(text) if _INTEGER.fullmatch(text) else -1
