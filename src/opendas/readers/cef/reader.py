"""Reader ``cef``: person and unit records of the Census Edited File, and the GRF-C.

The leaves are the blocks with at least one unit record. How many units of which type every block has is
taken from the records themselves and published, as a census declares; the certificate lists it. People are
placed by the unit they live in.

Axes: ``p`` persons of a chunk, ``u`` units, ``l`` leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Ints, Lookup
from opendas.custody.stamps import POPULATED_LEAVES
from opendas.errors import ConfigError, DataError, GeographyError, SchemaError
from opendas.geography.frame import Frame, official_codes
from opendas.readers.cef.dhc import UnitLevels, person_cells, unit_levels
from opendas.readers.cef.records import (
    GQ_CODES,
    MAFID_RANGE,
    PERSONS,
    QUARTERS,
    UNITS,
    Records,
    read_records,
)
from opendas.readers.columns.coding import is_repeated
from opendas.readers.columns.csv_parquet import no_rows
from opendas.readers.columns.findings import FindingLog, Origin, report_rows
from opendas.readers.counting.entries import Entries
from opendas.readers.frame.frame_file import CENSUS_UNITS
from opendas.readers.frame.grfc import GrfcBlocks, read_blocks
from opendas.readers.frame.units import check_units
from opendas.readers.input.spec import (
    InputData,
    MemoryTable,
    Reader,
    ReaderSpec,
    Source,
    census_kind,
    refuse_to_open,
    without_counts,
)
from opendas.schema.dhc_persons import GQ_CODES as DETAILED
from opendas.schema.dhc_persons import OLDEST, dhc_persons
from opendas.schema.dhc_units import dhc_units, dhc_units_tenvacgq
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product

CefKind = Literal["persons", "units", "dhc-persons", "dhc-units", "tenvacgq"]
"""What is counted: the layout of the product's microdata."""

_MOST = 10**18 - 1
_MOST_PEOPLE = 99_999


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CefUnits:
    """Every unit record. Confidential, but for the number of units of each type in each block."""

    mafid: npt.NDArray[np.int32]  # (u,): each once
    block: npt.NDArray[np.int32]  # (u,): position among the blocks of the GRF-C
    quarters: npt.NDArray[np.int8]  # (u,): 0 for housing units, 1 to 24 for group quarters by detailed type
    vacant: Bools  # (u,)
    people: npt.NDArray[np.int32]  # (u,): the field FINAL_POP
    # (u,): tenure, vacancy status or type of group quarters; empty unless the DHC counts units.
    tenvacgq: npt.NDArray[np.int8]
    # (u,): cell of the household, -1 where there is none; empty unless the DHC counts units.
    household: npt.NDArray[np.int32]
    origins: tuple[Origin, ...]  # where the records were read

    def __len__(self) -> int:
        return len(self.mafid)

    @property
    def hhgq(self) -> npt.NDArray[np.int8]:
        """Int8 (u,): 0 for housing units, 1 to 7 for group quarters by major type."""
        return _MAJOR[self.quarters]

    def by_block(self, blocks: int) -> Ints:
        """Return int64 (b, 25): housing units and group quarters by detailed type in each block."""
        key = self.block.astype(np.int64) * len(_MAJOR) + self.quarters
        return np.bincount(key, minlength=len(_MAJOR) * blocks).reshape(blocks, -1).astype(np.int64)


_MAJOR = np.array([0, *(min(int(code[0]), 7) for code in DETAILED)], dtype=np.int8)
"""Major type of each detailed type of group quarters."""


def read_units(paths: Sequence[Path], blocks: GrfcBlocks, households: Product | None = None) -> CefUnits:
    """Read unit records.

    `households`: the household histogram, where units and households are counted as the DHC does.

    Raises `DataError` with everything that is wrong in a file; or with every MAFID that is listed twice.
    """
    find = Lookup.of(blocks.oids)
    parts: list[CefUnits] = []
    for path in paths:
        log = FindingLog()
        parts += [_units(records, find, households, log) for records in read_records(path, UNITS, log)]
        log.raise_if_any(f"{path.name} cannot be read as unit records.")
    if not parts:
        raise no_rows(paths[0])
    arrays = ("mafid", "block", "quarters", "vacant", "people", "tenvacgq", "household")
    whole: list[Any] = [np.concatenate([getattr(part, name) for part in parts]) for name in arrays]
    whole.append(tuple(origin for part in parts for origin in part.origins))
    units = CefUnits(*whole)
    _check_mafids(units)
    return units


def _units(records: Records, find: Lookup, households: Product | None, log: FindingLog) -> CefUnits:
    mafid = records.numbers("MAFID", *MAFID_RANGE, log)
    is_quarters = records.codes("RTYPE", {2: 0, 4: 1}, "expected 2 (housing unit) or 4 (group quarters)", log)
    rule = "expected a code of group quarters, or blanks or 000 for a housing unit"
    quarters = records.codes("QGQTYP", {0: 0, **QUARTERS}, rule, log, blank=0)
    apart = (is_quarters >= 0) & (quarters >= 0) & ((is_quarters == 1) != (quarters > 0))
    rule = "expected a code of group quarters with RTYPE 4, and none with RTYPE 2"
    records.report(apart, "QGQTYP", rule, log)
    vacancy = records.numbers("VACS", 0, 7, log)
    records.report((is_quarters == 1) & (vacancy > 0), "VACS", "expected 0 for group quarters", log)
    people = records.numbers("FINAL_POP", 0, _MOST_PEOPLE, log, blank=0)
    oid = records.numbers("OIDTB", 0, _MOST, log)
    block = find.positions(oid)
    records.report(
        (oid >= 0) & (block < 0),
        "OIDTB",
        "expected the OIDTABBLK of a block in the GRF-C",
        log,
        GeographyError,
    )
    levels = UnitLevels(np.empty(0, dtype=np.int8), np.empty(0, dtype=np.int32))
    if households is not None:
        levels = unit_levels(records, quarters, vacancy, people, households, log)
    return CefUnits(
        mafid.astype(np.int32),
        block.astype(np.int32),
        quarters.astype(np.int8),
        vacancy > 0,
        people.astype(np.int32),
        *levels,
        (Origin(records.where, records.first, len(records)),),
    )


def _check_mafids(units: CefUnits) -> None:
    """Refuse units whose MAFID an earlier unit has: people could not be distinguished."""
    repeated = is_repeated(units.mafid)
    log = FindingLog()
    report_rows(repeated, units.origins, "MAFID", "expected each MAFID once", log, SchemaError)
    log.raise_if_any("Several unit records have the same MAFID.")


UNIT_COUNTS = "housing units and group quarters of each type in every block"
"""What the frame of this reader publishes of the records."""

QUARTERS_COUNTS = "group quarters of each type in every block"
"""The same for a units product that does not hold the number of units in a block invariant."""

_ADULT = 18
_RACES = 63


class CefReader(Reader):
    """Reads the Census Edited File; its histogram is always in memory.

    ``spec.paths`` are person records, ``unit_records`` unit records, ``block_files`` the GRF-C. For the units
    product ``paths`` may themselves be unit records.
    """

    __slots__ = ()

    def _read(self, cache: Path | None, *, planning: bool) -> InputData:
        """Return frame and histogram; the frame has no stamps."""
        if planning:
            refuse_to_open(self.spec, 'reader "cef" takes the leaves from the unit records')
            frame = self._land()[0]
            return InputData(frame, without_counts(frame, self.spec))
        kind = self._kind()
        frame, units, leaf = self._land()
        log = FindingLog()
        people = units.people
        if kind == "units":
            histogram = _occupancy(units, leaf, len(frame))
        elif kind == "dhc-units":
            histogram = _counted(leaf, units.household, len(frame), self.spec.product)
        elif kind == "tenvacgq":
            histogram = _counted(leaf, units.tenvacgq, len(frame), self.spec.product)
        else:
            histogram, people = _people(_files(self.spec.paths), self.spec, units, leaf, len(frame))
        _compare(units, people, log)
        warnings = log.findings
        if kind == "persons":
            where = units.origins[0].where
            warnings += check_units(frame, histogram, self.spec.product, kind, where)
        if warnings and self.spec.strict:
            raise DataError("Unit records and counts of people disagree.", warnings)
        return InputData(frame, histogram, (), self._declared(), warnings)

    def _publishes_units(self) -> bool:
        """Whether the number of housing units in a block may be published.

        Not where they are what is protected, and the run does not hold their number invariant.
        """
        product = self.spec.product
        invariants = (*product.invariants, *(product.companion.invariants if product.companion else ()))
        held = any(
            i.query in ("total", "hhgq_vector") and i.geolevel in ("leaf", "block") for i in invariants
        )
        return held or self._kind() in ("persons", "dhc-persons")

    def _declared(self) -> tuple[str, ...]:
        return (UNIT_COUNTS,) if self._publishes_units() else (POPULATED_LEAVES, QUARTERS_COUNTS)

    def _kind(self) -> CefKind:
        schema = self.spec.product.schema
        kind = census_kind(self.spec.product)
        if kind is not None:
            return kind
        for known in (dhc_persons(), dhc_units(), dhc_units_tenvacgq()):
            if schema == known.schema:
                return cast(CefKind, known.layout)
        raise ConfigError(
            'reader "cef" reads for the products of the census (or one with the same attributes), '
            f"not for {self.spec.product.name!r}."
        )

    def _land(self) -> tuple[Frame, CefUnits, Ints]:
        """Return (frame, units, leaf of each unit)."""
        kind, spec = self._kind(), self.spec
        paths = spec.unit_records or (spec.paths if "persons" not in kind else ())
        if not paths:
            raise ConfigError('[input] units is missing: reader "cef" needs the file with the unit records.')
        if not spec.block_files:
            raise ConfigError('[geography] frame is missing: reader "cef" needs the GRF-C.')
        blocks = read_blocks(spec.block_files)
        households = {"dhc-units": spec.product, "tenvacgq": dhc_units()}.get(kind)
        units = read_units(_files(paths), blocks, households)
        frame, leaf = _frame(blocks, units, spec.root, detailed=kind not in ("persons", "units"))
        if not self._publishes_units():
            frame = replace(frame, units={**frame.units, "hu": np.ones(len(frame), dtype=np.int64)})
        return frame, units, leaf


def _files(sources: Sequence[Source]) -> list[Path]:
    files = [source for source in sources if not isinstance(source, MemoryTable)]
    if len(files) < len(sources):
        raise ConfigError('reader "cef" reads files of records, not tables in memory.')
    return files


def _frame(blocks: GrfcBlocks, units: CefUnits, root: str, *, detailed: bool) -> tuple[Frame, Ints]:
    """Return (frame, leaf of each unit); `detailed` gives it group quarters by detailed type too."""
    counts = units.by_block(len(blocks.geocodes))
    inhabited = counts.any(axis=1)
    geocodes, counts = blocks.geocodes[inhabited], counts[inhabited]
    columns = {name: counts[:, k == _MAJOR].sum(axis=1) for k, name in enumerate(CENSUS_UNITS)}
    if detailed:
        columns |= {f"gq{code}": counts[:, k] for k, code in enumerate(DETAILED, start=1)}
    frame = Frame(
        geocodes,
        official_codes(geocodes, root),
        "block",
        columns,
        {category: codes[inhabited] for category, codes in blocks.entities.items()},
    )
    return frame, (np.cumsum(inhabited) - 1)[units.block]


def _counted(leaf: Ints, cells: npt.NDArray[np.integer], leaves: int, product: Product) -> Histogram:
    """Count units by leaf and cell; those with a negative cell count nothing."""
    counted = cells >= 0
    one = np.ones(int(counted.sum()), dtype=np.int64)
    return Histogram.from_entries(leaf[counted], cells[counted], one, shape=(leaves, product.schema.size))


def _occupancy(units: CefUnits, leaf: Ints, leaves: int) -> Histogram:
    """Count housing units: cell 0 vacant, 1 occupied. A unit is vacant where VACS says why."""
    housing = units.hhgq == 0
    cell = (~units.vacant[housing]).astype(np.int64)
    return Histogram.from_entries(leaf[housing], cell, np.ones(len(cell), np.int64), shape=(leaves, 2))


def _people(
    paths: Sequence[Path], spec: ReaderSpec, units: CefUnits, leaf: Ints, leaves: int
) -> tuple[Histogram, npt.NDArray[np.int32]]:
    """Count people by leaf and cell; return the histogram, and the number of people in each unit."""
    known = Lookup.of(units.mafid)
    entries, total = Entries(leaves, spec.product.schema.size, None), 0
    people = np.zeros(len(units), dtype=np.int32)
    for path in paths:
        log = FindingLog()
        for records in read_records(path, PERSONS, log):
            unit, cell = _cells(records, units, known, spec.product, log)
            counted = (unit >= 0) & (cell >= 0)
            entries.add(
                *np.unique(leaf[unit[counted]] * spec.product.schema.size + cell[counted], return_counts=True)
            )
            total += int(counted.sum())
            lived_in, number = np.unique(unit[counted], return_counts=True)
            people[lived_in] += number.astype(np.int32)
        log.raise_if_any(f"{path.name} cannot be read as person records.")
    if total == 0:
        raise no_rows(paths[0])
    return entries.histogram(), people


def _cells(
    records: Records, units: CefUnits, known: Lookup, product: Product, log: FindingLog
) -> tuple[Ints, Ints]:
    """Return (unit, cell) of each person, int64 (p,) each; -1 where it is not usable."""
    mafid = records.numbers("MAFID", *MAFID_RANGE, log)
    unit = known.positions(mafid)
    rule = "expected the MAFID of a unit record"
    records.report((mafid >= 0) & (unit < 0), "MAFID", rule, log, DataError)
    quarters = np.where(unit >= 0, units.quarters[unit], 0).astype(np.int64)
    hhgq = _MAJOR[quarters].astype(np.int64)
    _check_type(records, unit, hhgq, log)
    if census_kind(product) is None:
        return unit, person_cells(records, quarters, units.people[unit] == 1, product, log)
    age = records.numbers("QAGE", 0, OLDEST, log)
    hispanic = records.codes("CENHISP", {1: 0, 2: 1}, "expected 1 (not Hispanic) or 2 (Hispanic)", log)
    race = records.numbers("CENRACE", 1, _RACES, log) - 1
    cell = ((hhgq * 2 + (age >= _ADULT)) * 2 + hispanic) * _RACES + race
    usable = (unit >= 0) & (age >= 0) & (hispanic >= 0) & (race >= 0)
    impossible = usable & ~product.possible[np.where(usable, cell, 0)]
    rule = f"the age and the other answers of this record together are a structural zero of {product.name}"
    records.report(impossible, "QAGE", rule, log)
    return unit, np.where(usable & ~impossible, cell, -1)


def _check_type(records: Records, unit: Ints, hhgq: Ints, log: FindingLog) -> None:
    """Record persons whose own record says that they live in another kind of unit."""
    rule = "expected 3 (person in a housing unit) or 5 (person in group quarters)"
    quarters = records.codes("RTYPE", {3: 0, 5: 1}, rule, log)
    apart = (unit >= 0) & (quarters >= 0) & ((quarters == 1) != (hhgq > 0))
    rule = "expected 3 in a unit with RTYPE 2 and 5 in a unit with RTYPE 4"
    records.report(apart, "RTYPE", rule, log)
    rule = "expected a code of group quarters, or blanks or 000"
    own = records.codes("QGQTYP", {0: 0, **GQ_CODES}, rule, log, blank=0)
    rule = "expected blanks, 000, or a code of the same major type of group quarters as in the unit record"
    records.report(~apart & (unit >= 0) & (own > 0) & (own != hhgq), "QGQTYP", rule, log)


def _compare(units: CefUnits, people: npt.NDArray[np.int32], log: FindingLog) -> None:
    """Record units of which FINAL_POP disagrees with VACS or with the person records."""
    vacant = (units.hhgq == 0) & (units.vacant != (units.people == 0))
    rule = "expected 0 in a housing unit that VACS calls vacant, and 1 or more in an occupied housing unit"
    report_rows(vacant, units.origins, "FINAL_POP", rule, log, SchemaError)
    rule = "expected the number of person records with this MAFID"
    report_rows(people != units.people, units.origins, "FINAL_POP", rule, log, SchemaError)
