"""Everything that ``opendas evaluate`` says, from truth and estimate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from opendas.arrays import Bools, Codes, Ints
from opendas.geography.frame import Frame, Grouping
from opendas.metrics.age_sex import AgeSexRow, Pyramid, age_sex_rows, pyramids
from opendas.metrics.errors import (
    ErrorRow,
    LevelErrors,
    level_errors,
    levels_of,
    population_rows,
    query_rows,
)
from opendas.metrics.race_groups import ALONE, BlauRow, Criterion, blau_rows, criterion, has_groups
from opendas.schema.ages import has_ages
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product

# The four measures of Figures 2 to 5 of the TopDown paper.


_SMALL_COUNTY = 1_000
_FEDERAL_AIAN = range(1, 4_800)
"""AIANNH codes 0001 to 4799: federally recognised reservations and off-reservation trust lands."""


@dataclass(frozen=True, slots=True)
class FigureRow:
    """Mean absolute error of one statistic over the geounits of a figure's universe."""

    figure: str  # ``"2"`` to ``"5"``
    # statistic, universe: in words.
    statistic: str
    universe: str
    geounits: int
    mean_abs_error: float | None  # None where the universe is empty


def _row(figure: str, statistic: str, universe: str, errors: Ints) -> FigureRow:
    mean = int(np.abs(errors).sum()) / len(errors) if len(errors) else None
    return FigureRow(figure, statistic, universe, len(errors), mean)


def _federal(codes: Codes) -> Bools:
    return np.array([code[-4:].isdigit() and int(code[-4:]) in _FEDERAL_AIAN for code in codes], dtype=bool)


def _incorporated(codes: Codes, names: Mapping[str, str]) -> tuple[str, Bools]:
    """Leave out census designated places, whose names end in "CDP"."""
    if not names:
        return "all places (the frame has no names to tell incorporated ones)", np.ones(
            len(codes), dtype=bool
        )
    kept = [not names.get(code.decode(), "").endswith("CDP") for code in codes]
    return "incorporated places", np.array(kept, dtype=bool)


def _race_alone_rows(level: LevelErrors, product: Product) -> list[FigureRow]:
    schema = product.schema
    rows = []
    for ethnicity in schema.attribute("hispanic").levels:
        for race in ALONE:
            inside = schema.box({"hispanic": (ethnicity,), "cenrace": (race,)})
            errors = np.asarray(level.error @ inside.astype(np.int64), dtype=np.int64)
            rows.append(_row("5", f"{ethnicity} * {race} alone", "tracts", errors))
    return rows


def figure_rows(
    levels: Mapping[str, LevelErrors], frame: Frame, product: Product, *, groups: bool
) -> tuple[FigureRow, ...]:
    """Compute the measures whose geolevel or entity category is there.

    - `levels`, geolevel or category -> LevelErrors.
    - `frame`: for the names of places.
    - `groups`: whether the product has the race and ethnicity groups of Figure 5.
    """
    rows: list[FigureRow] = []
    if "county" in levels:
        level = levels["county"]
        small = level.population < _SMALL_COUNTY
        rows.append(_row("2", "total", "counties with a total below 1,000", level.total_error[small]))
    if "aianhh" in levels:
        level = levels["aianhh"]
        federal = _federal(level.units.geocodes)
        universe = "federal American Indian reservations and off-reservation trust lands"
        rows.append(_row("3", "total", universe, level.total_error[federal]))
    if "place" in levels:
        level = levels["place"]
        universe, kept = _incorporated(level.units.geocodes, frame.names.get("place", {}))
        rows.append(_row("4", "total", universe, level.total_error[kept]))
    if "tract" in levels and groups:
        rows += _race_alone_rows(levels["tract"], product)
    return tuple(rows)


FORMAT = "opendas evaluation 1"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Errors of an estimate. Confidential: each figure is a function of the truth.

    - `errors`: every declared query group at every geolevel asked for.
    - `figures`: of the geolevels and categories that the frame has; Figure 5, as the two before, for products
      with the race and ethnicity groups only.
    - `pyramids`: of official geolevels; empty for products without single years of age and sex, as is the one
      before.
    """

    product: str
    errors: tuple[ErrorRow, ...]
    by_population: tuple[ErrorRow, ...]
    by_blau_quintile: tuple[BlauRow, ...]
    redistricting: tuple[Criterion, ...]
    figures: tuple[FigureRow, ...]
    by_age_and_sex: tuple[AgeSexRow, ...] = ()
    pyramids: tuple[Pyramid, ...] = ()

    def __repr__(self) -> str:
        return f"Evaluation({self.product}: {len(self.errors)} rows, confidential)"

    @property
    def rows(self) -> list[dict[str, object]]:
        """The rows of ``evaluate --json``."""
        return [row.to_dict() for row in self.errors]

    def to_dict(self) -> dict[str, object]:
        """Strict JSON: no infinity, no NaN; a mean over no geounit is null."""
        return {
            "format": FORMAT,
            "confidential": True,
            "product": self.product,
            "rows": self.rows,
            "by_population": [row.to_dict() for row in self.by_population],
            "by_blau_quintile": [asdict(row) for row in self.by_blau_quintile],
            "redistricting": [row.to_dict() for row in self.redistricting],
            "figures": [asdict(row) for row in self.figures],
            "by_age_and_sex": [asdict(row) for row in self.by_age_and_sex],
            "pyramids": [pyramid.to_dict() for pyramid in self.pyramids],
        }


def evaluate(
    truth: Histogram,
    estimate: Histogram,
    frame: Frame,
    product: Product,
    *,
    entities: bool = False,
    districts: Grouping | None = None,
) -> Evaluation:
    """Measure the errors of an estimate.

    - `truth`, `estimate`: rows are the leaves of `frame`, in its order.
    - `frame`: official geolevels and entity codes: always the official geography, whatever spine the run
      used.
    - `entities`: give :attr:`Evaluation.errors` and :attr:`Evaluation.by_population` at entity categories
      too. The redistricting criterion and the figures always use them.
    - `districts`: leaves by the districts of a drawn plan: given as one more geolevel.

    Raises `DataError` if the histograms do not belong to the frame or to each other.
    """
    every = level_errors(truth, estimate, frame, levels_of(frame, entities=True))
    official = every[: len(frame.geolevels)]
    drawn = () if districts is None else level_errors(truth, estimate, frame, [districts])
    reported = (*(every if entities else official), *drawn)
    groups, ages = has_groups(product), has_ages(product.schema)
    return Evaluation(
        product=product.name,
        errors=query_rows(reported, product),
        by_population=population_rows(reported, product),
        by_blau_quintile=blau_rows(official, product) if groups else (),
        redistricting=criterion(every, product) if groups else (),
        figures=figure_rows({level.units.geolevel: level for level in every}, frame, product, groups=groups),
        by_age_and_sex=age_sex_rows(reported, product) if ages else (),
        pyramids=pyramids(official, product) if ages else (),
    )
