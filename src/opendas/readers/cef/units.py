"""Unit records of the Census Edited File: where they stand, what they are, and who may live in them.

Axes: ``u`` units in the order of the files, ``b`` blocks of the GRF-C.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints
from opendas.errors import GeographyError, SchemaError
from opendas.readers.cef.blocks import CefBlocks
from opendas.readers.cef.layout import GQ_CODES, MAFID_RANGE, UNITS
from opendas.readers.cef.records import Records, read_records
from opendas.readers.columns.csv_parquet import no_rows
from opendas.readers.columns.findings import FindingLog, Origin, tell_rows
from opendas.readers.counting.entries import Lookup

__all__ = ["CefUnits", "read_units"]


_MOST = 10**18 - 1
_MOST_PEOPLE = 99_999


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CefUnits:
    """Every unit record. Confidential, but for the number of units of each type in each block.

    Parameters
    ----------
    mafid : int32 (u,)
        Each once.
    block : int32 (u,)
        Position among the blocks of the GRF-C.
    hhgq : int8 (u,)
        0 for housing units, 1 to 7 for group quarters by type.
    vacant : bool (u,)
    people : int32 (u,)
        The field FINAL_POP.
    origins : tuple of Origin
        Where the records were read.
    """

    mafid: npt.NDArray[np.int32]
    block: npt.NDArray[np.int32]
    hhgq: npt.NDArray[np.int8]
    vacant: npt.NDArray[np.bool_]
    people: npt.NDArray[np.int32]
    origins: tuple[Origin, ...]

    def __len__(self) -> int:
        return len(self.mafid)

    def by_block(self, blocks: int) -> Ints:
        """Return int64 (b, 8): housing units and group quarters by type in each block."""
        key = self.block.astype(np.int64) * 8 + self.hhgq
        return np.bincount(key, minlength=8 * blocks).reshape(blocks, 8).astype(np.int64)


def read_units(paths: Sequence[Path], blocks: CefBlocks) -> CefUnits:
    """Read unit records.

    Raises
    ------
    DataError
        With everything that is wrong in a file; or with every MAFID that is listed twice.
    """
    find = Lookup.of(blocks.oids)
    parts: list[CefUnits] = []
    for path in paths:
        log = FindingLog()
        parts += [_units(records, find, log) for records in read_records(path, UNITS, log)]
        log.raise_if_any(f"{path.name} cannot be read as unit records.")
    if not parts:
        raise no_rows(paths[0])
    units = CefUnits(
        np.concatenate([part.mafid for part in parts]),
        np.concatenate([part.block for part in parts]),
        np.concatenate([part.hhgq for part in parts]),
        np.concatenate([part.vacant for part in parts]),
        np.concatenate([part.people for part in parts]),
        tuple(origin for part in parts for origin in part.origins),
    )
    _check_mafids(units)
    return units


def _units(records: Records, find: Lookup, log: FindingLog) -> CefUnits:
    mafid = records.numbers("MAFID", *MAFID_RANGE, log)
    quarters = records.codes("RTYPE", {2: 0, 4: 1}, "expected 2 (housing unit) or 4 (group quarters)", log)
    rule = "expected a code of group quarters, or blanks or 000 for a housing unit"
    hhgq = records.codes("QGQTYP", {0: 0, **GQ_CODES}, rule, log, blank=0)
    apart = (quarters >= 0) & (hhgq >= 0) & ((quarters == 1) != (hhgq > 0))
    rule = "expected a code of group quarters with RTYPE 4, and none with RTYPE 2"
    records.tell(apart, "QGQTYP", rule, log)
    vacancy = records.numbers("VACS", 0, 7, log)
    records.tell((quarters == 1) & (vacancy > 0), "VACS", "expected 0 for group quarters", log)
    people = records.numbers("FINAL_POP", 0, _MOST_PEOPLE, log, blank=0)
    oid = records.numbers("OIDTB", 0, _MOST, log)
    block = find.positions(oid)
    records.tell((oid >= 0) & (block < 0), "OIDTB", "expected a block of the GRF-C", log, GeographyError)
    return CefUnits(
        mafid.astype(np.int32),
        block.astype(np.int32),
        hhgq.astype(np.int8),
        vacancy > 0,
        people.astype(np.int32),
        (Origin(records.where, records.first, len(records)),),
    )


def _check_mafids(units: CefUnits) -> None:
    """Refuse units whose MAFID an earlier unit has: people could not be told apart."""
    order = np.argsort(units.mafid, kind="stable")
    ordered = units.mafid[order]
    repeated = np.zeros(len(units), dtype=bool)
    repeated[order[1:]] = ordered[1:] == ordered[:-1]
    log = FindingLog()
    tell_rows(repeated, units.origins, "MAFID", "expected each MAFID once", log, SchemaError)
    log.raise_if_any("The unit records contradict each other.")
