"""Reader ``pl94-2020``: the official zip files of the 2020 redistricting data.

Table P5 counts people in each type of group quarters. Every type with somebody in it becomes one facility;
its people are chosen by the rule of :mod:`opendas.readers.pl94.people`. The frame of facilities is
derived from confidential counts, so that a run with it is stamped DEMONSTRATION FRAME.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from opendas.errors import DataError
from opendas.files.pl94_layout import P5_TYPES
from opendas.geography.frame import Frame
from opendas.readers.base import InputData, ReaderSpec
from opendas.readers.columns.findings import FindingLog
from opendas.readers.pl94.header import parse_header_2020
from opendas.readers.pl94.people import NURSING, place_people
from opendas.readers.pl94.reader import Blocks, Entries, Parsed, Residence, read_states
from opendas.readers.pl94.segments import Cells, align, parse_segment, read_members

__all__ = ["Pl94Reader2020"]

_SEGMENTS = {1: ("P1", "P2"), 2: ("P3", "P4", "H1"), 3: ("P5",)}
_MAX_PEOPLE = 1 << 31  # so that products of two counts fit 64 bits


@dataclass(frozen=True, slots=True)
class Pl94Reader2020:
    """Reads 2020 redistricting files, one zip file a state.

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
    members = read_members(path, ("geo", *map(str, _SEGMENTS)))
    header = parse_header_2020(members.pop("geo"), log)
    tables: dict[str, Cells] = {}
    for number, names in _SEGMENTS.items():
        segment = parse_segment(members.pop(str(number)), number, names, "|", log)
        if segment is None or header is None:
            continue
        tables.update(align(segment, header.records, header.where, log) or {})
    return None if len(log) or header is None else Parsed(header, tables)


def _quarters(blocks: Blocks) -> npt.NDArray[np.int64]:
    """Return int64 (b, 7): people in group quarters of types 1 to 7."""
    return blocks.tables["P5"][:, np.array(P5_TYPES) - 1].astype(np.int64)


def _facilities(blocks: Blocks) -> npt.NDArray[np.int64]:
    return (_quarters(blocks) > 0).astype(np.int64)


def _place(blocks: Blocks, part: slice, implied: npt.NDArray[np.int64], log: FindingLog) -> Entries:
    quarters = _quarters(blocks)[part]
    flat = implied.reshape(len(implied), -1)
    if not _check(blocks, part, implied, quarters, log):
        nothing = np.empty(0, dtype=np.int64)
        return nothing, nothing.astype(np.int32), nothing
    minors = np.repeat([True, True, False, False], implied.shape[2])
    with_quarters = np.asarray(quarters.any(axis=1))
    rows, cells = np.nonzero(np.where(with_quarters[:, None], 0, flat))
    mixed = np.flatnonzero(with_quarters)
    placed = place_people(flat[mixed], quarters[mixed], minors)
    placed = placed.reshape(len(mixed), placed.shape[1] * placed.shape[2])
    more_rows, more_cells = np.nonzero(placed)
    return (
        np.concatenate([rows, mixed[more_rows]]).astype(np.int64),
        np.concatenate([cells, more_cells]).astype(np.int32),
        np.concatenate([flat[rows, cells], placed[more_rows, more_cells]]),
    )


def _check(
    blocks: Blocks,
    part: slice,
    implied: npt.NDArray[np.int64],
    quarters: npt.NDArray[np.int64],
    log: FindingLog,
) -> bool:
    """Record every block whose table P5 contradicts itself or the others; return whether there is none."""
    lines = blocks.header.lines[blocks.rows[part]]
    p5 = blocks.tables["P5"][part]
    housing = blocks.tables["H1"][part, 0]
    everybody = blocks.tables["P1"][part, 0].astype(np.int64)
    adults = implied[:, 2:].sum(axis=(1, 2))
    inside = quarters.sum(axis=1)
    before = len(log)

    def add(wrong: npt.NDArray[np.bool_], rule: str) -> None:
        log.add_where(DataError, blocks.header.where, wrong, "P5", rule, lines=lines)

    subtotals = (p5[:, 1] == p5[:, 2:6].sum(axis=1)) & (p5[:, 6] == p5[:, 7:].sum(axis=1))
    add(~subtotals | (p5[:, 0] != inside), "the cells of table P5 of this block do not add up to its totals")
    add(inside > everybody, "table P5 of this block counts more people in group quarters than live there")
    rule = "table P5 of this block counts more people in nursing facilities than adults live there"
    add(quarters[:, NURSING - 1] > adults, rule)
    add((inside < everybody) & (housing == 0), "people live in households here, but there is no housing unit")
    add(everybody >= _MAX_PEOPLE, f"expected fewer than {_MAX_PEOPLE} people in a block")
    return len(log) == before


_RESIDENCE = Residence(_facilities, _place)
