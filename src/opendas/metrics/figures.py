"""The four measures of Figures 2 to 5 of the TopDown paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from opendas.geography.frame import Frame
from opendas.metrics.errors import LevelErrors
from opendas.schema.product import Product

__all__ = ["FigureRow", "figure_rows"]

_RACES_ALONE = ("white", "black", "aian", "asian", "nhpi", "sor")
_SMALL_COUNTY = 1_000
_FEDERAL_AIAN = range(1, 4_800)
"""AIANNH codes 0001 to 4799: federally recognised reservations and off-reservation trust lands."""


@dataclass(frozen=True, slots=True)
class FigureRow:
    """Mean absolute error of one statistic over the geounits of a figure's universe.

    Parameters
    ----------
    figure : str
        ``"2"`` to ``"5"``.
    statistic, universe : str
        In words.
    geounits : int
    mean_abs_error : float or None
        None where the universe is empty.
    """

    figure: str
    statistic: str
    universe: str
    geounits: int
    mean_abs_error: float | None

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            "figure": self.figure,
            "statistic": self.statistic,
            "universe": self.universe,
            "geounits": self.geounits,
            "mean_abs_error": self.mean_abs_error,
        }


def _row(figure: str, statistic: str, universe: str, errors: npt.NDArray[np.int64]) -> FigureRow:
    mean = int(np.abs(errors).sum()) / len(errors) if len(errors) else None
    return FigureRow(figure, statistic, universe, len(errors), mean)


def _federal(codes: npt.NDArray[np.bytes_]) -> npt.NDArray[np.bool_]:
    return np.array([code[-4:].isdigit() and int(code[-4:]) in _FEDERAL_AIAN for code in codes], dtype=bool)


def _incorporated(
    codes: npt.NDArray[np.bytes_], names: Mapping[str, str]
) -> tuple[str, npt.NDArray[np.bool_]]:
    """Leave out census designated places, whose names end in "CDP"."""
    if not names:
        return "all places (the frame has no names to tell incorporated ones)", np.ones(
            len(codes), dtype=bool
        )
    kept = [not names.get(code.decode(), "").endswith("CDP") for code in codes]
    return "incorporated places", np.array(kept, dtype=bool)


def _race_alone_rows(level: LevelErrors, product: Product) -> list[FigureRow]:
    schema = product.schema
    codes = dict(zip(schema.names, schema.codes(np.arange(schema.size)), strict=True))
    races = schema.attribute("cenrace").levels
    rows = []
    for number, ethnicity in enumerate(schema.attribute("hispanic").levels):
        for race in _RACES_ALONE:
            cells = np.flatnonzero((codes["hispanic"] == number) & (codes["cenrace"] == races.index(race)))
            indicator = csr_array(
                (np.ones(len(cells), dtype=np.int64), (cells, np.zeros(len(cells), dtype=np.int64))),
                shape=(schema.size, 1),
            )
            errors = np.asarray((level.error @ indicator).toarray(), dtype=np.int64)[:, 0]
            rows.append(_row("5", f"{ethnicity} * {race} alone", "tracts", errors))
    return rows


def figure_rows(
    levels: Mapping[str, LevelErrors], frame: Frame, product: Product, *, groups: bool
) -> tuple[FigureRow, ...]:
    """Compute the measures whose geolevel or entity category is there.

    Parameters
    ----------
    levels : mapping of geolevel or category to LevelErrors
    frame : Frame
        For the names of places.
    product : Product
    groups : bool
        Whether the product has the race and ethnicity groups of Figure 5.
    """
    rows: list[FigureRow] = []
    if "county" in levels:
        level = levels["county"]
        small = level.population < _SMALL_COUNTY
        rows.append(_row("2", "total", "counties with fewer than 1,000 people", level.total_error[small]))
    if "aianhh" in levels:
        level = levels["aianhh"]
        federal = _federal(level.units.codes)
        universe = "federal American Indian reservations and off-reservation trust lands"
        rows.append(_row("3", "total", universe, level.total_error[federal]))
    if "place" in levels:
        level = levels["place"]
        universe, kept = _incorporated(level.units.codes, frame.names.get("place", {}))
        rows.append(_row("4", "total", universe, level.total_error[kept]))
    if "tract" in levels and groups:
        rows += _race_alone_rows(levels["tract"], product)
    return tuple(rows)
