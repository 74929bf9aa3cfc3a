"""Noisy measurement files in the layout of the Census Bureau's public ones.

``<root>/<Level>.parquet/DPQuery`` and ``/Constraint`` are folders of Parquet files, divided by state and
county or not. A row is one query group of one geounit: ``geocode``, ``query_name`` (``total_dpq``),
``query_shape``, ``value`` and ``variance``; constraints have a ``sign`` beside. Geocodes of a level have one
length and begin with their parent's; the last 16 characters of a block's are state, county, tract, block
group and block.

Axes: ``g`` geounits of a geolevel in spine order, ``q`` query groups, ``r`` rows of the files of a geolevel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opendas.arrays import Codes, Floats, Ints
from opendas.errors import FormatError
from opendas.files.parquet import one_array, open_parquet, reads_file, to_bytes
from opendas.schema.query_groups import QueryGroup

__all__ = [
    "BureauAnswers",
    "BureauLevel",
    "BureauRows",
    "as_fraction",
    "classes_of",
    "index_rows",
    "is_bureau_folder",
    "read_bureau_levels",
    "read_values",
]


LEVELS = ("US", "State", "County", "Tract_Group", "Tract", "Block_Group", "Block")
"""Names of the folders, top first; ``Tract_Group`` is in few products."""

_OPTIONAL = ("Tract_Group",)
_TOP = ("US", "State", "County")
"""Levels that a file may begin with: a state or a county on its own."""

_COLUMNS = {"DPQuery": ("geocode", "query_name", "query_shape", "value", "variance")}
_COLUMNS["Constraint"] = ("geocode", "query_name", "sign", "query_shape", "value")


@dataclass(frozen=True, slots=True, eq=False)
class BureauRows:
    """The rows of one geolevel's measurements or constraints, without their values.

    Parameters
    ----------
    files : tuple of Path
    starts : int64 (files + 1,)
        First row of each file.
    geocode : bytes array (r,)
    name : int64 (r,)
        Position in `names`.
    names : tuple of str
    shape : tuple of tuple of int, (r,)
        Shapes, as numbers into `shapes`.
    variance : float64 (r,)
        Zero for constraints.
    """

    files: tuple[Path, ...]
    starts: Ints
    geocode: Codes
    name: Ints
    names: tuple[str, ...]
    shape: Ints
    shapes: tuple[tuple[int, ...], ...]
    variance: Floats
    sign: Ints
    signs: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.geocode)


@dataclass(frozen=True, slots=True, eq=False)
class BureauLevel:
    """One geolevel as it is on disk.

    Parameters
    ----------
    folder : str
        Name of the folder without its ending, for instance ``Block_Group``.
    measured : BureauRows
    constraints : BureauRows
    geocodes : bytes array (g,)
        Ascending: all that are in one or the other.
    """

    folder: str
    measured: BureauRows
    constraints: BureauRows
    geocodes: Codes

    @property
    def geolevel(self) -> str:
        """Name of the geolevel in this project."""
        return self.folder.lower()


def is_bureau_folder(path: Path) -> bool:
    """Return whether a folder looks like a noisy measurement file of the Bureau's layout."""
    return any((path / f"{level}.parquet").is_dir() for level in LEVELS)


def read_bureau_levels(path: Path) -> tuple[BureauLevel, ...]:
    """Read what is measured and bound at every geolevel, and leave the values in the files.

    Parameters
    ----------
    path : Path

    Raises
    ------
    FormatError
        If a geolevel is missing between others, a column is missing, or geocodes have several lengths.
    """
    there = [name for name in LEVELS if (path / f"{name}.parquet").is_dir()]
    if not there or there[0] not in _TOP:
        raise FormatError(
            f"{path.name}: no folder {' or '.join(f'{name}.parquet' for name in _TOP)}; the upper geolevels "
            "of this noisy measurement file are missing."
        )
    expected = LEVELS[LEVELS.index(there[0]) :]
    missing = [name for name in expected if name not in there and name not in _OPTIONAL]
    if missing:
        raise FormatError(
            f"{path.name}: geolevel {missing[0]} is missing: there is no folder {missing[0]}.parquet."
        )
    return tuple(_read_level(path, name) for name in there)


def _read_level(path: Path, name: str) -> BureauLevel:
    folder = path / f"{name}.parquet"
    measured, constraints = (_read_rows(folder / kind, name, kind) for kind in ("DPQuery", "Constraint"))
    codes = np.unique(np.concatenate([measured.geocode, constraints.geocode]))
    if len(codes) == 0:
        raise FormatError(f"{name}.parquet: it holds no geounit.")
    lengths = np.unique(np.char.str_len(codes))
    if len(lengths) > 1:
        raise FormatError(f"{name}.parquet: geocodes of {lengths[0]} and of {lengths[-1]} characters.")
    return BureauLevel(name, measured, constraints, codes)


def _read_rows(folder: Path, level: str, kind: str) -> BureauRows:
    files = tuple(sorted(folder.glob("**/*.parquet"))) if folder.is_dir() else ()
    tables = [_read_file(file, level, kind) for file in files]
    starts = np.concatenate([[0], np.cumsum([len(table) for table in tables], dtype=np.int64)])
    empty = np.zeros(0, dtype=np.int64)
    if not tables:
        return BureauRows(
            (), starts.astype(np.int64), np.zeros(0, dtype="S1"), empty, (), empty, (), np.zeros(0), empty, ()
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
        starts.astype(np.int64),
        to_bytes(pc.cast(table.column("geocode"), pa.string())),
        name,
        names,
        shape,
        tuple(tuple(int(part) for part in text.split(",") if part) for text in shapes),
        variance,
        sign,
        signs,
    )


@reads_file
def _read_file(file: Path, level: str, kind: str) -> pa.Table:
    opened = open_parquet(file)
    columns = _COLUMNS[kind]
    missing = [name for name in columns if name not in opened.schema_arrow.names]
    if missing:
        raise FormatError(f"{level}.parquet/{kind}: {file.name} has no column {missing[0]!r}.")
    table = opened.read(columns=[name for name in columns if name != "value"])
    for name in ("geocode", "query_name", "query_shape"):
        if table.column(name).null_count:
            raise FormatError(f"{level}.parquet/{kind}: {file.name} has rows without {name}.")
    wanted = {"geocode": pa.string(), "query_name": pa.string(), "sign": pa.string()}
    for place, name in enumerate(table.column_names):
        if name in wanted and table.column(name).type != wanted[name]:
            table = table.set_column(place, name, pc.cast(table.column(name), wanted[name]))
        if name == "query_shape":
            shape = pc.cast(table.column(name), pa.list_(pa.int64()))
            table = table.set_column(place, name, shape)
        if name == "variance":
            table = table.set_column(place, name, pc.cast(table.column(name), pa.float64()))
    return table.replace_schema_metadata(None)


def _encoded(column: Any) -> tuple[Ints, tuple[str, ...]]:
    encoded = one_array(pc.dictionary_encode(pc.fill_null(column, "")))
    return np.asarray(encoded.indices, dtype=np.int64), tuple(encoded.dictionary.to_pylist())


class BureauAnswers:
    """Answers read from files of the Bureau's layout, row group by row group; an ``AnswerSource``.

    Parameters
    ----------
    levels : tuple of BureauLevel
    queries : tuple of tuple of QueryGroup
    row : tuple of int64 (g, q)
        Row of each answer in the geolevel's files; -1 where a geounit was not asked.
    """

    def __init__(
        self,
        levels: tuple[BureauLevel, ...],
        queries: tuple[tuple[QueryGroup, ...], ...],
        row: tuple[Ints, ...],
    ) -> None:
        self._levels = levels
        self._queries = queries
        self._row = row

    def full(self, level: int, first: int, geounits: int) -> list[Ints]:
        """Return all noisy answers of consecutive geounits.

        Raises
        ------
        FormatError
            If an answer has another number of values than its query group.
        """
        found = []
        here = self._levels[level]
        for column, query in enumerate(self._queries[level]):
            values = np.zeros((geounits, query.size), dtype=np.int64)
            rows = self._row[level][first : first + geounits, column]
            asked = np.flatnonzero(rows >= 0)
            values[asked] = read_values(here.measured, rows[asked], query.size, here.folder, query.name)
            found.append(values)
        return found


def read_values(rows: BureauRows, wanted: Ints, size: int, level: str, query: str) -> Ints:
    """Return the values of some rows, int64 (wanted, size).

    Raises
    ------
    FormatError
        If a row has another number of values, or one that is no whole number.
    """
    found = np.zeros((len(wanted), size), dtype=np.int64)
    place = np.searchsorted(rows.starts, wanted, side="right") - 1
    for number in np.unique(place).tolist():
        chosen = np.flatnonzero(place == number)
        inside = wanted[chosen] - rows.starts[number]
        file = rows.files[number]
        stamp = _stamp(file)
        bounds = _row_groups(file, stamp)
        group = np.searchsorted(bounds, inside, side="right") - 1
        for one in np.unique(group).tolist():
            lines = chosen[group == one]
            flat, offsets = _group_values(file, stamp, one, level)
            at = inside[group == one] - bounds[one]
            lengths = offsets[at + 1] - offsets[at]
            if bool(np.any(lengths != size)):
                raise FormatError(
                    f"{level}.parquet: {int(lengths[lengths != size][0])} values in query {query!r}, "
                    f"expected {size}."
                )
            found[lines] = flat[offsets[at][:, None] + np.arange(size)]
    return found


def _stamp(file: Path) -> tuple[int, int]:
    """Return what changes when a file does: what is kept of it must not outlive it."""
    found = file.stat()
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=4096)
def _row_groups(file: Path, stamp: tuple[int, int]) -> tuple[int, ...]:
    opened = open_parquet(file).metadata
    sizes = [opened.row_group(i).num_rows for i in range(opened.num_row_groups)]
    return tuple(np.concatenate([[0], np.cumsum(sizes)]).astype(int).tolist())


@lru_cache(maxsize=4)
@reads_file
def _group_values(file: Path, stamp: tuple[int, int], group: int, level: str) -> tuple[Ints, Ints]:
    """Return the flat values of one row group and where each row's begin."""
    column = one_array(open_parquet(file).read_row_group(group, columns=["value"]).column(0))
    if column.null_count:
        raise FormatError(f"{level}.parquet: a row without values.")
    offsets = np.asarray(column.offsets, dtype=np.int64)
    flat = np.asarray(column.values)
    with np.errstate(invalid="ignore"):  # a missing number is no whole one either
        whole = flat.astype(np.int64)
    if not np.array_equal(whole, flat):
        raise FormatError(f"{level}.parquet: a noisy answer that is no whole number.")
    return whole, offsets


def classes_of(variance: Floats) -> tuple[Floats, Ints]:
    """Return the distinct rows of variances, float64 (c, q), and the row of each geounit, int64 (g,)."""
    kinds, which = np.unique(variance, axis=0, return_inverse=True)
    return kinds, which.reshape(-1).astype(np.int64)


def as_fraction(variance: float) -> Fraction:
    """Return the parameter of a law of that variance; files hold it in single or double precision."""
    return Fraction(variance).limit_denominator(1 << 20)


def index_rows(
    level: BureauLevel, queries: Mapping[str, QueryGroup]
) -> tuple[tuple[QueryGroup, ...], Ints, Floats]:
    """Find the row and the variance of every answer.

    Parameters
    ----------
    level : BureauLevel
    queries : mapping of name in the files to QueryGroup

    Returns
    -------
    queries : tuple of QueryGroup
    row : int64 (g, q)
        -1 where a geounit was not asked.
    variance : float64 (g, q)
        Infinite there.

    Raises
    ------
    FormatError
        If a geocode is there twice for one query, or a variance is not above zero.
    """
    rows = level.measured
    groups = tuple(queries.values())
    column = np.array([list(queries).index(name) for name in rows.names], dtype=np.int64)
    position = np.searchsorted(level.geocodes, rows.geocode)
    row = np.full((len(level.geocodes), len(groups)), -1, dtype=np.int64)
    variance = np.full(row.shape, np.inf)
    if len(rows):
        place = position * len(groups) + column[rows.name]
        if len(np.unique(place)) != len(place):
            order = np.sort(place)
            twice = int(order[1:][order[1:] == order[:-1]][0])
            raise FormatError(
                f"{level.folder}.parquet: geocode {level.geocodes[twice // len(groups)].decode()} is there "
                f"twice with query {list(queries)[twice % len(groups)]!r}."
            )
        wrong = ~(rows.variance > 0)
        if wrong.any():
            raise FormatError(
                f"{level.folder}.parquet: geocode {rows.geocode[wrong][0].decode()} has a variance that is "
                "not above zero."
            )
        asked = np.isfinite(rows.variance)
        row.ravel()[place[asked]] = np.flatnonzero(asked)
        variance.ravel()[place[asked]] = rows.variance[asked]
    return groups, row, variance
