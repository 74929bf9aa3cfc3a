"""Check published tables against the microdata; apart, so that a release starts without least squares."""

from __future__ import annotations

import contextlib
import csv
import re
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from opendas.errors import OpendasError
from opendas.files.release_folder import ReleaseFolder
from opendas.files.storage.parquet import open_parquet, read_metadata
from opendas.tables.interval_tables import DEFAULT_CONFIDENCE, MeasuredProduct
from opendas.tables.legacy import legacy_members
from opendas.tables.tabulate import (
    INTERVALS,
    LONG,
    table_batches,
    table_request,
    write_long,
    write_table,
)

_MARGIN = re.compile(r"_(MOE|NOISE)([0-9.]+)$")
_INTERVAL = re.compile(r"_(EST|EST_MOE[0-9.]+|LOW[0-9.]+|HIGH[0-9.]+)$")


def same_table(release: ReleaseFolder, path: Path) -> bool:
    """Tabulate a table of a release again and return whether its file is the same."""
    if path.suffix == ".parquet":
        return _same_parquet(release, path)
    if path.suffix == ".csv":
        return _same_csv(release, path)
    if path.suffix == ".zip" and path.parent.name.partition("_")[0] == "pl94":
        return _same_legacy(release, path)
    return False


def _same_parquet(release: ReleaseFolder, path: Path) -> bool:
    metadata = read_metadata(path)
    if "tables" in metadata:
        return _same_long(release, path, metadata["tables"], metadata["geolevels"], metadata["replicates"])
    name, product = metadata["table"], metadata["product"]
    measured: dict[str, MeasuredProduct] | None = {} if "intervals" in metadata else None
    confidence = Fraction(metadata["confidence"])
    request = table_request(
        release,
        f"{product}:{name}",
        metadata["geolevel"],
        confidence,
        measured=measured,
        replicates=metadata.get("replicates", 0),
        allow_derived=True,
    )
    found = open_parquet(path).read().replace_schema_metadata(None)
    stems = (request.stem, request.stem.removeprefix(f"{product}."))
    return path.stem in stems and _equal(found, pa.concat_tables(table_batches(request)))


def _equal(found: pa.Table, again: pa.Table) -> bool:
    """Compare two tables: counts exactly, estimates up to rounding in the last digits."""
    if found.schema != again.schema or len(found) != len(again):
        return False
    return all(
        _close(found.column(name), again.column(name))
        if _INTERVAL.search(name)
        else found.column(name).equals(again.column(name))
        for name in found.column_names
    )


def _close(one: Any, other: Any) -> bool:
    if not one.is_null().equals(other.is_null()):
        return False
    values = [np.asarray(pc.cast(pc.fill_null(column, 0), pa.float64())) for column in (one, other)]
    whole = pa.types.is_integer(one.type)  # rounding can move the end of an interval by a whole number
    return bool(np.all(np.abs(values[0] - values[1]) <= (1.0 if whole else 1e-3)))


def _candidates(release: ReleaseFolder, stem: str) -> Iterator[tuple[str, str]]:
    """Yield the (table, geolevel) that a file name may stand for; a query may belong to several products."""
    for product in release.names:
        frame = release[product].frame
        for geolevel in (*frame.geolevels, *frame.entities):
            if stem.endswith(f"_{geolevel}"):
                slug = stem.removesuffix(f"_{geolevel}")
                factors = slug.removeprefix(f"{product}.").split("+")
                yield f"{product}:{' * '.join(unquote(factor) for factor in factors)}", geolevel


def _same_long(
    release: ReleaseFolder,
    path: Path,
    tables: Sequence[str],
    geolevels: Sequence[str],
    replicates: int | None,
) -> bool:
    """Write tables in long form again and return whether the file is the same."""
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(OpendasError):
        again = write_long(
            release,
            tables,
            geolevels,
            fmt=path.suffix[1:],
            replicates=replicates,
            allow_derived=True,
            to=Path(folder),
        )
        return again.name == path.name and again.read_bytes() == path.read_bytes()
    return False


def _same_long_csv(release: ReleaseFolder, path: Path) -> bool:
    """Write the CSV again for the tables and geolevels that its file name gives."""
    with open(path, encoding="utf-8", newline="") as file:
        replicates = None if any(row["margin"] for row in csv.DictReader(file)) else 0
    stem = path.stem.removesuffix(LONG)
    for end in (match.end() for match in re.finditer("_", stem)):
        tables = []
        for slug in stem[: end - 1].split(","):
            product = next((name for name in release.names if slug.startswith(f"{name}.")), None)
            query = " * ".join(unquote(factor) for factor in slug.removeprefix(f"{product}.").split("+"))
            tables.append(query if product is None else f"{product}:{query}")
        if _same_long(release, path, tables, stem[end:].split(","), replicates):
            return True
    return False


def _same_csv(release: ReleaseFolder, path: Path) -> bool:
    if path.stem.endswith(LONG):
        return _same_long_csv(release, path)
    with open(path, encoding="utf-8", newline="") as file:
        header = next(csv.reader(file))
    found = [match for match in map(_MARGIN.search, header) if match]
    levels = {match[2] for match in found}
    replicates = None if any(match[1] == "MOE" and "_EST_" not in match.string for match in found) else 0
    confidence = Fraction(levels.pop()) / 100 if levels else DEFAULT_CONFIDENCE
    measured: dict[str, MeasuredProduct] | None = {} if path.stem.endswith(INTERVALS) else None
    for name, geolevel in _candidates(release, path.stem.removesuffix(INTERVALS)):
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(OpendasError):
            request = table_request(
                release,
                name,
                geolevel,
                confidence,
                measured=measured,
                replicates=replicates,
                allow_derived=True,
            )
            again = write_table(request, "csv", Path(folder))
            if again.read_bytes() == path.read_bytes():
                return True
            if measured is not None and _equal(*(_read_csv(file) for file in (path, again))):
                return True
    return False


def _read_csv(path: Path) -> pa.Table:
    return pacsv.read_csv(path, convert_options=pacsv.ConvertOptions(column_types={"GEOID": pa.string()}))


def _same_legacy(release: ReleaseFolder, path: Path) -> bool:
    _, _, levels = path.parent.name.partition("_")
    wanted = legacy_members(release, levels.split("+") if levels else ())
    with zipfile.ZipFile(path) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    return wanted.get(path.name) == found
