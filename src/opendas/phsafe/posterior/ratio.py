"""The joint posterior of numerators and denominator: averages, parts, totals.

Where no constraint reaches into the posterior it is the untruncated normal, and everything has a closed form;
elsewhere it is integrated. :func:`fit_block` chooses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from opendas.errors import ConfigError, DataError
from opendas.phsafe.posterior import density
from opendas.phsafe.posterior.counts import LEVEL
from opendas.phsafe.posterior.curve import Curve, fit_curve, log_densities
from opendas.phsafe.posterior.density import Parameters
from opendas.phsafe.posterior.lattice import sum_of
from opendas.phsafe.posterior.truncated import Z95, interval_mean

FREE_FROM = 9.0
"""Distance of the measurement from each constraint, in its standard deviations, from which constraints are
left out: they cut off less than 1e-18."""
FARTHEST = 1e4
"""Distance outside a constraint, in standard deviations, beyond which measurements contradict the model."""
LEAST_DEVIATION = 0.01
"""Standard deviation, in counts, given to an exact number that stands beside noisy ones."""


class Estimate(NamedTuple):
    """Posterior mean and the ends of the 90 % credible interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Block:
    """Numerators and denominator of one region and group, as measured."""

    counts: tuple[float, ...]  # one or two numerators, in persons
    variances: tuple[float, ...]  # in squared persons
    households: float  # denominator
    variance: float  # of the denominator, in squared households
    # least, most: bounds of the average: persons per household.
    least: float
    most: float

    def __post_init__(self) -> None:
        if len(self.counts) not in (1, 2) or len(self.variances) != len(self.counts):
            raise ConfigError("A block has one or two numerators, each with a variance.")
        if not 0 < self.least < self.most < math.inf:
            raise ConfigError(f"Averages need bounds 0 < least < most; found {self.least} and {self.most}.")

    @property
    def deviations(self) -> tuple[float, ...]:
        """Standard deviations of the numerators and then of the denominator, none of them 0."""
        return tuple(max(math.sqrt(v), LEAST_DEVIATION) for v in (*self.variances, self.variance))

    @property
    def total(self) -> float:
        """All numerators together."""
        return sum(self.counts)

    def parameters(self, *, swapped: bool = False) -> Parameters:
        """Return the block in the form of :mod:`~opendas.phsafe.posterior.density`."""
        parts = list(zip(self.counts, self.deviations[:-1], strict=True))
        return self._parameters(parts[::-1] if swapped else parts)

    def total_parameters(self, t: float = 0.0) -> Parameters:
        """Return the block where only the sum of the numerators matters.

        One numerator is enough if neither can come near 0: the sum of two normals is normal.
        """
        if all(z >= FREE_FROM * s for z, s in zip(self.counts, self.deviations, strict=False)):
            return self._parameters([(self.total, math.hypot(*self.deviations[:-1]))], t)
        return self.parameters()._replace(t=t)

    def _parameters(self, parts: Sequence[tuple[float, float]], t: float = 0.0) -> Parameters:
        alone = len(parts) == 1
        second = (0.0, 1.0) if alone else parts[1]
        households = (self.households, self.deviations[-1])
        return Parameters(*parts[0], *second, *households, self.least, self.most, t, alone)

    def distance(self) -> float:
        """Return the least distance of the measurement from a constraint, in its standard deviations."""
        *parts, d = self.deviations
        numerator = math.hypot(*parts)
        rows = [
            ((self.households - 1) / d),
            (self.total - self.least * self.households) / math.hypot(numerator, self.least * d),
            (self.most * self.households - self.total) / math.hypot(numerator, self.most * d),
        ]
        if len(parts) == 2:
            rows += [count / s for count, s in zip(self.counts, parts, strict=True)]
        return min(rows)


def fieller(numerator: float, s: float, denominator: float, d: float, q: float) -> float:
    """Return the quantile of a ratio of independent normals whose denominator is surely positive.

    - `numerator`, `s`, `denominator`, `d`: locations and standard deviations.
    - `q`: standard normal quantile of the level wanted.

    Notes
    -----
    ``P(A / D <= u) = P(A - u D <= 0)``, solved for u: Fieller (1954).
    """
    root = math.sqrt((numerator * d) ** 2 + (denominator * s) ** 2 - (q * s * d) ** 2)
    return (numerator * denominator + q * root) / (denominator**2 - (q * d) ** 2)


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


def mean_inverse(z: float, s: float) -> float:
    """Return ``E[1 / D]`` for a normal D that is positive by at least nine standard deviations."""
    x = 8.5 * _NODES
    weights = np.exp(-x * x / 2) * _WEIGHTS
    return float((weights / (z + s * x)).sum() / weights.sum())


def _estimate(curve: Curve) -> Estimate:
    return Estimate(curve.moments()[0], *(curve.quantile(p) for p in LEVEL))


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A fitted block; numerators are numbered from 0, None means all together."""

    block: Block  # what was measured
    # The posterior of all numerators together, where the constraints cut it. None where no constraint reaches
    # into the posterior: it is the untruncated normal, and everything has a closed form.
    total: Curve | None

    def average(self, part: int | None) -> Estimate:
        """Return a numerator divided by the denominator."""
        block = self.block
        if self.total is None:
            z, s = self._numerator(part)
            households = (block.households, block.deviations[-1])
            ends = [fieller(z, s, *households, q) for q in (-Z95, Z95)]
            return Estimate(z * mean_inverse(*households), *ends)
        low, middle = (block.least, (block.least + block.most) / 2) if part is None else (0.0, block.most / 2)
        near = self._numerator(part)[0] / max(block.households, 1.0)
        near = min(max(near, low + 0.01 * middle), block.most - 0.01 * middle)
        if part is None or len(block.counts) == 1:
            return _estimate(fit_curve(density.AVERAGE, block.total_parameters(), near, 0.1 * middle))
        parameters = block.parameters(swapped=part == 1)
        return _estimate(fit_curve(density.AVERAGE_OF_A, parameters, near, 0.1 * middle))

    def count(self, part: int | None) -> Estimate:
        """Return a numerator."""
        z, s = self._numerator(part)
        if self.total is None:
            return Estimate(z, z - Z95 * s, z + Z95 * s)
        if part is None or len(self.block.counts) == 1:
            return _estimate(self.total)
        parameters = self.block.parameters(swapped=part == 1)
        return _estimate(fit_curve(density.PART, parameters, max(z, s), s))

    def mean_counts(self) -> tuple[float, ...]:
        """Return the posterior means of the numerators: given their sum, a truncated normal has a formula."""
        if self.total is None:
            return self.block.counts
        total, weights = self.total.nodes, self.total.weights
        if len(self.block.counts) == 1:
            return (float((total * weights).sum()),)
        (za, zb), (sa, sb, _) = self.block.counts, self.block.deviations
        variance = sa * sa + sb * sb
        given = za + sa * sa / variance * (total - za - zb)
        first = float((interval_mean(given, sa * sb / math.sqrt(variance), 0.0, total) * weights).sum())
        return first, float((total * weights).sum()) - first

    def mean_households(self) -> float:
        """Return the posterior mean of the denominator: given the total, it is a truncated normal."""
        block = self.block
        if self.total is None:
            return block.households
        total = self.total.nodes
        low, high = np.maximum(1.0, total / block.most), total / block.least
        means = interval_mean(block.households, block.deviations[-1], low, high)
        return float((means * self.total.weights).sum())

    def _numerator(self, part: int | None) -> tuple[float, float]:
        if part is None:
            return self.block.total, math.hypot(*self.block.deviations[:-1])
        return self.block.counts[part], self.block.deviations[part]


def fit_total(block: Block) -> Curve:
    """Return the posterior of all numerators together, by integration."""
    # A start well inside; the search finds the peak from anywhere.
    scale = math.hypot(*block.deviations[:-1])
    near = max(block.total, block.least + 0.1 * scale)
    return fit_curve(density.TOTAL, block.total_parameters(), near, scale)


def fit_block(block: Block) -> Fit:
    """Fit a block, in closed form where no constraint matters."""
    distance = block.distance()
    if distance < -FARTHEST:
        raise DataError(
            f"The measured counts are {-distance:.3g} standard deviations away from every average between "
            f"{block.least:g} and {block.most:g}. Check that numerator and denominator are of one run. Check "
            "also the largest average (--most): the number of persons to which households were truncated."
        )
    return Fit(block, None) if distance >= FREE_FROM else Fit(block, fit_total(block))


# Two independent blocks together. With U = S - t D of the first block and V = R - t E of the second, the
# average of both, (S + R) / (D + E), is at most t where U + V <= 0: an integral of the density of one and the
# distribution function of the other, both polynomials on panels.

_POINTS_A_SCALE = 256
_MOST_POINTS = 1 << 20
_STEPS = 50
_CLOSE = 1e-5
"""Step, in standard deviations, that ends the search: the next one would be of the order of its square."""


def _sum_of_blocks(first: Block, second: Block) -> Block:
    """Return the sum of two blocks that no constraint touches."""
    return Block(
        (first.total + second.total,),
        (sum(s * s for block in (first, second) for s in block.deviations[:-1]),),
        first.households + second.households,
        sum(block.deviations[-1] ** 2 for block in (first, second)),
        first.least,
        first.most,
    )


def _difference(block: Block, t: float) -> Curve:
    array = block.total_parameters(t)
    scale = math.hypot(*block.deviations[:-1], t * block.deviations[-1])
    return fit_curve(density.DIFFERENCE, array, 0.0, scale)


def _at_most(first: Curve, second: Curve) -> float:
    """Return ``P(U + V <= 0)`` for independent U and V: panels of both cut the integral."""
    mirrored = -second.ends[::-1]
    low, high = first.ends[0], first.ends[-1]
    ends = np.unique(np.concatenate([first.ends, mirrored[(mirrored > low) & (mirrored < high)]]))
    middle, half = (ends[1:] + ends[:-1]) / 2, np.diff(ends) / 2
    nodes = middle[:, None] + half[:, None] * density.NODES
    values = first.density(nodes.ravel()) * second.probability(-nodes.ravel())
    return float((values.reshape(nodes.shape) * density.WEIGHTS * half[:, None]).sum())


def _mean(first: Block, second: Block) -> float:
    """Return the mean of ``(S + R) / (D + E)``, by integrating over D and E."""
    sides = []
    for block in (first, second):
        array = block.total_parameters()
        near = max(block.households, 1.0 + 0.1 * block.deviations[-1])
        curve = fit_curve(density.DENOMINATOR, array, near, block.deviations[-1])
        nodes = curve.nodes.ravel()
        of_total = log_densities(density.DENOMINATOR_BY_TOTAL, array, nodes)
        of_total -= log_densities(density.DENOMINATOR, array, nodes)
        sides.append((nodes, curve.weights.ravel(), np.exp(of_total)))
    (d, p, s), (e, q, r) = sides
    return float(p @ ((s[:, None] + r) / (d[:, None] + e)) @ q)


def pair_average(first: Fit, second: Fit) -> Estimate:
    """Return the average of two independent blocks together.

    `first`, `second`: with the same bounds.
    """
    one, two = first.block, second.block
    if first.total is None and second.total is None:
        return Fit(_sum_of_blocks(one, two), None).average(None)
    mean = _mean(one, two)
    households = first.mean_households() + second.mean_households()
    spread = [s * s for block in (one, two) for s in block.deviations[:-1]]
    spread += [(mean * block.deviations[-1]) ** 2 for block in (one, two)]
    scale = math.sqrt(sum(spread)) / households

    def score(t: float) -> float:
        """Return the standard normal quantile of ``P(average <= t)``, which is nearly linear in t."""
        chance = _at_most(_difference(one, t), _difference(two, t))
        return float(ndtri(min(max(chance, 1e-15), 1 - 1e-15)))

    ends = _solve(score, mean, scale, (one.least, one.most))
    return Estimate(mean, *ends)


def _solve(
    score: Callable[[float], float], mean: float, scale: float, bounds: tuple[float, float]
) -> list[float]:
    """Return where an increasing function reaches -Z95 and Z95, by inverse interpolation of what is known.

    Both ends use all points: the function is nearly a straight line, so that four points near the end wanted
    leave little to find. A step out of the bracket is replaced by its middle.
    """
    low, high = bounds
    known: list[tuple[float, float]] = []

    def look(t: float) -> None:
        known.append((score(t), t))
        known.sort()

    for z in (-Z95, 0.0, Z95):
        t = mean + z * scale
        look(min(max(t, low + 0.05 * (mean - low)), high - 0.05 * (high - mean)))
    ends = []
    for z in (-Z95, Z95):
        last = math.inf
        for _ in range(_STEPS):
            below = max([low, *(t for value, t in known if value < z)])
            above = min([high, *(t for value, t in known if value >= z)])
            t = _interpolated(known, z)
            if not below < t < above:
                t = 0.5 * (below + above)
            if abs(t - last) <= _CLOSE * scale or above - below <= 1e-12 * above:
                break
            look(t)
            last = t
        ends.append(t)
    return ends


def _interpolated(known: list[tuple[float, float]], z: float) -> float:
    """Return t at score z by the polynomial through the four nearest distinct scores (Neville)."""
    nearest: list[tuple[float, float]] = []
    for value, t in sorted(known, key=lambda pair: abs(pair[0] - z)):
        if all(value != other for other, _ in nearest):
            nearest.append((value, t))
    scores, values = [pair[0] for pair in nearest[:4]], [pair[1] for pair in nearest[:4]]
    for width in range(1, len(values)):
        for k in range(len(values) - width):
            share = (z - scores[k]) / (scores[k + width] - scores[k])
            values[k] += share * (values[k + 1] - values[k])
    return values[0]


def pair_count(first: Fit, second: Fit) -> Estimate:
    """Return the numerators of two independent blocks together."""
    one, two = first.block, second.block
    if first.total is None and second.total is None:
        return Fit(_sum_of_blocks(one, two), None).count(None)
    curves = [fit.total or fit_total(fit.block) for fit in (first, second)]
    scales = [math.sqrt(curve.moments()[1]) for curve in curves]
    step = max(
        min(scales) / _POINTS_A_SCALE, sum(float(np.ptp(curve.ends)) for curve in curves) / _MOST_POINTS
    )
    both = sum_of([curve.lattice(step) for curve in curves])
    mean = sum(curve.moments()[0] for curve in curves)
    return Estimate(mean, *(both.quantile(p) for p in LEVEL))
