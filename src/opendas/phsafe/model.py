"""Persons, units and places as columns, and the regions and levels of the tables.

Everything in :class:`Persons` and :class:`Units` is confidential: their repr shows how many rows there are
and no value, and they are neither compared nor hashed. Codes are small integers here; the texts of the files
(``"01"``, ``"20"``) exist in readers and writers only. A reader turns a text that is no code, or a number
that does not fit its column, into -1, which is in no code list and in no cell; validation then reports it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints
from opendas.errors import DataError
from opendas.geography.states import STATES
from opendas.phsafe.findings import CSV_FILES, InputFiles

__all__ = [
    "LEVELS",
    "PUERTO_RICO",
    "STATE_CODES",
    "USA",
    "Geography",
    "Inputs",
    "Iteration",
    "Level",
    "Persons",
    "Places",
    "Region",
    "Units",
    "find_level",
    "regions",
]

PUERTO_RICO = "72"
"""FIPS code of Puerto Rico, which is a run of its own."""

STATE_CODES = frozenset(state.fips for state in STATES)
"""FIPS codes that a state filter may hold: the states, the District of Columbia and Puerto Rico."""

Int8 = npt.NDArray[np.int8]
Int16 = npt.NDArray[np.int16]
Int32 = npt.NDArray[np.int32]


class _Columns:
    """What the three column tables share: equal lengths, fixed types, rows taken together."""

    __slots__ = ()

    def __post_init__(self) -> None:
        names = [column.name for column in fields(self)]  # type: ignore[arg-type]
        lengths = {len(getattr(self, name)) for name in names}
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
        raise NotImplementedError

    def take(self, rows: npt.NDArray[Any]) -> Self:
        """Return some rows: a boolean mask or positions."""
        return type(self)(**{name: getattr(self, name)[rows] for name in self.dtypes()})

    @classmethod
    def of(cls, **columns: Any) -> Self:
        """Build from anything array-like, cast to the types of the columns; ``line`` counts from 2 if absent.

        For tests, generators and callers with data of their own; readers check before they cast.

        Raises
        ------
        DataError
            If a value does not fit its column.
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
    """Persons of the states of a run, in input order. Confidential.

    Parameters
    ----------
    rtype : int8 (n,)
        3 in a housing unit, 5 in group quarters.
    mafid : int64 (n,)
        Key of the unit.
    qage : int16 (n,)
        Age in years.
    cenhisp : int8 (n,)
        1 not Hispanic, 2 Hispanic.
    cenrace : int8 (n,)
        Race code, 1 to 63.
    relship : int8 (n,)
        Relationship to the householder, 20 to 38.
    line : int64 (n,)
        Line in the file the row came from, for messages.
    """

    rtype: Int8
    mafid: Ints
    qage: Int16
    cenhisp: Int8
    cenrace: Int8
    relship: Int8
    line: Ints

    @classmethod
    def dtypes(cls) -> dict[str, Any]:
        """Return the numpy type of each column, in order."""
        return {
            "rtype": np.int8,
            "mafid": np.int64,
            "qage": np.int16,
            "cenhisp": np.int8,
            "cenrace": np.int8,
            "relship": np.int8,
            "line": np.int64,
        }


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Units(_Columns):
    """Housing units and group quarters of the states of a run, in input order. Confidential.

    Parameters
    ----------
    rtype : int8 (u,)
        2 housing unit, 4 group quarters.
    mafid : int64 (u,)
        Key. May be repeated in what a reader returns; :mod:`opendas.phsafe.counting` says what follows.
    final_pop : int32 (u,)
        Number of persons.
    npf : int8 (u,)
        Number of persons in the family. No table uses it.
    hhspan, hhrace : int8 (u,)
        Hispanic origin (0 not in universe, 1 no, 2 yes) and race (0 not in universe, 1 to 63) of the
        householder.
    ten, hht, hht2, cplt : int8 (u,)
        Tenure, household type, detailed household type, type of couple; 0 not in universe.
    line : int64 (u,)
        Line in the file.
    """

    rtype: Int8
    mafid: Ints
    final_pop: Int32
    npf: Int8
    hhspan: Int8
    hhrace: Int8
    ten: Int8
    hht: Int8
    hht2: Int8
    cplt: Int8
    line: Ints

    @classmethod
    def dtypes(cls) -> dict[str, Any]:
        """Return the numpy type of each column, in order."""
        return {
            "rtype": np.int8,
            "mafid": np.int64,
            "final_pop": np.int32,
            "npf": np.int8,
            "hhspan": np.int8,
            "hhrace": np.int8,
            "ten": np.int8,
            "hht": np.int8,
            "hht2": np.int8,
            "cplt": np.int8,
            "line": np.int64,
        }


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Places(_Columns):
    """The rows of the geography file that lie in the state filter: public.

    Parameters
    ----------
    rtype : int8 (p,)
        2 or 4. Units whose place has type 4 are in no table.
    mafid : int64 (p,)
    state : int8 (p,)
        FIPS code as a number.
    line : int64 (p,)
        Line in the file.
    """

    rtype: Int8
    mafid: Ints
    state: Int8
    line: Ints

    @classmethod
    def dtypes(cls) -> dict[str, Any]:
        """Return the numpy type of each column, in order."""
        return {"rtype": np.int8, "mafid": np.int64, "state": np.int8, "line": np.int64}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Inputs:
    """What a reader returns: the three tables, restricted to the states of the run. Confidential.

    Parameters
    ----------
    persons : Persons
    units : Units
    places : Places
    files : InputFiles
        Where they were read, for messages.
    """

    persons: Persons
    units: Units
    places: Places
    files: InputFiles = CSV_FILES

    def __repr__(self) -> str:
        return f"Inputs({self.persons!r}, {self.units!r}, {self.places!r})"


class Geography(StrEnum):
    """The two kinds of regions; the value starts the name of a level."""

    USA = "usa"
    STATE = "state"

    @property
    def region_type(self) -> str:
        """The word in the column REGION_TYPE."""
        return self.value.upper()


class Iteration(StrEnum):
    """The three families of population groups; the value ends the name of a level."""

    RACE = "A-G"
    ORIGIN = "H,I"
    ALL = "*"

    @property
    def codes(self) -> tuple[str, ...]:
        """Iteration codes of the family, in order."""
        return {"A-G": tuple("ABCDEFG"), "H,I": ("H", "I"), "*": ("*",)}[self.value]


@dataclass(frozen=True, slots=True)
class Level:
    """A population group level, for instance ``state_H,I``.

    Parameters
    ----------
    geography : Geography
    iteration : Iteration
    """

    geography: Geography
    iteration: Iteration

    @property
    def name(self) -> str:
        """Name as in the configuration."""
        return f"{self.geography}_{self.iteration}"

    def __str__(self) -> str:
        return self.name


LEVELS: tuple[Level, ...] = tuple(
    Level(geography, iteration) for geography in Geography for iteration in Iteration
)
"""All six, in the order of the published program."""


def find_level(name: str) -> Level | None:
    """Return the level with a name, None if there is none."""
    return next((level for level in LEVELS if level.name == name), None)


@dataclass(frozen=True, slots=True)
class Region:
    """A row of the region grid.

    Parameters
    ----------
    code : str
        REGION_ID: ``"1"`` for the nation, two digits for a state.
    geography : Geography
    """

    code: str
    geography: Geography


USA = Region("1", Geography.USA)


def regions(geography: Geography, state_filter: Iterable[str]) -> tuple[Region, ...]:
    """Return the regions of a run, in order. They come from the configuration, never from the data.

    Parameters
    ----------
    geography : Geography
    state_filter : iterable of str
        Two-digit FIPS codes.

    Examples
    --------
    >>> [region.code for region in regions(Geography.STATE, ["44", "06"])]
    ['06', '44']
    """
    if geography is Geography.USA:
        return (USA,)
    return tuple(Region(code, Geography.STATE) for code in sorted(state_filter))
