"""Solve a family: one ladder of four steps, every answer certified.

1. The primal-dual active set, from the projected unconstrained optimum; again with proximal steps, where a
   Hessian is singular or definite by little.
2. Clarabel, an interior point.
3. Clarabel again, for what is left to its first point, magnified.
4. A proof that the constraints contradict each other.

Cells of large families that nothing distinguishes are merged before. Fixed sums of detailed cells are
projected onto first, by :mod:`opendas.solvers.least_squares.transport`; the ladder follows where that is not
certified.

A step down is decided by sizes, iterations and residuals only, never by clock or memory, so the same problem
takes the same way on every machine. Hessians too large to be written out are only multiplied with, by
:mod:`opendas.solvers.least_squares.steps` in place of steps 1 to 3. Families of many cells, or with fixed
answers, whose queries are nested but for a few rows are first given to
:mod:`opendas.solvers.least_squares.structured`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from opendas.arrays import Floats
from opendas.solvers.least_squares.clarabel import program, solve_program
from opendas.solvers.least_squares.direct import LARGE, Direct, solve_direct
from opendas.solvers.least_squares.paired import PairedCurvature
from opendas.solvers.least_squares.primal_dual_active_set import INFEASIBLE, OK
from opendas.solvers.least_squares.reduce import SAME
from opendas.solvers.least_squares.steps import solve_by_steps
from opendas.solvers.least_squares.structured import find_structure, solve_structured
from opendas.solvers.least_squares.transport import project_transport
from opendas.solvers.problem.certificate import Multipliers, certify, gradients
from opendas.solvers.problem.conflict import conflict
from opendas.solvers.problem.partition import as_fixed_rows, as_groups, fixed_contradiction
from opendas.solvers.problem.problem import GENERAL_SOLVER, ConstraintRow, FamilyProblem, Solution, Status

logger = logging.getLogger(__name__)

LIMIT = 300
"""Most iterations of the active set, at the first try."""
PRECISION = 1e-9
"""Wrong signs smaller than this, relative to max(1, max parent), are rounding."""
SHARED = ((LIMIT, PRECISION, None), (2000, 1e-8, 1e-3), (2000, 1e-8, 1e-6))
"""Tries of the active set with one Hessian: most iterations, precision, ridge of the proximal steps."""
APART = ((LIMIT, PRECISION, None), (2000, PRECISION, 1e-4), *SHARED[1:])
"""Likewise with a Hessian for each child, of which nothing says before whether it is singular."""
WRITTEN = 40_000_000
"""Entries of the children's own Hessians, on the cells of the parent, up to which they are written out."""
ROUNDS = 3
"""Most corrections of an interior point."""
NEARLY = 1e-3
"""Residual from which an interior point is worth a correction."""
GENERAL = 4_000_000
"""Likewise, on all cells, up to which Clarabel gets them."""
FIXED = 200
"""Cells from which a family with fixed rows is solved by its structure."""
COSTLY = 50_000
"""Cost of the ladder from which that is so: cells squared by children, and 20 for each fixed row and cell."""
MANY = 2_017
"""Likewise without fixed rows."""
WRITABLE = 20_000
"""Children times cells up to which a family goes on to the ladder, where its structure did not solve it."""


Metric = Callable[[FamilyProblem], FamilyProblem]
"""Gives a problem the terms and scale of a metric near its Hessians."""


def solve(
    problem: FamilyProblem,
    *,
    tolerance: float = 1e-7,
    metric: Metric | None = None,
) -> Solution:
    """Solve one family.

    - `tolerance`: largest relative Karush-Kuhn-Tucker residual of an answer that counts as optimal.
    - `metric`: asked where it is wanted: few families need it.
    - Returns: ``OPTIMAL`` with a certified residual; ``INFEASIBLE`` with rows in conflict; or ``FAILED``.

    Notes
    -----
    Abowd et al. (2022), equation (7.1).
    Abowd et al. (2022), equation (7.2).
    Abowd et al. (2022), equation (7.5).
    """
    if problem.fixed_rows is not None:
        return _with_fixed_rows(problem, tolerance, metric)
    if problem.parent is not None and problem.children == 1:
        return _only_child(problem, problem.parent, tolerance)
    if problem.cells >= MANY and problem.parent is not None:
        merged = _by_merged_cells(problem, tolerance)
        if merged is not None:
            return merged
    answer = _by_structure(problem, tolerance) if problem.cells >= MANY else None
    if answer is not None:
        if answer.status is Status.OPTIMAL:
            return answer
        # Only now at a root: there the structure's answer, where it has one, is spread in its own way.
        merged = None if problem.parent is not None else _by_merged_cells(problem, tolerance)
        if merged is not None:
            return merged
        if problem.linear.size > WRITABLE:
            return _contradiction(problem, tolerance, answer)
    if _too_large(problem):
        stepped = solve_by_steps(problem if metric is None else metric(problem), tolerance)
        answer = _certified(problem, stepped, tolerance, "steps")
        return answer if answer.status is Status.OPTIMAL else _contradiction(problem, tolerance, answer)
    tries: tuple[tuple[int, float, float | None], ...] = SHARED if problem.hessians is None else APART
    if problem.parent is None and problem.joint is not None and problem.cells >= LARGE:
        tries = tries[:1]  # proximal steps on the written matrix of such roots would take minutes
    best = _certified(problem, None, tolerance, "pdas")
    for number, settings in enumerate(tries):
        found = solve_direct(problem, *settings)
        answer = _certified(problem, found, tolerance, "pdas")
        if answer.status is Status.OPTIMAL:
            return answer
        best = _closer_solution(best, answer)
        logger.info("residual %.1e after the active set with ridge %s", best.residual, settings[2])
        if number == 0 and found.status == INFEASIBLE:
            best = _contradiction(problem, tolerance, best)
            if best.status is Status.INFEASIBLE:
                return best
    if problem.hessians is None or problem.children * problem.cells**2 <= GENERAL:
        best = _by_interior_point(problem, tolerance, best)
    return best if best.status is Status.OPTIMAL else _contradiction(problem, tolerance, best)


def _with_fixed_rows(problem: FamilyProblem, tolerance: float, metric: Metric | None) -> Solution:
    """Project detailed cells, or solve with the fixed rows as groups, unless one of them cannot be kept."""
    rows = fixed_contradiction(problem, tolerance)
    if rows:
        return Solution(np.zeros(problem.linear.shape), Status.INFEASIBLE, np.inf, 0, "fixed", rows)
    if problem.parent is not None and problem.children == 1:  # it has the parent's sums, as was just checked
        return solve(replace(problem, fixed_rows=None, fixed=None), tolerance=tolerance, metric=metric)
    projected = _projected(problem, tolerance)
    if projected is not None:
        return projected
    n, C, R = problem.cells, problem.children, 0 if problem.fixed is None else problem.fixed.shape[1]
    large = n >= FIXED and n * n / C + 20 * R * n >= COSTLY
    answer = _by_structure(problem, tolerance) if large else None
    if answer is not None and (answer.status is Status.OPTIMAL or problem.linear.size > WRITABLE):
        return (
            answer if answer.status is Status.OPTIMAL else _contradiction_of_a_row(problem, tolerance, answer)
        )
    stated, row_of_group = as_groups(problem)
    answer = solve(stated, tolerance=tolerance, metric=metric)
    own = len(problem.groups)
    names = problem.group_names or own * ("",)

    def named(row: ConstraintRow) -> ConstraintRow:
        if row.kind not in ("lower", "upper"):
            return row
        if row.index < own:
            return replace(row, name=names[row.index])
        return ConstraintRow("fixed", row.child, int(row_of_group[row.index - own]))

    return replace(answer, conflict=tuple(dict.fromkeys(map(named, answer.conflict))))


def _projected(problem: FamilyProblem, tolerance: float) -> Solution | None:
    """Return the certified projection onto the fixed sums where every query is detailed, or None.

    Groups and joint totals take no part in it: where they bind, the certificate refuses.
    """
    detailed = all(len(np.unique(rows)) == problem.cells for _, rows in problem.terms)
    if not detailed or not problem.terms or problem.hessians is not None:
        return None
    found = project_transport(problem)
    none = np.zeros(problem.lower.shape)
    multipliers = Multipliers(found.parent, none, np.zeros(len(problem.joint_rows[1])))
    residual = certify(problem, found.x, multipliers, found.fixed)
    if residual <= tolerance:
        return Solution(found.x, Status.OPTIMAL, residual, 0, "transport")
    logger.info("residual %.1e after the projection onto the fixed sums", residual)
    return None


def _by_merged_cells(problem: FamilyProblem, tolerance: float) -> Solution | None:
    """Solve with one cell for all that nothing distinguishes, and spread its counts as the parent's.

    At a root they are spread evenly. None where that leaves more than half of the cells, or finds no
    solution. A pass on a total has one cell.

    Notes
    -----
    With the multipliers of the merged cell for each of its cells, no term of the residual grows in counts:
    gradients are the same, and counts a part.
    """
    parent, n = problem.parent, problem.cells
    if problem.hessians is not None:
        return None
    maps = [rows for _, rows in problem.terms]
    if not maps or 2 * max(int(rows.max(initial=-1)) + 1 for rows in maps) > n:
        return None
    cell = np.zeros(n, np.int64)
    for rows in (*maps, *problem.groups, *problem.mask[~problem.mask.all(axis=1)]):
        cell = np.unique(cell * (int(rows.max()) + 1) + rows, return_inverse=True)[1]
    first = np.unique(cell, return_index=True)[1]
    linear = problem.linear[:, first]
    apart = np.abs(problem.linear - linear[:, cell]).max(initial=0.0)
    if 2 * len(first) > n or apart > SAME * np.abs(linear).max(initial=0.0):
        return None
    parts = np.ones(n) if parent is None else parent
    sums = np.bincount(cell, parts).astype(np.float64)
    merged = replace(
        problem,
        terms=tuple((weight, rows[first]) for weight, rows in problem.terms),
        linear=linear,
        parent=None if parent is None else sums,
        mask=problem.mask[:, first],
        groups=problem.groups[:, first],
    )
    found = solve(merged, tolerance=tolerance * problem.top / merged.top)
    if found.status is not Status.OPTIMAL:
        return None
    x = found.x[:, cell] * (parts / np.where(sums > 0.0, sums, 1.0)[cell])
    residual = found.residual * merged.magnitude(found.x) / problem.magnitude(x)
    return replace(found, x=x, residual=residual) if residual <= tolerance else None


def _by_structure(problem: FamilyProblem, tolerance: float) -> Solution | None:
    """The answer of the structure, or None where there is none."""
    problem = as_fixed_rows(problem)
    layout = find_structure(problem)
    return None if layout is None else solve_structured(problem, tolerance, layout)


def _too_large(problem: FamilyProblem) -> bool:
    """Whether the active set cannot have every entry that it asks for."""
    if problem.hessians is None or isinstance(problem.hessians, PairedCurvature):
        return False
    cells = problem.cells if problem.parent is None else int(np.count_nonzero(problem.parent))
    return problem.children * cells**2 > WRITTEN


def _certified(problem: FamilyProblem, found: Direct | None, tolerance: float, method: str) -> Solution:
    """What was found, with its residual."""
    if found is None or found.status != OK:
        return Solution(np.zeros(problem.linear.shape), Status.FAILED, np.inf, 0, method)
    residual = certify(problem, found.x, found.multipliers)
    status = Status.OPTIMAL if residual <= tolerance else Status.FAILED
    return Solution(found.x, status, residual, found.iterations, method)


def _closer_solution(one: Solution, other: Solution) -> Solution:
    return other if other.residual < one.residual else one


def _by_interior_point(problem: FamilyProblem, tolerance: float, best: Solution) -> Solution:
    """Clarabel's point; and if a few digits are missing, corrected by Clarabel's answer to what is left."""
    logger.info("residual %.1e after the active set; trying Clarabel", best.residual)
    qp = program(problem)
    near, least, left = None, np.inf, 1.0
    once, again = GENERAL_SOLVER
    for method in (once, *ROUNDS * (again,)):
        raw = solve_program(qp, problem.linear.shape, near=near, magnified=1.0 / left)
        if raw.status is Status.INFEASIBLE or raw.y is None or raw.rows is None:
            break
        found = Direct(OK, raw.iterations, raw.x, qp.multipliers(raw.rows, problem))
        answer = _certified(problem, found, tolerance, method)
        best, left = _closer_solution(best, answer), answer.residual
        if best.status is Status.OPTIMAL or not left < NEARLY:
            break
        if left < least:
            near, least = raw.y, left
    return best


def _contradiction(problem: FamilyProblem, tolerance: float, best: Solution) -> Solution:
    """Infeasible with the rows in conflict, where there is a conflict; else the best that was found."""
    rows = conflict(problem, tolerance=tolerance)
    return replace(best, status=Status.INFEASIBLE, conflict=rows) if rows else best


def _contradiction_of_a_row(problem: FamilyProblem, tolerance: float, best: Solution) -> Solution:
    """Likewise for a parent with fixed rows and neither groups nor joint totals, one fixed row at a time.

    Nothing ties the cells of different fixed rows, and a row whose cells are open to all children, in which
    the sums add up to the parent, is a transportation problem without closed cells: it has a solution.
    """
    rows, fixed, parent = problem.fixed_rows, problem.fixed, problem.parent
    if rows is None or fixed is None or parent is None:
        return best
    for r in np.unique(rows[~problem.mask.all(axis=0)]).tolist():
        cells = np.flatnonzero(rows == r)
        alone = FamilyProblem(
            terms=((1.0, np.arange(len(cells), dtype=np.int32)),),
            linear=np.zeros((problem.children, len(cells))),
            parent=parent[cells],
            mask=problem.mask[:, cells],
            fixed_rows=np.zeros(len(cells), np.int32),
            fixed=fixed[:, [r]],
        )
        found = conflict(as_groups(alone)[0], tolerance=tolerance)
        if found:
            named = (
                ConstraintRow("parent", -1, int(cells[row.index]))
                if row.kind == "parent"
                else ConstraintRow("fixed", row.child, r)
                for row in found
            )
            return replace(best, status=Status.INFEASIBLE, conflict=tuple(dict.fromkeys(named)))
    return best


def _only_child(problem: FamilyProblem, parent: Floats, tolerance: float) -> Solution:
    """A single child is its parent, and the parent's row carries the whole gradient."""
    x = np.where(problem.mask, parent, 0.0)
    mu = -gradients(problem, x)[0]
    none = np.zeros(problem.lower.shape)
    residual = certify(problem, x, Multipliers(mu, none, np.zeros(len(problem.joint_rows[1]))))
    if residual <= tolerance:
        return Solution(x, Status.OPTIMAL, residual, 0, "parent")
    best = Solution(x, Status.INFEASIBLE, residual, 0, "parent")
    return _contradiction(problem, tolerance, best)
