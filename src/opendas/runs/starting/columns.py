"""What one column of a table seems to be, by its name and its values; apart from what the table is."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opendas.arrays import Ints
from opendas.errors import ConfigError
from opendas.readers.columns.coding import is_geocode, without_zeros
from opendas.readers.columns.identifiers import seems_identifier, several_rows

MOST_LEVELS = 40
"""A column with more different values is an identifier, a place or a number, and no attribute as it is."""

MOST_DECLARED = 1_000
"""Levels of an attribute that someone names, rather than a guess."""

_FEWEST_A_PLACE = 20
"""Rows a value, on average, of a column of codes that could be places, where its name does not say so: with
fewer they could be households."""

_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?")
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}(\.0+)?")
_DATE = re.compile(
    r"[0-9]{4}[-/.][0-9]{1,2}([-/.][0-9]{1,2})?([T ][0-9:.+Z-]*)?|[0-9]{1,2}[-/.][0-9]{1,2}[-/.][0-9]{2,4}"
    r"|(19|20)[0-9]{2}(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])"
)
_YEARS = range(1850, 2101)
_WEIGHT = re.compile(
    r"(.*[_ .])?(weights?|wts?|wgts?)[_ ]?[0-9]*|(p|h)?wgtp[0-9]*|(per|hh|final|sample|rep)_?w(eigh)?t[0-9]*",
    re.IGNORECASE,
)
FEW_NUMBERS = 100
"""Different whole numbers of a column, or fewer, that could be codes."""
_FEW_AGES = 12
"""So many different whole numbers, or fewer, are labels, ages included; of more, some may be missing."""
_GROWN = 40
"""Ages up to this are labels: groups for a whole life would leave two or three of them."""
_AGE = re.compile(
    r"(?!(.*[_ .-])?(band|cat|category|class|code|group|grp|range)([_ .-]|$))"
    r"(.*[_ .-])?(age|agep|ages|edad|alter)([_ .-].*)?",
    re.IGNORECASE,
)
_CODE = re.compile(r".*[0-9].*|[A-Z]{2,3}", re.DOTALL)
_PLACES = (
    "geocode", "geoid", "geo_id", "geo", "block", "zone", "area", "precinct", "tract", "ward", "unit",
    "site", "puma", "commune", "municipality", "municipio", "zip", "zipcode", "postcode", "station", "clinic",
    "practice", "branch", "school", "hospital", "district", "county", "province", "region", "state",
    "division", "department", "code",
)  # fmt: skip
_SURE_PLACES = _PLACES[:5]
_LAST_WORDS = (
    "area", "borough", "canton", "commune", "constituency", "county", "district", "gemeinde", "hospital",
    "kanton", "kommune", "municipality", "parish", "precinct", "province", "region", "school", "station",
    "tract", "ward", "zone",
)  # fmt: skip
_NAMED_PLACE = re.compile(rf"(.*[_ .-])?({'|'.join(_LAST_WORDS)})([_ .-]?(id|code|no|nr))?")


class Role(StrEnum):
    """What a column seems to be."""

    IDENTIFIER = "identifier"
    WEIGHT = "weight"
    PLACE = "place"
    LABELS = "labels"
    NUMBER = "number"
    DATE = "date"
    CONSTANT = "constant"
    TEXT = "text"


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """A column with what it seems to be."""

    name: str
    role: Role
    # Different values in order of appearance, "1.0" written as "1"; the empty text where a field is empty.
    values: tuple[str, ...]
    of_row: Ints  # int64 (rows,). Place of each row's value among `values`.

    @property
    def labels(self) -> tuple[str, ...]:
        """The values that are not empty."""
        return tuple(value for value in self.values if value)

    @property
    def has_empty(self) -> bool:
        """Whether some field is empty."""
        return "" in self.values

    @property
    def tells_rows_apart(self) -> bool:
        """Whether every row has another value."""
        return len(self.values) == len(self.of_row)

    @property
    def named_place(self) -> int | None:
        """How surely the name is that of a place, 0 most surely; None where it is not."""
        return _named_place(self.name)

    @property
    def could_be_place(self) -> bool:
        """Whether its values are codes of one length with several rows each, as those of places are."""
        widths = {len(value) for value in self.values}
        often = len(self.of_row) >= _FEWEST_A_PLACE * len(self.values)
        whole = all(value.isdigit() for value in self.values)
        years = whole and all(int(value) in _YEARS for value in self.values if len(value) == 4)
        return (
            self.role in (Role.LABELS, Role.NUMBER, Role.TEXT)
            and len(widths) == 1
            and min(widths) >= 2
            and len(self.values) >= 2
            and often
            and all(_CODE.fullmatch(value) for value in self.values)
            and not (widths == {4} and years)
            and (not whole or min(widths) >= 4 or any(value.startswith("0") for value in self.values))
        )

    @property
    def can_be_place(self) -> bool:
        """Whether a run reads all its values as geocodes."""
        return all(map(is_geocode, self.values))

    @property
    def is_whole(self) -> bool:
        """Whether every value that is not empty is a whole number and no code such as 007."""
        return all(_WHOLE.fullmatch(v) and (v == "0" or not v.startswith("0")) for v in self.labels)

    @property
    def could_be_count(self) -> bool:
        """Whether its values could be counts: whole numbers, not negative."""
        numeric = self.role in (Role.NUMBER, Role.LABELS, Role.CONSTANT, Role.IDENTIFIER)
        return (
            numeric
            and not self.is_age
            and self.is_whole
            and not self.has_empty
            and not any(value.startswith("-") for value in self.values)
        )

    @property
    def is_number_or_code(self) -> bool:
        """Whether its whole numbers could be codes as well: the name does not say that they are ages."""
        return self.role == Role.NUMBER and self.is_whole and not self.is_age

    @property
    def absent_numbers(self) -> int:
        """How many numbers between the least and greatest do not occur, where many are taken as labels."""
        if self.role != Role.LABELS or len(self.labels) <= _FEW_AGES or not self.is_whole:
            return 0
        found = {int(value.partition(".")[0]) for value in self.labels}
        return max(found) - min(found) + 1 - len(found)

    @property
    def is_one_place(self) -> bool:
        """Whether its name is that of a place, and all rows have the same value, not an empty one."""
        return self.role == Role.CONSTANT and self.named_place is not None and bool(self.labels)

    @property
    def could_number_units(self) -> bool:
        """Whether they could be numbers of households: whole, of one length, 4 or more, a few rows each."""
        widths = {len(value) for value in self.labels}
        few = len(self.of_row) < _FEWEST_A_PLACE * len(self.labels)
        one = len(widths) == 1 and min(widths) >= 4
        return self.is_number_or_code and len(self.labels) > FEW_NUMBERS and few and one

    @property
    def is_age(self) -> bool:
        """Whether the name says that its numbers are ages."""
        return _names_age(self.name)

    def determines(self, coarse: Column) -> bool:
        """Whether rows with one value of this column always share that of a coarser one."""
        first = np.zeros(len(self.values), dtype=np.int64)
        first[self.of_row[::-1]] = coarse.of_row[::-1]
        return bool(np.all(first[self.of_row] == coarse.of_row))

    def numbers(self) -> list[float]:
        """Return the values as numbers."""
        return [float(value) for value in self.labels]

    def why_left_out(self) -> str:
        """Say why a column of this role is not taken as an attribute."""
        return {
            Role.IDENTIFIER: "it seems to identify rows or persons, and no value of it is published",
            Role.WEIGHT: "it seems to be a weight, which is not used: a sample is not a population",
            Role.PLACE: "it seems to be a place, but is no level of the hierarchy",
            Role.DATE: "dates: convert them to years or other periods first",
            Role.CONSTANT: "all rows have the same value",
            Role.TEXT: f"{len(self.labels):,} different values; a guess takes at most {MOST_LEVELS}",
        }.get(self.role, "not named as an attribute")


def _names_age(column: str) -> bool:
    return _AGE.fullmatch(column.strip()) is not None


def _named_place(column: str) -> int | None:
    name = column.strip().lower()
    if name in _SURE_PLACES:
        return _SURE_PLACES.index(name)
    if name in _PLACES:
        return len(_SURE_PLACES)
    return len(_SURE_PLACES) + 1 if _NAMED_PLACE.fullmatch(name) else None


def nested(columns: Iterable[Column]) -> tuple[str, ...]:
    """Return the names of columns that lie in each other, coarsest first; one that does not is left out."""
    chain: list[Column] = []
    for column in sorted(columns, key=lambda column: len(column.values)):
        if not chain or (len(column.values) > len(chain[-1].values) and column.determines(chain[-1])):
            chain.append(column)
    return tuple(column.name for column in chain)


def look_at(name: str, column: pa.ChunkedArray) -> Column:
    """Look at one column, given as text.

    `column`, ChunkedArray of string.
    """
    encoded = pc.fill_null(column, "").combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    values = encoded.dictionary.to_pylist()
    of_row = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    if any(value.endswith("0") and "." in value for value in values) and all(
        _WHOLE.fullmatch(value) for value in values if value
    ):
        shorter = [without_zeros(value) for value in values]
        place = {value: number for number, value in enumerate(dict.fromkeys(shorter))}
        values, of_row = list(place), np.array([place[value] for value in shorter], dtype=np.int64)[of_row]
    return Column(name, _role(name, values, len(of_row)), tuple(values), of_row)


def _role(name: str, values: Sequence[str], rows: int) -> Role:
    labels = [value for value in values if value]
    different = len(values)
    if different == 1 or not labels:
        return Role.CONSTANT
    numeric = all(_NUMBER.fullmatch(value) for value in labels)
    if numeric and _WEIGHT.fullmatch(name.strip()):
        return Role.WEIGHT
    if seems_identifier(name) and (different == rows or several_rows(different, rows)):
        return Role.IDENTIFIER
    if _named_place(name) is not None:
        return Role.PLACE
    if all(_DATE.fullmatch(value) for value in labels):
        return Role.DATE
    coded = any(value.startswith("0") and value[1:2].isdigit() for value in labels)
    if different == rows and rows > MOST_LEVELS and _numbers_rows(labels, numeric=numeric and not coded):
        return Role.IDENTIFIER
    fractions = numeric and not all(_WHOLE.fullmatch(value) for value in labels)
    ages = numeric and len(labels) > _FEW_AGES and _names_age(name) and max(map(float, labels)) >= _GROWN
    if numeric and not coded and (fractions or different > MOST_LEVELS or ages):
        return Role.NUMBER
    return Role.LABELS if different <= MOST_LEVELS else Role.TEXT


def _numbers_rows(labels: Sequence[str], *, numeric: bool) -> bool:
    """Whether values that are all different only number the rows: texts, codes of one length, 1 to n."""
    if not numeric:
        return True
    whole = all(_WHOLE.fullmatch(value) for value in labels)
    wide = len({len(value) for value in labels}) == 1
    return whole and (wide or max(map(int, labels)) - min(map(int, labels)) == len(labels) - 1)


_AGES = (0, 5, 18, 25, 35, 45, 55, 65, 75, 85)
_OLDEST = 130
_MOST_BINS = 10
_SKEWED = 20.0
"""Where the largest number is so many times the median, bins grow: by 1, 2, 5, or by tens if many."""


def proposed_bins(name: str, numbers: Sequence[float]) -> tuple[float, ...]:
    """Propose where classes of numbers begin: age groups, else round numbers.

    Examples
    --------
    >>> proposed_bins("weight_kg", [41.5, 60.2, 118.0])
    (40, 50, 60, 70, 80, 90, 100, 110)
    >>> proposed_bins("income", [12_000.0, 21_000.0, 33_000.0, 610_000.0])
    (0, 10000, 20000, 50000, 100000, 200000, 500000)
    """
    least, most = min(numbers), max(numbers)
    if _names_age(name) and least >= 0 and most <= _OLDEST:
        return tuple(edge for edge in _AGES if edge <= most)
    median = float(np.median(numbers))
    if least >= 0 and most > _SKEWED * median > 0:
        first = math.floor(math.log10(median))
        powers = [10**power for power in range(first, math.floor(math.log10(most)) + 1)]
        finer = [digit * power for power in powers for digit in (1, 2, 5) if digit * power <= most]
        return (0, *(finer if len(finer) < _MOST_BINS else powers)[: _MOST_BINS - 1])
    step = next(step for step in _round_steps(most - least) if (most - least) / step <= _MOST_BINS - 2)
    first_edge, last = math.floor(least / step), math.floor(most / step)
    return tuple(_plain(edge * step) for edge in range(first_edge, last + 1))


def _round_steps(spread: float) -> list[float]:
    power = math.floor(math.log10(spread)) - 2 if spread else 0
    return [_plain(float(f"{digit}e{p}")) for p in range(power, power + 5) for digit in (1, 2, 5)]


def read_edges(column: Column, text: str) -> tuple[float, ...]:
    """Read where the classes of a column's numbers begin, as someone types it; an empty text is the proposal.

    Raises `ConfigError` if a part of the text is no number, the numbers do not ascend, are too many, or begin
    above a number of the column.
    """
    typed = text.replace("\u2212", "-").replace(",", " ").split()
    if not typed:
        return proposed_bins(column.name, column.numbers())
    wrong = next((number for number in typed if not _NUMBER.fullmatch(number)), None)
    if wrong is not None:
        raise ConfigError(
            f"{wrong[:24]!r} is not a number in digits, such as 18 or 0.5. Write where each class begins, "
            "such as 0, 18, 65."
        )
    edges = tuple(_plain(float(number)) for number in typed)
    for number, edge in zip(typed, edges, strict=True):
        if edge != float(number):
            raise ConfigError(f"{number} has more than 12 digits. Round it: a label shows 12.")
    if len(edges) > MOST_DECLARED:
        raise ConfigError(f"{len(edges):,} classes: at most {MOST_DECLARED:,} are allowed.")
    for low, high in itertools.pairwise(edges):
        if low >= high:
            raise ConfigError(
                f"{high:.12g} follows {low:.12g}: write the numbers in ascending order, each once."
            )
    if edges[0] > min(column.numbers()):
        raise ConfigError(
            f"Some numbers lie below {edges[0]:.12g}, where the first class begins, so they are in no class. "
            "Begin with a lower number."
        )
    return edges


def edges_text(edges: Sequence[float]) -> str:
    """Write where classes begin as :func:`read_edges` reads it."""
    return ", ".join(f"{edge:.12g}" for edge in edges)


def _plain(number: float) -> float:
    """Return a number as an int where it is whole, else without the dust of binary fractions."""
    rounded = float(f"{number:.12g}")
    return int(rounded) if rounded.is_integer() else rounded


def bin_labels(edges: Sequence[float], *, whole: bool) -> tuple[str, ...]:
    """Return a label for each class, the last without an end.

    `whole`: whether all numbers are whole, so that a class ends at one.

    Examples
    --------
    >>> bin_labels((0, 18, 65), whole=True), bin_labels((-10, 0), whole=True)
    (('0-17', '18-64', '65+'), ('-10 to -1', '0+'))
    >>> bin_labels((0, 0.5), whole=False)
    ('0 to below 0.5', '0.5+')
    """
    labels = []
    whole = whole and all(float(edge).is_integer() for edge in edges)
    for low, above in itertools.pairwise(edges):
        if not whole:
            labels.append(f"{low:.12g} to below {above:.12g}")
        elif above - low == 1:
            labels.append(f"{low:.12g}")
        else:
            labels.append(f"{low:.12g}{' to ' if low < 0 else '-'}{above - 1:.12g}")
    return (*labels, f"{edges[-1]:.12g}+")
