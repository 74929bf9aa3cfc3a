"""An accountant that knows no formula: it looks at every pair of neighbours and every answer.

It takes plain data (parents, the row each cell is counted in, a noise parameter per geounit and query),
builds both data sets of every neighbouring pair, answers every measured query on both, and adds up what the
differences cost. It shares no code with the package, so that a mistake there shows here. Small inputs only:
the work is (leaves x cells)^2 times the number of answers.

Independent noise of the same law in every coordinate of a query; so, for a pair with answers q and q':
discrete Gaussian, sum of (q - q')^2 / sigma2 is at most 2 rho (Canonne, Kamath and Steinke, Theorem 14);
discrete Laplace, sum of |q - q'| / scale is at most epsilon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

Record = tuple[int, int]
"""Leaf and cell."""


@dataclass(frozen=True)
class Release:
    """Everything that is measured, as plain data.

    parents : per level, top first, the parent index of each geounit in the level above (the top: zeros).
    rows : per level, query name -> the row of the query that counts each cell.
    noise : per level, per geounit, query name -> sigma2 or scale; without entry a query is not measured.
    """

    parents: Sequence[Sequence[int]]
    rows: Sequence[dict[str, Sequence[int]]]
    noise: Sequence[Sequence[dict[str, Fraction]]]
    cells: int


Answers = dict[tuple[int, int, str, int], int]


def answers(release: Release, records: Sequence[Record]) -> Answers:
    """Count every record, at every level above it, in every measured query."""
    counts: Answers = {}
    for leaf, cell in records:
        geounit = leaf
        for level in reversed(range(len(release.parents))):
            for query, rows in release.rows[level].items():
                if query in release.noise[level][geounit]:
                    key = (level, geounit, query, rows[cell])
                    counts[key] = counts.get(key, 0) + 1
            geounit = release.parents[level][geounit]
    return counts


def cost(release: Release, before: Sequence[Record], after: Sequence[Record], power: int) -> Fraction:
    """Add |difference|^power / noise over every answer."""
    left, right = answers(release, before), answers(release, after)
    total = Fraction(0)
    for key in left.keys() | right.keys():
        level, geounit, query, _ = key
        difference = abs(left.get(key, 0) - right.get(key, 0))
        total += Fraction(difference**power) / release.noise[level][geounit][query]
    return total


def records(release: Release) -> Iterator[Record]:
    """List every record there could be."""
    return product(range(len(release.parents[-1])), range(release.cells))


def bounded_pairs(release: Release) -> Iterator[tuple[list[Record], list[Record]]]:
    """Every pair that differs by replacing one record, beside a bystander that must not matter."""
    bystander = (0, 0)
    for old, new in product(list(records(release)), repeat=2):
        yield [bystander, old], [bystander, new]


def unbounded_pairs(release: Release) -> Iterator[tuple[list[Record], list[Record]]]:
    """Every pair that differs by adding one record."""
    bystander = (0, 0)
    for new in records(release):
        yield [bystander], [bystander, new]


PAIRS: dict[str, Callable[[Release], Iterator[tuple[list[Record], list[Record]]]]] = {
    "bounded": bounded_pairs,
    "unbounded": unbounded_pairs,
}


def worst_rho(release: Release, relation: str) -> Fraction:
    """The rho of the worst pair under discrete Gaussian noise."""
    return max(cost(release, before, after, 2) for before, after in PAIRS[relation](release)) / 2


def worst_epsilon(release: Release, relation: str) -> Fraction:
    """The epsilon of the worst pair under discrete Laplace noise."""
    return max(cost(release, before, after, 1) for before, after in PAIRS[relation](release))
