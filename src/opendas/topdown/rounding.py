"""Controlled rounding of a family (TopDown, equation 7.7), by :mod:`opendas.solvers.rounding.rounding`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opendas.arrays import Floats, Ints, refines
from opendas.arrays.kernels import without_gaps
from opendas.constraints.table import LevelConstraints
from opendas.solvers.rounding.laminar import Rows, check_laminar
from opendas.solvers.rounding.rounding import UNBOUNDED, RoundingNames, round_family
from opendas.topdown.constraint_groups import NO_UPPER, Groups
from opendas.topdown.family_data import LevelRules
from opendas.topdown.model import Family


def check_rounder_passes(rules: LevelRules, constraints: LevelConstraints) -> None:
    """Refuse rounder passes that no family of a geolevel could be sure to round, before anything is drawn.

    All possible cells and all declared constraints are examined. A family has some of both, so that what
    passes here cannot cross later.

    Raises `ConfigError` if two row groups cross; the message names them.
    """
    if rules.milp:
        return
    names = list(rules.bound_names)
    groups = [cells & rules.possible for cells in rules.bound_cells]
    for invariant in constraints.invariants:
        for row in range(invariant.query.size):
            names.append(f"invariant {invariant.name}")
            groups.append((invariant.query.row_of_cell == row) & rules.possible)
    n = len(rules.possible)
    for number, stage in enumerate(rules.stages):
        named = [query for queries in stage.rounder for query in queries]
        if number:  # its rows are fixed by then, and imply the constraints
            named.append(rules.earlier[number - 1].rounder[-1][-1])
        maps = [np.where(rules.possible, rows, -1) for _, rows in named]
        held = [] if number else groups
        check_laminar(
            Rows(
                np.array([_without_gaps(rows) for rows in maps], dtype=np.int32).reshape(-1, n),
                np.array(held, dtype=np.bool_).reshape(-1, n),
            ),
            [name for name, _ in named],
            names[: len(held)],
        )


def _without_gaps(rows: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    inside = rows >= 0
    numbered = np.full(len(rows), -1, dtype=np.int32)
    # Not the compiled function: this runs in the main process, which may have no other use for compiled code.
    numbered[inside] = np.unique(rows[inside], return_inverse=True)[1]
    return numbered


def round_estimate(family: Family, rules: LevelRules, groups: Groups, estimate: Floats) -> Ints:
    """Round a least-squares estimate in the passes of (7.7).

    - `groups`: declared constraints; held margins of the least squares do not bind the rounder.
    - `estimate` (C, s).

    Notes
    -----
    Abowd et al. (2022), equation (7.7).
    """
    estimate = _close_columns(np.where(groups.mask, estimate, 0.0), family.parent)
    count = groups.whole_lower.shape[1]
    passes = tuple(
        tuple((name, without_gaps(rows[family.support])) for name, rows in queries)
        for queries in rules.rounder
        if queries
    )
    if groups.fixed_rows is not None:  # answers of coarser query groups are fixed, too
        finer = [[(n, m) for n, m in maps if refines(m, groups.fixed_rows)] for maps in passes]
        passes = tuple(tuple(maps) for maps in finer if maps)
    names = RoundingNames(
        family.label,
        tuple(tuple(name for name, _ in maps) for maps in passes),
        groups.names[:count],
        groups.joint_names,
    )
    result = round_family(
        estimate,
        # A writable copy: compiled code is specialised on it, and would else be compiled twice.
        None if family.parent is None else family.parent.copy(),
        groups.mask,
        tuple(tuple(rows for _, rows in maps) for maps in passes),
        groups.cells[:count],
        groups.whole_lower,
        np.where(groups.whole_upper >= NO_UPPER, UNBOUNDED, groups.whole_upper),
        family.tie_keys,
        cell_keys=family.support.astype(np.uint64),
        names=names,
        milp=rules.milp,
        joint=None if groups.joint is None else groups.joint.group,
        joint_total=None if groups.joint is None else groups.joint.totals,
        fixed_rows=groups.fixed_rows,
        fixed=groups.fixed,
        linear=None if groups.linear is None else (groups.linear.coefficients, groups.linear.at_most),
    )
    return result.values


def _close_columns(estimate: Floats, parent: Ints | None) -> Floats:
    """Rescale each cell's column to sum to the parent.

    A certified solution is exact relative to the family's largest count; beside a cell with millions of
    records that leaves room for an error of a tenth of a record in a small one. Zeros stay zero.
    """
    if parent is None:
        return estimate
    sums = estimate.sum(axis=0)
    factors = np.ones(len(sums))
    np.divide(parent, sums, out=factors, where=sums > 0.0)
    return np.asarray(estimate * factors)
