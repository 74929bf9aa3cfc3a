"""What runs on the executors, counting: one partition of complete households at a time.

Each function takes the rows of a partition and returns one row with a pickled answer. What is inside is what
the engine in one process calls. Nothing in this module imports Spark.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from opendas.arrays import Ints
from opendas.custody.secret_files import forbid_core_files
from opendas.engines.local import keep_modules
from opendas.errors import Finding
from opendas.phsafe.config import Config, Plan
from opendas.phsafe.counting import count_tables, exact_cubes
from opendas.phsafe.inputs.digest import bucket_digests
from opendas.phsafe.inputs.findings import InputFiles
from opendas.phsafe.inputs.linking import link
from opendas.phsafe.inputs.records import Inputs
from opendas.phsafe.spark.rows import BROKEN, KINDS, gather
from opendas.phsafe.tables import Table
from opendas.phsafe.validate import validate

__all__ = [
    "ANSWER_TYPES",
    "CheckPart",
    "Checked",
    "CountExactly",
    "CountPart",
    "add_counts",
    "sum_answers",
    "unpack",
]

ANSWER_TYPES: Final = "answer binary"
_SCHEMA: Final = pa.schema([("answer", pa.binary())])

Batches = Iterator[pa.RecordBatch]
Cubes = dict[str, Ints]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Checked:
    """What the check of a partition found. Confidential.

    Parameters
    ----------
    digests : dict of int to bytes
        By bucket.
    broken : list of Finding
        Rows without the fields of the header.
    errors, warnings : tuple of Finding
    """

    digests: dict[int, bytes]
    broken: list[Finding]
    errors: tuple[Finding, ...]
    warnings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    """What every function over partitions knows.

    Parameters
    ----------
    config : Config
    files : InputFiles
    """

    config: Config
    files: InputFiles

    def _gather(self, batches: Batches) -> tuple[Inputs, pa.Table]:
        forbid_core_files()
        states = np.zeros(128, dtype=np.bool_)
        states[[int(code) for code in self.config.state_filter]] = True
        return gather(batches, states, self.files)


@dataclass(frozen=True, slots=True)
class CheckPart(_Part):
    """Checks a partition and digests its buckets; answers with :class:`Checked`.

    Parameters
    ----------
    every_table : bool
        As in :func:`opendas.phsafe.validate.validate`.
    """

    every_table: bool = False

    def __call__(self, batches: Batches) -> Batches:
        """Check one partition."""
        inputs, broken = self._gather(batches)
        found = validate(
            inputs, link(inputs, self.config.state_filter), self.config, every_table=self.every_table
        )
        rows = _broken_rows(broken, self.files)
        yield _pack(Checked(bucket_digests(inputs), rows, found.errors, found.warnings))
        keep_modules()


@dataclass(frozen=True, slots=True, repr=False)
class CountPart(_Part):
    """Counts the tables of a plan after truncation; answers with cubes by table and the digests of its rows.

    A partition that an executor lost is read again: the digests let the caller see that it still holds the
    rows that were validated and tagged.

    Parameters
    ----------
    plan : Plan
    keys : mapping of str to bytes
        Derived keys of selections, one a table. They are all of the run key that leaves its process.
    """

    plan: Plan = field(kw_only=True)
    keys: Mapping[str, bytes] = field(kw_only=True)

    def __repr__(self) -> str:
        return "CountPart()"

    def __call__(self, batches: Batches) -> Batches:
        """Count one partition."""
        inputs, _ = self._gather(batches)
        linked = link(inputs, self.config.state_filter)
        yield _pack((count_tables(self.plan, linked, self.keys), bucket_digests(inputs)))
        keep_modules()


@dataclass(frozen=True, slots=True)
class CountExactly(_Part):
    """Counts as the non-private mode does; answers with cubes by output.

    Parameters
    ----------
    tables : mapping of str to Table
    """

    tables: Mapping[str, Table] = field(kw_only=True)

    def __call__(self, batches: Batches) -> Batches:
        """Count one partition."""
        states = len(self.config.state_filter)
        inputs, _ = self._gather(batches)
        linked = link(inputs, self.config.state_filter)
        yield _pack((exact_cubes(dict(self.tables), linked, states), bucket_digests(inputs)))
        keep_modules()


def sum_answers(batches: Batches) -> Batches:
    """Put together what several partitions counted."""
    yield _pack(add_counts(unpack(answer) for batch in batches for answer in batch.column(0).to_pylist()))


def add_counts(parts: Iterable[tuple[Cubes, dict[int, bytes]]]) -> tuple[Cubes, dict[int, bytes]]:
    """Add up cubes, which are integers, so that the order does not matter; and collect digests by bucket."""
    total: Cubes = {}
    digests: dict[int, bytes] = {}
    for cubes, found in parts:
        for name, cube in cubes.items():
            total[name] = total[name] + cube if name in total else cube
        digests.update(found)
    return total, digests


def unpack(answer: bytes) -> Any:
    """Return what a partition answered."""
    return pickle.loads(zlib.decompress(answer))


def _pack(answer: object) -> pa.RecordBatch:
    text = zlib.compress(pickle.dumps(answer), level=1)
    return pa.RecordBatch.from_arrays([pa.array([text], type=pa.binary())], schema=_SCHEMA)


def _broken_rows(broken: pa.Table, files: InputFiles) -> list[Finding]:
    sources = (files.persons, files.units, files.places)
    kinds, lines, found = (broken.column(name).to_pylist() for name in ("kind", "line", "first"))
    findings = []
    for kind, line, fields in sorted(zip(kinds, lines, found, strict=True)):
        file, at = sources[kind - BROKEN].locate(line)
        rule = f"expected {len(KINDS[kind - BROKEN].columns)} fields, found {fields}"
        findings.append(Finding(file, at, None, rule))
    return findings
