"""Privacy loss of integer answers with integer noise, as numbers on a lattice.

An answer differs between two neighbours by an integer ``d``. With ``P`` the law of the noisy answer on one
side and ``Q`` on the other, the *privacy loss* is ``ln P(y)/Q(y)`` for ``y`` drawn from ``P``. With discrete
Gaussian noise it is ``(d^2 - 2 d x) / (2 sigma2)`` for the noise value ``x``; with discrete Laplace noise
``(|x - d| - |x|) / scale``: in both cases evenly spaced values. Noise laws are symmetric, so the loss has the
same law with ``P`` and ``Q`` exchanged and does not depend on the sign of ``d``.

Probabilities are doubles with a stated relative error; noise beyond a stated range is left out and its
probability stated. Derivations: ``docs/proofs/exact-accounting.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from opendas.arrays import Floats
from opendas.errors import PrivacyError
from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace

__all__ = ["IntegerNoise", "LossLaw", "loss_law"]

IntegerNoise = DiscreteGaussian | DiscreteLaplace

UNIT = 2.0**-53
"""Unit roundoff of a double."""

# A sum of several losses with one spacing is formed value by value up to this many values; beyond it the
# losses are spread on the grid one by one, which is less tight and as valid.
_MOST_VALUES = 6000
_WIDEST = 1 << 24
# What is below this may have been rounded to zero, and counts as left out.
_UNDERFLOW = 1e-280


@dataclass(frozen=True, slots=True, eq=False)
class LossLaw:
    """Law of a privacy loss with evenly spaced values ``start + k * step``.

    Parameters
    ----------
    start : float
        Least value, in nats.
    step : float, > 0
        Spacing, in nats.
    mass : float64 (values,)
        Probability of each value under ``P``; sums to one up to `error` and `missing`.
    missing : float
        Upper bound of the probability that is left out.
    error : float
        Bound of the relative error of each element of `mass`.
    answers : int
        How many independent answers the loss belongs to.

    Raises
    ------
    PrivacyError
        If there is nothing to spread.
    """

    start: float
    step: float
    mass: Floats
    missing: float
    error: float
    answers: int = 1

    def __post_init__(self) -> None:
        if not (self.step > 0.0 and math.isfinite(self.start) and len(self.mass)):
            raise PrivacyError("a privacy loss needs finite values and a positive spacing.")

    @property
    def values(self) -> Floats:
        """Values of the loss, float64 (values,), ascending, in nats."""
        return self.start + self.step * np.arange(len(self.mass), dtype=np.float64)

    @property
    def largest(self) -> float:
        """Largest value, in nats."""
        return self.start + self.step * (len(self.mass) - 1)

    @property
    def reach(self) -> float:
        """Largest absolute value, in nats."""
        return max(abs(self.start), abs(self.largest))

    @property
    def variance(self) -> float:
        """Variance of the loss under ``P``, in squared nats."""
        values = self.values
        return float(self.mass @ (values - float(self.mass @ values)) ** 2)

    def times(self, count: int) -> LossLaw | None:
        """Return the loss of `count` independent answers with this law, or None if it has too many values.

        Sums of products of positive numbers in a fixed order: the relative error grows by one rounding per
        addition and product.
        """
        if count * (len(self.mass) - 1) + 1 > max(_MOST_VALUES, len(self.mass)):
            return None
        mass, error = np.ones(1), 0.0
        for bit in bin(count)[2:]:
            mass, error = np.convolve(mass, mass), 2.0 * error + len(mass) * 2.0 * UNIT
            if bit == "1":
                mass, error = np.convolve(mass, self.mass), error + self.error + len(mass) * 2.0 * UNIT
        return LossLaw(
            count * self.start, self.step, mass, count * self.missing, error, answers=count * self.answers
        )


def loss_law(noise: IntegerNoise, shift: int = 1, missing: float = 1e-30) -> LossLaw:
    """Privacy loss of one answer that differs by an integer between two neighbours.

    Parameters
    ----------
    noise : DiscreteGaussian or DiscreteLaplace
    shift : int, not 0
        The difference. Its sign does not matter.
    missing : float, in (0, 1)
        Probability of Gaussian noise that may be left out. For the discrete Laplace nothing is left out.

    Returns
    -------
    LossLaw

    Raises
    ------
    PrivacyError
        If the shift is zero (then there is no loss), or the noise is too wide for its values to be listed.

    Notes
    -----
    Canonne, Kamath and Steinke (2020), Definition 1 and Corollary 17 (the tail: a discrete Gaussian is
    sub-Gaussian with its own ``sigma2``).

    Examples
    --------
    >>> law = loss_law(DiscreteLaplace(Fraction(2)))
    >>> [round(value, 3) for value in law.values.tolist()], [round(p, 3) for p in law.mass.tolist()]
    ([-0.5, 0.5], [0.378, 0.622])
    """
    if shift == 0:
        raise PrivacyError("an answer that is the same on both sides has no privacy loss.")
    if not 0.0 < missing < 1.0:
        raise PrivacyError("the probability to leave out lies between 0 and 1.")
    distance = abs(shift)
    if isinstance(noise, DiscreteGaussian):
        return _gaussian_loss(noise.sigma2, distance, missing)
    return _laplace_loss(noise.scale, distance)


def _gaussian_loss(sigma2: Fraction, shift: int, missing: float) -> LossLaw:
    # P(|X| > reach) <= 2 exp(-reach^2 / (2 sigma2)); one more against rounding of the square root.
    reach = math.ceil(math.sqrt(2.0 * float(sigma2) * math.log(2.0 / missing))) + 1
    if 2 * reach + 1 > _WIDEST:
        raise PrivacyError(
            f"noise of variance {float(sigma2):.3g} is too wide to list its values; its privacy loss is "
            "bounded by its rho instead."
        )
    noise = np.arange(-reach, reach + 1, dtype=np.float64)
    exponent = noise * noise / (2.0 * float(sigma2))
    weight = np.exp(-exponent)
    # exp is within one unit in the last place, and its argument has three roundings. Reversing the order
    # leaves the symmetric law as it is: values ascend as noise descends.
    largest = min(float(exponent[0]), 750.0)  # beyond, weights are zero and count as left out
    error = 2.0 * (4.0 * largest + len(weight) + 8.0) * UNIT + missing
    return LossLaw(
        start=float((Fraction(shift * shift) - 2 * shift * reach) / (2 * sigma2)),
        step=float(shift / sigma2),
        mass=weight / weight.sum(),
        missing=missing + _UNDERFLOW,
        error=error,
    )


def _laplace_loss(scale: Fraction, shift: int) -> LossLaw:
    """Return the loss ``(|x - d| - |x|) / s``: -d/s, ..., d/s, with all noise beyond 0 and d at the ends."""
    ratio = math.exp(-1.0 / float(scale))
    ends = 1.0 / (1.0 + ratio)  # P(X <= 0)
    # x = d has the least loss and collects P(X >= d); x = 0 the greatest and collects P(X <= 0).
    inside = ratio ** np.arange(shift, 0, -1, dtype=np.float64)
    mass = np.concatenate([inside * (-math.expm1(-1.0 / float(scale)) / (1.0 + ratio)), [ends]])
    mass[0] = ends * ratio**shift
    return LossLaw(
        start=float(-shift / scale),
        step=float(2 / scale),
        mass=mass,
        missing=0.0 if ratio**shift > _UNDERFLOW else _UNDERFLOW,
        error=(16.0 + 4.0 * shift * (1.0 + 1.0 / float(scale))) * UNIT,
    )
