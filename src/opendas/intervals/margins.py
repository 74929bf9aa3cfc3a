"""The margin of a large product that a question needs: only its attributes and levels.

A question about sex and age of a product with 1.2 million cells concerns a table of sex by age. Measurements
of finer cells are summed to the groups that question and measurement both distinguish; the sum of independent
answers has their summed noise. Impossible cells are known to be empty, so answers about nothing else are left
out.

Axes: ``n`` cells of the whole product, ``c`` cells of the margin, ``m`` rows of a query group.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints, value_of_rows
from opendas.errors import ConfigError
from opendas.schema.attributes import Attribute, Recode, Schema
from opendas.schema.declarations import StructuralZero
from opendas.schema.product import PassPlan, Product
from opendas.schema.query_groups import QueryGroup

_NO_ATTRIBUTE = Attribute("all", ("all",))
"""Stands for the attributes where a question tells no level from another."""


def levels_told_apart(product: Product, kinds: npt.NDArray[np.integer]) -> tuple[Ints, ...]:
    """Return per attribute the group of each level; kinds of cells distinguish the groups.

    - `kinds` (n,): kind of each cell; of two levels of one group, cells that differ in nothing else are of
      one kind.
    - Returns (levels,): groups are numbered in the order of their first levels.
    """
    cube = kinds.reshape(product.schema.shape)
    return tuple(
        _in_order(np.moveaxis(cube, axis, 0).reshape(length, -1)) for axis, length in enumerate(cube.shape)
    )


def _in_order(rows: npt.NDArray[np.integer]) -> Ints:
    """Number equal rows alike, int64, in the order in which they first occur."""
    first: list[int] = []
    group = np.empty(len(rows), dtype=np.int64)
    for place, row in enumerate(rows):
        group[place] = next((i for i, one in enumerate(first) if np.array_equal(rows[one], row)), len(first))
        if group[place] == len(first):
            first.append(place)
    return group


@dataclass(frozen=True, slots=True, eq=False)
class MarginQuery:
    """What a query group of the whole product says about a margin."""

    query: QueryGroup  # of the margin, with the number of answers that each row sums
    # (m,): row of `query` to which each answer of the whole query group is added; -1 for those about
    # impossible cells alone.
    row: Ints


@dataclass(frozen=True, eq=False)
class Margin:
    """A product of some attributes of another one, with levels in groups."""

    whole: Product
    # (levels,): per attribute of the whole product, group of each level; one group where the margin sums over
    # it.
    groups: tuple[Ints, ...]

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """Attributes of the whole product, by position, that the margin has."""
        return tuple(axis for axis, group in enumerate(self.groups) if group.max() > 0)

    @cached_property
    def cells(self) -> Ints:
        """The cell of the margin in which each cell of the whole product is counted, int64 (n,)."""
        found = np.zeros(1, dtype=np.int64)
        for group in self.groups:
            found = (found[:, None] * (int(group.max()) + 1) + group).ravel()
        return found

    @cached_property
    def product(self) -> Product:
        """The margin as a product: its attributes, structural zeros, and all recodes of the whole."""
        attributes = tuple(self._attribute(axis) for axis in self.kept) or (_NO_ATTRIBUTE,)
        schema = Schema(attributes)
        levels = ", ".join(f"{a.name} ({'/'.join(a.levels)})" for a in attributes)
        return Product(
            name=f"{self.whole.name} by {levels}",
            schema=schema,
            recodes=tuple(self._recodes()),
            query_names=("total", "detailed"),
            invariants=(),
            bounds=(),
            structural_zeros=self._zeros(schema),
            protected_unit=self.whole.protected_unit,
            layout=self.whole.layout,
            passes=PassPlan({}, {}),
        )

    def _attribute(self, axis: int) -> Attribute:
        whole, group = self.whole.schema.attributes[axis], self.groups[axis]
        labels = []
        for number in range(int(group.max()) + 1):
            inside = np.flatnonzero(group == number)
            first, last = whole.levels[inside[0]], whole.levels[inside[-1]]
            labels.append(first if len(inside) == 1 else f"{first}-{last}")
        if len(set(labels)) < len(labels):
            labels = [f"{label} ({number})" for number, label in enumerate(labels)]
        return Attribute(whole.name, tuple(labels))

    def _joined(self, factor: str) -> tuple[int, Ints]:
        """Return attribute of a factor, and the finest groups that both it and the margin distinguish."""
        axis = self.whole.workload.positions[factor]
        return axis, joined(self.groups[axis], self.whole.workload.group_of_level(factor))

    def _recodes(self) -> list[Recode]:
        found = []
        for recode in self.whole.recodes:
            axis, together = self._joined(recode.name)
            if axis in self.kept:
                levels = self._attribute(axis).levels
                of_group = _first_of(self.groups[axis], together)
                found.append(
                    Recode(
                        recode.name,
                        recode.attribute,
                        tuple(
                            (str(number), tuple(levels[i] for i in np.flatnonzero(of_group == number)))
                            for number in range(int(together.max()) + 1)
                        ),
                    )
                )
        return found

    def _zeros(self, schema: Schema) -> tuple[StructuralZero, ...]:
        """Return the cells of the margin in which no cell of the whole product is possible."""
        possible = np.zeros(schema.size, dtype=bool)
        possible[self.cells[self.whole.possible]] = True
        codes = schema.codes(np.flatnonzero(~possible))
        return tuple(
            StructuralZero(
                {a.name: (a.levels[int(code)],) for a, code in zip(schema.attributes, place, strict=True)}
            )
            for place in zip(*codes, strict=True)
        )

    def query(self, whole: QueryGroup) -> MarginQuery:
        """Return what a query group of the whole product says about the margin."""
        row = np.zeros(1, dtype=np.int64)
        factors = []
        for factor, length in zip(whole.factors, whole.shape, strict=True):
            axis, together = self._joined(factor)
            of_row = _first_of(self.whole.workload.group_of_level(factor), together)
            if axis not in self.kept:
                of_row = np.zeros(length, dtype=np.int64)
            elif together.max() > 0:
                fine = int(together.max()) == int(self.groups[axis].max())
                factors.append(self.whole.schema.names[axis] if fine else factor)
            row = (row[:, None] * (int(of_row.max()) + 1) + of_row).ravel()
        known = np.zeros(whole.size, dtype=bool)
        known[whole.row_of_cell[self.whole.possible]] = True
        row[~known] = -1
        workload = self.product.workload
        found = workload.group(" * ".join(factors) if factors else "total")
        draws = np.maximum(np.bincount(row[known], minlength=found.size), 1).astype(np.int64)
        return MarginQuery(dataclasses.replace(found, name=whole.name, draws=draws), row)

    def rows_of(self, factor: str) -> tuple[QueryGroup, Ints]:
        """Return a query group of the margin for a factor of the whole product, and the row of each level.

        Levels that the margin does not distinguish are in one row: the total where it sums over the
        attribute.
        """
        axis, together = self._joined(factor)
        workload = self.product.workload
        of_row = _first_of(self.whole.workload.group_of_level(factor), together)
        if axis not in self.kept or together.max() == 0:
            return workload.group("total"), np.zeros_like(of_row)
        return workload.group(factor), of_row

    def classes(self, kinds: npt.NDArray[np.integer]) -> Ints:
        """Return the kind of each cell of the margin, int64 (c,), from that of cells of the whole product."""
        found = value_of_rows(self.cells, kinds)
        if found is None:
            raise ConfigError(f"measurements were summed to {self.product.name}, which does not answer this.")
        return found.astype(np.int64)


def joined(first: Ints, second: Ints) -> Ints:
    """Return the finest groups of levels that neither of two groupings divides, int64 (levels,).

    Numbered in the order of their first levels.
    """
    found = np.arange(len(first), dtype=np.int64)
    while True:
        before = found
        for group in (first, second):
            least = np.full(int(group.max()) + 1, len(first), dtype=np.int64)
            np.minimum.at(least, group, found)
            found = least[group]
        if np.array_equal(before, found):
            return np.unique(found, return_inverse=True)[1].astype(np.int64)


def _first_of(group: Ints, value: Ints) -> Ints:
    """Return the value of each group, of levels that have one value in each."""
    found = np.zeros(int(group.max()) + 1, dtype=np.int64)
    found[group] = value
    return found
