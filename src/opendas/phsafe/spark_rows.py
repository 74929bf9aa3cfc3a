"""The three files on Spark: found and numbered by the driver, and parsed into rows of words by executors.

The lines are taken by the same Arrow parser with the same options as in one process, so a row means the same
here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from opendas.engines.local import keep_modules
from opendas.engines.spark.partitions import Batches, VersionsDiffer
from opendas.errors import Finding
from opendas.phsafe.inputs.findings import InputFiles, Source
from opendas.phsafe.inputs.linking import bucket_of
from opendas.phsafe.inputs.read_csv import KINDS, check_header, parse_rows
from opendas.phsafe.inputs.records import Inputs, from_words, to_words
from opendas.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BROKEN: Final = len(KINDS)
"""Added to the kind of a row, the number of its file in ``KINDS``, that does not have the fields of the
header; its word is how many it has."""

ROW_TYPES: Final = "kind tinyint, bucket smallint, mafid long, first long, second long, line long"
ROW_SCHEMA: Final = pa.schema(
    [
        ("kind", pa.int8()),
        ("bucket", pa.int16()),
        ("mafid", pa.int64()),
        ("first", pa.int64()),
        ("second", pa.int64()),
        ("line", pa.int64()),
    ]
)

Block = tuple[int, int]
"""A stretch of a file that one task reads: digest of the file's path, first byte."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TextFile:
    """One of the three files, or a folder of parts with a header each."""

    # Columns value, file, start: a line, a digest of its file's path, and the first byte of its block. None
    # where the file is missing.
    text: DataFrame | None
    source: Source  # names and last lines of the parts
    before: Mapping[Block, int]  # lines before each block, of all parts numbered through
    findings: tuple[Finding, ...] = ()  # what is wrong with the headers


def find_files(session: SparkSession, data: str) -> list[TextFile]:
    """Find the files, count the lines of their blocks, and look at their headers: one pass over the text."""
    from pyspark.sql import functions as sql

    address = (data if "://" in data else Path(data).resolve().as_uri()).rstrip("/")
    texts = [_text(session, f"{address}/{kind.name}") for kind in KINDS]
    found = [text.withColumn("kind", sql.lit(kind)) for kind, text in enumerate(texts) if text is not None]
    blocks: list[Any] = []
    if found:
        together: DataFrame = reduce(lambda one, other: one.unionAll(other), found)
        blocks = (
            together.withColumn("number", sql.monotonically_increasing_id())
            .groupBy("kind", "path", "file", "start")
            .agg(sql.count("value").alias("lines"), sql.min_by("value", "number").alias("head"))
            .collect()
        )
    return [
        _number_lines(kind, text, [block for block in blocks if block.kind == kind])
        for kind, text in enumerate(texts)
    ]


def _text(session: SparkSession, address: str) -> DataFrame | None:
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as sql

    try:
        lines = session.read.text(address)
    except AnalysisException as error:
        if "PATH_NOT_FOUND" not in str(error):
            raise
        return None
    # The parser passes over empty lines, and so does the numbering.
    return lines.where(sql.length("value") > 0).select(
        "value",
        sql.xxhash64("_metadata.file_path").alias("file"),
        sql.col("_metadata.file_block_start").alias("start"),
        sql.col("_metadata.file_path").alias("path"),
    )


def _number_lines(kind: int, text: DataFrame | None, blocks: Sequence[Any]) -> TextFile:
    name, columns = KINDS[kind].name, KINDS[kind].columns
    if text is None:
        return TextFile(None, Source((name,)), {}, (Finding(name, None, None, "is missing"),))
    before: dict[Block, int] = {}
    names: list[str] = []
    ends: list[int] = []
    findings = [] if blocks else check_header(name, "", columns)
    lines = 0
    for block in sorted(blocks, key=lambda block: (block.path, block.start)):
        if block.start == 0:
            part = unquote(block.path.rsplit("/", 1)[1])
            names.append(name if part == name else f"{name}/{part}")
            if lines:
                ends.append(lines)
            findings += check_header(names[-1], block["head"], columns)
        before[block.file, block.start] = lines
        lines += block.lines
    source = Source(tuple(names) or (name,), tuple(ends))
    return TextFile(text.drop("path"), source, before, tuple(findings))


# On executors -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadLines:
    """Turns the text of one of the three files (which may be a folder of parts) into rows of words."""

    kind: int  # position in :data:`KINDS`
    # For each block, the number of lines before it, all files of the folder numbered through.
    before: Mapping[Block, int]
    version: str = __version__  # of the driver

    def __call__(self, batches: Batches) -> Batches:
        """Parse text (columns: value, file, start) into rows of words."""
        if self.version != __version__:
            raise VersionsDiffer
        at: dict[Block, int] = {}
        for batch in batches:
            for block, lines in _runs(batch):
                done = at.get(block, 0)
                at[block] = done + len(lines)
                first = self.before[block] + done + 1
                if block[1] == 0 and done == 0:  # the header
                    lines, first = lines[1:], first + 1
                if len(lines):
                    yield from _parse(self.kind, lines, first)
        keep_modules()


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[Block, pa.Array]]:
    """Yield the stretches of a batch that are of one block; lines without anything are no lines."""
    text, file, start = (batch.column(name) for name in ("value", "file", "start"))
    files, starts = file.to_numpy(), start.to_numpy()
    cuts = np.flatnonzero((files[1:] != files[:-1]) | (starts[1:] != starts[:-1])) + 1
    for low, high in zip([0, *cuts.tolist()], [*cuts.tolist(), len(files)], strict=True):
        if high > low:
            yield (int(files[low]), int(starts[low])), text.slice(low, high - low)


def _parse(kind: int, lines: pa.Array, first: int) -> Iterator[pa.RecordBatch]:
    """Parse consecutive lines, the first of which has the number `first`."""
    whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines.cast(pa.binary()))
    text = pc.binary_join(whole, b"\n")[0].as_buffer()
    rows, broken = parse_rows(text, KINDS[kind], first)
    yield _batch(kind, rows.mafid, to_words(rows), rows.line)
    if broken:
        numbers = np.array(list(broken), dtype=np.int64)
        fields = np.array(list(broken.values()), dtype=np.int64).reshape(-1, 1)
        yield _batch(kind + BROKEN, numbers, fields, numbers)


def _batch(
    kind: int, mafid: npt.NDArray[np.int64], words: npt.NDArray[np.int64], line: npt.NDArray[np.int64]
) -> pa.RecordBatch:
    second = words[:, 1] if words.shape[1] > 1 else np.zeros(len(mafid), dtype=np.int64)
    columns = [
        pa.array(np.full(len(mafid), kind, dtype=np.int8)),
        pa.array(bucket_of(mafid).astype(np.int16)),
        pa.array(mafid),
        pa.array(np.ascontiguousarray(words[:, 0])),
        pa.array(np.ascontiguousarray(second)),
        pa.array(line),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)


def gather(batches: Batches, states: npt.NDArray[np.bool_], files: InputFiles) -> tuple[Inputs, pa.Table]:
    """Return the rows of one partition, restricted to the states, and those that are broken.

    - `batches`, RecordBatch: with :data:`ROW_SCHEMA`; whole buckets of households.
    - `states` (128,): which state codes are in the filter.
    """
    table = pa.Table.from_batches(batches, schema=ROW_SCHEMA)
    kind = table.column("kind").to_numpy()
    persons, units, places = (_rows_of(table, kind, number) for number in range(len(KINDS)))
    places = places.take((places.state >= 0) & states[places.state])
    known = np.unique(places.mafid)
    inputs = Inputs(
        persons.take(np.isin(persons.mafid, known)), units.take(np.isin(units.mafid, known)), places, files
    )
    return inputs, table.filter(pa.array(kind >= BROKEN))


def _rows_of(table: pa.Table, kind: npt.NDArray[np.int8], number: int) -> Any:
    part = table.filter(pa.array(kind == number))
    mafid, first, second, line = (
        part.column(name).to_numpy() for name in ("mafid", "first", "second", "line")
    )
    return from_words(KINDS[number].rows, mafid, np.column_stack([first, second]), line)
