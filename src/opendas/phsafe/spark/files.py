"""The three files as Spark sees them: their text, their headers, and how their lines are numbered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from opendas.errors import Finding
from opendas.phsafe.inputs.findings import Source
from opendas.phsafe.inputs.read_csv import check_header
from opendas.phsafe.spark.rows import KINDS, Block

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TextFile", "find_files"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TextFile:
    """One of the three files, or a folder of parts with a header each.

    Parameters
    ----------
    text : DataFrame or None
        Columns value, file, start: a line, a digest of its file's path, and the first byte of its block.
        None where the file is missing.
    source : Source
        Names and last lines of the parts.
    before : mapping of (int, int) to int
        Lines before each block, of all parts numbered through.
    findings : tuple of Finding
        What is wrong with the headers.
    """

    text: DataFrame | None
    source: Source
    before: Mapping[Block, int]
    findings: tuple[Finding, ...] = ()


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
