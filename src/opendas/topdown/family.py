"""Estimating one family: least squares in passes, then controlled rounding in passes.

A family is a parent, already fixed in integers, and its children; a root is a family without parent, and
roots that hold a total together are one.

Letters: ``C`` children, ``s`` support cells, ``K`` constraint groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from opendas.errors import InfeasibleFamily, SolverFailure
from opendas.measurement.family import FamilyMeasurement, QueryAnswers
from opendas.solvers.least_squares.solve import solve
from opendas.solvers.problem.curvature import Curvature, Terms
from opendas.solvers.problem.problem import FamilyProblem, Solution, Status
from opendas.topdown.checks import check_family
from opendas.topdown.conflicts import explained
from opendas.topdown.constraint_groups import Groups
from opendas.topdown.model import Family, FamilyEstimate, FamilyRecord, LevelRules
from opendas.topdown.rounding import round_estimate

__all__ = ["Progress", "accepted", "estimate_family", "estimate_with", "evenly", "family_problem"]


_LEAST_VARIANCE = 1e-6
"""Noise with less variance is zero but for a chance below 1e-6: its answers are exact, and larger weights
would only cost the solver digits."""
OWN_METHODS = ("pdas", "parent", "steps")


def _weight(query: QueryAnswers) -> float:
    return 1.0 / max(query.variance, _LEAST_VARIANCE)


@dataclass(slots=True)
class Progress:
    """How the least squares of a family went.

    Parameters
    ----------
    methods : list of str
        Of each pass.
    residual, tolerance : float
        See :class:`FamilyRecord`.
    fallback : bool
    """

    methods: list[str] = field(default_factory=list)
    residual: float = 0.0
    tolerance: float = 0.0
    fallback: bool = False

    def note(self, solution: Solution) -> None:
        """Enter the solution of one pass."""
        self.methods.append(solution.method)
        self.residual = max(self.residual, solution.residual)
        self.fallback |= solution.method not in OWN_METHODS


Fit = Callable[[Groups, Progress], npt.NDArray[np.float64]]
"""Least squares of a family: its constraint groups to a real estimate, float64 (C, s)."""


def _linear(answers: tuple[QueryAnswers, ...], children: int, cells: int) -> npt.NDArray[np.float64]:
    linear = np.zeros((children, cells))
    for query in answers:
        linear += (query.values * _weight(query))[:, query.compact]
    return linear


def _one_pass(
    family: Family,
    rules: LevelRules,
    answers: tuple[QueryAnswers, ...],
    precision: npt.NDArray[np.float64],
    groups: Groups,
    step: str,
) -> Solution:
    children, cells = groups.mask.shape
    terms = tuple((_weight(query), query.compact) for query in answers)
    if not np.all(precision == 1.0):
        # Per-child precision multiplies the whole objective of the child, the linear part included.
        precision = precision / precision.max()
    problem = family_problem(family, groups, terms, _linear(answers, children, cells), precision)
    return accepted(solve(problem), family, step)


def family_problem(
    family: Family,
    groups: Groups,
    terms: Terms,
    linear: npt.NDArray[np.float64],
    scale: npt.NDArray[np.float64],
    hessians: Curvature | None = None,
) -> FamilyProblem:
    """Return the least-squares problem of a family under its constraints."""
    return FamilyProblem(
        terms=terms,
        linear=linear,
        parent=None if family.parent is None else family.parent.astype(np.float64),
        mask=groups.mask,
        groups=groups.cells,
        lower=groups.lower,
        upper=groups.upper,
        scale=scale,
        group_names=groups.names,
        joint=None if groups.joint is None else groups.joint.group,
        joint_total=None if groups.joint is None else groups.joint.totals.astype(np.float64),
        joint_names=groups.joint_names,
        hessians=hessians,
    )


def accepted(solution: Solution, family: Family, step: str) -> Solution:
    """Return a certified solution, or raise.

    Raises
    ------
    InfeasibleFamily, SolverFailure
    """
    if solution.status is Status.INFEASIBLE:
        raise InfeasibleFamily(family.label, step, solution.constraints)
    if solution.status is not Status.OPTIMAL:
        raise SolverFailure(family.label, step, solution.residual)
    return solution


def _least_squares(
    family: Family, rules: LevelRules, measurement: FamilyMeasurement, groups: Groups, done: Progress
) -> npt.NDArray[np.float64]:
    """Run the passes of (7.5); earlier passes' answers are held within the optimum of (7.6) plus slack.

    The estimate of a pass satisfies its own constraints, so that the optimum of (7.6) is zero in exact
    arithmetic; what floating point leaves is measured and recorded, not assumed.
    """
    by_name = {query.name: query for query in measurement.queries}
    if not rules.least_squares:
        return evenly(family, groups, done)
    estimate = np.zeros(groups.mask.shape)
    held: list[tuple[QueryAnswers, npt.NDArray[np.float64]]] = []
    for number, names in enumerate(rules.least_squares):
        step = f"least squares, pass {number + 1} of {len(rules.least_squares)}"
        answers = tuple(by_name[name] for name in names)
        solution = _one_pass(family, rules, answers, measurement.precision, groups, step)
        estimate = solution.x
        done.note(solution)
        for query, kept in held:
            now = _answers(query, estimate)
            done.tolerance = max(done.tolerance, float(np.abs(now - kept).max(initial=0.0)))
        if number + 1 < len(rules.least_squares):
            for query in answers:
                kept = _answers(query, estimate)
                held.append((query, kept))
                groups = groups.hold(query.name, query.compact, kept, rules.slack)
    return estimate


def evenly(family: Family, groups: Groups, done: Progress) -> npt.NDArray[np.float64]:
    """Spread the parent over children of whom nothing was measured: the feasible point of least norm."""
    children, cells = groups.mask.shape
    each = np.arange(cells, dtype=np.int32)
    problem = family_problem(family, groups, ((1.0, each),), np.zeros((children, cells)), np.ones(children))
    solution = accepted(solve(problem), family, "without measurements")
    done.note(solution)
    return solution.x


def _answers(query: QueryAnswers, estimate: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    out = np.zeros((estimate.shape[0], len(query.rows)))
    np.add.at(out.T, query.compact, estimate.T)
    return out


def estimate_family(family: Family, rules: LevelRules, measurement: FamilyMeasurement) -> FamilyEstimate:
    """Estimate the children of one family in non-negative integers.

    Equations (7.1), (7.2), (7.5), (7.6) and (7.7) of the TopDown paper.

    Raises
    ------
    InfeasibleFamily
        If no non-negative solution satisfies the constraints; the error names them.
    SolverFailure
        If no solver reached a certified solution, or the integers break a constraint.
    """

    def fit(groups: Groups, done: Progress) -> npt.NDArray[np.float64]:
        return _least_squares(family, rules, measurement, groups, done)

    return estimate_with(family, rules, fit)


def estimate_with(family: Family, rules: LevelRules, fit: Fit) -> FamilyEstimate:
    """Estimate the children of one family by any least squares, then round and check.

    Families whose answer needs none (no cell, or an only child) are not fitted. One without a solution is
    told by its smallest contradiction.
    """
    try:
        return _estimate(family, rules, fit)
    except InfeasibleFamily as error:
        raise explained(family, rules, error) from error


def _estimate(family: Family, rules: LevelRules, fit: Fit) -> FamilyEstimate:
    children = len(family.tie_keys)
    groups = Groups.build(family.support, family.parent, family.constraints, rules, family.label)
    done = Progress()
    if len(family.support) == 0:
        counts = np.zeros((children, 0), dtype=np.int64)
        done.methods.append("fixed")
    elif children == 1 and family.parent is not None:
        counts = family.parent[None, :].copy()
        done.methods.append("fixed")
    else:
        estimate = fit(groups, done)
        counts = round_estimate(family, rules, groups, estimate)
    check_family(family, rules, counts)
    record = FamilyRecord(
        rules.geolevel,
        family.label,
        children,
        len(family.support),
        tuple(done.methods),
        done.residual,
        done.fallback,
        done.tolerance,
    )
    return FamilyEstimate(counts, record)
