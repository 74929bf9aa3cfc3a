"""Errors of age and sex as demographers measure them: single years, five-year groups, the young, the old."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from opendas.arrays import Bools, Floats, Ints
from opendas.metrics.errors import LevelErrors, project
from opendas.schema.ages import GROUP_NAMES, GROUP_STARTS
from opendas.schema.product import Product

_AT_ONCE = 20_000
"""Geounits whose ages are dense at a time."""
_GROUPS = (
    ("under 5", 0, 5),
    ("under 18", 0, 18),
    ("18 to 64", 18, 65),
    ("65 and over", 65, None),
    ("85 and over", 85, None),
)


@dataclass(frozen=True, slots=True)
class AgeSexRow:
    """Errors of one measure of age and sex at one geolevel."""

    geolevel: str
    measure: str
    counts: int  # number of answers: geounits, times the rows that the measure has in each
    # mean_abs_error, mean_signed_error: over all answers, in persons; of the median age in years, of the
    # index of dissimilarity in per cent. None without answers.
    mean_abs_error: float | None
    mean_signed_error: float | None
    # mean_abs_percent_error, mean_percent_error: in per cent of the true count, over answers whose truth is
    # not zero (MAPE and MALPE). None for measures that are no counts.
    mean_abs_percent_error: float | None
    mean_percent_error: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Pyramid:
    """Population by sex and five-year group of the geounit with the median population of its geolevel."""

    geolevel: str
    geocode: str
    sexes: tuple[str, ...]
    groups: tuple[str, ...]
    truth: Ints  # (2, groups)
    estimate: Ints  # (2, groups)

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        sides = {"truth": self.truth.tolist(), "estimate": self.estimate.tolist()}
        rows = {"sexes": list(self.sexes), "groups": list(self.groups)}
        return {"geolevel": self.geolevel, "geocode": self.geocode, **rows, **sides}


@dataclass(slots=True)
class _Sums:
    counts: int = 0
    absolute: float = 0.0
    signed: float = 0.0
    positive: int = 0
    percent: float = 0.0
    absolute_percent: float = 0.0

    def add(self, truth: Floats, estimate: Floats, *, percent: bool = True) -> None:
        error = estimate - truth
        self.counts += error.size
        self.absolute += float(np.abs(error).sum())
        self.signed += float(error.sum())
        if percent:
            there = truth > 0
            relative = 100.0 * error[there] / truth[there]
            self.positive += int(there.sum())
            self.percent += float(relative.sum())
            self.absolute_percent += float(np.abs(relative).sum())

    def row(self, geolevel: str, measure: str) -> AgeSexRow:
        n, m = self.counts, self.positive
        means = (self.absolute / n, self.signed / n) if n else (None, None)
        percents = (self.absolute_percent / m, self.percent / m) if m else (None, None)
        return AgeSexRow(geolevel, measure, n, *means, *percents)


def _by_age(table: csr_array, product: Product) -> Floats:
    """Sum a (g, n) table to float64 (g, 2, ages)."""
    names = product.schema.names
    counts = np.asarray(project(table, product.workload.group("sex * age")).toarray(), np.float64)
    if names.index("sex") < names.index("age"):
        return counts.reshape(len(counts), 2, -1)
    return counts.reshape(len(counts), -1, 2).transpose(0, 2, 1)


def _five_years(counts: Floats) -> Floats:
    """Sum float64 (g, 2, ages) to five-year groups, (g, 2, groups), the last of them open."""
    return np.add.reduceat(counts, GROUP_STARTS, axis=2)


def median_age(counts: Floats) -> Floats:
    """Return the age that half of the people have not reached, years of age taken as evenly filled.

    - `counts` (g, ages): people of each completed year of age.
    - Returns (g,): NaN without people.

    Examples
    --------
    >>> median_age(np.array([[1.0, 2.0, 1.0], [0.0, 0.0, 0.0]]))
    array([1.5, nan])
    """
    reached = counts.cumsum(axis=1)
    half = reached[:, -1] / 2
    year = np.argmax(reached >= half[:, None], axis=1)
    rows = np.arange(len(counts))
    inside = counts[rows, year]
    before = reached[rows, year] - inside
    part = np.divide(half - before, inside, out=np.full(len(counts), np.nan), where=inside > 0)
    return np.asarray(year + part)


def _measure(tally: defaultdict[str, _Sums], truth: Floats, estimate: Floats) -> None:
    """Add the measures of some geounits, float64 (g, 2, ages) each."""
    tally["single years by sex"].add(truth, estimate)
    groups = _five_years(truth), _five_years(estimate)
    tally["five-year groups by sex"].add(*groups)
    both = truth.sum(axis=1), estimate.sum(axis=1)
    for name, low, high in _GROUPS:
        tally[name].add(*(counts[:, low:high].sum(axis=1) for counts in both))
    tally["female"].add(*(counts[:, 1].sum(axis=1) for counts in (truth, estimate)))
    people: Bools = np.all([counts.sum(axis=1) > 0 for counts in both], axis=0)
    tally["median age"].add(*(median_age(counts[people]) for counts in both), percent=False)
    shares = [counts[people] / counts[people].sum(axis=(1, 2), keepdims=True) for counts in groups]
    moved = 50.0 * np.abs(shares[1] - shares[0]).sum(axis=(1, 2))
    tally["index of dissimilarity"].add(np.zeros(len(moved)), moved, percent=False)


def age_sex_rows(levels: Iterable[LevelErrors], product: Product) -> tuple[AgeSexRow, ...]:
    """Measure errors of age and sex at the given levels. Confidential, like the truth.

    The median age and the index of dissimilarity, half the sum of the differences between the shares of
    five-year groups by sex, are taken over geounits with people in truth and estimate.
    """
    return tuple(row for level in levels for row in _level_rows(level, product))


def _level_rows(level: LevelErrors, product: Product) -> Iterator[AgeSexRow]:
    tally: defaultdict[str, _Sums] = defaultdict(_Sums)
    for start in range(0, level.truth.shape[0], _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        truth = _by_age(level.truth[part], product)
        _measure(tally, truth, truth + _by_age(level.error[part], product))
    return (sums.row(level.units.geolevel, measure) for measure, sums in tally.items())


def pyramids(levels: Sequence[LevelErrors], product: Product) -> tuple[Pyramid, ...]:
    """Return the population by sex and five-year group of one typical geounit of each level."""
    found = []
    for level in levels:
        order = np.argsort(level.population, kind="stable")
        if not len(order):
            continue
        chosen = slice(int(order[len(order) // 2]), int(order[len(order) // 2]) + 1)
        truth = _five_years(_by_age(level.truth[chosen], product))[0].astype(np.int64)
        error = _five_years(_by_age(level.error[chosen], product))[0].astype(np.int64)
        geocode = level.units.geocodes[chosen][0].decode()
        sexes = product.schema.attribute("sex").levels
        found.append(Pyramid(level.units.geolevel, geocode, sexes, GROUP_NAMES, truth, truth + error))
    return tuple(found)
