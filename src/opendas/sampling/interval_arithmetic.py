"""Integer interval arithmetic for the tails of integer-valued noise.

A real number is held as a pair of integers ``(low, high)`` in units of ``2**-precision`` with ``low <= value
<= high``: every operation rounds ``low`` down and ``high`` up, so the pair encloses the true value at any
precision. No float takes part.

For a symmetric law on the integers write ``S(k) = P(X > k)``, ``k >= 0``. The sampler needs the integers
``floor(2**bits * S(k))``. They are returned only when both ends of the interval agree; until then the working
precision is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from fractions import Fraction

from opendas.errors import PrivacyError

Interval = tuple[int, int]

# Extra bits carried below the last bit asked for. The recurrences lose about 2 log2(k) bits after k terms,
# so 128 leave more than 60 bits of slack for every table below the cap.
_FIRST_GUARD = 128
_LAST_GUARD = 128 * 64
# Extra bits in an exponential: they make its interval narrow, not right.
_SPARE_BITS = 64


class TooCoarse(ArithmeticError):
    """The working precision does not decide the result; try again with more."""


def ceil_shift(value: int, shift: int) -> int:
    """Return ``ceil(value / 2**shift)``."""
    return -((-value) >> shift)


def exp_neg(x: Fraction, precision: int) -> Interval:
    """Enclose ``2**precision * exp(-x)`` between two integers.

    - `x`, >= 0: exponent, exact.
    - `precision`, > 0: bits after the binary point.
    - Returns: ``(low, high)`` with ``low <= 2**precision * exp(-x) <= high``, normally one unit apart.

    Notes
    -----
    The argument is halved until it is at most 1/256, the alternating Taylor series is summed with directed
    rounding (its remainder is at most the first term left out), and the result is squared back.
    """
    if x < 0:
        raise ValueError(f"exp_neg needs x >= 0, got a negative x of {x.numerator.bit_length()} bits")
    if x > precision:
        return 0, 1  # exp(-x) < 2**-x < 2**-precision
    halvings = 0
    while x * 256 > 1 << halvings:
        halvings += 1
    extra = halvings + _SPARE_BITS  # each squaring doubles the relative error
    working = precision + extra
    numerator, denominator = x.numerator, x.denominator << halvings
    low = high = term_low = term_high = 1 << working
    k = 1
    while term_high > 1:
        term_low = term_low * numerator // (denominator * k)
        term_high = -(-term_high * numerator // (denominator * k))
        if k % 2:
            low, high = low - term_high, high - term_low
        else:
            low, high = low + term_low, high + term_high
        k += 1
    low, high = low - term_high, high + term_high
    for _ in range(halvings):
        low, high = low * low >> working, ceil_shift(high * high, working)
    return low >> extra, ceil_shift(high, extra)


def gaussian_weights(sigma2: Fraction, precision: int, stop: int) -> Iterator[Interval]:
    """Enclose the weights ``w(k) = exp(-k**2 / (2 sigma2))`` for ``k = 1, 2, ...``.

    - `stop`: the last weight is the first of at most ``stop`` units.
    - Returns: interval of ``w(k)`` in units of ``2**-precision``.
    """
    low, high = exp_neg(1 / (2 * sigma2), precision)
    square_low, square_high = low * low >> precision, ceil_shift(high * high, precision)
    # w(k + 1) = w(k) * q**(2k + 1) with q = w(1): two products a term instead of one exponential.
    ratio_low, ratio_high = low * square_low >> precision, ceil_shift(high * square_high, precision)
    yield low, high
    while high > stop:
        before = high
        low, high = low * ratio_low >> precision, ceil_shift(high * ratio_high, precision)
        if high >= before:  # rounding up has eaten the fall: it would never stop
            raise TooCoarse
        ratio_low = ratio_low * square_low >> precision
        ratio_high = ceil_shift(ratio_high * square_high, precision)
        yield low, high


def gaussian_tail_floors(sigma2: Fraction, bits: int) -> list[int]:
    """Return ``floor(2**bits * P(X > k))`` for the discrete Gaussian.

    - `sigma2`, > 0: variance parameter of ``P(k)`` proportional to ``exp(-k**2 / (2 sigma2))``.
    - Returns: values for ``k = 0, 1, ...``, non-increasing, ending with the first 0.

    Raises `PrivacyError` if a value cannot be decided at the largest working precision.
    """
    return _decided(lambda guard: _gaussian_floors(sigma2, bits, guard), bits)


def laplace_tail_floors(scale: Fraction, bits: int) -> list[int]:
    """Return the same for the discrete Laplace, ``P(k)`` proportional to ``exp(-|k| / scale)``.

    With ``q = exp(-1 / scale)`` the tail is ``q**(k + 1) / (1 + q)``. As :func:`gaussian_tail_floors`.
    """
    return _decided(lambda guard: _laplace_floors(scale, bits, guard), bits)


def _decided(attempt: Callable[[int], list[int]], bits: int) -> list[int]:
    guard = _FIRST_GUARD
    while guard <= _LAST_GUARD:
        with suppress(TooCoarse):
            return attempt(guard)
        guard *= 2
    raise PrivacyError(
        f"A threshold of the noise law could not be decided at {bits} bits with {_LAST_GUARD} guard bits. "
        "No draw was made; please report the distribution."
    )


def _gaussian_floors(sigma2: Fraction, bits: int, guard: int) -> list[int]:
    # Two passes over the weights rather than a list of them: wide laws have hundreds of thousands.
    precision = bits + guard
    stop = 1 << (guard // 2)
    one = 1 << precision
    low = high = 0
    last_low, last_high = one, one  # w(0)
    for weight_low, weight_high in gaussian_weights(sigma2, precision, stop):
        before = last_low
        last_low, last_high = weight_low, weight_high
        low, high = low + last_low, high + last_high
    # w(k + 1) / w(k) falls with k, so a geometric series with ratio r = last / before bounds the weights left
    # out: their sum is at most last * r / (1 - r).
    if last_high >= before:
        raise TooCoarse
    high += -(-last_high * last_high // (before - last_high))
    inverse_low = (one << precision) // (one + 2 * high)
    inverse_high = -(-(one << precision) // (one + 2 * low))
    shift = 2 * precision - bits
    floors = [low * inverse_low >> shift]
    if floors[0] != high * inverse_high >> shift:
        raise TooCoarse
    for weight_low, weight_high in gaussian_weights(sigma2, precision, stop):
        if floors[-1] == 0:
            break
        # Exact: what is left of each sum is the sum of the lower (upper) ends beyond k.
        low, high = low - weight_low, high - weight_high
        floors.append(low * inverse_low >> shift)
        if floors[-1] != high * inverse_high >> shift:
            raise TooCoarse
    if floors[-1] != 0:
        raise TooCoarse
    return floors


def _laplace_floors(scale: Fraction, bits: int, guard: int) -> list[int]:
    precision = bits + guard
    one = 1 << precision
    q_low, q_high = exp_neg(1 / scale, precision)
    if q_high >= one:
        raise TooCoarse
    low = q_low * one // (one + q_low)  # q / (1 + q) increases with q
    high = -(-q_high * one // (one + q_high))
    floors = []
    while True:
        floor = low >> guard
        if floor != high >> guard:
            raise TooCoarse
        floors.append(floor)
        if floor == 0:
            return floors
        low, high = low * q_low >> precision, ceil_shift(high * q_high, precision)
