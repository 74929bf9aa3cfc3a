"""Block assignment files: which areas blocks lie in, in place of the areas that an input names.

A file has one row a block. The official files come in a zip file a state, one member a kind of area, named
``BlockAssign_ST44_RI_INCPLACE_CDP.txt`` and so on. A table of one's own has a column of geocodes and one
column per category.

Axes: ``l`` leaves, ``r`` rows of the files about one category, ``k`` known blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from opendas.arrays import Bools, Codes, positions_of
from opendas.errors import DataError, Finding, FormatError, GeographyError
from opendas.files.storage.zips import opened_zip
from opendas.geography.frame import ENTITY_CATEGORIES, Frame
from opendas.readers.columns.area_codes import national_codes
from opendas.readers.columns.coding import (
    BLOCK_COLUMNS,
    GROUP_COLUMN,
    block_geocodes_of,
    geocodes_of,
    text_of,
)
from opendas.readers.columns.csv_parquet import Batch, column_names, no_rows, read_batches
from opendas.readers.columns.findings import FindingLog, Origin
from opendas.readers.frame.frame_file import hierarchy
from opendas.readers.frame.grfc import AREA_COLUMNS, OID_COLUMN, read_blocks
from opendas.readers.input.paths import expand_paths
from opendas.readers.input.spec import (
    FRAME_FROM_RECORDS,
    InputData,
    Reader,
    ReaderSpec,
    Source,
    ZipMember,
)
from opendas.readers.pl94.header import block_geocodes
from opendas.readers.pl94.reader import VINTAGES, read_header

_MEMBER = re.compile(r"(?:^|[/!])BlockAssign_ST\d\d_[A-Z]{2}_(\w+)\.txt$", re.IGNORECASE)
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
            found += [part for member in _members(path) for part in _official(member, log)]
        elif _MEMBER.search(path.name):
            found += _official(path, log)
        else:
            found += _table(path, geocode, log, census=census)
        log.raise_if_any(f"{path.name} cannot be read as a block assignment.")
    if not found:
        rule = f"expected block assignments of {', '.join(ENTITY_CATEGORIES)}"
        raise FormatError("no block assignment found.", [Finding(paths[0].name, None, None, rule)])
    return found


def _members(path: Path) -> list[ZipMember]:
    """Return the members that are official files."""
    with opened_zip(path) as archive:
        names = [name for name in archive.namelist() if _MEMBER.search(name)]
    if not names:
        rule = "expected members called like BlockAssign_ST44_RI_VTD.txt"
        raise FormatError(f"{path.name}: no block assignment.", [Finding(path.name, None, None, rule)])
    return [ZipMember(path, name) for name in names]


def _official(file: Path | ZipMember, log: FindingLog) -> Iterator[Assignment]:
    """Yield the assignments of an official file, batch by batch; none of other kinds of area."""
    match = _MEMBER.search(file.name)
    assert match is not None
    if match.group(1).upper() not in _OFFICIAL:
        return
    category, field = _OFFICIAL[match.group(1).upper()]
    county = [_COUNTY] if _COUNTY in column_names(file) else []
    batch = None
    for batch in read_batches(file, [_BLOCK, field, *county], log):
        blocks = _blocks(batch, _BLOCK, log)
        for name in county:
            apart = (blocks != b"") & (text_of(batch, name, log) != _part(blocks, 2, 5))
            batch.report(apart, name, "expected the county of the block", log, GeographyError)
        codes = _codes(batch, category, field, blocks, log)
        origin = Origin(batch.where, batch.first, batch.rows)
        yield Assignment(category, field, blocks, codes, origin, official=True)
    if batch is None and not len(log):
        raise no_rows(file)


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
                "expected one column for each kind of district, found "
                f"{', '.join(name for name, _ in equal)}; keep one of each kind"
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
            plain = np.strings.strip(text_of(batch, field, log))
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
    codes, wrong = national_codes(category, np.strings.strip(text_of(batch, field, log)), blocks)
    rule = f"expected the code of a {category}, in the state (and county) of the block"
    batch.report(wrong & (blocks != b""), field, rule, log, GeographyError)
    return codes


def _part(blocks: Codes, start: int, stop: int) -> Codes:
    """Return characters of 15-character geocodes."""
    letters = np.ascontiguousarray(blocks).view(np.uint8).reshape(len(blocks), _WIDTH)
    return np.ascontiguousarray(letters[:, start:stop]).view(f"S{stop - start}").ravel()


def known_blocks(spec: ReaderSpec) -> Codes | None:
    """Return the geocodes of all blocks that the input of a run lists, ascending, bytes (k,).

    Those of the header of an official redistricting file, of a GRF-C or of a frame file.

    Returns (k,): None where an input lists leaves only: microdata, and frames taken from records.
    """
    if spec.reader in VINTAGES:
        headers = (read_header(path, spec.reader) for path in spec.paths)
        return np.unique(np.concatenate([block_geocodes(header) for header in headers]))
    if spec.reader == "cef":
        return read_blocks(spec.block_files).geocodes
    if spec.frame is not None and spec.frame != FRAME_FROM_RECORDS:
        return _of_frame(Path(spec.frame) if isinstance(spec.frame, str) else spec.frame, spec)
    return None


def _of_frame(path: Source, spec: ReaderSpec) -> Codes:
    log = FindingLog()
    width = hierarchy(spec).width
    if spec.geocode not in column_names(path):
        return read_blocks([path]).geocodes
    codes = [
        geocodes_of(batch, spec.geocode, width, log) for batch in read_batches(path, [spec.geocode], log)
    ]
    log.raise_if_any(f"{path.name}: the list of leaves is not usable.")
    return np.unique(np.concatenate(codes))


@dataclass(frozen=True, slots=True)
class AssignedReader(Reader):
    """A reader whose areas come from block assignment files.

    `spec`, ReaderSpec: with ``block_assignment``. If it is strict, leaves that an official file does not list
    are an error.
    """

    reader: Reader  # reads everything else

    def _read(self, cache: Path | None, *, planning: bool) -> InputData:
        data = self.reader._read(cache, planning=planning)
        frame, findings = self._assigned(data.frame)
        return replace(data, frame=frame, findings=(*data.findings, *findings))

    def _assigned(self, frame: Frame) -> tuple[Frame, tuple[Finding, ...]]:
        spec = self.spec
        paths = expand_paths(spec.block_assignment, Path(), "[geography] block_assignment")
        frame, findings = with_assignments(frame, paths, known=known_blocks(spec), geocode=spec.geocode)
        if findings and spec.strict:
            raise GeographyError("The block assignment does not list every leaf.", findings)
        return frame, findings


def with_assignments(
    frame: Frame, paths: Sequence[Path], *, known: Codes | None = None, geocode: str = "geocode"
) -> tuple[Frame, tuple[Finding, ...]]:
    """Return `frame` with the areas of block assignment files, and warnings.

    A category that a file speaks of is replaced as a whole: a leaf that no row lists lies in no such area.

    `known` (k,): every block that exists, ascending. Without it, blocks outside the states of the frame are
    unknown.

    Raises `DataError` with everything that is wrong in a file, with every block that lies in two areas of one
    category, and with every area that names an unknown block.
    """
    census = frame.leaf == "block" and frame.geocodes.dtype.itemsize == _WIDTH
    found = read_assignments(paths, geocode, census=census)
    if census:
        states = np.unique(frame.geocodes.astype("S2"))
        found = [part.inside(states) if part.national else part for part in found]
    log, warnings = FindingLog(), FindingLog()
    entities = dict(frame.entities)
    for category in ENTITY_CATEGORIES:
        parts = [part for part in found if part.category == category]
        if parts:
            _check_known(parts, frame, known, log, census=census)
            blocks, codes = _one_code_each(parts, log)
            entities[category], listed = _of_leaves(frame, blocks, codes)
            _report_missing(parts, listed, warnings)
    log.raise_if_any("The block assignment is not usable.")
    ordered = {category: entities[category] for category in ENTITY_CATEGORIES if category in entities}
    return replace(frame, entities=ordered), warnings.findings


def _joined(parts: Sequence[Assignment]) -> tuple[Codes, Codes]:
    return np.concatenate([part.blocks for part in parts]), np.concatenate([part.codes for part in parts])


def _check_known(
    parts: Sequence[Assignment], frame: Frame, known: Codes | None, log: FindingLog, *, census: bool
) -> None:
    """Record rows that put an unknown block into an area; rows that say "none" put it nowhere."""
    blocks, codes = _joined(parts)
    if known is not None:
        wrong = positions_of(known, blocks) < 0
        rule = "expected a block that the input lists; blocks of another census have other codes"
    elif census:
        wrong = positions_of(np.unique(frame.geocodes.astype("S2")), blocks.astype("S2")) < 0
        rule = "expected a block in a state of the input"
    else:
        wrong = np.full(len(blocks), bool(np.all(positions_of(frame.geocodes, blocks) < 0)))
        rule = "expected geocodes of the input; these files have none of them"
    wrong &= (codes != b"") & (blocks != b"")
    _report(wrong, parts, rule, log, GeographyError)


def _report(
    wrong: Bools, parts: Sequence[Assignment], rule: str, log: FindingLog, kind: type[DataError]
) -> None:
    """Record a finding for each row where `wrong` is true, by its own file, line and column."""
    ends = np.cumsum([part.origin.rows for part in parts])
    for part, rows in zip(parts, np.split(wrong, ends[:-1]), strict=True):
        log.add_where(kind, part.origin.where, rows, part.field, rule, first=part.origin.first)


def _one_code_each(parts: Sequence[Assignment], log: FindingLog) -> tuple[Codes, Codes]:
    """Return (listed blocks ascending, code of each), after telling which lie in two areas.

    A row that says "none" does not contradict one that names an area.
    """
    blocks, codes = _joined(parts)
    order = np.lexsort((np.arange(len(blocks)), codes == b"", blocks))  # an area before "none"
    unique, first, index = np.unique(blocks[order], return_index=True, return_inverse=True)
    ordered = codes[order]
    wrong = np.zeros(len(blocks), dtype=bool)
    wrong[order] = (ordered != ordered[first][index]) & (ordered != b"")
    category = parts[0].category
    rule = f"expected one {category} for each block; an earlier row puts this block into another"
    _report(wrong, parts, rule, log, DataError)
    return unique, ordered[first]


def _of_leaves(frame: Frame, blocks: Codes, codes: Codes) -> tuple[Codes, Bools]:
    """Return the code of each leaf, and whether it is listed, (l,) both."""
    found = positions_of(blocks, frame.geocodes)
    listed = found >= 0
    return np.where(listed, codes[found], b""), listed


def _report_missing(parts: Sequence[Assignment], listed: Bools, warnings: FindingLog) -> None:
    """Warn of leaves that are not listed by files that list every block, those outside all areas too."""
    complete = any(part.official or bool(np.any(part.codes == b"")) for part in parts)
    missing = int(np.count_nonzero(~listed))
    if complete and missing:
        files = list(dict.fromkeys(part.origin.where for part in parts))
        where = ", ".join(files[:3]) + ", ..." * (len(files) > 3)
        fields = ", ".join(dict.fromkeys(part.field for part in parts))
        rule = f"not listed, and so in no {parts[0].category}: {missing:,} of {len(listed):,} leaves"
        warnings.add(GeographyError, where, None, fields, rule)
