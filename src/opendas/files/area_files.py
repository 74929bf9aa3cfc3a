"""Sets of leaves from users' files: published block assignments, plans, lists; with areas and weights.

One reader for every form in which districts are published or exchanged: the Census Bureau's block assignment
files (``BLOCKID|DISTRICT``) and block equivalency files (``GEOID,CDFP``; ``GEOID,CD118``), tables of plans
(``GEOID20,District``) with any delimiter, Parquet, lists of geocodes, all of these in a zip file, and shapes
of districts. A column that it does not understand is refused: it may be what names the areas.

Axes: ``p`` rows of the file, ``a`` areas.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from opendas.arrays import Codes, Floats, Ints, positions_of
from opendas.custody.folders import at_once
from opendas.errors import ConfigError, EnvironmentFailure, Finding, FormatError, GeographyError
from opendas.files.official_areas import OfficialAreas
from opendas.files.relationships import LEVELS, is_relationship, shares_of
from opendas.files.shapes import areas_of_points, holds_shapes
from opendas.files.storage.parquet import open_parquet, reading
from opendas.files.storage.zips import opened_zip, unpacked
from opendas.geography.frame import Frame, Grouping

WHOLE = "area"
"""Name of the only area of a file without names."""

GEOCODE_COLUMNS = ("geocode", "geoid", "geoid20", "geoid10", "block", "blockid", "geoid_block")
AREA_COLUMNS = ("area", "district", "areaid", "name")
WEIGHT_COLUMNS = ("weight", "share", "fraction")
_BESIDE = ("statefp", "countyfp", "comptyp")
"""Columns of official files that stand beside an area's own code."""

_OFFICIAL = re.compile(r"cdfp|cd\d+(fp)?|sldust|sldlst|sld[ul]\d*|(place|cousub|aiannh)(fp|ce)")
"""Columns of official files with codes of areas."""

_NOWHERE = re.compile(r"Z+")
"""Codes of official files that say: in no such area."""

MOST_WEIGHT = 1e9
"""Larger ones are no shares of blocks; their squares are where arithmetic ends."""

LONGEST_AREA = 200
"""Characters of the name of an area."""

_SHOWN = 20


def plan_level(frame: Frame) -> str:
    """Return the geolevel that the districts of a plan are written as: one that the frame does not have."""
    return "district_of_plan" if frame.has("district") else "district"


@dataclass(frozen=True, slots=True, eq=False)
class AreaWeights:
    """Weights of leaves in areas."""

    names: tuple[str, ...]  # length a: in the order of their first row
    which: Ints  # (p,): area of each row
    leaf: Ints  # (p,): position of its leaf in the frame
    weight: Floats  # (p,)
    skipped: int = 0  # rows left out because their leaf is unknown

    def districts(self, frame: Frame) -> Grouping:
        """Return the areas as geounits of the frame, in order of name."""
        if not bool((self.weight == 1).all()) or len(np.unique(self.leaf)) < len(self.leaf):
            raise ConfigError("--blocks: districts have whole blocks, and a block is in one of them only.")
        names = np.array([name.encode() for name in self.names])
        order = np.argsort(names)
        number = np.empty(len(order), dtype=np.int64)
        number[order] = np.arange(len(order))
        of_leaf = np.full(len(frame), -1, dtype=np.int64)
        of_leaf[self.leaf] = number[self.which]
        return Grouping(plan_level(frame), names[order], of_leaf)


@dataclass(frozen=True)
class Blocks:
    """The leaves that a file may name."""

    frame: Frame
    # Official blocks that are no leaves are empty by public facts; a file may list them.
    official: OfficialAreas | None = None
    skip_unknown: bool = False  # leave out geocodes that neither of them has, instead of refusing them

    @cached_property
    def empty(self) -> Codes:
        """Official blocks that are no leaves, ascending."""
        if self.official is None:
            return np.empty(0, dtype=self.frame.geocodes.dtype)
        return np.setdiff1d(self.official.geocodes(self.frame.leaf), self.frame.geocodes)

    @cached_property
    def states(self) -> Codes:
        """Codes of the states that the leaves lie in."""
        return np.unique(self.frame.geocodes.astype("S2"))

    @cached_property
    def are_digits(self) -> bool:
        """Whether all leaves are numbered."""
        return bool(np.all(np.char.isdigit(self.frame.geocodes)))


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """A table of text, and where its rows stand."""

    name: str  # of the file
    columns: dict[str, Any]  # name -> Arrow column
    lines: Ints | None = None  # (p,): line of each row; None where there are none
    official: bool = False  # a block assignment file of the Census Bureau, by its name

    @classmethod
    def of_lists(cls, name: str, lines: Ints | None = None, **columns: Sequence[Any]) -> _Rows:
        """Return columns that are lists of text."""
        texts = {key: pa.array([_text(value) for value in values]) for key, values in columns.items()}
        return cls(name, texts, lines)

    def values(self, column: str) -> list[Any]:
        """Return a column, None where it is empty, or no number."""
        return [
            None if value == "" or value != value else value for value in self.columns[column].to_pylist()
        ]

    def line(self, row: int) -> int | None:
        """Return the line of a row."""
        return None if self.lines is None else int(self.lines[row])


def read_area_file(path: Path, blocks: Blocks) -> AreaWeights:
    """Read a file of leaf geocodes, or of shapes.

    `path`: a table, as text with ``,``, ``;``, ``|`` or a tab between its fields, or as Parquet, with a
    column ``geocode`` (or ``GEOID``, ``GEOID20``, ``BLOCKID`` ...), at most one column that names areas,
    whatever its own name, and at most one called ``weight``. A row without an area is in none. Or a text file
    with one geocode a line; a zip file with one of these in it (``FILES.zip:CD`` takes the member whose name
    ends so); or a GeoPackage, a GeoJSON file or a shapefile: a block lies in the area that its representative
    point lies in. Or a relationship file of the Census Bureau, with the areas of the other census that are
    meant: ``FILE:tract``, or ``FILE:tract:land`` where blocks count in part.
    """
    asked = _ASKED.search(str(path))
    if asked is not None and not path.is_file():
        path = Path(str(path)[: asked.start()])
    rows = _rows(path, blocks)
    if is_relationship(rows.columns):
        rows = _related(rows, blocks, asked)
    elif asked is not None:
        raise FormatError(
            f"{rows.name} is not a relationship file; only there a colon and a geolevel may follow the name."
        )
    return _areas(rows, blocks)


_ASKED = re.compile(rf":({'|'.join(LEVELS)})(:land)?$")


def _related(rows: _Rows, blocks: Blocks, asked: re.Match[str] | None) -> _Rows:
    """Return the areas of the other census that blocks lie in by a relationship file, with weights."""
    if asked is None:
        raise FormatError(
            f"{rows.name} is a relationship file. Say which areas of the other census are meant "
            f"({', '.join(LEVELS)}), for instance {rows.name}:tract. With {rows.name}:tract:land, a block "
            "that lies in two of them counts in both, in proportion to its land."
        )
    census = 0 if blocks.official is None else blocks.official.census
    lines = np.arange(2, len(next(iter(rows.columns.values()))) + 2) if rows.lines is None else rows.lines
    leaves = blocks.frame.geocodes
    split = asked[2] is not None
    found = shares_of(rows.name, rows.columns, lines, leaves, asked[1], census, split=split)
    kept = np.isin(found.own, np.union1d(leaves, blocks.empty))  # others have no count in this release
    columns = {"geocode": found.own[kept], "area": found.area[kept], "weight": found.share[kept]}
    return _Rows.of_lists(
        rows.name, found.line[kept], **{key: each.tolist() for key, each in columns.items()}
    )


def read_plans(path: Path, blocks: Blocks) -> Iterator[tuple[str, AreaWeights]]:
    """Yield (name, areas) of many plans, one at a time.

    `path`: a table with a column of geocodes, of which every other column is a plan; or a folder with a file
    for each plan, as for :func:`read_area_file`.
    """
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file() and file.name[0] != ".")
        if not files:
            raise ConfigError(f"{path}: a folder of plans without a file in it.")
        for file in files:
            yield file.stem, read_area_file(file, blocks)
        return
    rows = _rows(path, blocks)
    code = _code_column(rows, blocks)
    plans = [column for column in rows.columns if column != code]
    if not plans:
        raise FormatError(f"{rows.name}: there is no column beside the geocodes; each such column is a plan.")
    known = _Known.of(rows.values(code), rows, blocks)
    for plan in plans:
        yield plan, known.areas(_area_names(rows.values(plan), rows), None, rows, blocks)


def areas_of(
    blocks: Any, frame: Frame, skip_unknown: bool, official: OfficialAreas | None = None
) -> AreaWeights:
    """Return the areas of a file, a list of geocodes, or a frame with a column ``geocode``."""
    known = Blocks(frame, official, skip_unknown)
    if isinstance(blocks, str | Path):
        return read_area_file(Path(blocks), known)
    if hasattr(blocks, "__arrow_c_stream__") or isinstance(blocks, Mapping):
        try:
            table = pa.table(blocks if hasattr(blocks, "__arrow_c_stream__") else dict(blocks))
        except (TypeError, ValueError, pa.ArrowException) as error:
            raise ConfigError(
                "blocks: columns of one length are expected, each of text or of numbers."
            ) from error
        return area_table(table, known)
    if not isinstance(blocks, Sequence | np.ndarray):
        raise ConfigError("blocks are a file, a list of geocodes, or a frame with a column geocode.")
    codes = [code.decode() if isinstance(code, bytes) else str(code) for code in blocks]
    return area_weights(known, codes)


def area_table(table: Any, blocks: Blocks, *, name: str = "blocks") -> AreaWeights:
    """Resolve an Arrow table with the columns of :func:`read_area_file`."""
    return _areas(_Rows(name, {column: table.column(column) for column in table.column_names}), blocks)


def area_weights(
    blocks: Blocks, geocodes: Sequence[str], areas: Sequence[str] | None = None, *, name: str = "blocks"
) -> AreaWeights:
    """Resolve geocodes of leaves, and the areas of each; see :func:`read_area_file`.

    Numbers lose their leading zeros in many programs: a geocode of digits that is too short gets them back.
    """
    rows = (
        _Rows.of_lists(name, geocode=geocodes)
        if areas is None
        else (_Rows.of_lists(name, geocode=geocodes, area=areas))
    )
    return _areas(rows, blocks)


def _areas(rows: _Rows, blocks: Blocks) -> AreaWeights:
    """Find out which column is which, and resolve them."""
    code = _code_column(rows, blocks)
    others = {column.strip().lower(): column for column in rows.columns if column != code}
    weight = next((others.pop(column) for column in WEIGHT_COLUMNS if column in others), None)
    county = others.get("countyfp")
    left = [column for key, column in others.items() if key not in _BESIDE]
    if len(left) > 1:
        raise FormatError(
            f"{rows.name}: {', '.join(left)}: which of these columns names the areas? Keep one of them "
            "beside the geocodes (and one called weight, if blocks count in part); opendas tabulate --plans "
            "takes each for a plan."
        )
    names = _area_names(rows.values(left[0]), rows) if left else None
    texts = rows.values(code)
    if names is not None and (rows.official or _OFFICIAL.fullmatch(left[0].strip().lower())):
        names = _official_names(names, texts, None if county is None else rows.values(county), blocks)
        rows, names, texts = _in_states(rows, names, texts, blocks)
    numbers = None if weight is None else _numbers(rows.values(weight), rows.name)
    return _Known.of(texts, rows, blocks).areas(names, numbers, rows, blocks)


def _code_column(rows: _Rows, blocks: Blocks) -> str:
    names = {column.strip().lower(): column for column in rows.columns}
    if not names:
        raise FormatError(f"{rows.name}: it has no column.")
    leaf = blocks.frame.leaf
    code = next((names[column] for column in (*GEOCODE_COLUMNS, leaf.lower()) if column in names), None)
    if code is not None:
        return code
    first = next(iter(rows.columns))
    if first.strip().isdigit() or first.strip().encode() in blocks.frame.geocodes:
        raise FormatError(
            f"{rows.name}: the name of its first column looks like a geocode. If the file has no header, "
            "put a line 'geocode' above the first one, or let the file's name end in .txt."
        )
    if len(names) > 1:
        raise FormatError(
            f"{rows.name}: no column with geocodes among {', '.join(rows.columns)}; expected one called "
            f"{leaf}, {', '.join(GEOCODE_COLUMNS[:4])} or BLOCKID."
        )
    return first


def _area_names(values: Sequence[object], rows: _Rows) -> list[str]:
    """Return the name of each row's area, empty where it is in none."""
    found = ["" if value is None else _text(value) for value in values]
    if any(len(name) > LONGEST_AREA for name in found):
        raise FormatError(f"{rows.name}: a name of an area has more than {LONGEST_AREA} characters.")
    return found


def _official_names(
    names: list[str], codes: Sequence[object], counties: Sequence[object] | None, blocks: Blocks
) -> list[str]:
    """Return the codes of official areas with what makes them unique in the release before them."""
    if counties is not None:
        names = [name and _text(county) + name for name, county in zip(names, counties, strict=True)]
    if len(blocks.states) > 1:
        names = [name and _text(code)[:2] + name for name, code in zip(names, codes, strict=True)]
    return ["" if _NOWHERE.fullmatch(name[-2:]) else name for name in names]


def _in_states(
    rows: _Rows, names: list[str], texts: list[Any], blocks: Blocks
) -> tuple[_Rows, list[str], list[Any]]:
    """Leave out rows of other states than the release's: official files may be of the nation."""
    states = {state.decode() for state in blocks.states.tolist()}
    kept = [row for row, text in enumerate(texts) if text is None or _text(text)[:2] in states]
    if len(kept) in (0, len(texts)):
        return rows, names, texts
    lines = None if rows.lines is None else rows.lines[kept]
    columns = {name: column.take(pa.array(kept)) for name, column in rows.columns.items()}
    rows = replace(rows, columns=columns, lines=lines)
    return rows, [names[row] for row in kept], [texts[row] for row in kept]


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """Geocodes of a file, found among the leaves: position (p,), and whether each row's is a leaf (p,)."""

    position: Ints
    is_leaf: Any
    skipped: int

    @classmethod
    def of(cls, texts: Sequence[Any], rows: _Rows, blocks: Blocks) -> _Known:
        """Find geocodes."""
        frame = blocks.frame
        if any(text is None for text in texts):
            raise FormatError(f"{rows.name}: a row without a geocode.")
        if not texts:
            raise FormatError(f"{rows.name}: it names no {frame.leaf}.")
        width = frame.geocodes.dtype.itemsize
        plain = [_text(text) for text in texts]
        fixed = [code.zfill(width) if blocks.are_digits and code.isdigit() else code for code in plain]
        wanted = np.array([code.encode("utf-8") for code in fixed])
        position = positions_of(frame.geocodes, wanted)
        is_leaf, is_empty = position >= 0, positions_of(blocks.empty, wanted) >= 0
        unknown = np.flatnonzero(~is_leaf & ~is_empty)
        if len(unknown) and not blocks.skip_unknown:
            _refuse_unknown(unknown, wanted, rows, blocks)
        if not (is_leaf | is_empty).any():
            raise GeographyError(f"{rows.name}: none of its geocodes is a {frame.leaf} of this release.")
        return cls(position, is_leaf, len(unknown))

    def areas(
        self, names: list[str] | None, weights: Floats | None, rows: _Rows, blocks: Blocks
    ) -> AreaWeights:
        """Return the areas that the rows are in."""
        inside = np.ones(len(self.position), dtype=bool)
        order: tuple[str, ...] = (WHOLE,)
        which = np.zeros(len(inside), dtype=np.int64)
        if names is not None:
            order = tuple(dict.fromkeys(name for name in names if name))
            number = {name: i for i, name in enumerate(order)}
            which = np.array([number.get(name, -1) for name in names], dtype=np.int64)
            inside = which >= 0
        if not inside.any():
            raise FormatError(f"{rows.name}: no row names an area.")
        pairs = np.where(inside & self.is_leaf, which * len(blocks.frame) + self.position, -1)
        _refuse_repeats(pairs, order, rows, blocks)
        kept = np.flatnonzero(pairs >= 0)
        each = np.ones(len(kept)) if weights is None else weights[kept]
        return AreaWeights(order, which[kept], self.position[kept], each, self.skipped)


def _refuse_unknown(unknown: Ints, wanted: Codes, rows: _Rows, blocks: Blocks) -> None:
    leaf = blocks.frame.leaf
    why = (
        ""
        if blocks.official is not None
        else f" The release does not list empty {leaf}s. Leave unknown geocodes out, or give --skip-unknown "
        "(skip_unknown=True)."
    )
    raise GeographyError(
        f"{rows.name}: {len(np.unique(wanted[unknown]))} of its geocodes are no {leaf}s of this release."
        + why,
        [
            Finding(rows.name, rows.line(row), "geocode", f"unknown {wanted[row].decode()}")
            for row in unknown[:_SHOWN].tolist()
        ],
    )


def _refuse_repeats(pairs: Ints, names: tuple[str, ...], rows: _Rows, blocks: Blocks) -> None:
    order = np.argsort(pairs, kind="stable")
    again = order[1:][(pairs[order][1:] == pairs[order][:-1]) & (pairs[order][1:] >= 0)]
    if len(again) == 0:
        return
    frame = blocks.frame
    raise GeographyError(
        f"{rows.name}: {len(again):,} rows repeat a geocode of the same area.",
        [
            Finding(
                rows.name,
                rows.line(row),
                "geocode",
                f"{frame.geocodes[leaf].decode()} twice in {names[area]}",
            )
            for row in np.sort(again)[:_SHOWN].tolist()
            for area, leaf in [divmod(int(pairs[row]), len(frame))]
        ],
    )


_MEMBER = re.compile(r"BlockAssign_ST\d\d_[A-Z]{2}_(\w+?)\.txt$", re.IGNORECASE)


def _rows(path: Path, blocks: Blocks) -> _Rows:
    """Read a file into a table of text."""
    archive, _, member = str(path).rpartition(".zip:")
    if not path.is_file() and archive:
        return _in_zip(Path(f"{archive}.zip"), member)
    if not path.is_file():
        raise ConfigError(f"{path}: no such file of {blocks.frame.leaf}s.")
    with reading(path):
        if holds_shapes(path):
            return _of_shapes(path, blocks)
        if path.suffix.lower() == ".zip":
            return _in_zip(path, "")
        if path.suffix.lower() == ".parquet":
            table = open_parquet(path).read()
            return _Rows(path.name, {name: table.column(name) for name in table.column_names})
        try:
            with open(path, "rb", opener=at_once) as file:
                return _of_text(path.name, file.read())
        except OSError as error:
            raise EnvironmentFailure(
                f"{path.name} cannot be read: {error.strerror or 'read error'}."
            ) from error


def _of_shapes(path: Path, blocks: Blocks) -> _Rows:
    official, leaf = blocks.official, blocks.frame.leaf
    points = {} if official is None else official.points(leaf)
    if not points:
        raise ConfigError(
            f"{path.name}: a {leaf} lies in the shape that holds its point in the header of a redistricting "
            f"file, and this release has no such points. Give a list of {leaf}s instead."
        )
    pairs = areas_of_points(path, (*AREA_COLUMNS, "geoid20", "geoid10", "geoid"), points)
    return _Rows.of_lists(path.name, geocode=[code for code, _ in pairs], area=[area for _, area in pairs])


def _in_zip(path: Path, ending: str) -> _Rows:
    """Read the one text file of a zip file, or the one that is called so."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file of blocks.")
    with opened_zip(path, "{}: no whole zip file, or an encrypted one.") as archive:
        names = [n for n in archive.namelist() if n.lower().endswith((".txt", ".csv"))]
        wanted = [n for n in names if Path(n).stem.lower().endswith(ending.lower())]
        exact = [n for n in wanted if Path(n).stem.lower().endswith(f"_{ending.lower()}")]
        chosen = exact if len(exact) == 1 else wanted
        if len(chosen) != 1:
            called = f" whose name ends in {ending}" if ending else ""
            raise FormatError(
                f"{path.name}: expected one text file{called}, found {len(chosen)} (the zip file has "
                f"{', '.join(names)[:300] or 'none'}). Name one by the end of its name, for instance "
                f"{path.name}:CD."
            )
        data = unpacked(archive, chosen[0])
    return _of_text(f"{path.name}!{chosen[0]}", data)


def _of_text(name: str, data: bytes) -> _Rows:
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise FormatError(f"{name}: not a text file.") from error
    places = np.array([number for number, line in enumerate(lines, start=1) if line.strip()], dtype=np.int64)
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise FormatError(f"{name}: it is empty.")
    delimiter = max(",|;\t", key=lines[0].count)
    if name.lower().endswith(".txt") and delimiter not in lines[0]:
        start = int(lines[0].strip().lower() in GEOCODE_COLUMNS)
        return _Rows.of_lists(name, places[start:], geocode=lines[start:])
    header = [field.strip().strip('"') for field in lines[0].split(delimiter)]
    if len(set(header)) != len(header):
        raise FormatError(f"{name}: two columns have one name.")
    columns = _columns(name, header, delimiter, lines, places)
    return _Rows(name, columns, places[1:], _MEMBER.search(name) is not None)


def _columns(name: str, header: list[str], delimiter: str, lines: list[str], places: Ints) -> dict[str, Any]:
    if len(lines) == 1:
        return {column: pa.array([], pa.string()) for column in header}
    try:
        table = pacsv.read_csv(
            io.BytesIO("\n".join(lines[1:]).encode("utf-8")),
            pacsv.ReadOptions(column_names=header),
            pacsv.ParseOptions(delimiter=delimiter),
            pacsv.ConvertOptions(column_types=dict.fromkeys(header, pa.string()), strings_can_be_null=False),
        )
    except pa.ArrowInvalid as error:
        counts = [re.sub('"[^"]*"', "", line).count(delimiter) + 1 for line in lines]
        wrong = next((row for row, count in enumerate(counts) if count != len(header)), None)
        if wrong is None:
            raise FormatError(
                f"{name}: expected {len(header)} fields in each line; check its quotation marks."
            ) from error
        raise FormatError(
            f"{name}, line {places[wrong]}: {counts[wrong]} fields, and the first line has {len(header)}."
        ) from error
    return {
        column: pc.utf8_trim_whitespace(texts) for column, texts in zip(header, table.columns, strict=True)
    }


def _text(code: object) -> str:
    """Return a code or name as text; some programs write fixed characters as bytes."""
    return (code.decode("utf-8", "replace") if isinstance(code, bytes) else str(code)).strip()


def _numbers(values: Sequence[Any], name: str) -> Floats:
    if any(value is None for value in values):
        raise FormatError(f"{name}: a row without a weight.")
    try:
        found = np.array([float(value) for value in values], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise FormatError(f"{name}: a weight that is not a number.") from error
    if not bool(np.isfinite(found).all()):
        raise FormatError(f"{name}: a weight that is not a finite number.")
    if bool(np.any(np.abs(found) > MOST_WEIGHT)):
        raise FormatError(f"{name}: a weight beyond {MOST_WEIGHT:.0e}; expected something like a share.")
    return found
