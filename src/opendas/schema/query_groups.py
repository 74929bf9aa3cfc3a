"""Query groups as Kronecker products.

A query group takes one factor per attribute: the identity, a recode, or the total. Every cell of the
schema then belongs to exactly one row of the group, so that a group is fully described by the row of
each cell, its L2 sensitivity is at most sqrt(2) when a record is replaced, and 1 when a record is added
or removed (TopDown paper, section 6.4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Ints
from opendas.errors import ConfigError, nearest
from opendas.schema.attributes import Recode, Schema


def to_ranges(held: Bools) -> tuple[tuple[int, int], ...]:
    """Return where a mask is true: each run of places, from the first up to the second, left out.

    Examples
    --------
    >>> to_ranges(np.array([True, True, False, True]))
    ((0, 2), (3, 4))
    """
    edges = np.flatnonzero(np.diff(held.astype(np.int8), prepend=0, append=0)).tolist()
    return tuple(zip(edges[::2], edges[1::2], strict=True))


@dataclass(frozen=True, eq=False)
class QueryGroup:
    """A marginal query group: one row of answers per combination of its factors' levels."""

    name: str  # canonical name, factors in schema order joined with ``" * "``
    factors: tuple[str, ...]  # attribute or recode names; empty for ``total``
    shape: tuple[int, ...]  # number of levels of each factor
    row_of_cell: npt.NDArray[np.int32]  # (n,): the row of the group that counts each cell
    labels: tuple[tuple[str, ...], ...]  # level labels of each factor
    # (m,): how many noisy answers the answer of each row sums, each with a draw of its own; None for one
    # each.
    draws: Ints | None = None

    def __post_init__(self) -> None:
        self.row_of_cell.flags.writeable = False

    @cached_property
    def size(self) -> int:
        """Number of rows ``m``."""
        return int(np.prod(self.shape, dtype=np.int64))

    def answers(self, counts: Ints) -> Ints:
        """Return the answers, int64 (..., m), of dense counts, int64 (..., n)."""
        flat = counts.reshape(-1, counts.shape[-1])
        out = np.zeros((flat.shape[0], self.size), dtype=np.int64)
        np.add.at(out.T, self.row_of_cell, flat.T)
        return out.reshape(*counts.shape[:-1], self.size)

    def cells_of(self, ranges: Iterable[tuple[int, int]]) -> Bools:
        """Return the cells, bool (n,), that some rows count, which are given as :func:`to_ranges` does."""
        rows = np.zeros(self.size, dtype=bool)
        for first, end in ranges:
            rows[first:end] = True
        return np.asarray(rows[self.row_of_cell])

    @property
    def members(self) -> Bools:
        """Which cells each row counts, bool (m, n)."""
        return np.asarray(self.row_of_cell[None, :] == np.arange(self.size)[:, None])

    def row_label(self, row: int) -> str:
        """Return a readable label of one row, for instance ``"18plus * hispanic"``."""
        if not self.factors:
            return "total"
        codes = np.unravel_index(row, self.shape)
        return " * ".join(self.labels[i][int(code)] for i, code in enumerate(codes))


class Workload:
    """The query groups a schema and its recodes can express, by name."""

    def __init__(self, schema: Schema, recodes: Sequence[Recode] = ()) -> None:
        self.schema = schema
        self.recodes = {recode.name: recode for recode in recodes}
        overlap = set(self.recodes) & set(schema.names)
        if overlap:
            raise ConfigError(f"{sorted(overlap)[0]!r} names both an attribute and a recode.")
        self._maps: dict[str, tuple[int, npt.NDArray[np.int32], tuple[str, ...]]] = {}
        for position, attribute in enumerate(schema.attributes):
            identity = np.arange(len(attribute), dtype=np.int32)
            self._maps[attribute.name] = (position, identity, attribute.levels)
        for recode in recodes:
            attribute = schema.attribute(recode.attribute)
            position = schema.names.index(recode.attribute)
            labels = tuple(label for label, _ in recode.groups)
            self._maps[recode.name] = (position, recode.group_of_level(attribute), labels)
        self._groups: dict[str, QueryGroup] = {}

    @property
    def positions(self) -> Mapping[str, int]:
        """Schema position of every attribute and recode name."""
        return {name: position for name, (position, _, _) in self._maps.items()}

    def group_of_level(self, name: str) -> Ints:
        """Return the group of each level of its attribute, int64 (levels,), for an attribute or a recode."""
        return self._maps[name][1].astype(np.int64)

    def canonical(self, name: str) -> str:
        """Return the canonical form of a query group's name.

        ``"cenrace*hispanic"`` becomes ``"hispanic * cenrace"``; the product of all attributes becomes
        ``"detailed"``.
        """
        name = name.strip()
        if name in ("total", "detailed"):
            return name
        factors = [factor.strip() for factor in name.split("*")]
        for factor in factors:
            if factor not in self._maps:
                raise ConfigError(
                    f"query group {name!r}: {factor!r} is neither attribute nor recode; "
                    f"{nearest(factor, self._maps)}"
                )
        factors.sort(key=lambda factor: self._maps[factor][0])
        positions = [self._maps[factor][0] for factor in factors]
        if len(set(positions)) != len(positions):
            raise ConfigError(f"query group {name!r} uses one attribute twice.")
        return "detailed" if tuple(factors) == self.schema.names else " * ".join(factors)

    def group(self, name: str) -> QueryGroup:
        """Return the query group called `name` (any order of its factors)."""
        canonical = self.canonical(name)
        if canonical not in self._groups:
            self._groups[canonical] = self._build(canonical)
        return self._groups[canonical]

    def groups(self, names: Iterable[str]) -> tuple[QueryGroup, ...]:
        """Return several query groups."""
        return tuple(self.group(name) for name in names)

    def _build(self, canonical: str) -> QueryGroup:
        if canonical == "total":
            factors: tuple[str, ...] = ()
        elif canonical == "detailed":
            factors = self.schema.names
        else:
            factors = tuple(canonical.split(" * "))
        factor_at = {self._maps[factor][0]: factor for factor in factors}
        rows = np.zeros(1, dtype=np.int32)  # of the cells of the attributes before, in row-major order
        shape = []
        labels = []
        for position, attribute in enumerate(self.schema.attributes):
            if position not in factor_at:
                rows = np.repeat(rows, len(attribute))
                continue
            _, level_map, names = self._maps[factor_at[position]]
            rows = (rows[:, None] * np.int32(len(names)) + level_map).ravel()
            shape.append(len(names))
            labels.append(names)
        return QueryGroup(canonical, factors, tuple(shape), rows, tuple(labels))
