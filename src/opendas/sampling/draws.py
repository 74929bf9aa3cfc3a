"""Draws from the exact laws outside a run: for experiments with a generator, for mechanisms without one.

A run draws by address (:mod:`opendas.sampling.noise`), so that a draw can be repeated; these draws cannot.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints
from opendas.errors import ConfigError
from opendas.sampling.inverse_cdf import SamplerTable
from opendas.sampling.laws import Noise

CHUNK = 1 << 16
"""Words taken at a time."""

Words = Callable[[int], npt.NDArray[np.uint64]]


def sample(law: Noise, size: int | tuple[int, ...] | None, rng: np.random.Generator | None) -> Ints:
    """Draw from a law, int64 of the shape `size`.

    - `size`: None gives a single number, an array without dimensions.
    - `rng`: for simulations. With None the words come from the operating system, as protection needs.

    Raises `ConfigError` if `rng` is not a generator. Raises `PrivacyError` if the law is too wide for a
    table.
    """
    words = _random_words(rng)
    out = np.empty(() if size is None else size, dtype=np.int64)
    flat = out.reshape(-1)
    table = SamplerTable.build(law)
    for start in range(0, flat.size, CHUNK):
        piece = flat[start : start + CHUNK]
        piece[:] = table.draw(words(piece.size), lambda _, __: int(words(1)[0]))
    return out


def _random_words(rng: np.random.Generator | None) -> Words:
    if rng is None:
        return lambda count: np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
    if not isinstance(rng, np.random.Generator):
        raise ConfigError(
            f"rng is {type(rng).__name__}; expected numpy.random.default_rng(seed) for a simulation, or None "
            "for secure random numbers of the operating system."
        )
    generator = rng
    return lambda count: generator.integers(0, 1 << 64, size=count, dtype=np.uint64)
