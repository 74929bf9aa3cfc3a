"""Equation (7.6) of the TopDown paper by one linear program: the slow twin of what a run records.

A pass of the least squares holds the margins of earlier passes. In exact arithmetic the earlier estimate
keeps its own constraints, so that the optimum of (7.6) is zero; a run measures what floating point leaves of
that (``opendas.topdown.family``), and never solves this program.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.optimize
from numpy.typing import NDArray
from scipy import sparse

from opendas.arrays import Floats
from opendas.errors import EstimationError
from opendas.solvers.problem.conflict import _system
from opendas.solvers.problem.problem import FamilyProblem


def minimum_tolerance(
    problem: FamilyProblem, held: Sequence[tuple[NDArray[np.int32], Floats]]
) -> tuple[float, Floats]:
    """Equation (7.6): how far the held margins must give way, by one linear program.

    The slow reference: minimise tau subject to the constraints of `problem` and
    ``|sum_{rows == r} x_c - value_cr| <= tau`` for every held margin.

    Parameters
    ----------
    problem : FamilyProblem
        Only its constraints are used.
    held : sequence of (rows, values)
        Row index of every cell, shape (n,), and the margin to hold, shape (C, number of rows).

    Returns
    -------
    tau, x
        The optimum, in counts, and a point that reaches it, shape (C, n).

    Raises
    ------
    EstimationError
        If the constraints cannot hold whatever tau is.
    """
    system = _system(problem)
    child, cell = np.nonzero(problem.mask)
    m = len(child)
    blocks = [sparse.hstack([system.A, sparse.csr_array((len(system.b), 1))], format="csr")]
    values = [system.b]
    for rows, target in held:
        height = target.size
        sums = sparse.csr_array(
            (np.ones(m), (child * target.shape[1] + rows[cell], np.arange(m))), shape=(height, m)
        )
        one = sparse.csr_array(np.ones((height, 1)))
        blocks += [sparse.hstack([sums, one], format="csr"), sparse.hstack([-sums, one], format="csr")]
        values += [target.ravel(), -target.ravel()]
    cost = np.zeros(m + 1)
    cost[-1] = 1.0
    A, b = sparse.vstack(blocks, format="csr"), np.concatenate(values)
    answer = scipy.optimize.linprog(cost, A_ub=-A, b_ub=-b, method="highs")
    if answer.x is None:
        raise EstimationError("the constraints of the family cannot hold together, whatever the tolerance")
    x = np.zeros(problem.linear.shape)
    x[child, cell] = answer.x[:m]
    return float(answer.x[m]), x
