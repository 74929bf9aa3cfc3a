"""Noisy answers, the only input of estimation that depends on the data.

Letters: ``C`` geounits of the family, ``s`` support cells, ``r`` rows of a query group that the support
touches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class QueryAnswers:
    """Noisy answers of one query group for the geounits of one family."""

    name: str  # query group
    rows: npt.NDArray[np.int32]  # (r,): rows of the group that the support touches, ascending
    compact: npt.NDArray[np.int32]  # (s,): position in `rows` of each support cell's row
    values: Ints  # (C, r): noisy answers
    variance: float  # noise variance at a geounit with its level's share, in squared counts


@dataclass(frozen=True, slots=True, eq=False)
class FamilyMeasurement:
    """Noisy answers of all measured query groups for one family."""

    queries: tuple[QueryAnswers, ...]  # in address order
    # (C,): multiple of each geounit's budget relative to its level's share; 1 on the standard spine.
    precision: Floats


@dataclass(frozen=True, slots=True, eq=False)
class UsedAnswers:
    """Noisy answers of one query group that estimation read for one family."""

    level: int
    first: int
    children: int
    query: str
    rows: npt.NDArray[np.int32]  # (r,)
    values: Ints  # (C, r)


class MeasurementSource(Protocol):
    """Maps addresses to noisy integers, which are all that estimation sees of the data."""

    def family(
        self, level: int, first: int, children: int, support: npt.NDArray[np.int32]
    ) -> FamilyMeasurement:
        """Return the noisy answers of geounits ``first:first + children`` of `level` that touch `support`."""
        ...

    def full(self, level: int, first: int, geounits: int) -> list[Ints]:
        """Return all noisy answers of geounits ``first:first + geounits`` of `level`.

        Returns (geounits, m): one array for each measured query group, in address order. Rows of geounits
        without their own budget are zero and carry no information.
        """
        ...


@runtime_checkable
class PartialSource(Protocol):
    """A source that also sums answers while taking them, and reads many families together."""

    def sums(
        self,
        level: int,
        first: int,
        cells: Bools,
        which: Ints,
        group: Ints,
    ) -> list[Ints]:
        """Return sums, over groups of consecutive geounits, of the noisy answers that touch some cells.

        - `cells` (u, n): sets of cells, public.
        - `which` (geounits,): set of cells of each geounit.
        - `group` (geounits,): sum to which each geounit belongs, from 0 to G - 1.
        - Returns (G, m): one array for each measured query group, as of :meth:`MeasurementSource.full`.
        """
        ...

    def used(
        self, level: int, families: Sequence[tuple[int, int, npt.NDArray[np.int32]]]
    ) -> list[UsedAnswers]:
        """Return the answers of :meth:`MeasurementSource.family` for many families at once.

        - `families`: (first, children, support) of each.
        - Returns: family by family, each of its query groups in address order.
        """
        ...
