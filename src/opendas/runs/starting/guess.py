"""A first guess at what a table is: which column says where, which are attributes, which counts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from opendas.errors import ConfigError, EnvironmentFailure, FormatError
from opendas.readers.columns.csv_parquet import column_names
from opendas.readers.columns.identifiers import seems_identifier, several_rows
from opendas.runs.config.model import RESERVED_GEOLEVELS
from opendas.schema.attributes import RESERVED_NAMES

__all__ = ["MOST_LEVELS", "OTHER", "TableGuess", "declared_table", "guess_table", "in_order"]

OTHER = "other"
"""Label of what a private discovery did not find, and leaf of the records whose leaf it did not find."""

MOST_LEVELS = 40
"""An attribute has at most so many levels; a column with more is an identifier or a number."""

_GEO_NAMES = (
    "geocode",
    "geoid",
    "geo_id",
    "geo",
    "block",
    "zone",
    "area",
    "unit",
    "ward",
    "precinct",
    "site",
    "code",
)
_COUNT_NAMES = ("count", "counts", "n", "number", "records", "population", "pop", "total", "persons", "freq")


_WHOLE = r"^[0-9]+$"


@dataclass(frozen=True, slots=True)
class TableGuess:
    """What a table seems to be.

    Parameters
    ----------
    file : str
    reader : str
        ``records`` or ``histogram``.
    geocode : str
        Column with the leaf.
    count : str or None
        Column with the number of records, for ``histogram``.
    attributes : mapping of attribute to level labels
    columns : mapping of attribute to column
    levels : tuple of (name, prefix or None, column or None)
        Top first, the leaf last.
    ignored : tuple of str
        Columns that were not taken.
    unit_id : str or None
        Column that seems to say whose a record is, where some have several.
    """

    file: str
    reader: str
    geocode: str
    count: str | None
    attributes: Mapping[str, tuple[str, ...]]
    columns: Mapping[str, str]
    levels: tuple[tuple[str, int | None, str | None], ...]
    ignored: tuple[str, ...]
    unit_id: str | None = None

    @property
    def upper_columns(self) -> tuple[str, ...]:
        """Columns with the codes of the levels above the leaf, top first."""
        return tuple(column for _, _, column in self.levels if column is not None)

    @property
    def level_names(self) -> tuple[str, ...]:
        """Names of the geolevels, top first."""
        return tuple(name for name, _, _ in self.levels)

    def level_entries(self) -> list[dict[str, object]]:
        """Return the geolevels as a run file writes them."""
        entries = []
        for name, prefix, column in self.levels:
            entry: dict[str, object] = {"name": name}
            if prefix is not None:
                entry["prefix"] = prefix
            if column is not None:
                entry["column"] = column
            entries.append(entry)
        return entries


def guess_table(path: Path) -> TableGuess:
    """Guess what a CSV or Parquet table holds.

    Parameters
    ----------
    path : Path

    Returns
    -------
    TableGuess

    Raises
    ------
    ConfigError
        If there is no such file, no column that could say where a record belongs, or none that could be an
        attribute.
    FormatError
        If it is no table.
    """
    table = _read(path)
    codes = {name: _codes(table.column(name)) for name in table.column_names}
    of_units = [name for name in codes if seems_identifier(name) and _tells_apart(codes[name])]
    geocode = _geocode(table, {name: found for name, found in codes.items() if name not in of_units})
    uppers = _upper_columns(codes, geocode)
    unread = {geocode, *uppers, *of_units}
    rest = [name for name in table.column_names if name not in unread]
    count = _count(table, rest)
    attributes = [name for name in rest if name != count and 2 <= len(codes[name][0]) <= MOST_LEVELS]
    if count is not None and not _unique(codes, [geocode, *attributes]):
        count = None
    if not attributes:
        raise ConfigError(
            f"{path.name}: no column with 2 to {MOST_LEVELS} different values could be an attribute. Write a "
            "product file by hand (docs/product-file.md)."
        )
    columns = _attribute_names(attributes)
    return TableGuess(
        file=path.name,
        reader="records" if count is None else "histogram",
        geocode=geocode,
        count=count,
        attributes={name: in_order(codes[column][0]) for name, column in columns.items()},
        columns=columns,
        levels=_levels(codes[geocode][0], geocode, uppers),
        ignored=tuple(
            name for name in table.column_names if name not in {geocode, *uppers, *attributes, count}
        ),
        unit_id=next((name for name in of_units if count is None and _repeats(codes[name])), None),
    )


def declared_table(
    path: Path, geography: Sequence[str], attributes: Sequence[str], count: str | None = None
) -> TableGuess:
    """Return what a table is by declaration: of the table itself, only the header is read.

    Parameters
    ----------
    geography : sequence of str
        Columns with codes of places, top first, the leaf last.
    attributes : sequence of str
        Columns with attributes; their labels are left open.
    count : str, optional
        Column with the number of records of a row.

    Raises
    ------
    ConfigError
        If a column is missing, or named twice.
    FormatError
        If it is no table.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file.")
    header = column_names(path)
    wanted = [*geography, *attributes, *([] if count is None else [count])]
    missing = [name for name in wanted if name not in header]
    if missing:
        raise ConfigError(f"{path.name} has no column {missing[0]!r}; it has {', '.join(header[:40])}.")
    if len(set(wanted)) < len(wanted):
        raise ConfigError(
            "a column is named twice: each has one meaning in --geography, --attributes, --count."
        )
    *above, geocode = geography
    columns = _attribute_names(list(attributes))
    return TableGuess(
        file=path.name,
        reader="records" if count is None else "histogram",
        geocode=geocode,
        count=count,
        attributes=dict.fromkeys(columns, ()),
        columns=columns,
        levels=_levels([], geocode, tuple(above)),
        ignored=tuple(name for name in header if name not in wanted),
    )


_Codes = tuple[list[str], npt.NDArray[np.int64]]


def _tells_apart(codes: _Codes) -> bool:
    """Whether a column has about as many values as rows, so that its values are no classes."""
    values, rows = len(codes[0]), len(codes[1])
    return values == rows or several_rows(values, rows)


def _repeats(codes: _Codes) -> bool:
    return len(codes[0]) < len(codes[1])


def _read(path: Path) -> pa.Table:
    """Read every column as text: a code such as 007 is no number."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file.")
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            table = pq.read_table(path)
            _refuse_repeated(path, table.column_names)
            table = pa.table({name: table.column(name).cast(pa.string()) for name in table.column_names})
            table.validate(full=True)
            return _with_rows(path, table)
        with pacsv.open_csv(path) as reader:
            names = reader.schema.names
        _refuse_repeated(path, names)
        options = pacsv.ConvertOptions(column_types={name: pa.string() for name in names})
        table = pacsv.read_csv(path, convert_options=options)
    except OSError as error:
        if error.errno is not None:
            raise EnvironmentFailure(f"{path}: {error.strerror or 'cannot be read'}.") from None
        raise FormatError(f"{path.name}: no whole CSV or Parquet table.") from None
    except (pa.ArrowException, UnicodeDecodeError):
        # The reader's own message may quote a row.
        raise FormatError(f"{path.name}: no CSV with a header row, and no Parquet table.") from None
    return _with_rows(path, table)


def _refuse_repeated(path: Path, names: list[str]) -> None:
    if len(set(names)) < len(names):
        raise FormatError(f"{path.name}: two columns have one name.")


def _with_rows(path: Path, table: pa.Table) -> pa.Table:
    if table.num_rows == 0:
        raise FormatError(f"{path.name}: the table has no rows.")
    return table


def _codes(column: pa.ChunkedArray) -> _Codes:
    """Return the different values of a column, and each row's number among them."""
    encoded = pc.fill_null(column, "").combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _geocode(table: pa.Table, codes: Mapping[str, _Codes]) -> str:
    """Choose by name, else the column of equally long codes with the most different values."""
    lowered = {name.lower(): name for name in reversed(table.column_names)}
    for known in _GEO_NAMES:
        if known in lowered:
            return str(lowered[known])
    best: str | None = None
    for name, (values, _) in codes.items():
        looks_like_a_code = len({len(value) for value in values}) == 1 and len(values[0]) >= 2
        repeated = len(values) < table.num_rows
        if looks_like_a_code and repeated and (best is None or len(values) > len(codes[best][0])):
            best = name
    if best is None:
        raise ConfigError(
            "no column could say where a record belongs: name it geocode, or write the run file by hand "
            "(docs/run-file.md)."
        )
    return best


def _upper_columns(codes: Mapping[str, _Codes], geocode: str) -> tuple[str, ...]:
    """Return columns that the leaf determines, nested in each other, coarsest first."""
    leaves, leaf_of_row = codes[geocode]
    if len(leaves) == len(leaf_of_row):
        return ()
    found = [
        name
        for name, (values, of_row) in codes.items()
        if name != geocode and 1 < len(values) < len(leaves) and _determines(leaf_of_row, of_row, len(leaves))
    ]
    found.sort(key=lambda name: len(codes[name][0]))
    chain: list[str] = []
    for name in found:
        values, of_row = codes[name]
        if not chain or (
            len(values) > len(codes[chain[-1]][0]) and _determines(of_row, codes[chain[-1]][1], len(values))
        ):
            chain.append(name)
    return tuple(chain)


def _determines(fine: npt.NDArray[np.int64], coarse: npt.NDArray[np.int64], groups: int) -> bool:
    """Whether rows of one fine group always share their coarse group."""
    first = np.zeros(groups, dtype=np.int64)
    first[fine[::-1]] = coarse[::-1]
    return bool(np.all(first[fine] == coarse))


def _count(table: pa.Table, names: list[str]) -> str | None:
    """Choose by name, else the one column of whole numbers with too many values for an attribute."""
    numbers = [name for name in names if pc.all(pc.match_substring_regex(table.column(name), _WHOLE)).as_py()]
    for known in _COUNT_NAMES:
        for name in numbers:
            if name.lower() == known:
                return name
    many = [name for name in numbers if pc.count_distinct(table.column(name)).as_py() > MOST_LEVELS]
    return many[0] if len(many) == 1 else None


def _unique(codes: Mapping[str, _Codes], names: list[str]) -> bool:
    """Whether no two rows agree in all the columns."""
    keys = np.stack([codes[name][1] for name in names])
    return bool(np.unique(keys, axis=1).shape[1] == keys.shape[1])


def in_order(values: Iterable[str]) -> tuple[str, ...]:
    """Return level labels in their natural order, numbers by size; an empty field is no level."""

    def natural(value: str) -> list[tuple[int, int, str]]:
        # Numbers compare by their digits: some are longer than Python would convert.
        parts = [(part, part.lstrip("0")) for part in re.split(r"([0-9]+)", value) if part]
        return [(0, len(bare), bare) if part[0] in "0123456789" else (1, 0, part) for part, bare in parts]

    return tuple(sorted((value for value in values if value), key=natural))


def _attribute_names(columns: list[str]) -> dict[str, str]:
    """Return a usable attribute name for each column."""
    names: dict[str, str] = {}
    for column in columns:
        base = re.sub(r"[^A-Za-z0-9_-]+", "_", column).strip("_").lower() or "attribute"
        name = f"{base}_" if base in RESERVED_NAMES else base
        while name in names:
            name += "_"
        names[name] = column
    return names


def _levels(
    leaves: list[str], geocode: str, uppers: tuple[str, ...]
) -> tuple[tuple[str, int | None, str | None], ...]:
    """Guess the hierarchy: one root, then columns or code prefixes, then the leaf."""
    taken = {"all"}
    levels: list[tuple[str, int | None, str | None]] = [("all", 0, None)]
    levels += [(_geolevel_name(column, taken), None, column) for column in uppers]
    if not uppers and len({len(code) for code in leaves}) == 1:
        levels += [(_geolevel_name(f"first{width}", taken), width, None) for width in _prefixes(leaves)]
    return (*levels, (_geolevel_name(geocode, taken), None, None))


def _geolevel_name(column: str, taken: set[str]) -> str:
    """Return a column's name as one that a geolevel may have, and take it."""
    name = re.sub(r"[^\w .-]", "_", column.lower())[:60].strip(" ._-") or "unit"
    while name in taken or name in RESERVED_GEOLEVELS:
        name += "1"
    taken.add(name)
    return name


def _prefixes(leaves: list[str]) -> list[int]:
    """Return prefix widths at which the codes branch clearly: each at least doubles the groups above."""
    chosen = []
    above = 1
    for width in range(1, len(leaves[0])):
        groups = len({code[:width] for code in leaves})
        if groups >= 2 * above and 2 * groups <= len(leaves):
            chosen.append(width)
            above = groups
    return chosen[-3:]
