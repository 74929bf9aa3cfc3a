"""Estimating one family: least squares in passes, then controlled rounding in passes.

A family is a parent, already fixed in integers, and its children; a root is a family without parent, and
roots that hold a total together are one.

Letters: ``C`` children, ``s`` support cells, ``K`` constraint groups.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from opendas.arrays import Bools, Floats, Ints
from opendas.constraints.conflicts import Atoms, Gathering, invariant_name
from opendas.constraints.table import JointTotal
from opendas.errors import (
    ConstraintConflict,
    EstimationError,
    HeldConstraint,
    InfeasibleFamily,
    SolverFailure,
)
from opendas.measurement.family import FamilyMeasurement, QueryAnswers
from opendas.solvers.inequalities import solve_under
from opendas.solvers.least_squares.solve import Metric, solve
from opendas.solvers.problem.curvature import Curvature, Terms
from opendas.solvers.problem.problem import FamilyProblem, Solution, Status
from opendas.topdown.checks import check_family
from opendas.topdown.constraint_groups import Groups
from opendas.topdown.family_data import Estimator, FamilyData, Information, LevelRules, Progress
from opendas.topdown.model import TOPDOWN, Family, FamilyEstimate, FamilyRecord
from opendas.topdown.rounding import round_estimate
from opendas.topdown.stages import FixedRows, MergedCells, without_decided

_LEAST_VARIANCE = 1e-6
"""Noise with less variance is zero but for a chance below 1e-6: its answers are exact, and larger weights
would only cost the solver digits."""


def _weight(query: QueryAnswers) -> float:
    return 1.0 / max(query.variance, _LEAST_VARIANCE)


def _linear(answers: tuple[QueryAnswers, ...], children: int, cells: int) -> Floats:
    linear = np.zeros((children, cells))
    for query in answers:
        linear += (query.values * _weight(query))[:, query.compact]
    return linear


def _one_pass(
    family: Family,
    rules: LevelRules,
    answers: tuple[QueryAnswers, ...],
    precision: Floats,
    groups: Groups,
    step: str,
) -> Solution:
    children, cells = groups.mask.shape
    terms = tuple((_weight(query), query.compact) for query in answers)
    if not np.all(precision == 1.0):
        # Per-child precision multiplies the whole objective of the child, the linear part included.
        precision = precision / precision.max()
    problem = family_problem(family, groups, terms, _linear(answers, children, cells), precision)
    return accepted(solved(problem, groups), family, step)


def solved(problem: FamilyProblem, groups: Groups, metric: Metric | None = None) -> Solution:
    """Return the solution of a family's problem, under its linear constraints where it has any."""
    linear = groups.linear
    if linear is None:
        return solve(problem, metric=metric)
    return solve_under(problem, linear.coefficients, linear.at_most, linear.names, metric=metric)


def family_problem(
    family: Family,
    groups: Groups,
    terms: Terms,
    linear: Floats,
    scale: Floats,
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
        fixed_rows=groups.fixed_rows,
        fixed=None if groups.fixed is None else groups.fixed.astype(np.float64),
    )


def accepted(solution: Solution, family: Family, step: str) -> Solution:
    """Return a certified solution, or raise."""
    if solution.status is Status.INFEASIBLE:
        raise InfeasibleFamily(family.label, step, solution.constraints)
    if solution.status is not Status.OPTIMAL:
        raise SolverFailure(family.label, step, solution.residual)
    return solution


def _least_squares(
    family: Family, rules: LevelRules, measurement: FamilyMeasurement, groups: Groups, done: Progress
) -> Floats:
    """Run the passes of (7.5); earlier passes' answers are held within the optimum of (7.6) plus slack.

    The estimate of a pass satisfies its own constraints, so that the optimum of (7.6) is zero in exact
    arithmetic; what floating point leaves is measured and recorded, not assumed.
    """
    by_name = {query.name: query for query in measurement.queries}
    if not rules.least_squares:
        return evenly(family, groups, done)
    estimate = np.zeros(groups.mask.shape)
    held: list[tuple[QueryAnswers, Floats]] = []
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


def evenly(family: Family, groups: Groups, done: Progress) -> Floats:
    """Spread the parent over children of whom nothing was measured: the feasible point of least norm."""
    return nearest_feasible(family, groups, np.zeros(groups.mask.shape), done, "without measurements")


def nearest_feasible(family: Family, groups: Groups, target: Floats, done: Progress, step: str) -> Floats:
    """Return the non-negative point nearest to a target, float64 (C, s), that satisfies the constraints."""
    children, cells = groups.mask.shape
    each = np.arange(cells, dtype=np.int32)
    problem = family_problem(family, groups, ((1.0, each),), target, np.ones(children))
    solution = accepted(solved(problem, groups), family, step)
    done.note(solution)
    return solution.x


def _answers(query: QueryAnswers, estimate: Floats) -> Floats:
    out = np.zeros((estimate.shape[0], len(query.rows)))
    np.add.at(out.T, query.compact, estimate.T)
    return out


class TopDown:
    """The least squares of the TopDown paper, in the passes of the run."""

    name = TOPDOWN

    def fit(self, data: FamilyData) -> Floats:
        """Fit a family in passes.

        Notes
        -----
        Abowd et al. (2022), equation (7.5).
        Abowd et al. (2022), equation (7.6).
        """
        return _least_squares(data.family, data.rules, data.measurement, data.groups, data.progress)


def estimate_family(
    family: Family,
    rules: LevelRules,
    measurement: FamilyMeasurement,
    information: Information | None = None,
) -> FamilyEstimate:
    """Estimate the children of one family in non-negative integers: fit, round, check.

    Families whose answer needs no fit (no cell, or an only child) have none. One without a solution is told
    by its smallest contradiction.

    Raises `InfeasibleFamily` if no non-negative solution satisfies the constraints; the error names them.
    Raises `SolverFailure` if no solver reached a certified solution, or the integers break a constraint.

    Notes
    -----
    Abowd et al. (2022), equation (7.7).
    """
    estimator = rules.estimator or TopDown()
    by_stages = rules.earlier or family.constraints.tied is not None
    try:
        if by_stages and len(family.support) and (len(family.tie_keys) > 1 or family.parent is None):
            return _by_stages(family, rules, measurement, estimator)
        return _at_once(family, rules, measurement, information, estimator)
    except InfeasibleFamily as error:
        raise explained(family, rules, error) from error
    except (EstimationError, ValueError) as error:
        # Beside tens of millions of records, a contradiction of a few is less than solvers can tell.
        conflict = family_conflict(family, rules)
        if conflict is None:
            raise
        raise InfeasibleFamily(family.label, "constraints", (), conflict) from error


def _by_stages(
    family: Family, rules: LevelRules, measurement: FamilyMeasurement, estimator: Estimator
) -> FamilyEstimate:
    """Fit and round stage by stage; the result of a stage is fixed for the next.

    An earlier stage works on merged cells, one for each row of its finest query group. Any result can be
    divided among the cells: no constraint distinguishes the cells of a row.
    """
    done = Progress()
    tied = family.constraints.tied
    fixed = None if tied is None else FixedRows.of_tie(tied, family)
    for number, stage in enumerate(rules.stages):
        here = replace(rules, least_squares=stage.least_squares, rounder=stage.rounder, earlier=())
        merges = number < len(rules.earlier)
        cells = MergedCells.by(stage, family.support) if merges else MergedCells.each(family.support)
        part, answers = cells.family(family), cells.answers(measurement)
        if number == 0:
            constraints = part.constraints.without_tied(rules.possible)
            groups = Groups.build(part.support, part.parent, constraints, rules, family.label)
            if fixed is not None:
                before = fixed.at(cells)
                groups = groups.with_partition(before.rows, before.counts)
            counts = _stage(FamilyData(part, here, answers, groups, done), estimator)
        elif fixed is not None:
            before = fixed.at(cells)
            counts = before.decided()
            open_ = before.undecided
            if open_.any():
                left = before.only(open_)
                undecided = FamilyData(
                    replace(part, support=part.support[open_], parent=_taken(part.parent, open_)),
                    here,
                    without_decided(answers, counts, open_),
                    Groups.of_partition(left.rows, left.counts),
                    done,
                )
                counts[:, open_] = _stage(undecided, estimator)
        fixed = FixedRows(cells.of_cell, counts)
    check_family(family, rules, counts)
    return FamilyEstimate(counts, _record(family, rules, done))


def _taken(parent: Ints | None, cells: Bools) -> Ints | None:
    return None if parent is None else parent[cells]


def _stage(data: FamilyData, estimator: Estimator) -> Ints:
    return round_estimate(data.family, data.rules, data.groups, estimator.fit(data))


def _at_once(
    family: Family,
    rules: LevelRules,
    measurement: FamilyMeasurement,
    information: Information | None,
    estimator: Estimator,
) -> FamilyEstimate:
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
        counts = _stage(FamilyData(family, rules, measurement, groups, done, information), estimator)
    check_family(family, rules, counts)
    return FamilyEstimate(counts, _record(family, rules, done))


def _record(family: Family, rules: LevelRules, done: Progress) -> FamilyRecord:
    return FamilyRecord(
        rules.geolevel,
        family.label,
        len(family.tie_keys),
        len(family.support),
        tuple(done.methods),
        done.residual,
        done.fallback,
        done.tolerance,
    )


# Why a family has no solution: the smallest set of constraints that its parent and its children cannot keep.
# The parent's counts are estimates by then, so that whatever is named here may be published.


WIDEST = 60_000
"""Children times groups of cells of a family that is taken apart."""
_ROOT_ADVICE = (
    "Check the frame, and the invariants and bounds of this geolevel. The failsafe does not help here, "
    "because this family has no parent."
)


def explained(family: Family, rules: LevelRules, error: InfeasibleFamily) -> InfeasibleFamily:
    """Return the error with the smallest contradiction of the family and its values, if one is proved."""
    conflict = family_conflict(family, rules)
    if family.parent is None:
        named = error.constraints if conflict is None else ()
        return InfeasibleFamily(error.family, error.step, named, conflict, _ROOT_ADVICE)
    return error if conflict is None else InfeasibleFamily(error.family, error.step, (), conflict)


def family_conflict(family: Family, rules: LevelRules) -> ConstraintConflict | None:
    """Return the smallest set of constraints of a family that no counts keep, or None.

    Returns: None also for a family of more than :data:`WIDEST` children times groups of cells.
    """
    held = family.constraints
    maps = [*rules.bound_cells, rules.possible, *(one.query.row_of_cell for one in held.invariants)]
    maps += [] if held.linear is None else list(held.linear.coefficients)
    atoms = Atoms.of(maps, len(rules.possible))
    children, a = len(family.tie_keys), len(atoms)
    if children * a > WIDEST:
        return None
    gathered = Gathering(children * a)
    sets = [
        (name, np.flatnonzero(inside))
        for name, inside in zip(rules.bound_names, atoms.sets(rules.bound_cells), strict=True)
    ]
    bounds = len(sets)
    for invariant in held.invariants:
        rows = atoms.rows(invariant.query)
        sets += [
            (
                invariant_name(invariant.name, invariant.query, row).removeprefix("invariant "),
                rows.indices[rows.indptr[row] : rows.indptr[row + 1]],
            )
            for row in range(invariant.query.size)
        ]
    if family.parent is not None:
        _add_parent(gathered, family, atoms, sets)
    for child in range(children):
        where = _in_words(family, rules.geolevel, [child])
        answers = np.concatenate([one.answers[child] for one in held.invariants] or [np.zeros(0, np.int64)])
        for (name, inside), value in zip(sets[bounds:], answers.tolist(), strict=True):
            gathered.add(HeldConstraint(where, f"invariant {name}", "=", value), child * a + inside)
        for k, (name, inside) in enumerate(sets[:bounds]):
            low, high = int(held.lower[child, k]), int(held.upper[child, k])
            if low > 0:
                gathered.add(HeldConstraint(where, f"lower bound of {name}", ">=", low), child * a + inside)
            gathered.add(HeldConstraint(where, f"upper bound of {name}", "<=", high), child * a + inside)
        if held.linear is not None:
            gathered.add_linear(held.linear.on(atoms.first), child, where, np.array([[child * a]]))
    if held.joint is not None:
        _add_joint(gathered, family, held.joint, rules.geolevel, a)
    impossible = np.flatnonzero(~rules.possible[atoms.first])
    if len(impossible):
        columns = (np.arange(children)[:, None] * a + impossible).ravel()
        gathered.add(HeldConstraint("", "structural zeros", "=", 0), columns)
    return gathered.conflict()


def _in_words(family: Family, geolevel: str, children: list[int]) -> str:
    """Return some children in words: by geocode where it is known, else by place in the family."""
    shown = children[:3]
    if family.geocodes is None:
        names = ", ".join(f"child {child + 1}" for child in shown)
    else:
        codes = (bytes(family.geocodes[child]).decode("utf-8", "replace") for child in shown)
        names = f"{geolevel} {', '.join(codes)}"
    more = f" and {len(children) - len(shown)} more" if len(children) > len(shown) else ""
    return f"{names}{more}{' together' if len(children) > 1 else ''}"


def _add_parent(gathered: Gathering, family: Family, atoms: Atoms, sets: list[tuple[str, Ints]]) -> None:
    """Add the parent's counts: in all, in each set that is constrained, and in each group of cells."""
    counts = np.zeros(len(atoms), dtype=np.int64)
    if family.parent is not None:
        np.add.at(counts, atoms.of_cell[family.support], family.parent)
    where = f"parent {family.label}"
    steps = np.arange(len(family.tie_keys))[:, None] * len(atoms)
    known: set[bytes] = set()
    every = np.arange(len(atoms))
    singles = [
        (
            "estimate of cells in " + (" and ".join(n for n, s in sets if atom in s) or "no set") + " only",
            [atom],
        )
        for atom in every.tolist()
    ]
    named = [("estimate in all", every), *((f"estimate of {name}", inside) for name, inside in sets)]
    for name, inside in [*named, *singles]:
        chosen = np.sort(np.asarray(inside, dtype=np.int64))
        if chosen.tobytes() not in known:
            known.add(chosen.tobytes())
            held = HeldConstraint(where, name, "=", int(counts[chosen].sum()))
            gathered.add(held, (steps + chosen).ravel())


def _add_joint(gathered: Gathering, family: Family, joint: JointTotal, geolevel: str, atoms: int) -> None:
    """Add totals that several children hold together."""
    for s, total in enumerate(joint.totals.tolist()):
        parts = np.flatnonzero(joint.group == s)
        where = _in_words(family, geolevel, parts.tolist())
        columns = (parts[:, None] * atoms + np.arange(atoms)).ravel()
        gathered.add(HeldConstraint(where, f"invariant {joint.name}", "=", total), columns)
