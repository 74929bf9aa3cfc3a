"""Writes tiny redistricting zip files, block by block: the slow, obvious inverse of the readers."""

from __future__ import annotations

import csv
import zipfile
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

RACES = 63
_SIZES = [n for n in range(1, 7) for _ in combinations(range(6), n)]  # races named by cenrace 0 to 62

_FIELDS_2010 = """
FILEID 6 STUSAB 2 SUMLEV 3 GEOCOMP 2 CHARITER 3 CIFSN 2 LOGRECNO 7 REGION 1 DIVISION 1 STATE 2 COUNTY 3
- 4 COUSUB 5 - 4 PLACE 5 - 4 TRACT 6 BLKGRP 1 BLOCK 4 - 2 CONCIT 5 - 4 AIANHH 4 - 7 AIHHTLI 1 - 65 CD 2
SLDU 3 SLDL 3 VTD 6 - 9 SUBMCD 5 - 2 SDELM 5 SDSEC 5 SDUNI 5 AREALAND 14 AREAWATR 14 NAME 90 - 2 POP100
9 HU100 9 - 164
"""
GEO_2010 = _FIELDS_2010.split()
_FIELDS_2020 = """
FILEID STUSAB SUMLEV GEOVAR GEOCOMP CHARITER CIFSN LOGRECNO GEOID GEOCODE REGION DIVISION STATE STATENS
COUNTY COUNTYCC COUNTYNS COUSUB COUSUBCC COUSUBNS SUBMCD SUBMCDCC SUBMCDNS ESTATE ESTATECC ESTATENS
CONCIT CONCITCC CONCITNS PLACE PLACECC PLACENS TRACT BLKGRP BLOCK AIANHH AIHHTLI AIANHHFP AIANHHCC
AIANHHNS AITS AITSFP AITSCC AITSNS TTRACT TBLKGRP ANRC ANRCCC ANRCNS CBSA MEMI CSA METDIV NECTA NMEMI
CNECTA NECTADIV CBSAPCI NECTAPCI UA UATYPE UR CD116 CD118 CD119 CD120 CD121 SLDU18 SLDU22 SLDU24 SLDU26
SLDU28 SLDL18 SLDL22 SLDL24 SLDL26 SLDL28 VTD VTDI ZCTA SDELM SDSEC SDUNI PUMA AREALAND AREAWATR
BASENAME NAME FUNCSTAT GCUNI POP100 HU100 INTPTLAT INTPTLON LSADC PARTFLAG UGA
"""
GEO_2020 = _FIELDS_2020.split()


@dataclass
class Block:
    """One made block: people by (adult, hispanic, race), units, and people in group quarters by type."""

    code: str
    people: dict[tuple[int, int, int], int] = field(default_factory=dict)
    occupied: int = 0
    vacant: int = 0
    quarters: dict[int, int] = field(default_factory=dict)
    place: str = "99999"
    cousub: str = "10000"
    vtd: str = ""
    at: tuple[str, str] = ("", "")
    urban: str = ""
    areas: dict[str, str] = field(default_factory=dict)


def race_table(count: dict[int, int], hispanic: int | None) -> list[int]:
    """Return the cells of P1 or P3 (`hispanic` None), or of P2 or P4, from counts by race."""
    total = sum(count.values())
    by_size = {n: sum(k for race, k in count.items() if _SIZES[race] == n) for n in range(1, 7)}
    cells = [total] if hispanic is None else [total + hispanic, hispanic, total]
    cells += [by_size[1], *(count.get(race, 0) for race in range(6)), total - by_size[1]]
    first = 6
    for n in range(2, 7):
        races = [race for race in range(RACES) if _SIZES[race] == n]
        assert races[0] == first
        first += len(races)
        cells += [by_size[n], *(count.get(race, 0) for race in races)]
    return cells


def tables(block: Block) -> dict[str, list[int]]:
    """Return the published cells of a block."""
    out = {}
    for names, ages in ((("P1", "P2"), (0, 1)), (("P3", "P4"), (1,))):
        everybody: dict[int, int] = {}
        others: dict[int, int] = {}
        for (age, hispanic, race), count in block.people.items():
            if age in ages:
                everybody[race] = everybody.get(race, 0) + count
                if not hispanic:
                    others[race] = others.get(race, 0) + count
        out[names[0]] = race_table(everybody, None)
        out[names[1]] = race_table(others, sum(everybody.values()) - sum(others.values()))
    out["H1"] = [block.occupied + block.vacant, block.occupied, block.vacant]
    g = [block.quarters.get(k, 0) for k in range(1, 8)]
    out["P5"] = [sum(g), sum(g[:4]), *g[:4], sum(g[4:]), *g[4:]]
    return out


_LEVELS = {"040": (2, "STATE"), "050": (5, "COUNTY"), "140": (11, "TRACT"), "150": (12, "BLKGRP")}


def records(blocks: list[Block]) -> list[tuple[dict[str, str], dict[str, list[int]]]]:
    """Return (header fields, cells) of every record: summaries first, then blocks."""
    cells = [tables(block) for block in blocks]
    out = []
    for level, (width, _) in _LEVELS.items():
        for code in sorted({block.code[:width] for block in blocks}):
            below = [c for block, c in zip(blocks, cells, strict=True) if block.code.startswith(code)]
            sums = {
                name: [sum(column) for column in zip(*(c[name] for c in below), strict=True)]
                for name in cells[0]
            }
            name = {"040": "Fable", "050": f"{code} Peña County"}.get(level, "")
            out.append(({"SUMLEV": level, "NAME": name, **_codes(code)}, sums))
    for block, own in zip(blocks, cells, strict=True):
        areas = {"COUSUB": block.cousub, "PLACE": block.place, "VTD": block.vtd, "AIANHH": "9999", "CD": "01"}
        areas |= {"CD116": "01", "BLKGRP": block.code[11], "SDUNI": "99997"}
        areas |= {"INTPTLAT": block.at[0], "INTPTLON": block.at[1], "UR": block.urban, **block.areas}
        out.append(
            ({"SUMLEV": "750", "NAME": f"Block {block.code[11:]}", **_codes(block.code), **areas}, own)
        )
    return out


def _codes(code: str) -> dict[str, str]:
    parts = {"STATE": code[:2], "COUNTY": code[2:5], "TRACT": code[5:11]}
    if len(code) == 12:
        parts["BLKGRP"] = code[11]
    elif len(code) == 15:
        parts["BLOCK"] = code[11:]
    return {name: value for name, value in parts.items() if value}


def header(fields: dict[str, str], number: int, cells: dict[str, list[int]], year: int) -> str:
    """Return one line of the geographic header."""
    every = {"FILEID": "PLST", "STUSAB": "FB", "GEOCOMP": "00", "CHARITER": "000", **fields}
    every |= {"LOGRECNO": f"{number:07d}", "POP100": str(cells["P1"][0]), "HU100": str(cells["H1"][0])}
    if year == 2010:
        pairs = zip(GEO_2010[::2], map(int, GEO_2010[1::2]), strict=True)
        line = "".join(
            every.get(name, "")[:width].rjust(width)
            if name in ("POP100", "HU100", "AREALAND", "AREAWATR")
            else every.get(name, "")[:width].ljust(width)
            for name, width in pairs
        )
        assert len(line) == 500
        return line
    return "|".join(every.get(name, "") for name in GEO_2020)


def members(blocks: list[Block], year: int) -> dict[str, str]:
    """Return the text of every member by name."""
    segments = [("P1", "P2"), ("P3", "P4", "H1")] + ([("P5",)] if year == 2020 else [])
    rows = records(blocks)
    sep = "," if year == 2010 else "|"
    out = {f"fbgeo{year}.pl": "".join(header(f, n, c, year) + "\n" for n, (f, c) in enumerate(rows, start=1))}
    for number, names in enumerate(segments, start=1):
        lines = []
        for record, (_, cells) in enumerate(rows, start=1):
            keys = ["PLST", "FB", "000", f"{number:02d}", f"{record:07d}"]
            lines.append(sep.join([*keys, *(str(value) for name in names for value in cells[name])]) + "\n")
        out[f"fb0000{number}{year}.pl"] = "".join(lines)
    return out


def write_zip(
    path: Path, blocks: list[Block], year: int, changed: dict[str, str | None] | None = None
) -> Path:
    """Write a zip file; `changed` replaces the text of members, or removes them."""
    texts = {**members(blocks, year), **(changed or {})}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():
            if text is not None:
                archive.writestr(name, text.encode("latin-1"))
        archive.writestr("fb.packinglist.txt", "packing list")
    return path


def some_blocks(state: str = "98") -> list[Block]:
    """Return a small state: households, group quarters only, vacant units, empty blocks."""
    return [
        Block(
            f"{state}0010001001000",
            {(1, 0, 0): 5, (0, 0, 0): 3, (1, 1, 5): 2, (0, 1, 5): 4},
            5,
            1,
            place="00100",
        ),
        Block(
            f"{state}0010001001001",
            {(1, 0, 1): 7, (1, 1, 62): 1, (0, 0, 7): 2},
            4,
            0,
            {3: 2, 7: 1},
            cousub="20000",
        ),
        Block(f"{state}0010001002000", {}, 0, 3, vtd="000A12"),
        Block(f"{state}0010002001000"),
        Block(f"{state}0030001001000", {(1, 0, 2): 40, (1, 0, 0): 60, (0, 1, 9): 1}, 0, 0, {1: 90, 6: 11}),
        Block(f"{state}0030001001005", {(1, 0, 0): 2}, 1, 0),
    ]


def write_csv(path: Path, rows: list[list[object]]) -> Path:
    """Write a CSV file, header first."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path
