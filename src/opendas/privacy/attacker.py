"""Bound what an attacker can learn from a release: tests, guesses, beliefs, odds.

The attacker knows everything except which of two neighbouring inputs is the true one. A test that
distinguishes them has a false-positive rate ``alpha`` and a power. :func:`zcdp_power_bound` bounds the power
for every rho-zCDP mechanism, from rho alone. :class:`Attacker` bounds power, guesses and beliefs for the
actual noise and the worst neighbours. :func:`gaussian_power` is not a bound: it is the power against
continuous Gaussian noise of the same rho. Explained in ``docs/what-rho-means.md``; proofs:
``docs/proofs/conversions.md``, ``docs/proofs/exact-accounting.md``.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from opendas.arrays import Floats
from opendas.errors import ConfigError
from opendas.privacy.composition import LossCurve, WorstLoss
from opendas.privacy.exact import parse_fraction

LEVELS = (0.001, 0.01, 0.05)
"""False-positive rates at which a power is stated."""

FACTORS = (3.0, 10.0, 100.0)
"""By which odds are multiplied where chances of it are stated."""

_STANDARD = NormalDist()
# Any set of orders gives a valid bound; more orders give a tighter one.
_ORDERS = 1.0 + 10.0 ** (np.arange(-64, 97) / 16.0)
_BISECTIONS = 60


def _rate(value: float, what: str) -> float:
    if not 0.0 < value < 1.0:
        raise ConfigError(f"{what} must lie strictly between 0 and 1.")
    return value


def _at_least_0(value: Fraction | int | str, what: str) -> float:
    exact = parse_fraction(value, what)
    if exact < 0:
        raise ConfigError(f"{what} must not be negative.")
    return float(exact)


def gaussian_power(rho: Fraction | int | str, alpha: float) -> float:
    """Return the power of the best test at level alpha against continuous Gaussian noise.

    - `rho`, >= 0.
    - `alpha`, in (0, 1): false-positive rate.
    - Returns: ``Phi(Phi^-1(alpha) + mu)`` with ``mu = sqrt(2 rho)``. An approximation: discrete noise of
      small variance can be slightly easier or harder to test. For a bound, see :func:`zcdp_power_bound`.

    Notes
    -----
    Dong, Roth and Su (2022), Gaussian differential privacy: composition adds the squares of mu, hence rho.

    Examples
    --------
    >>> round(gaussian_power("293764/114921", 0.001), 3)
    0.204
    """
    return _STANDARD.cdf(_STANDARD.inv_cdf(_rate(alpha, "alpha")) + math.sqrt(2.0 * _at_least_0(rho, "rho")))


@lru_cache(maxsize=1024)
def zcdp_power_bound(rho: Fraction | int | str, alpha: float) -> float:
    """Bound the power of every test at level alpha against every rho-zCDP mechanism.

    - `rho`, >= 0.
    - `alpha`, in (0, 1): false-positive rate.
    - Returns: the largest power ``b`` for which the test's outcome, itself the output of a rho-zCDP
      mechanism, satisfies the Renyi bounds ``D_a(b || alpha) <= a rho`` and ``D_a(alpha || b) <= a rho`` at
      each of a list of orders a. Rounded up by bisection.

    Notes
    -----
    Post-processing (Bun and Steinke 2016, Lemma 2.2) applied to the test; ``docs/proofs/conversions.md``.

    Examples
    --------
    >>> zcdp_power_bound("293764/114921", 0.001) > gaussian_power("293764/114921", 0.001)
    True
    """
    value, level = _at_least_0(rho, "rho"), _rate(alpha, "alpha")
    # Each order allows an interval from alpha up; together they allow the shortest.
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
    """Bound the power of every test at level alpha against every epsilon-DP mechanism.

    Returns: the smaller of ``exp(epsilon) alpha`` and ``1 - exp(-epsilon) (1 - alpha)``; attained by
    randomised response.

    Notes
    -----
    Wasserman and Zhou (2010), Theorem 2.4; both apply the definition, to the test and to its complement.

    Examples
    --------
    >>> round(pure_power_bound(1, 0.05), 3)
    0.136
    """
    value, level = min(_at_least_0(epsilon, "epsilon"), 700.0), _rate(alpha, "alpha")
    return min(1.0, math.exp(value) * level, 1.0 - math.exp(-value) * (1.0 - level)) if value else level


def _least_renyi(p: float, q: float) -> Floats:
    """Return lower bounds of the Renyi divergences of two coins at each order, for p, q in (0, 1)."""
    logs = math.log(p), math.log(q), math.log1p(-p), math.log1p(-q)
    heads = _ORDERS * logs[0] + (1.0 - _ORDERS) * logs[1]
    tails = _ORDERS * logs[2] + (1.0 - _ORDERS) * logs[3]
    rounding = 2.0**-50 * (1.0 - _ORDERS * min(logs))
    least: Floats = (np.logaddexp(heads, tails) - rounding) / (_ORDERS - 1.0)
    return least


def loss_tail(rho: Fraction | int | str, factor: float) -> float:
    """Bound the probability that a release multiplies the odds of a claim by more than a factor.

    - `rho`, >= 0.
    - `factor`, > 1: ratio of posterior odds to prior odds, for one claim about one record against one
      alternative.
    - Returns: ``exp(-(ln factor - rho)^2 / (4 rho))`` where ``ln factor > rho``, else 1. The probability is
      over the noise, given that the claim is true.

    Notes
    -----
    Bun and Steinke (2016), section 1.1: the privacy loss is sub-Gaussian with mean at most rho.
    """
    value = _at_least_0(rho, "rho")
    if not factor > 1.0:
        raise ConfigError("factor must be greater than 1.")
    excess = math.log(factor) - value
    if excess <= 0.0:
        return 1.0
    if value == 0.0:
        return 0.0
    return max(math.ulp(0.0), math.exp(-(excess**2) / (4.0 * value)))  # positive where the exponential is not


def posterior(prior: float, factor: float) -> float:
    """Return the probability of a claim after its odds are multiplied.

    - `prior`, in (0, 1).
    - `factor`, > 0.

    Examples
    --------
    >>> round(posterior(0.10, 3.0), 2)
    0.25
    """
    if not factor > 0.0:
        raise ConfigError("factor must be positive.")
    odds = _rate(prior, "prior") / (1.0 - prior) * factor
    return odds / (1.0 + odds)


def bounds_by_rho(rho: Fraction) -> dict[str, list[dict[str, float]]]:
    """Return what ``opendas account --rho`` says of an attacker, whatever noise has this rho.

    ``power``: upper bounds, and beside each the power against continuous Gaussian noise. ``odds``: the chance
    that the odds of the truth are multiplied by more than a factor, and a belief of 1 % multiplied by it.
    """
    return {
        "power": [
            {"wrongly": level, "by_rho": zcdp_power_bound(rho, level), "gaussian": gaussian_power(rho, level)}
            for level in LEVELS
        ],
        "odds": [
            {
                "factor": factor,
                "chance": loss_tail(rho, factor),
                "one_percent_becomes": posterior(0.01, factor),
            }
            for factor in FACTORS
        ],
    }


class Attacker:
    """Upper bounds on what an attacker can learn from a release with given noise."""

    def __init__(self, worst: WorstLoss) -> None:
        self._worst = worst
        losses = [worst.loss(k) for k in range(len(worst.changes))]
        self._curves = [loss.curve() for loss in losses if loss.losses]

    def power(self, level: float) -> float:
        """Bound the power of any test at a false-positive rate.

        `level`, in (0, 1).

        Raises `ConfigError` if the level is out of range.
        """
        rate = _rate(level, "level")
        # delta + level * exp(epsilon) bounds the power at every epsilon: each is valid, the least is tight.
        return self._largest(
            rate,
            [
                float((one.delta + rate * np.exp(np.minimum(700.0, one.epsilon))).min())
                for one in self._curves
            ],
        )

    def guess(self, prior: float = 0.5) -> float:
        """Bound the probability of guessing right between two inputs.

        `prior`, in (0, 1): probability of the first input before the release. Without a release, the
        best guess is right with probability ``max(prior, 1 - prior)``.
        """
        known = max(_rate(prior, "prior"), 1.0 - prior)
        delta = self._worst.delta(math.log((1.0 - prior) / prior)).upper
        return self._largest(known, [(1.0 - prior) + prior * delta])

    def belief(self, prior: float) -> float:
        """Bound the posterior probability that the attacker gives the truth, averaged over the noise.

        `prior`, in (0, 1): probability of the truth before the release.
        """
        return self._largest(prior, [_mean_posterior(one, _rate(prior, "prior")) for one in self._curves])

    def odds(self, factor: float) -> float:
        """Bound the probability that the release multiplies the odds of a true claim by more than a factor.

        `factor`, > 1.
        """
        if not factor > 1.0:
            raise ConfigError("factor must be greater than 1.")
        found = []
        for one in self._curves:
            below = int(np.searchsorted(one.epsilon, math.log(factor) - one.slack, side="right")) - 1
            found.append(float(one.tail[below]) + 1e-14 if below >= 0 else 1.0)
        return self._largest(0.0, found)

    @staticmethod
    def _largest(without: float, found: list[float]) -> float:
        return min(1.0, max([without, *found]))


def _mean_posterior(curve: LossCurve, prior: float) -> float:
    """Bound the mean of ``prior / (prior + (1 - prior) exp(-S))``.

    The function is convex in ``exp(-S)``, so rounding to the grid raises its mean. It increases with ``S``,
    so its mean is a sum of tails.
    """
    belief = 1.0 / (1.0 + (1.0 - prior) / prior * np.exp(np.clip(-curve.epsilon, -700.0, 700.0)))
    return float(belief[0] + np.diff(np.append(belief, 1.0)) @ curve.tail)
