"""Protected units: what one change of a data set touches, by identifiers instead of free words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from opendas.errors import ConfigError

_WORD: Final = re.compile(r"[^\W_]+")


def unit_id(words: str) -> str:
    """Return the identifier of a protected unit, the same for ``housing unit`` and ``Housing-Unit``.

    Examples
    --------
    >>> unit_id("Housing unit")
    'housing-unit'
    """
    found = "-".join(_WORD.findall(words.casefold()))
    if not found:
        raise ConfigError(
            "a protected unit must name in a word or two what one record is: person, housing unit, patient, "
            "..."
        )
    return found


_WORD_OF_A_NAME: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[^\W\d_a-zA-Z]+")
_WORDS_OF_IDENTIFIERS: Final = frozenset(
    ("code", "hash", "id", "ident", "identifier", "key", "no", "nr", "num", "number", "pseudonym", "serial",
     "serialno", "uid", "uuid")
)  # fmt: skip


def unit_of_column(name: str) -> str:
    """Return in plain words whose a record is, by the column that identifies it.

    Examples
    --------
    >>> unit_of_column("patient_id"), unit_of_column("housingUnitNo"), unit_of_column("SERIALNO")
    ('patient', 'housing unit', 'unit')
    """
    words = [word.lower() for word in _WORD_OF_A_NAME.findall(name)]
    return " ".join(word for word in words if word not in _WORDS_OF_IDENTIFIERS) or "unit"


@dataclass(frozen=True, slots=True)
class Change:
    """A change between neighbours, and what it costs in losses of one record of each protected unit."""

    name: str  # in words: one record of this, with the records of that which change along with it
    # Protected unit -> how often its loss is counted. Each factor needs an argument, since changes of several
    # records do not cost the multiple in general; ``docs/proofs/composition.md``.
    factors: Mapping[str, int]

    def __post_init__(self) -> None:
        factors = {unit_id(unit): factor for unit, factor in self.factors.items()}
        object.__setattr__(self, "factors", MappingProxyType(factors))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.name, dict(self.factors))


ADDRESS: Final = "address"
"""Protected unit of the household tables: the persons and the unit row of one address."""

_HOUSING_UNIT: Final = "housing-unit"

_UNIT: Final = "housing-unit-or-group-quarters"
"""Protected unit of the DHC units product: what stands at an address, with the household in it."""

_TWO_UNITS: Final = {_HOUSING_UNIT: 2, _UNIT: 4, ADDRESS: 1}

CENSUS_CHANGES: Final = (Change("one person with the unit changes it induces", {"person": 1, **_TWO_UNITS}),)
"""Changes that touch records of more than one product of a census.

A replaced person record may empty one unit and fill another: two records of occupancy flip, in opposite
directions, which costs twice the loss of one. The households of both units may change in any way, and alike,
which costs four times (docs/proofs/composition.md, section 5).
"""

_ONE_UNIT: Final = {_HOUSING_UNIT: 1, _UNIT: 1, ADDRESS: 1}

_WITH_OTHERS: Final = {
    "person": CENSUS_CHANGES[0],
    _HOUSING_UNIT: Change("one housing unit with its household tables", _ONE_UNIT),
    _UNIT: Change("one housing unit or group quarters with its household tables", _ONE_UNIT),
    "household": Change("one household with the unit changes it induces", {"household": 1, **_TWO_UNITS}),
}


def change_of(unit: str) -> Change:
    """Return the change that an account of a protected unit is about, with what it induces elsewhere."""
    return _WITH_OTHERS.get(unit) or Change(f"one {unit}", {unit: 1})


def one_record(words: str) -> Change:
    """Return the change of one record of a protected unit, in whatever products count it.

    A housing unit that the DHC counts is counted in the redistricting data too, and may change there along.

    `words`: the protected unit, as a product says it.
    """
    unit = unit_id(words)
    return Change(f"one {words}", {_HOUSING_UNIT: 1, _UNIT: 1} if unit == _UNIT else {unit: 1})


def change_of_any(units: Iterable[str]) -> Change | None:
    """Return the change of one record by any name, where runs give their records more than one.

    Two runs on one table may call its rows ``record`` and ``patient``. Whether they do is not known here, so
    that the sum over all names is stated beside the sum of each: it bounds what one record loses in any case.

    Returns None where there is one name only, or all names are those of a census, whose records are known
    to be different things.
    """
    names = dict.fromkeys(units)
    if len(names) < 2 or not names.keys() - CENSUS_CHANGES[0].factors.keys():
        return None
    return Change("one record, whatever a run calls it", dict.fromkeys(names, 1))
