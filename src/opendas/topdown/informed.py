"""The estimator ``informed``, apart from others: a family from all that was measured below its children.

Given its parent, a child is no longer touched by what was measured beside or above it: only its own
measurements and those of its subtree are left. Least squares over that subtree turns them into one quadratic
function of the child's cells, ``1/2 x'P x - b'x``, which takes the place of the child's own measurements. The
parent, the constraints and the rounding are those of plain TopDown.

Letters: ``C`` children, ``s`` support cells, ``n`` cells, ``q`` query groups.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from opendas.arrays import Floats
from opendas.arrays.kernels import without_gaps
from opendas.solvers.problem.problem import FamilyProblem
from opendas.topdown.family import TopDown, accepted, evenly, family_problem, solved
from opendas.topdown.family_data import FamilyData, Information
from opendas.topdown.model import INFORMED

LEAST_SHARE = 1e-3
"""A child's weight of a query group enters the shared metric as no less than this part of the mean."""


class Informed:
    """Least squares of all query groups at once, from what was measured in the whole subtree of each child.

    As (7.1) and (7.2) of the TopDown paper, with the children's measurements replaced by all that is known in
    their subtrees. Leaves have nothing below them, and are fitted from their own measurements.
    """

    name = INFORMED

    def fit(self, data: FamilyData) -> Floats:
        """Fit a family."""
        known, groups, support = data.information, data.groups, data.family.support
        if known is None:
            return TopDown().fit(data)
        if not known.weights.any():
            return evenly(data.family, groups, data.progress)
        linear = np.ascontiguousarray(known.linear[:, support])
        problem = family_problem(
            data.family, groups, (), linear, np.ones(len(linear)), known.precision.on_support(support)
        )
        metric = partial(_shared_problem, known, support)
        solution = accepted(solved(problem, groups, metric), data.family, "least squares")
        data.progress.note(solution)
        return solution.x


def _shared_problem(
    known: Information, support: npt.NDArray[np.int32], problem: FamilyProblem
) -> FamilyProblem:
    """Return the problem with weights that all children share, and each child's multiple, for its metric.

    In the geometric mean over query groups, a child's multiple of the shared weights is that of its own.
    """
    mean = known.weights.mean(axis=0)
    used = np.flatnonzero(mean > 0.0)
    relative = np.maximum(known.weights[:, used] / mean[used], LEAST_SHARE)
    scale = np.exp(np.log(relative).mean(axis=1))
    terms = tuple((float(mean[q]), without_gaps(known.rows[q][support])) for q in used)
    return replace(problem, terms=terms, scale=scale)
