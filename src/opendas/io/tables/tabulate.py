"""Published tables: one per table name and geolevel, made from a release folder alone."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from opendas.errors import ConfigError
from opendas.io.atomic import atomic_file
from opendas.io.parquet import bytes_column, parquet_sink
from opendas.io.release_folder import ReleasedProduct, ReleaseFolder
from opendas.io.tables.cells import PL94_TABLES, Table, pl94_table, query_table, table_layout
from opendas.io.tables.counting import Grouping, count_batches, group_leaves
from opendas.io.tables.legacy import write_legacy
from opendas.io.tables.margins import NO_MARGIN, margins

__all__ = [
    "TABLE_FORMATS",
    "TableRequest",
    "margin_suffix",
    "table_batches",
    "table_request",
    "tabulate",
    "write_table",
    "write_tables",
]

TABLE_FORMATS = ("parquet", "csv", "pl94")
"""``pl94`` is the legacy format, which holds all redistricting tables in one zip file a state."""

DEFAULT_CONFIDENCE = Fraction(9, 10)

_UNIT_QUERY = re.compile(r"(?P<product>[^:]+):(?P<query>.+)")


@dataclass(frozen=True, slots=True, eq=False)
class TableRequest:
    """One table at one geolevel.

    Parameters
    ----------
    released : ReleasedProduct
    table : Table
    grouping : Grouping
    stem : str
        File name without its ending.
    confidence : Fraction
        Of the margins of error.
    """

    released: ReleasedProduct
    table: Table
    grouping: Grouping
    stem: str
    confidence: Fraction


def margin_suffix(confidence: Fraction) -> str:
    """Return the ending of a margin column, for instance ``_MOE90``.

    Raises
    ------
    ConfigError
        If the confidence does not lie strictly between 0 and 1.
    """
    if not 0 < confidence < 1:
        raise ConfigError(
            f"the confidence of margins lies between 0 and 1, for instance 0.90; not {confidence}."
        )
    percent = confidence * 100
    return f"_MOE{percent.numerator}" if percent.denominator == 1 else f"_MOE{float(percent):g}"


def _find_query(release: ReleaseFolder, name: str) -> tuple[ReleasedProduct, str, bool]:
    """Resolve a query group written ``QUERY`` or ``PRODUCT:QUERY``.

    Returns
    -------
    (ReleasedProduct, str, bool)
        Its product, its canonical name, and whether the product was named.
    """
    named = _UNIT_QUERY.fullmatch(name)
    candidates = release.names
    explicit = named is not None and named["product"] in release
    if named is not None and explicit:
        candidates, name = (named["product"],), named["query"]
    found: list[tuple[ReleasedProduct, str]] = []
    for product in candidates:
        try:
            found.append((release[product], release[product].product.workload.canonical(name)))
        except ConfigError:
            if len(candidates) == 1:
                raise
    if not found:
        raise ConfigError(
            f"no table or query group {name!r}; tables are {', '.join(PL94_TABLES)}, query groups are "
            f"attributes and recodes of {', '.join(release.names)} joined with ' * '."
        )
    if len(found) > 1:
        products = ", ".join(f"{released.name}:{name}" for released, _ in found)
        raise ConfigError(f"query group {name!r} belongs to several products; write one of {products}.")
    return (*found[0], explicit)


def table_request(
    release: ReleaseFolder, name: str, geolevel: str, confidence: Fraction = DEFAULT_CONFIDENCE
) -> TableRequest:
    """Resolve a table name and a geolevel.

    Parameters
    ----------
    release : ReleaseFolder
    name : str
        ``P1`` to ``P5``, ``H1``, a query group, or ``PRODUCT:QUERY`` where several products have it.
    geolevel : str
        Official geolevel or entity category of the frame.
    confidence : Fraction

    Raises
    ------
    ConfigError
        If the table is unknown, its product was not run, or the frame has no such geolevel.
    """
    margin_suffix(confidence)
    if name in PL94_TABLES:
        released = release.with_layout(table_layout(name))
        if released is None:
            raise ConfigError(
                f"table {name} needs the product pl94-{table_layout(name)}, and this release holds "
                f"{', '.join(release.names)}; run pl94-{table_layout(name)} into the same folder first."
            )
        table, slug = pl94_table(released.product, name), name
    else:
        released, query, explicit = _find_query(release, name)
        table = query_table(released.product, query)
        slug = "+".join(quote(factor, safe="") for factor in query.split(" * "))
        if explicit:
            slug = f"{released.name}.{slug}"
    known = (*released.frame.geolevels, *released.frame.entities)
    if geolevel not in known:
        near = get_close_matches(geolevel, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"this release has {', '.join(known)}."
        raise ConfigError(f"no geolevel or entity category {geolevel!r}; {hint}")
    grouping = group_leaves(released.frame, geolevel)
    return TableRequest(released, table, grouping, f"{slug}_{geolevel}", confidence)


def _schema(request: TableRequest, known: Sequence[bool]) -> pa.Schema:
    fields = [("GEOID", pa.string())]
    suffix = margin_suffix(request.confidence)
    for column, has_margin in zip(request.table.columns, known, strict=True):
        fields.append((column, pa.int64()))
        if has_margin:
            fields.append((column + suffix, pa.int64()))
    return pa.schema(fields)


def _metadata(request: TableRequest) -> dict[str, object]:
    return {
        "format": "opendas table 1",
        "table": request.table.name,
        "product": request.released.name,
        "geolevel": request.grouping.geolevel,
        "labels": dict(zip(request.table.columns, request.table.labels, strict=True)),
        "confidence": str(request.confidence),
        "margin": "noise of the one measurement that answers the cell directly, before post-processing",
    }


def table_batches(request: TableRequest) -> Iterator[pa.Table]:
    """Yield the rows of a table in batches: ``GEOID``, then each cell with its margin beside it.

    A margin column is there if the margin of its cell is known for some geounit. The first batch may be
    empty; all have the same schema.
    """
    margin = margins(request.released, request.table, request.grouping, request.confidence)
    known = (margin != NO_MARGIN).any(axis=0).tolist()
    schema = _schema(request, known)
    if len(request.grouping) == 0:
        yield schema.empty_table()
    batches = count_batches(request.released.estimate, request.table, request.grouping)
    for start, counts in batches:
        stop = start + len(counts)
        arrays = [bytes_column(request.grouping.geocodes[start:stop])]
        for column, has_margin in enumerate(known):
            arrays.append(pa.array(np.ascontiguousarray(counts[:, column])))
            if has_margin:
                one = np.ascontiguousarray(margin[start:stop, column])
                arrays.append(pa.array(one, mask=one == NO_MARGIN))
        yield pa.Table.from_arrays(arrays, schema=schema)


def write_table(
    release: ReleaseFolder,
    name: str,
    geolevel: str,
    *,
    fmt: str = "parquet",
    confidence: Fraction = DEFAULT_CONFIDENCE,
    to: Path | None = None,
) -> Path:
    """Write one table, for instance ``tables/P1_block.parquet``, and return its path.

    Parameters
    ----------
    release : ReleaseFolder
    name, geolevel, confidence
        As in :func:`table_request`.
    fmt : ``"parquet"`` or ``"csv"``
    to : Path, optional
        Folder to write into; by default ``tables/`` of the release, whose certificate must then be issued
        again.
    """
    if fmt not in ("parquet", "csv"):
        raise ConfigError(f"unknown format {fmt!r} of a single table; known are parquet and csv.")
    request = table_request(release, name, geolevel, confidence)
    folder = release.path / "tables" if to is None else to
    path = folder / f"{request.stem}.{fmt}"
    batches = table_batches(request)
    first = next(batches)
    if fmt == "parquet":
        with parquet_sink(path, first.schema, metadata=_metadata(request)) as sink:
            sink.write(first)
            for batch in batches:
                sink.write(batch)
        return path
    header = io.StringIO()
    csv.writer(header, lineterminator="\n").writerow(first.schema.names)
    options = pacsv.WriteOptions(include_header=False, quoting_style="needed")
    with atomic_file(path) as file:
        file.write(header.getvalue().encode("utf-8"))
        for batch in (first, *batches):
            pacsv.write_csv(batch, file, options)
    return path


def tabulate(path: Path, name: str, geolevel: str, *, confidence: Fraction = DEFAULT_CONFIDENCE) -> pa.Table:
    """Return one table as an Arrow table, without writing a file.

    Parameters
    ----------
    path : Path
        Output folder, or ``release/`` in it.
    name, geolevel, confidence
        As in :func:`table_request`.
    """
    return pa.concat_tables(table_batches(table_request(ReleaseFolder(path), name, geolevel, confidence)))


def write_tables(
    path: Path,
    tables: Sequence[str],
    geolevel: str,
    *,
    fmt: str = "parquet",
    confidence: Fraction = DEFAULT_CONFIDENCE,
    to: Path | None = None,
) -> tuple[Path, ...]:
    """Write tables at one geolevel and return their paths.

    Parameters
    ----------
    path : Path
        Output folder, or ``release/`` in it.
    tables : sequence of str
        As in :func:`table_request`. With ``pl94`` they must be redistricting tables; the file holds all six.
    geolevel : str
    fmt : str
        One of :data:`TABLE_FORMATS`.
    confidence : Fraction
    to : Path, optional
        Folder to write into; by default ``tables/`` of the release, whose certificate must then be issued
        again.

    Raises
    ------
    ConfigError
        Before anything is written, if a table is unknown or its product was not run.
    """
    if fmt not in TABLE_FORMATS:
        raise ConfigError(f"unknown table format {fmt!r}; known are {', '.join(TABLE_FORMATS)}.")
    release = ReleaseFolder(path)
    for name in tables:
        if fmt == "pl94" and name not in PL94_TABLES:
            raise ConfigError(
                f"the pl94 format holds {', '.join(PL94_TABLES)}, not {name!r}; try parquet or csv."
            )
        table_request(release, name, geolevel, confidence)
    if fmt == "pl94":
        return write_legacy(release, geolevel, to=to)
    return tuple(
        write_table(release, name, geolevel, fmt=fmt, confidence=confidence, to=to) for name in tables
    )
