"""Every block that an input knows, the leaves and those without a unit.

Axes: ``k`` known blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from opendas.arrays import Codes
from opendas.readers.base import FRAME_FROM_RECORDS, ReaderSpec, Source
from opendas.readers.cef.blocks import read_blocks
from opendas.readers.columns.coding import geocodes_of
from opendas.readers.columns.csv_parquet import read_batches
from opendas.readers.columns.findings import FindingLog
from opendas.readers.frame.frame_file import hierarchy
from opendas.readers.pl94.header import Header, block_geocodes, parse_header_2010, parse_header_2020
from opendas.readers.pl94.segments import Member, read_members

__all__ = ["known_blocks"]


_HEADERS: Mapping[str, Callable[[Member, FindingLog], Header | None]] = MappingProxyType(
    {"pl94-2010": parse_header_2010, "pl94-2020": parse_header_2020}
)


def known_blocks(spec: ReaderSpec) -> Codes | None:
    """Return the geocodes of all blocks that the input of a run lists, ascending, bytes (k,).

    Those of the header of an official redistricting file, of a GRF-C or of a frame file.

    Returns
    -------
    bytes array (k,) or None
        None where an input lists leaves only: microdata, and frames taken from records.

    Raises
    ------
    DataError
        If a file cannot be read.
    """
    if spec.reader in _HEADERS:
        return np.unique(np.concatenate([_of_header(path, spec.reader) for path in spec.paths]))
    if spec.reader == "cef":
        return read_blocks(spec.block_files).geocodes
    if spec.frame is not None and spec.frame != FRAME_FROM_RECORDS:
        return _of_frame(Path(spec.frame) if isinstance(spec.frame, str) else spec.frame, spec)
    return None


def _of_header(path: Source, reader: str) -> Codes:
    assert isinstance(path, Path)
    log = FindingLog()
    header = _HEADERS[reader](read_members(path, ("geo",))["geo"], log)
    codes = None if header is None else block_geocodes(header, log)
    log.raise_if_any(f"{path.name}: the geography is not usable.")
    assert codes is not None
    return codes


def _of_frame(path: Source, spec: ReaderSpec) -> Codes:
    log = FindingLog()
    width = hierarchy(spec).width
    codes = [
        geocodes_of(batch, spec.geocode, width, log) for batch in read_batches(path, [spec.geocode], log)
    ]
    log.raise_if_any(f"{path.name}: the list of leaves is not usable.")
    return np.unique(np.concatenate(codes))
