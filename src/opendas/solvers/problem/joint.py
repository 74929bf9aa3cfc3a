"""Which joint totals say something that other rows do not."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from opendas.solvers.problem.problem import FamilyProblem

__all__ = ["independent_joint"]

REPEATS = 1e-9
"""Difference from what other rows say, relative to the total, that is rounding."""


def independent_joint(problem: FamilyProblem) -> NDArray[np.bool_]:
    """Mark the joint totals that do not follow from other rows.

    A joint total follows from the totals of its children where all of them are fixed, for instance held from
    an earlier pass; and one of them from the parent and the others, where all children have a part in one or
    a fixed total. Left in, they make active sets degenerate and cost interior points digits. A total that
    contradicts the other rows is kept.

    Parameters
    ----------
    problem : FamilyProblem
        As stated.

    Returns
    -------
    ndarray of bool, shape (J,)
    """
    joint, total = problem.joint_rows
    kept = np.ones(len(total), np.bool_)
    fixed = np.zeros(problem.children, np.bool_)
    value = np.zeros(problem.children)
    usable = problem.mask if problem.parent is None else problem.mask & (problem.parent > 0.0)
    for k, group in enumerate(problem.groups):
        whole = (problem.lower[:, k] == problem.upper[:, k]) & ~usable[:, ~group].any(axis=1)
        value[whole] = problem.lower[whole, k]
        fixed |= whole
    for s in range(len(total)):
        inside = joint == s
        repeated = bool(fixed[inside].all()) and _near(float(value[inside].sum()), float(total[s]))
        kept[s] = not repeated
    used = np.flatnonzero(kept & (total != 0.0))
    if problem.parent is None or not len(used) or not (fixed | (joint >= 0)).all():
        return kept
    rest = fixed & ~((joint >= 0) & kept[joint])
    if _near(float(total[kept].sum() + value[rest].sum()), float(problem.parent.sum())):
        kept[used[-1]] = False
    return kept


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= REPEATS * max(1.0, abs(other))
