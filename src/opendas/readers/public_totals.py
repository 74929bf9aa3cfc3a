"""Published tables read for what was exact in them: people of states and housing units of blocks.

Two official forms: the zip of the redistricting data, and tables with the published names of cells, as they
come from the Census Bureau's site or from this project.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from opendas.arrays import Codes, Ints
from opendas.errors import ConfigError, FormatError
from opendas.files.nmf.public_totals import PublicTotals
from opendas.readers.columns.coding import distinct_texts, whole_numbers
from opendas.readers.columns.csv_parquet import column_names, no_rows, read_batches
from opendas.readers.columns.findings import FindingLog
from opendas.readers.pl94.header import block_geocodes
from opendas.readers.pl94.reader import VINTAGES, official_reader

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
    header, tables = VINTAGES[official_reader(path)].parse(path)
    codes, blocks = block_geocodes(header), header.is_block
    people = {codes[0][:2].decode(): int(tables["P1"][blocks, 0].sum())}
    return _sorted(path.name, people, codes, tables["H1"][blocks, 0].astype(np.int64))


def _of_table(path: Path) -> PublicTotals:
    known = column_names(path)
    names = {name.strip().upper(): name for name in known}
    code, people, housing = (
        next((names[name] for name in columns if name in names), None)
        for columns in (_GEOGRAPHY, _PEOPLE, _HOUSING)
    )
    if code is None or (people is None and housing is None):
        raise FormatError(
            f"{path.name}: expected a column of geography ({', '.join(_GEOGRAPHY[:2])}) and one of "
            f"{', '.join((*_PEOPLE[:3], *_HOUSING[:3]))}; found {', '.join(known[:8])}."
        )
    log, rows = FindingLog(), 0
    parts: list[tuple[Codes, Ints, Ints]] = []
    for batch in read_batches(path, [name for name in (code, people, housing) if name is not None], log):
        index, texts = distinct_texts(batch, code)
        areas = np.array([_area(text) for text in texts], dtype=f"S{_BLOCK}")[index]
        asked = ((people, areas != b""), (housing, np.strings.str_len(areas) == _BLOCK))
        none = np.full(batch.rows, -1, dtype=np.int64)
        number, units = (
            none if name is None else whole_numbers(batch, name, log, here) for name, here in asked
        )
        parts.append((areas, number, units))
        rows += batch.rows
    log.raise_if_any(f"{path.name} cannot be read as published totals.")
    if not parts:
        raise no_rows(path)
    codes, number, units = (np.concatenate(each) for each in zip(*parts, strict=True))
    width = np.strings.str_len(codes)
    states, blocks = width == _STATE, width == _BLOCK
    totals: dict[str, int] = {}
    if people is not None:
        chosen = states if states.any() else blocks
        for area, count in zip(codes[chosen].astype("S2").tolist(), number[chosen].tolist(), strict=True):
            totals[area.decode()] = totals.get(area.decode(), 0) + count
        if len(totals) < states.sum():
            raise FormatError(f"{path.name}: a state appears twice.")
    if housing is None:
        blocks[:] = False
    if not totals and not blocks.any():
        raise FormatError(
            f"{path.name}: none of its {rows:,} rows gives the people of a state or the housing units of a "
            "block; no other totals are used."
        )
    return _sorted(path.name, totals, codes[blocks], units[blocks])


def _area(text: str) -> bytes:
    """Return the digits of a state or block, and nothing for another area; programs lose a leading zero."""
    digits = re.sub(r"^\d{7}US", "", text.strip())
    digits = "0" * (len(digits) in (_STATE - 1, _BLOCK - 1)) + digits
    return digits.encode() if re.fullmatch(f"[0-9]{{{_STATE}}}|[0-9]{{{_BLOCK}}}", digits) else b""


def _sorted(source: str, people: dict[str, int], codes: Codes, housing: Ints) -> PublicTotals:
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    if bool(np.any(codes[1:] == codes[:-1])):
        raise FormatError(f"{source}: block {codes[1:][codes[1:] == codes[:-1]][0].decode()} appears twice.")
    return PublicTotals(source, people, codes, housing[order])
