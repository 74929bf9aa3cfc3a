"""Households split over Spark: read once, shuffled once by a hash of their key, then counted in place.

Records cross the network and executor disks once, as the shuffle that brings a household together, and stay
cached there until the run ends. The run key never leaves this process; derived keys of selections travel with
the counting function, as keys of other products do (:mod:`opendas.engines.spark.partitions`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from opendas.arrays import Ints
from opendas.engines.local import default_workers
from opendas.engines.spark.partitions import (
    ANSWER_TYPES,
    Batches,
    EachPartition,
    Work,
    answers,
    cache_by,
    unpack,
)
from opendas.engines.spark.session import open_session, spark_failures
from opendas.errors import ConfigError, Finding, FormatError, PrivacyError
from opendas.phsafe.config import Config, Plan
from opendas.phsafe.counting import count_tables, exact_cubes
from opendas.phsafe.inputs.findings import MOST_LINES, InputFiles, Source
from opendas.phsafe.inputs.linking import BUCKETS, Linked, bucket_digests, canonical_bytes, link
from opendas.phsafe.inputs.read_csv import KINDS
from opendas.phsafe.inputs.records import Inputs
from opendas.phsafe.spark_rows import BROKEN, ROW_TYPES, ReadLines, TextFile, find_files, gather
from opendas.phsafe.tables import Table
from opendas.phsafe.validate import Validation, validate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Tell = Callable[[str, int, int], None]

_NOT_READ = "does not hold the three files of the reader csv"
_PARTITIONS_A_BLOCK = 2
_SUMMED_TOGETHER = 64


@contextmanager
def open_on_spark(
    data: Path | str, config: Config, master: str | None = None, tell: Tell | None = None
) -> Iterator[SparkHouseholds]:
    """Deal out the data of a configuration.

    - `data`: folder with the three files, each a file or a folder of parts with a header each: a local path,
      or the URL of any file system that Spark reads.
    - `tell` (stage, done, total): progress.
    """
    if config.reader != "csv":
        raise ConfigError("engine spark reads the layout csv only; leave out --engine for the reader cef.")
    with open_session(master, name="opendas phsafe", threads=default_workers()) as session:
        households = SparkHouseholds(session, str(data), config, tell)
        try:
            yield households
        finally:
            households.close()


class SparkHouseholds:
    """The households of a run on Spark; see :class:`opendas.phsafe.run.LocalHouseholds`.

    `tell` (stage, done, total).
    """

    def __init__(self, session: SparkSession, data: str, config: Config, tell: Tell | None = None) -> None:
        self._data, self._config, self._tell = data, config, tell
        self._digests: dict[int, bytes] | None = None
        with spark_failures():
            files = find_files(session, data)
        findings = [finding for file in files for finding in file.findings]
        if findings:
            raise FormatError(f"{data} {_NOT_READ}.", findings)
        self._sources = [file.source for file in files]
        self._files = InputFiles(*self._sources)
        self._report("reading", 1, 2)
        blocks = sum(len(file.before) for file in files)
        parallel = session.sparkContext.defaultParallelism
        self._partitions = min(BUCKETS, max(parallel, _PARTITIONS_A_BLOCK * blocks))
        with spark_failures():
            self._rows = self._deal(files)

    def _deal(self, files: Sequence[TextFile]) -> DataFrame:
        """Return the rows of all files, whole buckets of households in each partition."""
        rows = [
            file.text.mapInArrow(ReadLines(kind, dict(file.before)), ROW_TYPES)
            for kind, file in enumerate(files)
            if file.text is not None
        ]
        together: DataFrame = reduce(lambda one, other: one.unionAll(other), rows)
        return cache_by(together, self._partitions, "bucket")

    def close(self) -> None:
        """Let the executors forget the rows."""
        self._rows.unpersist()

    def validate(self, *, every_table: bool = False) -> Validation:
        """Check everything, and digest it."""
        with spark_failures():
            parts: list[Checked] = list(
                answers(self._run(CheckPart(self._config, self._files, every_table))).values()
            )
        self._digests = {bucket: digest for part in parts for bucket, digest in part.digests.items()}
        self._report("reading", 2, 2)
        broken, errors, warnings = (
            merge_findings((getattr(part, name) for part in parts), self._sources)
            for name in ("broken", "errors", "warnings")
        )
        if broken:
            findings = [*broken, *errors]
            raise FormatError(
                f"{self._data} {_NOT_READ}, row by row with the fields of the header.",
                findings,
                shown=len(findings),
            )
        return Validation(tuple(errors), tuple(warnings))

    def canonical_bytes(self) -> bytes:
        """Return what the input tag is made of; after :meth:`validate`."""
        if self._digests is None:
            raise AssertionError("households are validated before they are tagged")
        return canonical_bytes(self._digests)

    def count(self, plan: Plan, keys: dict[str, bytes]) -> dict[str, Ints]:
        """Return the cube of each table with a budget, after truncation."""
        return self._count(partial(count_tables, plan, keys=keys))

    def count_exactly(self, tables: dict[str, Table]) -> dict[str, Ints]:
        """Return the cube of each table as the non-private mode counts it."""
        return self._count(partial(exact_cubes, tables, states=len(self._config.state_filter)))

    def _count(self, count: Callable[[Linked], Cubes]) -> Cubes:
        self._report("counting", 0, 1)
        with spark_failures():
            counted = self._run(CountPart(self._config, self._files, count=count))
            if self._partitions > _SUMMED_TOGETHER:
                few = -(-self._partitions // _SUMMED_TOGETHER)
                counted = counted.coalesce(few).mapInArrow(EachPartition(sum_answers), ANSWER_TYPES)
            cubes, digests = add_counts(answers(counted).values())
        if self._digests is not None and digests != self._digests:
            raise PrivacyError(
                f"{self._data} changed while it was counted: its rows are no longer those that were checked. "
                "Nothing was drawn from them. Start again with files that nobody writes to."
            )
        self._report("counting", 1, 1)
        return cubes

    def _run(self, part: Work) -> DataFrame:
        return self._rows.mapInArrow(EachPartition(part), ANSWER_TYPES)

    def _report(self, stage: str, done: int, total: int) -> None:
        if self._tell is not None:
            self._tell(stage, done, total)


# On executors: one partition of complete households at a time -----------------------------------------------


Cubes = dict[str, Ints]
Counted = tuple[Cubes, dict[int, bytes]]
"""Cubes by table, and digests of the rows by bucket."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Checked:
    """What the check of a partition found. Confidential."""

    digests: dict[int, bytes]  # int -> bytes: by bucket
    broken: list[Finding]  # rows without the fields of the header
    errors: tuple[Finding, ...]
    warnings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    """What every function over partitions knows."""

    config: Config
    files: InputFiles

    def _gather(self, batches: Batches) -> tuple[Inputs, pa.Table]:
        states = np.zeros(128, dtype=np.bool_)
        states[[int(code) for code in self.config.state_filter]] = True
        return gather(batches, states, self.files)


@dataclass(frozen=True, slots=True)
class CheckPart(_Part):
    """Checks a partition and digests its buckets; answers with :class:`Checked`."""

    every_table: bool = False  # as in :func:`opendas.phsafe.validate.validate`

    def __call__(self, number: int, batches: Batches) -> Checked:
        """Check one partition."""
        inputs, broken = self._gather(batches)
        found = validate(
            inputs, link(inputs, self.config.state_filter), self.config, every_table=self.every_table
        )
        rows = _broken_rows(broken, self.files)
        return Checked(bucket_digests(inputs), rows, found.errors, found.warnings)


@dataclass(frozen=True, slots=True, repr=False)
class CountPart(_Part):
    """Counts tables; answers with cubes by table and the digests of its rows.

    A partition that an executor lost is read again: the digests let the caller see that it still holds the
    rows that were validated and tagged.
    """

    # Counts households, with all that it needs: the derived keys of selections, one a table, are all of the
    # run key that leaves its process.
    count: Callable[[Linked], Cubes] = field(kw_only=True)

    def __call__(self, number: int, batches: Batches) -> Counted:
        """Count one partition."""
        inputs, _ = self._gather(batches)
        return self.count(link(inputs, self.config.state_filter)), bucket_digests(inputs)


def sum_answers(number: int, batches: Batches) -> Counted:
    """Put together what several partitions counted."""
    packed = (answer for batch in batches for answer in batch.column("answer").to_pylist())
    return add_counts(unpack(answer).get() for answer in packed)


def add_counts(parts: Iterable[Counted]) -> Counted:
    """Add up cubes, which are integers, so that the order does not matter; and collect digests by bucket."""
    total: Cubes = {}
    digests: dict[int, bytes] = {}
    for cubes, found in parts:
        for name, cube in cubes.items():
            total[name] = total[name] + cube if name in total else cube
        digests.update(found)
    return total, digests


def _broken_rows(broken: pa.Table, files: InputFiles) -> list[Finding]:
    sources = (files.persons, files.units, files.places)
    kinds, lines, found = (broken.column(name).to_pylist() for name in ("kind", "line", "first"))
    findings = []
    for kind, line, fields in sorted(zip(kinds, lines, found, strict=True)):
        findings.append(KINDS[kind - BROKEN].broken(*sources[kind - BROKEN].locate(line), fields))
    return findings


# Findings of many partitions --------------------------------------------------------------------------------


# How opendas.phsafe.inputs.findings and opendas.phsafe.counting end a rule.
_FURTHER = re.compile(r" \((\d+) further lines\)\Z")
_OF_UNIT = re.compile(r" \(its unit: [^)]*\)\Z")


def merge_findings(parts: Iterable[Sequence[Finding]], sources: Sequence[Source]) -> list[Finding]:
    """Merge findings whose lines are in one part each.

    - `parts`: of each partition, as :func:`opendas.phsafe.inputs.findings.list_lines` bounds them.
    - `sources`: the three files, in order; each may be a folder of parts.
    - Returns: by file, then by field and rule as they first came, then by line.
    """
    place: dict[str, tuple[int, int]] = {}
    for which, source in enumerate(sources):
        place[source.title] = which, -1
        place |= {name: (which, number) for number, name in enumerate(source.names)}
    listed: dict[tuple[int, str | None, str], list[Finding]] = {}
    further: dict[tuple[int, str | None, str], int] = {}
    for part in parts:
        for finding in part:
            which = place[finding.file][0]
            more = _FURTHER.search(finding.rule)
            rule = _FURTHER.sub("", _OF_UNIT.sub("", finding.rule))
            key = which, finding.field, rule
            listed.setdefault(key, [])
            further.setdefault(key, 0)
            if more is not None and finding.line is None:
                further[key] += int(more[1])
            else:
                listed[key].append(finding)
    merged = []
    for key in sorted(listed, key=lambda key: key[0]):
        lines = sorted(listed[key], key=lambda finding: (place[finding.file][1], finding.line or 0))
        merged += lines[:MOST_LINES]
        rest = further[key] + max(0, len(lines) - MOST_LINES)
        if rest:
            merged.append(Finding(sources[key[0]].title, None, key[1], f"{key[2]} ({rest} further lines)"))
    return merged
