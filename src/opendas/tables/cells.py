"""What each column of a table counts.

Tables P1 to P5 and H1 of the redistricting data (Public Law 94-171), and those of the DHC
(:mod:`opendas.tables.dhc`, :mod:`opendas.tables.dhc_units`); a name belongs to a product, and both have a P1.
Every cell is a box: a set of levels for each attribute, all levels where none is named. Order and names of
the redistricting cells are those of the technical documentation of the 2020 Census Redistricting Data Summary
File, and follow from the 63 combinations of races. For any product, the rows of a query group make a table
too. And finding what a name stands for.

Axes: ``n`` cells of the schema, ``t`` columns of the table, ``b`` classes of cells that count in the same
columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools
from opendas.errors import ConfigError, nearest
from opendas.files.release_folder import ReleasedProduct, ReleaseFolder
from opendas.geography.frame import Frame
from opendas.schema.attributes import Schema
from opendas.schema.pl94 import HHGQ_LEVELS, RACES, race_combinations
from opendas.schema.product import Product
from opendas.tables.dhc import MAJOR_QUARTERS, NUMBERS, RACE_LABELS, UNANSWERED, DhcTable, dhc_tables
from opendas.tables.dhc_units import household_tables, unit_tables

PL94_TABLES = ("P1", "P2", "P3", "P4", "P5", "H1")
"""Tables of the redistricting data."""

_DHC: Mapping[str, tuple[str, Callable[[], Mapping[str, DhcTable]]]] = {
    "dhc-persons": ("dhc-persons", dhc_tables),
    "dhc-units": ("dhc-units", household_tables),
    "tenvacgq": ("dhc-units", unit_tables),
}
"""Product to run, and its tables, by microdata layout."""

_RACE_NAMES = {race: label.removesuffix(" alone") for race, label in zip(RACES, RACE_LABELS, strict=False)}
Levels = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class TableCell:
    """One column of a published table."""

    name: str  # for instance ``P0010001``
    label: str  # in words
    levels: Levels  # the box that it counts: level labels by attribute


@dataclass(frozen=True, eq=False)
class Table:
    """Columns as sets of cells of a schema."""

    name: str  # used in file names
    columns: tuple[str, ...]  # column names
    labels: tuple[str, ...]  # the same in words
    class_of_cell: npt.NDArray[np.int32]  # int32 (n,). Cells of one class count in the same columns.
    # bool or int8 (b, t). Columns that each class counts in; of a table of tallies, how often.
    classes: npt.NDArray[np.bool_ | np.int8]
    lowest: str | None = None  # the lowest official geolevel that the table is published for; None for any

    @property
    def counts_records(self) -> bool:
        """Whether no column counts a record more than once."""
        return self.classes.dtype == np.bool_

    def each_column(self) -> Iterator[Bools]:
        """Yield the cells that each column counts, bool (n,)."""
        if not self.counts_records:
            raise ConfigError(
                f"table {self.name} counts a record once for each of its races; intervals are of tables that "
                "count each record once."
            )
        for column in range(len(self.columns)):
            yield self.classes[:, column][self.class_of_cell].astype(np.bool_)

    @property
    def members(self) -> Bools:
        """Bool (t, n): cells that each column counts, for schemas of which so much fits into memory."""
        return np.stack(list(self.each_column()))


def box_table(schema: Schema, name: str, cells: Sequence[TableCell], lowest: str | None = None) -> Table:
    """Return a table whose columns count boxes of a schema's cells.

    Memory follows the cells and the distinct sets of columns, not columns times cells: levels of an attribute
    that stand in the same columns make one class of it, and a class of cells is a class of every attribute.
    """
    class_of_cell = np.zeros(1, dtype=np.int32)
    classes = np.ones((1, len(cells)), dtype=bool)
    for attribute in schema.attributes:
        boxes = [set(cell.levels.get(attribute.name, attribute.levels)) for cell in cells]
        inside = np.array([[level in box for box in boxes] for level in attribute.levels])
        groups, of_level = np.unique(inside, axis=0, return_inverse=True)
        of_level = of_level.ravel().astype(np.int32)
        class_of_cell = (class_of_cell[:, None] * np.int32(len(groups)) + of_level).ravel()
        classes = (classes[:, None, :] & groups).reshape(-1, len(cells))
    columns, labels = tuple(cell.name for cell in cells), tuple(cell.label for cell in cells)
    return Table(name, columns, labels, class_of_cell, classes, lowest)


def table_layout(table: str) -> str:
    """Return the microdata layout that a redistricting table is made from: ``persons`` or ``units``."""
    return "units" if table.startswith("H") else "persons"


def _races() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (label, combinations counted) of the race part of tables P1 to P4, in order."""
    combinations = ["+".join(races) for races in race_combinations()]
    by_number = {
        k: [name for name, races in zip(combinations, race_combinations(), strict=True) if len(races) == k]
        for k in range(1, 7)
    }
    words = {name: "; ".join(_RACE_NAMES[race] for race in name.split("+")) for name in combinations}
    yield "Population of one race", tuple(by_number[1])
    for name in by_number[1]:
        yield f"{words[name]} alone", (name,)
    yield "Population of two or more races", tuple(n for k in range(2, 7) for n in by_number[k])
    for k in range(2, 7):
        yield f"Population of {NUMBERS[k - 1]}", tuple(by_number[k])
        for name in by_number[k]:
            yield words[name], (name,)


def _race_table(age: Levels, by_hispanic: bool) -> Iterator[tuple[str, Levels]]:
    yield "Total", age
    rest: Levels = {}
    if by_hispanic:
        yield "Hispanic or Latino", {**age, "hispanic": ("hispanic",)}
        rest = {"hispanic": ("not_hispanic",)}
        yield "Not Hispanic or Latino", {**age, **rest}
    for label, names in _races():
        yield label, {**age, **rest, "cenrace": names}


def _group_quarters() -> Iterator[tuple[str, Levels]]:
    yield "Total", {"hhgq": HHGQ_LEVELS[1:]}
    for title, first, stop in (("Institutionalized", 1, 5), ("Noninstitutionalized", 5, 8)):
        yield f"{title} population", {"hhgq": HHGQ_LEVELS[first:stop]}
        for code in range(first, stop):
            yield MAJOR_QUARTERS[code - 1][0], {"hhgq": (HHGQ_LEVELS[code],)}


def _housing() -> Iterator[tuple[str, Levels]]:
    yield "Total", {}
    yield "Occupied", {"occupancy": ("occupied",)}
    yield "Vacant", {"occupancy": ("vacant",)}


@cache
def pl94_cells(table: str) -> tuple[TableCell, ...]:
    """Return the cells of a redistricting table in published order."""
    adult: Levels = {"votingage": ("18plus",)}
    made = {
        "P1": lambda: _race_table({}, by_hispanic=False),
        "P2": lambda: _race_table({}, by_hispanic=True),
        "P3": lambda: _race_table(adult, by_hispanic=False),
        "P4": lambda: _race_table(adult, by_hispanic=True),
        "P5": _group_quarters,
        "H1": _housing,
    }
    if table not in made:
        raise ConfigError(f"no table {table!r}; {nearest(table, PL94_TABLES)}")
    prefix = f"{table[0]}00{table[1]}"
    return tuple(
        TableCell(f"{prefix}{number:04d}", label, levels)
        for number, (label, levels) in enumerate(made[table](), start=1)
    )


def pl94_table(product: Product, table: str) -> Table:
    """Return a redistricting table on the schema of its product."""
    cells = pl94_cells(table)
    if product.layout != table_layout(table):
        raise ConfigError(
            f"table {table} is made from layout {table_layout(table)!r}, not {product.layout!r}."
        )
    return box_table(product.schema, table, cells)


def dhc_table(product: Product, table: str) -> Table:
    """Return a table of the DHC on the schema of its product."""
    tables = _DHC[product.layout][1]()
    declared = tables.get(table)
    if declared is None:
        raise ConfigError(f"no table {table!r}; {nearest(table, tables)}")
    levels = {attribute.name: attribute.levels for attribute in product.schema.attributes}
    cells = [
        TableCell(
            f"{table}_{number:03d}N",
            label,
            {name: tuple(levels[name][code] for code in codes) for name, codes in box.items()},
        )
        for number, (label, box) in enumerate(declared.rows(), start=1)
    ]
    made = box_table(product.schema, table, cells, declared.lowest)
    if not declared.tallies:
        return made
    classes = made.classes.astype(np.int8)
    for column, parts in declared.tallies.items():
        classes[:, column] = made.classes[:, parts].sum(axis=1)
    return replace(made, classes=classes)


def published_tables(layout: str) -> tuple[str, ...]:
    """Return the names of the published tables that a microdata layout answers."""
    if layout in _DHC:
        return tuple(_DHC[layout][1]())
    return tuple(table for table in PL94_TABLES if table_layout(table) == layout)


def product_table(product: Product, name: str) -> Table:
    """Return a published table of a product, or a query group as a table."""
    if name not in published_tables(product.layout):
        return query_table(product, name)
    return dhc_table(product, name) if product.layout in _DHC else pl94_table(product, name)


def query_table(product: Product, query: str) -> Table:
    """Return the rows of a query group as a table, one column per row label."""
    group = product.workload.group(query)
    columns = tuple(group.row_label(row) for row in range(group.size))
    if len({"GEOID", *columns}) != len(columns) + 1:
        raise ConfigError(f"query group {group.name!r}: two columns would have the same name.")
    return Table(group.name, columns, columns, group.row_of_cell, np.eye(group.size, dtype=bool))


_UNIT_QUERY = re.compile(r"(?P<product>[^:]+):(?P<query>.+)", re.DOTALL)


def find_table(
    release: ReleaseFolder, name: str, product: str | None = None
) -> tuple[ReleasedProduct, str, bool]:
    """Resolve a published table or a query group, written ``NAME`` or ``PRODUCT:NAME``.

    - `product`: the product, where it is known; the name is then returned as it is.
    - Returns: its product, its canonical name, and whether `name` names the product.
    """
    if product is not None:
        return release[product], name, False
    named = _UNIT_QUERY.fullmatch(name)
    if named is not None and named["product"] in release:
        both = [release[named["product"]]]
        companion = both[0].product.companion
        both += [release[companion.name]] if companion is not None and companion.name in release else []
        for released in both:
            if named["query"] in published_tables(released.product.layout):
                return released, named["query"], True
    found = [
        released
        for released in map(release.__getitem__, release.names)
        if name in published_tables(released.product.layout)
    ]
    if len(found) > 1:
        choice = ", ".join(f"{released.name}:{name}" for released in found)
        raise ConfigError(f"several products have a table {name}; write one of {choice}.")
    if found:
        return found[0], name, False
    of_dhc = [needed for layout, (needed, _) in _DHC.items() if name in published_tables(layout)]
    if name in PL94_TABLES or of_dhc:
        needed = f"pl94-{table_layout(name)}" if name in PL94_TABLES else of_dhc[0]
        raise ConfigError(
            f"table {name} needs the product {needed}, and this release holds "
            f"{', '.join(release.names)}; run {needed} into the same folder first."
        )
    if name in UNANSWERED and any(published_tables(release[one].product.layout) for one in release.names):
        raise ConfigError(f"no histogram answers table {name}: {UNANSWERED[name]}.")
    return _find_query(release, name)


def _find_query(release: ReleaseFolder, name: str) -> tuple[ReleasedProduct, str, bool]:
    named = _UNIT_QUERY.fullmatch(name)
    candidates = release.names
    explicit = named is not None and named["product"] in release
    if named is not None and explicit:
        candidates, name = (named["product"],), named["query"]
    found: list[tuple[ReleasedProduct, str]] = []
    for product in candidates:
        try:
            found.append((release[product], release[product].product.workload.canonical(name)))
        except ConfigError:
            if len(candidates) == 1:
                raise
    if not found:
        raise ConfigError(
            f"no table or query group {name!r}; tables are {', '.join(_tables_of(release))}, query groups "
            f"are attributes and recodes of {', '.join(release.names)} joined with ' * '."
        )
    if len(found) > 1:
        products = ", ".join(f"{released.name}:{name}" for released, _ in found)
        raise ConfigError(f"query group {name!r} belongs to several products; write one of {products}.")
    return (*found[0], explicit)


def _tables_of(release: ReleaseFolder) -> tuple[str, ...]:
    layouts = {release[name].product.layout for name in release.names}
    found = [table for layout in sorted(layouts) for table in published_tables(layout)]
    return tuple(dict.fromkeys(found)) or PL94_TABLES


def check_lowest(frame: Frame, table: Table, geolevel: str) -> None:
    """Check that a table is not asked for below the lowest geolevel that it is published for."""
    order = frame.geolevels
    if table.lowest in order and geolevel in order and order.index(geolevel) > order.index(table.lowest):
        raise ConfigError(
            f"the Census Bureau publishes table {table.name} down to the {table.lowest}, not for each "
            f"{geolevel}. A query group, for instance 'sex * age', has no such limit."
        )


def check_geolevel(frame: Frame, geolevel: str) -> None:
    """Check that a frame has a geolevel or entity category."""
    known = (*frame.geolevels, *frame.entities)
    if geolevel not in known:
        raise ConfigError(f"no geolevel or entity category {geolevel!r}; {nearest(geolevel, known)}")


def check_held(reader: str, product: Product, table: Table) -> None:
    """Check that a table needs nothing that the input of its run lacks.

    The redistricting file of 2010 has no table P5: who lives in which group quarters follows from a rule of
    the reader, and a table of it would be of that rule.
    """
    schema = product.schema
    if reader != "pl94-2010" or "hhgq" not in schema.names:
        return
    classes = np.moveaxis(table.class_of_cell.reshape(schema.shape), schema.names.index("hhgq"), 0)
    if bool(np.any(classes != classes[0])):
        raise ConfigError(
            f"table {table.name} tells group quarters apart, and the redistricting file of 2010 that this "
            "release was made from has none of them (no table P5): such counts follow from a rule of the "
            "reader, not from the census. --allow-derived (allow_derived=True) writes them all the same."
        )
