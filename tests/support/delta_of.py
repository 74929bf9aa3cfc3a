"""The smallest delta that the optimised Renyi conversion gives at an epsilon, to many digits."""

from __future__ import annotations

from fractions import Fraction

import mpmath

__all__ = ["delta_of"]


def delta_of(rho: Fraction | int | str, epsilon: Fraction | int | str) -> float:
    """Canonne, Kamath and Steinke (2020), Corollary 13, with ``t = alpha - 1``: convex in t."""
    r, e = Fraction(rho), Fraction(epsilon)
    with mpmath.workdps(60):
        r, e = (mpmath.mpf(x.numerator) / x.denominator for x in (r, e))
        # The derivative increases: negative at low, where ln(1/t) = 3 rho, and positive at high.
        low, high = mpmath.log(mpmath.exp(-3 * r)), mpmath.log(max(1, (e + 1) / (2 * r)))
        for _ in range(200):
            middle = (low + high) / 2
            t = mpmath.exp(middle)
            rising = (1 + 2 * t) * r - e - mpmath.log(1 + 1 / t) > 0
            low, high = (low, middle) if rising else (middle, high)
        t = mpmath.exp(high)
        return float(
            min(1, mpmath.exp(t * ((1 + t) * r - e) + t * mpmath.log(t) - (1 + t) * mpmath.log(1 + t)))
        )
