"""Checks of families: of a root's size before anything is drawn, and of an estimate's integers, exactly."""

from __future__ import annotations

import numpy as np

from opendas.arrays import Ints
from opendas.constraints.table import LevelConstraints
from opendas.errors import ConfigError, EstimationError
from opendas.schema.query_groups import Workload
from opendas.topdown.family_data import LevelRules
from opendas.topdown.model import Family
from opendas.topdown.stages import MergedCells

LARGEST_WRITTEN = 30_000
"""Cells of a root whose matrix is written out: 7 GB. Below a root, cells without records are left out."""


def check_roots(workload: Workload, rules: LevelRules, constraints: LevelConstraints) -> None:
    """Refuse roots whose least squares would fill the memory.

    Where some query group asks every cell and roots are estimated one by one, no matrix is written. A tie
    gives each of them its own total.

    `rules`, `constraints`, LevelRules, LevelConstraints: of the geolevel of the roots.

    Raises `ConfigError` naming the geolevel, the number of cells and what would help.
    """
    together = constraints.joint is not None and constraints.tied is None
    possible = np.flatnonzero(rules.possible).astype(np.int32)
    for number, stage in enumerate(rules.stages):
        merges = number < len(rules.earlier)
        support = possible[MergedCells.by(stage, possible).first] if merges else possible
        measured = dict.fromkeys(name for names in stage.least_squares for name in names)
        apart = np.zeros(len(support), dtype=np.int64)
        single = False
        for group in workload.groups(measured):
            rows = group.row_of_cell[support].astype(np.int64)
            single = single or len(np.unique(rows)) == len(rows)
            apart = np.unique(apart * group.size + rows, return_inverse=True)[1].reshape(-1)
        cells = int(apart.max(initial=-1)) + 1
        if cells > LARGEST_WRITTEN and (together or not single):
            raise _too_large(rules, cells, together=together)
    if constraints.linear is not None and len(possible) > LARGEST_WRITTEN:
        raise ConfigError(
            f"[[constraints]] {constraints.linear.names[0]!r}: with linear constraints, a root may have at "
            f"most {LARGEST_WRITTEN:,} cells; this product has {len(possible):,}. Use coarser attributes. If "
            "all coefficients are 0 or 1, use [[bounds]] on a recode instead."
        )


def _too_large(rules: LevelRules, cells: int, *, together: bool) -> ConfigError:
    why = "roots hold a total together" if together else "no query group asks every cell"
    return ConfigError(
        f"at geolevel {rules.geolevel!r}, where estimation starts, {cells:,} cells are told apart and {why}. "
        f"Least squares would need {8 * cells**2 / 1e9:,.0f} GB of memory; OpenDAS does it for up to "
        f"{LARGEST_WRITTEN:,} cells. "
        + (
            "Tie the run to an earlier release, where its product declares a tie; or choose a spine that "
            "does not divide the topmost geounits, or coarser attributes."
            if together
            else "Measure 'detailed' there, or use coarser attributes."
        )
    )


def check_family(family: Family, rules: LevelRules, counts: Ints) -> None:
    """Check integers against every constraint of a family.

    `counts` (C, s).

    Raises `EstimationError` naming the family and the first constraint that does not hold. It is a defect of
    the solver, never of the data: infeasible data are found before.
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
    linear = family.constraints.linear
    if linear is not None:
        broken = np.flatnonzero((linear.on(family.support).excess(counts) > 0).any(axis=0))
        if len(broken):
            raise fail(f"the linear constraint {linear.names[broken[0]]}")
    tied = family.constraints.tied
    if tied is not None:
        rows, of_cell = np.unique(tied.query.row_of_cell[family.support], return_inverse=True)
        answers = np.zeros((len(counts), len(rows)), dtype=np.int64)
        np.add.at(answers.T, of_cell.reshape(-1), counts.T)
        expected = tied.on(rows)
        if int(expected.sum()) != int(tied.counts.sum()) or not np.array_equal(answers, expected):
            raise fail(f"the tie to {tied.name}")
    joint = family.constraints.joint
    if joint is not None:
        totals = np.zeros_like(joint.totals)
        np.add.at(totals, joint.group, counts.sum(axis=1))
        if not np.array_equal(totals, joint.totals):
            raise fail(f"the invariant {joint.name} that parts hold together")
