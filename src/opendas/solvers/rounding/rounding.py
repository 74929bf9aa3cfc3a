"""Controlled rounding of a family: integers that keep the parent, the constraints, and the queries close.

The estimate x (C, n) of the children becomes floor(x) + y with y in {0, 1}, as in equation (7.7) of Abowd
et al. (2022), *The 2020 Census Disclosure Avoidance System TopDown Algorithm*. In each pass the L1 distance
of the pass's queries from their fractional targets is minimised, interpolated linearly between integers,
with the answers of earlier passes held. Where all rows form a laminar family this is a convex min-cost flow
and is solved exactly in integers (``docs/proofs/rounding.md``). Ties are broken by a public hash of child
and cell, so the result is a function of its arguments alone and not of the solver.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from opendas.arrays import Bools, Floats, Ints, refines
from opendas.errors import ConfigError, EstimationError, InfeasibleFamily
from opendas.solvers.rounding import kernels, snapping
from opendas.solvers.rounding.blocks import round_blocks
from opendas.solvers.rounding.laminar import Rows, check_laminar
from opendas.solvers.rounding.milp import Linear, breaks, round_by_milp
from opendas.solvers.rounding.problem import UNBOUNDED, RoundingNames, RoundingProblem, RoundingResult

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["UNBOUNDED", "RoundingNames", "RoundingResult", "round_family"]

_NO_NAMES = RoundingNames()
_REFUSALS: dict[int, tuple[type[Exception], str]] = {
    snapping.OUT_OF_RANGE: (
        ValueError,
        "the estimate must be finite, non-negative, below 2**40, and zero outside its mask",
    ),
    snapping.MISMATCH: (ValueError, "the estimate does not add up to the parent"),
    kernels.TOO_LARGE: (
        EstimationError,
        "rounding it as one flow problem does not fit 64-bit integers. Choose a spine with smaller fan-out",
    ),
    kernels.BROKEN: (EstimationError, "the rounded table does not add up to its parent. Please report it"),
}


def round_family(
    x: Floats,
    parent: Ints | None,
    mask: Bools,
    passes: Sequence[Sequence[NDArray[np.int32]]],
    groups: Bools | None,
    lower: Ints | None,
    upper: Ints | None,
    tie_keys: NDArray[np.uint64],
    *,
    cell_keys: NDArray[np.uint64] | None = None,
    names: RoundingNames = _NO_NAMES,
    milp: bool = False,
    joint: NDArray[np.int32] | None = None,
    joint_total: Ints | None = None,
    fixed_rows: NDArray[np.int32] | None = None,
    fixed: Ints | None = None,
    linear: Linear | None = None,
) -> RoundingResult:
    """Round the least-squares estimate of a family to integers.

    - `x` (C, n), >= 0: estimate in counts: C children, n cells. Values within 1e-6 of an integer become it;
      the rest is rounded to multiples of 2**-20, and what a column then lacks to its parent is spread over
      its fractional cells.
    - `parent` (n,): counts of the parent, which the children add up to. None for a root, whose total an
      equality group fixes.
    - `mask` (C, n): cells that may be non-zero.
    - `passes` (n,): for each pass its row maps: the row of each cell, numbered from 0, -1 for none. A map
      named twice counts double.
    - `groups` (K, n): cells of each constraint row, enforced in every pass.
    - `lower`, `upper` (C, K): bounds of each constraint row in each child, :data:`UNBOUNDED` for no upper
      bound.
    - `tie_keys` (C,): public key of each child.
    - `cell_keys` (n,): public key of each cell, its position by default.
    - `names`: names for error messages.
    - `milp`: where rows cross, solve a mixed-integer program instead of refusing.
    - `joint` (C,): joint total that each child has a part in, -1 for none.
    - `joint_total` (J,): counts in all cells of the children of each joint total, enforced in every pass.
    - `fixed_rows` (n,): row of each cell in a partition of the cells whose sums are fixed. The rows of the
      passes lie inside its rows, and there are no groups and no joint totals: each fixed row is rounded apart
      from the others, in linear memory. The result is that of stating every fixed row as a group.
    - `fixed` (C, R): sum of each child over the cells of each fixed row.
    - `linear` (int64 (M, n), int64 (C, M)): coefficients of each cell in linear constraints, and what each
      child has at most. The flow knows nothing of them: where its table breaks one, a mixed-integer program
      takes its place.
    - Returns: the rounded values, the objective of each pass, and the method.

    Raises `ConfigError` if rows cross and ``milp`` is false, or a row of a pass reaches over several fixed
    rows. Raises `InfeasibleFamily` if no rounding satisfies the groups and joint totals; the error names the
    smallest set in conflict that was found. Likewise if none satisfies the sums of a fixed row; the error
    names the first such row. Raises `EstimationError` if the problem does not fit 64-bit integers.

    Notes
    -----
    Abowd et al. (2022), equation (7.7).
    Abowd et al. (2022), equation (7.4): one pass, of the detailed cells.
    Abowd et al. (2022), equation (7.3): likewise, of a root.

    With ``h(c, S) = mix(mix(tie_keys[c]) ^ sum of mix(cell_keys[j]), j in S)`` shifted right by 24 bits (sums
    modulo 2**64, ``mix`` as in
    :func:`opendas.arrays.kernels.mix`), ties of the last pass are broken by the least sum of
    h(c, {j}) y[c, j] over cells, ties of earlier passes by the least sum of h(c, S) (Q y)[c, S] over the
    distinct rows S of the pass.

    Examples
    --------
    >>> x = np.array([[0.6, 1.5], [1.4, 0.5]])
    >>> total, detailed = np.zeros(2, np.int32), np.arange(2, dtype=np.int32)
    >>> keys = np.arange(2, dtype=np.uint64)
    >>> parent, mask = np.array([2, 2]), np.ones((2, 2), bool)
    >>> round_family(x, parent, mask, ((total,), (detailed,)), None, None, None, keys).values
    array([[1, 1],
           [1, 1]])
    """
    problem = _problem(x, parent, mask, passes, groups, lower, upper, tie_keys, cell_keys, joint, joint_total)
    if fixed_rows is not None and fixed is not None:
        found = _round_by_fixed_rows(problem, fixed_rows, fixed, names)
        if linear is None or not breaks(found.values, linear):
            return found
        return round_by_milp(_with_fixed_as_groups(problem, fixed_rows, fixed), names, linear)
    if fixed_rows is not None or fixed is not None:
        raise ValueError("a fixed partition needs both its row map and the sums of its rows")
    found = _round_at_once(problem, names, milp=milp)
    return (
        found if linear is None or not breaks(found.values, linear) else round_by_milp(problem, names, linear)
    )


def _with_fixed_as_groups(
    problem: RoundingProblem, fixed_rows: NDArray[np.int32], fixed: Ints
) -> RoundingProblem:
    """State every fixed row as a group of cells."""
    held = fixed_rows[None, :] == np.arange(fixed.shape[1])[:, None]
    return problem._replace(groups=held, lower=fixed, upper=fixed)


def _round_at_once(problem: RoundingProblem, names: RoundingNames, *, milp: bool) -> RoundingResult:
    """Round as one flow, or as a mixed-integer program where rows cross and it is allowed."""
    status, values, quanta = kernels.round_passes(problem)
    if status == kernels.CROSSING:
        if milp:
            return round_by_milp(problem, names)
        map_names = [name for one in names.passes for name in one]
        check_laminar(Rows(problem.maps, problem.groups), map_names, names.groups)
    if status == kernels.VIOLATED:
        in_groups, in_joint = _conflict(problem)
        conflict = [*map(names.joint_total, in_joint), *map(names.group, in_groups)]
        raise InfeasibleFamily(names.family, f"rounding, pass 1 of {problem.passes}", conflict)
    if status != snapping.DONE:
        error, reason = _REFUSALS[status]
        raise error(f"family {names.family}: {reason}")
    return RoundingResult(values, tuple(float(q) / snapping.ONE for q in quanta), "flow")


def _round_by_fixed_rows(
    problem: RoundingProblem, fixed_rows: NDArray[np.int32], fixed: Ints, names: RoundingNames
) -> RoundingResult:
    """Check that the family falls apart by fixed rows, and round one after the other."""
    children, n = problem.x.shape
    if fixed_rows.shape != (n,) or fixed.ndim != 2 or len(fixed) != children:
        raise ValueError(f"the fixed partition does not fit an estimate of shape {problem.x.shape}")
    if np.any((fixed_rows < 0) | (fixed_rows >= fixed.shape[1])):
        raise ValueError("every cell must lie in a row of the fixed partition")
    if len(problem.groups) or len(problem.joint_total):
        raise ValueError("groups and joint totals reach over fixed rows: state fixed rows as groups, too")
    map_names = [name for one in names.passes for name in one]
    for q, rows in enumerate(problem.maps):
        inside = rows >= 0
        if not refines(rows[inside], fixed_rows[inside]):
            name = map_names[q] if q < len(map_names) else f"map {q}"
            raise ConfigError(
                f"a row of query '{name}' spans several rows of {names.fixed}, whose sums are already "
                "fixed. Remove the query from its rounder pass: if it is coarser, its answers are fixed with "
                "those sums, and if it crosses them, it cannot be rounded row by row."
            )
    status, row, values, quanta = round_blocks(
        problem,
        np.ascontiguousarray(fixed_rows, dtype=np.int32),
        np.ascontiguousarray(fixed, dtype=np.int64),
    )
    if status == kernels.VIOLATED:
        step = f"rounding, pass 1 of {problem.passes}"
        raise InfeasibleFamily(names.family, step, [f"{names.fixed}, row {row}"])
    if status == kernels.CROSSING:
        check_laminar(Rows(problem.maps, problem.groups), map_names)
    if status != snapping.DONE:
        error, reason = _REFUSALS[status]
        raise error(f"family {names.family}: {reason}")
    return RoundingResult(values, tuple(float(q) / snapping.ONE for q in quanta), "flow")


def _problem(
    x: Floats,
    parent: Ints | None,
    mask: Bools,
    passes: Sequence[Sequence[NDArray[np.int32]]],
    groups: Bools | None,
    lower: Ints | None,
    upper: Ints | None,
    tie_keys: NDArray[np.uint64],
    cell_keys: NDArray[np.uint64] | None,
    joint: NDArray[np.int32] | None,
    joint_total: Ints | None,
) -> RoundingProblem:
    """Check shapes; return contiguous arrays of the types that the compiled code expects."""
    if x.ndim != 2:
        raise ValueError(f"the estimate must be a (C, n) array, not of shape {x.shape}")
    children, n = x.shape
    k = 0 if groups is None else len(groups)
    maps = np.empty((sum(map(len, passes)), n), np.int32)
    map_pass = np.empty(len(maps), np.int64)
    q = 0
    for number, one in enumerate(passes):
        for rows in one:
            maps[q] = rows
            map_pass[q] = number
            q += 1
    problem = RoundingProblem(
        np.ascontiguousarray(x, dtype=np.float64),
        np.zeros(n, np.int64) if parent is None else np.ascontiguousarray(parent, dtype=np.int64),
        parent is not None,
        np.ascontiguousarray(mask, dtype=np.bool_),
        maps,
        map_pass,
        len(passes),
        np.zeros((0, n), np.bool_) if groups is None else np.ascontiguousarray(groups, dtype=np.bool_),
        np.zeros((children, k), np.int64) if lower is None else np.ascontiguousarray(lower, dtype=np.int64),
        np.full((children, k), UNBOUNDED) if upper is None else np.ascontiguousarray(upper, dtype=np.int64),
        np.ascontiguousarray(tie_keys, dtype=np.uint64),
        np.arange(n, dtype=np.uint64)
        if cell_keys is None
        else np.ascontiguousarray(cell_keys, dtype=np.uint64),
        np.full(children, -1) if joint is None else np.array(joint, dtype=np.int64),
        np.zeros(0, np.int64) if joint_total is None else np.array(joint_total, dtype=np.int64),
    )
    shapes = (
        problem.mask.shape,
        problem.total.shape,
        problem.groups.shape,
        problem.lower.shape,
        problem.upper.shape,
    )
    keys = (problem.child_keys.shape, problem.cell_keys.shape)
    if shapes != ((children, n), (n,), (k, n), (children, k), (children, k)) or keys != ((children,), (n,)):
        raise ValueError(f"mask, parent, groups, bounds or keys do not fit an estimate of shape {x.shape}")
    totals = problem.joint_total
    if problem.joint.shape != (children,) or not (
        totals.ndim == 1 and np.all((problem.joint >= -1) & (problem.joint < len(totals)))
    ):
        raise ValueError(f"joint totals do not fit an estimate of {children} children")
    return problem


def _conflict(problem: RoundingProblem) -> tuple[list[int], list[int]]:
    """Find an irreducible set of groups and joint totals in conflict: leave out each that it survives."""
    groups, totals = list(range(len(problem.groups))), list(range(len(problem.joint_total)))
    for g in range(len(problem.groups)):
        without = [k for k in groups if k != g]
        if _violated(problem, without, totals):
            groups = without
    for s in range(len(problem.joint_total)):
        without = [k for k in totals if k != s]
        if _violated(problem, groups, without):
            totals = without
    return groups, totals


def _violated(problem: RoundingProblem, groups: list[int], totals: list[int]) -> bool:
    """Whether some of the groups and joint totals allow no rounding."""
    number = np.full(len(problem.joint_total) + 1, -1)
    number[totals] = np.arange(len(totals))
    reduced = problem._replace(
        maps=problem.maps[:0],
        map_pass=problem.map_pass[:0],
        passes=1,
        groups=np.ascontiguousarray(problem.groups[groups]),
        lower=np.ascontiguousarray(problem.lower[:, groups]),
        upper=np.ascontiguousarray(problem.upper[:, groups]),
        joint=number[problem.joint],
        joint_total=problem.joint_total[totals],
    )
    return bool(kernels.round_passes(reduced)[0] == kernels.VIOLATED)
