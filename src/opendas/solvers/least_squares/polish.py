"""A last refinement of roots: solve the optimality equations again, with residuals in extended precision.

Where a root has cells in the thousands beside weights that differ by orders of magnitude, the active set can
be right and its last linear solve still miss the tolerance by a digit. The equations of the same active set
are then solved once more by least squares, and corrected by their own residual.

Letters: ``n`` cells, ``K`` groups, ``F`` free cells, ``A`` active groups.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from opendas.solvers.blas import one_blas_thread
from opendas.solvers.problem.certificate import Multipliers
from opendas.solvers.problem.problem import FamilyProblem

__all__ = ["polish_root"]

_STEPS = 4
_ON_BOUND = 1e-6


def polish_root(problem: FamilyProblem, x: NDArray[np.float64]) -> tuple[NDArray[np.float64], Multipliers]:
    """Return a refined point and its multipliers.

    Parameters
    ----------
    problem : FamilyProblem
        Without parent: children are independent.
    x : ndarray, shape (C, n)
        Its positive cells are taken as free, and groups within a millionth of a bound as active.

    Returns
    -------
    ndarray, shape (C, n)
    Multipliers
        In the units of :mod:`opendas.solvers.problem.certificate`.
    """
    H = problem.hessian()
    refined = np.zeros_like(x)
    lam = np.zeros(problem.lower.shape)
    for c in range(problem.children):
        free = np.flatnonzero(x[c] > 0.0)
        sums = problem.groups @ x[c]
        near = _ON_BOUND * np.maximum(1.0, sums)
        equal = problem.lower[c] == problem.upper[c]
        low = equal | (np.abs(sums - problem.lower[c]) <= near)
        active = np.flatnonzero(low | (np.abs(sums - problem.upper[c]) <= near))
        active = active[problem.groups[np.ix_(active, free)].any(axis=1)]
        bound = np.where(low, problem.lower[c], problem.upper[c])[active]
        G = problem.groups[np.ix_(active, free)].astype(np.float64)
        zero = np.zeros((len(active), len(active)))
        system = np.block([[H[np.ix_(free, free)], G.T], [G, zero]])
        right = np.concatenate([problem.linear[c, free], bound])
        solution = np.zeros(len(right))
        exact, wanted = system.astype(np.longdouble), right.astype(np.longdouble)
        with one_blas_thread():
            inverse = np.linalg.pinv(system)
            for _ in range(_STEPS):
                solution = solution + inverse @ (wanted - exact @ solution).astype(np.float64)
        refined[c, free] = solution[: len(free)]
        lam[c, active] = problem.scale[c] * solution[len(free) :] / problem.weight
    return refined, Multipliers(np.zeros(problem.cells), lam)
