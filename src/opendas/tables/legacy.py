"""Tables in the official legacy format of the redistricting data: one zip file a state.

Where the release carries the geographic header of its input, the file is the official one with the released
counts in it: every record of the header in its order, in the layout and under the name of its census
(``ri2010.pl.zip`` of 2010, fixed width and commas; ``ri2020.pl.zip`` of 2020, ``|``), with all fields as
published but for POP100 and HU100, which are the released totals. A record counts the blocks that agree with
it in every geographic field that it fills in.

Other releases are written in the layout of 2020, from their frame: header fields that they do not know are
empty.

Axes: ``r`` records of the header, ``b`` blocks among them, ``c`` cells.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from opendas.arrays import Bools, Ints, positions_of
from opendas.custody.folders import atomic_file
from opendas.errors import ConfigError
from opendas.files.official_areas import OfficialAreas
from opendas.files.pl94_layout import GEO_2010, GEO_2020, KEY_FIELDS, SEGMENT_KEYS
from opendas.files.release_folder import ReleasedProduct, ReleaseFolder
from opendas.files.storage.parquet import to_bytes
from opendas.files.summary_records import sums_of_blocks
from opendas.geography.frame import CENSUS_GEOLEVELS, Frame, Grouping
from opendas.geography.states import STATES
from opendas.tables.cells import PL94_TABLES, pl94_table, table_layout
from opendas.tables.counting import count_table

SUMMARY_LEVELS = {
    "state": "040", "county": "050", "cousub": "060", "tract": "140", "block_group": "150", "place": "160",
    "aianhh": "280", "cd": "500", "sldu": "610", "sldl": "620", "vtd": "700", "block": "750", "sdelm": "950",
    "sdsec": "960", "sduni": "970",
}  # fmt: skip
"""Summary level of each geolevel and entity category."""

_SEGMENTS = {"1": ("P1", "P2"), "2": ("P3", "P4", "H1"), "3": ("P5",)}
_ENTITY_FIELDS = {
    "cousub": "COUSUB", "place": "PLACE", "aianhh": "AIANHH", "cd": "CD116", "sldu": "SLDU18",
    "sldl": "SLDL18", "vtd": "VTD", "sdelm": "SDELM", "sdsec": "SDSEC", "sduni": "SDUNI",
}  # fmt: skip
_PARENT_WIDTH = {"cousub": 5, "vtd": 5, "aianhh": 0}
_NESTED = (("STATE", 0, 2), ("COUNTY", 2, 5), ("TRACT", 5, 11), ("BLKGRP", 11, 12), ("BLOCK", 11, 15))
_DEPTH = {"state": 1, "county": 2, "tract": 3, "block_group": 4, "block": 5, "cousub": 2, "vtd": 2}
_ABBREVIATION = {state.fips: state.postal for state in STATES}
_FIXED_DATE = (1980, 1, 1, 0, 0, 0)


def _geolevels(frame: Frame, geolevels: Sequence[str]) -> tuple[str, ...]:
    """Return the geolevels of the file's records, with the official ones above; all, where none is given."""
    official = [name for name in frame.geolevels if name in SUMMARY_LEVELS]
    if not geolevels:
        return (*official, *(name for name in frame.categories if name in SUMMARY_LEVELS))
    wanted: list[str] = []
    for geolevel in geolevels:
        frame.codes(geolevel)
        if geolevel not in SUMMARY_LEVELS:
            raise ConfigError(f"the legacy format has no summary level for {geolevel!r}; try state to block.")
        if geolevel in official:
            wanted += official[: official.index(geolevel) + 1]
        elif geolevel in frame.categories:
            wanted.append(geolevel)
        else:
            raise ConfigError(f"this release has no {geolevel}; leave it out.")
    return tuple(dict.fromkeys(wanted))


def _in_state(frame: Frame, geolevel: str, inside: Bools) -> Grouping:
    """Return the geounits with leaves in one state, counting those leaves only."""
    return Grouping.of(geolevel, np.where(inside, frame.codes(geolevel), b""))


def _counts(released: ReleasedProduct, table: str, state: bytes, wanted: Grouping) -> Ints:
    """Return a table's counts for the geounits `wanted`, which come from another product's frame perhaps."""
    frame = released.frame
    inside = frame.geocodes.astype("S2") == state
    grouping = _in_state(frame, wanted.geolevel, inside)
    counts = count_table(released.estimate, pl94_table(released.product, table), grouping)
    if np.array_equal(grouping.geocodes, wanted.geocodes):
        return counts
    out = np.zeros((len(wanted), counts.shape[1]), dtype=np.int64)
    position = positions_of(wanted.geocodes, grouping.geocodes)
    if bool(np.any(position < 0)):
        raise ConfigError("persons and units of this release have different frames: no common legacy file.")
    out[position] = counts
    return out


def _own_code(category: str, area: bytes, parent: bytes) -> str:
    """Return an area's code without the state (and county) that makes it unique in the nation."""
    prefix = parent[: _PARENT_WIDTH.get(category, 2)]
    return (area[len(prefix) :] if area.startswith(prefix) else area).decode("ascii")


def _header_fields(frame: Frame, grouping: Grouping, state: bytes) -> dict[str, list[str]]:
    """Return the header fields of a geolevel's records that the release knows."""
    geolevel = grouping.geolevel
    codes = [code.decode("ascii") for code in grouping.geocodes.tolist()]
    depth = _DEPTH.get(geolevel, 1)
    fields: dict[str, list[str]] = {}
    for name, start, stop in _NESTED[:depth]:
        if geolevel == "block" and name == "BLKGRP":
            stop = start + 1
        fields[name] = [code[start:stop] for code in codes]
    if geolevel not in CENSUS_GEOLEVELS:
        if depth == 1:
            fields["STATE"] = [state.decode()] * len(codes)
        fields[_ENTITY_FIELDS[geolevel]] = [
            _own_code(geolevel, code, state + code[2:5]) for code in grouping.geocodes.tolist()
        ]
    elif geolevel == frame.leaf:
        leaf_of_unit = np.empty(len(codes), dtype=np.int64)
        leaf_of_unit[grouping.of_leaf[grouping.members]] = grouping.members
        for category, field in _ENTITY_FIELDS.items():
            if category in frame.entities:
                areas = frame.entities[category][leaf_of_unit].tolist()
                fields[field] = [
                    _own_code(category, area, code.encode()) for area, code in zip(areas, codes, strict=True)
                ]
    known = frame.names.get(geolevel, {})
    clean = str.maketrans('|"\n\r', "    ")
    fields["NAME"] = [known.get(code, "").translate(clean) for code in codes]
    return fields


def _text(rows: int, columns: Sequence[object], delimiter: str = "|") -> bytes:
    """Return lines of fields; a column is one value for all rows, or an array."""
    arrays = [pa.array([c] * rows) if isinstance(c, str) else pa.array(c) for c in columns]
    table = pa.Table.from_arrays(arrays, names=[str(k) for k in range(len(arrays))])
    buffer = io.BytesIO()
    options = pacsv.WriteOptions(include_header=False, delimiter=delimiter, quoting_style="none")
    pacsv.write_csv(table, buffer, options)
    return buffer.getvalue()


def _state_members(
    products: dict[str, ReleasedProduct], geolevels: tuple[str, ...], state: bytes
) -> dict[str, bytes]:
    frame = products["persons"].frame
    abbreviation = _ABBREVIATION.get(state.decode())
    if abbreviation is None:
        raise ConfigError(
            f"state code {state.decode()} has no postal abbreviation; no legacy file can be named."
        )
    inside = frame.geocodes.astype("S2") == state
    stem = abbreviation.lower()
    parts: dict[str, list[bytes]] = {"geo": [], "1": [], "2": [], "3": []}
    done = 0
    for geolevel in geolevels:
        grouping = _in_state(frame, geolevel, inside)
        rows = len(grouping)
        if rows == 0:
            continue
        counts = {
            table: _counts(products[table_layout(table)], table, state, grouping) for table in PL94_TABLES
        }
        numbers = [f"{number:07d}" for number in range(done + 1, done + rows + 1)]
        done += rows
        level = SUMMARY_LEVELS[geolevel]
        codes = [code.decode("ascii") for code in grouping.geocodes.tolist()]
        fields: dict[str, object] = {
            "FILEID": "PLST", "STUSAB": abbreviation, "SUMLEV": level, "GEOVAR": "00", "GEOCOMP": "00",
            "CHARITER": "000", "CIFSN": "00", "LOGRECNO": numbers, "GEOCODE": codes,
            "GEOID": [f"{level}0000US{code}" for code in codes],
            "POP100": counts["P1"][:, 0], "HU100": counts["H1"][:, 0],
        }  # fmt: skip
        fields |= _header_fields(frame, grouping, state)
        parts["geo"].append(_text(rows, [fields.get(name, "") for name in GEO_2020]))
        for segment, tables in _SEGMENTS.items():
            keys = dict(zip(SEGMENT_KEYS, ("PLST", abbreviation, "000", f"0{segment}"), strict=False))
            cells = [np.ascontiguousarray(column) for table in tables for column in counts[table].T]
            parts[segment].append(_text(rows, [*keys.values(), numbers, *cells]))
    members = {f"{stem}geo2020.pl": b"".join(parts["geo"])}
    members |= {f"{stem}0000{segment}2020.pl": b"".join(parts[segment]) for segment in _SEGMENTS}
    return members


_PLANS = tuple(name for name in GEO_2020 if re.fullmatch(r"(CD|SLDU|SLDL)\d+", name))


def _keys(areas: OfficialAreas) -> Ints:
    """Return the geographic fields of all records as whole numbers, int64 (r, k); 0 is not filled in."""
    plans = ("CD", "SLDU", "SLDL") if areas.census == 2010 else _PLANS
    columns = []
    for name in (*(key for key in KEY_FIELDS if key not in ("CD", "SLDU", "SLDL")), *plans):
        if name in areas.table.column_names:
            column = areas.table.column(name).combine_chunks().dictionary_encode()
            texts = column.dictionary.to_pylist()
            number = np.array([0 if text == "" else k + 1 for k, text in enumerate(texts)], dtype=np.int64)
            columns.append(number[np.asarray(column.indices)])
    return np.stack(columns, axis=1)


def header_members(
    products: dict[str, ReleasedProduct], areas: OfficialAreas, geolevels: Sequence[str], stamps: str
) -> dict[str, bytes]:
    """Return the members of one state's file, made from its header."""
    blocks = areas.rows("block")
    levels = areas.field("geolevel", np.arange(len(areas.table)))
    chosen = np.array([not geolevels or level in geolevels for level in levels])
    lacking = sorted(set(geolevels) - set(levels))
    if lacking:
        raise ConfigError(
            f"the header of this release has no record of {', '.join(lacking)}; leave these geolevels out."
        )
    records = np.flatnonzero(chosen)
    codes = to_bytes(areas.table.column("geocode").take(pa.array(blocks)))
    tables = [table for table in PL94_TABLES if table != "P5" or areas.census == 2020]
    of_blocks = []
    for table in tables:
        released = products[table_layout(table)]
        frame = released.frame
        grouping = Grouping("block", codes, positions_of(codes, frame.geocodes))
        of_blocks.append(count_table(released.estimate, pl94_table(released.product, table), grouping))
    place = np.full(len(areas.table), -1, dtype=np.int64)
    place[blocks] = np.arange(len(blocks))
    block = place[records]  # the fields of a block tell its block group alone
    keys, ends = _keys(areas), np.cumsum([own.shape[1] for own in of_blocks])
    sums = np.split(sums_of_blocks(keys[records[block < 0]], keys[blocks], of_blocks), ends[:-1], axis=1)
    counts = {}
    for table, own, summed in zip(tables, of_blocks, sums, strict=True):
        counts[table] = own[block]
        counts[table][block < 0] = summed
    number = areas.field("LOGRECNO", records)
    totals = {"POP100": counts["P1"][:, 0], "HU100": counts["H1"][:, 0]}
    stub, census = areas.field("STUSAB", records[:1])[0], areas.census
    stem = stub.lower()
    members = {f"{stem}geo{census}.pl": _header_text(areas, records, totals)}
    segments = {k: v for k, v in _SEGMENTS.items() if set(v) <= set(tables)}
    for segment, names in segments.items():
        cells = [np.ascontiguousarray(column) for table in names for column in counts[table].T]
        first = ("PLST", stub, "000", f"0{segment}")
        text = _text(len(records), [*first, number, *cells], "," if census == 2010 else "|")
        members[f"{stem}0000{segment}{census}.pl"] = text
    if stamps:
        members[f"{stem}{census}.stamps.txt"] = f"{stamps}\n".encode()
    return members


def _header_text(areas: OfficialAreas, records: Ints, totals: dict[str, Ints]) -> bytes:
    """Return the lines of the header, counts put in."""
    fields = {name: [str(count) for count in counts.tolist()] for name, counts in totals.items()}
    order = [(name, 0) for name in GEO_2020] if areas.census == 2020 else GEO_2010
    columns = []
    for name, width in order:
        texts = fields[name] if name in fields else areas.field(name, records)
        to_right = name in ("AREALAND", "AREAWATR", *totals)
        columns.append([text.rjust(width) if to_right else text.ljust(width) for text in texts])
    lines = "".join if areas.census == 2010 else "|".join
    return "".join(f"{lines(row)}\n" for row in zip(*columns, strict=True)).encode(
        "latin-1" if areas.census == 2010 else "utf-8"
    )


def legacy_members(release: ReleaseFolder, geolevels: Sequence[str] = ()) -> dict[str, dict[str, bytes]]:
    """Return the members of each state's zip file, by file name.

    `geolevels`: official geolevels, each of which brings those above it, and entity categories; none are all
    that the release knows, with every other record of the header that its input had.
    """
    products = {}
    for layout in ("persons", "units"):
        found = release.with_layout(layout)
        if found is None:
            raise ConfigError(
                f"the legacy format holds tables of persons and units; run pl94-{layout} into the folder too."
            )
        products[layout] = found
    frame = products["persons"].frame
    wanted = _geolevels(frame, geolevels)
    stamps = "; ".join(dict.fromkeys(s for product in products.values() for s in product.stamps))
    official = products["persons"].official
    files = {}
    for state in np.unique(frame.geocodes.astype("S2")).tolist():
        if official is not None and official.census:
            part = official.state(state.decode())
            members = header_members(products, part, wanted if geolevels else (), stamps)
        else:
            members = _state_members(products, wanted, state)
            if stamps:
                members[f"{next(iter(members))[:2]}2020.stamps.txt"] = f"{stamps}\n".encode()
        header = next(iter(members))
        files[f"{header[:2]}{header[5:9]}.pl.zip"] = members
    return files


def write_legacy(
    release: ReleaseFolder, geolevels: Sequence[str] = (), *, to: Path | None = None
) -> tuple[Path, ...]:
    """Write one zip file a state into ``tables/pl94/`` and return the paths.

    - `geolevels`: as for :func:`legacy_members`; the folder is then called ``pl94_county+place``, say.
    - `to`: folder instead of ``tables/`` of the release.
    """
    name = f"pl94_{'+'.join(geolevels)}" if geolevels else "pl94"
    folder = (release.path / "tables" if to is None else to) / name
    paths = []
    for name, members in legacy_members(release, geolevels).items():
        path = folder / name
        with (
            atomic_file(path) as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as zipped,
        ):
            for member, data in members.items():
                info = zipfile.ZipInfo(member, _FIXED_DATE)
                info.compress_type = zipfile.ZIP_DEFLATED
                info.external_attr = 0o644 << 16
                info.create_system = 3
                zipped.writestr(info, data)
        paths.append(path)
    return tuple(paths)
