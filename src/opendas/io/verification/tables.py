"""The published tables follow from the microdata."""

from __future__ import annotations

import contextlib
import csv
import re
import tempfile
import zipfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa

from opendas.errors import OpendasError
from opendas.io.parquet import open_parquet, read_metadata
from opendas.io.release_folder import ReleaseFolder
from opendas.io.tables.cells import PL94_TABLES
from opendas.io.tables.legacy import legacy_members
from opendas.io.tables.tabulate import DEFAULT_CONFIDENCE, table_batches, table_request, write_table
from opendas.io.verification.check import require, some

__all__ = ["check_tables"]

_MARGIN = re.compile(r"_MOE([0-9.]+)$")


def check_tables(release: ReleaseFolder) -> str:
    """Tabulate every table again and compare."""
    folder = release.path / "tables"
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    wrong = [path.relative_to(folder).as_posix() for path in files if not _same(release, path)]
    require(not wrong, f"not what the microdata say: {some(wrong)}.")
    return f"{len(files)} tables agree with the microdata"


def _same(release: ReleaseFolder, path: Path) -> bool:
    if path.suffix == ".parquet":
        return _same_parquet(release, path)
    if path.suffix == ".csv":
        return _same_csv(release, path)
    if path.suffix == ".zip" and path.parent.name.startswith("pl94_"):
        return _same_legacy(release, path)
    return False


def _same_parquet(release: ReleaseFolder, path: Path) -> bool:
    metadata = read_metadata(path)
    name, product = metadata["table"], metadata["product"]
    full = name if name in PL94_TABLES else f"{product}:{name}"
    request = table_request(release, full, metadata["geolevel"], Fraction(metadata["confidence"]))
    found = open_parquet(path).read().replace_schema_metadata(None)
    stems = (request.stem, request.stem.removeprefix(f"{product}."))
    return path.stem in stems and found.equals(pa.concat_tables(table_batches(request)))


def _candidates(release: ReleaseFolder, stem: str) -> Iterator[tuple[str, str]]:
    """Yield the (table, geolevel) that a file name may stand for; a query may belong to several products."""
    for product in release.names:
        frame = release[product].frame
        for geolevel in (*frame.geolevels, *frame.entities):
            if stem.endswith(f"_{geolevel}"):
                slug = stem.removesuffix(f"_{geolevel}")
                if slug in PL94_TABLES:
                    yield slug, geolevel
                else:
                    factors = slug.removeprefix(f"{product}.").split("+")
                    yield f"{product}:{' * '.join(unquote(factor) for factor in factors)}", geolevel


def _same_csv(release: ReleaseFolder, path: Path) -> bool:
    with open(path, encoding="utf-8", newline="") as file:
        header = next(csv.reader(file))
    levels = {match[1] for match in map(_MARGIN.search, header) if match}
    confidence = Fraction(levels.pop()) / 100 if levels else DEFAULT_CONFIDENCE
    for name, geolevel in _candidates(release, path.stem):
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(OpendasError):
            again = write_table(release, name, geolevel, fmt="csv", confidence=confidence, to=Path(folder))
            if again.read_bytes() == path.read_bytes():
                return True
    return False


def _same_legacy(release: ReleaseFolder, path: Path) -> bool:
    wanted = legacy_members(release, path.parent.name.removeprefix("pl94_"))
    with zipfile.ZipFile(path) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    return wanted.get(path.name) == found
