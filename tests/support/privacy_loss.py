"""Privacy losses the slow way: every outcome of every answer, in 40-digit arithmetic.

Shares no code with the package. Small inputs only: the work is the number of outcomes of all answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import mpmath

Answer = tuple[str, Fraction, int]
"""``"gaussian"`` or ``"laplace"``, sigma2 or scale, and the difference of the answer between neighbours."""


def outcomes(answer: Answer, reach: int) -> list[tuple[mpmath.mpf, mpmath.mpf]]:
    """Return P and Q of each outcome of one answer, noise from -reach to reach.

    Laplace noise beyond has one likelihood ratio on each side, and counts with the last outcome.
    """
    kind, parameter, shift = answer

    def weight(x: int) -> mpmath.mpf:
        power = Fraction(x * x) / (2 * parameter) if kind == "gaussian" else Fraction(abs(x)) / parameter
        return mpmath.exp(-mpmath.mpf(power.numerator) / power.denominator)

    if kind == "gaussian":
        total = mpmath.fsum(weight(x) for x in range(-10 * reach, 10 * reach + 1))
    else:
        ratio = weight(1)
        total = (1 + ratio) / (1 - ratio)
    pairs = [(weight(x) / total, weight(x - shift) / total) for x in range(-reach, reach + 1)]
    if kind == "laplace":
        for end in (0, -1):
            pairs[end] = (pairs[end][0] / (1 - ratio), pairs[end][1] / (1 - ratio))
    return pairs


def slow_delta(answers: Sequence[Answer], epsilon: float, reach: int) -> mpmath.mpf:
    """Sum ``max(0, P - exp(epsilon) Q)`` over every outcome."""
    with mpmath.workdps(40):
        factor = mpmath.exp(mpmath.mpf(epsilon))
        lists = [outcomes(answer, reach) for answer in answers]
        terms = []
        for outcome in product(*lists):
            p = mpmath.fprod(pair[0] for pair in outcome)
            q = mpmath.fprod(pair[1] for pair in outcome)
            if p > factor * q:
                terms.append(p - factor * q)
        return mpmath.fsum(terms)


def slow_power(answers: Sequence[Answer], level: float, reach: int) -> mpmath.mpf:
    """Power of the best test: reject in the order of the likelihood ratio, the last outcome with a coin."""
    with mpmath.workdps(40):
        pairs = []
        for outcome in product(*[outcomes(answer, reach) for answer in answers]):
            p = mpmath.fprod(pair[0] for pair in outcome)
            q = mpmath.fprod(pair[1] for pair in outcome)
            pairs.append((p / q, p, q))
        power, left = mpmath.mpf(0), mpmath.mpf(level)
        for _, p, q in sorted(pairs, reverse=True):
            if q >= left:
                return power + p * left / q
            power, left = power + p, left - q
        return power
