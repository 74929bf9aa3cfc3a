"""Constraint groups of one family: which sums of cells are bounded, and by which numbers.

Letters: ``C`` children, ``s`` support cells, ``K`` groups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Floats, Ints
from opendas.constraints.table import JointTotal, LevelConstraints, LinearSums
from opendas.errors import InfeasibleFamily
from opendas.topdown.model import CellRules

NO_UPPER = 1 << 62
"""Upper bound of a group without one, in integers."""


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Groups of cells with bounded sums, per child."""

    names: tuple[str, ...]  # length K
    cells: Bools  # (K, s)
    lower: Floats  # (C, K)
    upper: Floats  # (C, K)
    mask: Bools  # (C, s): cells a child may use
    # whole_lower, whole_upper (C, K0): the integer bounds of the first ``K0`` groups: declared constraints,
    # not held margins.
    whole_lower: Ints
    whole_upper: Ints
    # Totals that several children hold together. That of an only child is a group.
    joint: JointTotal | None = None
    # (s,): row of each cell in a partition whose counts are fixed.
    fixed_rows: npt.NDArray[np.int32] | None = None
    fixed: Ints | None = None  # (C, R): these counts
    linear: LinearSums | None = None  # on the support

    @classmethod
    def build(
        cls,
        support: npt.NDArray[np.int32],
        parent: Ints | None,
        constraints: LevelConstraints,
        rules: CellRules,
        label: str,
    ) -> Groups:
        """Collect the declared constraints that can bind on a support."""
        children = constraints.lower.shape[0]
        bound_cells = rules.bound_cells[:, support]
        closed = constraints.upper == 0
        mask = ~(closed.astype(np.int64) @ bound_cells.astype(np.int64)).astype(bool)
        mask &= rules.possible[support]
        names: list[str] = []
        cells: list[Bools] = []
        lower: list[Ints] = []
        upper: list[Ints] = []
        for k, name in enumerate(rules.bound_names):
            inside = bound_cells[k]
            low, high = constraints.lower[:, k], constraints.upper[:, k]
            if not inside.any():
                if low.any():
                    raise InfeasibleFamily(label, "constraints", (f"lower bound of {name}",))
                continue
            available = int(parent[inside].sum()) if parent is not None else NO_UPPER
            binding = (high < available) & ~closed[:, k]
            if low.any() or binding.any():
                names.append(name)
                cells.append(inside)
                lower.append(low)
                upper.append(np.where(binding, high, NO_UPPER))
        for invariant in constraints.invariants:
            rows = invariant.query.row_of_cell[support]
            for row in range(invariant.query.size):
                inside = rows == row
                answers = invariant.answers[:, row]
                if not inside.any():
                    if answers.any():
                        raise InfeasibleFamily(label, "constraints", (f"invariant {invariant.name}",))
                    continue
                names.append(f"invariant {invariant.name}")
                cells.append(inside)
                lower.append(answers)
                upper.append(answers)
        joint = constraints.joint
        if joint is not None:
            _check_joint(joint, len(support), parent, label)
            if children == 1 and len(support):
                names.append(f"invariant {joint.name}")
                cells.append(np.ones(len(support), dtype=bool))
                lower.append(joint.totals)
                upper.append(joint.totals)
        whole_lower = np.stack(lower, axis=1) if lower else np.zeros((children, 0), np.int64)
        whole_upper = np.stack(upper, axis=1) if upper else np.zeros((children, 0), np.int64)
        upper_real = np.where(whole_upper >= NO_UPPER, np.inf, whole_upper.astype(np.float64))
        return cls(
            tuple(names),
            np.array(cells, dtype=bool).reshape(len(cells), len(support)),
            whole_lower.astype(np.float64),
            upper_real,
            mask,
            whole_lower,
            whole_upper,
            joint if children > 1 else None,
            linear=None if constraints.linear is None else constraints.linear.on(support),
        )

    @classmethod
    def of_partition(cls, rows: npt.NDArray[np.int32], counts: Ints) -> Groups:
        """Return what is left of the constraints where an earlier stage has rounded the rows of a partition.

        Its counts imply every declared constraint, and rows without records close their cells.

        - `rows` (s,): row of each cell, without gaps.
        - `counts` (C, R).
        """
        none = np.zeros((len(counts), 0))
        whole = none.astype(np.int64)
        cells = np.zeros((0, len(rows)), dtype=bool)
        mask = counts[:, rows] > 0
        return cls((), cells, none, none, mask, whole, whole, fixed_rows=rows, fixed=counts)

    def with_partition(self, rows: npt.NDArray[np.int32], counts: Ints) -> Groups:
        """Return the same with fixed counts of the rows of a partition, beside the declared constraints.

        Where there are no other constraints they stay a partition; else each row becomes a group of cells,
        which is slower: the rows are then no longer independent.
        """
        mask = self.mask & (counts[:, rows] > 0)
        if not self.names and self.joint is None:
            return replace(self, mask=mask, fixed_rows=rows, fixed=counts)
        numbers = np.arange(counts.shape[1], dtype=np.int32)
        held = counts.astype(np.float64)
        return replace(
            self,
            names=(*self.names, *(["fixed"] * len(numbers))),
            cells=np.concatenate([self.cells, rows[None, :] == numbers[:, None]]),
            lower=np.concatenate([self.lower, held], axis=1),
            upper=np.concatenate([self.upper, held], axis=1),
            mask=mask,
            whole_lower=np.concatenate([self.whole_lower, counts], axis=1),
            whole_upper=np.concatenate([self.whole_upper, counts], axis=1),
        )

    def hold(self, name: str, compact: npt.NDArray[np.int32], answers: Floats, slack: float) -> Groups:
        """Return the groups with a query group's answers, float64 (C, r), held within `slack`.

        A row that is already a group narrows that group instead of repeating it: repeated equalities
        would make the problem degenerate.
        """
        position = {row.tobytes(): k for k, row in enumerate(self.cells)}
        names = list(self.names)
        cells = list(self.cells)
        lower = list(self.lower.T)
        upper = list(self.upper.T)
        for row in range(answers.shape[1]):
            inside = compact == row
            low, high = answers[:, row] - slack, answers[:, row] + slack
            at = position.get(inside.tobytes())
            if at is None:
                names.append(f"held {name}")
                cells.append(inside)
                lower.append(low)
                upper.append(high)
            else:
                # Rounding errors of the earlier pass must not push the held value past a declared bound.
                old_low, old_high = lower[at], upper[at]
                lower[at] = np.clip(low, old_low, old_high)
                upper[at] = np.clip(high, old_low, old_high)
        return replace(
            self,
            names=tuple(names),
            cells=np.array(cells, dtype=bool).reshape(len(cells), self.mask.shape[1]),
            lower=np.stack(lower, axis=1),
            upper=np.stack(upper, axis=1),
        )

    @property
    def joint_names(self) -> tuple[str, ...]:
        """Joint totals in words, for messages."""
        return () if self.joint is None else joint_names(self.joint)


def joint_names(joint: JointTotal) -> tuple[str, ...]:
    """Return each joint total in words, with the positions of its children in the family, from 1."""
    names = []
    for s in range(len(joint.totals)):
        parts = np.flatnonzero(joint.group == s) + 1
        which = f"child {parts[0]}" if len(parts) == 1 else f"children {parts[0]} to {parts[-1]} together"
        names.append(f"invariant {joint.name} of {which}")
    return tuple(names)


def _check_joint(joint: JointTotal, cells: int, parent: Ints | None, label: str) -> None:
    """Refuse joint totals where there is no cell, or another sum than the parent's."""
    wrong = np.flatnonzero(joint.totals < 0)
    if cells == 0:
        wrong = np.flatnonzero(joint.totals)
    elif parent is not None and int(parent.sum()) != int(joint.totals.sum()):
        raise InfeasibleFamily(label, "constraints", (f"invariant {joint.name}", "the sum to the parent"))
    if len(wrong):
        raise InfeasibleFamily(label, "constraints", (joint_names(joint)[wrong[0]],))
