"""Constraints by name, on groups of cells that no constraint distinguishes: the elements of a contradiction.

Letters: ``n`` cells, ``a`` atoms (cells that the same constraints count), ``r`` rows of all constraints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from opendas.arrays import Bools, Ints
from opendas.constraints.table import LinearSums
from opendas.errors import ConstraintConflict, HeldConstraint
from opendas.schema.query_groups import QueryGroup
from opendas.solvers.problem.conflict import NO_LIMIT, RangeSystem, find_conflict


@dataclass(frozen=True, slots=True, eq=False)
class Atoms:
    """Cells that the same sets hold, taken together."""

    of_cell: Ints  # (n,): atom of each cell
    first: Ints  # (a,): a cell of each atom

    @classmethod
    def of(cls, maps: Sequence[npt.NDArray[Any]], size: int) -> Atoms:
        """Return the atoms of maps (row of each cell, or whether a set holds it), each of shape (n,)."""
        label = np.zeros(size, dtype=np.int64)
        first = np.zeros(min(size, 1), dtype=np.int64)
        for one in maps:
            values = one.astype(np.int64)
            values -= values.min(initial=0)
            joined = label * (int(values.max(initial=0)) + 1) + values
            _, first, label = np.unique(joined, return_index=True, return_inverse=True)
        return cls(label.reshape(-1).astype(np.int64), first.astype(np.int64))

    def __len__(self) -> int:
        return len(self.first)

    def sets(self, cells: Bools) -> Bools:
        """Return sets of cells, bool (k, n), as sets of atoms, bool (k, a)."""
        return np.asarray(cells[:, self.first])

    def rows(self, query: QueryGroup) -> Any:
        """Return the rows of a query group as sets of atoms, sparse (m, a)."""
        place = (query.row_of_cell[self.first].astype(np.int64), np.arange(len(self)))
        return sparse.csr_array((np.ones(len(self), np.int64), place), shape=(query.size, len(self)))


def invariant_name(name: str, query: QueryGroup, row: int) -> str:
    """Return an invariant in words, its row if it has several."""
    return f"invariant {name}" if query.size == 1 else f"invariant {name}, {query.row_label(row)}"


def is_laminar(sets: Any) -> bool:
    """Return whether of any two sets, sparse (k, a), one holds the other or they have nothing in common."""
    ones = sparse.csr_array(sets).astype(np.int64)
    size = np.asarray(ones.sum(axis=1)).ravel()
    common: Any = sparse.coo_array(ones @ ones.T)
    return bool(np.all(common.data == np.minimum(size[common.row], size[common.col])))


def forest(sets: Any, possible: Bools, *, laminar: bool) -> tuple[list[int], list[list[int]], Bools]:
    """Return the order from small to large, disjoint sets inside each set, and whether they leave a cell out.

    Where sets cross, only the order of each set by itself is used: no set is inside another.
    """
    ones = sparse.csr_array(sets[:, np.flatnonzero(possible)]).astype(np.int64)
    size = np.asarray(ones.sum(axis=1)).ravel()
    order = np.argsort(size, kind="stable").tolist()
    below: list[list[int]] = [[] for _ in order]
    covered = np.zeros(len(order), dtype=np.int64)
    if laminar and len(order):
        common: Any = sparse.csr_array(ones @ ones.T)
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        for one in order:
            holders = common.indices[common.indptr[one] : common.indptr[one + 1]]
            holders = holders[rank[holders] > rank[one]]
            if len(holders) and size[one]:
                above = int(holders[np.argmin(rank[holders])])
                below[above].append(one)
                covered[above] += size[one]
    return order, below, covered < size


@dataclass(slots=True)
class Gathering:
    """Named constraints on sums of variables, gathered one by one; messages name earlier ones first."""

    width: int  # number of variables, each a non-negative number of records
    held: list[HeldConstraint] = field(default_factory=list)
    columns: list[Ints] = field(default_factory=list)
    times: list[Ints] = field(default_factory=list)

    def add(self, held: HeldConstraint, columns: npt.NDArray[Any], times: Ints | None = None) -> None:
        """Add a constraint on the sum of some variables, each times its coefficient where these are given."""
        self.held.append(held)
        self.columns.append(np.asarray(columns, dtype=np.int64))
        self.times.append(np.ones(len(columns), np.int64) if times is None else times)

    def add_linear(self, linear: LinearSums, geounit: int, where: str, blocks: Ints) -> None:
        """Add the linear constraints of a geounit, whose variables stand in blocks (b, 1) of atoms.

        `linear`: on the atoms.
        """
        for name, row, at_most in zip(
            linear.names, linear.coefficients, linear.at_most[geounit], strict=True
        ):
            inside = np.flatnonzero(row)
            held = HeldConstraint(where, f"linear constraint {name}", "<=", int(at_most))
            self.add(held, (blocks + inside).ravel(), np.tile(row[inside], len(blocks)))

    def system(self) -> RangeSystem:
        """Return the constraints in numbers."""
        counts = [len(columns) for columns in self.columns]
        indptr = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
        indices = np.concatenate([*self.columns, np.zeros(0, np.int64)])
        times = np.concatenate([*self.times, np.zeros(0, np.int64)])
        negative = np.array([bool((some < 0).any()) for some in self.times], dtype=bool)
        place = (times, indices, indptr)
        value = np.array([held.value for held in self.held], dtype=np.int64)
        relation = np.array([held.relation for held in self.held])
        return RangeSystem(
            sparse.csr_array(place, shape=(len(self.held), self.width)),
            np.where(relation == "<=", np.where(negative, -NO_LIMIT, np.minimum(value, 0)), value),
            np.where(relation == ">=", NO_LIMIT, value),
        )

    def conflict(self, others: Sequence[str] = ()) -> ConstraintConflict | None:
        """Return the smallest contradiction among the constraints, or None."""
        found = find_conflict(self.system())
        if found is None:
            return None
        return ConstraintConflict(
            tuple(self.held[row] for row in found.rows),
            found.smallest,
            found.irreducible,
            found.least,
            found.most,
            tuple(others),
        )
