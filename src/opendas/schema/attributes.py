"""Attributes, recodes and schemas: the axes of a contingency table.

Axes named in this package: ``n`` cells of the schema, in row-major order of the attributes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools
from opendas.errors import ConfigError, SchemaError

RESERVED_NAMES = frozenset({"total", "detailed", "rest", "*"})
"""Names with a meaning of their own in run files, not free for attributes and recodes."""


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings that make a spreadsheet compute a cell rather than show it."""


def cell_text(text: str) -> str:
    """Return a text as a cell of a CSV file that a spreadsheet shows and does not compute.

    An apostrophe goes before a text that begins as a formula does, apostrophes of its own aside. Others stay,
    and different texts stay different.

    Examples
    --------
    >>> cell_text("=1+1"), cell_text("-5 to 0"), cell_text("under 18"), cell_text("'=1")
    ("'=1+1", "'-5 to 0", 'under 18', "''=1")
    """
    return f"'{text}" if text.lstrip("'").startswith(_FORMULA) else text


_COLUMN_OF_TABLES = re.compile(
    r"GEOID|\* .*|.* \*|.* \* .*|.*_(EST|(EST_MOE|MOE|NOISE|LOW|HIGH)[0-9.]+)", re.DOTALL
)
"""Labels that would make two columns of a table have one name: labels of several attributes are joined by
`` * ``, and beside a column stand those of its margins."""


def labels_named(texts: Sequence[str], order: Sequence[str]) -> tuple[str, ...]:
    """Return the labels that texts name: each itself, or as ``first..last`` all from one to another.

    `texts`: a text that names no label of `order` comes back as it is.

    Examples
    --------
    >>> labels_named(("0", "2..4"), ("0", "1", "2", "3", "4"))
    ('0', '2', '3', '4')
    """
    found: list[str] = []
    for text in texts:
        ends = [(text[:at], text[at + 2 :]) for at in range(len(text)) if text.startswith("..", at)]
        runs = [(order.index(a), order.index(b)) for a, b in ends if a in order and b in order]
        first, last = next((run for run in runs if run[0] <= run[1]), (0, -1))
        found += [text] if text in order else order[first : last + 1] or [text]
    return tuple(found)


def listed(names: Sequence[str]) -> str:
    """Join names as a sentence does.

    Examples
    --------
    >>> listed(["age"]), listed(["age", "sex", "race"])
    ('age', 'age, sex and race')
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def label_runs(labels: Sequence[str], order: Sequence[str]) -> tuple[str, ...]:
    """Return texts that name labels, in their order: three neighbours or more as ``first..last``.

    Examples
    --------
    >>> label_runs(("4", "0", "2", "3"), ("0", "1", "2", "3", "4"))
    ('0', '2..4')
    """
    codes = sorted(order.index(label) for label in labels)
    neighbours = groupby(enumerate(codes), key=lambda pair: pair[1] - pair[0])
    runs = [[order[code] for _, code in run] for _, run in neighbours]
    return tuple(text for run in runs for text in ((f"{run[0]}..{run[-1]}",) if len(run) > 2 else run))


def _check_name(kind: str, name: str) -> None:
    if not name or name in RESERVED_NAMES or "*" in name or name != name.strip():
        raise ConfigError(
            f"{kind} name {name!r} is not usable: it must not be empty, hold '*', begin or end with a space, "
            f"or be one of {', '.join(sorted(RESERVED_NAMES))}."
        )


@dataclass(frozen=True, slots=True)
class Attribute:
    """One axis of the table, with its levels in order."""

    name: str  # identifier, as used in query names
    levels: tuple[str, ...]  # unique labels; the position of a label is its code

    def __post_init__(self) -> None:
        _check_name("attribute", self.name)
        if not self.levels:
            raise ConfigError(f"attribute {self.name!r} has no levels.")
        if len(set(self.levels)) != len(self.levels):
            repeated = sorted({level for level in self.levels if self.levels.count(level) > 1})
            raise ConfigError(
                f"attribute {self.name!r} repeats the level {repeated[0]!r}; each label must be unique."
            )

        for level in self.levels:
            if _COLUMN_OF_TABLES.fullmatch(level):
                raise ConfigError(
                    f"attribute {self.name!r}: the label {level!r} cannot name a column of a table: 'GEOID', "
                    "' * ' and endings such as '_MOE90' have a meaning there. Choose another one."
                )

    def __len__(self) -> int:
        return len(self.levels)


@dataclass(frozen=True, slots=True)
class Recode:
    """A partition of the levels of one attribute into coarser groups."""

    name: str  # identifier, usable in query names
    attribute: str  # the attribute it coarsens
    # (label, tuple of level labels): ordered groups; together they hold every level exactly once.
    groups: tuple[tuple[str, tuple[str, ...]], ...]

    def __post_init__(self) -> None:
        _check_name("recode", self.name)

    def group_of_level(self, attribute: Attribute) -> npt.NDArray[np.int32]:
        """Return, for each level of `attribute`, the index of its group."""
        position = {level: i for i, level in enumerate(attribute.levels)}
        group_of = np.full(len(attribute), -1, dtype=np.int32)
        for g, (label, members) in enumerate(self.groups):
            for level in members:
                if level not in position:
                    raise ConfigError(
                        f"recode {self.name!r}, group {label!r}: {level!r} is not a level of "
                        f"{attribute.name!r}."
                    )
                if group_of[position[level]] >= 0:
                    raise ConfigError(f"recode {self.name!r}: level {level!r} is named twice.")
                group_of[position[level]] = g
        missing = [level for level, g in zip(attribute.levels, group_of, strict=True) if g < 0]
        if missing:
            raise ConfigError(
                f"recode {self.name!r}: level {missing[0]!r} of {attribute.name!r} is in no group; a recode "
                'is a partition of all levels. Name it, or in a product file give others = "LABEL" for all '
                "that are not named."
            )
        return group_of


@dataclass(frozen=True)
class Schema:
    """The ordered attributes of a table; a cell is one combination of levels.

    Examples
    --------
    >>> schema = Schema((Attribute("age", ("young", "old")), Attribute("sex", ("f", "m"))))
    >>> schema.size
    4
    >>> schema.cell({"age": "old", "sex": "f"})
    2
    """

    # In schema order: cells are numbered in row-major order, the last attribute fastest.
    attributes: tuple[Attribute, ...]

    def __post_init__(self) -> None:
        if not self.attributes:
            raise ConfigError("a schema needs at least one attribute.")
        names = [attribute.name for attribute in self.attributes]
        if len(set(names)) != len(names):
            raise ConfigError("two attributes of a schema have the same name.")
        if self.size >= 1 << 31:
            raise ConfigError(f"a schema of {self.size} cells is too large: fewer than 2**31 are supported.")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Attribute names in schema order."""
        return tuple(attribute.name for attribute in self.attributes)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Number of levels of each attribute."""
        return tuple(len(attribute) for attribute in self.attributes)

    @property
    def size(self) -> int:
        """Number of cells ``n``."""
        return math.prod(len(attribute) for attribute in self.attributes)

    def attribute(self, name: str) -> Attribute:
        """Return the attribute called `name`."""
        for attribute in self.attributes:
            if attribute.name == name:
                return attribute
        raise ConfigError(f"no attribute {name!r}; the schema has {', '.join(self.names)}.")

    def cell(self, levels: Mapping[str, str]) -> int:
        """Return the cell index of one combination of level labels."""
        codes = []
        for attribute in self.attributes:
            label = levels[attribute.name]
            if label not in attribute.levels:
                raise SchemaError(f"{label!r} is not a level of {attribute.name!r}.")
            codes.append(attribute.levels.index(label))
        return int(np.ravel_multi_index(codes, self.shape))

    def cells(self, codes: Sequence[npt.NDArray[np.integer]]) -> npt.NDArray[np.int32]:
        """Return cell indices from one code array per attribute, in schema order."""
        return np.ravel_multi_index(tuple(codes), self.shape).astype(np.int32)

    def box(self, levels: Mapping[str, Sequence[str]]) -> Bools:
        """Return which cells have one of the named levels of every attribute named, bool (n,)."""
        chosen = [
            [attribute.levels.index(label) for label in levels[attribute.name]]
            if attribute.name in levels
            else range(len(attribute))
            for attribute in self.attributes
        ]
        inside = np.zeros(self.shape, dtype=bool)
        inside[np.ix_(*chosen)] = True
        return inside.ravel()

    def codes(self, cells: npt.NDArray[np.integer]) -> tuple[npt.NDArray[np.intp], ...]:
        """Return one code array per attribute from cell indices."""
        return np.unravel_index(cells, self.shape)
