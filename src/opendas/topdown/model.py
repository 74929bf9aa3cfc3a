"""The values that estimation takes and gives.

Letters: ``C`` children, ``s`` support cells, ``n`` cells, ``B`` bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Codes, Ints
from opendas.constraints.table import LevelConstraints

TOPDOWN, INFORMED, POSTERIOR = "topdown", "informed", "posterior"
BLOCK_BY_BLOCK = "block-by-block"
OWN_ESTIMATORS = (TOPDOWN, BLOCK_BY_BLOCK, INFORMED, POSTERIOR)
"""Names of the estimators that are ours; :mod:`opendas.topdown.estimators` has them."""
WHOLE_TREE = (INFORMED, POSTERIOR)
"""Estimators that fit a family from all that was measured below its children."""

RounderPasses = tuple[tuple[tuple[str, npt.NDArray[np.int32]], ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class StageRules:
    """A stage of estimation: least squares, then rounding.

    Parameters
    ----------
    least_squares : tuple of tuple of str
        Query groups of each pass, all measured.
    rounder : tuple of tuple of (str, int32 (n,))
        Name and row of each cell, for the query groups of each rounder pass. The last one named of an
        earlier stage is its finest.
    """

    least_squares: tuple[tuple[str, ...], ...]
    rounder: RounderPasses


@dataclass(frozen=True, slots=True, eq=False)
class CellRules:
    """What cells of a family may hold at one geolevel.

    Parameters
    ----------
    geolevel : str
        Geolevel of the children.
    bound_names : tuple of str
    bound_cells : bool (B, n)
    possible : bool (n,)
        Cells that are no structural zero.
    """

    geolevel: str
    bound_names: tuple[str, ...]
    bound_cells: Bools
    possible: Bools


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """The public side of a family.

    Parameters
    ----------
    label : str
        Geocode of the parent, or of the root itself; of the divided geounit where roots are its parts.
    support : int32 (s,)
        Cells that can be non-zero, ascending.
    parent : int64 (s,) or None
        The parent's fixed counts on the support; None for a root, or roots that hold a total together.
    constraints : LevelConstraints
        Of the children.
    tie_keys : uint64 (C,)
        Public keys that break the rounder's ties.
    geocodes : bytes array (C,) or None
        Of the children, for messages.
    """

    label: str
    support: npt.NDArray[np.int32]
    parent: Ints | None
    constraints: LevelConstraints
    tie_keys: npt.NDArray[np.uint64]
    geocodes: Codes | None = None


@dataclass(frozen=True, slots=True)
class FamilyRecord:
    """How a family was solved: functions of measurements and invariants, hence publishable.

    Parameters
    ----------
    methods : tuple of str
        Least-squares method of each pass.
    residual : float
        Largest relative Karush-Kuhn-Tucker residual over the passes.
    fallback : bool
        A general solver was needed, or a posterior was not reached and least squares kept.
    tolerance : float
        Largest optimum of (7.6): how far the last pass is from the held margins of earlier ones.
    failsafe : str
        Empty, or what the failsafe relaxed.
    """

    geolevel: str
    label: str
    children: int
    cells: int
    methods: tuple[str, ...]
    residual: float
    fallback: bool
    tolerance: float = 0.0
    failsafe: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class FamilyEstimate:
    """Integer counts of the children, int64 (C, s), and how they were found."""

    counts: Ints
    record: FamilyRecord
