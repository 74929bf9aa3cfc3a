"""Layouts of the Bureau's microdata; apart from tables of users' own, which name their columns.

Persons and units of the redistricting products (PPMF, MDF), and those of the DHC. These are read for the
products of both: the redistricting products count less of what they say.

Axes: ``r`` rows of a batch, ``k`` kinds of record of a layout.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from opendas.arrays import Codes, Ints, positions_of
from opendas.errors import SchemaError
from opendas.files.mdf.dhc_units import household_cells, unit_levels
from opendas.files.mdf.layout import Column, record_kinds
from opendas.readers.columns.coding import (
    BLOCK_COLUMNS,
    GROUP_COLUMN,
    Geocodes,
    block_geocodes_of,
    codes_of,
)
from opendas.readers.columns.csv_parquet import Batch
from opendas.readers.columns.findings import FindingLog
from opendas.readers.input.spec import FRAME_FROM_RECORDS, ReaderSpec, Source, census_kind
from opendas.schema.dhc_persons import GQ_CODES, OLDEST, dhc_persons
from opendas.schema.dhc_units import dhc_units, dhc_units_tenvacgq
from opendas.schema.pl94 import pl94_persons, pl94_units
from opendas.schema.product import Product

_SHORT = {"TABTRACTCE": "TABTRACT", "TABBLKGRPCE": "TABBLKGRP"}
"""Names that some copies of the published files use."""

_DHC = {"dhc-persons": dhc_persons, "dhc-units": dhc_units, "dhc-units-tenvacgq": dhc_units_tenvacgq}


def is_census(product: Product) -> bool:
    """Return whether a product is one of the census that microdata are read for."""
    made = _DHC.get(product.name)
    return census_kind(product) is not None or (made is not None and made().schema == product.schema)


def products_of(columns: Collection[str]) -> tuple[Product, ...]:
    """Return the products that microdata with these columns count, the most detailed first; possibly none."""
    if "QAGE" in columns:
        return dhc_persons(), pl94_persons()
    if "THHLDRAGE" in columns:
        return dhc_units(), pl94_units()
    if "VOTING_AGE" in columns:
        return (pl94_persons(),)
    return (pl94_units(),) if "HH_STATUS" in columns else ()


def public_microdata(files: tuple[Source, ...], product: Product) -> ReaderSpec:
    """Return how published microdata are read, without a run: their leaves are those that have records."""
    if census_kind(product) is None:  # whose bounds need units by detailed type
        product = replace(product, bounds=(), tie=None, companion=None)
    return ReaderSpec("mdf", files, product, frame=FRAME_FROM_RECORDS, plan_from_records=True)


def _numbered(first: int, count: int, width: int = 1) -> dict[str, int]:
    """Return the code of each official number, written with or without leading zeros."""
    padded = {f"{first + code:0{width}d}": code for code in range(count)}
    return padded | {str(first + code): code for code in range(count)}


_PERSON: Mapping[str, tuple[Mapping[str, int], str]] = {
    "GQTYPE_PL": (_numbered(0, 8), "expected 0 (household) to 7"),
    "VOTING_AGE": (_numbered(1, 2), "expected 1 (under 18) or 2 (18 and over)"),
    "CENHISP": (_numbered(1, 2), "expected 1 (not Hispanic) or 2 (Hispanic)"),
    "CENRACE": (_numbered(1, 63, 2), "expected 01 to 63"),
}
"""Columns of persons in schema order, with the code of each value."""


_DHC_PERSON: Mapping[str, tuple[Mapping[str, int], str]] = {
    "GQTYPE": (
        {"000": 0, "0": 0} | {code: min(int(code[0]), 7) for code in GQ_CODES},
        "expected 000 (household) or a type of group quarters, 101 to 997",
    ),
    "QAGE": ({str(age): int(age >= 18) for age in range(OLDEST + 1)}, f"expected 0 to {OLDEST}"),
    "CENHISP": _PERSON["CENHISP"],
    "CENRACE": _PERSON["CENRACE"],
}
"""Columns of persons of the DHC, with what each value is for the redistricting product."""

_Cells = Callable[[Batch, FindingLog], Ints]


@dataclass(frozen=True, slots=True)
class Microdata:
    """The layout of persons or units."""

    names: Mapping[str, str]  # official column name -> the file's: where they differ
    cell_columns: Sequence[str]  # the columns of codes
    of_rows: _Cells  # returns the cell of each row
    others: None = None
    upper: Mapping[str, Codes] = field(default_factory=dict)
    strict: bool = False

    @classmethod
    def of(cls, product: Product, known: Collection[str]) -> Microdata:
        """Return the layout of files with the columns `known`, read for a product of the census."""
        names = {long: short for long, short in _SHORT.items() if long not in known and short in known}
        kind = census_kind(product)
        if kind is None:
            columns, _, _ = _known_kinds(product.name)
            return cls(names, tuple(column.name for column in columns), Kinds(product.name))
        if kind == "persons":
            is_dhc = "GQTYPE_PL" not in known and "GQTYPE" in known
            fields = _DHC_PERSON if is_dhc else _PERSON
            return cls(names, ("RTYPE", *fields), _dhc_persons_there if is_dhc else _persons)
        if "HH_STATUS" not in known and "VACS" in known:
            return cls(names, ("RTYPE", "TEN", "VACS"), _dhc_units_there)
        return cls(names, ("RTYPE", "HH_STATUS"), _units)

    def beside(self, frame: object, spec: object) -> Microdata:
        """Return the same: a block's number says where it lies."""
        return self

    @property
    def leaf_columns(self) -> Sequence[str]:
        """The five columns that name a block."""
        official = (*(name for name, _ in BLOCK_COLUMNS), GROUP_COLUMN)
        return [self.names.get(name, name) for name in official]

    @property
    def leaf_field(self) -> str:
        """The block's column."""
        return "TABBLK"

    def leaves(self, batch: Batch, log: FindingLog) -> Geocodes:
        """Return the 15-character block of each row."""
        codes, apart = block_geocodes_of(batch, self.names, log, digits=False)
        return Geocodes(np.where(apart, b"", codes))

    def cells(self, batch: Batch, log: FindingLog) -> Ints:
        """Return the cell of each row; -2 for a unit that is not a housing unit."""
        return self.of_rows(batch, log)

    def counts(self, batch: Batch, log: FindingLog) -> None:
        """Return None: each row is a record."""
        return


def _persons(batch: Batch, log: FindingLog) -> Ints:
    return _people(batch, _PERSON, "GQTYPE_PL 0 and 5 with GQTYPE_PL 1 to 7", log)


def _dhc_persons_there(batch: Batch, log: FindingLog) -> Ints:
    return _people(batch, _DHC_PERSON, "GQTYPE 000 and 5 with another GQTYPE", log)


def _people(
    batch: Batch, fields: Mapping[str, tuple[Mapping[str, int], str]], apart_rule: str, log: FindingLog
) -> Ints:
    cells = np.zeros(batch.rows, dtype=np.int64)
    wrong = np.zeros(batch.rows, dtype=bool)
    for name, (keys, rule) in fields.items():
        codes = codes_of(batch, name, keys, rule, log)
        wrong |= codes < 0
        cells = cells * len(set(keys.values())) + codes
    quarters = codes_of(batch, "RTYPE", {"3": 0, "5": 1}, "expected 3 (household) or 5 (group quarters)", log)
    apart = ~wrong & (quarters >= 0) & (quarters != (cells >= 252))
    batch.report(apart, "RTYPE", f"expected 3 with {apart_rule}", log, SchemaError)
    return np.where(wrong | apart, -1, cells)


_UNIT = ({"2": 0, "4": 1}, "expected 2 (housing unit) or 4 (group quarters)")


def _units(batch: Batch, log: FindingLog) -> Ints:
    quarters = codes_of(batch, "RTYPE", *_UNIT, log)
    status = codes_of(
        batch, "HH_STATUS", {"0": 2, "1": 1, "2": 0}, "expected 1 (occupied), 2 (vacant) or 0", log
    )
    rule = "expected 1 or 2 for housing units and 0 for group quarters"
    apart = (quarters >= 0) & (status >= 0) & ((quarters == 1) != (status == 2))
    batch.report(apart, "HH_STATUS", rule, log, SchemaError)
    return np.where((quarters < 0) | apart, -1, np.where(status == 2, -2, status))


def _dhc_units_there(batch: Batch, log: FindingLog) -> Ints:
    quarters = codes_of(batch, "RTYPE", *_UNIT, log)
    tenure = codes_of(batch, "TEN", _numbered(0, 5), "expected 0 to 4", log)
    vacancy = codes_of(batch, "VACS", _numbered(0, 8), "expected 0 to 7", log)
    usable = (quarters >= 0) & (tenure >= 0) & (vacancy >= 0)
    kinds = np.stack([quarters == 1, tenure > 0, vacancy > 0])
    apart = usable & (kinds.sum(axis=0) != 1)
    rule = "expected TEN 1 to 4 or VACS 1 to 7 for housing units, and neither for group quarters"
    batch.report(apart, "TEN", rule, log, SchemaError)
    return np.where(~usable | apart, -1, np.where(quarters == 1, -2, tenure > 0))


@dataclass(frozen=True, slots=True)
class Kinds:
    """Gives the cell of records of the DHC, whose columns all together say of which kind a record is."""

    product: str

    def __call__(self, batch: Batch, log: FindingLog) -> Ints:
        """Return the cell of each row; -2 for a unit that is not a household."""
        columns, keys, cell = _known_kinds(self.product)
        key = np.zeros(batch.rows, dtype=np.int64)
        usable = np.ones(batch.rows, dtype=bool)
        for column in columns:
            known = {value: code for code, value in enumerate(column.values)}
            known |= {value.lstrip("0") or "0": code for value, code in known.items()}
            first, *_, last = column.values
            rule = f"expected one of {len(column.values)} codes, {first} to {last}"
            codes = codes_of(batch, column.name, known, rule, log)
            usable &= codes >= 0
            key = key * len(column.values) + codes
        place = positions_of(keys, key)
        apart = usable & (place < 0)
        names = ", ".join(column.name for column in columns)
        batch.report(
            apart,
            columns[0].name,
            f"expected codes that a record can have together in {names}",
            log,
            SchemaError,
        )
        return np.where(usable & ~apart, cell[place], -1)


@cache
def _known_kinds(name: str) -> tuple[tuple[Column, ...], Ints, Ints]:
    """Return the columns of a product's records, their kinds, one number each, ascending, and their cells."""
    product = dhc_persons() if name == "dhc-persons" else dhc_units()
    columns = record_kinds(product)
    key = np.zeros(len(columns[0].index), dtype=np.int64)
    for column in columns:
        key = key * len(column.values) + column.index
    order = np.argsort(key, kind="stable")
    cells = np.arange(len(key)) if name == "dhc-persons" else household_cells(product)
    return columns, key[order], (unit_levels(product) if name == "dhc-units-tenvacgq" else cells)[order]
