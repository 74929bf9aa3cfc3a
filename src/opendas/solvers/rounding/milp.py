"""Rounding that is no flow, as a mixed-integer program by scipy's HiGHS; apart from all kernels.

Rows of passes that cross, and linear constraints with coefficients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy  # its optimize, a third of the time of all imports, loads when it is first named
import scipy.sparse as sp

from opendas.arrays import Floats, Ints
from opendas.arrays.kernels import mixed
from opendas.arrays.quiet import chatter_to_stderr
from opendas.errors import InfeasibleFamily, SolverFailure
from opendas.solvers.rounding import snapping
from opendas.solvers.rounding.kernels import broken_groups, broken_joint
from opendas.solvers.rounding.problem import RoundingNames, RoundingProblem, RoundingResult

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TIE_UNIT = np.float64(2.0**-40)
_FAR = 1 << 30
"""How far from its estimate a count of a root may be, where no parent limits it."""
Linear = tuple[Ints, Ints]
"""Coefficients (M, n), and what each child has at most (C, M)."""


def round_by_milp(
    problem: RoundingProblem, names: RoundingNames, linear: Linear | None = None
) -> RoundingResult:
    """Round a family whose rows need not be laminar, under linear constraints if there are any.

    With linear constraints a table of the whole numbers next to the estimate may not be there, though others
    are: of those the nearest is then taken.

    - `linear` (int64 (M, n), int64 (C, M)): coefficients of each cell, and what ``coefficients @ values`` is
      at most in each child.
    - Returns: rounded values with method ``"milp"``, and ``"milp, not next to the estimate"``.

    Notes
    -----
    Abowd et al. (2022), equation (7.7): binary y (whole y, where there is none). Ties are broken
    by a second program over the optima of the first, within half a quantum (2**-21 counts) and the solver's
    tolerance of 1e-6: below that the result may depend on the solver, which the flow never does.
    """
    child_words, cell_words = mixed(problem.child_keys), mixed(problem.cell_keys)
    status, base, part, need = snapping.snap(
        problem.x, problem.total, problem.has_total, problem.mask, child_words, cell_words
    )
    if status != snapping.DONE:
        raise ValueError(f"family {names.family}: the estimate does not fit its parent or mask")
    snapped = _Snapped(base, part, need, child_words, cell_words)
    if linear is None:
        return _rounded(problem, names, snapped, None, near=True)
    try:
        return _rounded(problem, names, snapped, linear, near=True)
    except InfeasibleFamily:
        return _rounded(problem, names, snapped, linear, near=False)


class _Snapped(NamedTuple):
    """Of :func:`opendas.solvers.rounding.snapping.snap`: whole and broken part, what columns lack; keys."""

    base: Ints
    part: Ints
    need: Ints
    child_words: NDArray[np.uint64]
    cell_words: NDArray[np.uint64]


def _rounded(
    problem: RoundingProblem, names: RoundingNames, snapped: _Snapped, linear: Linear | None, *, near: bool
) -> RoundingResult:
    """Round to the whole numbers next to the estimate, or to any."""
    base, part, need, child_words, cell_words = snapped
    open_ = problem.mask & ((need > 0) | (not problem.has_total)) if near else problem.mask
    child, cell = np.nonzero(open_)
    rules = _fixed_rules(problem, base, need, child, cell, near=near)
    if linear is not None:
        coefficients, at_most = linear
        rows = _spread(sp.csr_matrix(coefficients.astype(float)), problem, child, cell)
        most = (at_most - base @ coefficients.T).ravel().astype(float)
        rules.append((rows, np.full(len(most), -np.inf), most))
    lowest, highest = np.zeros(len(child)), np.ones(len(child))
    if not near:
        lowest = -base[child, cell].astype(float)
        whole = problem.total[cell] if problem.has_total else base[child, cell] + _FAR
        highest = (whole - base[child, cell]).astype(float)
    y = np.zeros(len(child))
    objective = []
    for k in range(problem.passes):
        query = _query(problem.maps[problem.map_pass == k])
        rows = _spread(query, problem, child, cell)
        target = (query @ part.T).T.ravel()
        cost = _tie_costs(
            query, problem, child_words, cell_words, rows, child, cell, last=k == problem.passes - 1
        )
        step = f"rounding, pass {k + 1} of {problem.passes}"
        y = _two_stages(rows, target / snapping.ONE, rules, cost, names, step, (lowest, highest))
        answer = rows @ y
        objective.append(float(np.abs(target - snapping.ONE * np.rint(answer)).sum()) / snapping.ONE)
        rules.append((rows, answer, answer))
    values: Ints = base.copy()
    values[child, cell] += y.astype(np.int64)
    off = problem.has_total and bool(np.any(values.sum(axis=0) != problem.total))
    off |= bool(np.any(broken_joint(values, problem.joint, problem.joint_total)))
    off |= linear is not None and breaks(values, linear)
    if off or np.any(broken_groups(values, problem.groups, problem.lower, problem.upper)):
        raise SolverFailure(names.family, "rounding by mixed-integer program", 1.0)
    return RoundingResult(values, tuple(objective), "milp" if near else "milp, not next to the estimate")


def breaks(values: Ints, linear: Linear) -> bool:
    """Return whether whole numbers, int64 (C, n), break a linear constraint."""
    coefficients, at_most = linear
    return bool(np.any(values @ coefficients.T > at_most))


def _query(maps: NDArray[np.int32]) -> Any:
    """All rows of a pass over the cells; a map named twice has its rows twice."""
    n = maps.shape[1]
    blocks = [sp.csr_matrix((0, n))]
    for rows in maps:
        inside = np.flatnonzero(rows >= 0)
        shape = (int(rows.max(initial=-1)) + 1, n)
        blocks.append(sp.csr_matrix((np.ones(len(inside)), (rows[inside], inside)), shape=shape))
    return sp.vstack(blocks, format="csr")


def _spread(query: Any, problem: RoundingProblem, child: NDArray[Any], cell: NDArray[Any]) -> Any:
    """The query in every child, over the variables."""
    children, n = problem.x.shape
    place = sp.csr_matrix(
        (np.ones(len(child)), (child * n + cell, np.arange(len(child)))), shape=(children * n, len(child))
    )
    return sp.csr_matrix(sp.kron(sp.eye(children), query) @ place)


def _fixed_rules(
    problem: RoundingProblem,
    base: NDArray[Any],
    need: NDArray[Any],
    child: NDArray[Any],
    cell: NDArray[Any],
    *,
    near: bool,
) -> list[tuple[Any, Any, Any]]:
    """Column sums, group bounds and joint totals, as (matrix, lower, upper)."""
    rules: list[tuple[Any, Any, Any]] = []
    n = problem.x.shape[1]
    if problem.has_total:
        pick = sp.csr_matrix((np.ones(len(cell)), (cell, np.arange(len(cell)))), shape=(n, len(cell)))
        rules.append((pick, need.astype(float), need.astype(float)))
    if len(problem.groups):
        rows = _spread(sp.csr_matrix(problem.groups.astype(float)), problem, child, cell)
        shift = (base @ problem.groups.T.astype(np.int64)).ravel()
        # Bounds beyond the number of cells are the same as none, and infinity would be refused with offsets.
        most = n if near else _FAR * n
        lower = np.maximum(problem.lower.ravel() - shift, -1 if near else -most).astype(float)
        upper = np.minimum(problem.upper.ravel() - shift, most + 1).astype(float)
        rules.append((rows, lower, upper))
    totals = len(problem.joint_total)
    if totals:
        inside = np.flatnonzero(problem.joint[child] >= 0)
        place = (problem.joint[child[inside]], inside)
        rows = sp.csr_matrix((np.ones(len(inside)), place), shape=(totals, len(child)))
        left = problem.joint_total.copy()
        np.subtract.at(left, problem.joint[problem.joint >= 0], base[problem.joint >= 0].sum(axis=1))
        rules.append((rows, left.astype(float), left.astype(float)))
    return rules


def _tie_costs(
    query: Any,
    problem: RoundingProblem,
    child_words: NDArray[np.uint64],
    cell_words: NDArray[np.uint64],
    rows: Any,
    child: NDArray[Any],
    cell: NDArray[Any],
    *,
    last: bool,
) -> Floats:
    """Tie cost of every variable in [0, 1): by cell in the last pass, by distinct row before."""
    if last:
        words: NDArray[np.uint64] = mixed(child_words[child] ^ cell_words[cell])
        return np.asarray((words >> snapping.TIE_SHIFT) * _TIE_UNIT, dtype=np.float64)
    sets = [tuple(query.indices[query.indptr[r] : query.indptr[r + 1]]) for r in range(query.shape[0])]
    first = {cells: r for r, cells in reversed(list(enumerate(sets)))}
    word = np.array([cell_words[list(cells)].sum(dtype=np.uint64) for cells in sets], dtype=np.uint64)
    used = np.array([first[cells] == r and len(cells) > 0 for r, cells in enumerate(sets)], dtype=bool)
    each = mixed((child_words[:, None] ^ word[None, :]).ravel()) >> snapping.TIE_SHIFT
    cost: Floats = rows.T @ (each * _TIE_UNIT * np.tile(used, len(problem.x)))
    return cost


def _two_stages(
    rows: Any,
    target: Floats,
    rules: list[tuple[Any, Any, Any]],
    tie: Floats,
    names: RoundingNames,
    step: str,
    limits: tuple[Floats, Floats],
) -> Floats:
    """Least distance first, then least tie cost among its optima.

    The distance of a row is straight between integers (docs/proofs/rounding.md, section 2): the answer is
    ``floor(target) - below + next + above`` with 0 <= next <= 1, which costs 1, 1 - 2 times the fraction,
    and 1. The relaxation then knows how far every answer must be.
    """
    size, m = len(tie), len(target)
    whole = np.floor(target)
    one = sp.eye(m)
    constraints = [
        scipy.optimize.LinearConstraint(sp.csc_matrix(sp.hstack([rows, one, -one, -one])), whole, whole)
    ]
    for matrix, lower, upper in rules:
        wide = sp.hstack([matrix, sp.csr_matrix((matrix.shape[0], 3 * m))])
        constraints.append(scipy.optimize.LinearConstraint(sp.csc_matrix(wide), lower, upper))
    distance = np.r_[np.zeros(size), np.ones(m), 1.0 - 2.0 * (target - whole), np.ones(m)]
    shared: dict[str, Any] = {
        "bounds": scipy.optimize.Bounds(
            np.r_[limits[0], np.zeros(3 * m)],
            np.r_[limits[1], np.full(m, np.inf), np.ones(m), np.full(m, np.inf)],
        ),
        "integrality": np.r_[np.ones(size), np.zeros(3 * m)],
        "options": {"mip_rel_gap": 0.0},
    }
    with chatter_to_stderr():
        found = scipy.optimize.milp(distance, constraints=constraints, **shared)
    if found.status == 2:
        raise InfeasibleFamily(names.family, step, (*names.joint, *names.groups))
    if found.x is None or found.status != 0:
        raise SolverFailure(names.family, step, 1.0)
    y = np.rint(found.x[:size])
    best = float((np.abs(target - rows @ y) - (target - whole)).sum())
    constraints.append(
        scipy.optimize.LinearConstraint(sp.csc_matrix(distance[None, :]), -np.inf, best + 0.5 / snapping.ONE)
    )
    with chatter_to_stderr():
        found = scipy.optimize.milp(np.r_[tie, np.zeros(3 * m)], constraints=constraints, **shared)
    if found.x is not None and found.status == 0:
        y = np.rint(found.x[:size])
    return y
