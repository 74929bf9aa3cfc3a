"""Records of the Census Edited File of 2020: their layouts, read in chunks as matrices of characters.

Sources of the layouts: the record layouts and recodes in the public releases of the production code (the
redistricting release and the readers of the S-DHC release), whose facts these are.

Axes: ``r`` records of a chunk.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Ints
from opendas.errors import DataError, EnvironmentFailure, FormatError, SchemaError
from opendas.readers.columns.findings import FindingLog
from opendas.schema.dhc_persons import GQ_CODES as DETAILED


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """A fixed-width record."""

    what: str  # how messages call it
    fields: Mapping[str, tuple[int, int]]  # name -> (start, end): 0-based, the end excluded; without gaps

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

QUARTERS: Mapping[int, int] = MappingProxyType(
    dict(
        sorted(
            {int(code): number for number, code in enumerate(DETAILED, start=1) if code != "997"}.items()
            | dict.fromkeys((702, 704, 706, 903, 904), len(DETAILED)).items()
        )
    )
)
"""Detailed type of group quarters, 1 to 24, of each code of QGQTYP."""

GQ_CODES: Mapping[int, int] = MappingProxyType({code: min(code // 100, 7) for code in QUARTERS})
"""Group-quarters type 1 to 7 of each code of QGQTYP."""

_BAD, _BLANK = -1, -2
_CHUNK_RECORDS = 1 << 16
_MOST_DIGITS = 18  # so that every number fits 64 bits
_SPACE, _ZERO = ord(" "), ord("0")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Records:
    """Consecutive records of one file. Confidential."""

    where: str  # file name, as findings name it
    first: int  # line of the first record, 1-based
    letters: npt.NDArray[np.uint8]  # (r, record width)
    layout: RecordLayout

    def __len__(self) -> int:
        return len(self.letters)

    def numbers(self, field: str, low: int, high: int, log: FindingLog, *, blank: int | None = None) -> Ints:
        """Return a field of whole numbers, which may have blanks on either side and zeros in front.

        - `low`, `high`: numbers that the field may hold, both included; not negative, below 10**18.
        - `blank`: what a field of blanks stands for; by default it is an error.
        - Returns (r,): -1 where the value is not usable, after the log was told.
        """
        value = self._parsed(field)
        wrong = (value < low) | (value > high)
        rule = f"expected a number from {low} to {high}"
        if blank is not None:
            value, wrong = np.where(value == _BLANK, blank, value), wrong & (value != _BLANK)
            rule += ", or blanks"
        self.report(wrong, field, rule, log)
        return np.where(wrong, _BAD, value)

    def codes(
        self, field: str, keys: Mapping[int, int], rule: str, log: FindingLog, *, blank: int | None = None
    ) -> Ints:
        """Return the code of every value of a field, int64 (r,); -1 where it is not among `keys`.

        - `keys`, value -> code.
        - `rule`: what was expected.
        - `blank`: code of a field of blanks; by default it is an error.
        """
        table = np.full(max(keys) + 2, _BAD, dtype=np.int64)
        table[list(keys)] = list(keys.values())
        value = self._parsed(field)
        codes = table[np.where((value < 0) | (value > max(keys)), len(table) - 1, value)]
        if blank is not None:
            codes = np.where(value == _BLANK, blank, codes)
        self.report(codes < 0, field, rule, log)
        return codes

    def report(
        self,
        wrong: Bools,
        field: str,
        rule: str,
        log: FindingLog,
        kind: type[DataError] = SchemaError,
    ) -> None:
        """Record every record where `wrong` is true."""
        log.add_where(kind, self.where, wrong, field, rule, first=self.first)

    def _parsed(self, field: str) -> Ints:
        start, end = self.layout.fields[field]
        value = np.zeros(len(self), dtype=np.int64)
        significant = np.zeros(len(self), dtype=np.int8)
        seen, inside = np.zeros((2, len(self)), dtype=bool)
        usable = np.ones(len(self), dtype=bool)
        for column in np.ascontiguousarray(self.letters[:, start:end].T):
            digit = column - np.uint8(_ZERO)  # wraps around below "0"
            is_digit = digit < 10
            usable &= is_digit | (column == _SPACE)
            usable &= ~is_digit | inside | ~seen  # digits stand together
            inside = is_digit
            seen |= is_digit
            value = np.where(is_digit, value * 10 + digit, value)
            significant += is_digit & (value > 0)
        usable &= significant <= _MOST_DIGITS
        return np.where(usable, np.where(seen, value, _BLANK), _BAD)


def read_records(path: Path, layout: RecordLayout, log: FindingLog) -> Iterator[Records]:
    """Yield the records of a file, a chunk at a time; the file may be compressed with gzip.

    Lines end with a line feed, or with carriage return and line feed; the last end may be missing. Lines of
    another width are recorded in `log`, and nothing from the chunk of the first one on is given.
    """
    try:
        with _opened(path) as file:
            yield from _chunks(file, path.name, layout, log)
    except (zlib.error, EOFError, gzip.BadGzipFile):
        log.add(FormatError, path.name, None, None, "expected a whole gzip file; it is damaged or cut off")
        raise FormatError(f"{path.name} cannot be read.", log.findings) from None
    except OSError as error:
        raise EnvironmentFailure(f"{path}: {error.strerror or 'cannot be read'}.") from None


def _opened(path: Path) -> BinaryIO:
    compressed = path.name.lower().endswith(".gz")
    return cast(BinaryIO, gzip.open(path, "rb")) if compressed else open(path, "rb")


def _chunks(file: BinaryIO, where: str, layout: RecordLayout, log: FindingLog) -> Iterator[Records]:
    width = layout.width
    data = file.readline(width + 3)
    end = b"\r\n" if data.endswith(b"\r\n") else b"\n"
    stride = width + len(end)
    data += file.read(_CHUNK_RECORDS * stride - len(data))
    first = 1
    while data:
        if len(data) % stride == width:  # only the last line may do without an end
            data += end
        letters = np.frombuffer(data, dtype=np.uint8)
        if not _is_regular(letters, stride, end):
            _report_wrong_lines(file, where, layout, end, log)
            return
        matrix = letters.reshape(-1, stride)
        yield Records(where, first, matrix[:, :width], layout)
        first += len(matrix)
        data = file.read(_CHUNK_RECORDS * stride)


def _is_regular(letters: npt.NDArray[np.uint8], stride: int, end: bytes) -> bool:
    """Return whether all lines have the same width and end."""
    if len(letters) % stride:
        return False
    matrix = letters.reshape(-1, stride)
    ends = np.all(matrix[:, stride - len(end) :] == np.frombuffer(end, dtype=np.uint8))
    breaks = (letters == ord("\n")) | (letters == ord("\r"))
    return bool(ends) and int(np.count_nonzero(breaks)) == len(matrix) * len(end)


def _report_wrong_lines(
    file: BinaryIO, where: str, layout: RecordLayout, end: bytes, log: FindingLog
) -> None:
    """Record every line that is not a record of the layout, slowly."""
    file.seek(0)
    line, pending = 1, 0
    wrong = []
    stride = layout.width + len(end)
    while piece := file.readline(1 << 20):
        pending += len(piece)
        if not piece.endswith(b"\n") and len(piece) == 1 << 20:
            continue
        whole = pending == stride and piece.endswith(end) and b"\r" not in piece[: -len(end)]
        if not whole and (piece.endswith(b"\n") or pending != layout.width):
            wrong.append(line)
        line, pending = line + 1, 0
    rule = (
        f"expected a {layout.what} record of {layout.width} characters, with the same line ending as line 1"
    )
    log.add_rows(FormatError, where, wrong or [line], None, rule)
