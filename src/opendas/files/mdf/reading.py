"""Reading microdata detail files back into an estimate."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv

from opendas.arrays import Ints, Lookup
from opendas.custody.folders import atomic_file, write_atomic
from opendas.custody.stamps import STAMPS
from opendas.errors import (
    ConfigError,
    Finding,
    FormatError,
    GeographyError,
    SchemaError,
    refuse_system_error,
)
from opendas.files.mdf.layout import Column, Layout, estimate_of_records, mdf_layout
from opendas.files.storage.parquet import open_parquet, reading
from opendas.geography.frame import Frame
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product

_BATCH = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class MdfRecords:
    """Records of a microdata folder, counted, and what was seen of their order."""

    counts: Histogram  # records by leaf of the frame and kind of record of the layout
    records: int  # number of rows
    sorted_by_leaf: bool  # within each file, leaves ascend and the kinds of a leaf ascend
    numbered: bool  # ``EPNUM``, where the layout has it, counts the records from 0 in file order


def mdf_files(folder: Path) -> tuple[Path, ...]:
    """Return the part files of a microdata folder, by name."""
    files = sorted(p for p in folder.glob("*") if p.suffix in (".parquet", ".txt") and p.name[0] not in "._")
    if not files:
        raise FormatError(f"{folder.name}: no microdata here; expected part files *.parquet or *.txt.")
    if len({path.suffix for path in files}) > 1:
        raise FormatError(f"{folder.name}: microdata in two formats; keep *.parquet or *.txt.")
    return tuple(files)


def write_state_files(
    folder: Path, product: Product, frame: Frame, to: Path, census: int = 2020
) -> list[Path]:
    """Write microdata as the privacy-protected microdata files of 2020: one comma CSV for each state.

    Parameters
    ----------
    folder : Path
        Of microdata, in either format, state by state as they are written.
    product, frame
        Of the microdata: a redistricting product.
    to : Path
        Folder; ``2020_ppmf_bystate/2020_ppmf_person_44.csv`` comes to stand in it.
    census : int
        Whose year the names have.

    Raises
    ------
    ConfigError
        If the product was not published so.
    FormatError
        If a part is damaged.
    """
    names = {"persons": "person", "units": "unit"}
    if product.layout not in names:
        raise ConfigError(f"{product.name} was not published as a CSV for each state.")
    layout = mdf_layout(product, frame)
    state = next(i for i, column in enumerate(layout.columns) if column.name == "TABBLKST")
    batches = itertools.chain.from_iterable(_batches(path, layout) for path in mdf_files(folder))
    rows = itertools.chain.from_iterable(_runs(batch, state) for batch in batches)
    written = []
    for code, parts in itertools.groupby(rows, key=operator.itemgetter(0)):
        stem = f"{census}_ppmf"
        written.append(to / f"{stem}_bystate" / f"{stem}_{names[product.layout]}_{code}.csv")
        with atomic_file(written[-1]) as file:
            file.write((",".join(column.name for column in layout.columns) + "\n").encode())
            options = pacsv.WriteOptions(include_header=False, quoting_style="none")
            for _, part in parts:
                pacsv.write_csv(part, file, options)
    return written


def write_stamps(stamps: Mapping[str, Sequence[str]], to: Path) -> None:
    """Write the stamps of products beside files whose layout has no place for them, if there are any."""
    lines = [f"{name}: {stamp}\n" for name, of in stamps.items() for stamp in of]
    if lines:
        write_atomic(to / "STAMPS", "".join(lines).encode())


def stamps_beside(folder: Path, product: str) -> tuple[str, ...]:
    """Return the stamps of a product that :func:`write_stamps` wrote beside its folder; none without a file.

    Raises `FormatError` if a line of the file is no stamp of a product.
    """
    path = folder.resolve().parent / "STAMPS"
    if not path.is_file():
        return ()
    with path.open("rb") as file:
        lines = file.read().decode("utf-8", "replace").splitlines()
    stamps = [line.partition(": ")[::2] for line in lines]
    for number, (_, stamp) in enumerate(stamps, start=1):
        if stamp not in STAMPS:
            raise FormatError(
                f"{path}, line {number}: expected a product, a colon, and one of: {', '.join(STAMPS)}."
            )
    return tuple(stamp for name, stamp in stamps if name == product)


def _runs(batch: Any, column: int) -> Iterator[tuple[str, Any]]:
    """Yield runs of rows with one value in a column, all columns as plain text or numbers."""
    table = pa.table(
        {
            name: values.cast(pa.string()) if pa.types.is_dictionary(values.type) else values
            for name, values in zip(batch.schema.names, batch.columns, strict=True)
        }
    )
    codes = np.asarray(table.column(column).to_numpy(zero_copy_only=False), dtype="U2")
    cuts = [0, *(np.flatnonzero(codes[1:] != codes[:-1]) + 1).tolist(), len(codes)]
    for start, stop in itertools.pairwise(cuts):
        if stop > start:
            yield str(codes[start]), table.slice(start, stop - start)


def read_mdf(folder: Path, product: Product, frame: Frame) -> Histogram:
    """Read the microdata of a product back into its estimate: a histogram over the leaves of `frame`."""
    return estimate_of_records(product, read_mdf_records(folder, product, frame).counts)


def read_mdf_records(folder: Path, product: Product, frame: Frame) -> MdfRecords:
    """Read and check the microdata of a product; see :func:`read_mdf`."""
    layout = mdf_layout(product, frame)
    known_leaves, known_kinds = _known_codes(layout, "leaf"), _known_codes(layout, "kind")
    keys: list[Ints] = []
    sums: list[Ints] = []
    records, ascending, numbered = 0, True, True
    for path in mdf_files(folder):
        last = -1
        with reading(path):
            for batch in _batches(path, layout):
                leaf = _leaves(batch, layout, known_leaves, path)
                kind = _kind_codes(batch, layout, known_kinds, path)
                key = leaf * layout.kinds + kind
                if len(key) == 0:
                    continue
                ascending = ascending and int(key[0]) >= last and bool(np.all(key[1:] >= key[:-1]))
                last = int(key[-1])
                numbered = numbered and _numbered(batch, layout, records)
                records += len(key)
                unique, count = _counted(key)
                keys.append(unique)
                sums.append(count)
    key = np.concatenate(keys) if keys else np.zeros(0, dtype=np.int64)
    counts = Histogram.from_entries(
        key // layout.kinds,
        key % layout.kinds,
        np.concatenate(sums) if sums else np.zeros(0, dtype=np.int64),
        shape=(len(frame), layout.kinds),
    )
    return MdfRecords(counts, records, ascending, numbered)


def _counted(key: Ints) -> tuple[Ints, Ints]:
    """Return distinct keys, ascending, and how often each comes; sorted ones are only looked through."""
    if not bool(np.all(key[1:] >= key[:-1])):
        unique, count = np.unique(key, return_counts=True)
        return unique, count.astype(np.int64)
    starts = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    return key[starts], np.diff(np.append(starts, len(key)))


def _batches(path: Path, layout: Layout) -> Iterator[Any]:
    """Yield record batches with the layout's columns, text as dictionaries."""
    text = [column.name for column in layout.columns if column.source != "number"]
    if path.suffix == ".parquet":
        file = open_parquet(path, dictionaries=text)
        _check_names(path, file.schema_arrow.names, layout)
        yield from _undamaged(path, file.iter_batches(batch_size=_BATCH))
        return
    with open(path, "rb") as stream:
        skip = 0
        while stream.readline().startswith(b"#"):
            skip += 1
    types = {name: pa.dictionary(pa.int32(), pa.string()) for name in text}
    types |= {column.name: pa.int64() for column in layout.columns if column.source == "number"}
    try:
        reader = pacsv.open_csv(
            path,
            read_options=pacsv.ReadOptions(skip_rows=skip, use_threads=False),
            parse_options=pacsv.ParseOptions(delimiter="|"),
            convert_options=pacsv.ConvertOptions(column_types=types, strings_can_be_null=False),
        )
    except pa.ArrowInvalid as error:
        raise FormatError(f"{path.name}: no '|'-separated text with a line of names.") from error
    _check_names(path, reader.schema.names, layout)
    yield from _undamaged(path, reader)


def _undamaged(path: Path, batches: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from batches
    except (pa.ArrowInvalid, OSError) as error:
        refuse_system_error(path, error)
        raise FormatError(f"{path.name}: the file is damaged or a field has the wrong type.") from error


def _check_names(path: Path, found: list[str], layout: Layout) -> None:
    if tuple(found) != layout.names:
        raise FormatError(
            f"{path.name}: columns {', '.join(found)}; layout {layout.name!r} has {', '.join(layout.names)}."
        )


def _decode(batch: Any, column: Column, position: int, path: Path) -> Ints:
    """Return positions in the column's values; -1 where a value is none of them."""
    array = batch.column(position)
    if array.null_count:
        raise FormatError(f"{path.name}: empty fields.", [Finding(path.name, None, column.name, "no value")])
    if not pa.types.is_dictionary(array.type):
        array = array.cast(pa.string()).dictionary_encode()
    code = {value: i for i, value in enumerate(column.values)}
    lookup = np.array([code.get(value, -1) for value in array.dictionary.to_pylist()], dtype=np.int64)
    indices = array.indices.to_numpy(zero_copy_only=False)
    return lookup[indices] if len(lookup) else np.zeros(len(indices), dtype=np.int64)


def _sources(layout: Layout, source: str) -> list[tuple[int, Column]]:
    return [(i, column) for i, column in enumerate(layout.columns) if column.source == source]


def _mixed(columns: list[tuple[int, Column]], indices: Sequence[npt.NDArray[np.integer]]) -> Ints:
    """Combine several codes to one number, the first column slowest."""
    key = np.zeros(len(indices[0]), dtype=np.int64)
    for (_, column), index in zip(columns, indices, strict=True):
        key = key * len(column.values) + index
    return key


def _known_codes(layout: Layout, source: str) -> Lookup:
    """Return the codes of all leaves, or of all kinds, each as one number."""
    columns = _sources(layout, source)
    return Lookup.of(_mixed(columns, [column.index for _, column in columns]))


def _legal(batch: Any, columns: list[tuple[int, Column]], path: Path) -> list[Ints]:
    indices = []
    for position, column in columns:
        index = _decode(batch, column, position, path)
        if bool(np.any(index < 0)):
            error = GeographyError if column.source == "leaf" else SchemaError
            rule = "a code of the frame" if column.source == "leaf" else "a code of the layout"
            raise error(
                "a code outside its list.", [Finding(path.name, None, column.name, f"expected {rule}")]
            )
        indices.append(index)
    return indices


def _leaves(batch: Any, layout: Layout, leaves: Lookup, path: Path) -> Ints:
    _legal(batch, _sources(layout, "constant"), path)
    columns = _sources(layout, "leaf")
    found = leaves.positions(_mixed(columns, _legal(batch, columns, path)))
    if bool(np.any(found < 0)):
        finding = Finding(path.name, None, columns[-1][1].name, "expected a leaf of the frame")
        raise GeographyError("a record lies outside the frame.", [finding])
    return found


def _kind_codes(batch: Any, layout: Layout, kinds: Lookup, path: Path) -> Ints:
    columns = _sources(layout, "kind")
    found = kinds.positions(_mixed(columns, _legal(batch, columns, path)))
    if bool(np.any(found < 0)):
        names = ", ".join(column.name for _, column in columns)
        finding = Finding(path.name, None, names, "expected a kind of the layout")
        raise SchemaError("codes that do not go together.", [finding])
    return found


def _numbered(batch: Any, layout: Layout, first: int) -> bool:
    for position, _ in _sources(layout, "number"):
        numbers = batch.column(position)
        if numbers.null_count:
            return False
        found = numbers.to_numpy(zero_copy_only=False)
        if not bool(np.array_equal(found, np.arange(first, first + len(found)))):
            return False
    return True
