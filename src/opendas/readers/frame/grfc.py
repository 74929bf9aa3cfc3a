"""The blocks of a GRF-C, the geographic reference file that goes with the Census Edited File.

Axes: ``b`` blocks, ``r`` rows of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from opendas.arrays import Codes, Ints
from opendas.errors import GeographyError
from opendas.readers.columns.area_codes import national_codes
from opendas.readers.columns.coding import (
    BLOCK_COLUMNS,
    GROUP_COLUMN,
    block_geocodes_of,
    is_repeated,
    text_of,
    whole_numbers,
)
from opendas.readers.columns.csv_parquet import Batch, column_names, no_rows, read_batches
from opendas.readers.columns.findings import FindingLog, Origin, report_rows
from opendas.readers.input.spec import Source

OID_COLUMN = "OIDTABBLK"
"""Column of the GRF-C that the field OIDTB of a unit points to."""

AREA_COLUMNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "cousub": ("COUSUBFP",),
        "place": ("PLACEFP",),
        "aianhh": ("AIANNHCE",),
        "cd": ("CDCURFP", "CD116FP"),
        "sldu": ("SLDUST",),
        "sldl": ("SLDLST",),
        "vtd": ("VTDST",),
        "sdelm": ("SDELMLEA",),
        "sdsec": ("SDSECLEA",),
        "sduni": ("SDUNILEA",),
    }
)
"""Columns of the GRF-C with codes of areas; of several the first that the file has counts."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GrfcBlocks:
    """Every block of the GRF-C, in ascending order of geocode. Public."""

    geocodes: Codes  # (b,): 15 characters: state, county, tract, block
    oids: Ints  # (b,): the numbers by which units name their blocks
    entities: dict[str, Codes]  # entity category -> (b,)


def read_blocks(paths: Sequence[Source]) -> GrfcBlocks:
    """Read the files of a GRF-C: separated by bars, with a header; columns are found by name.

    A row that repeats another one in all columns that are used is passed over.

    Raises `DataError` with everything that is wrong in a file.
    """
    oids: list[Ints] = []
    geocodes: list[Codes] = []
    areas: dict[str, list[Codes]] = {}
    origins: list[Origin] = []
    columns = [_area_columns(column_names(path)) for path in paths]
    categories = [category for category in AREA_COLUMNS if any(category in known for known in columns)]
    for path, known in zip(paths, columns, strict=True):
        log = FindingLog()
        wanted = [OID_COLUMN, *(name for name, _ in BLOCK_COLUMNS), GROUP_COLUMN, *known.values()]
        for batch in read_batches(path, wanted, log):
            codes, _ = block_geocodes_of(batch, {}, log, digits=True)
            oids.append(whole_numbers(batch, OID_COLUMN, log))
            geocodes.append(codes)
            for category in categories:
                found = _areas(batch, category, known.get(category), codes, log)
                areas.setdefault(category, []).append(found)
            origins.append(Origin(batch.where, batch.first, batch.rows))
        log.raise_if_any(f"{path.name} cannot be read as a GRF-C.")
    if not geocodes:
        raise no_rows(paths[0])
    joined = {category: np.concatenate(parts) for category, parts in areas.items()}
    fields = {category: name for known in columns for category, name in known.items()}
    return _unique(np.concatenate(geocodes), np.concatenate(oids), joined, fields, origins)


def _area_columns(known: Sequence[str]) -> dict[str, str]:
    """Return the column of each category that a file has."""
    found = {}
    for category, names in AREA_COLUMNS.items():
        present = [name for name in names if name in known]
        if present:
            found[category] = present[0]
    return found


def _areas(batch: Batch, category: str, column: str | None, geocodes: Codes, log: FindingLog) -> Codes:
    if column is None:
        return np.zeros(batch.rows, dtype="S1")
    codes, wrong = national_codes(category, np.strings.strip(text_of(batch, column, log)), geocodes)
    rule = f"expected the code of a {category}"
    batch.report(wrong & (geocodes != b""), column, rule, log, GeographyError)
    return codes


def _unique(
    geocodes: Codes, oids: Ints, areas: dict[str, Codes], fields: Mapping[str, str], origins: list[Origin]
) -> GrfcBlocks:
    """Return each block once, or tell which rows contradict others."""
    _, first, index = np.unique(geocodes, return_index=True, return_inverse=True)
    same = oids == oids[first[index]]
    log = FindingLog()
    report_rows(
        ~same, origins, OID_COLUMN, "expected the same number in every row of a block", log, GeographyError
    )
    for category, codes in areas.items():
        apart = codes != codes[first[index]]
        rule = f"expected one {category} for each block, as in its first row"
        report_rows(apart, origins, fields[category], rule, log, GeographyError)
    twice = np.zeros(len(geocodes), dtype=bool)
    twice[first[is_repeated(oids[first])]] = True
    rule = "expected each number for one block only"
    report_rows(twice, origins, OID_COLUMN, rule, log, GeographyError)
    log.raise_if_any("The GRF-C contradicts itself.")
    return GrfcBlocks(
        geocodes[first], oids[first], {category: codes[first] for category, codes in areas.items()}
    )
