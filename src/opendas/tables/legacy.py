"""Tables in the official legacy format of the 2020 redistricting data: one zip file a state.

A zip file ``ri2020.pl.zip`` holds the geographic header ``rigeo2020.pl`` and three segments, ``|`` between
fields, no line of names: segment 1 tables P1 and P2, segment 2 tables P3, P4 and H1, segment 3 table P5.
Header fields that a release does not know (areas, coordinates, codes of geographic names) are empty;
POP100 and HU100 are the released totals, not enumerated ones.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from opendas.arrays import Bools, Ints
from opendas.errors import ConfigError
from opendas.files.atomic import atomic_file
from opendas.files.pl94_layout import GEO_2020, SEGMENT_KEYS
from opendas.files.release_folder import ReleasedProduct, ReleaseFolder
from opendas.geography.frame import CENSUS_GEOLEVELS, Frame, Grouping
from opendas.geography.states import STATES
from opendas.tables.cells import PL94_TABLES, pl94_table, table_layout
from opendas.tables.counting import count_table

__all__ = ["SUMMARY_LEVELS", "legacy_members", "write_legacy"]

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


def _geolevels(frame: Frame, geolevel: str) -> tuple[str, ...]:
    """Return the geolevels of the file's records: down to an official one, or an entity category alone."""
    official = [name for name in frame.geolevels if name in SUMMARY_LEVELS]
    if geolevel in official:
        return tuple(official[: official.index(geolevel) + 1])
    frame.codes(geolevel)
    if geolevel not in SUMMARY_LEVELS:
        raise ConfigError(f"the legacy format has no summary level for {geolevel!r}; try state to block.")
    return (geolevel,)


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
    position = np.searchsorted(wanted.geocodes, grouping.geocodes)
    known = position < len(wanted)
    known[known] = wanted.geocodes[position[known]] == grouping.geocodes[known]
    if not bool(known.all()):
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


def _text(rows: int, columns: Sequence[object]) -> bytes:
    """Return lines of '|'-separated fields; a column is one value for all rows, or an array."""
    arrays = [pa.array([c] * rows) if isinstance(c, str) else pa.array(c) for c in columns]
    table = pa.Table.from_arrays(arrays, names=[str(k) for k in range(len(arrays))])
    buffer = io.BytesIO()
    options = pacsv.WriteOptions(include_header=False, delimiter="|", quoting_style="none")
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


def legacy_members(release: ReleaseFolder, geolevel: str) -> dict[str, dict[str, bytes]]:
    """Return the members of each state's zip file, by file name.

    Raises
    ------
    ConfigError
        If one of the two products was not run, or the leaves are no census blocks.
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
    geolevels = _geolevels(frame, geolevel)
    states = np.unique(frame.geocodes.astype("S2")).tolist()
    files = {}
    for state in states:
        members = _state_members(products, geolevels, state)
        files[f"{next(iter(members))[:2]}2020.pl.zip"] = members
    return files


def write_legacy(release: ReleaseFolder, geolevel: str, *, to: Path | None = None) -> tuple[Path, ...]:
    """Write one zip file a state into ``tables/pl94_<geolevel>/`` and return the paths.

    Parameters
    ----------
    geolevel : str
        An official geolevel, which brings all official geolevels above it (from the state down), or an
        entity category.
    to : Path, optional
        Folder instead of ``tables/`` of the release.
    """
    folder = (release.path / "tables" if to is None else to) / f"pl94_{geolevel}"
    paths = []
    for name, members in legacy_members(release, geolevel).items():
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
