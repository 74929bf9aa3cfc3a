"""Race and ethnicity groups: errors by quintiles of the Blau index, and the redistricting criterion."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from opendas.arrays import Bools, Floats, Ints
from opendas.metrics.errors import LevelErrors
from opendas.schema.attributes import Schema, listed
from opendas.schema.product import Product

ALONE = ("white", "black", "aian", "asian", "nhpi", "sor")

GROUPS = ("hispanic", *(f"not_hispanic * {race}" for race in ALONE), "not_hispanic * two or more")
"""The eight race and ethnicity groups of the TopDown paper, section 9 (before Table 13)."""


def has_groups(product: Product) -> bool:
    """Whether the product has the attributes that the groups are made of."""
    levels = {attribute.name: attribute.levels for attribute in product.schema.attributes}
    return "hispanic" in levels.get("hispanic", ()) and set(ALONE) <= set(levels.get("cenrace", ()))


def group_of_cell(schema: Schema) -> Ints:
    """Return the race and ethnicity group of each cell, int64 (n,), as an index into :data:`GROUPS`."""
    codes = dict(zip(schema.names, schema.codes(np.arange(schema.size)), strict=True))
    races = schema.attribute("cenrace").levels
    of_race = np.array([1 + ALONE.index(race) if race in ALONE else len(GROUPS) - 1 for race in races])
    hispanic = schema.attribute("hispanic").levels.index("hispanic")
    return np.where(codes["hispanic"] == hispanic, 0, of_race[codes["cenrace"]]).astype(np.int64)


def group_counts(table: csr_array, schema: Schema, keep: Bools | None = None) -> Ints:
    """Sum a (g, n) table into the eight groups, int64 (g, 8), over the cells where `keep` is true."""
    group = group_of_cell(schema)
    ones = np.ones(len(group), dtype=np.int64) if keep is None else keep.astype(np.int64)
    projection = csr_array((ones, group, np.arange(len(group) + 1)), shape=(len(group), len(GROUPS)))
    return np.asarray((table @ projection).toarray(), dtype=np.int64)


def blau_index(counts: Ints) -> Floats:
    """Heterogeneity of each row of counts: one minus the sum of squared shares; 0 for an empty row.

    - `counts` (g, k).
    - Returns (g,): between 0 (all alike) and ``1 - 1/k``.

    Examples
    --------
    >>> blau_index(np.array([[5, 5], [7, 0], [0, 0]])).tolist()
    [0.5, 0.0, 0.0]
    """
    totals = counts.sum(axis=1)
    squares = (counts.astype(np.float64) ** 2).sum(axis=1)
    return np.asarray(
        1.0 - np.where(totals == 0, 1.0, squares / np.maximum(totals.astype(np.float64), 1.0) ** 2)
    )


def quintile_classes(index: Floats) -> tuple[tuple[str, ...], Ints]:
    """Split geounits into quintiles; quintiles whose borders coincide are one class.

    - `index` (g,).
    - Returns: labels of the classes, for instance ``("1 and 2", "3", "4", "5")`` as in the paper's Table 13.
    - Returns (g,): class of each geounit. A geounit on a border belongs to the lower class.
    """
    edges = np.quantile(index, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0), method="inverted_cdf")
    unique = np.unique(edges)
    class_of_unit = np.searchsorted(unique[1:-1], index, side="left").astype(np.int64)
    class_of_quintile = np.maximum(np.searchsorted(unique, edges[1:]) - 1, 0)
    classes = range(max(len(unique) - 1, 1))
    labels = (listed([str(k) for k in np.flatnonzero(class_of_quintile == c) + 1]) for c in classes)
    return tuple(labels), class_of_unit


@dataclass(frozen=True, slots=True)
class BlauRow:
    """Signed error of the total in one class of geounits by their Blau index."""

    geolevel: str
    quintile: str  # ``"1"`` (most alike) to ``"5"``, or several whose borders coincide
    geounits: int
    mean_signed_error: float | None


def blau_rows(levels: Iterable[LevelErrors], product: Product) -> tuple[BlauRow, ...]:
    """Signed error of the total by quintile of the true Blau index.

    Notes
    -----
    TopDown paper, section 9, Table 13.
    """
    rows: list[BlauRow] = []
    for level in levels:
        labels, class_of_unit = quintile_classes(blau_index(group_counts(level.truth, product.schema)))
        for number, label in enumerate(labels):
            errors = level.total_error[class_of_unit == number]
            mean = int(errors.sum()) / len(errors) if len(errors) else None
            rows.append(BlauRow(level.units.geolevel, label, len(errors), mean))
    return tuple(rows)


# The redistricting criterion: whether the share of the largest race or ethnicity group holds.
#
# TopDown paper, sections 6.3 and 8.3: in areas of at least 500 people the share of the largest group should
# move by no more than 5 percentage points in at least 95 % of the areas.


BIN_WIDTH = 50
"""Width of a population interval; section 8.3 names "200 to 249" and "450 to 499"."""

TOP = 1_000
"""From here on, one open interval."""

FIVE_POINTS = Fraction(1, 20)
"""By how much the share of the largest group may move."""

_SAFE = 1 << 62
TARGET = 500
"""The criterion speaks about areas of at least so many people."""


def largest_group_holds(truth: Ints, estimate: Ints, within: Fraction) -> tuple[Bools, Bools]:
    """Return where the share of the group that is largest in the truth moves by at most a part of one.

    - `truth`, `estimate` (g, k): counts of each group.
    - Returns `held`, `counted` (g,): an empty estimate does not hold; an empty truth does not count.

    Notes
    -----
    In integers: ``|e T - t E| <= within T E`` with the group's count and the total in truth (t, T) and
    estimate (e, E). Of groups equally large the first counts.

    Examples
    --------
    >>> truth, estimate = np.array([[60, 40], [60, 40]]), np.array([[55, 45], [54, 46]])
    >>> largest_group_holds(truth, estimate, FIVE_POINTS)[0].tolist()
    [True, False]
    """
    largest = np.argmax(truth, axis=1)
    rows = np.arange(len(truth))
    t, e = truth[rows, largest], estimate[rows, largest]
    total, estimated = truth.sum(axis=1), estimate.sum(axis=1)
    moved = np.abs(_products(e, total) - _products(t, estimated))
    held = at_most(moved, _products(total, estimated), within)
    return np.asarray(held & (estimated > 0)), np.asarray(total > 0)


def _products(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Multiply exactly: in Python integers where 64 bits might not hold the result."""
    most = int(np.abs(a).max(initial=0)) * int(np.abs(b).max(initial=0))
    return np.asarray(a * b if most < _SAFE else a.astype(object) * b.astype(object))


def at_most(value: npt.NDArray[Any], unit: npt.NDArray[Any], factor: Fraction) -> Bools:
    """Return where ``value <= factor * unit``, exactly."""
    above, below = (np.array([number]) for number in (factor.denominator, factor.numerator))
    return np.asarray(_products(value, above) <= _products(unit, below), dtype=bool)


def adults(schema: Schema) -> Bools | None:
    """Return the cells of people of voting age, bool (n,); None where the schema lacks them."""
    if "votingage" not in schema.names or "18plus" not in schema.attribute("votingage").levels:
        return None
    return schema.box({"votingage": ("18plus",)})


def population_interval(number: int) -> str:
    """Return the label of an interval, for instance ``"200 to 249"``.

    Examples
    --------
    >>> population_interval(4), population_interval(20)
    ('200 to 249', '1,000+')
    """
    low = number * BIN_WIDTH
    return f"{TOP:,}+" if low >= TOP else f"{low} to {low + BIN_WIDTH - 1}"


@dataclass(frozen=True, slots=True)
class CriterionBin:
    """The criterion in one population interval."""

    population: str
    geounits: int  # with at least one person in the truth, in the universe of the base
    within: int  # of these, how many hold

    @property
    def passes(self) -> bool:
        """Whether at least 95 % hold."""
        return 20 * self.within >= 19 * self.geounits

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            "population": self.population,
            "geounits": self.geounits,
            "share_within": self.within / self.geounits if self.geounits else None,
            "passes": self.passes if self.geounits else None,
        }


@dataclass(frozen=True, slots=True)
class Criterion:
    """The criterion at one geolevel or entity category."""

    geolevel: str
    base: str  # ``"total"`` or ``"18plus"``: whose share is taken. Intervals are of total population.
    bins: tuple[CriterionBin, ...]  # intervals from the smallest; empty ones included
    target: CriterionBin  # all areas with at least 500 people

    @property
    def smallest_passing(self) -> str | None:
        """The lowest interval from which every interval with areas passes; None if the highest fails."""
        found = None
        for entry in reversed([entry for entry in self.bins if entry.geounits]):
            if not entry.passes:
                break
            found = entry.population
        return found

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            "geolevel": self.geolevel,
            "base": self.base,
            "smallest_passing": self.smallest_passing,
            "target": self.target.to_dict(),
            "bins": [entry.to_dict() for entry in self.bins],
        }


def _criterion(geolevel: str, base: str, held: Bools, counted: Bools, population: Ints) -> Criterion:
    interval = np.minimum(population, TOP) // BIN_WIDTH
    size = TOP // BIN_WIDTH + 1
    held = held & counted
    every, within = (np.bincount(interval[which], minlength=size).tolist() for which in (counted, held))
    bins = tuple(CriterionBin(population_interval(i), every[i], within[i]) for i in range(size))
    large, good = (int(which[population >= TARGET].sum()) for which in (counted, held))
    return Criterion(geolevel, base, bins, CriterionBin(f"{TARGET}+", large, good))


def criterion(levels: Iterable[LevelErrors], product: Product) -> tuple[Criterion, ...]:
    """Evaluate the criterion at each level, for the total and for the voting-age population.

    `product`: with attributes ``hispanic`` and ``cenrace``; the voting-age base needs ``votingage``.
    """
    schema = product.schema
    bases: dict[str, Bools | None] = {"total": None}
    grown = adults(schema)
    if grown is not None:
        bases["18plus"] = grown
    found: list[Criterion] = []
    for level in levels:
        for base, keep in bases.items():
            truth = group_counts(level.truth, schema, keep)
            estimate = truth + group_counts(level.error, schema, keep)
            held = largest_group_holds(truth, estimate, FIVE_POINTS)
            found.append(_criterion(level.units.geolevel, base, *held, level.population))
    return tuple(found)
