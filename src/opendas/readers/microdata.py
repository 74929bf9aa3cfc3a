"""Readers ``ppmf`` and ``mdf``: the Bureau's published microdata, the production layout, and our own files.

All have one row per person or per unit, a census block in five columns, and the codes of the production
system. Neither kind holds a frame: it comes from ``units``, from ``frame``, or is derived from the records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from opendas.errors import ConfigError, GeographyError, SchemaError
from opendas.geography.frame import Frame
from opendas.readers.base import FRAME_FROM_RECORDS, InputData, ReaderSpec
from opendas.readers.census import CensusKind, census_kind
from opendas.readers.columns.coding import Geocodes, codes_of, geocodes_of
from opendas.readers.columns.csv_parquet import Batch, column_names
from opendas.readers.columns.findings import FindingLog
from opendas.readers.counting.rows import FileRows, Leaves, file_rows, read_rows
from opendas.readers.counting.tally import Layout
from opendas.readers.frame.frame_file import hierarchy
from opendas.readers.long_form import LongForm

__all__ = ["MdfReader", "Microdata", "PpmfReader"]

_BLOCK = (("TABBLKST", 2), ("TABBLKCOU", 3), ("TABTRACTCE", 6), ("TABBLK", 4))
_GROUP = "TABBLKGRPCE"
_SHORT = {"TABTRACTCE": "TABTRACT", "TABBLKGRPCE": "TABBLKGRP"}
"""Names that some copies of the published files use."""


def _numbered(first: int, count: int, width: int = 1) -> dict[str, int]:
    """Return the code of each official number, written with or without leading zeros."""
    padded = {f"{first + code:0{width}d}": code for code in range(count)}
    return padded | {str(first + code): code for code in range(count)}


_PERSON: Mapping[str, tuple[Mapping[str, int], str]] = {
    "GQTYPE_PL": (_numbered(0, 8), "expected 0 (household) to 7"),
    "VOTING_AGE": (_numbered(1, 2), "expected 1 (under 18) or 2 (18 and over)"),
    "CENHISP": (_numbered(1, 2), "expected 1 (not Hispanic) or 2 (Hispanic)"),
    "CENRACE": (_numbered(1, 63, 2), "expected 01 to 63"),
}
"""Columns of persons in schema order, with the code of each value."""


@dataclass(frozen=True, slots=True)
class Microdata:
    """The layout of persons or units.

    Parameters
    ----------
    kind : ``"persons"`` or ``"units"``
    names : mapping of official column name to the file's
        Where they differ.
    """

    kind: CensusKind
    names: Mapping[str, str]

    def _name(self, official: str) -> str:
        return self.names.get(official, official)

    @property
    def leaf_columns(self) -> Sequence[str]:
        """The five columns that name a block."""
        return [self._name(name) for name in (*(name for name, _ in _BLOCK), _GROUP)]

    @property
    def leaf_field(self) -> str:
        """The block's column."""
        return "TABBLK"

    @property
    def cell_columns(self) -> Sequence[str]:
        """The columns of codes."""
        return ["RTYPE", "HH_STATUS"] if self.kind == "units" else ["RTYPE", *_PERSON]

    def leaves(self, batch: Batch, log: FindingLog) -> Geocodes:
        """Return the 15-character block of each row."""
        parts = {
            name: geocodes_of(batch, self._name(name), width, log).astype(f"S{width}")
            for name, width in _BLOCK
        }
        wrong = np.any([part == b"" for part in parts.values()], axis=0)
        letters = [part.view(np.uint8).reshape(batch.rows, -1) for part in parts.values()]
        codes = np.concatenate(letters, axis=1).view("S15").ravel()
        block = parts["TABBLK"]
        group = geocodes_of(batch, self._name(_GROUP), 1, log)
        rule = "expected the first digit of the block: a block is a child of its block group"
        apart = ~wrong & (group != b"") & (group != block.astype("S1"))
        log.add_where(GeographyError, batch.where, apart, self._name(_GROUP), rule, first=batch.first)
        return Geocodes(np.where(wrong | apart | (group == b""), b"", codes))

    def cells(self, batch: Batch, log: FindingLog) -> npt.NDArray[np.int64]:
        """Return the cell of each row; -2 for a unit that is no housing unit."""
        return self._units(batch, log) if self.kind == "units" else self._persons(batch, log)

    def counts(self, batch: Batch, log: FindingLog) -> None:
        """Return None: each row is a record."""
        return

    def _persons(self, batch: Batch, log: FindingLog) -> npt.NDArray[np.int64]:
        cells = np.zeros(batch.rows, dtype=np.int64)
        wrong = np.zeros(batch.rows, dtype=bool)
        for name, (keys, rule) in _PERSON.items():
            codes = codes_of(batch, name, keys, rule, log)
            wrong |= codes < 0
            cells = cells * len(set(keys.values())) + codes
        quarters = codes_of(
            batch, "RTYPE", {"3": 0, "5": 1}, "expected 3 (household) or 5 (group quarters)", log
        )
        rule = "expected 3 with GQTYPE_PL 0 and 5 with GQTYPE_PL 1 to 7"
        apart = ~wrong & (quarters >= 0) & (quarters != (cells >= 252))
        log.add_where(SchemaError, batch.where, apart, "RTYPE", rule, first=batch.first)
        return np.where(wrong | apart, -1, cells)

    def _units(self, batch: Batch, log: FindingLog) -> npt.NDArray[np.int64]:
        quarters = codes_of(
            batch, "RTYPE", {"2": 0, "4": 1}, "expected 2 (housing unit) or 4 (group quarters)", log
        )
        status = codes_of(
            batch, "HH_STATUS", {"0": 2, "1": 1, "2": 0}, "expected 1 (occupied), 2 (vacant) or 0", log
        )
        rule = "expected 1 or 2 for housing units and 0 for group quarters"
        apart = (quarters >= 0) & (status >= 0) & ((quarters == 1) != (status == 2))
        log.add_where(SchemaError, batch.where, apart, "HH_STATUS", rule, first=batch.first)
        return np.where((quarters < 0) | apart, -1, np.where(status == 2, -2, status))


@dataclass(frozen=True, slots=True)
class _MicrodataReader:
    """What the two readers share.

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
        data = self._read(None, planning=True)
        return data.frame, data.stamps

    def read(self, cache: Path | None = None) -> InputData:
        """Return frame and histogram.

        Parameters
        ----------
        cache : Path, optional
            Folder for a histogram that is too large for memory; see :class:`~opendas.readers.base.Reader`.

        Raises
        ------
        DataError
            With everything that is wrong in a file.
        """
        return self._read(cache, planning=False)

    def file_rows(self) -> FileRows | None:
        """Return what it takes to count the rows elsewhere; None where that cannot be."""
        levels = hierarchy(self.spec)
        return file_rows(self.spec, self._layout(levels.width), levels, self._leaves)

    @property
    def _leaves(self) -> Leaves:
        if self.spec.frame not in (None, FRAME_FROM_RECORDS):
            return "frame"
        return "records" if self.spec.units is None else "units"

    def _read(self, cache: Path | None, *, planning: bool) -> InputData:
        levels = hierarchy(self.spec)
        layout = self._layout(levels.width)
        return read_rows(self.spec, layout, levels, self._leaves, cache, planning=planning)

    def _layout(self, width: int | None) -> Layout:
        kind = census_kind(self.spec.product)
        if kind is None:
            return self._other_layout(width)
        known = column_names(self.spec.paths[0])
        names = {long: short for long, short in _SHORT.items() if long not in known and short in known}
        return Microdata(kind, names)

    def _other_layout(self, width: int | None) -> Layout:
        raise ConfigError(
            f'reader "{self.spec.reader}" reads for pl94-persons and pl94-units (or a product with the same '
            f'attributes), not for {self.spec.product.name!r}; try reader = "records".'
        )


class PpmfReader(_MicrodataReader):
    """Reads Privacy-Protected Microdata Files, CSV as published (also compressed), or Parquet."""

    __slots__ = ()


class MdfReader(_MicrodataReader):
    """Reads microdata detail files: the production's text, and the Parquet or text of a release."""

    __slots__ = ()

    def _other_layout(self, width: int | None) -> Layout:
        """Return the layout of a user's own product: geocode and one label column per attribute."""
        return LongForm.of(self.spec, width, counted=False)
