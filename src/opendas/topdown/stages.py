"""Stages of estimation: the cells that an earlier stage merges, and what it fixes for the next.

Letters: ``C`` children, ``s`` support cells, ``m`` merged cells, ``R`` fixed rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Ints, refines
from opendas.constraints.table import LevelConstraints, PublicCounts
from opendas.errors import ConfigError, InfeasibleFamily
from opendas.measurement.family import FamilyMeasurement, QueryAnswers
from opendas.schema.query_groups import Workload
from opendas.topdown.family_data import LevelRules
from opendas.topdown.model import Family, StageRules


@dataclass(frozen=True, slots=True, eq=False)
class MergedCells:
    """The cells of a stage: runs of support cells that the stage does not distinguish."""

    # (m,): position in the support of the first cell of each merged one, ascending; it stands for all of
    # them.
    first: npt.NDArray[np.int64]
    of_cell: npt.NDArray[np.int32]  # (s,): merged cell of each support cell

    @classmethod
    def each(cls, support: npt.NDArray[np.int32]) -> MergedCells:
        """Merge nothing."""
        return cls(np.arange(len(support), dtype=np.int64), np.arange(len(support), dtype=np.int32))

    @classmethod
    def by(cls, stage: StageRules, support: npt.NDArray[np.int32]) -> MergedCells:
        """Merge the cells of each row of the finest query group of an earlier stage."""
        rows = stage.rounder[-1][-1][1][support]
        _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
        order = np.argsort(first)
        place = np.empty(len(order), dtype=np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        return cls(first[order].astype(np.int64), place[inverse.reshape(-1)])

    def family(self, family: Family) -> Family:
        """Return the family with merged cells, each with the parent's sum."""
        parent = family.parent
        if parent is not None:
            sums = np.zeros(len(self.first), dtype=np.int64)
            np.add.at(sums, self.of_cell, parent)
            parent = sums
        return replace(family, support=family.support[self.first], parent=parent)

    def answers(self, measurement: FamilyMeasurement) -> FamilyMeasurement:
        """Return the same answers for merged cells.

        Query groups of other stages may distinguish merged cells; they are ignored.
        """
        queries = tuple(replace(query, compact=query.compact[self.first]) for query in measurement.queries)
        return replace(measurement, queries=queries)


@dataclass(frozen=True, slots=True, eq=False)
class FixedRows:
    """What a stage has rounded: counts of the rows of a partition of the cells."""

    rows: npt.NDArray[np.int32]  # (s,): row of each cell
    counts: Ints  # (C, R): of each row in each child

    @classmethod
    def of_tie(cls, tied: PublicCounts, family: Family) -> FixedRows:
        """Return the counts of the children in an earlier release, on the rows that the support touches."""
        rows, of_cell = np.unique(tied.query.row_of_cell[family.support], return_inverse=True)
        counts = tied.on(rows)
        if int(counts.sum()) != int(tied.counts.sum()):
            raise InfeasibleFamily(family.label, "constraints", (f"the tie to {tied.name}",))
        return cls(of_cell.reshape(-1).astype(np.int32), counts)

    def at(self, cells: MergedCells) -> FixedRows:
        """Return the same with the merged cells of a later stage, which divide the rows."""
        return FixedRows(self.rows[cells.first], self.counts)

    @property
    def undecided(self) -> Bools:
        """Bool (s,): cells that share their row with another."""
        return np.asarray(np.bincount(self.rows)[self.rows] > 1)

    def decided(self) -> Ints:
        """Return int64 (C, s): of a cell that has a row to itself, the count of that row; else zero."""
        return np.where(self.undecided, 0, self.counts[:, self.rows])

    def only(self, cells: Bools) -> FixedRows:
        """Return the rows of some cells, without gaps; none of the rows may have other cells."""
        kept, rows = np.unique(self.rows[cells], return_inverse=True)
        return FixedRows(rows.reshape(-1).astype(np.int32), self.counts[:, kept])


def without_decided(measurement: FamilyMeasurement, counts: Ints, cells: Bools) -> FamilyMeasurement:
    """Return what is left of noisy answers for some cells, when the counts of the others are known.

    - `counts` (C, s): zero at `cells`.
    - `cells` (s,).
    """
    queries = []
    for query in measurement.queries:
        known = np.zeros_like(query.values)
        np.add.at(known.T, query.compact, counts.T)
        kept, compact = np.unique(query.compact[cells], return_inverse=True)
        queries.append(
            QueryAnswers(
                query.name,
                query.rows[kept],
                compact.reshape(-1).astype(np.int32),
                np.ascontiguousarray((query.values - known)[:, kept]),
                query.variance,
            )
        )
    return replace(measurement, queries=tuple(queries))


def check_stages(rules: LevelRules, constraints: LevelConstraints, workload: Workload) -> None:
    """Refuse stages whose results could not be divided among the cells, before anything is drawn.

    Whatever an earlier stage uses must be the same for all cells of a row of its finest query group: its own
    query groups, the stage before it, and every constraint.
    """
    tied = constraints.tied
    possible = rules.possible
    before = None if tied is None else (f"the tie to {tied.name}", tied.query.row_of_cell)
    held = [before]
    for number, stage in enumerate(rules.earlier):
        name, finest = stage.rounder[-1][-1]
        own = [(query, m) for queries in stage.rounder for query, m in queries]
        own += [(q, workload.group(q).row_of_cell) for names in stage.least_squares for q in names]
        coarser = [*own] if before is None else [*own, before]
        coarser += list(zip(rules.bound_names, rules.bound_cells, strict=True))
        coarser += [(f"invariant {i.name}", i.query.row_of_cell) for i in constraints.invariants]
        if constraints.linear is not None:
            coarser += list(zip(constraints.linear.names, constraints.linear.coefficients, strict=True))
        for other, values in coarser:
            if not refines(finest[possible], values[possible]):
                movable = any(other == query for query, _ in own)
                raise ConfigError(
                    f"[passes] earlier, stage {number + 1} at {rules.geolevel!r}: {other!r} tells cells "
                    f"apart that share a row of {name!r}, the last query group that this stage rounds. Add a "
                    "finer query group at the end of the rounder of this stage"
                    + (f", or move {other!r} to a later stage." if movable else ".")
                )
        before = (name, finest)
        held.append(before)
    for number, (stage, fixed) in enumerate(zip(rules.stages, held, strict=True), 1):
        if fixed is None:
            continue
        name, finest = fixed
        for query, rows in (found for queries in stage.rounder for found in queries):
            here, there = rows[possible], finest[possible]
            if refines(here, there) or refines(there, here):
                continue
            raise ConfigError(
                f"[passes] stage {number} at {rules.geolevel!r}: rows of {query!r} cross rows of {name!r}, "
                f"whose counts are fixed before this stage. Replace {query!r} by a query group that is finer "
                f"or coarser than {name!r}."
            )
