"""The official areas of a release, those without a leaf too: their codes, names and published header.

A block without housing units and group quarters is no leaf, and nothing is measured there. It exists all the
same, and its counts are zero by public facts. This file lists such blocks, and every other record of the
geographic header that the input came with, without the counts that the header holds.

Axes: ``r`` records.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opendas.arrays import Codes, Ints
from opendas.errors import FormatError
from opendas.files.pl94_layout import DROPPED, GEO_2010, GEO_2020
from opendas.files.storage.parquet import open_parquet, read_metadata, reads_file, to_bytes, write_parquet

HEADER_FIELDS: Mapping[int, tuple[str, ...]] = {
    0: (),
    2010: tuple(name for name, _ in GEO_2010 if name not in DROPPED),
    2020: tuple(name for name in GEO_2020 if name not in DROPPED),
}
"""Header fields by the census of the layout; 0 is an input without a header, of which codes are known."""

_FORMAT = "opendas official areas 1"


class OfficialAreas:
    """Records of official areas, in the order of the published header.

    - `census`: 2010 or 2020, whose layout the header has; 0 without a header.
    - `table`: text columns: ``geolevel`` and ``geocode``, null where a record is of no geolevel or category
      of the release, such as the part of a place in a county; then the fields of :data:`HEADER_FIELDS`.
    """

    def __init__(self, census: int, table: pa.Table) -> None:
        self.census = census
        self.table = table

    def rows(self, geolevel: str) -> Ints:
        """Return the records of a geolevel or entity category, int64, ascending by geocode."""
        return self._rows.get(geolevel, np.empty(0, dtype=np.int64))

    @cached_property
    def _rows(self) -> dict[str, Ints]:
        kinds = self.table.column("geolevel").combine_chunks().dictionary_encode()
        which = np.array(pc.fill_null(kinds.indices, -1), dtype=np.int64)
        found = {}
        for number, geolevel in enumerate(kinds.dictionary.to_pylist()):
            rows = np.flatnonzero(which == number)
            codes = to_bytes(self.table.column("geocode").take(pa.array(rows)))
            found[geolevel] = rows[np.argsort(codes, kind="stable")]
        return found

    def geocodes(self, geolevel: str) -> Codes:
        """Return the codes of all areas of a geolevel or category, ascending; none where none is listed.

        An area that several states have a part of has a record in each, and is one area.
        """
        return np.unique(to_bytes(self.table.column("geocode").take(pa.array(self.rows(geolevel)))))

    def state(self, code: str) -> OfficialAreas:
        """Return the records of one state."""
        return OfficialAreas(self.census, self.table.filter(pc.equal(self.table.column("STATE"), code)))

    def field(self, name: str, rows: Ints) -> list[str]:
        """Return a header field of some records; empty texts where there is no header."""
        if name not in self.table.column_names:
            return [""] * len(rows)
        texts: list[str] = self.table.column(name).take(pa.array(rows)).to_pylist()
        return texts

    def names(self, geolevel: str) -> dict[str, str]:
        """Return the names of the areas of a geolevel or category, by code."""
        rows = self.rows(geolevel)
        codes = self.field("geocode", rows)
        return {code: name for code, name in zip(codes, self.field("NAME", rows), strict=True) if name}

    def points(self, geolevel: str) -> dict[str, tuple[float, float]]:
        """Return (longitude, latitude) of a point inside each area that has one, by code."""
        rows = self.rows(geolevel)
        columns = (self.field(name, rows) for name in ("geocode", "INTPTLON", "INTPTLAT"))
        try:
            return {code: (float(x), float(y)) for code, x, y in zip(*columns, strict=True) if x and y}
        except ValueError as error:
            raise FormatError("a coordinate of the official areas is not a number.") from error


def official_areas_path(release: Path, product: str) -> Path:
    """Return the file of a product's official areas."""
    return release / "geography" / "official" / f"{product}.parquet"


def official_areas_schema(census: int) -> Any:
    """Return the Arrow schema of the file."""
    return pa.schema([(name, pa.string()) for name in ("geolevel", "geocode", *HEADER_FIELDS[census])])


def official_areas_metadata(census: int) -> dict[str, object]:
    """Return what the file says of itself."""
    return {"format": _FORMAT, "census": census}


def write_official_areas(path: Path, areas: OfficialAreas) -> None:
    """Write official areas."""
    table = areas.table.cast(official_areas_schema(areas.census))
    write_parquet(path, table, metadata=official_areas_metadata(areas.census))


@reads_file
def read_official_areas(path: Path) -> OfficialAreas:
    """Read official areas."""
    metadata = read_metadata(path)
    census = int(metadata.get("census", -1))
    if metadata.get("format") != _FORMAT or census not in HEADER_FIELDS:
        raise FormatError(f"{path.name}: format {metadata.get('format')!r}, expected {_FORMAT!r}.")
    table = open_parquet(path).read()
    if table.column_names != official_areas_schema(census).names:
        raise FormatError(f"{path.name}: other columns than the header of {census} has.")
    return OfficialAreas(census, table)
