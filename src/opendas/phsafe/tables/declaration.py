"""What a table is: which rows it counts, the cell of each, and who the population group is taken from.

A table is a declaration. Its functions see whole columns and answer with whole columns; a row that the table
counts and that has no cell is :data:`~opendas.phsafe.inputs.codes.OUTSIDE`, never an error raised on the way:
a crash on one combination of codes would reveal that someone has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools
from opendas.errors import ConfigError
from opendas.phsafe.inputs.levels import LEVELS, Iteration, Level
from opendas.phsafe.inputs.records import Persons, Units

Cells = npt.NDArray[np.int8]


# A name is that of a folder beside confidential/, and part of the purpose of a key.
_NAME = re.compile("[A-Z][A-Za-z0-9_]{0,63}")


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"table {name!r}: a name is a capital letter, then letters, digits and underscores."
        )


class Kind(StrEnum):
    """What a table counts."""

    PERSONS = "persons"
    UNITS = "units"


class IteratesBy(StrEnum):
    """Whose race and Hispanic origin decide the population group."""

    HOUSEHOLDER = "householder"
    PERSON = "person"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Joined:
    """The rows a table counts: persons beside their unit, or units by themselves. Confidential.

    - `person_rows` (n,): position in `persons` of each row; None for a table of units.
    - `unit_rows` (n,): position in `units` of each row.
    """

    persons: Persons
    units: Units
    person_rows: npt.NDArray[np.int64] | None
    unit_rows: npt.NDArray[np.int64]

    def __repr__(self) -> str:
        return f"Joined({len(self)} rows)"

    def __len__(self) -> int:
        return len(self.unit_rows)

    def person(self, column: str) -> npt.NDArray[Any]:
        """Return a column of the persons, one value a row."""
        if self.person_rows is None:
            raise ConfigError(f"a table of units asked for the person column {column!r}.")
        return np.asarray(getattr(self.persons, column)[self.person_rows])

    def unit(self, column: str) -> npt.NDArray[Any]:
        """Return a column of the units, one value a row."""
        return np.asarray(getattr(self.units, column)[self.unit_rows])


@dataclass(frozen=True, slots=True)
class Table:
    """A measured table.

    - `name`: as in the configuration and in the folder name.
    - `cells`: codes of the measured cells, in order.
    - `cell_index`, callable(Joined) -> int8 (n,): position of each row's cell in `cells`; where it has none,
      :data:`~opendas.phsafe.inputs.codes.OUTSIDE`.
    - `cell_rule`: what a row needs to have a cell, for messages.
    - `cell_field`: the column that the rule is about, for messages.
    - `iterates_by`: None for a table of totals only.
    - `person_filter`, callable(Persons) -> bool (n,): which persons count. Applied *before* truncation.
    - `unit_filter`, callable(Units) -> bool (u,): which units count, themselves or with their persons.
    - `shell`: further cells of the published table, each as a sum of measured cells; written by the
      non-private mode only.
    - `truth_filter`, callable(Units) -> bool (u,): a further unit filter that the published non-private mode
      has.
    - `weight`: a column of the units to sum instead of counting; in non-private mode only.

    Raises `ConfigError` if the declaration contradicts itself.
    """

    name: str
    kind: Kind
    cells: tuple[int, ...]
    cell_index: Callable[[Joined], Cells]
    cell_rule: str
    cell_field: str
    iterates_by: IteratesBy | None = None
    person_filter: Callable[[Persons], Bools] | None = None
    unit_filter: Callable[[Units], Bools] | None = None
    shell: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    truth_filter: Callable[[Units], Bools] | None = None
    weight: str | None = None

    def __post_init__(self) -> None:
        _check_name(self.name)
        if not self.cells or len(set(self.cells)) != len(self.cells) or len(self.cells) > 127:
            raise ConfigError(f"table {self.name}: it needs 1 to 127 cells, each with a code of its own.")
        if self.kind is Kind.UNITS and (
            self.person_filter is not None or self.iterates_by is IteratesBy.PERSON
        ):
            raise ConfigError(f"table {self.name} counts units: it has no person filter and no person group.")
        for code, parts in self.shell.items():
            if not set(parts) <= set(self.cells):
                raise ConfigError(f"table {self.name}: cell {code} of the shell sums cells it does not have.")

    @property
    def published(self) -> dict[int, tuple[int, ...]]:
        """Every cell of the published table, totals included, as a sum of measured cells; by code."""
        return dict(sorted({**{cell: (cell,) for cell in self.cells}, **self.shell}.items()))

    @property
    def levels(self) -> tuple[Level, ...]:
        """Population group levels, in the order of the published program."""
        if self.iterates_by is not None:
            return LEVELS
        return tuple(level for level in LEVELS if level.iteration is Iteration.ALL)

    @property
    def has_tau(self) -> bool:
        """Whether persons are truncated: in every table that counts persons."""
        return self.kind is Kind.PERSONS

    @property
    def has_groups(self) -> bool:
        """Whether the output has the column ITERATION_CODE."""
        return self.iterates_by is not None


@dataclass(frozen=True, slots=True)
class Derived:
    """A table computed from a measured one, at no further loss.

    - `source`: name of the measured table.
    - `cells`: each cell as a sum of cells of the source; variances add up with the counts.
    - `truth`: what the non-private mode counts instead; None for the source's own exact counts, with its
      shell.
    """

    name: str
    source: str
    cells: Mapping[int, tuple[int, ...]]
    truth: Table | None = None

    def __post_init__(self) -> None:
        _check_name(self.name)

    @property
    def published(self) -> Mapping[int, tuple[int, ...]]:
        """Every cell as a sum of measured cells, as for a :class:`Table`."""
        return self.cells
