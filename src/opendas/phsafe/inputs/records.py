"""Persons, units and places as columns: what a run reads.

Everything in :class:`Persons` and :class:`Units` is confidential: their repr shows how many rows there are
and no value, and they are neither compared nor hashed. Codes are small integers here; the texts of the files
(``"01"``, ``"20"``) exist in readers and writers only. A reader turns a text that is not a code, or a number
that does not fit its column, into -1, which is in no code list and in no cell; validation then reports it.

Rows are hashed, and travel between processes, as 64-bit words: MAFID, one or two words with the other
columns, and (where it travels) the line. Columns stand in the words in their order, little-endian, each in
its own bytes; what is left is zero.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, Self, TypeVar

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints
from opendas.errors import DataError
from opendas.phsafe.inputs.findings import CSV_FILES, InputFiles

Int8 = npt.NDArray[np.int8]
Int16 = npt.NDArray[np.int16]
Int32 = npt.NDArray[np.int32]

_TYPES: Final = {"Int8": np.int8, "Int16": np.int16, "Int32": np.int32, "Ints": np.int64}


class _Columns:
    """What the three column tables share: equal lengths, fixed types, rows taken together."""

    __slots__ = ()

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, name)) for name in self.dtypes()}
        if len(lengths) > 1:
            raise DataError(f"{type(self).__name__}: the columns have different lengths.")
        for name, wanted in self.dtypes().items():
            array = getattr(self, name)
            if array.dtype != wanted or array.ndim != 1:
                raise DataError(
                    f"{type(self).__name__}: column {name} is {array.dtype}, expected {np.dtype(wanted)} "
                    "in one dimension."
                )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} rows)"

    def __len__(self) -> int:
        return len(self.mafid)  # type: ignore[attr-defined]

    @classmethod
    def dtypes(cls) -> dict[str, Any]:
        """Return the numpy type of each column, in order."""
        return {column.name: _TYPES[str(column.type)] for column in fields(cls)}  # type: ignore[arg-type]

    def take(self, rows: npt.NDArray[Any]) -> Self:
        """Return some rows: a boolean mask or positions."""
        return type(self)(**{name: getattr(self, name)[rows] for name in self.dtypes()})

    @classmethod
    def of(cls, **columns: Any) -> Self:
        """Build from anything array-like, cast to the types of the columns; ``line`` counts from 2 if absent.

        For tests, generators and callers with data of their own; readers check before they cast.
        """
        arrays: dict[str, npt.NDArray[Any]] = {}
        rows = len(columns["mafid"])
        columns.setdefault("line", np.arange(2, rows + 2))
        for name, wanted in cls.dtypes().items():
            given = np.asarray(columns.pop(name))
            arrays[name] = given.astype(wanted)
            if not np.array_equal(arrays[name], given):
                raise DataError(f"{cls.__name__}: a value of column {name} does not fit {np.dtype(wanted)}.")
        if columns:
            raise DataError(f"{cls.__name__} has no column {sorted(columns)[0]}.")
        return cls(**arrays)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Persons(_Columns):
    """Persons of the states of a run, in input order. Confidential."""

    rtype: Int8  # (n,): 3 in a housing unit, 5 in group quarters
    mafid: Ints  # (n,): key of the unit
    qage: Int16  # (n,): age in years
    cenhisp: Int8  # (n,): 1 not Hispanic, 2 Hispanic
    cenrace: Int8  # (n,): race code, 1 to 63
    relship: Int8  # (n,): relationship to the householder, 20 to 38
    line: Ints  # (n,): line in the file the row came from, for messages


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Units(_Columns):
    """Housing units and group quarters of the states of a run, in input order. Confidential."""

    rtype: Int8  # (u,): 2 housing unit, 4 group quarters
    # (u,): key. May be repeated in what a reader returns; :mod:`opendas.phsafe.counting` says what follows.
    mafid: Ints
    final_pop: Int32  # (u,): number of persons
    npf: Int8  # (u,): number of persons in the family. No table uses it.
    # hhspan, hhrace (u,): Hispanic origin (0 not in universe, 1 no, 2 yes) and race (0 not in universe, 1 to
    # 63) of the householder.
    hhspan: Int8
    hhrace: Int8
    # ten, hht, hht2, cplt (u,): tenure, household type, detailed household type, type of couple; 0 not in
    # universe.
    ten: Int8
    hht: Int8
    hht2: Int8
    cplt: Int8
    line: Ints  # (u,): line in the file


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Places(_Columns):
    """The rows of the geography file that lie in the state filter: public."""

    rtype: Int8  # (p,): 2 or 4. Units whose place has type 4 are in no table.
    mafid: Ints  # (p,)
    state: Int8  # (p,): FIPS code as a number
    line: Ints  # (p,): line in the file


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Inputs:
    """What a reader returns: the three tables, restricted to the states of the run. Confidential."""

    persons: Persons
    units: Units
    places: Places
    files: InputFiles = CSV_FILES  # where they were read, for messages

    def __repr__(self) -> str:
        return f"Inputs({self.persons!r}, {self.units!r}, {self.places!r})"


_WORD = 8
_KEYS = ("mafid", "line")

_Rows = TypeVar("_Rows", Persons, Units, Places)


def _record(kind: type[Any]) -> np.dtype[Any]:
    """Return the layout of a row's codes: packed, filled up to whole words."""
    types = {
        name: np.dtype(kinds).newbyteorder("<") for name, kinds in kind.dtypes().items() if name not in _KEYS
    }
    offsets = np.cumsum([0, *(one.itemsize for one in types.values())])
    size = -(-int(offsets[-1]) // _WORD) * _WORD
    return np.dtype(
        {
            "names": list(types),
            "formats": list(types.values()),
            "offsets": [int(offset) for offset in offsets[:-1]],
            "itemsize": size,
        }
    )


_RECORDS = {kind: _record(kind) for kind in (Persons, Units, Places)}


def to_words(rows: Persons | Units | Places) -> npt.NDArray[np.int64]:
    """Return the columns of rows but key and line, int64 (n, 2) for units, (n, 1) for the others."""
    record = _RECORDS[type(rows)]
    packed = np.zeros(len(rows), dtype=record)
    for name in record.names or ():
        packed[name] = getattr(rows, name)
    return packed.view("<i8").reshape(len(rows), record.itemsize // _WORD)


def from_words(
    kind: type[_Rows], mafid: npt.NDArray[np.int64], words: npt.NDArray[np.int64], line: npt.NDArray[np.int64]
) -> _Rows:
    """Return the rows that :func:`to_words` packed.

    - `mafid`, `line` (n,).
    - `words` (n, w): further words than the kind has are passed over.
    """
    record = _RECORDS[kind]
    packed = np.ascontiguousarray(words[:, : record.itemsize // _WORD], dtype="<i8").view(record).reshape(-1)
    columns: dict[str, Any] = {"mafid": mafid, "line": line}
    for name, wanted in kind.dtypes().items():
        if name not in columns:
            columns[name] = packed[name].astype(wanted)
    return kind(**columns)
