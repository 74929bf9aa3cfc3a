"""The failsafe of an infeasible family: relax the parent equality at the least cost.

Opt-in, recorded and reported: the children then no longer sum to the parent that was estimated above.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy  # its optimize, a third of the time of all imports, loads when it is first named
import scipy.sparse

from opendas.arrays import Ints
from opendas.arrays.quiet import chatter_to_stderr
from opendas.errors import InfeasibleFamily
from opendas.topdown.family_data import LevelRules
from opendas.topdown.model import Family

MOST_NAMED = 10
"""Constraints of a contradiction that a record names."""
_NO_PARENT_HELPS = (
    "The failsafe found no parent with which the constraints of the children hold. Check the frame, and the "
    "invariants and bounds of the children."
)


def relax_parent(family: Family, rules: LevelRules, error: InfeasibleFamily) -> tuple[Family, str]:
    """Return the family with the nearest parent, in L1, for which its children are feasible.

    Constraints of the children stay as they are, totals that some of them hold together included.

    Solved as a mixed-integer program over the children's constraint groups and all possible cells, so that
    cells outside the old support may come in.

    - `family`: infeasible, with a parent.
    - `error`: why; raised again if no parent at all is feasible.
    - Returns: with a new parent and support.
    - Returns: what was relaxed, for the report.
    """
    if family.parent is None:
        raise error
    # Keep the parent's total if at all possible: invariants above may depend on it.
    for keep_total in (True, False):
        found = _nearest(family, rules, keep_total=keep_total)
        if found is not None:
            break
    else:
        raise InfeasibleFamily(error.family, error.step, error.constraints, error.conflict, _NO_PARENT_HELPS)
    parent, cost = found
    support = np.flatnonzero(parent).astype(np.int32)
    note = (
        f"parent equality relaxed by {cost} in L1"
        f"{'' if keep_total else ', its total included'}; in conflict: "
        + ", ".join(error.constraints[:MOST_NAMED] or ("the constraints of the family",))
        + (", ..." if len(error.constraints) > MOST_NAMED else "")
    )
    return replace(family, support=support, parent=parent[support]), note


def _nearest(family: Family, rules: LevelRules, *, keep_total: bool) -> tuple[Ints, int] | None:
    """Return the nearest feasible parent, int64 (n,), and its L1 distance, or None."""
    size = len(rules.possible)
    old = np.zeros(size, dtype=np.int64)
    if family.parent is not None:
        old[family.support] = family.parent
    children = len(family.tie_keys)
    possible = np.flatnonzero(rules.possible)
    n = len(possible)
    constraints = family.constraints
    closed = constraints.upper == 0
    barred = closed.astype(np.int64) @ rules.bound_cells[:, possible].astype(np.int64) > 0
    # Variables: x (children * n), then the deviations above and below the old parent (n each).
    eye = scipy.sparse.identity(n, format="csr")
    rows = [scipy.sparse.hstack([*([eye] * children), -eye, eye])]
    lower = [old[possible].astype(float)]
    upper = [old[possible].astype(float)]
    if keep_total:
        every = np.concatenate([np.ones(children * n), np.zeros(2 * n)])
        rows.append(scipy.sparse.csr_matrix(every))
        lower.append(np.array([float(old.sum())]))
        upper.append(np.array([float(old.sum())]))
    for c in range(children):
        groups = [
            (rules.bound_cells[k, possible], constraints.lower[c, k], constraints.upper[c, k])
            for k in range(len(rules.bound_names))
        ]
        for invariant in constraints.invariants:
            row_of = invariant.query.row_of_cell[possible]
            groups += [(row_of == r, v, v) for r, v in enumerate(invariant.answers[c])]
        if constraints.linear is not None:
            here = constraints.linear.on(possible)
            pairs = zip(here.coefficients, here.at_most[c], strict=True)
            groups += [(times, -np.inf, most) for times, most in pairs]
        for inside, low, high in groups:
            line = np.zeros((children + 2) * n)
            line[c * n : (c + 1) * n] = inside
            rows.append(scipy.sparse.csr_matrix(line))
            lower.append(np.array([float(low)]))
            upper.append(np.array([float(high)]))
    joint = constraints.joint
    if joint is not None:
        for s, total in enumerate(joint.totals):
            line = np.zeros((children + 2) * n)
            line[: children * n] = np.repeat(joint.group == s, n)
            rows.append(scipy.sparse.csr_matrix(line))
            lower.append(np.array([float(total)]))
            upper.append(np.array([float(total)]))
    cost = np.concatenate([np.zeros(children * n), np.ones(2 * n)])
    top = np.concatenate([np.where(barred.ravel(), 0.0, np.inf), np.full(2 * n, np.inf)])
    with chatter_to_stderr():
        found = scipy.optimize.milp(
            cost,
            constraints=scipy.optimize.LinearConstraint(
                scipy.sparse.vstack(rows), np.concatenate(lower), np.concatenate(upper)
            ),
            bounds=scipy.optimize.Bounds(0.0, top),
            integrality=np.ones(len(cost), dtype=np.int64),
            options={"mip_rel_gap": 0.0},  # by default 1e-4: not the nearest parent beyond 10,000 records
        )
    if found.x is None:
        return None
    parent = np.zeros(size, dtype=np.int64)
    parent[possible] = np.rint(found.x[: children * n]).astype(np.int64).reshape(children, n).sum(axis=0)
    return parent, int(np.rint(found.fun))
