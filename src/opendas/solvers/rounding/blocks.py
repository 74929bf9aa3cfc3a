# mypy: allow-untyped-defs, allow-untyped-calls
"""Rounding under a fixed partition, set apart for its own compile cache: one flow for each fixed row.

Where every child's sum over every row of a partition is fixed, and no row of a pass crosses a fixed row, no
term of the objective and no constraint ties cells of two fixed rows. The family then falls apart into one
problem for each of them (``docs/proofs/rounding.md``), in time and memory linear in their number. Later
stages of products with several need it, and products that are tied to another release.

Axes: C children, n cells, R fixed rows.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from opendas.arrays.kernels import cells_by_row, inner
from opendas.solvers.rounding.kernels import VIOLATED, round_passes
from opendas.solvers.rounding.problem import RoundingProblem
from opendas.solvers.rounding.snapping import DONE


@inner
def _renumber(rows, cells, number, local):
    """Fill ``local`` (m,) with the rows of some cells, numbered from 0; ``number`` is -1 before and after."""
    used = np.int32(0)
    for k in range(len(cells)):
        row = rows[cells[k]]
        local[k] = row
        if row >= 0:
            if number[row] < 0:
                number[row] = used
                used += 1
            local[k] = number[row]
    for k in range(len(cells)):
        if rows[cells[k]] >= 0:
            number[rows[cells[k]]] = -1


@inner
def _block(problem, cells, sums, number):
    """Return the problem of one fixed row: its cells, and their sum in each child as one equality."""
    x, mask, maps = problem.x, problem.mask, problem.maps
    children, m = len(x), len(cells)
    block_x = np.empty((children, m))
    block_mask = np.empty((children, m), np.bool_)
    for c in range(children):
        for k in range(m):
            block_x[c, k] = x[c, cells[k]]
            block_mask[c, k] = mask[c, cells[k]]
    block_maps = np.empty((len(maps), m), np.int32)
    for q in range(len(maps)):
        _renumber(maps[q], cells, number, block_maps[q])
    bounds = np.empty((children, 1), np.int64)
    bounds[:, 0] = sums
    return RoundingProblem(
        block_x,
        problem.total[cells],
        problem.has_total,
        block_mask,
        block_maps,
        problem.map_pass,
        problem.passes,
        np.ones((1, m), np.bool_),
        bounds,
        bounds,
        problem.child_keys,
        problem.cell_keys[cells],
        problem.joint,
        problem.joint_total,
    )


@njit(cache=True, nogil=True)
def round_blocks(problem, fixed_rows, fixed):
    """Round a family one fixed row at a time.

    - `problem`, RoundingProblem: the family, without groups and joint totals. No row of a map crosses a fixed
      row.
    - `fixed_rows`, int32 array, (n,): fixed row of each cell.
    - `fixed`, int64 array, (C, R): sum of each child over the cells of each fixed row.
    - Returns `status`: as of :func:`opendas.solvers.rounding.kernels.round_passes`, of the first row that
      cannot be rounded.
    - Returns `row`: that row, -1 where there is none.
    - Returns `values` (C, n): rounded estimate.
    - Returns `objective` (passes,): objective of each pass in units of 2**-20, over all rows.
    """
    children, n = problem.x.shape
    values = np.zeros((children, n), np.int64)
    objective = np.zeros(problem.passes, np.int64)
    start, cells_of = cells_by_row(fixed_rows, fixed.shape[1])
    top = -1
    for q in range(len(problem.maps)):
        for row in problem.maps[q]:
            top = max(top, row)
    number = np.full(top + 1, np.int32(-1))
    for r in range(fixed.shape[1]):
        cells = cells_of[start[r] : start[r + 1]]
        if len(cells) == 0:
            if np.any(fixed[:, r] != 0):
                return VIOLATED, r, values, objective
            continue
        block = _block(problem, cells, fixed[:, r], number)
        status, rounded, distance = round_passes(block)
        if status != DONE:
            return status, r, values, objective
        objective += distance
        for c in range(children):
            for k in range(len(cells)):
                values[c, cells[k]] = rounded[c, k]
    return DONE, -1, values, objective
