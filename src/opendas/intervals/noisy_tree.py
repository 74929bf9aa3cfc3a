"""The contents of a published noisy measurement file, whatever its layout.

Axes: ``g`` geounits of a geolevel in spine order, ``c`` classes of geounits measured with the same noise,
``q`` query groups measured at a geolevel, ``m`` rows of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from opendas.arrays import Floats, Ints
from opendas.constraints.table import ConstraintTable
from opendas.errors import FormatError
from opendas.geography.frame import Frame
from opendas.geography.spine import Spine
from opendas.intervals.laws import NoiseLaw
from opendas.sampling.laws import DiscreteGaussian
from opendas.schema.product import Product
from opendas.schema.query_groups import QueryGroup


class AnswerSource(Protocol):
    """Where noisy answers are read from, some geounits at a time."""

    def full(self, level: int, first: int, geounits: int) -> Sequence[Ints]:
        """Return all noisy answers of consecutive geounits, int64 (geounits, m) for each query group.

        Rows of query groups that a geounit was not asked are zero and mean nothing.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class NoisyLevel:
    """What was asked at one geolevel, and with what noise."""

    geolevel: str
    queries: tuple[QueryGroup, ...]  # in the order of the answers; empty where nothing was measured
    # tuple of tuple of law or None, (c, q): noise of each answer; None where a class was not asked.
    laws: tuple[tuple[NoiseLaw | None, ...], ...]
    which: Ints  # (g,): class of each geounit

    def __post_init__(self) -> None:
        if any(len(laws) != len(self.queries) for laws in self.laws):
            raise FormatError(f"geolevel {self.geolevel!r}: every class has a noise for each query group.")
        if len(self.which) and not 0 <= self.which.min() <= self.which.max() < len(self.laws):
            raise FormatError(f"geolevel {self.geolevel!r}: a geounit has no class of noise.")

    def __len__(self) -> int:
        return len(self.which)

    @property
    def variances(self) -> Floats:
        """Variance of each answer, float64 (c, q); infinite where a class was not asked."""
        found = np.full((len(self.laws), len(self.queries)), np.inf)
        for row, laws in enumerate(self.laws):
            for column, law in enumerate(laws):
                if law is not None:
                    found[row, column] = law.variance
        return found

    @property
    def losses(self) -> Floats:
        """One over the parameter of the noise of each answer, float64 (c, q): rho between bounded neighbours.

        One over the variance of noise that is not Gaussian; 0 where a class was not asked.
        """
        found = np.zeros((len(self.laws), len(self.queries)))
        for row, laws in enumerate(self.laws):
            for column, law in enumerate(laws):
                if isinstance(law, DiscreteGaussian):
                    found[row, column] = float(1 / law.sigma2)
                elif law is not None:
                    found[row, column] = 1.0 / law.variance
        return found


@dataclass(frozen=True, slots=True, eq=False)
class NoisyTree:
    """Noisy measurements of one product, with the public facts around them."""

    product: Product
    frame: Frame  # leaves, official codes and entities
    # The hierarchy that was measured. Its budget shares may be unknown (None): the noise of each geounit is
    # in `levels`.
    spine: Spine
    levels: tuple[NoisyLevel, ...]  # one for each geolevel of the spine, top first
    constraints: ConstraintTable  # bounds and exact answers
    answers: AnswerSource

    def __post_init__(self) -> None:
        if tuple(level.geolevel for level in self.levels) != self.spine.names:
            raise FormatError(
                "the measurements are of "
                f"{', '.join(level.geolevel for level in self.levels) or 'no geolevel'}, and the spine has "
                f"{', '.join(self.spine.names)}."
            )
        for noisy, level in zip(self.levels, self.spine.levels, strict=True):
            if len(noisy) != len(level):
                raise FormatError(
                    f"geolevel {level.name!r}: {len(noisy)} geounits were measured, and the spine has "
                    f"{len(level)}."
                )
        if not any(level.queries for level in self.levels):
            raise FormatError(f"{self.product.name}: nothing was measured.")

    def full(self, level: int, first: int, geounits: int) -> list[Ints]:
        """Return all noisy answers of consecutive geounits; see :class:`AnswerSource`.

        Raises `FormatError` if an answer is missing, or has another form than the product's query group.
        """
        found = list(self.answers.full(level, first, geounits))
        for query, values in zip(self.levels[level].queries, found, strict=True):
            if values.shape != (geounits, query.size):
                raise FormatError(
                    f"geolevel {self.spine.names[level]!r}, query {query.name!r}: the answers have the "
                    f"shape {values.shape} instead of {(geounits, query.size)}."
                )
        return found
