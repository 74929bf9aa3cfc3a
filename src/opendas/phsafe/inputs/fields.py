"""Which values a field may hold: the second phase of the published input validation.

Fields that no table uses (all of the geography below the state) are examined by
:mod:`opendas.phsafe.validate`, which warns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools
from opendas.errors import Finding
from opendas.phsafe.inputs.findings import list_lines
from opendas.phsafe.inputs.records import Inputs, Persons, Places, Units


@dataclass(frozen=True, slots=True)
class _Field:
    """A column, the values it may hold as closed ranges, and how a message says so."""

    column: str
    allowed: tuple[tuple[int, int], ...]
    rule: str

    def wrong(self, rows: Persons | Units | Places) -> Bools | None:
        """Return which rows hold something else, None where no row does."""
        values: npt.NDArray[Any] = getattr(rows, self.column)
        (low, high), *_ = self.allowed
        if not len(values) or (len(self.allowed) == 1 and values.min() >= low and values.max() <= high):
            return None
        wrong = np.ones(len(values), dtype=np.bool_)
        for low, high in self.allowed:
            wrong &= (values < low) | (values > high)
        return wrong if wrong.any() else None


def _codes(column: str, width: int, low: int, high: int, *, unused: str = "") -> _Field:
    rule = f"expected {low:0{width}d} to {high:0{width}d}{unused}"
    return _Field(column, ((low, high),), rule)


_MAFIDS: Final = (100_000_001, 899_999_999)
_NOT_IN_UNIVERSE = " (0 is not in universe)"
_KEY: Final = _codes("mafid", 9, *_MAFIDS)
_UNIT_TYPE: Final = _Field("rtype", ((2, 2), (4, 4)), "expected 2 (housing unit) or 4 (group quarters)")

_PERSONS: Final = (
    _Field(
        "rtype",
        ((3, 3), (5, 5)),
        "expected 3 (person in a housing unit) or 5 (person in group quarters)",
    ),
    _KEY,
    _codes("qage", 1, 0, 115),
    _Field("cenhisp", ((1, 2),), "expected 1 (not Hispanic) or 2 (Hispanic)"),
    _codes("cenrace", 2, 1, 63),
    _codes("relship", 2, 20, 38),
)
_UNITS: Final = (
    _UNIT_TYPE,
    _KEY,
    _codes("final_pop", 1, 0, 99_999),
    _Field("npf", ((0, 0), (2, 97)), "expected 0, or 2 to 97"),
    _Field("hhspan", ((0, 2),), "expected 0 (not in universe), 1 (not Hispanic) or 2 (Hispanic)"),
    _codes("hhrace", 2, 0, 63, unused=" (00 is not in universe)"),
    _codes("ten", 1, 0, 4, unused=_NOT_IN_UNIVERSE),
    _codes("hht", 1, 0, 7, unused=_NOT_IN_UNIVERSE),
    _codes("hht2", 2, 0, 12, unused=" (00 is not in universe)"),
    _codes("cplt", 1, 0, 5, unused=_NOT_IN_UNIVERSE),
)
_PLACES: Final = (_UNIT_TYPE, _KEY)


def check_values(inputs: Inputs) -> list[Finding]:
    """Find every field that holds no value of its list.

    Returns: by file, field and line; the first lines of each field, and the number of the others.
    """
    files = inputs.files
    parts: tuple[tuple[Any, Any, tuple[_Field, ...]], ...] = (
        (files.persons, inputs.persons, _PERSONS),
        (files.units, inputs.units, _UNITS),
        (files.places, inputs.places, _PLACES),
    )
    findings = []
    for source, rows, columns in parts:
        for column in columns:
            wrong = column.wrong(rows)
            if wrong is not None:
                findings += list_lines(source, rows.line[wrong], column.column.upper(), column.rule)
    return findings


def usable_rows(rows: Persons | Units) -> Bools:
    """Return which rows hold values of their lists only, bool (rows,)."""
    good = np.ones(len(rows), dtype=np.bool_)
    for column in _PERSONS if isinstance(rows, Persons) else _UNITS:
        wrong = column.wrong(rows)
        if wrong is not None:
            good &= ~wrong
    return good
