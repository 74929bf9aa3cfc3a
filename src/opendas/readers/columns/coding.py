"""From the values in a column to codes, whole numbers and geocodes.

Every function takes one Arrow column and gives one array. Where a value is not usable, the function tells the
log and gives -1 or the empty code.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from opendas.arrays import Bools, Codes, Floats, Ints
from opendas.errors import FormatError, GeographyError, SchemaError
from opendas.readers.columns.csv_parquet import Batch
from opendas.readers.columns.findings import FindingLog
from opendas.schema.attributes import Attribute

MAX_COUNT = 1 << 62
_MOST_TEXT = 1 << 30
_AS_BYTES = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}
_DECIMAL = re.compile(r"[+-]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})([eE][+-]?[0-9]{1,2})?")
_SMALL = 1 << 12  # whole numbers below are looked up in a table


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Geocodes:
    """The geocode of every row, as distinct codes where the file has them so."""

    values: Codes  # (k,): empty where a value is not usable
    # (rows,): where each row's code stands in `values`; None if they are one for each row.
    index: npt.NDArray[np.integer] | None = None

    def rows(self) -> Codes:
        """Return the geocode of each row, (rows,)."""
        return self.values if self.index is None else np.asarray(self.values[self.index])

    def used(self) -> Codes:
        """Return the distinct geocodes of the rows, ascending; a file may list codes that no row has."""
        return np.unique(self.values if self.index is None else self.values[np.unique(self.index)])

    def spread(self, found: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return what was found for every one of `values`, for each row."""
        return found if self.index is None else np.asarray(found[self.index])


def attribute_keys(attribute: Attribute) -> dict[str, int]:
    """Return the code of every text that may stand for a level of `attribute`.

    Level labels, and 0-based codes unless a label is a number itself: of ages from 50, 3 is none and not
    the fourth. "1.0" is another way to write "1", in labels as in values.
    """
    labels = {label: code for code, label in enumerate(attribute.levels)}
    keys = {without_zeros(label): code for label, code in labels.items()} | labels
    if not takes_codes(attribute.levels):
        return keys
    return {str(code): code for code in range(len(attribute))} | keys


def takes_codes(levels: Sequence[str]) -> bool:
    """Whether data may hold 0-based codes in place of these labels: none of them is a number."""
    return not any(map(_DECIMAL.fullmatch, levels))


_ZEROS = re.compile(r"([0-9]+)\.0+")


def without_zeros(text: str) -> str:
    """Return a text without the decimal zeros of a whole number."""
    found = _ZEROS.fullmatch(text)
    return text if found is None else found[1]


def _distinct(column: Any) -> tuple[Ints, list[Any]]:
    """Return (position of each row, distinct values); nulls have their own position."""
    array = column if pa.types.is_dictionary(column.type) else column.dictionary_encode("encode")
    words = array.dictionary
    if words.type in _AS_BYTES:
        words = words.cast(_AS_BYTES[words.type])  # a file may say of any bytes that they are text
    values = words.to_pylist()
    if array.indices.null_count == 0:
        return array.indices.to_numpy().astype(np.int64), values
    indices = pc.fill_null(array.indices, len(values)).to_numpy().astype(np.int64)
    return indices, [*values, None]


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return None
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else None
    return None if value is None else str(value)


def is_repeated(values: npt.NDArray[Any]) -> Bools:
    """Return where an earlier row has the same value, bool (rows,)."""
    repeated = np.ones(len(values), dtype=np.bool_)
    repeated[np.unique(values, return_index=True)[1]] = False
    return repeated


def distinct_texts(batch: Batch, name: str) -> tuple[Ints, list[str]]:
    """Return (position of each row, distinct texts of a column); what is null or no text is empty."""
    index, values = _distinct(batch.columns[name])
    return index, [_text(value) or "" for value in values] or [""]


def text_of(batch: Batch, name: str, log: FindingLog) -> Codes:
    """Return a column as text, UTF-8; null is the empty text, and what is no text is refused."""
    index, values = _distinct(batch.columns[name])
    texts = [_text(value) for value in values]
    pairs = zip(texts, values, strict=True)
    lost = [text is None and value is not None and value == value for text, value in pairs]  # NaN is a null
    rule = "expected text in UTF-8, or a whole number"
    batch.report(np.array(lost or [False])[index], name, rule, log, FormatError)
    return np.array([(text or "").encode() for text in texts] or [b""], dtype=np.bytes_)[index]


def codes_or_other(batch: Batch, name: str, labels: Sequence[str], other: str) -> Ints:
    """Return the code of every row's label; that of `other` where the label is none of `labels`.

    Nothing is refused and nothing told: what counts as other is a function of each row by itself.
    """
    index, texts = distinct_texts(batch, name)
    exact = {label: code for code, label in enumerate(labels)}
    known = {without_zeros(label): code for label, code in exact.items()} | exact
    codes = [known.get(text, known.get(without_zeros(text), exact[other])) for text in texts]
    return np.array(codes, dtype=np.int64)[index]


def binned(
    batch: Batch, name: str, edges: Floats, levels: Sequence[str], other: str | None, log: FindingLog
) -> Ints:
    """Return the code of the level that every row's number lies in, -1 where there is none.

    - `edges` (k,): where each level but `other` begins, ascending; the last level has no end.
    - `levels`: all levels.
    - `other`: the level of what is no number, or lies below the first edge; None where that is refused.
    """
    index, values = _distinct(batch.columns[name])
    numbers = np.array([_number(value) for value in values] or [np.nan])
    codes = np.array([code for code, label in enumerate(levels) if label != other], dtype=np.int64)
    inside = numbers >= edges[0]
    place = np.searchsorted(edges, np.where(inside, numbers, edges[0]), side="right") - 1
    outside = -1 if other is None else levels.index(other)
    found: Ints = np.where(inside, codes[place], outside)[index]
    batch.report(found < 0, name, f"expected a number, {edges[0]:g} or more", log, SchemaError)
    return found


def _number(value: Any) -> float:
    """Return a finite number, or NaN."""
    if isinstance(value, bool) or value is None:
        return math.nan
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    if not _DECIMAL.fullmatch(text.strip()):
        return math.nan
    return float(text)


def unit_ids(batch: Batch, name: str, log: FindingLog) -> Codes:
    """Return a column of identifiers of units as text, (rows,); empty where a value is not usable.

    Whole numbers are their digits, so that the same unit has the same identifier in files of both kinds.
    """
    column = batch.columns[name]
    kind = column.type
    if pa.types.is_integer(kind) and column.null_count == 0:
        return np.asarray(column.to_numpy(zero_copy_only=False).astype(np.bytes_))
    if kind in _AS_BYTES and column.null_count == 0:
        values = column.cast(pa.large_binary()).to_numpy(zero_copy_only=False)
        texts = np.array(values, dtype=np.bytes_) if len(values) else np.empty(0, np.bytes_)
    else:
        texts = text_of(batch, name, FindingLog())  # what is no text is told below
    usable = (np.strings.str_len(texts) > 0) & (np.strings.strip(texts) == texts)
    rule = "expected an identifier in every record, without spaces around it"
    batch.report(~usable, name, rule, log, FormatError)
    return np.where(usable, texts, b"")


def codes_of(
    batch: Batch,
    name: str,
    keys: Mapping[str, int],
    rule: str,
    log: FindingLog,
    asked: Bools | None = None,
) -> Ints:
    """Return the code of every row, -1 where the value is outside `keys`.

    `asked` (rows,): rows that have this answer; others must have none. By default all have it.
    """
    column = batch.columns[name]
    codes = _small_numbers(column, keys)
    if codes is None:
        index, values = _distinct(column)
        texts = [_text(value) or "" for value in values]
        found = [keys.get(text, keys.get(without_zeros(text), -1)) for text in texts]
        codes = np.array(found or [-1], dtype=np.int64)[index]
    if asked is None:
        batch.report(codes < 0, name, rule, log, SchemaError)
    else:
        batch.report(asked & (codes < 0), name, rule, log, SchemaError)
        rule = "expected no value: by its other columns, this record does not have this attribute"
        batch.report(~asked & (codes >= 0), name, rule, log, SchemaError)
    return np.asarray(codes)


def _small_numbers(column: Any, keys: Mapping[str, int]) -> Ints | None:
    """Return the codes of whole numbers that are all small, by a table, or None where they are not."""
    if not pa.types.is_integer(column.type) or column.null_count or len(column) == 0:
        return None
    numbers = column.to_numpy()
    if numbers.min() < 0 or numbers.max() >= _SMALL:
        return None
    table = [keys.get(str(number), -1) for number in range(int(numbers.max()) + 1)]
    return np.asarray(np.array(table, dtype=np.int64)[numbers])


def whole_numbers(batch: Batch, name: str, log: FindingLog, asked: Bools | None = None) -> Ints:
    """Return a column of counts, -1 where a value is no whole number from 0 to 2**62 - 1.

    `asked` (rows,): rows of which it is told; by default all.
    """
    column = batch.columns[name]
    kind = column.type
    if pa.types.is_integer(kind) and column.null_count == 0 and not pa.types.is_uint64(kind):
        numbers = column.cast(pa.int64()).to_numpy()
        usable = (numbers >= 0) & (numbers < MAX_COUNT)
    else:
        index, values = _distinct(column)
        parsed = np.array([_count(value) for value in values] or [-1], dtype=np.int64)
        numbers = parsed[index]
        usable = numbers >= 0
    rule = "expected a whole number, not negative, below 2**62"
    batch.report(~usable if asked is None else asked & ~usable, name, rule, log, FormatError)
    return np.where(usable, numbers, -1)


def _count(value: Any) -> int:
    """Return a count, or -1."""
    if isinstance(value, bool):
        return -1
    text = _text(value)
    if text is None or not text.isascii() or len(text) > 40:
        return -1
    whole, point, fraction = text.strip().partition(".")
    if not whole.isdigit() or (point and fraction.strip("0")):
        return -1
    return int(whole) if int(whole) < MAX_COUNT else -1


def _fixed_width(column: Any, width: int | None) -> Codes | None:
    """Return text of one width in visible ASCII as it lies in memory, or None where it is anything else."""
    if column.type in (pa.large_binary(), pa.large_string()) and column.nbytes < _MOST_TEXT:
        column = column.cast(pa.binary() if column.type == pa.large_binary() else pa.string())
    if len(column) == 0 or column.null_count or column.type not in (pa.binary(), pa.string()):
        return None
    offsets = np.frombuffer(column.buffers()[1], dtype=np.int32)[
        column.offset : column.offset + len(column) + 1
    ]
    size = int(offsets[1] - offsets[0])
    if size == 0 or width not in (None, size) or not np.all(np.diff(offsets) == size):
        return None
    raw = np.frombuffer(column.buffers()[2], dtype=np.uint8)[int(offsets[0]) : int(offsets[-1])]
    if raw.min() <= ord(" ") or raw.max() >= 127:
        return None
    return raw.copy().view(f"S{size}")


def geocodes_of(batch: Batch, name: str, width: int | None, log: FindingLog) -> Codes:
    """Return a column of geocodes, empty where a value is not usable.

    `width`: expected number of characters. Whole numbers of Parquet files are padded with zeros to it; text
    is not, since a lost leading zero is an error of the file.
    """
    return coded_geocodes(batch, name, width, log).rows()


def is_geocode(text: str) -> bool:
    """Whether a text can be a geocode."""
    return text.isascii() and text.isprintable() and text != "" and text == text.strip()


def coded_geocodes(batch: Batch, name: str, width: int | None, log: FindingLog) -> Geocodes:
    """Return a column of geocodes as :func:`geocodes_of` does, but each only as often as the file has it."""
    column = batch.columns[name]
    if pa.types.is_dictionary(column.type) and column.null_count == 0:
        words = _fixed_width(column.dictionary, width)
        if words is not None:
            return Geocodes(words, column.indices.to_numpy())
    fast = _fixed_width(column, width)
    if fast is not None:
        return Geocodes(fast)
    index, values = _distinct(column)
    pad = width or 0
    texts = [
        str(value).zfill(pad)
        if isinstance(value, int) and not isinstance(value, bool)
        else (_text(value) or "")
        for value in values
    ]
    usable = np.array([is_geocode(text) for text in texts] or [True])
    sized = np.array([width is None or len(text) == width for text in texts] or [True])
    rule = "expected a geocode: printable ASCII characters, without spaces around them"
    batch.report(~usable[index], name, rule, log, GeographyError)
    rule = f"expected a geocode of {width} characters"
    batch.report((usable & ~sized)[index], name, rule, log, GeographyError)
    codes = [text.encode() if good else b"" for text, good in zip(texts, usable & sized, strict=False)]
    return Geocodes(np.array(codes or [b""], dtype=np.bytes_), index)


BLOCK_COLUMNS = (("TABBLKST", 2), ("TABBLKCOU", 3), ("TABTRACTCE", 6), ("TABBLK", 4))
"""Official columns that make a block's geocode, with their widths."""

GROUP_COLUMN = "TABBLKGRPCE"


def block_geocodes_of(
    batch: Batch, names: Mapping[str, str], log: FindingLog, *, digits: bool
) -> tuple[Codes, Bools]:
    """Return the 15-character geocode of each row's census block, empty where a part of it is not usable.

    - `names`, official column name -> the file's: where they differ.
    - `digits`: record what is no digit.
    - Returns (rows,), (rows,): geocodes; and where the block group is not that of the block.
    """
    parts = []
    wrong = np.zeros(batch.rows, dtype=np.bool_)
    for official, width in BLOCK_COLUMNS:
        name = names.get(official, official)
        part = geocodes_of(batch, name, width, log).astype(f"S{width}")
        if digits:
            letters = (part != b"") & ~np.strings.isdigit(part)
            batch.report(letters, name, f"expected {width} digits", log, GeographyError)
            wrong |= letters
        wrong |= part == b""
        parts.append(part)
    codes = np.concatenate([part.view(np.uint8).reshape(batch.rows, -1) for part in parts], axis=1)
    name = names.get(GROUP_COLUMN, GROUP_COLUMN)
    group = geocodes_of(batch, name, 1, log)
    apart = ~wrong & (group != b"") & (group != parts[-1].astype("S1"))
    rule = "expected the first digit of the block: a block is a child of its block group"
    batch.report(apart, name, rule, log, GeographyError)
    return np.where(wrong, b"", codes.view("S15").ravel()), apart | (group == b"")
