"""Published tables read for what was exact in them: people of states and housing units of blocks.

Two official forms: the zip of the redistricting data, and tables with the published names of cells, as they
come from the Census Bureau's site or from this project.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from opendas.arrays import Codes, Ints
from opendas.errors import ConfigError, FormatError
from opendas.files.nmf.public_totals import PublicTotals
from opendas.files.storage.parquet import open_parquet, reading
from opendas.readers.columns.csv_parquet import opened_zip
from opendas.readers.columns.findings import FindingLog
from opendas.readers.pl94.header import block_geocodes
from opendas.readers.pl94.reader import VINTAGES

_GEOGRAPHY = ("GEO_ID", "GEOID", "GEOID20", "GEOID10", "GEOCODE")
_PEOPLE = ("P0010001", "P1_001N", "P001001", "POP100", "POP")
_HOUSING = ("H0010001", "H1_001N", "H001001", "HU100")
_STATE, _BLOCK = 2, 15


def read_public_totals(path: Path) -> PublicTotals:
    """Read published totals.

    `path`: the official zip of a state's redistricting data, 2010 or 2020; or a CSV or Parquet file with a
    column of geography (``GEO_ID``, ``GEOID``) and published cells: ``P0010001`` (``P1_001N``, ``POP100``)
    for people, ``H0010001`` (``H1_001N``, ``HU100``) for housing units. Rows of states and blocks are taken;
    numbers of people of other areas were never exact.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file of totals.")
    return _of_zip(path) if path.suffix.lower() == ".zip" else _of_table(path)


def _of_zip(path: Path) -> PublicTotals:
    with opened_zip(path, "The file of totals cannot be unpacked.", "expected a whole zip") as archive:
        old = any(re.search(r"geo2010[^/]*\.pl$", name, re.IGNORECASE) for name in archive.namelist())
    log = FindingLog()
    parsed = VINTAGES["pl94-2010" if old else "pl94-2020"].parse(path, log)
    log.raise_if_any(f"{path.name} cannot be read as redistricting data.")
    if parsed is None:
        raise FormatError(f"{path.name} cannot be read as redistricting data.")
    header, tables = parsed
    codes = block_geocodes(header, log)
    log.raise_if_any(f"{path.name}: the geography is not usable.")
    if codes is None:
        raise FormatError(f"{path.name}: it holds no block.")
    blocks = header.is_block
    people = int(tables["P1"][blocks, 0].sum())
    return _sorted(
        path.name, {codes[0][:2].decode(): people}, codes, tables["H1"][blocks, 0].astype(np.int64)
    )


def _of_table(path: Path) -> PublicTotals:
    with reading(path):
        if path.suffix.lower() == ".parquet":
            table = open_parquet(path).read()
        else:
            with path.open("rb") as file:
                bar = b"|" in file.readline()
            options = pacsv.ConvertOptions(column_types=dict.fromkeys(_GEOGRAPHY, pa.string()))
            parsing = pacsv.ParseOptions(delimiter="|" if bar else ",")
            table = pacsv.read_csv(path, parse_options=parsing, convert_options=options)
    names = {name.strip().upper(): name for name in table.column_names}
    code = next((names[name] for name in _GEOGRAPHY if name in names), None)
    people = next((names[name] for name in _PEOPLE if name in names), None)
    housing = next((names[name] for name in _HOUSING if name in names), None)
    if code is None or (people is None and housing is None):
        raise FormatError(
            f"{path.name}: expected a column of geography ({', '.join(_GEOGRAPHY[:2])}) and one of "
            f"{', '.join((*_PEOPLE[:3], *_HOUSING[:3]))}; found {', '.join(table.column_names[:8])}."
        )
    text = [re.sub(r"^\d{7}US", "", str(value).strip()) for value in table.column(code).to_pylist()]
    short = [i for i, value in enumerate(text) if value.isdigit() and len(value) in (_STATE - 1, _BLOCK - 1)]
    for i in short:  # a leading zero is lost in many programs
        text[i] = "0" + text[i]
    state = [i for i, value in enumerate(text) if len(value) == _STATE and value.isdigit()]
    block = [i for i, value in enumerate(text) if len(value) == _BLOCK and value.isdigit()]
    totals: dict[str, int] = {}
    if people is not None and state:
        counts = _whole(table.column(people), state, people, path.name)
        totals = dict(zip((text[i] for i in state), counts.tolist(), strict=True))
        if len(totals) < len(state):
            raise FormatError(f"{path.name}: a state appears twice.")
    elif people is not None and block:
        counts = _whole(table.column(people), block, people, path.name)
        for i, count in zip(block, counts.tolist(), strict=True):
            totals[text[i][:2]] = totals.get(text[i][:2], 0) + count
    codes, units = np.zeros(0, dtype="S15"), np.zeros(0, dtype=np.int64)
    if housing is not None and block:
        codes = np.array([text[i].encode() for i in block], dtype="S15")
        units = _whole(table.column(housing), block, housing, path.name)
    if not totals and not len(codes):
        raise FormatError(
            f"{path.name}: no people of states and no housing units of blocks; these alone were exact, and "
            f"its {len(text)} rows are of other areas."
        )
    return _sorted(path.name, totals, codes, units)


def _whole(column: pa.ChunkedArray, rows: list[int], name: str, source: str) -> Ints:
    """Return counts of some rows, int64."""
    try:
        found = pc.cast(column.take(pa.array(rows)), pa.int64())
    except pa.ArrowInvalid as error:
        raise FormatError(f"{source}: a count in {name} that is not a whole number.") from error
    counts = np.asarray(found.fill_null(-1), dtype=np.int64)
    if bool(np.any(counts < 0)):
        raise FormatError(f"{source}: a count in {name} that is missing or below zero.")
    return counts


def _sorted(source: str, people: dict[str, int], codes: Codes, housing: Ints) -> PublicTotals:
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    if bool(np.any(codes[1:] == codes[:-1])):
        raise FormatError(f"{source}: block {codes[1:][codes[1:] == codes[:-1]][0].decode()} appears twice.")
    return PublicTotals(source, people, codes, housing[order])
