"""What an estimator is given of one family, and what it has to give back.

An estimator is the step from noisy answers to real numbers: the least squares of TopDown, or another method
in its place. Before it, answers are read and constraints collected; after it the counts are rounded to
integers that keep every constraint exactly, and checked. An estimator can make a release less accurate, but
it sees no count without noise, and cannot break a constraint.

Letters: ``C`` children, ``s`` support cells, ``r`` rows of a query group that the support touches, ``K``
constraints, ``n`` cells, ``q`` query groups.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Codes, Floats, Ints
from opendas.measurement.family import FamilyMeasurement, QueryAnswers
from opendas.solvers.problem.curvature import Curvature
from opendas.solvers.problem.problem import Solution
from opendas.topdown.constraint_groups import Groups
from opendas.topdown.model import CellRules, Family, RounderPasses, StageRules


class Precision(Protocol):
    """Precisions ``P`` of several geounits, zero outside the cells that a geounit may use."""

    def take(self, index: slice) -> Precision:
        """Return those of some geounits."""
        ...

    def on_support(self, support: npt.NDArray[np.int32]) -> Curvature:
        """Return them on some cells."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Information:
    """What is known of consecutive geounits of one geolevel, for instance of the children of one family."""

    first: int  # index of the first geounit in its level
    precision: Precision
    linear: Floats  # (C, n): ``b``, zero outside the cells that a geounit may use
    # (C, q): about what measurements of each query group alone would say as much: a metric for the solver
    # that has no part in the answer.
    weights: Floats
    rows: tuple[npt.NDArray[np.int32], ...]  # (n,): row of each cell, for these query groups

    def of(self, first: int, children: int) -> Information:
        """Return what is known of geounits ``first:first + children`` of the level."""
        here = slice(first - self.first, first - self.first + children)
        return Information(first, self.precision.take(here), self.linear[here], self.weights[here], self.rows)


@dataclass(slots=True)
class Progress:
    """How the least squares of a family went."""

    methods: list[str] = field(default_factory=list)  # of each pass
    # residual, tolerance: see :class:`opendas.topdown.model.FamilyRecord`.
    residual: float = 0.0
    tolerance: float = 0.0
    fallback: bool = False

    def note(self, solution: Solution) -> None:
        """Enter the solution of one pass."""
        self.methods.append(solution.method)
        self.residual = max(self.residual, solution.residual)
        self.fallback |= solution.by_general_solver


@dataclass(frozen=True, slots=True, eq=False)
class LevelRules(CellRules):
    """How families whose children are at one geolevel are estimated."""

    # least_squares, rounder: of the last stage, see :class:`opendas.topdown.model.StageRules`.
    least_squares: tuple[tuple[str, ...], ...]
    rounder: RounderPasses
    slack: float = 0.0  # added to the optimum of (7.6)
    milp: bool = False  # allow rounder passes that are not laminar
    earlier: tuple[StageRules, ...] = ()  # stages before the last one
    estimator: Estimator | None = None  # what fits a family; None for the least squares of TopDown

    @property
    def stages(self) -> tuple[StageRules, ...]:
        """All stages in order."""
        return (*self.earlier, StageRules(self.least_squares, self.rounder))

    @property
    def query_names(self) -> tuple[object, ...]:
        """Query groups of every pass of every stage, by name."""
        return tuple(
            (stage.least_squares, tuple(tuple(name for name, _ in queries) for queries in stage.rounder))
            for stage in self.stages
        )


@dataclass(frozen=True, slots=True, eq=False)
class FamilyData:
    """One family, as an estimator sees it. The properties are read-only arrays; all counts are in records.

    Parameters
    ----------
    family : Family
    rules : LevelRules
    measurement : FamilyMeasurement
        Empty where `information` holds it.
    groups : Groups
    progress : Progress
    information : Information or None
        What is known of the children from all that was measured below them, for estimators of the whole tree.
    """

    family: Family
    rules: LevelRules
    measurement: FamilyMeasurement
    groups: Groups
    progress: Progress
    information: Information | None = None

    @property
    def geolevel(self) -> str:
        """Geolevel of the children."""
        return self.rules.geolevel

    @property
    def geocodes(self) -> Codes | None:
        """Geocodes of the children, bytes (C,)."""
        return self.family.geocodes

    @property
    def cells(self) -> npt.NDArray[np.int32]:
        """Cells of the schema that can be non-zero, int32 (s,), ascending.

        In an earlier stage of a product with stages: rows of the stage's finest query group.
        """
        return _read_only(self.family.support)

    @property
    def parent(self) -> Ints | None:
        """Counts of the parent, int64 (s,): each column of the answer sums to them. None for a root."""
        return None if self.family.parent is None else _read_only(self.family.parent)

    @property
    def answers(self) -> tuple[QueryAnswers, ...]:
        """Noisy answers of the measured query groups: values int64 (C, r), row of each cell, variance."""
        return tuple(
            replace(
                query,
                rows=_read_only(query.rows),
                compact=_read_only(query.compact),
                values=_read_only(query.values),
            )
            for query in self.measurement.queries
        )

    @property
    def precision(self) -> Floats:
        """Divide an answer's variance by it, child by child, float64 (C,); 1 on the standard spine."""
        return _read_only(self.measurement.precision)

    @property
    def usable(self) -> Bools:
        """Cells that a child may have records in, bool (C, s)."""
        return _read_only(self.groups.mask)

    @property
    def sums(self) -> Bools:
        """Cells of each constrained sum, bool (K, s)."""
        return _read_only(self.groups.cells)

    @property
    def lower(self) -> Floats:
        """Least value of each child's constrained sums, float64 (C, K)."""
        return _read_only(self.groups.lower)

    @property
    def upper(self) -> Floats:
        """Largest value of each child's constrained sums, float64 (C, K); infinite where there is none."""
        return _read_only(self.groups.upper)


_Array = TypeVar("_Array", bound=npt.NDArray[Any])


def _read_only(array: _Array) -> _Array:
    view = array.view()
    view.flags.writeable = False
    return view


class Estimator(Protocol):
    """A method that estimates a family: TopDown's least squares, the informed estimator, or one of yours.

    It goes to worker processes: a class of an importable module, or anything that can be pickled. It is
    called for one family at a time, in any order and in any process, and must give the same numbers each
    time: no clock, no chance but from a seed that it makes of the family's geocodes.
    """

    @property
    def name(self) -> str:
        """Its name in run files and certificates."""
        ...

    def fit(self, data: FamilyData, /) -> Floats:
        """Estimate the children of one family.

        Parameters
        ----------
        data : FamilyData

        Returns
        -------
        float64 (C, s)
            Records of each child in each cell. They need be neither whole nor consistent: the nearest
            non-negative numbers that keep parent and constraints, by least squares, are taken, and rounded.

        Raises
        ------
        InfeasibleFamily
            If no solution satisfies the constraints.
        """
        ...
