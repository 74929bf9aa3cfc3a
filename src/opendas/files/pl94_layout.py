"""Layouts of the official redistricting files (Public Law 94-171), as tables.

Sources: the technical documentation of the 2010 and of the 2020 Census Redistricting Data Summary File,
chapter "Data Dictionary". Tables P1 to P4 share one inner order: subtotals come before the 63 combinations
of races, which appear in the order of cenrace codes 0 to 62.
"""

from __future__ import annotations

import numpy as np

from opendas.arrays import Ints

# fmt: off
GEO_2010: tuple[tuple[str, int], ...] = (
    ("FILEID", 6), ("STUSAB", 2), ("SUMLEV", 3), ("GEOCOMP", 2), ("CHARITER", 3), ("CIFSN", 2),
    ("LOGRECNO", 7), ("REGION", 1), ("DIVISION", 1), ("STATE", 2), ("COUNTY", 3), ("COUNTYCC", 2),
    ("COUNTYSC", 2), ("COUSUB", 5), ("COUSUBCC", 2), ("COUSUBSC", 2), ("PLACE", 5), ("PLACECC", 2),
    ("PLACESC", 2), ("TRACT", 6), ("BLKGRP", 1), ("BLOCK", 4), ("IUC", 2), ("CONCIT", 5),
    ("CONCITCC", 2), ("CONCITSC", 2), ("AIANHH", 4), ("AIANHHFP", 5), ("AIANHHCC", 2), ("AIHHTLI", 1),
    ("AITSCE", 3), ("AITS", 5), ("AITSCC", 2), ("TTRACT", 6), ("TBLKGRP", 1), ("ANRC", 5), ("ANRCCC", 2),
    ("CBSA", 5), ("CBSASC", 2), ("METDIV", 5), ("CSA", 3), ("NECTA", 5), ("NECTASC", 2), ("NECTADIV", 5),
    ("CNECTA", 3), ("CBSAPCI", 1), ("NECTAPCI", 1), ("UA", 5), ("UASC", 2), ("UATYPE", 1), ("UR", 1),
    ("CD", 2), ("SLDU", 3), ("SLDL", 3), ("VTD", 6), ("VTDI", 1), ("RESERVE2", 3), ("ZCTA5", 5),
    ("SUBMCD", 5), ("SUBMCDCC", 2), ("SDELM", 5), ("SDSEC", 5), ("SDUNI", 5), ("AREALAND", 14),
    ("AREAWATR", 14), ("NAME", 90), ("FUNCSTAT", 1), ("GCUNI", 1), ("POP100", 9), ("HU100", 9),
    ("INTPTLAT", 11), ("INTPTLON", 12), ("LSADC", 2), ("PARTFLAG", 1), ("RESERVE3", 6), ("UGA", 5),
    ("STATENS", 8), ("COUNTYNS", 8), ("COUSUBNS", 8), ("PLACENS", 8), ("CONCITNS", 8), ("AIANHHNS", 8),
    ("AITSNS", 8), ("ANRCNS", 8), ("SUBMCDNS", 8), ("CD113", 2), ("CD114", 2), ("CD115", 2),
    ("SLDU2", 3), ("SLDU3", 3), ("SLDU4", 3), ("SLDL2", 3), ("SLDL3", 3), ("SLDL4", 3), ("AIANHHSC", 2),
    ("CSASC", 2), ("CNECTASC", 2), ("MEMI", 1), ("NMEMI", 1), ("PUMA", 5), ("RESERVED", 18),
)
"""Fields of the fixed-width geographic header of 2010 with their widths, in order, without gaps."""

GEO_2020: tuple[str, ...] = (
    "FILEID", "STUSAB", "SUMLEV", "GEOVAR", "GEOCOMP", "CHARITER", "CIFSN", "LOGRECNO", "GEOID",
    "GEOCODE", "REGION", "DIVISION", "STATE", "STATENS", "COUNTY", "COUNTYCC", "COUNTYNS", "COUSUB",
    "COUSUBCC", "COUSUBNS", "SUBMCD", "SUBMCDCC", "SUBMCDNS", "ESTATE", "ESTATECC", "ESTATENS", "CONCIT",
    "CONCITCC", "CONCITNS", "PLACE", "PLACECC", "PLACENS", "TRACT", "BLKGRP", "BLOCK", "AIANHH",
    "AIHHTLI", "AIANHHFP", "AIANHHCC", "AIANHHNS", "AITS", "AITSFP", "AITSCC", "AITSNS", "TTRACT",
    "TBLKGRP", "ANRC", "ANRCCC", "ANRCNS", "CBSA", "MEMI", "CSA", "METDIV", "NECTA", "NMEMI", "CNECTA",
    "NECTADIV", "CBSAPCI", "NECTAPCI", "UA", "UATYPE", "UR", "CD116", "CD118", "CD119", "CD120", "CD121",
    "SLDU18", "SLDU22", "SLDU24", "SLDU26", "SLDU28", "SLDL18", "SLDL22", "SLDL24", "SLDL26", "SLDL28",
    "VTD", "VTDI", "ZCTA", "SDELM", "SDSEC", "SDUNI", "PUMA", "AREALAND", "AREAWATR", "BASENAME", "NAME",
    "FUNCSTAT", "GCUNI", "POP100", "HU100", "INTPTLAT", "INTPTLON", "LSADC", "PARTFLAG", "UGA",
)
"""Fields of the pipe-delimited geographic header of 2020, in order."""
# fmt: on

GEO_2010_WIDTH = sum(width for _, width in GEO_2010)
"""Characters in a record of the 2010 header, without its line end."""

DROPPED = frozenset({"POP100", "HU100"})
"""Published counts in the header: never read, so that they cannot become geography."""

SEGMENT_KEYS = ("FILEID", "STUSAB", "CHARITER", "CIFSN", "LOGRECNO")
"""First columns of every data segment."""

TABLE_SIZES = {"P1": 71, "P2": 73, "P3": 71, "P4": 73, "H1": 3, "P5": 10}
"""Cells of each table."""

P5_TYPES = (3, 4, 5, 6, 8, 9, 10)
"""Cells of table P5 (1-based) with the people in group quarters of types 1 to 7, in type order."""

KEY_FIELDS = (
    "STATE", "COUNTY", "COUSUB", "SUBMCD", "ESTATE", "CONCIT", "PLACE", "TRACT", "BLKGRP", "AIANHH",
    "AIHHTLI", "AITS", "TTRACT", "TBLKGRP", "ANRC", "CD", "SLDU", "SLDL", "VTD", "SDELM", "SDSEC", "SDUNI",
)  # fmt: skip
"""Header fields that say which blocks a summary record counts: those that it fills in."""


def _race_cells(first: int) -> Ints:
    """Return the 0-based cells of the 63 combinations, the six races alone starting at `first`."""
    cells: list[int] = []
    position = first
    for count in (6, 15, 20, 15, 6, 1):
        cells += range(position, position + count)
        position += count + (2 if count == 6 and position == first else 1)
    return np.array(cells, dtype=np.int64)


RACE_CELLS = {"P1": _race_cells(2), "P2": _race_cells(4), "P3": _race_cells(2), "P4": _race_cells(4)}
"""Per table, the 0-based cells of cenrace 0 to 62. Tables P2 and P4 count people not Hispanic."""


def cell_names(table: str) -> tuple[str, ...]:
    """Return the published names of a table's cells, for instance ``P0010001``."""
    return tuple(f"{table[0]}00{table[1]}{cell:04d}" for cell in range(1, TABLE_SIZES[table] + 1))
