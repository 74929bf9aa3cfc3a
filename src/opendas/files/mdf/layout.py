"""The layouts of microdata detail files (MDF): which columns a record has and what they mean.

Axes: ``leaves`` of the frame, ``r`` kinds of record of the layout. A record is fully described by its leaf
and its kind, so that every column is constant, a function of the leaf, a function of the kind, or the
record's number in the file.

``persons``, ``units``, ``dhc-persons`` and ``dhc-units`` have the column names and codes of the 2020
production files (see docs/formats/outputs.md); any other product has its geocode and one label column per
attribute.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints
from opendas.errors import ConfigError, GeographyError
from opendas.files.mdf.dhc_units import unit_columns, unit_estimate, unit_records
from opendas.geography.frame import CENSUS_PREFIX, GQ_COLUMNS, Frame
from opendas.schema.dhc_persons import GQ_CODES, OLDEST, RELATIONSHIPS
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product

SCHEMA_BUILD_ID = "1.1.0"
"""Version of the record layout that the production files carry."""

MOST_PARTS = 5_000
"""Part files that a folder takes; there are 3,234 counties."""
LONGEST_NAME = 200
"""Characters of a part's file name without its ending; file systems take 255 with all that is added."""

_BLOCK = (
    ("TABBLKST", 0, 2),
    ("TABBLKCOU", 2, 5),
    ("TABTRACTCE", 5, 11),
    ("TABBLKGRPCE", 11, 12),
    ("TABBLK", 11, 15),
)
"""Columns that name a block, and the characters of its geocode they hold. Where leaves are tracts or block
groups, the columns below them are left out."""

_ATTRIBUTES = {
    "persons": (("hhgq", "votingage", "hispanic", "cenrace"), (8, 2, 2, 63)),
    "units": (("occupancy",), (2,)),
    "dhc-persons": (("relgq", "sex", "age", "hispanic", "cenrace"), (42, 2, 116, 2, 63)),
    "dhc-units": (
        ("sex", "hhage", "hisp", "race", "elderly", "hhtenshort_3lev", "hhtype_dhch"),
        (2, 9, 2, 7, 4, 3, 522),
    ),
}
"""What the records of the production layouts need: attributes, and how many levels each has."""

PRODUCTION_LAYOUTS = tuple(_ATTRIBUTES)
"""Layouts of the 2020 production files, whose leaves are census geounits."""

_INSTITUTIONS = 15
"""Of the types of group quarters, the first are institutional: codes 101 to 405."""

Source = Literal["constant", "leaf", "kind", "number"]


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One column of a layout."""

    name: str
    source: Source  # "constant", "leaf", "kind" or "number": what decides its value
    # Distinct values; empty for ``number``, which is the record's 0-based position.
    values: tuple[str, ...] = ()
    # (leaves,), (r,): position in `values` per leaf or kind; empty otherwise.
    index: npt.NDArray[np.integer] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The columns of a product's records."""

    name: str  # ``persons``, ``units``, ``dhc-persons`` or the product's name
    columns: tuple[Column, ...]  # in file order
    kinds: int  # number of kinds of record ``r``

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in file order."""
        return tuple(column.name for column in self.columns)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One part file."""

    name: str  # file name without its ending
    leaves: Ints  # (k,): positions in the frame, ascending


def part_name(code: str) -> str:
    """Return a geocode as a file name that is legal everywhere and that no reader skips as hidden."""
    name = quote(code, safe="")
    if len(name) > LONGEST_NAME:
        digest = hashlib.sha256(code.encode()).hexdigest()[:32]
        name = f"{name[: LONGEST_NAME - len(digest) - 1]}-{digest}"
    return name if name[:1] not in ("", ".", "_") else f"%{name}"


def mdf_parts(product: Product, frame: Frame) -> tuple[Part, ...]:
    """Divide the frame into part files: by county, or by the geolevel below the root for other products.

    A frame of two geolevels makes one file per root, a frame of leaves only a single file ``all``; and a
    geolevel of more than :data:`MOST_PARTS` geounits leaves it to the one above.
    """
    if product.layout in PRODUCTION_LAYOUTS and "county" in frame.levels:
        geolevels = ["county"]
    else:
        geolevels = list(reversed(frame.geolevels[:-1][:2]))
    for geolevel in geolevels:
        codes, part_of_leaf = np.unique(frame.codes(geolevel), return_inverse=True)
        if len(codes) <= MOST_PARTS:
            break
    else:
        return (Part("all", np.arange(len(frame), dtype=np.int64)),)
    order = np.argsort(part_of_leaf, kind="stable")
    stops = np.cumsum(np.bincount(part_of_leaf, minlength=len(codes)))[:-1]
    return tuple(
        Part(part_name(code.decode()), leaves.astype(np.int64))
        for code, leaves in zip(codes, np.split(order, stops), strict=True)
    )


def check_mdf(product: Product, frame: Frame) -> None:
    """Check that the records of `product` on `frame` can be written.

    Raises `GeographyError` if a production layout is asked of leaves that are no census geounits.
    """
    if product.layout in _ATTRIBUTES:
        _check_attributes(product, *_ATTRIBUTES[product.layout])
        _check_blocks(frame)
    elif "geocode" in product.schema.names:
        raise ConfigError("an attribute called 'geocode' would collide with that column of the microdata.")


def mdf_layout(product: Product, frame: Frame) -> Layout:
    """Return the layout of `product` on `frame`.

    Raises `GeographyError, ConfigError` see :func:`check_mdf`.
    """
    check_mdf(product, frame)
    if product.layout == "persons":
        return _persons(product, frame)
    if product.layout == "units":
        return _units(product, frame)
    if product.layout == "dhc-persons":
        return _dhc_persons(product, frame)
    if product.layout == "dhc-units":
        return _dhc_units(product, frame)
    return _generic(product, frame)


def _kinds(name: str, values: Sequence[str], index: npt.NDArray[np.integer | np.bool_]) -> Column:
    small = len(values) <= np.iinfo(np.int8).max + 1
    return Column(name, "kind", tuple(values), np.asarray(index, dtype=np.int8 if small else np.int32))


def _check_blocks(frame: Frame) -> None:
    width = CENSUS_PREFIX.get(frame.leaf, 0)
    if width == 0 or bool(np.any(np.char.str_len(frame.geocodes) != width)):
        raise GeographyError(
            "the census microdata layouts need blocks as leaves, with 15-character geocodes, or block groups "
            "(12), tracts (11), counties (5) or states (2)."
        )


def _block_columns(schema_type: str, frame: Frame) -> list[Column]:
    width = CENSUS_PREFIX[frame.leaf]
    codes = np.ascontiguousarray(frame.geocodes.astype(f"S{width}"))
    columns = [
        Column("SCHEMA_TYPE_CODE", "constant", (schema_type,)),
        Column("SCHEMA_BUILD_ID", "constant", (SCHEMA_BUILD_ID,)),
    ]
    characters = codes.view("S1").reshape(len(codes), width)
    for name, start, stop in _BLOCK:
        if stop > width:
            continue
        piece = np.ascontiguousarray(characters[:, start:stop]).view(f"S{stop - start}").ravel()
        values, index = np.unique(piece, return_inverse=True)
        columns.append(
            Column(name, "leaf", tuple(v.decode() for v in values.tolist()), index.astype(np.int32))
        )
    return columns


def _check_attributes(product: Product, expected: tuple[str, ...], sizes: tuple[int, ...]) -> None:
    if product.schema.names != expected or product.schema.shape != sizes:
        raise ConfigError(
            f"the microdata layout {product.layout!r} needs the attributes {', '.join(expected)} with "
            f"{', '.join(map(str, sizes))} levels; product {product.name!r} has "
            f"{', '.join(product.schema.names)}."
        )


def _persons(product: Product, frame: Frame) -> Layout:
    hhgq, votingage, hispanic, cenrace = product.schema.codes(np.arange(product.schema.size))
    columns = (
        *_block_columns("MPD", frame),
        Column("EPNUM", "number"),
        _kinds("RTYPE", ("3", "5"), hhgq > 0),
        _kinds("GQTYPE_PL", tuple("01234567"), hhgq),
        _kinds("VOTING_AGE", ("1", "2"), votingage),
        *_hispanic_and_race(hispanic, cenrace),
    )
    return Layout(product.layout, columns, product.schema.size)


def _hispanic_and_race(
    hispanic: npt.NDArray[np.integer], cenrace: npt.NDArray[np.integer]
) -> tuple[Column, Column]:
    return (
        _kinds("CENHISP", ("1", "2"), hispanic),
        _kinds("CENRACE", tuple(f"{code:02d}" for code in range(1, 64)), cenrace),
    )


def record_kinds(product: Product) -> tuple[Column, ...]:
    """Return the columns of records of ``dhc-persons`` or ``dhc-units`` that say of which kind each is."""
    if product.layout == "dhc-units":
        return tuple(_kinds(name, *column) for name, column in unit_columns(product).items())
    relgq, sex, age, hispanic, cenrace = product.schema.codes(np.arange(product.schema.size))
    level = np.arange(len(product.schema.attribute("relgq")))
    outside = np.maximum(level - len(RELATIONSHIPS) + 1, 0)
    # Both kinds of householder have one code; whether one lives alone stands in a column of its own.
    relationship = np.select([outside > _INSTITUTIONS, outside > 0], [18, 17], np.maximum(level - 1, 0))
    alone = np.select([outside > 0, level == 0], [0, 1], 2)
    return (
        _kinds("RTYPE", ("3", "5"), (outside > 0)[relgq]),
        _kinds("GQTYPE", ("000", *GQ_CODES), outside[relgq]),
        _kinds("RELSHIP", tuple(str(code) for code in range(20, 39)), relationship[relgq]),
        _kinds("QSEX", ("1", "2"), sex),
        _kinds("QAGE", tuple(str(years) for years in range(OLDEST + 1)), age),
        *_hispanic_and_race(hispanic, cenrace),
        _kinds("LIVE_ALONE", ("0", "1", "2"), alone[relgq]),
    )


def _dhc_persons(product: Product, frame: Frame) -> Layout:
    columns = (*_block_columns("MPD", frame), Column("EPNUM", "number"), *record_kinds(product))
    return Layout(product.layout, columns, product.schema.size)


def _dhc_units(product: Product, frame: Frame) -> Layout:
    kinds = record_kinds(product)
    return Layout(product.layout, (*_block_columns("MUD", frame), *kinds), len(kinds[0].index))


def _units(product: Product, frame: Frame) -> Layout:
    columns = (
        *_block_columns("MUD", frame),
        _kinds("RTYPE", ("2", "4"), np.array([0, 0, 1])),
        _kinds("HH_STATUS", ("0", "1", "2"), np.array([1, 2, 0])),
    )
    return Layout(product.layout, columns, 3)


def _generic(product: Product, frame: Frame) -> Layout:
    codes = product.schema.codes(np.arange(product.schema.size))
    columns = (
        Column(
            "geocode",
            "leaf",
            tuple(code.decode() for code in frame.geocodes.tolist()),
            np.arange(len(frame), dtype=np.int32),
        ),
        *(
            _kinds(attribute.name, attribute.levels, code)
            for attribute, code in zip(product.schema.attributes, codes, strict=True)
        ),
    )
    return Layout(product.layout, columns, product.schema.size)


def record_frame(product: Product, frame: Frame) -> Frame:
    """Return what records are made of: the leaves, and for ``units`` their group quarters."""
    wanted = GQ_COLUMNS if product.layout == "units" else ()
    units = {column: frame.units[column] for column in wanted if column in frame.units}
    return Frame(frame.geocodes, {}, frame.leaf, units)


def record_counts(
    product: Product, frame: Frame, estimate: Histogram, companion: Histogram | None = None
) -> Histogram:
    """Return the number of records of each kind, ``leaves x r``.

    The kinds are the cells of the schema, but for ``units``: occupied units, vacant units, and the occupied
    group quarters of the frame, in the order of the file; and for ``dhc-units``, whose records are those of
    the product's second histogram too: see :mod:`opendas.files.mdf.dhc_units`.
    """
    if product.layout == "dhc-units" and companion is not None:
        return unit_records(product, estimate, companion)
    if product.layout != "units":
        return estimate
    quarters = sum(
        (frame.units[column] for column in GQ_COLUMNS if column in frame.units),
        np.zeros(len(frame), dtype=np.int64),
    )
    return Histogram.from_entries(
        np.concatenate([estimate.row_of_entries(), np.arange(len(frame))]),
        np.concatenate([1 - estimate.cells, np.full(len(frame), 2)]),
        np.concatenate([estimate.counts, quarters]),
        shape=(len(frame), 3),
    )


def estimate_of_records(product: Product, counts: Histogram) -> Histogram:
    """Return the estimate behind record counts: undoes :func:`record_counts`."""
    if product.layout == "dhc-units":
        return unit_estimate(product, counts)
    if product.layout != "units":
        return counts
    return counts.recoded(np.array([1, 0, -1]), 2)  # group quarters are left out
