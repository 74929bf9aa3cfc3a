"""What the exact loss of a release means for an attacker: tests, guesses, beliefs, odds.

The attacker knows everything but which of two neighbouring inputs is the true one. All figures are upper
bounds for the discrete noise that is really drawn; where neighbours can differ in several ways, the worst
counts. The same questions answered from rho alone: :mod:`opendas.privacy.attacker`. Proofs:
``docs/proofs/exact-accounting.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from opendas.errors import ConfigError
from opendas.privacy.composed import ComposedLoss
from opendas.privacy.exact import parse_fraction
from opendas.privacy.grid import GRID_POINTS, TiltedGrid
from opendas.privacy.worst import WorstLoss

__all__ = [
    "Attacker",
    "PowerPoint",
    "gaussian_power",
    "loss_tail",
    "posterior",
    "pure_power_bound",
    "zcdp_power_bound",
]

# What a rho means for an attacker: tests, odds, guesses.
#
# A test that tries to tell a data set from its neighbour has a false-positive rate ``alpha`` and a
# power. :func:`zcdp_power_bound` bounds the power for every rho-zCDP mechanism; it is a theorem.
# :func:`gaussian_power` is the exact power against continuous Gaussian noise of the same rho; for the
# composed discrete noise of a release it is a close **approximation, not a bound**. Explained in
# ``docs/what-rho-means.md``.


_STANDARD = NormalDist()
# Any set of orders gives a valid bound; more orders give a tighter one.
_ORDERS = 1.0 + 10.0 ** (np.arange(-64, 97) / 16.0)
_BISECTIONS = 60


def _rate(value: float, what: str) -> float:
    if not 0.0 < value < 1.0:
        raise ConfigError(f"{what} must lie strictly between 0 and 1.")
    return value


def _rho(rho: Fraction | int | str) -> float:
    exact = parse_fraction(rho, "rho")
    if exact < 0:
        raise ConfigError("rho must not be negative.")
    return float(exact)


def gaussian_power(rho: Fraction | int | str, alpha: float) -> float:
    """Power of the best test at level alpha, with the noise taken as continuous Gaussian.

    Parameters
    ----------
    rho : Fraction, int or str, >= 0
    alpha : float, in (0, 1)
        False-positive rate.

    Returns
    -------
    float
        ``Phi(Phi^-1(alpha) + mu)`` with ``mu = sqrt(2 rho)``. An approximation: discrete noise of small
        variance can be slightly easier or harder to see through. For a bound, see :func:`zcdp_power_bound`.

    Notes
    -----
    Dong, Roth and Su (2022), Gaussian differential privacy: composition adds the squares of mu, hence rho.

    Examples
    --------
    >>> round(gaussian_power("293764/114921", 0.001), 3)
    0.204
    """
    return _STANDARD.cdf(_STANDARD.inv_cdf(_rate(alpha, "alpha")) + math.sqrt(2.0 * _rho(rho)))


def zcdp_power_bound(rho: Fraction | int | str, alpha: float) -> float:
    """Upper bound on the power of every test at level alpha against every rho-zCDP mechanism.

    Parameters
    ----------
    rho : Fraction, int or str, >= 0
    alpha : float, in (0, 1)
        False-positive rate.

    Returns
    -------
    float
        The largest power ``b`` with which the two outcomes of the test, themselves the output of a
        rho-zCDP mechanism, satisfy the Renyi bounds ``D_a(b || alpha) <= a rho`` and
        ``D_a(alpha || b) <= a rho`` at each of a list of orders a. Rounded up by bisection.

    Notes
    -----
    Post-processing (Bun and Steinke 2016, Lemma 2.2) applied to the test; ``docs/proofs/conversions.md``.

    Examples
    --------
    >>> zcdp_power_bound("293764/114921", 0.001) > gaussian_power("293764/114921", 0.001)
    True
    """
    value, level = _rho(rho), _rate(alpha, "alpha")
    # At every order what is allowed is an interval from alpha up: what all allow is the shortest of them.
    low, high, allowed = level, 1.0, _ORDERS * value
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        fits = np.all(_least_renyi(middle, level) <= allowed) and np.all(
            _least_renyi(level, middle) <= allowed
        )
        low, high = (middle, high) if fits else (low, middle)
    return min(1.0, high + 1e-12)


def pure_power_bound(epsilon: Fraction | int | str, alpha: float) -> float:
    """Upper bound on the power of every test at level alpha against every epsilon-DP mechanism.

    Parameters
    ----------
    epsilon : Fraction, int or str, >= 0
    alpha : float, in (0, 1)
        False-positive rate.

    Returns
    -------
    float
        The smaller of ``exp(epsilon) alpha`` and ``1 - exp(-epsilon) (1 - alpha)``; attained by randomised
        response.

    Notes
    -----
    Wasserman and Zhou (2010), Theorem 2.4; both are the definition, applied to the test and to its opposite.

    Examples
    --------
    >>> round(pure_power_bound(1, 0.05), 3)
    0.136
    """
    exact = parse_fraction(epsilon, "epsilon")
    if exact < 0:
        raise ConfigError("epsilon must not be negative.")
    value, level = float(min(exact, Fraction(700))), _rate(alpha, "alpha")
    return min(1.0, math.exp(value) * level, 1.0 - math.exp(-value) * (1.0 - level)) if value else level


def _least_renyi(p: float, q: float) -> npt.NDArray[np.float64]:
    """Renyi divergences of two coins at each order, for p, q in (0, 1), less what rounding may have added."""
    logs = math.log(p), math.log(q), math.log1p(-p), math.log1p(-q)
    heads = _ORDERS * logs[0] + (1.0 - _ORDERS) * logs[1]
    tails = _ORDERS * logs[2] + (1.0 - _ORDERS) * logs[3]
    rounding = 2.0**-50 * (1.0 - _ORDERS * min(logs))
    least: npt.NDArray[np.float64] = (np.logaddexp(heads, tails) - rounding) / (_ORDERS - 1.0)
    return least


def loss_tail(rho: Fraction | int | str, factor: float) -> float:
    """Bound the chance that a release multiplies the odds of a claim by more than a factor.

    Parameters
    ----------
    rho : Fraction, int or str, >= 0
    factor : float, > 1
        Ratio of posterior odds to prior odds, for one claim about one record against one alternative.

    Returns
    -------
    float
        ``exp(-(ln factor - rho)^2 / (4 rho))`` where ``ln factor > rho``, else 1. The chance is over the
        noise, the claim being true.

    Notes
    -----
    Bun and Steinke (2016), section 1.1: the privacy loss is sub-Gaussian with mean at most rho.
    """
    value = _rho(rho)
    if not factor > 1.0:
        raise ConfigError("factor must be greater than 1.")
    excess = math.log(factor) - value
    if excess <= 0.0:
        return 1.0
    return 0.0 if value == 0.0 else math.exp(-(excess**2) / (4.0 * value))


def posterior(prior: float, factor: float) -> float:
    """Probability of a claim after its odds were multiplied.

    Parameters
    ----------
    prior : float, in (0, 1)
    factor : float, > 0

    Returns
    -------
    float

    Examples
    --------
    >>> round(posterior(0.10, 3.0), 2)
    0.25
    """
    if not factor > 0.0:
        raise ConfigError("factor must be positive.")
    odds = _rate(prior, "prior") / (1.0 - prior) * factor
    return odds / (1.0 + odds)


_POINTS = GRID_POINTS >> 2


@dataclass(frozen=True, slots=True)
class PowerPoint:
    """One point of a trade-off curve.

    Parameters
    ----------
    level : float
        How often the attacker is wrong when the claim is false (type I error).
    power : float
        How often at most the attacker is then right when the claim is true.
    """

    level: float
    power: float


class Attacker:
    """Upper bounds on what anybody can tell from a release.

    Parameters
    ----------
    worst : WorstLoss
    """

    def __init__(self, worst: WorstLoss) -> None:
        points = min(_POINTS, worst.points)
        losses = [worst.loss(k, points) for k in range(len(worst.changes))]
        self._views = [_Untilted(loss) for loss in losses if loss.parts]

    def power(self, level: float) -> float:
        """Largest power of any test at a false-positive rate.

        Parameters
        ----------
        level : float, in (0, 1)

        Raises
        ------
        ConfigError
            If the level is out of range.
        """
        return self._worst(lambda view: view.power(_chance(level, "level")), level)

    def curve(self, levels: Sequence[float]) -> tuple[PowerPoint, ...]:
        """Return the trade-off curve at some levels."""
        return tuple(PowerPoint(level, self.power(level)) for level in levels)

    def guess(self, prior: float = 0.5) -> float:
        """Largest chance to guess right between two inputs.

        Parameters
        ----------
        prior : float, in (0, 1)
            Chance of the first input before looking. Without a release the best guess is right with the
            larger of `prior` and ``1 - prior``.
        """
        known = max(_chance(prior, "prior"), 1.0 - prior)
        return self._worst(lambda view: view.guess(prior), known)

    def belief(self, prior: float) -> float:
        """Largest probability, on average over the noise, that the attacker ends up giving the truth.

        Parameters
        ----------
        prior : float, in (0, 1)
            Probability given to the truth before looking.
        """
        return self._worst(lambda view: view.belief(_chance(prior, "prior")), prior)

    def odds(self, factor: float) -> float:
        """Largest chance that the release multiplies the odds of a true claim by more than a factor.

        Parameters
        ----------
        factor : float, > 1
        """
        if not factor > 1.0:
            raise ConfigError("factor must be greater than 1.")
        return self._worst(lambda view: view.odds(math.log(factor)), 0.0)

    def _worst(self, figure: Callable[[_Untilted], float], without: float) -> float:
        return min(1.0, max([without, *(figure(view) for view in self._views)]))


class _Untilted:
    """One composed loss on a grid without tilt, for chances that are not tiny."""

    def __init__(self, loss: ComposedLoss) -> None:
        self._grid = TiltedGrid(loss.parts, 0.0, loss.points, 0.0)
        self._loss, self._missing = loss, loss.missing

    def delta(self, epsilon: float) -> float:
        if not self._grid.covers(epsilon):
            return self._loss.delta_at(epsilon).upper
        return self._grid.delta(epsilon).upper + self._missing

    def power(self, level: float) -> float:
        # delta + level * exp(epsilon) bounds the power at every epsilon: any choice is valid, the best tight.
        epsilon = self._grid.threshold(level)
        return self.delta(epsilon) + level * math.exp(epsilon)

    def guess(self, prior: float) -> float:
        # Each of the two answers may be taken as the first; the better bound need not be known beforehand.
        odds = (1.0 - prior) / prior
        return (1.0 - prior) + prior * self.delta(math.log(odds))

    def belief(self, prior: float) -> float:
        return self._grid.mean_posterior(prior) + self._missing

    def odds(self, threshold: float) -> float:
        return self._grid.tail(threshold) + self._missing


def _chance(value: float, what: str) -> float:
    if not 0.0 < value < 1.0:
        raise ConfigError(f"{what} must lie strictly between 0 and 1.")
    return value
