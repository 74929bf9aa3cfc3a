"""Which cells make which totals, and which tables share numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from opendas.errors import ConfigError
from opendas.phsafe.tables import find_table


class Model(StrEnum):
    """How tables are fitted."""

    JOINT = "joint"
    """Counts on the integers under the noise that was added; tables that share numbers share a posterior."""
    PUBLISHED = "published"
    """Continuous normal noise, every table by itself, as in the Bureau's model-based estimates."""


@dataclass(frozen=True, slots=True)
class CountTable:
    """A table of counts."""

    name: str  # folder of the measurements, and of the estimates
    cells: tuple[int, ...]  # measured cells
    # Totals, in the order of the published estimates, as sums of measured cells.
    margins: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class AverageTable:
    """A table of averages: persons per household or family."""

    name: str
    # numerator, denominator: folders of the measurements.
    numerator: str
    denominator: str
    least: int  # Persons that every household (1) or family (2) has
    # Whether each cell has a denominator of its own (PH8). Otherwise all cells share one.
    by_cell: bool = False
    counts: str | None = None  # the count table with the same numerators

    @property
    def cells(self) -> tuple[int, ...]:
        """Cells of the estimates: all, and the two that make it."""
        return (1, 2, 3)

    @property
    def denominator_cells(self) -> tuple[int, ...]:
        """Measured cells of the denominator."""
        return (2, 3) if self.by_cell else (1,)


def _count_table(name: str) -> CountTable:
    """Take cells and totals from the declaration of the measured table; the total of all comes last."""
    table = find_table(name)
    if table is None:
        raise ConfigError(f"there is no table {name}.")
    order = sorted(table.shell, key=lambda cell: (cell == 1, cell))
    return CountTable(name, table.cells, MappingProxyType({cell: table.shell[cell] for cell in order}))


COUNTS: Mapping[str, CountTable] = MappingProxyType(
    {name: _count_table(name) for name in ("PH2", "PH3", "PH4", "PH6", "PH7")}
)
"""The tables of counts, by name."""

AVERAGES: Mapping[str, AverageTable] = MappingProxyType(
    {
        "PH1": AverageTable("PH1", "PH1_num", "PH1_denom", 1),
        "PH5": AverageTable("PH5", "PH5_num", "PH5_denom", 2, counts="PH4"),
        "PH8": AverageTable("PH8", "PH8_num", "PH8_denom", 1, by_cell=True, counts="PH7"),
    }
)
"""The tables of averages, by name."""
