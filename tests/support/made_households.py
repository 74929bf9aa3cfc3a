"""Who of the synthetic state lives in which home.

Axes: ``b`` blocks, ``u`` units, ``p`` persons.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints
from opendas.demo.generator import DemoState
from opendas.schema.pl94 import pl94_persons

__all__ = ["Residents", "Units", "house_people", "list_units"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Units:
    """Homes, block by block: occupied housing units, vacant ones, then group quarters by type.

    Parameters
    ----------
    block : int64 (u,)
    hhgq : int64 (u,)
        0 for housing units, 1 to 7 for group quarters.
    occupied : bool (u,)
    """

    block: Ints
    hhgq: Ints
    occupied: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.block)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Residents:
    """People, home by home, the householder first.

    Parameters
    ----------
    unit : int64 (p,)
        Not decreasing.
    number : int64 (p,)
        Number of a person in the home, from 1.
    age, sex : int64 (p,)
        Years; 1 male, 2 female.
    hispanic, cenrace : int64 (p,)
        0-based, as in the persons product.
    """

    unit: Ints
    number: Ints
    age: Ints
    sex: Ints
    hispanic: Ints
    cenrace: Ints

    def __len__(self) -> int:
        return len(self.unit)


def list_units(state: DemoState) -> Units:
    """List every home of the state."""
    homes = state.homes
    kinds = np.column_stack([homes.occupied, homes.housing - homes.occupied, homes.facilities])
    b, k = kinds.shape
    kind = np.repeat(np.tile(np.arange(k), b), kinds.ravel())
    block = np.repeat(np.arange(b), kinds.sum(axis=1))
    return Units(block, np.maximum(kind - 1, 0), kind != 1)


def house_people(state: DemoState, units: Units, rng: np.random.Generator) -> Residents:
    """Give everybody a home of the right kind in the right block.

    Adults come first in every block, so that as few householders as possible are minors; each occupied home
    and each facility gets one person, and everybody else a home by chance.
    """
    block, cell, count = state.entries
    hhgq, adult, hispanic, cenrace = pl94_persons().schema.codes(np.repeat(cell, count))
    place = np.repeat(block, count) * 8 + hhgq
    order = np.lexsort((rng.random(len(place)), 1 - adult, place))
    place, adult = place[order], adult[order].astype(np.int64)
    hispanic, cenrace = hispanic[order].astype(np.int64), cenrace[order].astype(np.int64)
    unit = _homes(place, units, rng)
    home = np.argsort(unit, kind="stable")  # the first person of a home stays the first
    unit = unit[home]
    first = np.flatnonzero(np.diff(unit, prepend=-1))
    number = np.arange(len(unit)) - np.repeat(first, np.diff(first, append=len(unit))) + 1
    return Residents(
        unit,
        number,
        _ages(adult[home], (number == 1) & (units.hhgq[unit] == 0), rng),
        rng.integers(1, 3, len(unit)),
        hispanic[home],
        cenrace[home],
    )


def _homes(place: Ints, units: Units, rng: np.random.Generator) -> Ints:
    """Return the home of each person; `place` is block * 8 + kind of home, ascending."""
    lived_in = np.flatnonzero(units.occupied)
    offered = units.block[lived_in] * 8 + units.hhgq[lived_in]
    start = np.searchsorted(offered, place)
    homes = np.searchsorted(offered, place, side="right") - start
    rank = np.arange(len(place)) - np.searchsorted(place, place)
    return lived_in[start + np.where(rank < homes, rank, rng.integers(0, homes))]


def _ages(adult: Ints, householder: npt.NDArray[np.bool_], rng: np.random.Generator) -> Ints:
    """Draw ages: minors below 18, householders from 15 on."""
    young = np.where(householder, rng.integers(15, 18, len(adult)), rng.integers(0, 18, len(adult)))
    old = np.minimum(18 + rng.gamma(2.6, 13.0, len(adult)).astype(np.int64), 115)
    return np.where(adult == 1, old, young).astype(np.int64)
