"""Bias, variance and mean squared error of a noisy count after clamping at zero, in closed form.

A count N is released as ``max(0, N + Z)`` with symmetric noise Z. With the tail ``T(t) = P(Z > t)``

    bias(N) = integral of T over t > N,            mse(N) = V / 2 + integral of 2 t T(t) over 0 < t < N,

and for noise on the integers the same with sums and ``T(m) = P(Z >= m)``; V is the variance of Z. Hence
``V / 2 <= mse <= V`` for every symmetric noise, and all the closed forms below. Each is arranged so that
nothing cancels: every bracket lies between constants, and the variance is no difference of large numbers.

The Laplace case is Ko et al. (2025), Propositions 1 and 2 and equation (3). The others are ours:
docs/explanation/allocation.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import erfcx, ndtr

from opendas.allocation import integer_gaussian
from opendas.allocation.noise_kinds import NoiseKind, noise_kind
from opendas.arrays import Floats
from opendas.errors import BudgetError, ConfigError
from opendas.privacy.relations import Mechanism

LARGEST_COUNT = 1 << 53
"""Counts are whole numbers that a double holds."""

_ROOT_TWO_PI = float(np.sqrt(2 * np.pi))
_FAR = 40.0
"""In standard deviations: beyond it a Gaussian density is no double."""


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Error of clamped counts; all arrays have the shape of the counts.

    Notes
    -----
    What is below the smallest double, such as the error of integer noise at a budget above some 740, is 0.
    """

    bias: Floats  # expectation minus count, in counts; >= 0
    variance: Floats  # in squared counts
    mse: Floats  # mean squared error about the count: variance plus squared bias


def clamped_moments(
    mechanism: str | Mechanism | NoiseKind, budget: npt.ArrayLike, counts: npt.ArrayLike
) -> Moments:
    """Bias, variance and mean squared error of ``max(0, count + noise)``.

    Ko et al. (2025), equations (1), (2) and (3).

    - `mechanism`: ``laplace``, ``gaussian``, ``discrete-laplace`` or ``discrete-gaussian``.
    - `budget`, > 0: epsilon or rho of one count, at sensitivity 1. Broadcasts with the counts.
    - `counts`, >= 0: whole numbers for the discrete kinds.
    - Returns: relative error below 1e-12 for budgets from 1e-6 to 1e3 and any count, as far as a double
      reaches.

    Raises `BudgetError` if a budget is not positive and finite, `ConfigError` if the mechanism is unknown, or
    a count is negative or not finite.

    Examples
    --------
    >>> clamped_moments("laplace", 1.0, [0]).mse
    array([1.])
    """
    kind = noise_kind(mechanism)
    b, n = _broadcast(budget, counts)
    if kind is NoiseKind.DISCRETE_GAUSSIAN:
        return Moments(*integer_gaussian.moments(b, n))
    bias, variance, mse = _CLOSED[kind](b, n)
    return Moments(bias, variance, mse)


def _broadcast(budget: npt.ArrayLike, counts: npt.ArrayLike) -> tuple[Floats, Floats]:
    b, n = np.asarray(budget, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    if not bool(np.all((b > 0) & np.isfinite(b))):
        raise BudgetError("a budget must be a positive finite number: without one the error is unbounded.")
    if not bool(np.all((n >= 0) & (n <= LARGEST_COUNT))):
        raise ConfigError("counts are numbers from 0 to 2**53.")
    b, n = np.broadcast_arrays(b, n)
    return b, n


def _laplace(b: Floats, n: Floats) -> tuple[Floats, Floats, Floats]:
    x = b * n
    fade = np.exp(-x)
    bracket = 2 - (1 + x) * fade
    square = b * b
    return fade / (2 * b), (bracket - 0.25 * fade * fade) / square, bracket / square


def _gaussian(b: Floats, n: Floats) -> tuple[Floats, Floats, Floats]:
    sigma2 = 1 / (2 * b)
    sigma = np.sqrt(sigma2)
    unit_bias, bracket = _unit_gaussian(n / sigma)
    return sigma * unit_bias, sigma2 * (bracket - unit_bias * unit_bias), sigma2 * bracket


def _unit_gaussian(x: Floats) -> tuple[Floats, Floats]:
    """Bias and mean squared error of ``max(0, x + Z)`` for a standard normal Z.

    The bias is ``phi(x) (1 - x M(x))`` with the Mills ratio M, which loses fewer than four digits before
    phi is no double any more; ``phi(x) - x Phi(-x)`` would lose all of them.
    """
    near = np.minimum(x, _FAR)
    density = np.exp(-0.5 * near * near) / _ROOT_TWO_PI
    density = np.where(x > _FAR, 0.0, density)
    mills = np.sqrt(np.pi / 2) * erfcx(near / np.sqrt(2))
    bias = density * (1 - near * mills)
    return bias, ndtr(x) - near * bias


def _discrete_laplace(b: Floats, n: Floats) -> tuple[Floats, Floats, Floats]:
    q = np.exp(-b)
    lost = -np.expm1(-b)  # 1 - q
    half = q / (lost * lost)  # V / 2
    fade = np.exp(-b * n)
    bracket = 2 - fade * (1 + 2 * n * np.tanh(0.5 * b))
    bias = np.exp(-b * (n + 1)) / -np.expm1(-2 * b)
    return bias, half * (bracket - fade * fade * q / (1 + q) ** 2), half * bracket


_CLOSED = {
    NoiseKind.LAPLACE: _laplace,
    NoiseKind.GAUSSIAN: _gaussian,
    NoiseKind.DISCRETE_LAPLACE: _discrete_laplace,
}
