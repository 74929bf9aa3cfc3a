"""Expected error of plain TopDown, from the measurements its estimate uses, before inequalities and rounding.

TopDown estimates a geounit from its own measurements and its parent's estimate, and from nothing below it. In
least squares without inequalities, children ``c`` of one parent with covariances ``V_c`` of their own answers
are estimated as ``x_c + A_c (parent - sum x)``, ``A_c = V_c (sum V)^-1``. Siblings have the same queries with
noise that differs by at most a factor, so ``A_c`` is a number ``a_c``, and every answer's variance obeys

    variance(c) = own(c) (1 - a_c) + a_c^2 variance(parent).

With the informed estimator the same holds with the information of the whole subtree in place of a geounit's
own measurements, and the variances are those of :mod:`opendas.gls.expected_error`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from opendas.arrays import Floats, Ints
from opendas.gls.expected_error import ExpectedError, ExpectedRow


@dataclass(frozen=True, slots=True)
class GainRow:
    """Expected error of one query group at one geolevel, by estimator."""

    geolevel: str
    query: str
    geounits: int
    # topdown, informed: mean standard error of an answer, in counts, over geounits and rows; infinite where
    # an answer cannot be estimated.
    topdown: float
    informed: float

    @property
    def change(self) -> float | None:
        """Relative change from plain TopDown to informed; None where either says nothing."""
        if not (np.isfinite(self.topdown) and np.isfinite(self.informed)):
            return None
        return self.informed / self.topdown - 1.0 if self.topdown else 0.0

    def to_dict(self) -> dict[str, object]:
        """Return the row for JSON."""

        def number(value: float) -> float | None:
            return value if np.isfinite(value) else None

        return {
            "geolevel": self.geolevel,
            "query": self.query,
            "geounits": self.geounits,
            "topdown": number(self.topdown),
            "informed": number(self.informed),
            "change": self.change,
        }


def _exponent(expected: ExpectedError) -> int:
    """Return the power of a budget that the variance of the noise falls with."""
    return 1 if expected.plan.budget.mechanism.is_zcdp else 2


def _multiples(expected: ExpectedError, number: int) -> Floats:
    """Return each geounit's budget in shares of its level, float64 (g,); 0 where nothing is measured."""
    size = len(expected.spine.levels[number])
    if not expected.plan.levels[number].queries:
        return np.zeros(size)
    shares = expected.spine.shares[number]
    if shares is None:
        return np.ones(size)
    return np.array([float(multiple) for multiple in shares.multiples])[shares.which]


def _shares_of_residual(parent: Ints, multiple: Floats, exponent: int) -> Floats:
    """Return ``a_c``: each child's part of what the parent has over the children's own sum.

    Where some siblings are not measured they take all of it, in equal parts.
    """
    unmeasured = multiple <= 0
    inverse = np.where(unmeasured, 0.0, 1.0 / np.where(unmeasured, 1.0, multiple) ** exponent)
    sums = np.bincount(parent, inverse)
    unknown = np.bincount(parent, unmeasured)
    any_unknown = unknown[parent] > 0
    parts = np.divide(inverse, sums[parent], out=np.zeros_like(inverse), where=sums[parent] > 0)
    return np.where(any_unknown, np.where(unmeasured, 1.0 / np.maximum(unknown[parent], 1), 0.0), parts)


def top_down_variances(expected: ExpectedError, query: str) -> tuple[Floats, ...]:
    """Return the variance of each kind of row in each geounit, by level of the spine.

    - `expected`: of the plan; :meth:`~opendas.gls.expected_error.ExpectedError.rows` tells the kinds of rows.
    - Returns (g, k): in squared counts; infinite where nothing says how a parent divides.

    Notes
    -----
    Noise of siblings with different budgets is taken to differ by a factor, which holds to eight digits for
    the discrete Gaussian from a variance of one up. Invariants count where they are published for the geounit
    itself; a total that parts hold together does not.
    """
    spine = expected.spine
    rows = expected.rows(query)
    exponent = _exponent(expected)
    found: list[Floats] = []
    for number, level in enumerate(spine.levels):
        place = expected.position[number]
        own = rows.variances(expected.information[place].dual())[expected.own[place]]
        if number == 0:
            found.append(own)
            continue
        multiple = _multiples(expected, number)
        pull = _shares_of_residual(level.parent, multiple, exponent)[:, None]
        above = found[-1][level.parent]
        rest = np.where(pull < 1.0, own, 0.0) * np.where(pull < 1.0, 1.0 - pull, 0.0)
        alone = np.bincount(level.parent, multiple <= 0)[level.parent] == 1
        single = ((multiple <= 0) & alone)[:, None]
        siblings = np.where(np.isfinite(own), own, 0.0)
        others = _sums(level.parent, siblings)[level.parent]
        found.append(np.where(single, above + others, rest + pull**2 * np.where(pull > 0, above, 0.0)))
    return tuple(found)


def _sums(parent: Ints, values: Floats) -> Floats:
    sums = np.zeros((int(parent[-1]) + 1 if len(parent) else 0, values.shape[1]))
    np.add.at(sums, parent, values)
    return sums


def top_down_rows(
    expected: ExpectedError, queries: Iterable[str], geolevels: Iterable[str]
) -> tuple[ExpectedRow, ...]:
    """Summarise expected errors of plain TopDown over the geounits of geolevels of the spine."""
    wanted = tuple(geolevels)
    found = []
    for query in queries:
        rows = expected.rows(query)
        weights = np.bincount(rows.of_row, minlength=len(rows))
        by_level = dict(zip(expected.spine.names, top_down_variances(expected, query), strict=True))
        for geolevel in wanted:
            errors = np.sqrt(by_level[geolevel])
            size = len(errors)
            mean = float(errors.sum(axis=0) @ weights) / (size * len(rows.of_row)) if size else 0.0
            largest = float(errors.max(initial=0.0))
            found.append(ExpectedRow("geolevel", geolevel, query, size, mean, largest))
    return tuple(found)


def gain_rows(expected: ExpectedError, queries: Iterable[str]) -> tuple[GainRow, ...]:
    """Compare the expected errors of plain TopDown and of the informed estimator.

    Returns: for every official geolevel of the spine, top first, and within it every query group.
    """
    names = tuple(queries)
    levels = [level.name for level in expected.spine.levels if level.official]
    plain = {(row.name, row.query): row for row in top_down_rows(expected, names, levels)}
    found = []
    for geolevel in levels:
        for row in expected.summary(geolevel, names):
            before = plain[geolevel, row.query]
            found.append(GainRow(geolevel, row.query, row.areas, before.mean_sd, row.mean_sd))
    return tuple(found)
