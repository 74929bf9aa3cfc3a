"""Why constraints on counts cannot hold together: sets of them that contradict each other.

For constraints on whole numbers the smallest such set is found; for a family in least squares, which allows
real numbers too, a set that needs each of its rows.

Constraints on counts are ranges ``lower <= A x <= upper`` on sums of non-negative integers. Floating point
decides neither way: integers that keep all constraints are checked in exact arithmetic, and so is the Farkas
certificate of a contradiction. Where real numbers could keep the constraints and only whole ones cannot, the
answer of branch and bound is accepted, for counts that it represents with room to spare.

The smallest set is found by implicit hitting sets: every set of constraints that can hold leaves out at least
one constraint of each contradiction. So a smallest set that meets all the left-out sets, and contradicts
itself, is a smallest contradiction (A. Ignatiev, A. Previti, M. Liffiton, J. Marques-Silva, "Smallest MUS
extraction with minimal hitting set dualization", CP 2015).

There is no limit of time: the result does not depend on the machine's load.

Letters: ``m`` constraints, ``v`` variables.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import scipy  # its optimize, a third of the time of all imports, loads when it is first named
from scipy import sparse

from opendas.arrays import Bools, Floats, Ints
from opendas.arrays.quiet import chatter_to_stderr
from opendas.errors import EstimationError
from opendas.solvers.problem.problem import ConstraintRow, FamilyProblem

NO_LIMIT = 1 << 61
"""An upper bound from here on is none."""

MOST_STEPS = 200
"""Rounds of the search for a smallest set; then an irreducible one is reported."""
MOST_ROWS = 2_000
"""The search for a smallest set looks at so many constraints, the deletion filter at a fifth of them: a set
that is larger may have a constraint too many."""
MOST_NODES = 2_000
"""Nodes of branch and bound in one question; a question that is not answered then counts as "can hold"."""
NEAR = 1 << 20
"""Counts below it need no point to be taken from."""
SHARES = 1_000
"""Sum of the multipliers of a contradiction before they are made whole."""
EASY = 1 << 31
"""Below it, the tolerance of branch and bound (1e-6) is far from what a count can be off by."""


@dataclass(frozen=True, slots=True, eq=False)
class RangeSystem:
    """Constraints ``lower <= A x <= upper`` on non-negative integers ``x``."""

    matrix: sparse.csr_array  # (m, v)
    # lower, upper (m,): ``lower = 0`` says nothing where the row of `matrix` is not negative; ``upper >=
    # NO_LIMIT`` is none, and so is ``lower <= -NO_LIMIT``.
    lower: Ints
    upper: Ints

    def __post_init__(self) -> None:
        if self.matrix.shape[0] != len(self.lower) or len(self.lower) != len(self.upper):
            raise ValueError("a system of ranges has one lower and one upper bound a row")

    def __len__(self) -> int:
        return len(self.lower)

    def take(self, rows: Ints) -> RangeSystem:
        """Return some of the constraints, on the variables that they touch."""
        part = sparse.csr_array(self.matrix[rows])
        return RangeSystem(
            sparse.csr_array(part[:, np.unique(part.indices)]), self.lower[rows], self.upper[rows]
        )

    def kept(self, x: Ints) -> Bools:
        """Return which constraints integers keep, bool (m,), exactly."""
        sums = self.matrix @ x
        return np.asarray((sums >= self.lower) & ((sums <= self.upper) | (self.upper >= NO_LIMIT)))


@dataclass(frozen=True, slots=True)
class Conflict:
    """Constraints that cannot hold together."""

    rows: tuple[int, ...]  # ascending
    smallest: bool  # no conflict of the system has fewer constraints: proved
    irreducible: bool  # without any one of them the others can hold
    # least, most: where it is that simple: together they ask for at least so many counts, and leave room for
    # at most so many.
    least: int | None = None
    most: int | None = None


def can_hold(system: RangeSystem) -> bool:
    """Return whether non-negative integers keep all constraints; true also where it could not be decided."""
    state, x = _search(system)
    if state == "found" and system.kept(x).all():
        return True
    if _proved(system)[0]:
        return False
    return not (state == "none" and _largest(system) < EASY)


def _largest(system: RangeSystem) -> int:
    finite = system.upper[system.upper < NO_LIMIT]
    return max(int(system.lower.max(initial=0)), int(finite.max(initial=0)))


def find_conflict(system: RangeSystem) -> Conflict | None:
    """Return the smallest set of constraints that cannot hold together, or None if all can.

    - `system`: of several smallest sets one with earlier constraints is preferred.
    - Returns: None also where a contradiction is likely but could not be proved.
    """
    alone = _contradicts_itself(system)
    if alone is not None:
        return _described(system, np.array([alone]), smallest=True, irreducible=True)
    if can_hold(system):
        return None
    found = _farkas_support(system)
    if found is None:
        found = np.arange(len(system))
    irreducible = len(found) <= MOST_ROWS // 5
    if irreducible:
        found = _filtered(system, found)
    smallest = irreducible and len(found) == 2  # single constraints were examined before
    if irreducible and len(system) <= MOST_ROWS:
        better = _smallest(system, found)
        smallest |= better is not None
        found = found if better is None else better
    return _described(system, found, smallest=smallest, irreducible=irreducible)


def _contradicts_itself(system: RangeSystem) -> int | None:
    """Return the first constraint that contradicts itself, or non-negativity."""
    signs = system.matrix.sign()
    positive = np.asarray((signs > 0).sum(axis=1)).ravel() > 0
    negative = np.asarray((signs < 0).sum(axis=1)).ravel() > 0
    wrong = system.lower > system.upper
    wrong |= (system.lower > 0) & ~positive
    wrong |= (system.upper < 0) & ~negative
    return int(wrong.argmax()) if wrong.any() else None


def _search(system: RangeSystem, soft: Ints | None = None) -> tuple[str, Ints]:
    """Look for integers that keep all constraints but the soft ones, and those as nearly as possible.

    - Returns: ``"found"``, ``"none"`` or ``"unknown"``.
    - Returns (v,): what was found.
    """
    rows, width = system.matrix.shape
    soft = np.zeros(0, np.int64) if soft is None else soft
    count = len(soft)
    if width == 0 or rows == 0:
        hard = np.setdiff1d(np.arange(rows), soft)
        good = bool(system.kept(np.zeros(width, np.int64))[hard].all())
        return ("found" if good else "none"), np.zeros(width, np.int64)
    matrix: Any = system.matrix.astype(np.float64)
    if count:
        ones, place = np.ones(count), (soft, np.arange(count))
        give: Any = sparse.csr_array((ones, place), shape=(rows, count))
        matrix = sparse.hstack([matrix, give, -give], format="csr")
    lower = np.where(system.lower <= -NO_LIMIT, -np.inf, system.lower.astype(np.float64))
    upper = np.where(system.upper >= NO_LIMIT, np.inf, system.upper.astype(np.float64))
    cost = np.concatenate([np.zeros(width), np.ones(2 * count)])
    with chatter_to_stderr():
        answer = scipy.optimize.milp(
            cost,
            constraints=scipy.optimize.LinearConstraint(matrix, lower, upper),
            bounds=scipy.optimize.Bounds(0.0, np.inf),
            integrality=np.repeat([1, 0], [width, 2 * count]),
            options={"node_limit": MOST_NODES, "mip_rel_gap": 0.0},
        )
    if answer.x is not None:
        return "found", np.rint(answer.x[:width]).astype(np.int64)
    return ("none" if answer.status == 2 else "unknown"), np.zeros(width, np.int64)


def _filtered(system: RangeSystem, rows: Ints) -> Ints:
    """Delete each constraint without which the others still contradict each other."""
    for row in rows[::-1].tolist():
        rest = rows[rows != row]
        if not can_hold(system.take(rest)):
            rows = rest
    return rows


def _grown(system: RangeSystem, rows: Ints) -> Bools | None:
    """Return constraints that can hold together, bool (m,), the given ones among them; None if unknown."""
    soft = np.setdiff1d(np.arange(len(system)), rows)
    state, x = _search(system, soft)
    kept = system.kept(x)
    if state != "found" or not kept[rows].all():
        return None
    for row in np.flatnonzero(~kept)[:20].tolist():
        trial = kept.copy()
        trial[row] = True
        state, x = _search(system, np.flatnonzero(~trial))
        now = system.kept(x)
        if state == "found" and now[trial].all():
            kept = now
    return kept


def _smallest(system: RangeSystem, known: Ints) -> Ints | None:
    """Return a smallest contradiction, or None where the search gave up."""
    m = len(system)
    left_out: list[Ints] = []
    for row in known.tolist():
        kept = _grown(system, known[known != row])
        if kept is not None:
            left_out.append(np.flatnonzero(~kept))
    for _ in range(MOST_STEPS):
        chosen = _hitting(m, left_out)
        if chosen is None:
            return None
        if not can_hold(system.take(chosen)):
            return chosen
        kept = _grown(system, chosen)
        if kept is None or kept.all():
            return None
        left_out.append(np.flatnonzero(~kept))
    return None


def _hitting(m: int, sets: list[Ints]) -> Ints | None:
    """Return a smallest set that meets every given set, of several one with early members."""
    if not sets:
        return np.zeros(0, np.int64)
    row = np.repeat(np.arange(len(sets)), [len(one) for one in sets])
    place = (row, np.concatenate(sets))
    meets: Any = sparse.csr_array((np.ones(len(row)), place), shape=(len(sets), m))
    with chatter_to_stderr():
        answer = scipy.optimize.milp(
            1.0 + np.arange(m) / (m * m),  # all the preferences together count for less than one member
            constraints=scipy.optimize.LinearConstraint(meets, 1.0, np.inf),
            bounds=scipy.optimize.Bounds(0.0, 1.0),
            integrality=np.ones(m, np.int64),
            options={"node_limit": 10 * MOST_NODES, "mip_rel_gap": 0.0},
        )
    return np.flatnonzero(np.rint(answer.x)) if answer.status == 0 else None


# Proofs -----------------------------------------------------------------------------------------------------


def _sides(system: RangeSystem) -> tuple[Any, Ints, Ints, Ints]:
    """Return ``A x >= b``: the matrix, b, the constraint of each side, and its sign."""
    low = np.flatnonzero(system.lower > -NO_LIMIT)
    high = np.flatnonzero(system.upper < NO_LIMIT)
    matrix = sparse.vstack([system.matrix[low], -system.matrix[high]], format="csr")
    b = np.concatenate([system.lower[low], -system.upper[high]])
    sign = np.concatenate([np.ones(len(low), np.int64), -np.ones(len(high), np.int64)])
    return matrix, b, np.concatenate([low, high]), sign


def _multipliers(system: RangeSystem) -> tuple[Floats, Ints, Ints] | None:
    """Return y >= 0 with ``y'A <= 0`` and ``y'b > 0``, as near as floating point comes, with few entries.

    The counts are taken from a point that nearly keeps the constraints, so that one record too many shows
    beside half a million million.
    """
    matrix, b, row, sign = _sides(system)
    width = matrix.shape[1]
    near = np.zeros(width, np.int64)
    if _largest(system) >= NEAR and width:
        near = np.maximum(_search(system, np.arange(len(system)))[1], 0)
    lack = np.maximum((b - matrix @ near).astype(np.float64), -float(NEAR))
    # Variables: y (sides), then z (cells): y'A + z = 0 and z >= 0, no z where the point leaves room below.
    wide = sparse.hstack([matrix.T, sparse.eye_array(width)], format="csr").astype(np.float64)
    wide = sparse.vstack([wide, sparse.csr_array(np.repeat([[1.0, 0.0]], [len(b), width], axis=1))])
    solver: Any = scipy.optimize.linprog
    answer = solver(
        np.concatenate([-lack, near.astype(np.float64)]),
        A_eq=wide,
        b_eq=np.concatenate([np.zeros(width), [float(SHARES)]]),
        bounds=np.array([(0.0, np.inf)] * len(b) + [(0.0, 0.0 if far else np.inf) for far in near >= NEAR]),
        method="highs-ds",
    )
    if answer.x is None or answer.fun > -1e-6:
        return None
    return answer.x[: len(b)], row, sign


def _farkas_support(system: RangeSystem) -> Ints | None:
    found = _multipliers(system)
    if found is None:
        return None
    y, row, _ = found
    support = np.unique(row[y > 1e-9 * y.max()])
    return support if len(support) and not can_hold(system.take(support)) else None


def _proved(system: RangeSystem) -> tuple[bool, int | None, int | None]:
    """Check in exact integers that no real numbers solve a system; what it asks for, and what it leaves."""
    found = _multipliers(system)
    if found is None:
        return False, None, None
    y, row, sign = found
    used = np.flatnonzero(y > 1e-9 * y.max())
    shares = [Fraction(float(y[i] / y[used].min())).limit_denominator(360) for i in used]
    common = np.lcm.reduce([share.denominator for share in shares]).item()
    whole = [int(share * common) for share in shares]
    combined: dict[int, int] = {}
    ask, leave = 0, 0
    for i, times in zip(used.tolist(), whole, strict=True):
        r, s = int(row[i]), int(sign[i])
        start, stop = system.matrix.indptr[r : r + 2]
        for place in range(start, stop):
            j = int(system.matrix.indices[place])
            combined[j] = combined.get(j, 0) + s * times * int(system.matrix.data[place])
        if s > 0:
            ask += times * int(system.lower[r])
        else:
            leave += times * int(system.upper[r])
    if max(combined.values(), default=0) > 0 or ask <= leave:
        return False, None, None
    simple = all(times == whole[0] for times in whole)
    return True, ask // whole[0] if simple else None, leave // whole[0] if simple else None


def _described(system: RangeSystem, rows: Ints, *, smallest: bool, irreducible: bool) -> Conflict | None:
    """Return a conflict with its arithmetic; None where it cannot be proved."""
    part = system.take(rows)
    proved, least, most = _proved(part)
    if not proved and can_hold(part):
        return None
    return Conflict(tuple(sorted(rows.tolist())), smallest, irreducible, least, most)


# Families, in real numbers ----------------------------------------------------------------------------------
# Linear programs, asked only when no solver found an optimum; the hot path never comes here.


NO_DUAL = 1e-9
"""A dual below it is zero."""
FILTER_LIMIT = 2_000_000
"""Deletion filtering goes through candidate rows times cells up to this many."""


@dataclass(frozen=True, slots=True)
class _System:
    """``A x >= b`` row by row, equalities as pairs; x are the masked cells, and non-negative."""

    A: sparse.csr_array
    b: Floats
    rows: tuple[ConstraintRow, ...]
    """Same label for the two halves of an equality."""
    top: float
    """Largest count of the parent, at least 1."""


def _system(problem: FamilyProblem) -> _System:
    child, cell = np.nonzero(problem.mask)
    m = len(child)
    blocks: list[sparse.csr_array] = []
    values: list[float] = []
    labels: list[ConstraintRow] = []
    if problem.parent is not None:
        sums = sparse.csr_array((np.ones(m), (cell, np.arange(m))), shape=(problem.cells, m))
        blocks += [sums, -sums]
        values += [*problem.parent, *(-problem.parent)]
        labels += 2 * [ConstraintRow("parent", -1, j) for j in range(problem.cells)]
    for k, group in enumerate(problem.groups):
        inside = np.flatnonzero(group[cell])
        sums = sparse.csr_array((np.ones(len(inside)), (child[inside], inside)), shape=(problem.children, m))
        name = problem.group_names[k] if problem.group_names else ""
        for kind, sign, bound in (("lower", 1.0, problem.lower[:, k]), ("upper", -1.0, problem.upper[:, k])):
            present = np.flatnonzero(np.isfinite(bound))
            blocks.append(sign * sums[present])
            values += list(sign * bound[present])
            labels += [ConstraintRow(kind, int(c), k, name) for c in present]
    joint, joint_total = problem.joint_rows
    if len(joint_total):
        inside = np.flatnonzero(joint[child] >= 0)
        shape = (len(joint_total), m)
        sums = sparse.csr_array((np.ones(len(inside)), (joint[child[inside]], inside)), shape=shape)
        blocks += [sums, -sums]
        values += [*joint_total, *(-joint_total)]
        labels += 2 * [_joint_row(problem, s) for s in range(len(joint_total))]
    A = sparse.vstack(blocks, format="csr") if blocks else sparse.csr_array((0, m))
    return _System(A, np.array(values), tuple(labels), problem.top)


def _joint_row(problem: FamilyProblem, s: int) -> ConstraintRow:
    return ConstraintRow("joint", -1, s, problem.joint_names[s] if problem.joint_names else "")


def _violation(system: _System, keep: Ints) -> tuple[float, Floats]:
    """Least sum of violations of the kept rows, relative to their size, and the dual of each kept row."""
    A, b = system.A[keep], system.b[keep]
    width = A.shape[1]
    eye = sparse.eye_array(len(keep), format="csr")
    cost = np.concatenate([np.zeros(width), np.ones(len(keep))])
    answer = scipy.optimize.linprog(
        cost, A_ub=-sparse.hstack([A, eye], format="csr"), b_ub=-b, method="highs"
    )
    if answer.x is None or answer.fun is None:
        raise EstimationError(f"the feasibility program did not finish: {answer.message}")
    dual = np.abs(answer.ineqlin.marginals)
    # A large bound of a row that has no part in it must not hide a record.
    scale = max(system.top, float(np.abs(b[dual > NO_DUAL]).max(initial=0.0)))
    return float(answer.fun) / scale, dual


def conflict(problem: FamilyProblem, *, tolerance: float = 1e-7) -> tuple[ConstraintRow, ...]:
    """Rows that cannot hold together with ``x >= 0``, or nothing where the problem is feasible.

    The duals of the least total violation name an infeasible subset (Farkas); rows that are not needed are
    then deleted one by one, so that every row left is necessary.

    - `tolerance`: total violation that counts as rounding, relative to the largest count of the parent or
      bound that has a part in it.
    - Returns: empty where feasible.
    """
    system = _system(problem)
    if not system.rows:
        return ()
    if not problem.mask.any():  # no variable at all
        broken = np.flatnonzero(system.b > tolerance * system.top)
        return (system.rows[broken[0]],) if len(broken) else ()
    everything = np.arange(len(system.rows))
    value, dual = _violation(system, everything)
    if value <= tolerance:
        return ()
    keep = np.flatnonzero(dual > NO_DUAL)
    if not len(keep) or _violation(system, keep)[0] <= tolerance:
        keep = everything
    if len(keep) * system.A.shape[1] <= FILTER_LIMIT:
        for row in list(keep):
            rest = keep[keep != row]
            if len(rest) and _violation(system, rest)[0] > tolerance:
                keep = rest
    return tuple(dict.fromkeys(system.rows[i] for i in keep))
