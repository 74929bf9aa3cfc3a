"""The weighted error of a hierarchy as a function of one budget per level: separable, convex, decreasing.

All levels are evaluated at once, over their concatenated histograms, in compiled loops. Slopes are
logarithms, which neither overflow nor underflow and are close to straight lines. Tests compare the formulas
with :mod:`~opendas.allocation.clamped_error` and :mod:`~opendas.allocation.integer_gaussian`. Counts of a
level are in ascending order, so that a loop ends where clamping has no visible effect: all larger counts have
the error of the noise itself, and they are most of the distinct counts.

Axes: ``l`` levels, ``v`` distinct counts of all levels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numba import njit

from opendas.allocation.clamped_error import clamped_moments
from opendas.allocation.histogram import Level
from opendas.allocation.integer_gaussian import EULER, WIDE_RHO, slope_table
from opendas.allocation.noise_kinds import NoiseKind, sensitivity_factor
from opendas.arrays import Floats, Ints
from opendas.arrays.kernels import inner
from opendas.privacy.relations import Neighbours

KIND_CODES = {kind: number for number, kind in enumerate(NoiseKind)}
_LAPLACE, _GAUSSIAN, _DISCRETE_LAPLACE = (
    KIND_CODES[kind] for kind in (NoiseKind.LAPLACE, NoiseKind.GAUSSIAN, NoiseKind.DISCRETE_LAPLACE)
)

_FADED = 50.0  # budget times count: exp(-50) x**3 is below a unit in the last place
_PASSED = 9.6  # standard deviations: likewise
_SEEN = 12.0  # standard deviations: no sixth moment sees more of a tail
_ROOT_TWO = math.sqrt(2.0)
_ROOT_TWO_PI = math.sqrt(2 * math.pi)
# Within _PASSED and from sigma = 32 on, each term of Euler and Maclaurin is below 1/400 of the one before.
_TERMS = 5


@njit(cache=True, nogil=True)
def level_slopes(
    code: int, budgets: Floats, counts: Ints, mult: Floats, starts: Ints
) -> tuple[Floats, Floats, Floats]:
    """Slopes of the summed mean squared error of each level.

    - `code`: of the kind of noise.
    - `budgets` (l,): at sensitivity 1.
    - `counts`, `mult` (v,): distinct counts, ascending within a level, and numbers of nodes.
    - `starts` (l + 1,).
    - Returns `log_factor`, `slope`, `curvature` (l,): minus the slope, and the second derivative times the
      budget, over ``exp(log_factor)``.
    """
    scale, slopes, curvatures = (
        np.empty(len(budgets)),
        np.empty(len(budgets)),
        np.empty(len(budgets)),
    )
    for level in range(len(budgets)):
        b, start, stop = budgets[level], starts[level], starts[level + 1]
        if code == _LAPLACE:
            scale[level] = -3 * math.log(b)
            found = _laplace_slope(b, counts[start:stop], mult[start:stop])
        elif code == _GAUSSIAN:
            scale[level] = -math.log(2.0) - 2 * math.log(b)
            found = _gaussian_slope(b, counts[start:stop], mult[start:stop])
        elif code == _DISCRETE_LAPLACE:
            scale[level] = -b - 2 * math.log(-math.expm1(-b)) - math.log(math.tanh(0.5 * b))
            found = _discrete_laplace_slope(b, counts[start:stop], mult[start:stop])
        elif b <= WIDE_RHO:
            scale[level] = -2 * math.log(2 * b)
            found = _wide_slope(b, counts[start:stop], mult[start:stop])
        else:
            reach = 3 + int(_SEEN / math.sqrt(2 * b))
            first, bend, normaliser = slope_table(b, reach)
            scale[level] = -b - math.log(normaliser)
            slope, curvature = 0.0, 0.0
            for v in range(start, stop):
                place = min(counts[v], reach)
                slope += mult[v] * first[place]
                curvature += mult[v] * bend[place]
            found = (slope, b * curvature)
        slopes[level], curvatures[level] = found
    return scale, slopes, curvatures


@njit(cache=True, nogil=True)
def level_errors(code: int, budgets: Floats, counts: Ints, mult: Floats, starts: Ints) -> Floats:
    """Summed mean squared error of each level; arguments as :func:`level_slopes`."""
    errors = np.empty(len(budgets))
    for level in range(len(budgets)):
        b, start, stop = budgets[level], starts[level], starts[level + 1]
        if code == _LAPLACE:
            errors[level] = _laplace_error(b, counts[start:stop], mult[start:stop]) / (b * b)
        elif code == _GAUSSIAN:
            errors[level] = _gaussian_error(b, counts[start:stop], mult[start:stop], False)
        elif code == _DISCRETE_LAPLACE:
            lost = -math.expm1(-b)
            half = math.exp(-b) / (lost * lost)
            errors[level] = half * _discrete_laplace_error(b, counts[start:stop], mult[start:stop])
        elif b <= WIDE_RHO:
            errors[level] = _gaussian_error(b, counts[start:stop], mult[start:stop], True)
        else:
            errors[level] = _table_error(b, counts[start:stop], mult[start:stop])
    return errors


@inner
def _laplace_slope(b: float, counts: Ints, mult: Floats) -> tuple[float, float]:
    slope, curvature, left = 0.0, 0.0, mult.sum()
    for v in range(len(counts)):
        x = b * counts[v]
        if x > _FADED:
            break
        fade = math.exp(-x)
        slope += mult[v] * (4 - ((x + 2) * x + 2) * fade)
        curvature += mult[v] * (12 - (((x + 3) * x + 6) * x + 6) * fade)
        left -= mult[v]
    return slope + 4 * left, curvature + 12 * left


@inner
def _laplace_error(b: float, counts: Ints, mult: Floats) -> float:
    error, left = 0.0, mult.sum()
    for v in range(len(counts)):
        x = b * counts[v]
        if x > _FADED:
            break
        error += mult[v] * (2 - (1 + x) * math.exp(-x))
        left -= mult[v]
    return float(error + 2 * left)


@inner
def _gaussian_slope(b: float, counts: Ints, mult: Floats) -> tuple[float, float]:
    slope, curvature, left = 0.0, 0.0, mult.sum()
    root = math.sqrt(2 * b)
    for v in range(len(counts)):
        x = root * counts[v]
        if x > _PASSED:
            break
        density = math.exp(-0.5 * x * x) / _ROOT_TWO_PI
        bracket = 0.5 * math.erfc(-x / _ROOT_TWO) - x * density
        slope += mult[v] * bracket
        curvature += mult[v] * (2 * bracket - 0.5 * x * x * x * density)
        left -= mult[v]
    return slope + left, curvature + 2 * left


@inner
def _discrete_laplace_slope(b: float, counts: Ints, mult: Floats) -> tuple[float, float]:
    slope, curvature, left = 0.0, 0.0, mult.sum()
    t = math.tanh(0.5 * b)
    ratio = (3 - t * t) / (2 * t)
    for v in range(len(counts)):
        n = float(counts[v])
        if b * n > _FADED:
            break
        fade, nt = math.exp(-b * n), n * t
        one = 2 - fade * (1 + 2 * nt + 2 * nt * nt + nt * t * t)
        bend = 2 * nt * nt + 3 * nt * t * t + t * t * (1.5 * t * t - 0.5)
        slope += mult[v] * one
        curvature += mult[v] * (ratio * one - n * fade * bend)
        left -= mult[v]
    return slope + 2 * left, b * (curvature + 2 * ratio * left)


@inner
def _discrete_laplace_error(b: float, counts: Ints, mult: Floats) -> float:
    error, left = 0.0, mult.sum()
    t = math.tanh(0.5 * b)
    for v in range(len(counts)):
        n = float(counts[v])
        if b * n > _FADED:
            break
        error += mult[v] * (2 - math.exp(-b * n) * (1 + 2 * n * t))
        left -= mult[v]
    return float(error + 2 * left)


@inner
def _derivatives(n: float, sigma2: float, density: float, found: Floats) -> None:
    """Fill in the Gaussian density at n and its derivatives."""
    found[0] = density
    found[1] = -n / sigma2 * density
    for k in range(1, len(found) - 1):
        found[k + 1] = -(n * found[k] + k * found[k - 1]) / sigma2


@njit(cache=True, nogil=True)
def _correction(n: float, p: Floats, shift: int) -> float:
    """Sum minus integral of the clamped square; see `integer_gaussian`."""
    total = 0.0
    for i in range(_TERMS, 0, -1):
        odd = 2 * i - 1
        term = 2 * n * odd * p[odd - 1 + shift]
        if i > 1:
            term += odd * (odd - 1) * p[odd - 2 + shift]
        total += EULER[i - 1] * term
    return total


@inner
def _wide_slope(b: float, counts: Ints, mult: Floats) -> tuple[float, float]:
    slope, curvature, left = 0.0, 0.0, mult.sum()
    sigma2 = 1 / (2 * b)
    sigma = math.sqrt(sigma2)
    p = np.empty(2 * _TERMS + 3)
    for v in range(len(counts)):
        n = float(counts[v])
        x = n / sigma
        if x > _PASSED:
            break
        density = math.exp(-0.5 * x * x) / _ROOT_TWO_PI
        _derivatives(n, sigma2, density / sigma, p)
        bracket = 0.5 * math.erfc(-x / _ROOT_TWO) - x * density
        first = _correction(n, p, 2)
        slope += mult[v] * (2 * bracket + first)
        curvature += mult[v] * (
            4 * bracket - x * x * x * density + 2 * first + 0.5 * sigma2 * _correction(n, p, 4)
        )
        left -= mult[v]
    return slope + 2 * left, curvature + 4 * left


@inner
def _gaussian_error(b: float, counts: Ints, mult: Floats, whole_numbers: bool) -> float:
    error, left = 0.0, mult.sum()
    sigma2 = 1 / (2 * b)
    sigma = math.sqrt(sigma2)
    p = np.empty(2 * _TERMS)
    for v in range(len(counts)):
        n = float(counts[v])
        x = n / sigma
        if x > _PASSED:
            break
        density = math.exp(-0.5 * x * x) / _ROOT_TWO_PI
        above = 0.5 * math.erfc(x / _ROOT_TWO)
        one = sigma2 * (1 - above - x * (density - x * above))
        if whole_numbers:
            _derivatives(n, sigma2, density / sigma, p)
            one += _correction(n, p, 0)
        error += mult[v] * one
        left -= mult[v]
    return float(error + sigma2 * left)


@inner
def _table_error(b: float, counts: Ints, mult: Floats) -> float:
    reach = 3 + int(_SEEN / math.sqrt(2 * b))
    tail = np.zeros(reach + 2)
    second = 0.0
    for k in range(reach + 1, 0, -1):
        weight = math.exp(-b * (k * k - 1.0))
        tail[k - 1] = tail[k] + weight
        second += k * k * weight
    error, below, done = 0.0, 0.0, 0
    for v in range(len(counts)):
        place = min(counts[v], reach)
        for m in range(done + 1, place + 1):
            below += (2 * m - 1) * tail[m - 1]
        done = place
        error += mult[v] * (second + below)
    return float(error * math.exp(-b) / (1 + 2 * math.exp(-b) * tail[0]))


@dataclass(frozen=True, slots=True, eq=False)
class Separable:
    """The objective of program (6) over levels of positive weight: Ko et al. (2025), equation (5)."""

    levels: Sequence[Level]
    kind: NoiseKind
    neighbours: Neighbours
    weights: Floats  # (l,), > 0
    _counts: Ints = field(init=False)
    _mult: Floats = field(init=False)
    _starts: Ints = field(init=False)
    _factor: float = field(init=False)

    def __post_init__(self) -> None:
        sizes = [len(level.counts.values) for level in self.levels]
        arrays = {
            "_counts": np.concatenate([level.counts.values for level in self.levels]),
            "_mult": np.concatenate([level.counts.mult for level in self.levels]).astype(np.float64),
            "_starts": np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            "_factor": float(sensitivity_factor(self.neighbours)),
        }
        for name, value in arrays.items():
            object.__setattr__(self, name, value)

    @property
    def nodes(self) -> Floats:
        """float64 (l,): number of nodes of each level."""
        return np.asarray(np.add.reduceat(self._mult, self._starts[:-1]), dtype=np.float64)

    def errors(self, budgets: Floats) -> Floats:
        """Return float64 (l, 3): squared bias, variance and mean squared error, summed over each level.

        Ko et al. (2025), equation (4), level by level.
        """
        table = np.empty((len(budgets), 3))
        for number, budget in enumerate(budgets * self._factor):
            counts = self.levels[number].counts
            found = clamped_moments(self.kind, budget, counts.values)
            for column, each in enumerate((found.bias**2, found.variance, found.mse)):
                table[number, column] = np.dot(counts.mult, each)
        return table

    def objective(self, budgets: Floats) -> float:
        """Return the weighted sum of mean squared errors."""
        errors = level_errors(self._code, budgets * self._factor, self._counts, self._mult, self._starts)
        return float(np.dot(self.weights, errors))

    @property
    def _code(self) -> int:
        return KIND_CODES[self.kind]

    def log_slopes(self, log_budgets: Floats) -> tuple[Floats, Floats]:
        """Logarithm of minus each level's weighted slope, and its derivative in the logarithm of the budget.

        Both are decreasing in the budget, by convexity; the derivative lies near -3 for epsilon and near -2
        for rho, and falls without bound where whole-number noise is mostly 0.

        - `log_budgets` (l,).
        - Returns `log_slope`, `derivative` (l,).
        """
        scale, slope, curvature = level_slopes(
            self._code, np.exp(log_budgets) * self._factor, self._counts, self._mult, self._starts
        )
        # d F(f b) / d b = f F'(f b) for the sensitivity factor f
        return np.log(self.weights * self._factor) + scale + np.log(slope), -curvature / slope
