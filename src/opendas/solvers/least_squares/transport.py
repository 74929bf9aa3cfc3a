# mypy: allow-untyped-defs, allow-untyped-calls
"""Least squares of detailed cells with fixed sums, set apart for its own compile cache: one projection each.

The nearest table to the answers, with the parent's cells and the fixed sums as its margins, is one projection
onto a transportation polytope for each fixed row. With mu the multipliers of the parent and nu those of the
fixed sums, x_cj = max(0, a_cj - (mu_j + nu_c) / scale_c); given nu, each mu_j is the root of a piecewise
linear function, and the other way round. Solving them in turns climbs the dual exactly along a block of
coordinates at a time; a fixed row ends when its margins are met.

The last stage of products with several needs it: DHC persons tied to a redistricting release pass nearly all
their families through it.

Axes: C children, n cells, R fixed rows, m cells of one fixed row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from opendas.arrays import Floats
from opendas.arrays.kernels import cells_by_row, inner
from opendas.solvers.problem.partition import stated_partition
from opendas.solvers.problem.problem import FamilyProblem

SWEEPS = 20_000
"""Most sweeps of a fixed row."""
PATIENCE = 1_000
"""Sweeps within which the missed margins have to halve; else the sums contradict each other, or nearly."""
TIGHT = 1e-10
"""Missed margin, relative to the largest, at which a fixed row ends."""


class Transport(NamedTuple):
    """A projected table and its proof."""

    x: Floats  # (C, n)
    parent: Floats  # (n,): multipliers of the parent's cells
    fixed: Floats  # (C, R): multipliers of the fixed sums
    # (R,): largest difference of a margin, relative to the largest margin of the fixed row (at least 1).
    missed: Floats


@inner
def _root(points, slopes, count, total):
    """Return mu with sum of slopes * max(0, points - mu) = total; the largest point where total is 0."""
    order = np.argsort(-points[:count])
    if total <= 0.0:
        return points[order[0]]
    lead, slope = 0.0, slopes[order[0]]
    for k in range(1, count):
        grown = lead + slope * (points[order[k - 1]] - points[order[k]])
        if grown >= total:
            return points[order[k - 1]] - (total - lead) / slope
        lead = grown
        slope += slopes[order[k]]
    return points[order[count - 1]] - (total - lead) / slope


@inner
def _block(answers, scale, parent, mask, sums, mu, nu):
    """Fill mu (m,) and nu (C,) of one fixed row; return its table (C, m) and largest missed margin."""
    children, m = answers.shape
    points = np.empty(max(children, m))
    slopes = np.empty(max(children, m))
    x = np.zeros((children, m))
    largest = 1.0
    for total in parent:
        largest = max(largest, total)
    for total in sums:
        largest = max(largest, total)
    missed = before = np.inf
    for sweep in range(1, SWEEPS + 1):
        # nu_c: the fixed sum of child c, sum_j max(0, a_cj - (mu_j + nu_c) / scale_c).
        for c in range(children):
            count = 0
            for j in range(m):
                if mask[c, j]:
                    points[count] = scale[c] * answers[c, j] - mu[j]
                    slopes[count] = 1.0 / scale[c]
                    count += 1
            if count:
                nu[c] = _root(points, slopes, count, sums[c])
        # mu_j: the parent's cell j, the same summed over children.
        for j in range(len(parent)):
            count = 0
            for c in range(children):
                if mask[c, j]:
                    points[count] = scale[c] * answers[c, j] - nu[c]
                    slopes[count] = 1.0 / scale[c]
                    count += 1
            if count:
                mu[j] = _root(points, slopes, count, parent[j])
        missed = 0.0
        for c in range(children):
            missing = sums[c]
            for j in range(m):
                if mask[c, j]:
                    x[c, j] = max(0.0, answers[c, j] - (mu[j] + nu[c]) / scale[c])
                missing -= x[c, j]
            missed = max(missed, abs(missing))
        for j in range(len(parent)):
            missing = parent[j]
            for c in range(children):
                missing -= x[c, j]
            missed = max(missed, abs(missing))
        if missed <= TIGHT * largest:
            break
        if sweep % PATIENCE == 0:
            if missed > 0.5 * before:
                break
            before = missed
    return x, missed / largest


@njit(cache=True, nogil=True)
def _project(answers, scale, stated, fixed_rows, fixed):
    parent, mask = stated.parent, stated.mask
    children, n = answers.shape
    rows = fixed.shape[1]
    x = np.zeros((children, n))
    mu = np.zeros(n)
    nu = np.zeros((children, rows))
    missed = np.zeros(rows)
    start, order = cells_by_row(fixed_rows, rows)
    for r in range(rows):
        cells = order[start[r] : start[r + 1]]
        m = len(cells)
        if m == 0:
            missed[r] = np.abs(fixed[:, r]).max() / max(1.0, np.abs(fixed[:, r]).max())
            continue
        block_answers = np.empty((children, m))
        block_mask = np.empty((children, m), np.bool_)
        for c in range(children):
            for k in range(m):
                block_answers[c, k] = answers[c, cells[k]]
                block_mask[c, k] = mask[c, cells[k]]
        block_mu = np.zeros(m)
        block_nu = np.zeros(children)
        totals = parent[cells] if len(parent) else np.zeros(0)
        table, missed[r] = _block(
            block_answers, scale, totals, block_mask, fixed[:, r].copy(), block_mu, block_nu
        )
        nu[:, r] = block_nu
        for k in range(m):
            mu[cells[k]] = block_mu[k]
            for c in range(children):
                x[c, cells[k]] = table[c, k]
    return x, mu, nu, missed


def project_transport(problem: FamilyProblem) -> Transport:
    """Find the table nearest to the answers that keeps the parent, the fixed sums, and the mask.

    - `problem`: with fixed rows, and one Hessian for all children, a multiple of the identity. Groups and
      joint totals take no part.
    - Returns: minimum of ``sum_c scale_c / 2 ||x_c - linear_c / weight||^2``, with its multipliers. A fixed
      row whose ``missed`` is above 1e-10 has no proof: its sums contradict the parent or the mask, or the
      dual climbed too slowly. The general solver is then to be asked.

    Examples
    --------
    >>> detailed, one_row = np.arange(2, dtype=np.int32), np.zeros(2, np.int32)
    >>> answers, parent = np.array([[3.0, 0.0], [0.0, 4.0]]), np.array([3.0, 4.0])
    >>> sums = np.array([[4.0], [3.0]])
    >>> problem = FamilyProblem(((1.0, detailed),), answers, parent, fixed_rows=one_row, fixed=sums)
    >>> project_transport(problem).x.round(6)
    array([[3., 1.],
           [0., 3.]])
    """
    answers = problem.linear / problem.weight
    rows, fixed = stated_partition(problem)
    return Transport(*_project(answers, problem.scale, problem.constraints, rows, fixed))
