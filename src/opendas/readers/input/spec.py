"""Input and result of every reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from opendas.errors import Finding, PrivacyError
from opendas.files.storage.remote import RemoteInput
from opendas.geography.frame import Frame, LevelRule
from opendas.schema.declarations import ContributionBound
from opendas.schema.histogram import Histogram
from opendas.schema.pl94 import pl94_persons, pl94_units
from opendas.schema.product import Product

FRAME_FROM_RECORDS = "from-records"
"""Value of ``frame`` that takes the leaves from the input and thereby publishes which are populated."""

PUBLISHED = "nmf"
"""What stands for a reader where no record is read, but noisy measurements that were published."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MemoryTable:
    """A table that is in memory already, read like a file."""

    name: str  # how findings name it
    # pyarrow.Table: shared with its owner, not copied. Confidential where it holds counts or records.
    table: Any


@dataclass(frozen=True, slots=True)
class ZipMember:
    """A text file in a zip file, read like a file."""

    path: Path
    member: str

    @property
    def name(self) -> str:
        """How findings name it."""
        return f"{self.path.name}!{self.member}"


Source = Path | MemoryTable
"""Where rows come from."""


@dataclass(frozen=True, slots=True)
class UnitsSpec:
    """Where public unit counts per leaf come from: ``[input] units`` of the run file.

    Parameters
    ----------
    path : Source
        CSV or Parquet file, or a table in memory.
    geocode : str
        Its geocode column.
    columns : mapping of frame column to file column
        Frame columns are ``housing`` (short for ``hu``), ``gq1`` ... or a product's own; unnamed ones keep
        their name.
    """

    path: Source
    geocode: str = "geocode"
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, repr=False)
class SelectionKeys:
    """Keys that decide which records of a unit are counted: who has them and the records knows which."""

    # units, records, 32 bytes: of the identifiers, and of the order of one unit's records.
    units: bytes
    records: bytes


@dataclass(frozen=True, slots=True)
class ReaderSpec:
    """A reader's part of the run file, resolved.

    Parameters
    ----------
    reader : str
        ``pl94-2010``, ``pl94-2020``, ``ppmf``, ``mdf``, ``cef``, ``records`` or ``histogram``.
    paths : tuple of Source
        Existing files (folders and globs already expanded, sorted), or tables in memory.
    product : Product
    root : str
        Topmost census geolevel, ``us`` or ``state``.
    levels : tuple of LevelRule
        For users' own hierarchies, top first, the last one being the leaf; empty for census readers.
    frame : Source, ``"from-records"`` or None
    geocode, count : str
        Column names for ``records`` and ``histogram``.
    columns : mapping of attribute to file column
    constants : mapping of attribute to level label
    other : mapping of attribute to level label
        What every other label counts as.
    bins : mapping of attribute to tuple of numbers
        Where the levels of an attribute begin whose column holds numbers: a number is in the last one that
        begins at it or below.
    other_leaf : str or None
        What stands for leaves that the frame does not list; see :mod:`opendas.readers.counting.others`.
    frame_is_public : bool
        The frame is declared to be known without the records.
    units : UnitsSpec or None
    strict : bool
        A disagreement with a published summary record is an error rather than a warning.
    unit_records, block_files : tuple of Source
        For ``cef``: the files of unit records, and those of the GRF-C.
    block_assignment : tuple of Path
        Files, folders or patterns: files that say in which areas blocks lie, in place of the areas that the
        input names.
    remote : RemoteInput
        What only Spark reads, in place of `paths`, `frame` and the path of `units`.
    contribution : ContributionBound or None
        For ``records``: at most how many records of a unit are counted; None counts every record.
    selection : SelectionKeys or None
        Under which keys they are chosen; without them such an input can be planned for, and not be read.
    plan_from_records : bool
        Whether planning may open confidential records, where the frame comes from them.
    """

    reader: str
    paths: tuple[Source, ...]
    product: Product
    root: str = "state"
    levels: tuple[LevelRule, ...] = ()
    frame: Source | str | None = None
    geocode: str = "geocode"
    count: str = "count"
    columns: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)
    other: Mapping[str, str] = field(default_factory=dict)
    bins: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    other_leaf: str | None = None
    frame_is_public: bool = True
    units: UnitsSpec | None = None
    strict: bool = False
    unit_records: tuple[Source, ...] = ()
    block_files: tuple[Source, ...] = ()
    block_assignment: tuple[Path, ...] = ()
    remote: RemoteInput = field(default_factory=RemoteInput)
    contribution: ContributionBound | None = None
    selection: SelectionKeys | None = field(default=None, repr=False)
    plan_from_records: bool = False

    def counting_everything(self) -> ReaderSpec:
        """Return the same, but that every record is counted: for comparisons with the truth only."""
        return replace(self, contribution=None, selection=None)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class InputData:
    """The result of a reader. Confidential, except for the frame.

    Parameters
    ----------
    frame : Frame
        Public: the leaves of the run in ascending order, with unit counts and entity codes.
    histogram : Histogram
        Confidential: one row per leaf of `frame`, in its order.
    stamps : tuple of str
        Stamps that the certificate must show, for instance ``DEMONSTRATION FRAME``.
    declared : tuple of str
        What the input itself publishes beside the product's invariants, for instance
        ``"populated leaves"`` with a frame taken from records.
    findings : tuple of Finding
        Warnings; written under ``confidential/`` only.
    headers : list of opendas.readers.pl94.header.Header
        Of redistricting files, public: who writes them takes them out, since those of a state are large.
    """

    frame: Frame
    histogram: Histogram
    stamps: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    headers: list[Any] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"InputData({self.frame!r}, confidential)"


def without_counts(frame: Frame, spec: ReaderSpec) -> Histogram:
    """Return a histogram of the leaves of a frame that counts nothing."""
    nothing = np.empty(0, dtype=np.int64)
    return Histogram.from_entries(nothing, nothing, nothing, shape=(len(frame), spec.product.schema.size))


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads one kind of input, which its subclass defines in :meth:`_read`.

    Parameters
    ----------
    spec : ReaderSpec
    """

    spec: ReaderSpec

    def frame(self) -> tuple[Frame, tuple[str, ...]]:
        """Return the public frame and its stamps, for planning.

        Raises
        ------
        ConfigError
            If the run names no frame where the reader needs one, or another product than the reader reads
            for.
        PrivacyError
            If the frame comes from confidential records, and they may not be opened for planning.
        DataError
            With everything that is wrong in a file.
        """
        data = self._read(None, planning=True)
        return data.frame, data.stamps

    def read(self, cache: Path | None = None) -> InputData:
        """Return everything.

        Parameters
        ----------
        cache : Path, optional
            A folder for confidential scratch files, which the caller removes when the run is finished. With
            it a reader may put a large histogram there and return it memory mapped; without it the histogram
            is in memory. Values are the same.

        Raises
        ------
        ConfigError
            As :meth:`frame`.
        DataError
            With everything that is wrong in a file; with ``spec.strict`` also where counts contradict public
            units or published summary records.
        """
        return self._read(cache, planning=False)

    def _read(self, cache: Path | None, *, planning: bool) -> InputData:
        """Return frame and histogram; where it is for planning, the histogram is not wanted."""
        raise NotImplementedError


def refuse_to_open(spec: ReaderSpec, why: str) -> None:
    """Refuse to open confidential records only to plan, unless that was asked for."""
    if not spec.plan_from_records:
        raise PrivacyError(
            f"{why}, and a plan does not open confidential records unless you allow it with --read-records "
            "(read_records=True). What it then shows reveals something about the records."
        )


CensusKind = Literal["persons", "units"]


def census_kind(product: Product) -> CensusKind | None:
    """Return the census table that a product counts, by its attributes; None for other products."""
    if product.schema == pl94_persons().schema:
        return "persons"
    return "units" if product.schema == pl94_units().schema else None
