"""Inputs and results of estimation as values.

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
    """A stage of estimation: least squares, then rounding."""

    least_squares: tuple[tuple[str, ...], ...]  # query groups of each pass, all measured
    # tuple of tuple of (str, int32 (n,)): name and row of each cell, for the query groups of each rounder
    # pass. The last one named of an earlier stage is its finest.
    rounder: RounderPasses


@dataclass(frozen=True, slots=True, eq=False)
class CellRules:
    """What cells of a family may hold at one geolevel."""

    geolevel: str  # geolevel of the children
    bound_names: tuple[str, ...]
    bound_cells: Bools  # (B, n)
    possible: Bools  # (n,): cells that are no structural zero


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """The public side of a family."""

    # Geocode of the parent, or of the root itself; of the divided geounit where roots are its parts.
    label: str
    support: npt.NDArray[np.int32]  # (s,): cells that can be non-zero, ascending
    # (s,): the parent's fixed counts on the support; None for a root, or roots that hold a total together.
    parent: Ints | None
    constraints: LevelConstraints  # of the children
    tie_keys: npt.NDArray[np.uint64]  # (C,): public keys that break the rounder's ties
    geocodes: Codes | None = None  # (C,): of the children, for messages


@dataclass(frozen=True, slots=True)
class FamilyRecord:
    """How a family was solved: functions of measurements and invariants, hence publishable."""

    geolevel: str
    label: str
    children: int
    cells: int
    methods: tuple[str, ...]  # least-squares method of each pass
    residual: float  # largest relative Karush-Kuhn-Tucker residual over the passes
    fallback: bool  # a general solver was needed, or a posterior was not reached and least squares kept
    # Largest optimum of (7.6): how far the last pass is from the held margins of earlier ones.
    tolerance: float = 0.0
    failsafe: str = ""  # empty, or what the failsafe relaxed


@dataclass(frozen=True, slots=True, eq=False)
class FamilyEstimate:
    """Integer counts of the children, int64 (C, s), and how they were found."""

    counts: Ints
    record: FamilyRecord
