"""Noisy measurement files in the layout of the Census Bureau's public ones.

``<root>/<Level>.parquet/DPQuery`` and ``/Constraint`` are folders of Parquet files, divided by state and
county or not. A row is one query group of one geounit: ``geocode``, ``query_name`` (``total_dpq``),
``query_shape``, ``value`` and ``variance``; constraints have a ``sign`` beside. Geocodes of a level have one
length and begin with their parent's; the last 16 characters of a block's are state, county, tract, block
group and block.

Axes: ``g`` geounits of a geolevel in spine order, ``q`` query groups, ``r`` rows of the files of a geolevel.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opendas.arrays import Codes, Floats, Ints, Lookup
from opendas.errors import EnvironmentFailure, FormatError
from opendas.files.storage.addresses import RemotePath
from opendas.files.storage.parquet import one_array, open_parquet, reads_file, to_bytes
from opendas.schema.query_groups import QueryGroup

log = logging.getLogger(__name__)

SPINES = (
    ("US", "State", "County", "Tract_Group", "Tract", "Block_Group", "Block"),
    ("US", "State", "County", "Prim", "Tract_Subset_Group", "Tract_Subset", "Block_Group", "Block"),
)
"""Names of the folders, top first: of the redistricting files, and of those of the DHC."""

Progress = Callable[[str, int, int], None]
"""Told a stage, what of it is done, and how much it is."""

_OPTIONAL = ("Tract_Group",)
_TOP = ("US", "State", "County")
"""Levels that a file may begin with: a state or a county on its own."""

_COLUMNS = {"DPQuery": ("geocode", "query_name", "query_shape", "value", "variance")}
_COLUMNS["Constraint"] = ("geocode", "query_name", "sign", "query_shape", "value")


@dataclass(frozen=True, slots=True, eq=False)
class BureauRows:
    """The rows of one geolevel's measurements or constraints, without their values."""

    files: tuple[Path, ...]
    starts: Ints  # (files + 1,): first row of each file
    # (r,): number of each row among all rows of the files, ascending: of one state, some are left out.
    place: Ints
    geocode: Codes  # (r,)
    name: Ints  # (r,): position in `names`
    names: tuple[str, ...]
    shape: Ints  # (r,): shapes, as numbers into `shapes`
    shapes: tuple[tuple[int, ...], ...]
    variance: Floats  # (r,): zero for constraints
    sign: Ints
    signs: tuple[str, ...]
    unlike: tuple[str, ...] = ()  # parts whose columns are not those of the first, in words

    def __len__(self) -> int:
        return len(self.geocode)


@dataclass(frozen=True, slots=True, eq=False)
class BureauLevel:
    """One geolevel as it is on disk."""

    folder: str  # name of the folder without its ending, for instance ``Block_Group``
    measured: BureauRows
    constraints: BureauRows
    # (g,): all that are in one or the other, ascending, but state by state: outside of its American Indian
    # areas first, then inside.
    geocodes: Codes

    @property
    def geolevel(self) -> str:
        """Name of the geolevel in this project."""
        return self.folder.lower()

    def places(self, geocodes: Codes) -> Ints:
        """Return the place of each of some geocodes; -1 of one that is not there."""
        return Lookup.of(self.geocodes).positions(geocodes)


def is_bureau_folder(path: Path) -> bool:
    """Return whether a folder looks like a noisy measurement file of the Bureau's layout."""
    return any((path / f"{level}.parquet").is_dir() for spine in SPINES for level in spine)


def read_bureau_levels(
    path: Path, state: str | None = None, progress: Progress | None = None
) -> tuple[BureauLevel, ...]:
    """Read what is measured and bound at every geolevel, and leave the values in the files.

    - `state`: two digits: files of other states, in folders ``State=...`` of their own, are not opened, nor
      those of the nation; of files with several states, row groups that hold none of its rows are not read.
    - `progress` (stage, done, total): told the parts that were read.
    """
    found = [[name for name in spine if (path / f"{name}.parquet").is_dir()] for spine in SPINES]
    spine, there = max(zip(SPINES, found, strict=True), key=lambda pair: len(pair[1]))
    other = next((name for names in found for name in names if name not in spine), None)
    if other is not None:
        own = next(name for name in there if not all(name in each for each in SPINES))
        raise FormatError(
            f"{path.name}: {other}.parquet is of another hierarchy than {own}.parquet; these are files of "
            "two products. Give each a folder of its own."
        )
    if not there or there[0] not in _TOP:
        raise FormatError(
            f"{path.name}: no folder {' or '.join(f'{name}.parquet' for name in _TOP)}; the upper geolevels "
            "of this noisy measurement file are missing."
        )
    expected = spine[spine.index(there[0]) :]
    missing = [name for name in expected if name not in there and name not in _OPTIONAL]
    if missing:
        raise FormatError(
            f"{path.name}: geolevel {missing[0]} is missing: there is no folder {missing[0]}.parquet."
        )
    names = [name for name in there if state is None or name != "US"]
    parts = {
        (name, kind): _parts(path / f"{name}.parquet" / kind, state) for name in names for kind in _COLUMNS
    }
    total, read = sum(map(len, parts.values())), 0

    def done() -> None:
        nonlocal read
        read += 1
        if progress is not None:
            progress("reading queries and constraints", read, total)

    return tuple(_read_level(path, name, state, parts, done) for name in names)


def _parts(folder: Path, state: str | None) -> tuple[Path, ...]:
    """Return the files of a folder; those of one state, and of several, if one is wanted.

    Names that begin with a dot or an underscore are no part of the data, as for other readers of Parquet.
    """
    there: Iterable[Path]
    if isinstance(folder, RemotePath):
        there = folder.files()
    else:
        there = (file for file in folder.rglob("*") if not file.is_dir())
    found = []
    for file in sorted(there):
        below = file.relative_to(folder)
        if any(part[0] in "._" for part in below.parts) or (state and _state_of(below) not in ("", state)):
            continue
        if file.suffix == ".parquet":
            found.append(file)
        else:
            log.warning("%s/%s: %s does not end in .parquet and is not read.", *folder.parts[-2:], below)
    return tuple(found)


def _read_level(
    path: Path,
    name: str,
    state: str | None,
    parts: Mapping[tuple[str, str], tuple[Path, ...]],
    done: Callable[[], None],
) -> BureauLevel:
    folder = path / f"{name}.parquet"
    measured, constraints = (
        _read_rows(folder / kind, parts[name, kind], name, kind, state, done) for kind in _COLUMNS
    )
    codes = np.unique(np.concatenate([measured.geocode, constraints.geocode]))
    if state is not None and len(codes) == 0:
        raise FormatError(
            f"{name}.parquet: no row of state {state}, neither in folders State=0{state} and State=1{state} "
            "nor in files outside such folders."
        )
    if len(codes) == 0:
        raise FormatError(f"{name}.parquet: no file in DPQuery or Constraint has a row.")
    lengths = np.unique(np.char.str_len(codes))
    if len(lengths) > 1:
        raise FormatError(
            f"{name}.parquet: geocodes of one geolevel have one length; found {lengths[0]} and {lengths[-1]} "
            "characters."
        )
    return BureauLevel(name, measured, constraints, _by_state(codes))


def _by_state(codes: Codes) -> Codes:
    """Order geocodes, ascending, so that the parts of a state follow each other: they begin with 0 or 1."""
    width = codes.dtype.itemsize
    if width < 3:
        return codes
    letters = codes.view("S1").reshape(-1, width)[:, [1, 2, 0, *range(3, width)]]
    return codes[np.argsort(np.ascontiguousarray(letters).view(codes.dtype).ravel())]


def _read_rows(
    folder: Path,
    files: tuple[Path, ...],
    level: str,
    kind: str,
    state: str | None,
    done: Callable[[], None],
) -> BureauRows:
    tables, places, starts = [], [], np.zeros(len(files) + 1, dtype=np.int64)
    schemas: dict[str, list[Path]] = {}
    for number, file in enumerate(files):
        with names_part(file):
            apart = _state_of(file.relative_to(folder)) != ""
            table, rows, size, columns = _read_file(file, level, kind, None if apart else state)
        done()
        schemas.setdefault(columns, []).append(file.relative_to(folder))
        tables.append(table)
        places.append(rows + starts[number])
        starts[number + 1] = starts[number] + size
    empty = np.zeros(0, dtype=np.int64)
    if not any(map(len, tables)):
        return BureauRows(
            (), starts[:1], empty, np.zeros(0, dtype="S1"), empty, (), empty, (), np.zeros(0), empty, ()
        )
    table = pa.concat_tables(tables)
    name, names = _encoded(table.column("query_name"))
    sign, signs = _encoded(table.column("sign")) if kind == "Constraint" else (np.zeros_like(name), ("",))
    shape, shapes = _encoded(pc.binary_join(pc.cast(table.column("query_shape"), pa.list_(pa.string())), ","))
    variance = np.zeros(len(table))
    if kind == "DPQuery":
        variance = np.asarray(pc.fill_null(pc.cast(table.column("variance"), pa.float64()), np.inf))
    return BureauRows(
        files,
        starts,
        np.concatenate(places),
        to_bytes(pc.cast(table.column("geocode"), pa.string())),
        name,
        names,
        shape,
        tuple(tuple(int(part) for part in text.split(",") if part) for text in shapes),
        variance,
        sign,
        signs,
        _warn_of_columns(schemas, f"{level}.parquet/{kind}"),
    )


def _warn_of_columns(schemas: Mapping[str, list[Path]], where: str) -> tuple[str, ...]:
    """Return in words which parts have other columns, or types, than the first: some programs stop there."""
    (first, most), *others = schemas.items()
    found = []
    for columns, files in others:
        here, there = set(columns.split("; ")), set(first.split("; "))
        pairs = (("with", here - there), ("without", there - here))
        said = " and ".join(f"{word} {', '.join(sorted(some))}" for word, some in pairs if some)
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        said = said or "with its columns in another order"
        found.append(f"{where}: {files[0]}{more} {said}, unlike {most[0]}")
    return tuple(found)


def _state_of(file: Path) -> str:
    """Return the state, two digits, in whose folder ``State=...`` a file lies; nothing where there is none.

    The folder's number is that of the state, and a hundred more for its American Indian areas.
    """
    found = next((part[6:] for part in file.parts if part.startswith("State=") and part[6:].isdigit()), "")
    return found and f"{int(found) % 100:02d}"


@contextlib.contextmanager
def names_part(file: Path) -> Iterator[None]:
    """Name the folders of a file that is at fault: files of several folders are called alike."""
    try:
        yield
    except (FormatError, EnvironmentFailure) as error:
        kind = next(i for i, part in enumerate(file.parts) if part in _COLUMNS)
        where = "/".join(file.parts[kind - 1 : -1])
        raise type(error)(str(error) if where in str(error) else f"{where}: {error}") from error


@reads_file
def _read_file(file: Path, level: str, kind: str, state: str | None) -> tuple[pa.Table, Ints, int, str]:
    """Return the rows of a file, or those of one state in it, their numbers, how many it has, its columns."""
    opened = open_parquet(file)
    columns = _COLUMNS[kind]
    missing = [name for name in columns if name not in opened.schema_arrow.names]
    if missing:
        raise FormatError(f"{level}.parquet/{kind}: {file.name} has no column {missing[0]!r}.")
    named = [name for name in columns if name != "value"]
    groups = [i for i in range(opened.num_row_groups) if state is None or _may_hold(opened, i, state)]
    sizes = [opened.metadata.row_group(i).num_rows for i in range(opened.num_row_groups)]
    first = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    rows = np.concatenate([np.zeros(0, np.int64), *(np.arange(first[i], first[i + 1]) for i in groups)])
    table = opened.read_row_groups(groups, columns=named)
    if state is not None:
        inside = pc.equal(pc.utf8_slice_codeunits(pc.cast(table.column("geocode"), pa.string()), 1, 3), state)
        inside = pc.fill_null(inside, False)  # its signature
        table, rows = table.filter(inside), rows[np.asarray(inside)]
    for name in ("geocode", "query_name", "query_shape"):
        if table.column(name).null_count:
            raise FormatError(f"{level}.parquet/{kind}: {file.name} has a row without {name}.")
    wanted = {"geocode": pa.string(), "query_name": pa.string(), "sign": pa.string()}
    for place, name in enumerate(table.column_names):
        if name in wanted and table.column(name).type != wanted[name]:
            table = table.set_column(place, name, pc.cast(table.column(name), wanted[name]))
        if name == "query_shape":
            shape = pc.cast(table.column(name), pa.list_(pa.int64()))
            table = table.set_column(place, name, shape)
        if name == "variance":
            table = table.set_column(place, name, pc.cast(table.column(name), pa.float64()))
    fields = "; ".join(f"{field.name} ({field.type})" for field in opened.schema_arrow)
    return table.replace_schema_metadata(None), rows, int(first[-1]), fields


def _may_hold(opened: Any, group: int, state: str) -> bool:
    """Return whether a row group may hold rows of a state, by the bounds that the file tells of it."""
    here = opened.metadata.row_group(group)
    for column in range(here.num_columns):
        told = here.column(column)
        if told.path_in_schema == "geocode" and told.is_stats_set and told.statistics.has_min_max:
            low, high = str(told.statistics.min), str(told.statistics.max)
            return any(low[:3] <= mark + state <= high[:3] for mark in "01")
    return True


def _encoded(column: Any) -> tuple[Ints, tuple[str, ...]]:
    encoded = one_array(pc.dictionary_encode(pc.fill_null(column, "")))
    return np.asarray(encoded.indices, dtype=np.int64), tuple(encoded.dictionary.to_pylist())


def name_geounit(geocode: bytes) -> str:
    """Return a geounit in words: the nation's geocode is empty."""
    return f"geocode {geocode.decode()}" if geocode else "the nation"


def classes_of(variance: Floats) -> tuple[Floats, Ints]:
    """Return the distinct rows of variances, float64 (c, q), and the row of each geounit, int64 (g,)."""
    if variance.shape[1] == 0:
        return np.zeros((1, 0)), np.zeros(len(variance), dtype=np.int64)
    kinds, which = np.unique(variance, axis=0, return_inverse=True)
    return kinds, which.reshape(-1).astype(np.int64)


def index_rows(
    level: BureauLevel, queries: Mapping[str, QueryGroup]
) -> tuple[tuple[QueryGroup, ...], Ints, Floats]:
    """Find the row and the variance of every answer.

    - `queries`, name in the files -> QueryGroup: rows with other names are left out.
    - Returns `queries`.
    - Returns `row` (g, q): -1 where a geounit was not asked.
    - Returns `variance` (g, q): infinite there.
    """
    rows = level.measured
    groups, names = tuple(queries.values()), list(queries)
    column = np.array([names.index(n) if n in queries else -1 for n in rows.names], dtype=np.int64)
    chosen = np.flatnonzero(column[rows.name] >= 0) if len(rows) else np.zeros(0, dtype=np.int64)
    position = level.places(rows.geocode[chosen])
    row = np.full((len(level.geocodes), len(groups)), -1, dtype=np.int64)
    variance = np.full(row.shape, np.inf)
    if len(chosen):
        place = position * len(groups) + column[rows.name[chosen]]
        if len(np.unique(place)) != len(place):
            order = np.sort(place)
            twice = int(order[1:][order[1:] == order[:-1]][0])
            raise FormatError(
                f"{level.folder}.parquet: {name_geounit(level.geocodes[twice // len(groups)])} appears twice "
                f"with query {list(queries)[twice % len(groups)]!r}."
            )
        given = rows.variance[chosen]
        wrong = ~(given > 0)
        if wrong.any():
            first = chosen[wrong][0]
            raise FormatError(
                f"{level.folder}.parquet: {name_geounit(rows.geocode[first])} has a variance that is not "
                f"above zero for query {rows.names[rows.name[first]]!r}."
            )
        asked = np.isfinite(given)
        row.ravel()[place[asked]] = chosen[asked]
        variance.ravel()[place[asked]] = given[asked]
    lost = np.argwhere((row < 0) & (row >= 0).any(axis=1, keepdims=True))
    if len(lost):
        geounit, query = lost[0].tolist()
        raise FormatError(
            f"{level.folder}.parquet: {name_geounit(level.geocodes[geounit])} has no answer with a variance "
            f"to query {list(queries)[query]!r}, and has answers to others; see whether a part of the file "
            "is missing."
        )
    return groups, row, variance
