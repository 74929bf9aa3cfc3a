"""Small random families whose children have Hessians of their own, feasible by construction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from opendas.solvers.problem.problem import FamilyProblem
from support.random_family import random_family
from support.random_joint import random_joint

SORTS = ("near", "far", "unmeasured", "low rank")


def own(problem: FamilyProblem, linear, curvature) -> FamilyProblem:
    """Return the family with linear terms and Hessians of the children's own."""
    return replace(problem, linear=linear, hessians=curvature)


def random_varied(seed: int, sort: str | None = None, joint: bool | None = None):
    """Make a family: the problem, whose terms are a metric only, the linear terms, and the Hessians.

    Parameters
    ----------
    seed : int
        Of the generator.
    sort : str
        Of the Hessians: within a factor of about 2 of the metric; eigenvalues over four orders of magnitude;
        with cells that nothing measures; of low rank.
    joint : bool
        With joint totals; random if not given.
    """
    rng = np.random.default_rng([seed, 7])
    sort = sort or str(rng.choice(SORTS))
    joint = rng.random() < 0.3 if joint is None else joint
    problem = random_joint(seed) if joint else random_family(seed)
    return (problem, *hessians(problem, rng, sort))


def hessians(problem: FamilyProblem, rng, sort: str):
    """Linear terms and Hessians for a family; cells outside a child's mask have no precision."""
    C, n = problem.linear.shape
    H = problem.hessian() + 0.2 * problem.weight * np.eye(n)
    matrices = np.zeros((C, n, n))
    for c in range(C):
        if sort == "far":
            Q = np.linalg.qr(rng.normal(size=(n, n)))[0]
            A = Q @ np.diag(10.0 ** rng.uniform(-3.0, 1.0, n)) @ Q.T
        elif sort == "low rank":
            rows = rng.normal(size=(max(1, n // 2), n))
            A = rows.T @ rows / n
        else:
            half = np.linalg.cholesky(H)
            Q = np.linalg.qr(rng.normal(size=(n, n)))[0]
            A = half @ Q @ np.diag(rng.uniform(0.5, 2.0, n)) @ Q.T @ half.T
        if sort == "unmeasured":
            out = rng.random(n) < 0.3
            A[out] = 0.0
            A[:, out] = 0.0
        A = problem.scale[c] * A
        matrices[c] = 0.5 * (A + A.T) * problem.mask[c][:, None] * problem.mask[c][None, :]
    answers = rng.poisson(2.0, (C, n)) + rng.normal(0.0, rng.choice([1.0, 5.0]), (C, n))
    if problem.parent is not None:
        answers += problem.parent / max(1, C)
    linear = np.einsum("cij,cj->ci", matrices, answers)  # in the range, so that roots are bounded
    return linear, matrices
