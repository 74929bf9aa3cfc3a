"""Fixed answers to a partition of the cells, as groups and back; apart, as some solvers know groups only.

Letters: ``n`` cells, ``C`` children, ``R`` fixed rows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from opendas.arrays import Bools, Floats, Ints
from opendas.errors import EstimationError
from opendas.solvers.problem.problem import ConstraintRow, FamilyProblem

WRITTEN_GROUPS = 100_000_000
"""Fixed rows times cells up to which the rows are written out as groups."""
SAME = 1e-9
"""Difference of a held sum from the finer ones that make it up, relative to the total, that is rounding."""


def fixed_contradiction(problem: FamilyProblem, tolerance: float) -> tuple[ConstraintRow, ...]:
    """Return a fixed row that no counts can keep, with what it contradicts; empty where each can be kept.

    A fixed row is refused that is negative, that asks for more than the parent has in the cells open to the
    child, or that has no open cell; and the fixed rows of all children that miss the sum of the parent.
    Differences within `tolerance` of the largest count are rounding. Rows may still contradict each other
    and the groups: that takes a linear program.
    """
    rows, fixed = stated_partition(problem)
    R = fixed.shape[1]
    slack = tolerance * problem.magnitude(fixed)
    within: Floats = np.full(fixed.shape, np.inf)
    for c in range(problem.children):
        if problem.parent is None:
            within[c, np.bincount(rows, problem.mask[c], R) == 0.0] = 0.0
        else:
            within[c] = np.bincount(rows, np.where(problem.mask[c], problem.parent, 0.0), R)
    wrong = np.argwhere((fixed < -slack) | (fixed > within + slack))
    if len(wrong):
        c, r = wrong[0].tolist()
        beside: list[int] = []
        if problem.parent is not None and fixed[c, r] > 0.0:
            beside = np.flatnonzero((rows == r) & problem.mask[c]).tolist()
        return ConstraintRow("fixed", c, r), *(ConstraintRow("parent", -1, j) for j in beside)
    if problem.parent is None:
        return ()
    missed = np.flatnonzero(np.abs(fixed.sum(axis=0) - np.bincount(rows, problem.parent, R)) > slack)
    if not len(missed):
        return ()
    r = int(missed[0])
    cells = np.flatnonzero(rows == r).tolist()
    children = (ConstraintRow("fixed", c, r) for c in range(problem.children))
    return *children, *(ConstraintRow("parent", -1, j) for j in cells)


def as_groups(problem: FamilyProblem) -> tuple[FamilyProblem, Ints]:
    """State the fixed rows as groups after the problem's own, and rows of 0 by closing their cells.

    - Returns `problem`: the same family without fixed rows. It has the same answers.
    - Returns (G,): fixed row of each group that was added.
    """
    rows, fixed = stated_partition(problem)
    R = fixed.shape[1]
    held = np.bincount(rows, minlength=R) > 0
    kept = np.flatnonzero(held & (fixed != 0.0).any(axis=0))
    if len(kept) * problem.cells > WRITTEN_GROUPS:
        raise EstimationError(
            f"{len(kept)} fixed rows of {problem.cells} cells are too many to be written out as groups "
            f"({WRITTEN_GROUPS} entries); fix a coarser query group, or leave out cells that the parent lacks"
        )
    mask: Bools = problem.mask & (fixed != 0.0)[:, rows]
    groups: Bools = rows[None, :] == kept[:, None].astype(np.int32)
    stated = replace(
        problem,
        mask=mask,
        groups=np.concatenate([problem.groups, groups]),
        lower=np.concatenate([problem.lower, fixed[:, kept]], axis=1),
        upper=np.concatenate([problem.upper, fixed[:, kept]], axis=1),
        group_names=(),
        fixed_rows=None,
        fixed=None,
    )
    return stated, kept


def as_fixed_rows(problem: FamilyProblem) -> FamilyProblem:
    """Return the problem with its groups as fixed rows, where they are equalities that divide the cells.

    Such are the answers of an earlier pass, held for the next: the smallest groups are the rows, and each of
    the others is a sum of them. A problem with other groups comes back as it is.
    """
    groups, answers = problem.groups, problem.lower
    if problem.fixed_rows is not None or not len(groups) or not np.array_equal(answers, problem.upper):
        return problem
    rows = np.full(problem.cells, -1, np.int32)
    held: list[int] = []
    coarser: list[int] = []
    for group in np.argsort(groups.sum(axis=1), kind="stable").tolist():
        inside = groups[group]
        if (rows[inside] < 0).all():
            rows[inside] = len(held)
            held.append(group)
        else:
            coarser.append(group)
    if (rows < 0).any():
        return problem
    fixed = np.ascontiguousarray(answers[:, held])
    near = SAME * max(1.0, float(np.abs(fixed).sum(axis=1).max(initial=0.0)))
    for group in coarser:
        parts = np.unique(rows[groups[group]])
        if np.isin(rows, parts).sum() != groups[group].sum():
            return problem
        if np.abs(fixed[:, parts].sum(axis=1) - answers[:, group]).max(initial=0.0) > near:
            return problem
    none = np.zeros((problem.children, 0))
    return replace(
        problem,
        groups=np.zeros((0, problem.cells), bool),
        group_names=(),
        lower=none,
        upper=none,
        fixed_rows=rows,
        fixed=fixed,
    )


def stated_partition(problem: FamilyProblem) -> tuple[NDArray[np.int32], Floats]:
    """Return the rows and answers of a problem that has them."""
    if problem.fixed_rows is None or problem.fixed is None:
        raise EstimationError("the family has no fixed rows")
    return problem.fixed_rows, problem.fixed
