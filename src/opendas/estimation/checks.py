"""Exact integer checks of a family's estimate: every constraint, no tolerance."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opendas.errors import EstimationError
from opendas.estimation.model import Family, LevelRules

__all__ = ["check_family"]


def check_family(family: Family, rules: LevelRules, counts: npt.NDArray[np.int64]) -> None:
    """Check integers against every constraint of a family.

    Parameters
    ----------
    family : Family
    rules : LevelRules
    counts : int64 (C, s)

    Raises
    ------
    EstimationError
        Naming the family and the first constraint that does not hold. It is a defect of the solver, never
        of the data: infeasible data are found before.
    """

    def fail(constraint: str) -> EstimationError:
        return EstimationError(
            f"Family {family.label}, {rules.geolevel}: the integer estimate breaks {constraint}. "
            "Nothing was released. Please report it with the measurements of this family."
        )

    if counts.size and counts.min() < 0:
        raise fail("non-negativity")
    if family.parent is not None and not np.array_equal(counts.sum(axis=0), family.parent):
        raise fail("the sum to the parent")
    if counts[:, ~rules.possible[family.support]].any():
        raise fail("a structural zero")
    inside = rules.bound_cells[:, family.support]
    sums = counts @ inside.T.astype(np.int64)
    for k, name in enumerate(rules.bound_names):
        if np.any(sums[:, k] < family.constraints.lower[:, k]):
            raise fail(f"the lower bound {name}")
        if np.any(sums[:, k] > family.constraints.upper[:, k]):
            raise fail(f"the upper bound {name}")
    for invariant in family.constraints.invariants:
        rows = invariant.query.row_of_cell[family.support]
        answers = np.zeros_like(invariant.answers)
        np.add.at(answers.T, rows, counts.T)
        if not np.array_equal(answers, invariant.answers):
            raise fail(f"the invariant {invariant.name}")
    joint = family.constraints.joint
    if joint is not None:
        totals = np.zeros_like(joint.totals)
        np.add.at(totals, joint.group, counts.sum(axis=1))
        if not np.array_equal(totals, joint.totals):
            raise fail(f"the invariant {joint.name} that parts hold together")
