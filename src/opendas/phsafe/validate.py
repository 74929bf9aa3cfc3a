"""Input validation: what is wrong with the persons, units and places of a run, all of it together.

The published program has three phases and stops at the first that fails: the form of the files, the values
of each field, the keys across files. Here the reader does the first, and says with it what it can of the
others; the rest comes together. A fourth is ours: a person or household that a table counts but that has no
cell, which stops the published program in the middle of a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opendas.errors import DataError, Finding
from opendas.phsafe.config import Config
from opendas.phsafe.consistency import find_inconsistencies
from opendas.phsafe.counting import check_cells
from opendas.phsafe.linking import Linked, check_keys
from opendas.phsafe.model import Inputs
from opendas.phsafe.values import check_values, usable_rows

__all__ = ["Validation", "validate"]


@dataclass(frozen=True, slots=True)
class Validation:
    """What validation found. Confidential: it says which records of the input are odd.

    Parameters
    ----------
    errors : tuple of Finding
        What a private run refuses.
    warnings : tuple of Finding
        What it counts as it is.
    """

    errors: tuple[Finding, ...]
    warnings: tuple[Finding, ...]

    def refuse_errors(self, data: Path | str) -> None:
        """Refuse an input with errors.

        Raises
        ------
        DataError
            With all of them.
        """
        if self.errors:
            raise DataError(
                f"{data}: the input does not pass validation; nothing was drawn or written.",
                self.errors,
                shown=len(self.errors),
            )


def validate(inputs: Inputs, linked: Linked, config: Config, *, every_table: bool = False) -> Validation:
    """Check an input, before truncation and before anything is drawn.

    Parameters
    ----------
    inputs : Inputs
        Restricted to the state filter: what lies outside is not looked at.
    linked : Linked
        The same, joined.
    config : Config
    every_table : bool
        Look for rows without a cell in tables without a budget too, as the non-private mode produces them.
    """
    errors = [*check_values(inputs), *check_keys(inputs)]
    usable = usable_rows(linked.persons), usable_rows(linked.units)
    errors += check_cells(linked, config, inputs.files, every_table=every_table, usable=usable)
    return Validation(tuple(errors), tuple(find_inconsistencies(inputs)))
