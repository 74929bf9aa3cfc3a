"""Small random families whose children share joint totals, feasible by construction."""

from __future__ import annotations

import numpy as np

from opendas.solvers.problem.problem import FamilyProblem
from support.random_family import KINDS, STYLES, _groups, _terms


def random_joint(
    seed: int, *, parent: bool | None = None, held: bool | None = None, every: bool | None = None
) -> FamilyProblem:
    """Make a family with joint totals.

    Parameters
    ----------
    seed : int
        Of the generator.
    parent : bool
        With a parent; random if not given.
    held : bool
        Totals of all children are held as well, up to rounding, so that joint totals repeat them.
    every : bool
        Every child has a part in a joint total.
    """
    rng = np.random.default_rng(seed)
    C, n = int(rng.integers(2, 10)), int(rng.integers(1, 20))
    kind, style = str(rng.choice(KINDS)), str(rng.choice(STYLES, p=[0.6, 0.2, 0.1, 0.1]))
    truth = rng.poisson(rng.lognormal(0.0, 1.5, (C, n)) * rng.choice([0.1, 1.0, 20.0]))
    truth[rng.random(C) < 0.15] = 0
    mask = (truth > 0) | (rng.random((C, n)) < rng.choice([0.3, 0.8, 1.0]))
    groups, lower, upper = _groups(rng, kind, truth)
    if kind in ("plain", "bounded") and (rng.random() < 0.4 if held is None else held):
        near = truth.sum(1) * (1.0 + rng.normal(0.0, 1e-13, C))
        groups.append(np.ones(n, dtype=bool))
        lower.append(near)
        upper.append(near)
    terms = _terms(rng, style, n)
    linear = np.zeros((C, n))
    for weight, rows in terms:
        answers = np.stack([np.bincount(rows, truth[c], int(rows.max()) + 1) for c in range(C)])
        answers = answers + np.rint(rng.normal(0.0, rng.choice([1.0, 5.0]), answers.shape))
        linear += weight * answers[:, rows]
    joint = np.sort(rng.integers(0, max(1, C // 2), C))
    joint = np.unique(joint, return_inverse=True)[1].astype(np.int32)
    totals = np.bincount(joint, truth.sum(1)).astype(float)
    if not (rng.random() < 0.7 if every is None else every):
        joint[joint == joint.max()] = -1
        totals = totals[:-1]
    return FamilyProblem(
        terms=tuple(terms),
        linear=linear,
        parent=truth.sum(0).astype(float) if (rng.random() < 0.6 if parent is None else parent) else None,
        mask=mask,
        groups=np.array(groups, dtype=bool).reshape(len(groups), n),
        lower=np.array(lower).reshape(len(groups), C).T,
        upper=np.array(upper).reshape(len(groups), C).T,
        scale=np.ones(C) if rng.random() < 0.6 else rng.lognormal(0.0, 1.0, C),
        joint=joint,
        joint_total=totals,
    )
