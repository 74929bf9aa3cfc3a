"""Households dealt out over Spark: read once, shuffled once by a hash of their key, then counted in place.

Records cross the network and executor disks once, as the shuffle that brings a household together, and stay
cached there until the run ends. In sessions that we start they are encrypted on disks; on the network as the
cluster is set up (``spark.authenticate``, ``spark.network.crypto.enabled``), and we warn where it is not. The
run key never leaves this process. The derived keys of selections travel in the serialised function of the
counting stage, which Spark keeps in memory and hands to the executors; no configuration, plan text or event
has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opendas.arrays import Ints
from opendas.engines.local import default_workers
from opendas.engines.spark.session import open_session, spark_failures
from opendas.errors import ConfigError, Finding, FormatError, PrivacyError
from opendas.phsafe.config import Config, Plan
from opendas.phsafe.inputs.digest import BUCKETS, canonical_bytes
from opendas.phsafe.inputs.findings import InputFiles
from opendas.phsafe.spark.files import TextFile, find_files
from opendas.phsafe.spark.merge import merge_findings
from opendas.phsafe.spark.parts import (
    ANSWER_TYPES,
    Checked,
    CheckPart,
    CountExactly,
    CountPart,
    add_counts,
    sum_answers,
    unpack,
)
from opendas.phsafe.spark.rows import ROW_TYPES, ReadLines
from opendas.phsafe.tables import Table
from opendas.phsafe.validate import Validation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SparkHouseholds", "open_on_spark"]

Tell = Callable[[str, int, int], None]

_NOT_READ = "does not hold the three files of the reader csv"
_PARTITIONS_A_BLOCK = 2
_SUMMED_TOGETHER = 64


@contextmanager
def open_on_spark(
    data: Path | str, config: Config, master: str | None = None, tell: Tell | None = None
) -> Iterator[SparkHouseholds]:
    """Deal out the data of a configuration.

    Parameters
    ----------
    data : Path or str
        Folder with the three files, each a file or a folder of parts with a header each: a local path, or
        the URL of any file system that Spark reads.
    config : Config
    master : str, optional
    tell : callable(stage, done, total), optional
        Progress.

    Raises
    ------
    ConfigError
        For another reader than ``csv``.
    EnvironmentFailure
        If Spark cannot start, or fails later.
    FormatError
        If files are missing or have other columns.
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
    """The households of a run on Spark; see :class:`opendas.phsafe.run.Households`.

    Parameters
    ----------
    session : SparkSession
    data : str
    config : Config
    tell : callable(stage, done, total), optional
    """

    def __init__(self, session: SparkSession, data: str, config: Config, tell: Tell | None = None) -> None:
        self._data, self._config, self._tell = data, config, tell
        self._digests: dict[int, bytes] = {}
        with spark_failures():
            files = find_files(session, data)
        findings = [finding for file in files for finding in file.findings]
        if findings:
            raise FormatError(f"{data} {_NOT_READ}.", findings)
        self._files = InputFiles(*(file.source for file in files))
        self._report("reading", 1, 2)
        blocks = sum(len(file.before) for file in files)
        parallel = session.sparkContext.defaultParallelism
        self._partitions = min(BUCKETS, max(parallel, _PARTITIONS_A_BLOCK * blocks))
        with spark_failures():
            self._rows = self._deal(files)

    def _deal(self, files: Sequence[TextFile]) -> DataFrame:
        """Return the rows of all files, whole buckets of households in each partition."""
        from pyspark import StorageLevel

        rows = [
            file.text.mapInArrow(ReadLines(kind, dict(file.before)), ROW_TYPES)
            for kind, file in enumerate(files)
            if file.text is not None
        ]
        together: DataFrame = reduce(lambda one, other: one.unionAll(other), rows)
        return together.repartition(self._partitions, "bucket").persist(StorageLevel.MEMORY_AND_DISK)

    def close(self) -> None:
        """Let the executors forget the rows."""
        self._rows.unpersist()

    def validate(self, *, every_table: bool = False) -> Validation:
        """Check everything, and digest it.

        Raises
        ------
        FormatError
            If rows do not have the fields of the header: with everything else that is wrong.
        """
        with spark_failures():
            answers = self._run(CheckPart(self._config, self._files, every_table)).collect()
            parts: list[Checked] = [unpack(bytes(row.answer)) for row in answers]
        self._digests = {bucket: digest for part in parts for bucket, digest in part.digests.items()}
        self._report("reading", 2, 2)
        broken, errors, warnings = (
            self._merge([getattr(part, name) for part in parts]) for name in ("broken", "errors", "warnings")
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
        return canonical_bytes(self._digests)

    def count(self, plan: Plan, keys: dict[str, bytes]) -> dict[str, Ints]:
        """Return the cube of each table with a budget, after truncation."""
        return self._count(CountPart(self._config, self._files, plan=plan, keys=keys))

    def count_exactly(self, tables: dict[str, Table]) -> dict[str, Ints]:
        """Return the cube of each table as the non-private mode counts it."""
        return self._count(CountExactly(self._config, self._files, tables=tables))

    def _count(self, part: CountPart | CountExactly) -> dict[str, Ints]:
        self._report("counting", 0, 1)
        with spark_failures():
            answers = self._run(part)
            if self._partitions > _SUMMED_TOGETHER:
                few = -(-self._partitions // _SUMMED_TOGETHER)
                answers = answers.coalesce(few).mapInArrow(sum_answers, ANSWER_TYPES)
            cubes, digests = add_counts(unpack(bytes(row.answer)) for row in answers.collect())
        if self._digests and digests != self._digests:
            raise PrivacyError(
                f"{self._data} changed while it was counted: its rows are no longer those that were checked. "
                "Nothing was drawn from them. Start again with files that nobody writes to."
            )
        self._report("counting", 1, 1)
        return cubes

    def _run(self, part: Any) -> DataFrame:
        return self._rows.mapInArrow(part, ANSWER_TYPES)

    def _merge(self, parts: list[Sequence[Finding]]) -> list[Finding]:
        files = self._files
        return merge_findings(parts, [source.names for source in (files.persons, files.units, files.places)])

    def _report(self, stage: str, done: int, total: int) -> None:
        if self._tell is not None:
            self._tell(stage, done, total)
