"""What each column of a table counts.

Tables P1 to P5 and H1 of the redistricting data (Public Law 94-171). Every cell is a box: a set of levels
for each attribute, all levels where none is named. Order and names of the cells are those of the technical
documentation of the 2020 Census Redistricting Data Summary File, and follow from the 63 combinations of
races. For any product, the rows of a query group make a table too. And finding what a name stands for.

Axes: ``n`` cells of the schema, ``t`` columns of the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache

import numpy as np

from opendas.arrays import Bools
from opendas.errors import ConfigError
from opendas.files.release_folder import ReleasedProduct, ReleaseFolder
from opendas.geography.frame import Frame
from opendas.schema.pl94 import HHGQ_LEVELS, RACES, race_combinations
from opendas.schema.product import Product

__all__ = [
    "PL94_TABLES",
    "Table",
    "TableCell",
    "check_geolevel",
    "find_table",
    "pl94_cells",
    "pl94_table",
    "query_table",
    "table_layout",
]

PL94_TABLES = ("P1", "P2", "P3", "P4", "P5", "H1")
"""Tables of the redistricting data."""

_NUMBERS = ("", "one race", "two races", "three races", "four races", "five races", "six races")
_RACE_NAMES = dict(
    zip(
        RACES,
        (
            "White",
            "Black or African American",
            "American Indian and Alaska Native",
            "Asian",
            "Native Hawaiian and Other Pacific Islander",
            "Some Other Race",
        ),
        strict=True,
    )
)
_QUARTERS_NAMES = (
    "Correctional facilities for adults",
    "Juvenile facilities",
    "Nursing facilities/Skilled-nursing facilities",
    "Other institutional facilities",
    "College/University student housing",
    "Military quarters",
    "Other noninstitutional facilities",
)
Levels = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class TableCell:
    """One column of a published table.

    Parameters
    ----------
    name : str
        For instance ``P0010001``.
    label : str
        In words.
    levels : mapping of attribute to level labels
        The box that it counts.
    """

    name: str
    label: str
    levels: Levels


@dataclass(frozen=True, eq=False)
class Table:
    """Columns as sets of cells of a schema.

    Parameters
    ----------
    name : str
        Used in file names.
    columns : tuple of str
        Column names.
    labels : tuple of str
        The same in words.
    members : bool (t, n)
        Cells that each column counts.
    """

    name: str
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    members: Bools


def table_layout(table: str) -> str:
    """Return the microdata layout that a published table is made from: ``persons`` or ``units``."""
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
        yield f"Population of {_NUMBERS[k]}", tuple(by_number[k])
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
            yield _QUARTERS_NAMES[code - 1], {"hhgq": (HHGQ_LEVELS[code],)}


def _housing() -> Iterator[tuple[str, Levels]]:
    yield "Total", {}
    yield "Occupied", {"occupancy": ("occupied",)}
    yield "Vacant", {"occupancy": ("vacant",)}


@cache
def pl94_cells(table: str) -> tuple[TableCell, ...]:
    """Return the cells of a redistricting table in published order.

    Raises
    ------
    ConfigError
        If there is no such table.
    """
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
        raise ConfigError(f"no table {table!r}; known are {', '.join(PL94_TABLES)}.")
    prefix = f"{table[0]}00{table[1]}"
    return tuple(
        TableCell(f"{prefix}{number:04d}", label, levels)
        for number, (label, levels) in enumerate(made[table](), start=1)
    )


def pl94_table(product: Product, table: str) -> Table:
    """Return a redistricting table on the schema of its product.

    Raises
    ------
    ConfigError
        If the product does not have the table's attributes.
    """
    cells = pl94_cells(table)
    if product.layout != table_layout(table):
        raise ConfigError(
            f"table {table} is made from layout {table_layout(table)!r}, not {product.layout!r}."
        )
    return Table(
        table,
        tuple(cell.name for cell in cells),
        tuple(cell.label for cell in cells),
        np.stack([product.schema.box(cell.levels) for cell in cells]),
    )


def product_table(product: Product, name: str) -> Table:
    """Return a redistricting table or a query group as a table."""
    return pl94_table(product, name) if name in PL94_TABLES else query_table(product, name)


def query_table(product: Product, query: str) -> Table:
    """Return the rows of a query group as a table, one column per row label.

    Raises
    ------
    ConfigError
        If the query is unknown, or two of its columns would have one name.
    """
    group = product.workload.group(query)
    columns = tuple(group.row_label(row) for row in range(group.size))
    if len({"GEOID", *columns}) != len(columns) + 1:
        raise ConfigError(f"query group {group.name!r}: two columns would have the same name.")
    return Table(group.name, columns, columns, group.members)


_UNIT_QUERY = re.compile(r"(?P<product>[^:]+):(?P<query>.+)")


def find_table(
    release: ReleaseFolder, name: str, product: str | None = None
) -> tuple[ReleasedProduct, str, bool]:
    """Resolve ``P1`` to ``P5``, ``H1``, or a query group written ``QUERY`` or ``PRODUCT:QUERY``.

    Parameters
    ----------
    product : str, optional
        The product, where it is known; the name is then returned as it is.

    Returns
    -------
    (ReleasedProduct, str, bool)
        Its product, its canonical name, and whether `name` names the product.

    Raises
    ------
    ConfigError
        If there is no such table, or its product was not run.
    """
    if product is not None:
        return release[product], name, False
    if name not in PL94_TABLES:
        return _find_query(release, name)
    released = release.with_layout(table_layout(name))
    if released is None:
        raise ConfigError(
            f"table {name} needs the product pl94-{table_layout(name)}, and this release holds "
            f"{', '.join(release.names)}; run pl94-{table_layout(name)} into the same folder first."
        )
    return released, name, False


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
            f"no table or query group {name!r}; tables are {', '.join(PL94_TABLES)}, query groups are "
            f"attributes and recodes of {', '.join(release.names)} joined with ' * '."
        )
    if len(found) > 1:
        products = ", ".join(f"{released.name}:{name}" for released, _ in found)
        raise ConfigError(f"query group {name!r} belongs to several products; write one of {products}.")
    return (*found[0], explicit)


def check_geolevel(frame: Frame, geolevel: str) -> None:
    """Check that a frame has a geolevel or entity category.

    Raises
    ------
    ConfigError
        Naming the nearest one, if it has not.
    """
    known = (*frame.geolevels, *frame.entities)
    if geolevel not in known:
        near = get_close_matches(geolevel, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"this release has {', '.join(known)}."
        raise ConfigError(f"no geolevel or entity category {geolevel!r}; {hint}")
