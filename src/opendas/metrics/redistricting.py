"""The redistricting criterion: whether the share of the largest race or ethnicity group holds.

TopDown paper, sections 6.3 and 8.3: in areas of at least 500 people the share of the largest group should
move by no more than 5 percentage points in at least 95 % of the areas.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opendas.metrics.diversity import group_counts
from opendas.metrics.errors import LevelErrors
from opendas.schema.product import Product

__all__ = [
    "BIN_WIDTH",
    "Criterion",
    "CriterionBin",
    "criterion",
    "population_interval",
    "within_five_points",
]

BIN_WIDTH = 50
"""Width of a population interval; section 8.3 names "200 to 249" and "450 to 499"."""

TOP = 1_000
"""From here on, one open interval."""

TARGET = 500
"""The criterion speaks about areas of at least so many people."""


def within_five_points(truth: npt.NDArray[np.int64], estimate: npt.NDArray[np.int64]) -> npt.NDArray[np.int8]:
    """Compare the share of the group that is largest in the truth.

    Parameters
    ----------
    truth, estimate : int64 (g, k)
        Counts of each group.

    Returns
    -------
    int8 (g,)
        1 if the share moves by at most 5 percentage points, 0 if by more or the estimate is empty, -1 (left
        out) if the truth is empty.

    Notes
    -----
    In integers: ``|e T - t E| * 20 <= T E`` with the group's count and the total in truth (t, T) and estimate
    (e, E). Of groups equally large the first counts. Exact for totals below 2^29.

    Examples
    --------
    >>> within_five_points(np.array([[60, 40], [60, 40]]), np.array([[55, 45], [54, 46]])).tolist()
    [1, 0]
    """
    largest = np.argmax(truth, axis=1)
    rows = np.arange(len(truth))
    t, e = truth[rows, largest], estimate[rows, largest]
    total, estimated = truth.sum(axis=1), estimate.sum(axis=1)
    held = (np.abs(e * total - t * estimated) * 20 <= total * estimated) & (estimated > 0)
    return np.where(total == 0, -1, held).astype(np.int8)


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
    """The criterion in one population interval.

    Parameters
    ----------
    population : str
    geounits : int
        With at least one person in the truth, in the universe of the base.
    within : int
        Of these, how many hold.
    """

    population: str
    geounits: int
    within: int

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
    """The criterion at one geolevel or entity category.

    Parameters
    ----------
    geolevel : str
    base : str
        ``"total"`` or ``"18plus"``: whose share is taken. Intervals are of total population.
    bins : tuple of CriterionBin
        Intervals from the smallest; empty ones included.
    target : CriterionBin
        All areas with at least 500 people.
    """

    geolevel: str
    base: str
    bins: tuple[CriterionBin, ...]
    target: CriterionBin

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


def _criterion(
    geolevel: str, base: str, held: npt.NDArray[np.int8], population: npt.NDArray[np.int64]
) -> Criterion:
    interval = np.minimum(population, TOP) // BIN_WIDTH
    size = TOP // BIN_WIDTH + 1
    counted = np.bincount(interval[held >= 0], minlength=size)
    within = np.bincount(interval[held == 1], minlength=size)
    bins = tuple(CriterionBin(population_interval(i), int(counted[i]), int(within[i])) for i in range(size))
    large = held[population >= TARGET]
    return Criterion(
        geolevel,
        base,
        bins,
        CriterionBin(f"{TARGET}+", int((large >= 0).sum()), int((large == 1).sum())),
    )


def criterion(levels: Iterable[LevelErrors], product: Product) -> tuple[Criterion, ...]:
    """Evaluate the criterion at each level, for the total and for the voting-age population.

    Parameters
    ----------
    levels : iterable of LevelErrors
    product : Product
        With attributes ``hispanic`` and ``cenrace``; the voting-age base needs ``votingage``.
    """
    schema = product.schema
    bases: dict[str, npt.NDArray[np.bool_] | None] = {"total": None}
    if "votingage" in schema.names and "18plus" in schema.attribute("votingage").levels:
        codes = schema.codes(np.arange(schema.size))[schema.names.index("votingage")]
        bases["18plus"] = codes == schema.attribute("votingage").levels.index("18plus")
    found: list[Criterion] = []
    for level in levels:
        for base, keep in bases.items():
            truth = group_counts(level.truth, schema, keep)
            estimate = truth + group_counts(level.error, schema, keep)
            held = within_five_points(truth, estimate)
            found.append(_criterion(level.units.geolevel, base, held, level.population))
    return tuple(found)
