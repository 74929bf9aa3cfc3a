"""Layouts of the Census Edited File of 2020 and of its geographic reference file, as tables.

Sources: the record layouts and recodes in the public releases of the production code (the redistricting
release and the readers of the S-DHC release), whose facts these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = [
    "AREA_COLUMNS",
    "BLOCK_COLUMNS",
    "GQ_CODES",
    "GROUP_COLUMN",
    "MAFID_RANGE",
    "OID_COLUMN",
    "PERSONS",
    "UNITS",
    "RecordLayout",
]


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """A fixed-width record.

    Parameters
    ----------
    what : str
        How messages call it.
    fields : mapping of name to (start, end)
        0-based, the end excluded; without gaps.
    """

    what: str
    fields: Mapping[str, tuple[int, int]]

    @property
    def width(self) -> int:
        """Characters of a record, the line's end not counted."""
        return max(end for _, end in self.fields.values())

    @classmethod
    def of(cls, what: str, *widths: tuple[str, int]) -> RecordLayout:
        """Return the layout of consecutive fields with their widths."""
        fields, start = {}, 0
        for name, width in widths:
            fields[name] = (start, start + width)
            start += width
        return cls(what, MappingProxyType(fields))


UNITS = RecordLayout.of(
    "unit",
    ("RTYPE", 1), ("MAFID", 9), ("BCUSTATEFP", 2), ("VERSION", 5), ("FINAL_POP", 5), ("HHLDRAGE", 3),
    ("HHSPAN", 1), ("HHLDRACE", 1), ("HHRACE", 2), ("TEN", 1), ("TEN_A", 1), ("TEN_R", 1), ("VACS", 1),
    ("QGQTYP", 3), ("GQSEX", 1), ("OIDTB", 22), ("HHT", 1), ("HHT2", 2), ("CPLT", 1), ("UPART", 1),
    ("MULTG", 1), ("PAOC", 1), ("P18", 2), ("P60", 2), ("P65", 2), ("P75", 2), ("PAC", 1), ("HHSEX", 1),
)  # fmt: skip
"""A housing unit (RTYPE 2) or group quarters (RTYPE 4): 76 characters."""

PERSONS = RecordLayout.of(
    "person",
    ("RTYPE", 1), ("MAFID", 9), ("CUF_PNC", 5), ("BCUSTATEFP", 2), ("VERSION", 5), ("QSEX", 1), ("QAGE", 3),
    ("QDB", 8), ("QDOB_MONTH", 2), ("QDOB_DAY", 2), ("QDOB_YEAR", 4), ("QSPAN", 4), ("QSPANX", 1),
    ("CENHISP", 1), ("QRACE1", 4), ("QRACE2", 4), ("QRACE3", 4), ("QRACE4", 4), ("QRACE5", 4),
    ("QRACE6", 4), ("QRACE7", 4), ("QRACE8", 4), ("QRACEX", 1), ("CENRACE", 2), ("RACE2010", 2),
    ("RELSHIP", 2), ("QGQTYP", 3), ("LIVE_ALONE", 1),
)  # fmt: skip
"""A person in a housing unit (RTYPE 3) or in group quarters (RTYPE 5): 91 characters."""

MAFID_RANGE = (100_000_001, 899_999_999)

GQ_CODES: Mapping[int, int] = MappingProxyType(
    dict.fromkeys(range(101, 107), 1)
    | dict.fromkeys(range(201, 204), 2)
    | {301: 3}
    | dict.fromkeys(range(401, 406), 4)
    | {501: 5}
    | dict.fromkeys((601, 602), 6)
    | dict.fromkeys((701, 702, 704, 706, 801, 802, 900, 901, 903, 904), 7)
)
"""Group-quarters type 1 to 7 of each code of QGQTYP."""

OID_COLUMN = "OIDTABBLK"
"""Column of the GRF-C that the field OIDTB of a unit points to."""

BLOCK_COLUMNS = (("TABBLKST", 2), ("TABBLKCOU", 3), ("TABTRACTCE", 6), ("TABBLK", 4))
"""Columns of the GRF-C that make a block's geocode, with their widths."""

GROUP_COLUMN = "TABBLKGRPCE"

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
