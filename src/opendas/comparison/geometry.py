"""Shapes of geounits, from files or as points; apart from the page, which needs no geopandas.

Shapes are simplified together, so that neighbours keep one border, and put on a grid of whole numbers.

Axes: ``g`` geounits of a geolevel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from opendas.arrays import Bools, Floats, Ints
from opendas.errors import DataError
from opendas.files.official_areas import OfficialAreas
from opendas.files.shapes import shape_layers
from opendas.geography.frame import Grouping

GRID = 1 << 14
"""Steps of the grid along the longer side of the map."""

MOST_CORNERS = 600_000
"""Corners of the shapes of one geolevel; with more, shapes are simplified more."""

_FINEST = 8_000
"""Shapes are not simplified by more than this part of the longer side, if they fit so."""

Shapes = dict[str, dict[bytes, Any]]


@dataclass(frozen=True, slots=True)
class Drawing:
    """Shapes on the grid."""

    width: int
    height: int
    # By geolevel, the shape of each geounit: a list of rings, a ring its first corner and the steps to the
    # others, flat; None where a geounit has none.
    areas: Mapping[str, list[list[list[int]] | None]]
    points: Mapping[str, list[list[int] | None]]  # by geolevel, [x, y] or None of each geounit


def read_shapes(paths: Sequence[Path], units: Mapping[str, Grouping]) -> Shapes:
    """Read the shapes of geounits from shapefiles, GeoPackages or GeoJSON.

    Which column holds the codes, and of which geolevel, is found by comparing with the codes of the geounits.

    - `units`, geolevel -> Grouping.
    - Returns: dict of geolevel to dict of code to shape: in degrees. A geolevel without shapes of its own has
      those of a lower one, joined.

    Raises `ConfigError, EnvironmentFailure, FormatError` as :func:`opendas.files.shapes.shape_layers`;
    `DataError` if no column of a file holds codes of the geounits.
    """
    shapes: Shapes = {}
    for path in paths:
        tables = shape_layers(path)
        found = [_add(shapes, table, units) for table in tables]
        if not any(found):
            some = {name: bytes(each.geocodes[0]).decode() for name, each in units.items() if len(each)}
            raise DataError(
                f"{path.name}: no column holds codes of the areas compared, such as "
                f"{', '.join(f'{code} ({name})' for name, code in list(some.items())[-4:])}."
            )
    _join_upward(shapes, units)
    return shapes


def _add(shapes: Shapes, table: Any, units: Mapping[str, Grouping]) -> bool:
    """Add the shapes of one layer to the geolevel whose codes it holds; return whether it holds any."""
    best: tuple[tuple[int, float], str, list[bytes]] = ((0, 0.0), "", [])
    for column in table.columns:
        if column == table.geometry.name or table[column].dtype.kind == "f":
            continue
        text = [str(value) for value in table[column]]
        for geolevel, each in units.items():
            width = each.geocodes.dtype.itemsize if table[column].dtype.kind in "iu" else 0
            codes = [value.zfill(width).encode("utf-8", "replace") for value in text]
            known = len({*each.geocodes.tolist()} & {*codes})
            # Codes of counties are codes of districts, too: those count of which the file has more, then all.
            rank = (known, known / max(1, len(each)))
            if known and rank > best[0]:
                best = (rank, geolevel, codes)
    if not best[1]:
        return False
    table = table.to_crs(4326)
    _, geolevel, codes = best
    wanted = {*units[geolevel].geocodes.tolist()}
    shapes.setdefault(geolevel, {}).update(
        (code, shape)
        for code, shape in zip(codes, table.geometry, strict=True)
        if code in wanted and shape is not None and not shape.is_empty
    )
    return True


def _join_upward(shapes: Shapes, units: Mapping[str, Grouping]) -> None:
    """Give geolevels without shapes the joined shapes of the coarsest geolevel that lies within them."""
    import shapely

    given = sorted(shapes, key=lambda name: len(units[name]))
    for geolevel, coarse in units.items():
        if geolevel in shapes:
            continue
        for name in given:
            above = _parents(units[name], coarse)
            if above is None:
                continue
            parts: dict[int, list[Any]] = {}
            for code, shape in shapes[name].items():
                parent = int(above[np.searchsorted(units[name].geocodes, code)])
                if parent >= 0:
                    parts.setdefault(parent, []).append(shape)
            shapes[geolevel] = {
                bytes(coarse.geocodes[parent]): shapely.union_all(shapely.make_valid(np.array(found)))
                for parent, found in parts.items()
            }
            break


def _parents(fine: Grouping, coarse: Grouping) -> Ints | None:
    """Return the coarse geounit of each fine one, -1 for none; None if one lies in several."""
    inside = fine.of_leaf >= 0
    above = np.full(len(fine), -2, dtype=np.int64)
    above[fine.of_leaf[inside]] = coarse.of_leaf[inside]
    return above if np.array_equal(above[fine.of_leaf[inside]], coarse.of_leaf[inside]) else None


def draw(units: Mapping[str, Grouping], shapes: Shapes, official: OfficialAreas | None) -> Drawing | None:
    """Put shapes, and points of geolevels without shapes, on one grid; None where there are neither.

    The projection is equirectangular at the middle latitude, which shows a state as its maps do.
    """
    areas: dict[str, Any] = {}
    found: dict[str, Floats] = {}
    for geolevel, each in units.items():
        if geolevel in shapes:
            areas[geolevel] = [shapes[geolevel].get(bytes(code)) for code in each.geocodes]
        elif official is not None and (points := official.points(geolevel)):
            nowhere = (math.nan, math.nan)
            at = [points.get(bytes(code).decode(), nowhere) for code in each.geocodes]
            found[geolevel] = np.array(at, dtype=np.float64).reshape(-1, 2)
    corners = [_bounds(shape) for each in areas.values() for shape in each if shape is not None]
    corners += list(found.values())
    every = np.concatenate([np.zeros((0, 2)), *corners])
    every = every[np.isfinite(every).all(axis=1)]
    if len(every) == 0:
        return None
    if np.ptp(every[:, 0]) > 180:  # both sides of the antimeridian, as Alaska
        every[:, 0] = np.where(every[:, 0] > 0, every[:, 0] - 360, every[:, 0])
    west, east = every[:, 0].min(), every[:, 0].max()
    south, north = every[:, 1].min(), every[:, 1].max()
    narrow = math.cos(math.radians((south + north) / 2))
    longer = max((east - west) * narrow, north - south, 1e-6)
    margin = 0.02 * longer

    def on_grid(at: Floats) -> Floats:
        lon = np.where(at[:, 0] > east + 1e-9, at[:, 0] - 360, at[:, 0])
        x = ((lon - west) * narrow + margin) / (longer + 2 * margin) * GRID
        y = (north - at[:, 1] + margin) / (longer + 2 * margin) * GRID
        return np.stack([x, y], axis=1)

    width = ((east - west) * narrow + 2 * margin) / (longer + 2 * margin) * GRID
    height = (north - south + 2 * margin) / (longer + 2 * margin) * GRID
    return Drawing(
        max(1, round(width)),
        max(1, round(height)),
        {name: _rings(each, on_grid) for name, each in areas.items()},
        {name: _rounded(on_grid(at)) for name, at in found.items()},
    )


def _bounds(shape: Any) -> Floats:
    west, south, east, north = shape.bounds
    return np.array([[west, south], [east, north]])


def _rounded(at: Floats) -> list[list[int] | None]:
    known: Bools = np.isfinite(at[:, 0]) & np.isfinite(at[:, 1])
    grid = np.round(np.where(known[:, None], at, 0)).astype(np.int64).tolist()
    return [place if k else None for place, k in zip(grid, known.tolist(), strict=True)]


def _rings(shapes: Sequence[Any], on_grid: Any) -> list[list[list[int]] | None]:
    """Return shapes of one geolevel as rings on the grid, simplified together until they are few corners."""
    import shapely

    there = [number for number, shape in enumerate(shapes) if shape is not None]
    placed = shapely.transform([_polygons(shapes[number]) for number in there], on_grid)
    tolerance = GRID / _FINEST
    while True:
        simple = shapely.coverage_simplify(placed, tolerance)
        if shapely.get_num_coordinates(simple).sum() <= MOST_CORNERS or tolerance > GRID / 50:
            break
        tolerance *= 2
    found: list[list[list[int]] | None] = [None] * len(shapes)
    for number, shape in zip(there, simple, strict=True):
        found[number] = [ring for part in shapely.get_parts(shape) for ring in _steps(part)] or None
    return found


def _polygons(shape: Any) -> Any:
    """Return the areas of a shape alone, valid: a line or point has nothing to fill."""
    import shapely

    parts = shapely.get_parts(shapely.make_valid(shape))
    kept: Iterable[Any] = [
        each
        for part in parts
        for each in shapely.get_parts(part)
        if shapely.get_type_id(each) == shapely.GeometryType.POLYGON
    ]
    return shapely.multipolygons(list(kept))


def _steps(polygon: Any) -> list[list[int]]:
    """Return the rings of a polygon, each as its first corner and the steps to the following ones."""
    rings = []
    for ring in (polygon.exterior, *polygon.interiors):
        at = np.round(np.asarray(ring.coords)[:, :2]).astype(np.int64)
        kept = at[np.concatenate([[True], (np.diff(at, axis=0) != 0).any(axis=1)])]
        if len(kept) > 2:
            rings.append(np.concatenate([kept[:1], np.diff(kept, axis=0)]).ravel().tolist())
    return rings
