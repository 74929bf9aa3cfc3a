"""Exact tails of sums of independent noise: the margins of totals.

Three methods, all exact; ``docs/proofs/phsafe.md``, section 7:

* wide discrete Gaussians: their sum is the discrete Gaussian of the summed parameters up to a factor that
  Poisson summation bounds, and the margin is accepted when it is the same at both ends;
* equal discrete Laplace laws: a closed form with positive terms;
* anything else that is short enough: the convolution of the integer thresholds, with a bounded error.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import comb

from opendas.errors import ConfigError
from opendas.sampling.interval_arithmetic import ceil_shift, exp_neg
from opendas.sampling.laws import DiscreteGaussian, Noise

_PRECISIONS = (512, 1024, 2048)
# Longest list of probabilities that is convolved: a few seconds.
_LONGEST = 1 << 16
# 2 pi^2 = 19.739...
_BELOW_TWO_PI_SQUARED = 19


def margin_of_sum(laws: Sequence[Noise], confidence: Fraction) -> int:
    """Return the smallest ``m`` with ``P(|X_1 + ... + X_k| <= m) >= confidence``, decided exactly.

    - `laws`, at least one: laws of the independent terms.
    - `confidence`, in [0, 1).
    - Returns: in counts.

    Examples
    --------
    >>> margin_of_sum([DiscreteGaussian(Fraction(100))] * 4, Fraction(9, 10))
    33
    """
    if not laws:
        raise ConfigError("The margin of a sum needs at least one answer.")
    return _margin_of_sum(
        tuple(sorted(laws, key=lambda law: law.parameter, reverse=True)), Fraction(confidence)
    )


@lru_cache(maxsize=1024)
def _margin_of_sum(laws: tuple[Noise, ...], confidence: Fraction) -> int:
    if len(laws) == 1 or confidence <= 0:
        return laws[0].margin(confidence)
    gaussian = [law for law in laws if isinstance(law, DiscreteGaussian)]
    if len(gaussian) == len(laws):
        found = _gaussian_margin(gaussian, confidence)
        if found is not None:
            return found
    elif not gaussian and len(set(laws)) == 1:
        return _laplace_margin(laws[0].parameter, len(laws), confidence)
    return _convolved_margin(laws, confidence)


def _gaussian_margin(laws: Sequence[DiscreteGaussian], confidence: Fraction) -> int | None:
    """Return the margin if the sum is close enough to one discrete Gaussian to decide it, else None."""
    factor = Fraction(1)
    so_far = laws[0].sigma2
    for law in laws[1:]:
        # Adding t to s: the shifted sum over the integers of a Gaussian of variance u = s t / (s + t) is
        # constant up to 1 +- e, e = 2 sum over k of exp(-2 pi^2 u k^2).
        u = so_far * law.sigma2 / (so_far + law.sigma2)
        q = Fraction(exp_neg(_BELOW_TWO_PI_SQUARED * u, 256)[1], 1 << 256)
        e = 2 * q / (1 - q) if q < 1 else Fraction(1)
        if e >= Fraction(1, 1000):
            return None
        factor *= (1 + e) / (1 - e)
        so_far += law.sigma2
    alpha = 1 - confidence
    total = DiscreteGaussian(so_far)
    if alpha * factor > 1:
        return None
    least, most = total.margin(1 - alpha * factor), total.margin(1 - alpha / factor)
    return most if least == most else None


def _laplace_margin(scale: Fraction, terms: int, confidence: Fraction) -> int:
    alpha = 1 - confidence

    def too_small(m: int) -> bool:
        for precision in _PRECISIONS:
            low, high = _laplace_tail(scale, terms, m, precision)
            bound = alpha * (1 << precision)
            if 2 * high <= bound:
                return False
            if 2 * low > bound:
                return True
        raise ConfigError(f"The margin of {terms} answers could not be decided at {precision} bits.")

    high = 1
    while too_small(high):
        high *= 2
    low = -1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if too_small(middle) else (low, middle)
    return high


def _laplace_tail(scale: Fraction, terms: int, m: int, precision: int) -> tuple[int, int]:
    """Enclose ``2**precision P(X_1 + ... + X_k > m)``, ``m >= 0``, for discrete Laplace terms of one scale.

    With ``q = exp(-1 / scale)`` the coefficient of ``z^s`` in ``((1 - q)^2 / ((1 - q z)(1 - q / z)))^k`` is
    expanded at the pole ``z = 1 / q``; every term is positive. See the proof.
    """
    ends = exp_neg((m + 1) / scale, precision)
    low, high = (
        sum(
            outer[i] * comb(m + terms - i, terms - 1 - i - n) * inner[n]
            for i in range(terms)
            for n in range(terms - i)
        )
        * end
        for (outer, inner), end in zip(_laplace_series(scale, terms, precision), ends, strict=True)
    )
    return low >> 2 * precision, ceil_shift(high, 2 * precision)


@lru_cache(maxsize=64)
def _laplace_series(scale: Fraction, terms: int, precision: int) -> tuple[tuple[list[int], list[int]], ...]:
    """Return the lower and upper ends, in units of ``2**-precision``, of the factors that do not know m."""
    low, high = (Fraction(end, 1 << precision) for end in exp_neg(1 / scale, precision))
    return tuple(
        _series_at(q, other, terms, precision, up=up)
        for q, other, up in ((low, high, False), (high, low, True))
    )


def _series_at(
    q: Fraction, other: Fraction, terms: int, precision: int, *, up: bool
) -> tuple[list[int], list[int]]:
    """Evaluate the factors that grow with q at ``q``, and the one that falls at ``other``."""

    def rounded(value: Fraction) -> int:
        scaled = value * (1 << precision)
        return -(-scaled.numerator // scaled.denominator) if up else scaled.numerator // scaled.denominator

    square = 1 - q * q
    ratio = q * q / square
    outer = []
    for i in range(terms):
        weight = Fraction(int(i == 0))
        weight += sum(
            (comb(terms, j) * ratio**j * comb(i + j - 1, i) for j in range(1, terms + 1)), Fraction(0)
        )
        outer.append(rounded((1 - other) ** (2 * terms) * weight / square**i))
    return outer, [rounded(q**n / (1 - q) ** (n + 1)) for n in range(terms)]


def _convolved_margin(laws: Sequence[Noise], confidence: Fraction) -> int:
    for bits in (64, 128, 256):
        if sum(law.tail_length(bits) for law in laws) > _LONGEST:
            break
        found = _convolved_at(laws, confidence, bits)
        if found is not None:
            return found
    raise ConfigError(
        "The margin of a sum of answers with such different noise cannot be decided exactly; "
        "their variances add up."
    )


def _convolved_at(laws: Sequence[Noise], confidence: Fraction, bits: int) -> int | None:
    # Differences of the floors of the tail are a probability distribution in units of 2**-bits, each point
    # less than one unit off, and at most n + 2 units in total variation.
    sums = [1]
    width = len(laws) * bits // 8 + 1
    slack = 0
    for law in laws:
        floors = law.tail_floors(bits)
        half = [before - after for before, after in pairwise(floors)]
        points = [*reversed(half), (1 << bits) - 2 * floors[0], *half]
        sums = _convolve(sums, points, width)
        slack += len(floors) + 2
    whole = 1 << bits * len(laws)
    error = 2 * slack << bits * (len(laws) - 1)
    bound = (1 - confidence) * whole
    centre = len(sums) // 2
    outside = 0
    for m in range(centre, -1, -1):
        # `outside` is the mass beyond m on one side.
        inside_too = outside + sums[centre + m]
        if 2 * outside + error > bound:
            return None
        if m == 0:
            return 0
        if 2 * inside_too - error > bound:
            return m
        outside = inside_too
    return None


def _convolve(a: list[int], b: list[int], width: int) -> list[int]:
    """Multiply two polynomials with non-negative coefficients below ``256**width`` by one product."""
    left = int.from_bytes(b"".join(value.to_bytes(width, "little") for value in a), "little")
    right = int.from_bytes(b"".join(value.to_bytes(width, "little") for value in b), "little")
    length = len(a) + len(b) - 1
    product = (left * right).to_bytes(length * width, "little")
    return [int.from_bytes(product[i : i + width], "little") for i in range(0, length * width, width)]
