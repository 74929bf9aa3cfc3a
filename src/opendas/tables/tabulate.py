"""Published tables: one per table name and geolevel, made from a release folder alone; with margins.

Beside a count stands ``_MOE90``, the margin of that count, where the release holds replicates; and
``_NOISE90``, the margin of the noise added to one measured answer: the least m such that at least the given
part of the noise lies within -m to m. It describes the noisy measurement, before post-processing made it
consistent, whole and non-negative, and not the error of the published count. A cell that is the sum of
several measured answers has none. A cell that is invariant, or fixed by public counts, has the margin 0.

Axes: ``g`` geounits of the table, ``t`` columns.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from opendas.arrays import Bools, Ints
from opendas.custody.folders import atomic_file
from opendas.errors import ConfigError, nearest
from opendas.files.nmf.reading import MeasurementFile
from opendas.files.release_folder import ReleasedProduct, ReleaseFolder
from opendas.files.release_tree import noisy_tree
from opendas.files.storage.parquet import bytes_column, write_batches
from opendas.geography.frame import Grouping
from opendas.intervals.answers import Intervals
from opendas.schema.attributes import cell_text
from opendas.schema.query_groups import QueryGroup
from opendas.tables.cells import (
    PL94_TABLES,
    Table,
    check_geolevel,
    check_held,
    check_lowest,
    find_table,
    product_table,
    published_tables,
)
from opendas.tables.counting import count_batches
from opendas.tables.interval_tables import DEFAULT_CONFIDENCE, MeasuredProduct
from opendas.tables.legacy import write_legacy
from opendas.tables.names import area_names, geo_ids
from opendas.tables.replicate_margins import Replicated, number_of_replicates, table_margins

TABLE_FORMATS = ("parquet", "csv", "pl94")
"""``pl94`` is the legacy format, which holds all redistricting tables in one zip file a state."""

INTERVALS = "_intervals"
"""Ending of the name of a table with intervals, before that of its format."""

LONG = "_long"
"""Ending of the name of a table in long form, before that of its format."""

LONG_SCHEMA = pa.schema(
    [
        ("geocode", pa.string()),
        ("name", pa.string()),
        ("geolevel", pa.string()),
        ("variable", pa.string()),
        ("label", pa.string()),
        ("value", pa.int64()),
        ("margin", pa.int64()),
    ]
)
"""One row for each geounit and cell; `margin` is that of the count, null without replicates."""

LONGEST_NAME = 255
"""Bytes of the name of a file."""

_DECIMALS = 4


@dataclass(frozen=True, slots=True, eq=False)
class TableRequest:
    """One table at one geolevel."""

    released: ReleasedProduct
    table: Table
    grouping: Grouping
    stem: str  # file name without its ending
    confidence: Fraction  # of the margins of error, and the level of intervals
    measured: MeasuredProduct | None = None  # what intervals are made from; None for a table without
    replicates: int = 0  # how many replicates the margins of counts are made from; 0 for a table without


def variables_of(released: ReleasedProduct, table: Table) -> tuple[str, ...]:
    """Return the names of a table's columns that tell tables apart: of a query group, after its own name."""
    if table.name in published_tables(released.product.layout):
        return table.columns
    return tuple(f"{table.name}: {column}" for column in table.columns)


def file_name(stem: str, fmt: str) -> str:
    """Return the name of a table's file."""
    name = f"{stem}.{fmt}"
    if len(name.encode()) > LONGEST_NAME:
        raise ConfigError(
            f"a file of this table would be called {name[:40]}..., of {len(name.encode())} bytes, and "
            f"names have at most {LONGEST_NAME}. Shorten the names of attributes and recodes, or read "
            "the table in Python: Release.table."
        )
    return name


def percent_text(confidence: Fraction) -> str:
    """Return a confidence as the names of columns end with it, for instance ``90``."""
    if not 0 < confidence < 1:
        raise ConfigError(
            f"the confidence of margins must lie between 0 and 1, for instance 0.90; it is {confidence}."
        )
    percent = confidence * 100
    return f"{percent.numerator}" if percent.denominator == 1 else f"{float(percent):g}"


def table_request(
    release: ReleaseFolder,
    name: str,
    geolevel: str,
    confidence: Fraction = DEFAULT_CONFIDENCE,
    *,
    measured: dict[str, MeasuredProduct] | None = None,
    replicates: int | None = None,
    allow_derived: bool = False,
) -> TableRequest:
    """Resolve a table name and a geolevel.

    - `name`: a published table of a product, such as ``P1``, ``H1`` or ``PCT12``, a query group, or
      ``PRODUCT:NAME`` where several products have it.
    - `geolevel`: official geolevel or entity category of the frame.
    - `measured`, dict of product name to MeasuredProduct: give it to have intervals: measurements are opened
      into it once, for all tables of a product.
    - `replicates`: make margins of counts from so many replicates; by default from all that the release
      holds.
    - `allow_derived`: also a table of what the input does not hold, and the reader derived.

    Raises `ConfigError` if the table is unknown, its product was not run, or the frame has no such geolevel;
    or if it needs what the input lacks; `FormatError` if intervals are wanted and the measurement files do
    not hold all answers.
    """
    percent_text(confidence)
    released, query, explicit = find_table(release, name)
    table = product_table(released.product, query)
    if not allow_derived:
        check_held(released.reader, released.product, table)
    slug = "+".join(quote(part, safe="") for part in query.split(" * "))
    if explicit:
        slug = f"{released.name}.{slug}"
    check_geolevel(released.frame, geolevel)
    check_lowest(released.frame, table, geolevel)
    grouping = released.grouping(geolevel)
    if replicates is None:
        replicates = number_of_replicates(released)
    stem = f"{slug}_{geolevel}{INTERVALS if measured is not None else ''}"
    if measured is None:
        return TableRequest(released, table, grouping, stem, confidence, replicates=replicates)
    if released.name not in measured:
        measured[released.name] = MeasuredProduct(noisy_tree(released), released)
    return TableRequest(released, table, grouping, stem, confidence, measured[released.name], replicates)


def _schema(request: TableRequest, known: Sequence[bool]) -> pa.Schema:
    fields = [("GEOID", pa.string())]
    level = percent_text(request.confidence)
    for column, has_margin in zip(request.table.columns, known, strict=True):
        fields.append((column, pa.int64()))
        if request.replicates:
            fields.append((f"{column}_MOE{level}", pa.int64()))
        if has_margin:
            fields.append((f"{column}_NOISE{level}", pa.int64()))
        if request.measured is not None:
            fields.append((f"{column}_EST", pa.float64()))
            fields.append((f"{column}_EST_MOE{level}", pa.float64()))
            fields += [(f"{column}_{end}{level}", pa.int64()) for end in ("LOW", "HIGH")]
    return pa.schema(fields)


def _metadata(request: TableRequest) -> dict[str, object]:
    metadata: dict[str, object] = {
        "format": "opendas table 1",
        "table": request.table.name,
        "product": request.released.name,
        "geolevel": request.grouping.geolevel,
        "labels": dict(zip(request.table.columns, request.table.labels, strict=True)),
        "confidence": str(request.confidence),
        "stamps": list(request.released.stamps),
        "noise": "_NOISE is of the one measurement that answers the cell directly, before post-processing",
    }
    if request.replicates:
        metadata["replicates"] = request.replicates
        metadata["margin"] = "_MOE is of the published count, from replicates of the release"
    if request.measured is not None:
        metadata["intervals"] = (
            "_EST is the unbiased least-squares estimate from all noisy measurements, _EST_MOE half the "
            "width of its interval; _LOW and _HIGH are that interval for the true count, cut off at what is "
            "public"
        )
    return metadata


def table_batches(request: TableRequest) -> Iterator[pa.Table]:
    """Yield the rows of a table in batches: ``GEOID``, then each cell with its margins beside it.

    The margin of a count is there if the release has replicates, that of the noise if it is known for some
    geounit. With intervals follow the estimate, its margin, and the ends of the interval for the true count.
    The first batch may be empty; all have the same schema.
    """
    noise = margins(request.released, request.table, request.grouping, request.confidence)
    known = (noise != NO_MARGIN).any(axis=0).tolist()
    schema = _schema(request, known)
    if len(request.grouping) == 0:
        yield schema.empty_table()
    found, of_counts = _interval_columns(request), _count_margins(request)
    batches = count_batches(request.released.estimate, request.table, request.grouping)
    for start, counts in batches:
        stop = start + len(counts)
        arrays = [bytes_column(request.grouping.geocodes[start:stop])]
        for column, has_margin in enumerate(known):
            arrays.append(pa.array(np.ascontiguousarray(counts[:, column])))
            if of_counts is not None:
                arrays.append(pa.array(np.ascontiguousarray(of_counts[start:stop, column])))
            if has_margin:
                one = np.ascontiguousarray(noise[start:stop, column])
                arrays.append(pa.array(one, mask=one == NO_MARGIN))
            if found is not None:
                arrays += _interval_arrays(found, slice(start, stop), column)
        yield pa.Table.from_arrays(arrays, schema=schema)


def _count_margins(request: TableRequest) -> Ints | None:
    if not request.replicates:
        return None
    found = table_margins(
        Replicated.of(request.released),
        request.table,
        request.grouping,
        request.confidence,
        request.replicates,
    )
    return found.margin.astype(np.int64)


def _interval_columns(request: TableRequest) -> Intervals | None:
    if request.measured is None:
        return None
    found = [
        part for _, part in request.measured.batches(request.table, request.grouping, request.confidence)
    ]
    return Intervals.joined(found, float(request.confidence), len(request.table.columns))


def _interval_arrays(found: Intervals, rows: slice, column: int) -> list[pa.Array]:
    unknown = ~np.isfinite(found.variance[rows, column])
    arrays = []
    for values in (found.estimate, found.margin):
        # The last digits of a sum of doubles depend on the machine: they are not published.
        one = np.round(np.where(unknown, 0.0, values[rows, column]), _DECIMALS) + 0.0
        arrays.append(pa.array(one, mask=unknown))
    for values in (found.lower, found.upper):
        open_end = np.isinf(values[rows, column])
        whole = np.where(open_end, 0.0, values[rows, column]).astype(np.int64)
        arrays.append(pa.array(whole, mask=open_end))
    return arrays


def write_table(request: TableRequest, fmt: str, folder: Path) -> Path:
    """Write one table, for instance ``P1_block.parquet``, and return its path.

    `fmt`, ``"parquet"`` or ``"csv"``: a CSV file also has ``GEO_ID`` and ``NAME`` of each geounit, where they
    are known, and the stamps of the release, which a Parquet file has in its metadata.
    """
    path = folder / file_name(request.stem, fmt)
    batches = table_batches(request)
    if fmt == "parquet":
        write_batches(path, batches, metadata=_metadata(request))
    else:
        write_cells(path, _named(request, batches))
    return path


def write_cells(path: Path, batches: Iterator[pa.Table]) -> None:
    """Write batches of one schema, at least one, as CSV that a spreadsheet shows and does not compute."""
    first = next(batches)
    header = io.StringIO()
    csv.writer(header, lineterminator="\n").writerow(map(cell_text, first.schema.names))
    options = pacsv.WriteOptions(include_header=False, quoting_style="needed")
    with atomic_file(path) as file:
        file.write(header.getvalue().encode("utf-8"))
        for batch in itertools.chain([first], batches):
            pacsv.write_csv(_shown(batch), file, options)


def _named(request: TableRequest, batches: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield batches with what identifies a geounit to a spreadsheet before its code, and the stamps at last.

    Spreadsheets take a code for a number, and cut its leading zeros off; identifiers have letters.
    """
    names = area_names(request.released.frame, request.released.official, request.grouping)
    identifiers = {
        "GEO_ID": geo_ids(request.released, request.grouping),
        "NAME": names if any(names) else None,
    }
    start = 0
    for batch in batches:
        stop = start + len(batch)
        for place, (column, texts) in enumerate(identifiers.items()):
            if texts is not None:
                values = pa.array(texts[start:stop], pa.string())
                batch = batch.add_column(min(place, batch.column_names.index("GEOID")), column, values)
        yield stamped(batch, request.released.stamps)
        start = stop


def stamped(batch: pa.Table, stamps: Sequence[str]) -> pa.Table:
    """Return a batch with the stamps in a last column, if there are any."""
    if not stamps:
        return batch
    return batch.append_column("STAMP", pa.array(["; ".join(stamps)] * len(batch), pa.string()))


def _long_batches(requests: Sequence[TableRequest], *, for_csv: bool) -> Iterator[pa.Table]:
    """Yield the rows of tables in long form (:data:`LONG_SCHEMA`), request by request, geounit by geounit.

    With `for_csv` follow ``geo_id``, which keeps its leading zeros in a spreadsheet, and the stamps.
    """
    stamps = tuple(dict.fromkeys(stamp for one in requests for stamp in one.released.stamps))
    empty = LONG_SCHEMA.empty_table()
    yield stamped(empty.append_column("geo_id", pa.array([], pa.string())), stamps) if for_csv else empty
    for request in requests:
        names, ids = area_names(request.released.frame, request.released.official, request.grouping), None
        if for_csv:
            ids = geo_ids(request.released, request.grouping) or [""] * len(names)
        margins_of_counts, t = _count_margins(request), len(request.table.columns)
        for start, counts in count_batches(request.released.estimate, request.table, request.grouping):
            stop = start + len(counts)
            geounit = np.repeat(np.arange(stop - start, dtype=np.int32), t)
            cell = np.tile(np.arange(t, dtype=np.int32), stop - start)
            columns = [
                bytes_column(request.grouping.geocodes[start:stop]).take(pa.array(geounit)),
                pa.array(names[start:stop], pa.string()).take(pa.array(geounit)),
                pa.array([request.grouping.geolevel], pa.string()).take(pa.array(np.zeros_like(cell))),
                pa.array(variables_of(request.released, request.table), pa.string()).take(pa.array(cell)),
                pa.array(request.table.labels, pa.string()).take(pa.array(cell)),
                pa.array(np.ascontiguousarray(counts).ravel()),
                pa.nulls(len(cell), pa.int64())
                if margins_of_counts is None
                else pa.array(np.ascontiguousarray(margins_of_counts[start:stop]).ravel()),
            ]
            batch = pa.Table.from_arrays(columns, schema=LONG_SCHEMA)
            if ids is not None:
                texts = pa.array(ids[start:stop], pa.string()).take(pa.array(geounit))
                batch = stamped(batch.append_column("geo_id", texts), stamps)
            yield batch


def _long_requests(
    release: ReleaseFolder,
    tables: Sequence[str],
    geolevels: Sequence[str],
    *,
    replicates: int | None = None,
    allow_derived: bool = False,
) -> list[TableRequest]:
    requests = [
        table_request(release, name, geolevel, replicates=replicates, allow_derived=allow_derived)
        for geolevel in geolevels
        for name in tables
    ]
    first = requests[: len(tables)]
    variables = [name for request in first for name in variables_of(request.released, request.table)]
    if len(set(variables)) < len(variables):
        raise ConfigError(
            f"{', '.join(tables)}: two of these have a variable of the same name; write them one at a time."
        )
    return requests


def long_table(
    path: Path, tables: Sequence[str], geolevels: Sequence[str], *, allow_derived: bool = False
) -> pa.Table:
    """Return tables in long form (:data:`LONG_SCHEMA`), without writing a file; as :func:`write_long`."""
    requests = _long_requests(ReleaseFolder(path), tables, geolevels, allow_derived=allow_derived)
    return pa.concat_tables(_long_batches(requests, for_csv=False))


def write_long(
    release: ReleaseFolder,
    tables: Sequence[str],
    geolevels: Sequence[str],
    *,
    fmt: str = "parquet",
    replicates: int | None = None,
    allow_derived: bool = False,
    to: Path | None = None,
) -> Path:
    """Write tables at several geolevels into one file in long form, and return its path.

    Arguments are as in :func:`write_tables`, and `replicates` as in :func:`table_request`.
    """
    if fmt not in ("parquet", "csv"):
        raise ConfigError(f"unknown format {fmt!r} of a table in long form; the choices are parquet and csv.")
    requests = _long_requests(release, tables, geolevels, replicates=replicates, allow_derived=allow_derived)
    slugs = [request.stem.removesuffix(f"_{geolevels[0]}") for request in requests[: len(tables)]]
    folder = release.path / "tables" if to is None else to
    path = folder / file_name(f"{','.join(slugs)}_{','.join(geolevels)}{LONG}", fmt)
    batches = _long_batches(requests, for_csv=fmt == "csv")
    if fmt == "csv":
        write_cells(path, batches)
        return path
    metadata: dict[str, object] = {
        "format": "opendas long table 1",
        "tables": list(tables),
        "geolevels": list(geolevels),
        "replicates": requests[0].replicates,
        "confidence": str(DEFAULT_CONFIDENCE),
        "stamps": list(dict.fromkeys(stamp for one in requests for stamp in one.released.stamps)),
    }
    write_batches(path, batches, metadata=metadata)
    return path


def _shown(batch: pa.Table) -> pa.Table:
    """Return a batch whose texts are cells that a spreadsheet shows; numbers stay as they are."""
    for number, field in enumerate(batch.schema):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            texts = pc.unique(batch.column(number)).to_pylist()
            changed = {
                text: cell_text(text) for text in texts if text is not None and cell_text(text) != text
            }
            if changed:
                cells = [changed.get(text, text) for text in batch.column(number).to_pylist()]
                batch = batch.set_column(number, field, pa.array(cells, field.type))
    return batch


def tabulate(
    path: Path,
    name: str,
    geolevel: str,
    *,
    confidence: Fraction = DEFAULT_CONFIDENCE,
    allow_derived: bool = False,
) -> pa.Table:
    """Return one table as an Arrow table, without writing a file.

    - `path`: output folder, or ``release/`` in it.
    - `name`, `geolevel`, `confidence`, `allow_derived`: as in :func:`table_request`.
    """
    request = table_request(ReleaseFolder(path), name, geolevel, confidence, allow_derived=allow_derived)
    return pa.concat_tables(table_batches(request))


def write_tables(
    path: Path,
    tables: Sequence[str],
    geolevels: Sequence[str],
    *,
    fmt: str = "parquet",
    confidence: Fraction = DEFAULT_CONFIDENCE,
    intervals: bool = False,
    long: bool = False,
    allow_derived: bool = False,
    to: Path | None = None,
) -> tuple[Path, ...]:
    """Write tables, each at every geolevel, and return their paths: geolevels in the order given.

    - `path`: output folder, or ``release/`` in it.
    - `tables`, `geolevels`: as in :func:`table_request`, each once. With ``pl94`` tables are those of
      redistricting; a file holds all six.
    - `fmt`: one of :data:`TABLE_FORMATS`.
    - `intervals`: put estimate and interval beside each count; not with ``pl94``, and not in long form.
    - `long`: all of them in one file, in long form.
    - `to`: folder to write into; by default ``tables/`` of the release, whose certificate must then be issued
      again.
    """
    if fmt not in TABLE_FORMATS:
        raise ConfigError(f"unknown table format {fmt!r}; {nearest(fmt, TABLE_FORMATS)}")
    if intervals and fmt == "pl94":
        raise ConfigError("the pl94 format has no columns for intervals; try parquet or csv.")
    release = ReleaseFolder(path)
    if long:
        if intervals:
            raise ConfigError("the long form has no columns for intervals; opendas interval gives them.")
        return (write_long(release, tables, geolevels, fmt=fmt, allow_derived=allow_derived, to=to),)
    for name in tables:
        if fmt == "pl94" and name not in PL94_TABLES:
            raise ConfigError(
                f"the pl94 format holds {', '.join(PL94_TABLES)}, not {name!r}; try parquet or csv."
            )
    request = partial(
        table_request,
        release,
        confidence=confidence,
        measured={} if intervals else None,
        allow_derived=allow_derived,
    )
    for name, geolevel in itertools.product(tables, geolevels or ("block",)):
        file_name(request(name, geolevel).stem, fmt)  # all are known to be possible before one is written
    if fmt == "pl94":
        return write_legacy(release, geolevels, to=to)
    folder = release.path / "tables" if to is None else to
    every = itertools.product(geolevels, tables)
    return tuple(write_table(request(name, geolevel), fmt, folder) for geolevel, name in every)


NO_MARGIN = -1
"""Where no margin is known."""


def matching_row(group: QueryGroup, members: Bools) -> int:
    """Return the row of a query group that counts exactly the cells `members`, bool (n,); -1 if none does."""
    rows = group.row_of_cell[members]
    if len(rows) == 0 or bool(np.any(rows != rows[0])):
        return -1
    return int(rows[0]) if int(np.sum(group.row_of_cell == rows[0])) == len(rows) else -1


def _best_queries(released: ReleasedProduct, file: MeasurementFile, table: Table) -> list[str | None]:
    """Return, for each column, the measured query group that answers it with the least noise."""
    chosen: list[str | None] = []
    groups = {query: released.product.workload.group(query) for query in file.queries}
    for members in table.each_column():
        direct = [query for query, group in groups.items() if matching_row(group, members) >= 0]
        chosen.append(min(direct, key=lambda query: file.parameter(query)[1], default=None))
    return chosen


def _noise_margin(file: MeasurementFile, query: str, multiple: Fraction, confidence: Fraction) -> int:
    """Return the margin where the geounit has `multiple` times its level's share; no share, no margin."""
    if multiple == 0:
        return NO_MARGIN
    return file.noise(query, multiple).margin(confidence)


def margins(released: ReleasedProduct, table: Table, grouping: Grouping, confidence: Fraction) -> Ints:
    """Return the margin of error of each cell, int64 (g, t); :data:`NO_MARGIN` where none is known.

    - `grouping`: of the same frame. Margins exist at official geolevels that are levels of the spine used,
      for the geounits that the spine has with the same leaves; an only child whose share its parent took over
      has the parent's.
    - `confidence`: in (0, 1), for instance 9/10.
    """
    out = np.full((len(grouping), len(table.columns)), NO_MARGIN, dtype=np.int64)
    spine = released.spine
    if grouping.geolevel not in spine.names or not table.counts_records:
        return out
    level = spine.index(grouping.geolevel)
    position = spine.same_leaves(level, grouping.of_leaf, len(grouping))
    known = position >= 0
    above, geounit, left = level, position.copy(), known
    while left.any() and above >= 0:
        multiples, which = spine.multiples(above)
        measured = left & np.array([multiple > 0 for multiple in multiples])[which[geounit]]
        _fill(out, released, table, confidence, above, np.where(measured, geounit, -1))
        left = left & ~measured
        if above:
            alone = np.diff(spine.child_starts(above - 1)) == 1
            parent = spine.levels[above].parent[geounit]
            left &= alone[parent]
            geounit = parent
        above -= 1
    for block in released.constraints:
        if block.geolevel == grouping.geolevel and block.kind in ("invariant", "joint"):
            of_any = block.kind == "joint" or block.name.endswith(f"@{spine.leaf.name}")
            exact = np.ones(len(grouping), dtype=np.bool_) if of_any else known
            group = released.product.workload.group(block.query)
            for column, members in enumerate(table.each_column()):
                if matching_row(group, members) >= 0:
                    out[exact, column] = 0
    fixed = _fixed_by_the_frame(released, table, level)
    out[known] = np.where(fixed[position[known]], 0, out[known])
    # Where nobody can live by public facts nothing is measured, and every count is exactly zero.
    without_leaf = np.bincount(grouping.of_leaf[grouping.members], minlength=len(grouping)) == 0
    out[np.ix_(without_leaf, (out != NO_MARGIN).any(axis=0))] = 0
    return out


def _fixed_by_the_frame(released: ReleasedProduct, table: Table, level: int) -> Bools:
    """Mark what public counts and structural zeros fix in the geounits of a spine level, bool (g, t)."""
    constraints, possible = released.constraint_table, released.product.possible
    here = constraints.levels[level]
    fixed = np.zeros((len(released.spine.levels[level]), len(table.columns)), dtype=np.bool_)
    for column, members in enumerate(table.each_column()):
        inside = members & possible
        touching = np.flatnonzero((constraints.bound_cells & inside).any(axis=1))
        if not (inside & ~constraints.bound_cells[touching].any(axis=0)).any():
            fixed[:, column] = (here.upper[:, touching] == 0).all(axis=1)
        for bound in touching:
            if np.array_equal(inside, constraints.bound_cells[bound] & possible):
                fixed[:, column] |= here.lower[:, bound] == here.upper[:, bound]
    return fixed


def _fill(
    out: Ints,
    released: ReleasedProduct,
    table: Table,
    confidence: Fraction,
    level: int,
    position: Ints,
) -> None:
    """Set the margins of the rows whose geounit of a spine level is not -1, where the level was measured."""
    file = released.measurement(released.spine.names[level])
    known = position >= 0
    if file is None or not known.any():
        return
    multiples, which = released.spine.multiples(level)
    best = _best_queries(released, file, table)
    each = {
        query: np.array([_noise_margin(file, query, multiple, confidence) for multiple in multiples])
        for query in set(best)
        if query is not None
    }
    for column, query in enumerate(best):
        if query is not None:
            out[known, column] = each[query][which[position[known]]]
