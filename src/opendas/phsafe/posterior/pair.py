"""Two independent blocks together: the average of owners and renters, from the posteriors of each.

With ``U = S - t D`` of the first block and ``V = R - t E`` of the second, the average of both,
``(S + R) / (D + E)``, is at most t where ``U + V <= 0``: an integral of the density of one and the
distribution function of the other, both polynomials on panels.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import ndtri

from opendas.phsafe.posterior import density
from opendas.phsafe.posterior.counts import LEVEL
from opendas.phsafe.posterior.curve import Curve, fit_curve, log_densities
from opendas.phsafe.posterior.lattice import sum_of
from opendas.phsafe.posterior.ratio import Block, Bounded, Estimate, Fit, Free
from opendas.phsafe.posterior.truncated import Z95

__all__ = ["pair_average", "pair_count"]


_POINTS_A_SCALE = 256
_MOST_POINTS = 1 << 20
_STEPS = 50
_CLOSE = 1e-5
"""Step, in standard deviations, that ends the search: the next one would be of the order of its square."""


def _together(first: Block, second: Block) -> Block:
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
    array = block.total_array(t)
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
        array = block.total_array()
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

    Parameters
    ----------
    first, second : Fit
        With the same bounds.

    Returns
    -------
    Estimate
    """
    one, two = first.block, second.block
    if isinstance(first, Free) and isinstance(second, Free):
        return Free(_together(one, two)).average(None)
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
    if isinstance(first, Free) and isinstance(second, Free):
        return Free(_together(one, two)).count(None)
    curves = [fit.total if isinstance(fit, Bounded) else Bounded(fit.block).total for fit in (first, second)]
    scales = [math.sqrt(curve.moments()[1]) for curve in curves]
    step = max(
        min(scales) / _POINTS_A_SCALE, sum(float(np.ptp(curve.ends)) for curve in curves) / _MOST_POINTS
    )
    both = sum_of([curve.lattice(step) for curve in curves])
    mean = sum(curve.moments()[0] for curve in curves)
    return Estimate(mean, *(both.quantile(p) for p in LEVEL))
