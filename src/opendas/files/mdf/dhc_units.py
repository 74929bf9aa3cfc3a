"""The records of DHC units, of two histograms; apart from other layouts, whose records are cells of one.

Kinds of record, in the order of the file: the cells of the household histogram, rented ones as rented; the
rented cells again, for households that pay no rent; vacant units by status; group quarters by type.

Axes: ``n`` cells of the household histogram, ``r`` kinds of record, ``t`` household types.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product as combinations

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints, positions_of
from opendas.errors import DataError
from opendas.schema.dhc_persons import GQ_CODES
from opendas.schema.dhc_units import (
    CHILDREN,
    COUPLES,
    FIRST_VACANT,
    HOUSEHOLD_TYPES,
    VACANCIES,
    HouseholdType,
)
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product

_RENTED, _NO_RENT = 2, 3
"""Levels of the second histogram: households that rent, and that pay no rent."""

_OTHERS = len(VACANCIES) + len(GQ_CODES)
"""Levels without a household."""

Column = tuple[Sequence[str], npt.NDArray[np.integer]]
"""Values, and the position of each kind's value among them."""


def _tenure(product: Product) -> Ints:
    """Return the tenure of each cell, (n,)."""
    return product.schema.codes(np.arange(product.schema.size))[5]


def unit_columns(product: Product) -> dict[str, Column]:
    """Return the columns of the production files by name, with positions int8 (r,)."""
    size, rented = product.schema.size, np.flatnonzero(_tenure(product) == _RENTED)
    cells = np.concatenate([np.arange(size), rented])
    sex, age, hispanic, race, elderly, tenure, kind = product.schema.codes(cells)
    tenure[size:] = _NO_RENT
    other = np.arange(_OTHERS)
    vacancy = np.where(other < len(VACANCIES), other + 1, 0)
    quarters = np.maximum(other - len(VACANCIES) + 1, 0)
    types, both = HOUSEHOLD_TYPES, tuple(combinations((0, 1), HOUSEHOLD_TYPES))
    sex_and_kind = sex * len(types) + kind

    def column(last: int, code_of: Iterable[int], level: npt.NDArray[np.integer], width: int = 1) -> Column:
        """Return a column of numbers from 0 to `last`, which say something of households; 0 for others."""
        code = np.array([*code_of], dtype=np.int8)[level]
        values = tuple(f"{number:0{width}d}" for number in range(last + 1))
        return values, np.concatenate([code, np.zeros(_OTHERS, dtype=np.int8)])

    def others(values: Sequence[str], of_other: npt.NDArray[np.integer | np.bool_]) -> Column:
        return values, np.concatenate([np.zeros(len(cells), dtype=np.int8), of_other.astype(np.int8)])

    return {
        "RTYPE": others(("2", "4"), quarters > 0),
        "GQTYPE": others(("000", *GQ_CODES), quarters),
        "TEN": column(4, range(1, 5), tenure),
        "VACS": others(tuple(map(str, range(len(VACANCIES) + 1))), vacancy),
        "HHSIZE": column(7, (each.size for each in types), kind),
        "HHT": column(7, (_hht(*each) for each in both), sex_and_kind),
        "HHT2": column(12, (_hht2(*each) for each in both), sex_and_kind, width=2),
        # "Not in universe" of people who live alone, as in the production's recoder.
        "CPLT": column(5, ((each.size > 1) * (COUPLES.index(each.couple) + 1) for each in types), kind),
        "UPART": column(5, (_upart(*each) for each in both), sex_and_kind),
        "MULTG": column(2, ((each.size > 2) * (1 + each.multigenerational) for each in types), kind),
        "THHLDRAGE": column(9, range(1, 10), age),
        "THHSPAN": column(2, range(1, 3), hispanic),
        "THHRACE": column(7, range(1, 8), race, width=2),
        "PAOC": column(4, (CHILDREN.index(each.own_children) + 1 for each in types), kind),
        "TP18": column(1, (each.minor for each in types), kind),
        "TP60": column(1, (0, 1, 1, 1), elderly),
        "TP65": column(1, (0, 0, 1, 1), elderly),
        "TP75": column(1, (0, 0, 0, 1), elderly),
        "PAC": column(4, (CHILDREN.index(each.children) + 1 for each in types), kind),
        "HHSEX": column(2, range(1, 3), sex),
    }


def _hht(sex: int, kind: HouseholdType) -> int:
    """Household or family type: 1 to 3 families, 4 to 7 others, by sex and by who lives alone."""
    if kind.married:
        return 1
    return 2 + sex if kind.relatives else 4 + 2 * sex + (kind.size > 1)


def _hht2(sex: int, kind: HouseholdType) -> int:
    """Household type by couples and children: 1 to 4 couples, 5 to 8 women and 9 to 12 men without."""
    with_children = kind.own_children != "none"
    if kind.couple in COUPLES[:4]:
        return (1 if kind.married else 3) + (not with_children)
    last = 0 if kind.size == 1 else 1 if with_children else 2 if kind.relatives else 3
    return (5 if sex else 9) + last


def _upart(sex: int, kind: HouseholdType) -> int:
    """Unmarried partners: 1 two men, 2 a man's woman, 3 two women, 4 a woman's man, 5 none, 0 alone."""
    if kind.size == 1:
        return 0
    if kind.couple not in COUPLES[2:4]:
        return 5
    return 1 + 2 * sex + (kind.couple == COUPLES[2])


def unit_records(product: Product, households: Histogram, units: Histogram) -> Histogram:
    """Return the number of records of each kind, leaves x r.

    - `product`: of the households.
    - `households`, `units`: estimates of both histograms at the same leaves; as many households of each
      tenure in both.

    Notes
    -----
    Which of the households that rent pay no rent was not measured together with anything else but the leaf.
    So many as the second histogram counts are taken at equal distances along the leaf's list of them, from a
    start that follows from the leaf's position: a function of both histograms alone.
    """
    leaves, first = households.rows, product.schema.size
    rented = np.flatnonzero(_tenure(product) == _RENTED)
    leaf = households.row_of_entries()
    place = positions_of(rented, households.cells)
    rents = place >= 0
    free = np.zeros_like(households.counts)
    unit_leaf = units.row_of_entries()
    in_all, without = (
        np.bincount(unit_leaf[who], weights=units.counts[who], minlength=leaves).astype(np.int64)
        for who in (np.isin(units.cells, (_RENTED, _NO_RENT)), units.cells == _NO_RENT)
    )
    counts, at = households.counts[rents], leaf[rents]
    if not np.array_equal(np.bincount(at, weights=counts, minlength=leaves), in_all):
        raise DataError("the two histograms of units have other numbers of households that rent.")
    last = np.cumsum(counts)
    last -= (np.cumsum(in_all) - in_all)[at]
    start = (np.arange(leaves) * _STEP % (1 << 32) * in_all) >> 32

    def before(number: Ints) -> Ints:
        """Return how many of a leaf's first households that rent pay no rent."""
        return np.asarray((number * without[at] + start[at]) // in_all[at])

    free[rents] = before(last) - before(last - counts)
    other = units.cells >= FIRST_VACANT
    return Histogram.from_entries(
        np.concatenate([leaf, leaf[rents], unit_leaf[other]]),
        np.concatenate(
            [households.cells, first + place[rents], first + len(rented) + units.cells[other] - FIRST_VACANT]
        ),
        np.concatenate([households.counts - free, free[rents], units.counts[other]]),
        shape=(leaves, first + len(rented) + _OTHERS),
    )


_STEP = 2_654_435_769
"""2**32 over the golden ratio: multiples of it, modulo 2**32, spread evenly."""


def unit_estimate(product: Product, records: Histogram) -> Histogram:
    """Return the household histogram of records: undoes :func:`unit_records`."""
    return records.recoded(household_cells(product), product.schema.size)


def household_cells(product: Product) -> Ints:
    """Return the household cell of each kind of record, int64 (r,); -2 for units without a household."""
    cells, rented = np.arange(product.schema.size), np.flatnonzero(_tenure(product) == _RENTED)
    return np.concatenate([cells, rented, np.full(_OTHERS, -2)])


def units_of_records(product: Product, records: Histogram) -> Histogram:
    """Return the histogram of all units of records, over tenure, vacancy and types of group quarters."""
    return records.recoded(unit_levels(product), FIRST_VACANT + _OTHERS)


def unit_levels(product: Product) -> Ints:
    """Return the level of tenure, vacancy or group quarters of each kind of record, int64 (r,)."""
    tenure, others = _tenure(product), np.arange(FIRST_VACANT, FIRST_VACANT + _OTHERS)
    return np.concatenate([tenure, np.full(int((tenure == _RENTED).sum()), _NO_RENT), others])
