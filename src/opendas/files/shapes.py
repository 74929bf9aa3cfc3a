"""Shapes of areas from files of geographic information systems, by geopandas (the extra ``maps``).

A shape goes with an area by its code. A block lies in the district that its representative point lies in: the
point inside the block that the Census Bureau publishes with it (INTPTLAT, INTPTLON).
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opendas.errors import ConfigError, EnvironmentFailure, FormatError
from opendas.files.storage.parquet import open_parquet
from opendas.files.storage.zips import opened_zip

SHAPE_SUFFIXES = (".geojson", ".gpkg", ".shp", ".fgb")
"""Files that hold shapes; see :func:`holds_shapes` of others that may."""

_NAD83 = "EPSG:4269"
"""Coordinates of the Census Bureau."""

_CODES = ("GEOID20", "GEOID10", "GEOID", "geocode", "geoid")


def _geopandas() -> Any:
    try:
        import geopandas
    except ImportError as error:
        raise EnvironmentFailure("geopandas is not installed; pip install 'opendas[maps]'.") from error
    return geopandas


def holds_shapes(path: Path) -> bool:
    """Return whether a file is one of shapes: by its name, a zip file with a shapefile, or GeoParquet."""
    suffix = path.suffix.lower()
    if suffix == ".zip" and zipfile.is_zipfile(path):
        with opened_zip(path) as archive:
            return any(name.lower().endswith((".shp", ".gpkg", ".geojson")) for name in archive.namelist())
    if suffix == ".parquet":
        return b"geo" in (open_parquet(path).metadata.metadata or {})
    return suffix in SHAPE_SUFFIXES


def read_shapes(path: Path, layer: str | None = None) -> Any:
    """Return a geopandas frame from a GeoPackage, a GeoJSON file, a shapefile (or its zip) or GeoParquet."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file of shapes.")
    geopandas = _geopandas()
    try:
        found = (
            geopandas.read_parquet(path)
            if path.suffix == ".parquet"
            else geopandas.read_file(path, layer=layer)
        )
    except Exception as error:  # each driver has its own
        raise FormatError(f"{path.name}: geopandas cannot read shapes from this file.") from error
    if not isinstance(found, geopandas.GeoDataFrame) or found.geometry.isna().any() or not len(found):
        raise FormatError(
            f"{path.name}: expected a shape in every row; it holds no shapes, or a row without one."
        )
    if found.crs is None:
        raise FormatError(
            f"{path.name}: it does not say in which coordinates its shapes are. Keep the .prj file of a "
            "shapefile beside it."
        )
    return found


def shape_layers(path: Path) -> list[Any]:
    """Return a geopandas frame for each layer of a file that has shapes, as :func:`read_shapes`."""
    if path.suffix == ".parquet" or not path.is_file():
        return [read_shapes(path)]
    try:
        layers = _geopandas().list_layers(path)
    except EnvironmentFailure:
        raise
    except Exception as error:  # each driver has its own
        raise FormatError(f"{path.name}: geopandas cannot read shapes from this file.") from error
    return [read_shapes(path, name) for name in layers.name[layers.geometry_type.notna()]]


def points_frame(frame: Any, points: Sequence[tuple[float, float] | None]) -> Any:
    """Return a geopandas frame with a point (longitude, latitude) in each row that has one."""
    geopandas = _geopandas()
    x, y = (np.array([np.nan if p is None else p[axis] for p in points]) for axis in (0, 1))
    geometry = geopandas.points_from_xy(x, y, crs=_NAD83)
    geometry[np.isnan(x)] = None
    return geopandas.GeoDataFrame(frame, geometry=geometry)


def shapes_frame(frame: Any, codes: Sequence[str], path: Path) -> Any:
    """Return a geopandas frame with the shape of the area in each row, from a file of shapes.

    - `codes`: code of the area of each row.
    - `path`: with a column ``GEOID20``, ``GEOID10``, ``GEOID`` or ``geocode``.
    """
    shapes = read_shapes(path)
    column = next((name for name in _CODES if name in shapes.columns), None)
    if column is None:
        raise FormatError(
            f"{path.name}: no column {', '.join(_CODES[:-1])} that tells which area a shape is of; it has "
            f"{', '.join(map(str, shapes.columns))}."
        )
    of_code = shapes.assign(**{column: shapes[column].astype(str)}).set_index(column).geometry
    if of_code.index.has_duplicates:
        raise FormatError(f"{path.name}: two shapes have the same {column}.")
    lacking = sorted(set(codes) - set(of_code.index))
    if lacking:
        raise FormatError(
            f"{path.name}: no shape for {len(lacking):,} of {len(set(codes)):,} areas, the first "
            f"{lacking[0]}. Give the shapes of the same census and geolevel."
        )
    geometry = of_code.reindex(list(codes)).to_numpy()
    return _geopandas().GeoDataFrame(frame, geometry=geometry, crs=shapes.crs)


def areas_of_points(
    path: Path, names: Sequence[str], points: Mapping[str, tuple[float, float]]
) -> list[tuple[str, str]]:
    """Return (block, area) for every block whose representative point lies in an area of a file of shapes.

    - `names`: columns that an area may be named by, in order of preference, in lower case.
    - `points`, block -> (longitude, latitude).
    """
    geopandas, shapes = _geopandas(), read_shapes(path)
    others = [name for name in shapes.columns if name != shapes.geometry.name]
    known = [name for name in others if name.lower() in names]
    column = known[0] if known else others[0] if len(others) == 1 else None
    if column is None:
        raise FormatError(
            f"{path.name}: which column names the districts? It has {', '.join(map(str, others)) or 'none'}; "
            "call it district."
        )
    blocks = list(points)
    x, y = (np.array([points[block][axis] for block in blocks]) for axis in (0, 1))
    series = geopandas.GeoSeries(geopandas.points_from_xy(x, y, crs=_NAD83)).to_crs(shapes.crs)
    which, point = series.sindex.query(shapes.geometry, predicate="intersects")
    once, counts = np.unique(point, return_counts=True)
    if bool((counts > 1).any()):
        block = blocks[int(once[counts > 1][0])]
        raise FormatError(
            f"{path.name}: {int((counts > 1).sum()):,} blocks lie in more than one district, for instance "
            f"{block}: districts overlap, or meet at the point that stands for the block."
        )
    labels = shapes[column].astype(str).to_list()
    order = np.argsort(point, kind="stable")
    return [(blocks[p], labels[w]) for p, w in zip(point[order], which[order], strict=True)]
