"""The page of a comparison, one file with map, scatter and tables; and the folder that it is written into."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opendas.comparison.comparison import Comparison, Figures
from opendas.comparison.geometry import Drawing, draw, read_shapes
from opendas.custody.folders import open_folder, write_atomic
from opendas.files.release_folder import check_outside
from opendas.files.storage.parquet import parquet_sink
from opendas.geography.frame import Grouping
from opendas.report.html import templates
from opendas.report.views import kind_words
from opendas.tables.tabulate import NO_MARGIN

MOST_NUMBERS = 4_000_000
"""Numbers on a page. Beyond them the geolevels with most geounits show their first variable, or nothing; the
page says so."""


def write_comparison(
    comparison: Comparison, to: str | Path, *, geometry: str | Path | Sequence[str | Path] = ()
) -> tuple[Path, ...]:
    """Write ``compare.parquet`` and ``compare.html``, and return their paths.

    Parameters
    ----------
    comparison : Comparison
    to : path
        Folder; if the truth is among the sources, only its owner can read it.
    geometry : path or sequence of path
        Shapefiles, GeoPackages or GeoJSON of areas, at one or several geolevels.

    Raises
    ------
    ConfigError
        If the folder is part of a release.
    """
    to = Path(to)
    check_outside(to)
    paths = (geometry,) if isinstance(geometry, str | Path) else geometry
    page = compare_page(comparison, tuple(map(Path, paths)))
    if comparison.confidential:
        with open_folder(to, make=True) as folder:
            folder.set_mode(0o700)
    table, html = to / "compare.parquet", to / "compare.html"
    with parquet_sink(table, comparison.schema, metadata=comparison.metadata) as sink:
        for batch in comparison.batches():
            sink.write(batch)
    write_atomic(html, page)
    return table, html


def compare_page(comparison: Comparison, geometry: Sequence[Path] = ()) -> bytes:
    """Write the page.

    - `geometry`: shapes of geounits, at any geolevel. Without them areas are points, where an official
      redistricting file that says where they lie is among the sources.
    - Returns: UTF-8; the same for the same content.

    Raises `EnvironmentFailure, FormatError, DataError` as :func:`opendas.comparison.geometry.read_shapes`.
    """
    official = comparison.official
    views: list[dict[str, Any]] = []
    notes, spent = [], 0
    drawings: list[tuple[Mapping[str, Grouping], Drawing | None]] = []
    for common in comparison.common:
        levels = comparison.levels_of(common)
        units = {name: comparison.units(common, name) for name in levels}
        drawn = next((k for k, (other, _) in enumerate(drawings) if _same(other, units)), len(drawings))
        if drawn == len(drawings):  # products of one frame are drawn once
            drawings.append((units, draw(units, read_shapes(geometry, units) if geometry else {}, official)))
        shown: dict[str, Any] = {}
        for geolevel in sorted(levels, key=lambda name: len(units[name])):
            columns = sum(len(table.columns) for table in comparison.tables_of(common))
            each = len(units[geolevel]) * (2 * len(comparison.sources) - 1)
            words = kind_words(geolevel)
            kept = columns if spent + each * columns <= MOST_NUMBERS else 1
            if spent + each * kept > MOST_NUMBERS:
                notes.append(
                    f"The {len(units[geolevel]):,} {words} are in compare.parquet, not on this page."
                )
                continue
            if kept < columns:
                notes.append(f"Of the {words} this page has the first variable; all are in compare.parquet.")
            spent += each * kept
            shown[geolevel] = _level(comparison.figures(common, geolevel), kept)
        views.append(
            {
                "product": common.product.name,
                "drawing": drawn,
                "levels": [
                    {"name": name, "words": kind_words(name), **shown[name]}
                    for name in levels
                    if name in shown
                ],
            }
        )
    shapes = [_drawn(drawing) for _, drawing in drawings]
    data = {
        "sources": comparison.labels,
        "views": views,
        "drawings": shapes,
        "summary": comparison.summary,
    }
    page = (
        templates("opendas.comparison", keep_trailing_newline=True)
        .get_template("compare.html.j2")
        .render(
            summary=comparison.summary,
            labels=comparison.labels,
            sources=comparison.sources,
            notes=notes,
            mapped=any(drawing["width"] for drawing in shapes),
            words={level["name"]: level["words"] for view in views for level in view["levels"]},
            data=json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        )
    )
    return page.encode()


def _same(one: Mapping[str, Grouping], other: Mapping[str, Grouping]) -> bool:
    return list(one) == list(other) and all(
        np.array_equal(one[name].geocodes, other[name].geocodes) for name in one
    )


def _drawn(drawing: Drawing | None) -> dict[str, Any]:
    if drawing is None:
        return {"width": 0, "height": 0, "areas": {}, "points": {}}
    size = {"width": drawing.width, "height": drawing.height}
    return {**size, "areas": drawing.areas, "points": drawing.points}


def _level(tables: Any, most: int) -> dict[str, Any]:
    """Return the figures of a geolevel: codes, names, and each variable's values and margins."""
    found: dict[str, Any] = {"variables": []}
    figures: Figures
    for figures in tables:
        found["codes"] = [bytes(code).decode() for code in figures.units.geocodes]
        found["names"] = list(figures.names)
        for column, (variable, label) in enumerate(zip(figures.table.columns, figures.labels, strict=True)):
            if len(found["variables"]) < most:
                found["variables"].append(
                    {
                        "name": variable,
                        "label": label,
                        "values": figures.values[:, :, column].tolist(),
                        "margins": [_margin(each, column) for each in figures.margins],
                    }
                )
    return found


def _margin(found: Any, column: int) -> dict[str, Any] | None:
    """Return margins of one source, null where none is known, and what they are from."""
    if found is None:
        return None
    margin, kind = (each[:, column] for each in found)
    known = margin != NO_MARGIN
    if not bool(known.any()):
        return None
    kinds = [Figures.KINDS[k] for k in np.unique(kind[known]).tolist()]
    of = next((name for name in kinds if name != Figures.KINDS[-1]), kinds[0])
    return {
        "of": of,
        "values": [m if k else None for m, k in zip(margin.tolist(), known.tolist(), strict=True)],
    }
