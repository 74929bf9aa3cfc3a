"""Checkpoints: finished tasks under ``state/``, noisy or estimated values only.

A worker writes its own, so that results need not pass through the process that hands out the tasks. A file
holds its own SHA-256, so that a torn file reads as absent; its task is then done again, with the same noise
and hence the same result.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import fields
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opendas.engines.subtree import PartResult, UsedColumns
from opendas.engines.upward import BelowPart
from opendas.schema.histogram import Histogram
from opendas.topdown.model import FamilyRecord

TaskResult = PartResult | BelowPart
"""What a task gives, on its way down or up."""

_MAGIC = b"opendas task 5\n"

_RECORD = tuple(field.name for field in fields(FamilyRecord))


class Checkpoints:
    """Finished tasks of one run.

    - `binding`: what the tasks are a function of (run, plan, estimator); a file with another one reads as
      absent.
    - `write`: atomic, durable writer. It goes to other processes.
    - `timings`: confidential folder for the seconds that families took: the only thing in a result that is a
      function of more than noisy answers and public data. Without it they are dropped.
    """

    def __init__(
        self, folder: Path, binding: str, write: Callable[[Path, bytes], None], timings: Path | None = None
    ) -> None:
        self._folder = folder
        self._binding = hashlib.sha256(binding.encode()).digest()
        self._write = write
        self._timings = timings

    def path(self, stage: int, number: int, *, up: bool = False) -> Path:
        """Return a task's file, on the way down or `up`."""
        return self._folder / f"{'up' if up else 'stage'}{stage}-task{number:04d}.part"

    def save(self, stage: int, number: int, result: TaskResult) -> None:
        """Write a finished task."""
        up = isinstance(result, BelowPart)
        payload = self._binding + (
            _encode_below(result) if isinstance(result, BelowPart) else _encode(result)
        )
        if not isinstance(result, BelowPart) and self._timings is not None:
            self._write(self._seconds(stage, number), result.seconds.tobytes())
        self._write(self.path(stage, number, up=up), _MAGIC + hashlib.sha256(payload).digest() + payload)

    def holds(self, stage: int, number: int, *, up: bool = False) -> bool:
        """Return whether a finished task is there, whole."""
        return self._payload(stage, number, up) is not None

    def load(self, stage: int, number: int, *, up: bool = False) -> TaskResult | None:
        """Return a finished task, or None where there is none, or only a torn or foreign file."""
        payload = self._payload(stage, number, up)
        if payload is None:
            return None
        return _decode_below(payload) if up else _StoredResult(payload, self._timed(stage, number))

    def _payload(self, stage: int, number: int, up: bool) -> bytes | None:
        """Return what a file holds, if the file is whole and this run's."""
        path = self.path(stage, number, up=up)
        if not path.is_file():
            return None
        data = path.read_bytes()
        start = len(_MAGIC) + 32
        payload = data[start:]
        whole = (
            data[: len(_MAGIC)] == _MAGIC and data[len(_MAGIC) : start] == hashlib.sha256(payload).digest()
        )
        return payload[32:] if whole and payload[:32] == self._binding else None

    def _timed(self, stage: int, number: int) -> bytes:
        path = self._seconds(stage, number)
        return path.read_bytes() if self._timings is not None and path.is_file() else b""

    def _seconds(self, stage: int, number: int) -> Path:
        return (self._timings or self._folder) / f"stage{stage}-task{number:04d}.seconds"


def narrow(array: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """Return the same integers in the fewest bytes that hold all: smaller than compressed, and no work."""
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return array.astype(kind)
    return array


def _encode(result: PartResult) -> bytes:
    used = result.used
    records = {name: [getattr(record, name) for record in result.records] for name in _RECORD}
    buffer = BytesIO()
    np.savez(
        buffer,
        head=_text({"names": used.names, "size": result.estimates.size}),
        records=_text(records),
        lengths=narrow(np.diff(result.estimates.indptr)),
        cells=narrow(result.estimates.cells),
        counts=narrow(result.estimates.counts),
        numbers=used.numbers,
        rows=narrow(used.rows),
        values=narrow(used.values),
    )
    return buffer.getvalue()


def _text(value: object) -> npt.NDArray[np.uint8]:
    return np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)


class _StoredResult(PartResult):
    """The result of a task, each part of it decoded when it is asked for: most readers want one of them.

    `seconds`: empty, or of another number of families, where times are not known.
    """

    def __init__(self, data: bytes, seconds: bytes) -> None:
        self._arrays = np.load(BytesIO(data), allow_pickle=False)
        self._seconds = seconds

    @cached_property
    def _head(self) -> dict[str, Any]:
        return self._parsed("head")

    def _parsed(self, name: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self._arrays[name].tobytes())
        return value

    @property
    def estimates(self) -> Histogram:
        lengths = self._arrays["lengths"].astype(np.int64)
        return Histogram(
            np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
            self._arrays["cells"].astype(np.int32),
            self._arrays["counts"].astype(np.int64),
            self._head["size"],
        )

    @property
    def used(self) -> UsedColumns:
        names = tuple(self._head["names"])
        return UsedColumns(names, self._arrays["numbers"], self._arrays["rows"], self._arrays["values"])

    @cached_property
    def records(self) -> tuple[FamilyRecord, ...]:
        columns = self._parsed("records")
        columns["methods"] = [tuple(methods) for methods in columns["methods"]]
        rows = zip(*(columns[name] for name in _RECORD), strict=True)
        return tuple(FamilyRecord(*row) for row in rows)

    @property
    def seconds(self) -> npt.NDArray[np.float32]:
        if len(self._seconds) != np.dtype(np.float32).itemsize * len(self.records):
            return np.full(len(self.records), np.nan, np.float32)
        return np.frombuffer(self._seconds, np.float32)


def _encode_below(below: BelowPart) -> bytes:
    buffer = BytesIO()
    np.savez(buffer, **below.arrays())  # type: ignore[arg-type]
    return buffer.getvalue()


def _decode_below(data: bytes) -> BelowPart:
    with np.load(BytesIO(data), allow_pickle=False) as arrays:
        return BelowPart.from_arrays(dict(arrays))
