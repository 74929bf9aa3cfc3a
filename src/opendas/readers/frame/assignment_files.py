"""Block assignment files: which areas blocks lie in, one row a block.

The official files come in a zip file a state, one member a kind of area, named
``BlockAssign_ST44_RI_INCPLACE_CDP.txt`` and so on. A table of one's own has a column of geocodes and one
column per category.

Axes: ``r`` rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa
from pyarrow import csv

from opendas.arrays import Bools, Codes
from opendas.custody.folders import at_once
from opendas.errors import EnvironmentFailure, Finding, FormatError, GeographyError
from opendas.geography.frame import ENTITY_CATEGORIES
from opendas.readers.cef.records import AREA_COLUMNS, OID_COLUMN
from opendas.readers.columns.coding import (
    BLOCK_COLUMNS,
    GROUP_COLUMN,
    block_geocodes_of,
    geocodes_of,
    text_of,
)
from opendas.readers.columns.csv_parquet import (
    Batch,
    column_names,
    csv_options,
    opened_zip,
    read_batches,
    unpacked,
)
from opendas.readers.columns.findings import FindingLog, Origin

AREA_FORMS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "cousub": (5, 5),
        "place": (2, 5),
        "aianhh": (0, 4),
        "cd": (2, 2),
        "sldu": (2, 3),
        "sldl": (2, 3),
        "vtd": (5, 6),
        "sdelm": (2, 5),
        "sdsec": (2, 5),
        "sduni": (2, 5),
    }
)
"""Characters of the block's geocode that precede an area's own code, and characters of that code.

The frame names an area as the official GEOID does: by the code of its state, or of its state and county,
wherever codes repeat between states or counties, and then by its own. Voting districts may have fewer
characters than six, and blanks between them.
"""

NO_AREA = np.array([b"", b"9999", b"99999", b"99998", b"99997", b"999999", b"ZZ", b"ZZZ", b"ZZZZZZ"])
"""Codes that say "in no such area", "remainder" or "not defined"."""


def national_codes(category: str, own: Codes, blocks: Codes) -> tuple[Codes, Bools]:
    """Return the codes of areas as the frame has them, from their own codes and their blocks.

    - `own` (r,): with or without the code of the state (and county) in front.
    - `blocks` (r,): 15-character geocode of each row's block.
    - Returns (r,), (r,): codes, empty for none; and where a code has a wrong form or lies in another state or
      county than its block, so that it is empty too.
    """
    before, width = AREA_FORMS[category]
    none = np.isin(own, NO_AREA)
    length = np.strings.str_len(own)
    short = (length > 0) & (length <= width) if category == "vtd" else length == width
    front = blocks.astype(f"S{max(before, 1)}")
    usable = _is_code(own, ord(" ") if category == "vtd" else ord("!"))
    if before == 0:
        codes, good = own, usable & short
    else:
        whole = (length == before + width) & (own.astype(f"S{before}") == front)
        codes = np.where(whole, own, np.strings.add(front, own))
        good = usable & (short | whole)
    return np.where(none | ~good, b"", codes), ~none & ~good


def _is_code(own: Codes, least: int) -> Bools:
    """Return where a code consists of ASCII characters from `least` on."""
    width = max(own.dtype.itemsize, 1)
    letters = np.ascontiguousarray(own).view(np.uint8).reshape(len(own), width)
    return np.asarray(np.all((letters == 0) | ((letters >= least) & (letters < 127)), axis=1))


_MEMBER = re.compile(r"(?:^|/)BlockAssign_ST\d\d_[A-Z]{2}_(\w+)\.txt$", re.IGNORECASE)
_OFFICIAL = {
    "AIANNH": ("aianhh", "AIANNHCE"),
    "CD": ("cd", "DISTRICT"),
    "INCPLACE_CDP": ("place", "PLACEFP"),
    "MCD": ("cousub", "COUSUBFP"),
    "SDELM": ("sdelm", "DISTRICT"),
    "SDSEC": ("sdsec", "DISTRICT"),
    "SDUNI": ("sduni", "DISTRICT"),
    "SLDL": ("sldl", "DISTRICT"),
    "SLDU": ("sldu", "DISTRICT"),
    "VTD": ("vtd", "DISTRICT"),
}
"""Category and column of codes of each official file; other kinds of area are passed over."""

_EQUIVALENT = re.compile(r"(cd)(?:fp|cur|curfp|\d{3}|\d{3}fp)|(sld[ul])(?:st|\d{2})", re.IGNORECASE)
"""Columns of block equivalency files: ``CDFP``, ``CD118``, ``SLDUST``, ``SLDL22``."""

_BLOCK, _COUNTY = "BLOCKID", "COUNTYFP"
_BLOCK_NAMES = ("GEOID", "BLOCKID", "GEOID20", "geocode")
_WIDTH = 15


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Assignment:
    """What one file, or a part of it, says about one category. Public."""

    category: str
    field: str  # column of the codes
    blocks: Codes  # (r,): geocodes; empty where the row was not usable
    codes: Codes  # (r,): codes as the frame has them; empty for none
    origin: Origin
    official: bool  # an official file, which lists every block of its state
    national: bool = False  # a block equivalency file, which may list blocks of all states

    def inside(self, states: Codes) -> Assignment:
        """Return the same with the rows of some states alone, bytes (s,): others say nothing."""
        here = np.isin(self.blocks.astype("S2"), states)
        return replace(self, blocks=np.where(here, self.blocks, b""), codes=np.where(here, self.codes, b""))


def read_assignments(paths: Sequence[Path], geocode: str, *, census: bool) -> list[Assignment]:
    """Read block assignment files.

    - `paths`: zip files, official text files, or tables.
    - `census`: leaves are census blocks, whose geocodes and areas have official forms.

    Raises `DataError` with everything that is wrong in a file.
    """
    found: list[Assignment] = []
    for path in paths:
        log = FindingLog()
        if path.name.lower().endswith(".zip"):
            members = _members(path)
            found += [part for where, kind, data in members for part in _official(where, kind, data, log)]
        elif match := _MEMBER.search(path.name):
            found += _official(path.name, match.group(1), _read(path), log)
        else:
            found += _table(path, geocode, log, census=census)
        log.raise_if_any(f"{path.name} cannot be read as a block assignment.")
    if not found:
        rule = f"expected block assignments of {', '.join(ENTITY_CATEGORIES)}"
        raise FormatError("no block assignment found.", [Finding(paths[0].name, None, None, rule)])
    return found


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb", opener=at_once) as file:
            return file.read()
    except OSError as error:
        raise EnvironmentFailure(f"{path}: {error.strerror or 'cannot be read'}.") from None


def _members(path: Path) -> Iterator[tuple[str, str, bytes]]:
    """Yield (name for findings, kind of area, content) of the members that are known."""
    rule = "expected a zip file, whole and not encrypted"
    with opened_zip(path, f"{path.name} cannot be unpacked.", rule) as archive:
        names = [(name, match.group(1)) for name in archive.namelist() if (match := _MEMBER.search(name))]
        if not names:
            rule = "expected members called BlockAssign_ST.._.._....txt"
            raise FormatError(f"{path.name}: no block assignment.", [Finding(path.name, None, None, rule)])
        for name, kind in names:
            if kind.upper() in _OFFICIAL:
                yield f"{path.name}!{name}", kind, unpacked(archive, name)


def _official(where: str, kind: str, data: bytes, log: FindingLog) -> list[Assignment]:
    """Return the assignments of an official file."""
    if kind.upper() not in _OFFICIAL:
        return []
    category, field = _OFFICIAL[kind.upper()]
    columns = _columns(where, data, (_BLOCK, field), log)
    if columns is None:
        return []
    batch = Batch(where, 2, columns, len(columns[_BLOCK]))
    blocks = _blocks(batch, _BLOCK, log)
    if _COUNTY in columns:
        county = text_of(batch, _COUNTY)
        apart = (blocks != b"") & (county != _part(blocks, 2, 5))
        log.add_where(GeographyError, where, apart, _COUNTY, "expected the county of the block", first=2)
    codes = _codes(batch, category, field, blocks, log)
    return [Assignment(category, field, blocks, codes, Origin(where, 2, batch.rows), True)]


def _columns(where: str, data: bytes, wanted: Sequence[str], log: FindingLog) -> dict[str, pa.Array] | None:
    """Parse delimited text; on failure record why and return None."""
    header, _, body = data.partition(b"\n")
    text = header.decode("utf-8-sig", "replace").rstrip("\r")
    delimiter = max("|,;\t", key=text.count)
    names = [name.strip('"') for name in text.split(delimiter)]
    missing = [name for name in wanted if name not in names]
    if missing or len(set(names)) != len(names):
        rule = f"expected a header with {' and '.join(wanted)}, each once"
        log.add(FormatError, where, 1, None, rule)
        return None
    if not body.strip():
        log.add(FormatError, where, None, None, "expected rows, found none")
        return None
    try:
        options = csv_options(names, delimiter, block=1 << 24)
        table = csv.read_csv(pa.BufferReader(body), **options)
    except pa.ArrowInvalid:
        rows = enumerate(body.splitlines(), start=2)
        wrong = [line for line, row in rows if row.count(delimiter.encode()) != len(names) - 1]
        log.add_rows(FormatError, where, wrong or [2], None, f"expected {len(names)} fields")
        return None
    arrays = (column.combine_chunks() for column in table.columns)
    return dict(zip(table.column_names, arrays, strict=True))


def _table(path: Path, geocode: str, log: FindingLog, *, census: bool) -> list[Assignment]:
    """Return the assignments of a table: one per batch and category."""
    known = column_names(path)
    grfc = {OID_COLUMN, GROUP_COLUMN, *(name for name, _ in BLOCK_COLUMNS)} <= set(known)
    block = next((name for name in (geocode, *_BLOCK_NAMES) if name in known), None)
    fields = {name.lower(): name for name in known if name.lower() in ENTITY_CATEGORIES}
    equal = [(name, match) for name in known if (match := _EQUIVALENT.fullmatch(name))]
    national = not fields and not grfc and bool(equal)
    if grfc:
        block = BLOCK_COLUMNS[0][0]
        fields = {
            category: column
            for category, columns in AREA_COLUMNS.items()
            for column in [next((name for name in columns if name in known), None)]
            if column is not None
        }
    elif national:
        fields = {(match.group(1) or match.group(2)).lower(): name for name, match in equal}
        if len(fields) < len(equal):
            rule = (
                f"expected one plan of a kind, found {', '.join(name for name, _ in equal)}; keep one of each"
            )
            log.add(FormatError, path.name, None, None, rule)
            return []
    if block is None or not fields:
        rule = (
            f"expected a column {geocode} or {', '.join(_BLOCK_NAMES[:-1])}, and columns called "
            f"{', '.join(ENTITY_CATEGORIES)}, or as in an equivalency file (CDFP, CD118, SLDUST) or a GRF-C; "
            "official assignment files keep their names (BlockAssign_ST44_RI_VTD.txt)"
        )
        log.add(FormatError, path.name, None, None, rule)
        return []
    found = []
    places = [*(name for name, _ in BLOCK_COLUMNS), GROUP_COLUMN] if grfc else [block]
    for batch in read_batches(path, [*places, *fields.values()], log):
        if grfc:
            blocks = block_geocodes_of(batch, {}, log, digits=True)[0].astype(f"S{_WIDTH}")
        else:
            blocks = _blocks(batch, block, log) if census else geocodes_of(batch, block, None, log)
        origin = Origin(batch.where, batch.first, batch.rows)
        for category, field in fields.items():
            plain = np.strings.strip(text_of(batch, field))
            codes = _codes(batch, category, field, blocks, log) if census else plain
            found.append(Assignment(category, field, blocks, codes, origin, grfc, national))
    return found


def _blocks(batch: Batch, name: str, log: FindingLog) -> Codes:
    blocks = geocodes_of(batch, name, _WIDTH, log).astype(f"S{_WIDTH}")
    wrong = (blocks != b"") & ~np.strings.isdigit(blocks)
    rule = "expected the 15 digits of a census block"
    batch.report(wrong, name, rule, log, GeographyError)
    return np.where(wrong, b"", blocks)


def _codes(batch: Batch, category: str, field: str, blocks: Codes, log: FindingLog) -> Codes:
    codes, wrong = national_codes(category, np.strings.strip(text_of(batch, field)), blocks)
    rule = f"expected the code of a {category}, in the state (and county) of the block"
    batch.report(wrong & (blocks != b""), field, rule, log, GeographyError)
    return codes


def _part(blocks: Codes, start: int, stop: int) -> Codes:
    """Return characters of 15-character geocodes."""
    letters = np.ascontiguousarray(blocks).view(np.uint8).reshape(len(blocks), _WIDTH)
    return np.ascontiguousarray(letters[:, start:stop]).view(f"S{stop - start}").ravel()
