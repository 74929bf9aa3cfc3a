"""Puts the areas of block assignment files in place of those that an input names.

Axes: ``l`` leaves, ``r`` rows of the files about one category, ``k`` known blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from opendas.arrays import Bools, Codes
from opendas.errors import DataError, Finding, GeographyError
from opendas.geography.frame import ENTITY_CATEGORIES, Frame
from opendas.readers.base import FRAME_FROM_RECORDS, InputData, Reader, ReaderSpec, Source
from opendas.readers.cef.blocks import read_blocks
from opendas.readers.columns.coding import geocodes_of
from opendas.readers.columns.csv_parquet import column_names, read_batches
from opendas.readers.columns.findings import FindingLog, report_rows
from opendas.readers.frame.assignment_files import Assignment, read_assignments
from opendas.readers.frame.frame_file import hierarchy
from opendas.readers.paths import expand_paths
from opendas.readers.pl94.header import block_geocodes
from opendas.readers.pl94.reader import VINTAGES
from opendas.readers.pl94.segments import read_members


def known_blocks(spec: ReaderSpec) -> Codes | None:
    """Return the geocodes of all blocks that the input of a run lists, ascending, bytes (k,).

    Those of the header of an official redistricting file, of a GRF-C or of a frame file.

    Returns (k,): None where an input lists leaves only: microdata, and frames taken from records.
    """
    if spec.reader in VINTAGES:
        return np.unique(np.concatenate([_of_header(path, spec.reader) for path in spec.paths]))
    if spec.reader == "cef":
        return read_blocks(spec.block_files).geocodes
    if spec.frame is not None and spec.frame != FRAME_FROM_RECORDS:
        return _of_frame(Path(spec.frame) if isinstance(spec.frame, str) else spec.frame, spec)
    return None


def _of_header(path: Source, reader: str) -> Codes:
    assert isinstance(path, Path)
    log = FindingLog()
    header = VINTAGES[reader].parse_header(read_members(path, ("geo",))["geo"], log, ())
    codes = None if header is None else block_geocodes(header, log)
    log.raise_if_any(f"{path.name}: the geography is not usable.")
    assert codes is not None
    return codes


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


_BLOCK_WIDTH = 15


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
            raise GeographyError("Block assignment and input do not fit together.", findings)
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
    census = frame.leaf == "block" and frame.geocodes.dtype.itemsize == _BLOCK_WIDTH
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
        wrong = ~_is_in(blocks, known)
        rule = "expected a block that the input knows; files of another census have other blocks"
    elif census:
        wrong = ~_is_in(blocks.astype("S2"), np.unique(frame.geocodes.astype("S2")))
        rule = "expected a block in a state of the input"
    else:
        wrong = np.full(len(blocks), not bool(_is_in(blocks, frame.geocodes).any()))
        rule = "expected geocodes of the input; none of the files' is one"
    wrong &= (codes != b"") & (blocks != b"")
    report_rows(wrong, [part.origin for part in parts], parts[0].field, rule, log, GeographyError)


def _is_in(wanted: Codes, ascending: Codes) -> Bools:
    found = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
    return np.asarray(ascending[found] == wanted)


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
    report_rows(wrong, [part.origin for part in parts], parts[0].field, rule, log, DataError)
    return unique, ordered[first]


def _of_leaves(frame: Frame, blocks: Codes, codes: Codes) -> tuple[Codes, Bools]:
    """Return the code of each leaf, and whether it is listed, (l,) both."""
    found = np.minimum(np.searchsorted(blocks, frame.geocodes), len(blocks) - 1)
    listed = blocks[found] == frame.geocodes
    return np.where(listed, codes[found], b""), listed


def _report_missing(parts: Sequence[Assignment], listed: Bools, warnings: FindingLog) -> None:
    """Warn of leaves that are not listed by files that list every block, those outside all areas too."""
    complete = any(part.official or bool(np.any(part.codes == b"")) for part in parts)
    missing = int(np.count_nonzero(~listed))
    if complete and missing:
        category = parts[0].category
        rule = f"{missing:,} of {len(listed):,} leaves are not listed, and so lie in no {category}"
        warnings.add(GeographyError, parts[0].origin.where, None, parts[0].field, rule)
