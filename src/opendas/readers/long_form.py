"""Readers ``records`` and ``histogram``: tables with one column per attribute.

``records`` has one row per record, ``histogram`` one row per leaf and combination of levels, with a count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import numpy.typing as npt

from opendas.errors import ConfigError
from opendas.geography.frame import Frame
from opendas.readers.base import InputData, ReaderSpec
from opendas.readers.columns.coding import Geocodes, attribute_keys, coded_geocodes, codes_of, whole_numbers
from opendas.readers.columns.csv_parquet import Batch
from opendas.readers.columns.findings import FindingLog
from opendas.readers.counting.rows import FileRows, Leaves, file_rows, read_rows
from opendas.readers.frame.frame_file import Hierarchy, frame_path, hierarchy
from opendas.schema.attributes import Schema
from opendas.schema.pl94 import HHGQ_LEVELS

__all__ = ["HistogramReader", "LongForm", "RecordsReader"]


@dataclass(frozen=True, slots=True)
class LongForm:
    """The layout of a table with one column per attribute.

    Parameters
    ----------
    schema : Schema
    geocode : str
        Column of the leaf's geocode.
    width : int or None
        Characters of a geocode.
    columns : tuple of (str or None)
        File column of each attribute; None where it is constant.
    constants : tuple of int
        Code of each constant attribute, 0 for the others.
    count : str or None
        Column of counts; None where each row is a record.
    """

    schema: Schema
    geocode: str
    width: int | None
    columns: tuple[str | None, ...]
    constants: tuple[int, ...]
    count: str | None

    @classmethod
    def of(cls, spec: ReaderSpec, width: int | None, *, counted: bool) -> LongForm:
        """Resolve the run file's part.

        Raises
        ------
        ConfigError
            If ``columns`` or ``constants`` names an unknown attribute, or a constant an unknown level.
        """
        schema = spec.product.schema
        for option, given in (("columns", spec.columns), ("constants", spec.constants)):
            for name in given:
                if name not in schema.names:
                    near = get_close_matches(name, schema.names, n=1) or list(schema.names)
                    raise ConfigError(
                        f"[input] {option}: product {spec.product.name!r} has no attribute {name!r}; "
                        f"did you mean {near[0]!r}?"
                    )
        both = sorted(set(spec.columns) & set(spec.constants))
        if both:
            raise ConfigError(f"[input] {both[0]!r} is in columns and in constants; keep one.")
        constants = []
        for attribute in schema.attributes:
            label = spec.constants.get(attribute.name)
            keys = attribute_keys(attribute)
            if label is not None and str(label) not in keys:
                raise ConfigError(
                    f"[input] constants: {attribute.name!r} has no level {label!r}; it has "
                    f"{', '.join(attribute.levels[:12])}."
                )
            constants.append(0 if label is None else keys[str(label)])
        columns = tuple(
            None if name in spec.constants else spec.columns.get(name, name) for name in schema.names
        )
        return cls(schema, spec.geocode, width, columns, tuple(constants), spec.count if counted else None)

    @property
    def leaf_columns(self) -> Sequence[str]:
        """The geocode column."""
        return (self.geocode,)

    @property
    def leaf_field(self) -> str:
        """The geocode column."""
        return self.geocode

    @property
    def cell_columns(self) -> Sequence[str]:
        """The attributes' columns, and that of counts."""
        attributes = [name for name in self.columns if name is not None]
        return attributes if self.count is None else [*attributes, self.count]

    def leaves(self, batch: Batch, log: FindingLog) -> Geocodes:
        """Return the geocode of each row."""
        return coded_geocodes(batch, self.geocode, self.width, log)

    def cells(self, batch: Batch, log: FindingLog) -> npt.NDArray[np.int64]:
        """Return the cell of each row, -1 where a level is unknown."""
        cells = np.zeros(batch.rows, dtype=np.int64)
        wrong = np.zeros(batch.rows, dtype=bool)
        for attribute, column, constant in zip(
            self.schema.attributes, self.columns, self.constants, strict=True
        ):
            cells *= len(attribute)
            if column is None:
                cells += constant
                continue
            codes = codes_of(batch, column, attribute_keys(attribute), _level_rule(attribute.levels), log)
            wrong |= codes < 0
            cells += codes
        if wrong.any():
            cells[wrong] = -1
        return cells

    def counts(self, batch: Batch, log: FindingLog) -> npt.NDArray[np.int64] | None:
        """Return the count of each row."""
        return None if self.count is None else whole_numbers(batch, self.count, log)


def _level_rule(levels: Sequence[str]) -> str:
    if len(levels) <= 8:
        return f"expected one of {', '.join(levels)}, or a code from 0 to {len(levels) - 1}"
    return f"expected one of {len(levels)} level labels ({levels[0]}, {levels[1]}, ...) or a code from 0"


@dataclass(frozen=True, slots=True)
class _TableReader:
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
        ConfigError
            If the run names no frame.
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
        ConfigError
            If the run names no frame.
        DataError
            With everything that is wrong in a file.
        """
        return self._read(cache, planning=False)

    def file_rows(self) -> FileRows | None:
        """Return what it takes to count the rows elsewhere; None where that cannot be."""
        return file_rows(self.spec, *self._layout())

    def _layout(self) -> tuple[LongForm, Hierarchy, Leaves]:
        levels = hierarchy(self.spec)
        layout = LongForm.of(self.spec, levels.width, counted=isinstance(self, HistogramReader))
        return layout, levels, "records" if frame_path(self.spec) is None else "frame"

    def _read(self, cache: Path | None, *, planning: bool) -> InputData:
        layout, levels, leaves = self._layout()
        # That everybody lives in households is declared, not found in the data. A constant type of group
        # quarters is not enough: where its facilities are would still come from the records.
        declared = leaves == "frame" and self.spec.constants.get("hhgq") == HHGQ_LEVELS[0]
        return read_rows(
            self.spec, layout, levels, leaves, cache, planning=planning, residence_is_declared=declared
        )


class RecordsReader(_TableReader):
    """Reads one row per record."""

    __slots__ = ()


class HistogramReader(_TableReader):
    """Reads one row per leaf and combination of levels, with a count."""

    __slots__ = ()
