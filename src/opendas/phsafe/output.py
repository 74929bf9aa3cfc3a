"""Write the published output: a folder for each table, with one ``|``-delimited file.

Folders are written under a temporary name and moved when all are complete, so an interruption never leaves
part of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from opendas.arrays import Ints
from opendas.custody.folders import fsync_folder, make_folder, move_folder, remove_tree, write_atomic
from opendas.phsafe.config import Config, Plan
from opendas.phsafe.counting import exact_cubes, level_counts
from opendas.phsafe.inputs.levels import Level, regions
from opendas.phsafe.inputs.linking import Linked
from opendas.phsafe.tables import DERIVED, OUTPUTS, Derived, Table

PART_FILE = "part-00000-opendas-c000.csv"
STAGING = ".tables.partial"
"""Folder inside the output folder where tables are written before they are moved."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Block:
    """The rows of one level of a table."""

    level: Level
    counts: Ints  # (regions, groups, cells)
    # Name of the noise distribution; None for exact counts, which lack the last two columns.
    noise: str | None = None
    variance: float = 0.0  # of each cell, in squared counts; 0 without noise
    # For each cell, the number of measured cells it sums, which multiplies `variance`.
    factors: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class OutputTable:
    """A table to be written."""

    name: str
    has_groups: bool  # whether the table has the column ITERATION_CODE
    cells: tuple[int, ...]  # codes of the cells
    blocks: tuple[Block, ...]
    skip_zeros: bool = False  # omit rows with count 0, as the non-private mode does

    @property
    def columns(self) -> tuple[str, ...]:
        """Column names of the header."""
        noisy = any(block.noise is not None for block in self.blocks)
        return (
            "REGION_ID",
            "REGION_TYPE",
            *(("ITERATION_CODE",) if self.has_groups else ()),
            f"{self.name.upper()}_DATA_CELL",
            "COUNT",
            *(("NOISE_DISTRIBUTION", "VARIANCE") if noisy else ()),
        )

    def select(self, level: Level, cells: Sequence[int]) -> Ints:
        """Return the counts of some cells at a level, int64 (regions, groups, cells)."""
        block = next(block for block in self.blocks if block.level == level)
        return np.asarray(block.counts[..., [self.cells.index(cell) for cell in cells]])

    def text(self, state_filter: Sequence[str]) -> str:
        """Return the text of the file: header, then rows by level, region, group and cell."""
        lines = ["|".join(self.columns)]
        for block in self.blocks:
            lines += self._lines(block, state_filter)
        return "\n".join(lines) + "\n"

    def _lines(self, block: Block, state_filter: Sequence[str]) -> list[str]:
        geography, groups = block.level.geography, block.level.iteration.codes
        factors = block.factors or (1,) * len(self.cells)
        tails = [""] * len(self.cells)
        if block.noise is not None:
            tails = [f"|{block.noise}|{_number(factor * block.variance)}" for factor in factors]
        lines = []
        for region, of_region in zip(regions(geography, state_filter), block.counts.tolist(), strict=True):
            start = f"{region}|{geography.region_type}|"
            for group, of_group in zip(groups, of_region, strict=True):
                head = f"{start}{group}|" if self.has_groups else start
                lines += [
                    f"{head}{cell}|{count}{tail}"
                    for cell, count, tail in zip(self.cells, of_group, tails, strict=True)
                    if count or not self.skip_zeros
                ]
        return lines


def exact_tables(
    config: Config, linked: Linked, derived: tuple[Derived, ...] = DERIVED
) -> tuple[OutputTable, ...]:
    """Count every table without truncation and without noise.

    - `derived`: further tables, counted directly if the published mode does so.
    - Returns: with the totals of the published tables, without rows of count 0.
    """
    tables = exact_declarations(config, derived)
    return lay_out(tables, exact_cubes(tables, linked, len(config.state_filter)))


def exact_declarations(config: Config, derived: tuple[Derived, ...] = DERIVED) -> dict[str, Table]:
    """Return the tables that the non-private mode counts, by output name."""
    counted = {table.name: table for table in config.tables}
    more = {one.name: one.truth or counted[one.source] for one in derived if one.source in counted}
    return {**counted, **more}


def lay_out(tables: Mapping[str, Table], cubes: Mapping[str, Ints]) -> tuple[OutputTable, ...]:
    """Return the exact tables to write: with the published table's further cells, without zeros.

    `tables`: by output name, which differs from the table's name if derived.
    """
    written = []
    for name, table in tables.items():
        parts = table.published
        blocks = [
            Block(level, _summed(level_counts(cubes[name], level), table.cells, list(parts.values())))
            for level in table.levels
        ]
        written.append(OutputTable(name, table.has_groups, tuple(parts), tuple(blocks), skip_zeros=True))
    return tuple(written)


def private_tables(
    plan: Plan,
    cubes: Mapping[str, Ints],
    derived: Iterable[Derived],
    block_of: Callable[[Table, Level, Ints], Block],
) -> tuple[OutputTable, ...]:
    """Lay out every table with a budget, and the tables derived from them.

    `block_of`, callable(Table, Level, int64 (regions, groups, cells)) -> Block: returns the block to write
    for the counts of a level.
    """
    tables = {}
    for table in plan.config.tables:
        if table.name in cubes:
            blocks = [
                block_of(table, level, level_counts(cubes[table.name], level))
                for level in plan.config.budgets[table.name]
            ]
            tables[table.name] = OutputTable(table.name, table.has_groups, table.cells, tuple(blocks))
    more = [derive(one, tables[one.source]) for one in derived if one.source in tables]
    return (*tables.values(), *more)


def derive(derived: Derived, source: OutputTable) -> OutputTable:
    """Compute a derived table from a measured one by adding counts and variances."""
    cells, parts = tuple(derived.cells), list(derived.cells.values())
    blocks = tuple(
        Block(
            block.level,
            _summed(block.counts, source.cells, parts),
            block.noise,
            block.variance,
            tuple(len(part) for part in parts),
        )
        for block in source.blocks
    )
    return OutputTable(derived.name, source.has_groups, cells, blocks)


def write_tables(out: Path, tables: Iterable[OutputTable], state_filter: Sequence[str]) -> tuple[str, ...]:
    """Write each table into its folder, replacing earlier tables.

    Returns: files, relative to `out`.
    """
    staging = out / STAGING
    remove_tree(staging)
    make_folder(staging)
    try:
        names = []
        for table in tables:
            write_atomic(staging / table.name / PART_FILE, table.text(state_filter).encode("ascii"))
            names.append(table.name)
        for name in names:
            move_folder(staging / name, out / name)
        fsync_folder(out)
    finally:
        remove_tree(staging)
    ordered = [name for name in OUTPUTS if name in names]
    ordered += [name for name in names if name not in OUTPUTS]
    return tuple(f"{name}/{PART_FILE}" for name in ordered)


def _summed(counts: Ints, cells: tuple[int, ...], parts: Sequence[tuple[int, ...]]) -> Ints:
    """Sum cells, given by code, along the last axis."""
    columns = [counts[..., [cells.index(code) for code in part]].sum(axis=-1) for part in parts]
    return np.stack(columns, axis=-1)


def _number(value: float) -> str:
    """Return a variance as text that parses to the same double; "0" without noise."""
    return "0" if value == 0 else repr(value)
