"""From files of rows to a frame and a histogram, batch by batch, whatever a row is.

Axes: ``r`` rows of a batch, ``l`` leaves, ``n`` cells of the schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from opendas.arrays import Bools, Codes, Ints, positions_of, sum_by_key
from opendas.custody.stamps import DEMONSTRATION_FRAME, POPULATED_LEAVES
from opendas.errors import ConfigError, DataError, Finding, GeographyError, PrivacyError, SchemaError
from opendas.geography.frame import Frame
from opendas.readers.columns.coding import Geocodes, text_of, unit_ids
from opendas.readers.columns.csv_parquet import Batch, no_rows, read_batches, shown_name
from opendas.readers.columns.findings import FindingLog
from opendas.readers.counting.contributions import Contributions
from opendas.readers.counting.entries import Entries
from opendas.readers.counting.others import OtherLeaves
from opendas.readers.frame.frame_file import (
    CENSUS_UNITS,
    Hierarchy,
    LeafColumns,
    arrange,
    frame_path,
    read_frame_file,
)
from opendas.readers.frame.units import add_units, check_units, derived_units, frame_findings, read_units
from opendas.readers.input.spec import (
    CensusKind,
    InputData,
    ReaderSpec,
    Source,
    census_kind,
    refuse_to_open,
    without_counts,
)
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product

MAX_TOTAL = 1 << 62
_TOO_MANY = "expected counts whose sum stays below 2**62"


class Layout(Protocol):
    """Where a file format keeps a row's leaf, cell and count."""

    @property
    def leaf_columns(self) -> Sequence[str]:
        """Columns that name the leaf."""
        ...

    @property
    def cell_columns(self) -> Sequence[str]:
        """Columns that hold the cell and the count."""
        ...

    @property
    def leaf_field(self) -> str:
        """The column that findings about the leaf name."""
        ...

    @property
    def others(self) -> OtherLeaves | None:
        """Where rows belong whose leaf the frame does not list; None where such rows are refused."""
        ...

    def beside(self, frame: Frame, spec: ReaderSpec) -> Layout:
        """Return the layout with what a frame file says of the leaves, where the rows repeat it."""
        ...

    @property
    def upper(self) -> Mapping[str, Codes]:
        """Columns that repeat what the frame says of a leaf, with what it says, a code a leaf."""
        ...

    @property
    def strict(self) -> bool:
        """Whether a row that contradicts the frame there is an error, and no warning."""
        ...

    def leaves(self, batch: Batch, log: FindingLog) -> Geocodes:
        """Return the geocode of each row; empty where it is not usable."""
        ...

    def cells(self, batch: Batch, log: FindingLog) -> Ints:
        """Return the cell of each row, (r,); -1 where it is not usable, -2 where the row counts nothing."""
        ...

    def counts(self, batch: Batch, log: FindingLog) -> Ints | None:
        """Return the count of each row, (r,), or None where each row is one record."""
        ...


def collect(paths: Sequence[Source], columns: Sequence[str], layout: Layout) -> tuple[Codes, list[Codes]]:
    """Return the distinct leaves of the input, ascending, and further columns beside them.

    - `columns`: columns whose distinct combinations with the leaf are wanted: codes of higher levels.
    - Returns (k,), (k,): a leaf with two combinations is listed twice.
    """
    found: list[Codes] = []
    for path in paths:
        log = FindingLog()
        for batch in read_batches(path, [*layout.leaf_columns, *columns], log, coded=True):
            leaves = layout.leaves(batch, log)
            joined = leaves.rows() if columns else leaves.used()
            for name in columns:
                joined = np.strings.add(np.strings.add(joined, _BREAK), text_of(batch, name, log))
            found.append(np.unique(joined))
        log.raise_if_any(f"{shown_name(path)} cannot be read.")
    if not sum(map(len, found)):
        raise no_rows(paths[0])
    everything = np.unique(np.concatenate(found))
    if not columns:
        return everything, []
    pieces = [code.split(_BREAK) for code in everything.tolist()]
    return (
        np.array([piece[0] for piece in pieces], dtype=np.bytes_),
        [np.array([piece[k] for piece in pieces], dtype=np.bytes_) for k in range(1, len(columns) + 1)],
    )


_BREAK = b"\x1f"


def tally(
    paths: Sequence[Source], layout: Layout, product: Product, frame: Frame, cache: Path | None = None
) -> tuple[Histogram, tuple[Finding, ...]]:
    """Count the rows of all files, batch by batch.

    - `cache`: folder for what is too large for memory; see :class:`opendas.readers.counting.entries.Entries`.
      With it memory is bounded by a constant beyond `frame`.
    - Returns: one row per leaf of `frame`; warnings.

    Raises `DataError` with everything that is wrong in the first file that is not usable.
    """
    total = rows = 0
    warnings = FindingLog()
    with Entries(len(frame), product.schema.size, cache) as entries:
        for path in paths:
            for read, keys, counts in tally_file(path, layout, product, frame, warnings, total):
                rows += read
                total += exact_sum(counts)
                entries.add(keys, counts)
        if rows == 0:
            raise no_rows(paths[0])
        return entries.histogram(), warnings.findings


def tally_units(
    spec: ReaderSpec, layout: Layout, frame: Frame, cache: Path | None = None
) -> tuple[Histogram, tuple[Finding, ...]]:
    """Count at most so many records of each unit; as :func:`tally` otherwise.

    Every row is checked, also those that are then not counted: that a file is refused says nothing about
    which records were chosen.
    """
    bound, product = spec.contribution, spec.product
    assert bound is not None
    if spec.selection is None:
        raise PrivacyError(
            f"[input] unit_id: which records of each {bound.unit_id} are counted is chosen under a key, and "
            "none was given."
        )
    total = 0
    size = product.schema.size
    warnings = FindingLog()
    with (
        Contributions(bound, spec.selection, size, cache) as units,
        Entries(len(frame), size, cache) as entries,
    ):
        for path in spec.paths:
            log = FindingLog()
            columns = [*layout.leaf_columns, *layout.cell_columns, *layout.upper, bound.unit_id]
            for batch in read_batches(path, list(dict.fromkeys(columns)), log, coded=True):
                ids = unit_ids(batch, bound.unit_id, log)
                keys, _, usable = _rows(batch, layout, product, frame, log, warnings)
                units.add(ids if usable is None else ids[usable], keys)
                total += batch.rows
            log.raise_if_any(f"{shown_name(path)} cannot be read for product {product.name}.")
        if total == 0:
            raise no_rows(spec.paths[0])
        for keys, counts in units.counted():
            entries.add(keys, counts)
        return entries.histogram(), (*warnings.findings, *units.findings(shown_name(spec.paths[0])))


def tally_file(
    path: Source, layout: Layout, product: Product, frame: Frame, warnings: FindingLog, total: int = 0
) -> Iterator[tuple[int, Ints, Ints]]:
    """Count the rows of one file, batch by batch.

    - `frame`: of its leaves, geocodes and name are used.
    - `warnings`: takes what is no error.
    - `total`: records of the files before.
    - Returns `keys`, `counts` (e,): ``leaf * n + cell``, ascending, and how many there are.

    Raises `DataError` at its end, with everything that is wrong in the file.
    """
    log = FindingLog()
    columns = [*layout.leaf_columns, *layout.cell_columns, *layout.upper]
    for batch in read_batches(path, columns, log, coded=True):
        keys, counts, _ = _rows(batch, layout, product, frame, log, warnings)
        distinct, sums = _combine(keys, counts)
        if counts is not None and len(distinct) < len(keys):
            rule = "from here on, some rows repeat a leaf and cell; their counts were added"
            warnings.add_rows(DataError, shown_name(path), [batch.first], None, rule)
        total += len(keys) if counts is None else exact_sum(counts)  # sums may have wrapped around already
        if total >= MAX_TOTAL:
            log.add(DataError, shown_name(path), None, None, _TOO_MANY)
            break
        yield batch.rows, distinct, sums
    log.raise_if_any(f"{shown_name(path)} cannot be read for product {product.name}.")


def exact_sum(counts: Ints) -> int:
    """Return a sum that may not fit 64 bits."""
    return sum(counts.tolist()) if len(counts) and counts.max() > 1 << 40 else int(counts.sum())


def refuse_too_many(path: Source, product: Product) -> DataError:
    """Return the error of files that hold too much together."""
    log = FindingLog()
    log.add(DataError, shown_name(path), None, None, _TOO_MANY)
    return DataError(f"{shown_name(path)} cannot be read for product {product.name}.", log.findings)


def _rows(
    batch: Batch, layout: Layout, product: Product, frame: Frame, log: FindingLog, warnings: FindingLog
) -> tuple[Ints, Ints | None, Bools | None]:
    """Return (leaf * n + cell, count) of the usable rows that count something; and which, if not all."""
    leaves, outside = _leaves(batch, layout, frame, log)
    told = log if layout.strict else warnings
    for column, codes in layout.upper.items():
        said = text_of(batch, column, told)
        apart = (leaves >= 0) & (said != b"") & (said != codes[leaves])
        rule = f"expected the {column} that the frame gives for this {frame.leaf}"
        batch.report(apart, column, rule, told, GeographyError)
    cells = layout.cells(batch, log)
    counts = layout.counts(batch, log)
    usable = (leaves >= 0) & (cells >= 0)
    if counts is not None:
        usable &= counts > 0
    if outside.any():
        outside &= cells != -2
        if counts is not None:
            outside &= counts != 0
        rule = f"expected a {frame.leaf} that the frame holds"
        batch.report(outside, layout.leaf_field, rule, log, GeographyError)
    impossible = ~product.possible[cells]
    if impossible.any():
        impossible &= cells >= 0
        if counts is not None:
            impossible &= counts != 0
        rule = f"this combination of levels is a structural zero of {product.name}"
        batch.report(impossible, None, rule, log, SchemaError)
    if usable.all():
        return leaves * product.schema.size + cells, counts, None
    leaves, cells = leaves[usable], cells[usable]
    counts = None if counts is None else counts[usable]
    return leaves * product.schema.size + cells, counts, usable


def _leaves(batch: Batch, layout: Layout, frame: Frame, log: FindingLog) -> tuple[Ints, Bools]:
    """Return the position of each row's leaf, -1 where it has none; and where the frame does not hold it."""
    if layout.others is not None:
        return layout.others.places(batch, frame.geocodes), np.zeros(batch.rows, dtype=np.bool_)
    geocodes = layout.leaves(batch, log)
    places = positions_of(frame.geocodes, geocodes.values)
    # Codes that are not usable are told already; they are no leaves, and lie outside nothing.
    outside = (places < 0) & (geocodes.values != b"")
    return np.asarray(geocodes.spread(places)), np.array(geocodes.spread(outside))


def _combine(keys: Ints, counts: Ints | None) -> tuple[Ints, Ints]:
    """Return distinct keys, ascending, and their summed counts."""
    if counts is not None:
        return sum_by_key(keys, counts)
    distinct, number = np.unique(keys, return_counts=True)
    return distinct, number.astype(np.int64)


Leaves = Literal["frame", "units", "records"]
"""Where the leaves come from: a frame file, a file of units, or the records themselves."""


def read_rows(
    spec: ReaderSpec,
    layout: Layout,
    levels: Hierarchy,
    leaves: Leaves,
    cache: Path | None,
    *,
    planning: bool,
    residence_is_declared: bool = False,
) -> InputData:
    """Read frame and histogram of one run.

    - `layout`: of the rows in ``spec.paths``.
    - `leaves`, "frame", "units" or "records".
    - `planning`: the histogram is not wanted; it is counted only where the frame depends on it.
    - `residence_is_declared`: everybody lives in households by declaration, so that units derived from the
      records of a public frame say nothing about them.
    """
    kind = census_kind(spec.product)
    confidential = planning and spec.reader in ("records", "histogram")
    if confidential and leaves == "records":
        refuse_to_open(
            spec, 'frame = "from-records", instead of a public list, takes the leaves from the records'
        )
    columns = _columns(spec, layout, levels, leaves)
    derive = kind is not None and not set(CENSUS_UNITS) & set(columns.units)
    if not derive:
        _complete_units(columns, spec, kind, blocks=levels.root is not None)
    frame = columns.frame()
    del columns
    if layout.others is not None:
        layout.others.check(frame.geocodes)
    declared = (POPULATED_LEAVES,) if leaves == "records" else ()
    if planning and not derive:
        return InputData(frame, without_counts(frame, spec), (), declared)
    if spec.contribution is not None and derive:
        raise ConfigError(
            "[input] unit_id: give public unit counts in [input] units. Otherwise the reader derives them "
            "from the records, and with unit_id it does not count every record."
        )
    layout = layout.beside(frame, spec)
    if spec.contribution is None:
        histogram, warnings = tally(spec.paths, layout, spec.product, frame, cache)
    else:
        histogram, warnings = tally_units(spec, layout, frame, cache)
    stamps: tuple[str, ...] = ()
    if derive:
        assert kind is not None
        public = leaves != "records"
        frame = derived_units(frame, histogram, spec.product, kind, public_leaves=public)
        stamps = () if public and (residence_is_declared or kind == "units") else (DEMONSTRATION_FRAME,)
    else:
        broken = check_units(frame, histogram, spec.product, kind, shown_name(spec.paths[0]))
        if broken and spec.strict:
            raise DataError(
                "The records contradict public unit counts or constraints of the product.", broken
            )
        warnings += broken
    if leaves != "records" and spec.frame_is_public:
        warnings += frame_findings(frame, histogram, spec.product, kind)
    return InputData(frame, histogram, stamps, declared, warnings)


@dataclass(frozen=True, slots=True, eq=False)
class FileRows:
    """Rows that other machines may count, file by file, because nothing public depends on them."""

    data: InputData  # with the frame, and an empty histogram
    spec: ReaderSpec
    layout: Layout

    @property
    def kind(self) -> CensusKind | None:
        """Which product of the census it is, if any."""
        return census_kind(self.spec.product)


def file_rows(spec: ReaderSpec, layout: Layout, levels: Hierarchy, leaves: Leaves) -> FileRows | None:
    """Return what it takes to count elsewhere; None where the frame depends on the rows, or is no file."""
    if leaves == "records" or not all(isinstance(path, Path) for path in spec.paths):
        return None
    if spec.contribution is not None:  # the records of one unit may stand in several files
        return None
    kind = census_kind(spec.product)
    columns = _columns(spec, layout, levels, leaves)
    if kind is not None and not set(CENSUS_UNITS) & set(columns.units):
        return None
    _complete_units(columns, spec, kind, blocks=levels.root is not None)
    frame = columns.frame()
    if layout.others is not None:
        layout.others.check(frame.geocodes)
    return FileRows(InputData(frame, without_counts(frame, spec)), spec, layout.beside(frame, spec))


def _columns(spec: ReaderSpec, layout: Layout, levels: Hierarchy, leaves: Leaves) -> LeafColumns:
    """Return the leaves, with the unit columns that a file gives."""
    if leaves == "units":
        assert spec.units is not None
        return read_units(spec, spec.units, levels)
    if leaves == "frame":
        path = frame_path(spec)
        assert path is not None
        columns = read_frame_file(path, spec, levels)
    else:
        geocodes, codes = collect(spec.paths, levels.columns, layout)
        above = dict(zip(levels.columns, codes, strict=True))
        columns = arrange(geocodes, levels, spec.paths[0].name, columns=above)
    if spec.units is not None:
        add_units(columns, spec, spec.units, levels.width)
    return columns


def _complete_units(columns: LeafColumns, spec: ReaderSpec, kind: CensusKind | None, *, blocks: bool) -> None:
    """Give the leaves all the columns that the product's bounds need.

    Of the official blocks those without any unit are no leaves of the census products.
    """
    tie = spec.product.tie
    optional = () if tie is None else tie.units.values()  # without them the tie says nothing of types
    needed = (column for column in spec.product.unit_columns if column not in optional)
    missing = [column for column in needed if column not in columns.units]
    if kind is None:
        if missing:
            raise ConfigError(
                f"product {spec.product.name!r} needs the units {', '.join(missing)}: "
                "give [input] units with these columns."
            )
        return
    if blocks:
        inhabitable = np.zeros(len(columns), dtype=np.bool_)
        for column in set(CENSUS_UNITS) & set(columns.units):
            inhabitable |= columns.units[column] > 0
        if not inhabitable.any():
            raise GeographyError("no leaf of the frame has a housing unit or group quarters.")
        if not inhabitable.all():
            columns.take(inhabitable)
    absent = np.zeros(len(columns), dtype=np.int64)
    columns.units = {name: columns.units.get(name, absent) for name in (*CENSUS_UNITS, *columns.units)}
