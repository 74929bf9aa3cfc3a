"""Results of simulated runs that are finished, with which a stopped experiment or search goes on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any, Generic, TypeVar

from opendas.custody.folders import write_atomic
from opendas.errors import ConfigError
from opendas.readers.input.spec import MemoryTable
from opendas.runs.context.run import Run
from opendas.version import __version__

Result = TypeVar("Result")


class FinishedRuns(Generic[Result]):
    """Results by name and seed, in memory and, with a path, in a file that is as confidential as they are.

    - `read`: makes a result of its JSON values.
    - `path`: lines of JSON, for its owner alone; the first says what the runs belong to.
    - `belongs`: as :func:`belongs_to` says it.
    """

    def __init__(self, read: Callable[[Any], Result], path: Path | None = None, belongs: str = "") -> None:
        self._path = path
        self._known: dict[tuple[str, int], Result] = {}
        if path is None:
            return
        if path.exists():
            self._read(path, belongs, read)
        else:
            write_atomic(path, (json.dumps({"belongs": belongs}) + "\n").encode())
            path.chmod(0o600)

    def _read(self, path: Path, belongs: str, read: Callable[[Any], Result]) -> None:
        try:
            complete = path.read_bytes().rpartition(b"\n")[0] + b"\n"  # a torn last line is simulated again
            first, *lines = complete.decode().splitlines()
            known = json.loads(first)["belongs"]
            for line in lines:
                row = json.loads(line)
                self._known[row["run"], row["seed"]] = read(row["result"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ConfigError(f"{path} is not a file of finished runs; name another one.") from None
        if known != belongs:
            raise ConfigError(
                f"{path} holds the runs of something else: another version, run file, input or question. "
                "Remove it, or name another file."
            )
        os.truncate(path, len(complete))

    def __len__(self) -> int:
        return len(self._known)

    def get(self, name: str, seed: int) -> Result | None:
        """Return the result of a run; None where it is not finished."""
        return self._known.get((name, seed))

    def put(self, name: str, seed: int, result: Result, *, keep: bool = True) -> None:
        """Take the result of a run, into the file too if it is to be kept."""
        self._known[name, seed] = result
        if self._path is not None and keep:
            line = json.dumps({"run": name, "seed": seed, "result": result}, default=astuple) + "\n"
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(line)


def belongs_to(run: Run, *words: str) -> str:
    """Say what finished runs belong to: version, files of the input by name, size and time, and `words`."""
    spec, files = run.resolved.reader, []
    for path in spec.paths:
        if isinstance(path, MemoryTable):
            raise ConfigError("a table in memory is not recognised again; write it to a file first.")
        place = Path(str(path))
        stat = place.stat() if place.is_file() else None
        files.append(f"{place.name} {stat.st_size} {stat.st_mtime_ns}" if stat else place.name)
    text = "\n".join([__version__, spec.reader, *files, *words])
    return hashlib.sha256(text.encode()).hexdigest()
