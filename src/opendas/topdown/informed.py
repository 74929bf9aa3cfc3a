"""Estimating one family from what all measurements below its children say about them.

Given its parent, a child is no longer touched by what was measured beside or above it: only its own
measurements and those of its subtree are left. Least squares over that subtree turns them into one quadratic
function of the child's cells, ``1/2 x'P x - b'x``, which takes the place of the child's own measurements. The
parent, the constraints and the rounding are those of plain TopDown.

Letters: ``C`` children, ``s`` support cells, ``n`` cells, ``q`` query groups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from opendas.arrays import Floats
from opendas.solvers.least_squares.solve import solve
from opendas.solvers.problem.curvature import Curvature
from opendas.solvers.problem.problem import FamilyProblem
from opendas.solvers.rows import without_gaps
from opendas.topdown.constraint_groups import Groups
from opendas.topdown.family import (
    Progress,
    accepted,
    estimate_with,
    evenly,
    family_problem,
)
from opendas.topdown.model import Family, FamilyEstimate, LevelRules

__all__ = ["Information", "Precision", "estimate_informed"]


LEAST_SHARE = 1e-3
"""A child's weight of a query group enters the shared metric as no less than this part of the mean."""


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
    """What is known of consecutive geounits of one geolevel, for instance of the children of one family.

    Parameters
    ----------
    first : int
        Index of the first geounit in its level.
    linear : float64 (C, n)
        ``b``, zero outside the cells that a geounit may use.
    weights : float64 (C, q)
        About what measurements of each query group alone would say as much: a metric for the solver that
        has no part in the answer.
    rows : tuple of int32 (n,)
        Row of each cell, for these query groups.
    """

    first: int
    precision: Precision
    linear: Floats
    weights: Floats
    rows: tuple[npt.NDArray[np.int32], ...]

    def of(self, first: int, children: int) -> Information:
        """Return what is known of geounits ``first:first + children`` of the level."""
        here = slice(first - self.first, first - self.first + children)
        return Information(first, self.precision.take(here), self.linear[here], self.weights[here], self.rows)


def estimate_informed(family: Family, rules: LevelRules, known: Information) -> FamilyEstimate:
    """Estimate the children of one family in non-negative integers, all query groups at once.

    As (7.1) and (7.2), with the children's measurements replaced by all that is known in their subtrees; then
    (7.7).

    Raises
    ------
    InfeasibleFamily
        If no non-negative solution satisfies the constraints; the error names them.
    SolverFailure
        If no solver reached a certified solution, or the integers break a constraint.
    """

    def fit(groups: Groups, done: Progress) -> Floats:
        support = family.support
        if not known.weights.any():
            return evenly(family, groups, done)
        linear = np.ascontiguousarray(known.linear[:, support])
        problem = family_problem(
            family, groups, (), linear, np.ones(len(linear)), known.precision.on_support(support)
        )
        solution = accepted(solve(problem, metric=partial(_near, known, support)), family, "least squares")
        done.note(solution)
        return solution.x

    return estimate_with(family, rules, fit)


def _near(known: Information, support: npt.NDArray[np.int32], problem: FamilyProblem) -> FamilyProblem:
    """Return the problem with weights that all children share, and each child's multiple, for its metric.

    In the geometric mean over query groups, a child's multiple of the shared weights is that of its own.
    """
    mean = known.weights.mean(axis=0)
    used = np.flatnonzero(mean > 0.0)
    relative = np.maximum(known.weights[:, used] / mean[used], LEAST_SHARE)
    scale = np.exp(np.log(relative).mean(axis=1))
    terms = tuple((float(mean[q]), without_gaps(known.rows[q][support])) for q in used)
    return replace(problem, terms=terms, scale=scale)
