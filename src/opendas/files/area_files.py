"""Sets of leaves that someone drew: a list of geocodes, with or without areas and weights.

Axes: ``p`` rows of the file, ``a`` areas.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opendas.arrays import Floats, Ints
from opendas.custody.folders import at_once
from opendas.errors import ConfigError, EnvironmentFailure, Finding, FormatError, GeographyError
from opendas.files.parquet import open_parquet, reading
from opendas.geography.frame import Frame

__all__ = ["WHOLE", "AreaWeights", "area_table", "area_weights", "read_area_file"]

WHOLE = "area"
"""Name of the only area of a file without names."""

GEOCODE_COLUMNS = ("geocode", "geoid", "geoid20", "geoid10", "block", "blockid", "geoid_block")
AREA_COLUMNS = ("area", "district", "name", "areaid")
WEIGHT_COLUMNS = ("weight", "share", "fraction")
MOST_WEIGHT = 1e9
"""Larger ones are no shares of blocks; their squares are where arithmetic ends."""

_SHOWN = 20


@dataclass(frozen=True, slots=True, eq=False)
class AreaWeights:
    """Weights of leaves in areas.

    Parameters
    ----------
    names : tuple of str, length a
        In the order of their first row.
    which : int64 (p,)
        Area of each row.
    leaf : int64 (p,)
        Position of its leaf in the frame.
    weight : float64 (p,)
    skipped : int
        Rows left out because the frame does not have their leaf.
    """

    names: tuple[str, ...]
    which: Ints
    leaf: Ints
    weight: Floats
    skipped: int = 0


def read_area_file(path: Path, frame: Frame, *, skip_unknown: bool = False) -> AreaWeights:
    """Read a file of leaf geocodes.

    Parameters
    ----------
    path : Path
        CSV or Parquet with a column ``geocode`` (or ``GEOID``, ``GEOID20``, ``block`` ...) and, if wanted,
        ``area`` (or ``district``) and ``weight``; or a text file with one geocode a line. A row without an
        area is in none.
    frame : Frame
        The public leaves.
    skip_unknown : bool
        Leave out geocodes that the frame does not have, instead of refusing them. A census frame holds no
        block without housing units and group quarters: such a block is empty, by public facts.

    Raises
    ------
    ConfigError
        If there is no such file.
    FormatError
        If it has another form, or a weight is no number.
    GeographyError
        If a geocode is unknown, or there twice in one area.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file of blocks.")
    with reading(path):
        return area_table(_read_table(path), frame, name=path.name, skip_unknown=skip_unknown)


def area_table(table: Any, frame: Frame, *, name: str = "blocks", skip_unknown: bool = False) -> AreaWeights:
    """Resolve an Arrow table with the columns of :func:`read_area_file`."""
    names = {column.strip().lower(): column for column in table.column_names}
    code = next((names[column] for column in GEOCODE_COLUMNS if column in names), None)
    if code is None:
        if table.num_columns > 1:
            raise FormatError(
                f"{name}: no column with geocodes; expected one called {', '.join(GEOCODE_COLUMNS[:4])}."
            )
        if table.num_columns == 0:
            raise FormatError(f"{name}: it has no column.")
        code = table.column_names[0]
        if code.strip().isdigit() or code.strip().encode("utf-8") in frame.geocodes:
            raise FormatError(
                f"{name}: its first line is a geocode, and would be taken for the name of the column. Put a "
                "line 'geocode' above it, or call the file .txt."
            )
    area = next((names[column] for column in AREA_COLUMNS if column in names and names[column] != code), None)
    weight = next((names[column] for column in WEIGHT_COLUMNS if column in names), None)
    codes = table.column(code)
    if codes.null_count:
        raise FormatError(f"{name}: a row without a geocode.")
    text = [_text(value) for value in codes.to_pylist()]
    weights = None if weight is None else _numbers(table.column(weight), name)
    areas = None
    if area is not None:
        given = [None if value is None else _text(value) for value in table.column(area).to_pylist()]
        inside = [i for i, value in enumerate(given) if value]
        areas = [value for value in given if value]
        text = [text[i] for i in inside]
        weights = None if weights is None else weights[inside]
    return area_weights(frame, text, areas, weights, name=name, skip_unknown=skip_unknown)


def area_weights(
    frame: Frame,
    geocodes: Sequence[str],
    areas: Sequence[str] | None = None,
    weights: Sequence[float] | Floats | None = None,
    *,
    name: str = "blocks",
    skip_unknown: bool = False,
) -> AreaWeights:
    """Resolve geocodes of leaves, areas and weights; see :func:`read_area_file`.

    Numbers lose their leading zeros in many programs: a geocode of digits that is too short gets them back.
    """
    if len(geocodes) == 0:
        raise FormatError(f"{name}: it names no block.")
    width = frame.geocodes.dtype.itemsize
    digits = bool(np.all(np.char.isdigit(frame.geocodes)))
    fixed = [code.zfill(width) if digits and code.isdigit() else code for code in geocodes]
    wanted = np.array([code.encode("utf-8") for code in fixed])
    position = np.minimum(np.searchsorted(frame.geocodes, wanted), len(frame) - 1)
    known = frame.geocodes[position] == wanted
    if not known.all() and not skip_unknown:
        lost = np.unique(wanted[~known])
        raise GeographyError(
            f"{name}: {len(lost)} of its geocodes are no {frame.leaf}s of this release. Blocks without "
            "housing units and group quarters are in no release, as they are empty; leave them out, or let "
            "--skip-unknown do it.",
            [Finding(name, None, "geocode", f"unknown {code.decode()}") for code in lost[:_SHOWN]],
        )
    if not known.any():
        raise GeographyError(f"{name}: none of its geocodes is a {frame.leaf} of this release.")
    order = dict.fromkeys(areas) if areas is not None else {WHOLE: None}
    number = {area: i for i, area in enumerate(order)}
    which = np.array(
        [number[area] for area in areas] if areas is not None else [0] * len(fixed), dtype=np.int64
    )
    each = np.ones(len(fixed)) if weights is None else np.asarray(weights, dtype=np.float64)
    if not bool(np.isfinite(each).all()):
        raise FormatError(f"{name}: a weight that is no finite number.")
    if bool(np.any(np.abs(each) > MOST_WEIGHT)):
        raise FormatError(f"{name}: a weight beyond {MOST_WEIGHT:.0e}; expected something like a share.")
    which, leaf, each = which[known], position[known].astype(np.int64), each[known]
    _refuse_repeats(which, leaf, tuple(order), frame, name)
    return AreaWeights(tuple(order), which, leaf, each, int((~known).sum()))


def _refuse_repeats(
    which: Ints,
    leaf: Ints,
    names: tuple[str, ...],
    frame: Frame,
    name: str,
) -> None:
    pairs = which * len(frame) + leaf
    found, counts = np.unique(pairs, return_counts=True)
    if bool(np.any(counts > 1)):
        twice = found[counts > 1]
        raise GeographyError(
            f"{name}: {len(twice)} geocodes are there twice.",
            [
                Finding(
                    name,
                    None,
                    "geocode",
                    f"{frame.geocodes[pair % len(frame)].decode()} twice in {names[pair // len(frame)]}",
                )
                for pair in twice[:_SHOWN].tolist()
            ],
        )


def _read_table(path: Path) -> Any:
    if path.suffix.lower() == ".parquet":
        return open_parquet(path).read()
    try:
        with open(path, "rb", opener=at_once) as file:
            data = file.read()
    except OSError as error:
        raise EnvironmentFailure(f"{path.name} cannot be read: {error.strerror or 'read error'}.") from error
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise FormatError(f"{path.name}: not a text file.") from error
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise FormatError(f"{path.name}: it is empty.")
    if path.suffix.lower() == ".txt" and "," not in lines[0]:
        if lines[0].strip().lower() in GEOCODE_COLUMNS:
            lines = lines[1:]
        return pa.table({"geocode": pa.array([line.strip() for line in lines], pa.string())})
    try:
        rows = list(csv.reader(lines))
    except csv.Error as error:
        raise FormatError(f"{path.name}: not a table of comma-separated values: {error}.") from error
    header = [name.strip() for name in rows[0]]
    if len(set(header)) != len(header):
        raise FormatError(f"{path.name}: two columns have one name.")
    wrong = next((number for number, row in enumerate(rows, start=1) if len(row) != len(header)), None)
    if wrong is not None:
        raise FormatError(
            f"{path.name}, line {wrong}: {len(rows[wrong - 1])} fields, and the first line has {len(header)}."
        )
    columns = zip(*rows[1:], strict=True) if len(rows) > 1 else ([] for _ in header)
    return pa.table(
        {
            name: pa.array([value.strip() or None for value in values], pa.string())
            for name, values in zip(header, columns, strict=True)
        }
    )


def _text(code: object) -> str:
    """Return a code or name as text; some programs write fixed characters as bytes."""
    return (code.decode("utf-8", "replace") if isinstance(code, bytes) else str(code)).strip()


def _numbers(column: Any, name: str) -> Floats:
    try:
        found = pc.cast(column, pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise FormatError(f"{name}: a weight that is no number.") from error
    if found.null_count:
        raise FormatError(f"{name}: a row without a weight.")
    return np.asarray(found, dtype=np.float64)
