"""Official areas of the leaves of a run, and those beside them, as far as files say: public, no count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from opendas.arrays import Codes, Ints, Lookup
from opendas.errors import GeographyError
from opendas.files.official_areas import HEADER_FIELDS, OfficialAreas
from opendas.files.storage.parquet import bytes_column
from opendas.geography.frame import Frame
from opendas.readers.frame.block_assignment import known_blocks
from opendas.readers.input.spec import ReaderSpec
from opendas.readers.pl94.header import (
    Header,
    area_names,
    block_geocodes,
    entity_codes,
    functional_statuses,
    header_text,
    joined,
    official_records,
)
from opendas.readers.pl94.reader import VINTAGES, official_reader, read_header

_BLOCK_WIDTH = 15


def official_areas(spec: ReaderSpec, frame: Frame, headers: Sequence[Header] = ()) -> OfficialAreas | None:
    """Return the official areas that an input lists.

    Of a redistricting file these are all records of its geographic header; of other inputs the blocks that a
    GRF-C or a frame file lists.

    - `frame`: the leaves. Of a category whose areas come from block assignment files, the header's records
      are of no category: they are other areas.
    - `headers`: those of a redistricting file, a state each, if they have been read with all their fields.
    - Returns: None where the input lists nothing but the leaves.
    """
    if frame.leaf != "block" or frame.geocodes.dtype.itemsize != _BLOCK_WIDTH:
        return None
    if spec.reader in VINTAGES:
        census = int(spec.reader.removeprefix("pl94-"))
        read = headers or (read_header(path, spec.reader, HEADER_FIELDS[census]) for path in spec.paths)
        parts = [_records(each, census, frame, assigned=bool(spec.block_assignment)) for each in read]
        return OfficialAreas(census, pa.concat_tables(parts))
    blocks = known_blocks(spec)
    if blocks is None or len(blocks) <= len(frame):
        return None
    table = pa.table({"geolevel": pa.array(["block"] * len(blocks)), "geocode": bytes_column(blocks)})
    return OfficialAreas(0, table)


def _records(header: Header, census: int, frame: Frame, *, assigned: bool) -> pa.Table:
    kinds, codes = official_records(header)
    if assigned:
        for category, areas in frame.entities.items():
            rows = kinds == category
            rows[rows] = ~np.isin(codes[rows], areas)
            kinds[rows] = ""
    none = kinds == ""
    columns = {
        "geolevel": pa.array(kinds, pa.string(), mask=none),
        "geocode": pa.array(codes, pa.binary(), mask=none).cast(pa.string()),
    }
    return pa.table(columns | {name: _texts(header.fields[name]) for name in HEADER_FIELDS[census]})


def _texts(field: Codes) -> pa.Array:
    """Return a field of a header as text: the many in UTF-8 at once, and the many that say one thing."""
    if len(field) and bool((field == field[0]).all()):
        return pa.repeat(header_text(field[0]), len(field))
    try:
        return pa.array(field, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([header_text(value) for value in field.tolist()], pa.string())


def with_headers(frame: Frame, paths: Sequence[Path]) -> Frame:
    """Return a frame of blocks with the areas, names and statuses that official headers give them.

    - `frame`: its leaves are census blocks.
    - `paths`: official zips, one a state.

    Raises `GeographyError` if a block is in none of them: the geography is that of another census, or of
    other states.
    """
    headers = [read_header(path, official_reader(path)) for path in paths]
    blocks = [block_geocodes(header) for header in headers]
    areas = [entity_codes(header, np.flatnonzero(header.is_block)) for header in headers]
    place = places_of_blocks(frame, np.concatenate(blocks), ", ".join(path.name for path in paths))
    entities = {name: np.concatenate([each[name] for each in areas])[place] for name in areas[0]}
    names, statuses = (joined(map(said, headers)) for said in (area_names, functional_statuses))
    return replace(frame, entities=entities, names=names, functional_status=statuses)


def places_of_blocks(frame: Frame, listed: Codes, source: str) -> Ints:
    """Return where each measured block stands in a list of public geography, int64 (blocks,)."""
    place = Lookup.of(listed).positions(frame.geocodes)
    lost = place < 0
    if lost.any():
        raise GeographyError(
            f"{source} lacks {int(lost.sum()):,} of the {len(frame):,} measured blocks, for instance "
            f"{frame.geocodes[lost][0].decode()}. Give the geography of the same census and of all states "
            "measured."
        )
    return place
