"""Single draws, addresses and probabilities of the noise, written out: what fast paths are compared with."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from opendas.sampling.interval_arithmetic import exp_neg, gaussian_weights
from opendas.sampling.inverse_cdf import SamplerTable
from opendas.sampling.laws import DiscreteGaussian, Noise
from opendas.sampling.noise import NoiseSource

_BITS = 1400


def draw(
    source: NoiseSource, table: SamplerTable, level: int, unit: ArrayLike, query: int, cells: ArrayLike
) -> NDArray[np.int64]:
    """Draw one grid of geounits and cells."""
    return source.draw_many(level, [(table, unit, query, cells)])[0]


def packed(level: int, unit: int, query: int, cell: int, refinement: int = 0) -> tuple[int, int]:
    """The two halves of an address, from its bits as text: 8, 40, 16, 48 and 16 of them."""
    fields = ((level, 8), (unit, 40), (query, 16), (cell, 48), (refinement, 16))
    bits = "".join(f"{value:0{width}b}" for value, width in fields)
    assert len(bits) == 128
    return int(bits[:64], 2), int(bits[64:], 2)


def pmf(law: Noise, k: int) -> float:
    """P(X = k) to a few units in the last place; 0.0 below the smallest positive double."""
    if isinstance(law, DiscreteGaussian):
        weight = _exp_neg(Fraction(k * k) / (2 * law.sigma2))
        if law.sigma2 >= 8:  # by Poisson summation, to far below one unit of a double
            return weight / math.sqrt(2 * math.pi * float(law.sigma2))
        both = sum(low + high for low, high in gaussian_weights(law.sigma2, _BITS, 1))
        return weight / float(Fraction((1 << _BITS) + both, 1 << _BITS))
    return math.tanh(float(1 / (2 * law.scale))) * _exp_neg(Fraction(abs(k)) / law.scale)


def _exp_neg(x: Fraction) -> float:
    precision = 70 + 3 * min(int(x), 800) // 2
    low, high = exp_neg(x, precision)
    return float(Fraction(low + high, 2 << precision))
