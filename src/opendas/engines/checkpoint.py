"""Checkpoints: finished tasks under ``state/``, noisy or estimated values only.

A worker writes its own, so that results need not pass through the process that hands out the tasks. A file
holds its own SHA-256, so that a torn file reads as absent; its task is then done again, with the same noise
and hence the same result.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

from opendas.engines.subtree import PartResult
from opendas.engines.upward import BelowPart
from opendas.engines.used import UsedColumns
from opendas.estimation.model import FamilyRecord
from opendas.schema.histogram import Histogram

__all__ = ["Checkpoints", "TaskResult"]

TaskResult = PartResult | BelowPart
"""What a task gives, on its way down or up."""

_MAGIC = b"opendas task 4\n"


class Checkpoints:
    """Finished tasks of one run.

    Parameters
    ----------
    folder : Path
    binding : str
        What the tasks are a function of (run, plan, estimator); a file with another one reads as absent.
    write : callable(Path, bytes)
        Atomic, durable writer. It goes to other processes.
    timings : Path, optional
        Confidential folder for the seconds that families took: the only thing in a result that is a function
        of more than noisy answers and public data. Without it they are dropped.
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
        if isinstance(result, PartResult) and self._timings is not None:
            self._write(self._seconds(stage, number), result.seconds.tobytes())
        self._write(self.path(stage, number, up=up), _MAGIC + hashlib.sha256(payload).digest() + payload)

    def load(self, stage: int, number: int, *, up: bool = False) -> TaskResult | None:
        """Return a finished task, or None where there is none, or only a torn or foreign file."""
        path = self.path(stage, number, up=up)
        if not path.is_file():
            return None
        data = path.read_bytes()
        start = len(_MAGIC) + 32
        payload = data[start:]
        whole = (
            data[: len(_MAGIC)] == _MAGIC and data[len(_MAGIC) : start] == hashlib.sha256(payload).digest()
        )
        if not whole or payload[:32] != self._binding:
            return None
        if up:
            return _decode_below(payload[32:])
        result = _decode(payload[32:])
        path = self._seconds(stage, number)
        if self._timings is None or not path.is_file():
            return result
        stored = path.read_bytes()
        if len(stored) != np.dtype(np.float32).itemsize * len(result.records):
            return result
        return replace(result, seconds=np.frombuffer(stored, np.float32))

    def _seconds(self, stage: int, number: int) -> Path:
        return (self._timings or self._folder) / f"stage{stage}-task{number:04d}.seconds"


def _narrow(array: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """Return the same integers in the fewest bytes that hold all: smaller than compressed, and no work."""
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return array.astype(kind)
    return array


def _encode(result: PartResult) -> bytes:
    used = result.used
    head = {
        "names": used.names,
        "size": result.estimates.size,
        "records": [asdict(record) for record in result.records],
    }
    buffer = BytesIO()
    np.savez(
        buffer,
        head=np.frombuffer(json.dumps(head).encode(), dtype=np.uint8),
        lengths=_narrow(np.diff(result.estimates.indptr)),
        cells=_narrow(result.estimates.cells),
        counts=_narrow(result.estimates.counts),
        numbers=used.numbers,
        rows=_narrow(used.rows),
        values=_narrow(used.values),
    )
    return buffer.getvalue()


def _decode(data: bytes) -> PartResult:
    with np.load(BytesIO(data), allow_pickle=False) as arrays:
        head = json.loads(arrays["head"].tobytes())
        lengths = arrays["lengths"].astype(np.int64)
        estimates = Histogram(
            np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
            arrays["cells"].astype(np.int32),
            arrays["counts"].astype(np.int64),
            head["size"],
        )
        used = UsedColumns(tuple(head["names"]), arrays["numbers"], arrays["rows"], arrays["values"])
    records = tuple(FamilyRecord(**{**r, "methods": tuple(r["methods"])}) for r in head["records"])
    return PartResult(estimates, used, records, np.full(len(records), np.nan, np.float32))


def _encode_below(below: BelowPart) -> bytes:
    buffer = BytesIO()
    np.savez(buffer, **below.arrays())  # type: ignore[arg-type]
    return buffer.getvalue()


def _decode_below(data: bytes) -> BelowPart:
    with np.load(BytesIO(data), allow_pickle=False) as arrays:
        return BelowPart.from_arrays(dict(arrays))
