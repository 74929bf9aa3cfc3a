"""Reader ``pl94-2010``: the official zip files of the 2010 redistricting data.

The file has no table of group quarters. Blocks with people but no occupied unit become one group-quarters
facility of type 7; everybody else lives in a household. This frame is derived from confidential counts, so
that a run with it is stamped DEMONSTRATION FRAME.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from opendas.geography.frame import Frame
from opendas.readers.base import InputData, ReaderSpec
from opendas.readers.columns.findings import FindingLog
from opendas.readers.pl94.header import parse_header_2010
from opendas.readers.pl94.reader import Blocks, Entries, Parsed, Residence, read_states
from opendas.readers.pl94.segments import Cells, align, parse_segment, read_members
from opendas.schema.pl94 import GQ_COLUMNS, HHGQ_LEVELS

__all__ = ["Pl94Reader2010"]

_SEGMENTS = {1: ("P1", "P2"), 2: ("P3", "P4", "H1")}


@dataclass(frozen=True, slots=True)
class Pl94Reader2010:
    """Reads 2010 redistricting files, one zip file a state.

    Parameters
    ----------
    spec : ReaderSpec
    """

    spec: ReaderSpec

    def frame(self) -> tuple[Frame, tuple[str, ...]]:
        """Return the frame and its stamps.

        Raises
        ------
        DataError
            With everything that is wrong in a file.
        """
        data = read_states(self.spec, _parse, _RESIDENCE, with_counts=False)
        return data.frame, data.stamps

    def read(self, cache: Path | None = None) -> InputData:
        """Return frame and histogram.

        Parameters
        ----------
        cache : Path, optional
            Not used: this reader keeps its histogram in memory.

        Raises
        ------
        DataError
            With everything that is wrong in a file; with ``strict`` also if blocks do not add up to a
            summary record.
        """
        return read_states(self.spec, _parse, _RESIDENCE, with_counts=True)


def _parse(path: Path, log: FindingLog) -> Parsed | None:
    members = read_members(path, ("geo", "1", "2"))
    header = parse_header_2010(members.pop("geo"), log)
    tables: dict[str, Cells] = {}
    for number, names in _SEGMENTS.items():
        segment = parse_segment(members.pop(str(number)), number, names, ",", log)
        if segment is None or header is None:
            continue
        tables.update(align(segment, header.records, header.where, log) or {})
    return None if len(log) or header is None else Parsed(header, tables)


def _group_quarters_only(blocks: Blocks) -> npt.NDArray[np.bool_]:
    """Return bool (b,): people, but no occupied unit."""
    return np.asarray((blocks.tables["P1"][:, 0] > 0) & (blocks.tables["H1"][:, 1] == 0))


def _facilities(blocks: Blocks) -> npt.NDArray[np.int64]:
    facilities = np.zeros((len(blocks.rows), len(GQ_COLUMNS)), dtype=np.int64)
    facilities[:, -1] = _group_quarters_only(blocks)
    return facilities


def _place(blocks: Blocks, part: slice, implied: npt.NDArray[np.int64], log: FindingLog) -> Entries:
    flat = implied.reshape(len(implied), -1)
    hhgq = np.where(_group_quarters_only(blocks)[part], len(HHGQ_LEVELS) - 1, 0)
    rows, columns = np.nonzero(flat)
    cells = hhgq[rows] * flat.shape[1] + columns
    return rows.astype(np.int64), cells.astype(np.int32), flat[rows, columns]


_RESIDENCE = Residence(_facilities, _place)
