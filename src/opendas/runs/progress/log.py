"""The log of a run: what it did when, one JSON object a line, under ``confidential/logs``.

A line is written by one call and never changed. What a crash cuts short reads as absent, and the next line
starts on a line of its own. Only the process that holds the folder's lock writes; readers need no lock.

Lines hold times, progress in public units (leaves, geounits, files), names and public digests: see
:data:`FIELDS`. There is no field in which a count, a cell or a key could stand, and a field that is not
listed is refused. Times tell something about the data all the same; that is why the log is confidential.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import scipy

from opendas.custody.folders import open_folder
from opendas.errors import ENVIRONMENT_ERRORS, PATH_ERRORS, OpendasError, is_interrupt
from opendas.runs.progress.clock import peak_rss_mb
from opendas.runs.progress.processes import ProcessMark, own_mark
from opendas.version import __version__, commit

log = logging.getLogger(__name__)

FORM = 1
"""Version of the log's form, in every ``start`` line."""

PROGRESS_SECONDS = 5.0
"""A stage's progress is logged at its start, at its end and so often in between."""

_TEXT, _NUMBER, _FLAG = (str,), (int, float), (bool,)

FIELDS: dict[str, tuple[tuple[type, ...], str]] = {
    "ts": (_TEXT, "when, UTC, ISO 8601 with milliseconds"),
    "mono": (_NUMBER, "seconds of a clock that never goes back; compare within one attempt only"),
    "event": (_TEXT, "`start`, `phase`, `forecast`, `stage`, `progress`, `step`, `note`, `end` or `error`"),
    "form": (_NUMBER, "version of this form, 1"),
    "product": (_TEXT, "product"),
    "command": (_TEXT, "`run`, `measure`, `estimate` or `phsafe`"),
    "resume": (_FLAG, "whether `--resume` was given"),
    "seeded": (_FLAG, "whether noise comes from a seed"),
    "engine": (_TEXT, "`local` or `spark`"),
    "workers": (_NUMBER, "processes at work; null until it is known"),
    "versions": ((dict,), "of OpenDAS, its commit, Python, numpy and scipy"),
    "host": (_TEXT, "name of the machine"),
    "boot": (_TEXT, "the machine's last start"),
    "space": (_TEXT, "where the process number is unique: a container has its own"),
    "pid": (_NUMBER, "process number"),
    "started": (_NUMBER, "the process's start, in ticks of the kernel"),
    "phase": (_TEXT, "`preparing`, `started` (budget spent), `measured` or `finished`"),
    "run_id": (_TEXT, "random name of the run, as in the ledger"),
    "plan_digest": (_TEXT, "digest of the measurement plan, as in the certificate"),
    "spine_digest": (_TEXT, "digest of the spine, as in the certificate"),
    "leaves": (_NUMBER, "leaves of the frame"),
    "geounits": ((dict,), "geounits of each level of the spine"),
    "stage": (_TEXT, "what is being done"),
    "done": (_NUMBER, "how much of it, in leaves, geounits or files"),
    "total": (_NUMBER, "of how much"),
    "step": (_TEXT, "step of the run that ended"),
    "seconds": (_NUMBER, "how long the step, or the attempt, took"),
    "peak_rss_mb": (_NUMBER, "largest resident set of one process so far, MB; of a forecast, expected"),
    "memory_mb": (_NUMBER, "expected memory of all processes together, MB"),
    "disk_mb": (_NUMBER, "expected disk space, MB"),
    "message": (_TEXT, "what is said to the user, too"),
    "error": (_TEXT, "class of the error"),
    "place": (_TEXT, "file, line and function of an internal error"),
    "exit_code": (_NUMBER, "of the command"),
}
"""Every field a line may have: its types (null is always allowed) and its meaning."""

_LARGEST = 2**63
"""No number of a log is larger; infinities and what is none are refused with it."""

_LONG_HEX = re.compile(r"[0-9A-Fa-f]{32,}")
_LONGEST_MESSAGE = 4000


def log_path(confidential: Path, product: str) -> Path:
    """Return the log of a product's runs."""
    return confidential / "logs" / f"{product}.jsonl"


def exit_code_of(error: BaseException) -> int:
    """Return the exit code with which the command line answers an error."""
    if isinstance(error, OpendasError):
        return error.exit_code
    if is_interrupt(error):
        return 130
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in ENVIRONMENT_ERRORS):
        return 6
    if isinstance(error, OSError) and error.errno in PATH_ERRORS and error.filename is not None:
        return 2
    return 70


def safe_message(error: BaseException) -> str | None:
    """Return the message of an error of ours, which names places and rules and never a value.

    The message of any other error may quote data: it is None. Digits that could be a key are left out.
    """
    if not isinstance(error, OpendasError):
        return None
    text = _LONG_HEX.sub("[left out]", str(error))
    return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + " ..."


def _where_raised(error: BaseException) -> str | None:
    trace, found = error.__traceback__, None
    while trace is not None:
        code = trace.tb_frame.f_code
        if f"{os.sep}opendas{os.sep}" in code.co_filename:
            found = f"{Path(code.co_filename).name}, line {trace.tb_lineno}, in {code.co_name}"
        trace = trace.tb_next
    return found


class RunLog:
    """A log that is being written; a context manager whose end is the last line of an attempt.

    A log that cannot be written stops no run: this is said once, by ``logging``.

    - `path`: ``confidential/logs/<product>.jsonl``; created with mode 0600, its folder with 0700.
    - `clock`: seconds that never go back.
    - `now`: seconds since 1970.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._clock = clock
        self._now = now
        self._began = clock()
        self._descriptor: int | None = None
        self._torn = False
        self._failed = False
        self._stage: str | None = None
        self._told = 0.0
        self._open()

    def _open(self) -> None:
        try:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            with open_folder(self._path.parent, make=True) as folder:
                folder.set_mode(0o700)
                self._descriptor = os.open(self._path.name, flags, 0o600, dir_fd=folder.descriptor)
            os.fchmod(self._descriptor, 0o600)
            size = os.fstat(self._descriptor).st_size
            self._torn = size > 0 and os.pread(self._descriptor, 1, size - 1) != b"\n"
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        if not self._failed:
            reason = error.strerror or type(error).__name__
            log.warning("the log of the run cannot be written (%s); the run goes on without it.", reason)
        self._failed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = round(self._clock() - self._began, 3)
        memory = round(peak_rss_mb(), 1)
        if value is None:
            self.write("end", exit_code=0, seconds=seconds, peak_rss_mb=memory)
        else:
            code = exit_code_of(value)
            self.write(
                "error",
                error=type(value).__name__,
                exit_code=code,
                message=safe_message(value),
                place=_where_raised(value) if code == 70 else None,
                seconds=seconds,
                peak_rss_mb=memory,
            )
        self.close()

    def close(self) -> None:
        """Force what was written to disk, and close the file."""
        if self._descriptor is not None:
            try:
                os.fsync(self._descriptor)
            except OSError as error:
                self._give_up(error)
            os.close(self._descriptor)
            self._descriptor = None

    def write(self, event: str, **fields: Any) -> None:
        """Append a line."""
        moment = datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds")
        mono = round(self._clock(), 3)
        record = {"ts": moment.replace("+00:00", "Z"), "mono": mono, "event": event, **fields}
        for name, value in record.items():
            if name not in FIELDS or not _fits(name, value):
                raise ValueError(f"a log has no field {name!r} with a {type(value).__name__} like this")
        line = json.dumps(record, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"
        self._append(line)

    def _append(self, line: bytes) -> None:
        if self._descriptor is None:
            return
        data = b"\n" + line if self._torn else line
        try:
            written = os.write(self._descriptor, data)
        except OSError as error:
            self._give_up(error)
            return
        self._torn = written != len(data)

    def start(
        self,
        *,
        product: str,
        command: str,
        workers: int | None,
        engine: str = "local",
        resume: bool = False,
        seeded: bool = False,
    ) -> None:
        """Begin an attempt: who is at work, with what. Forced to disk, so that a crash leaves its trace."""
        mark = own_mark()
        self.write(
            "start",
            form=FORM,
            product=product,
            command=command,
            engine=engine,
            workers=workers,
            resume=resume,
            seeded=seeded,
            versions={
                "opendas": __version__,
                "commit": commit(),
                "python": platform.python_version(),
                "numpy": np.__version__,
                "scipy": scipy.__version__,
                "system": f"{sys.platform} {platform.machine()}",
            },
            host=mark.host,
            boot=mark.boot,
            space=mark.space,
            pid=mark.pid,
            started=mark.started,
        )
        if self._descriptor is not None:
            try:
                os.fsync(self._descriptor)
            except OSError as error:
                self._give_up(error)

    def progress(self, stage: str, done: int, total: int) -> None:
        """Log the progress of a stage: its start, its end, and now and then in between."""
        now = self._clock()
        new = stage != self._stage
        if new or done >= total or now - self._told >= PROGRESS_SECONDS:
            self._stage, self._told = stage, now
            self.write(
                "stage" if new else "progress",
                stage=stage,
                done=int(done),
                total=int(total),
                peak_rss_mb=round(peak_rss_mb(), 1),
            )

    def step(self, name: str, seconds: float) -> None:
        """Log a step that ended, as the timings file has it."""
        self.write("step", step=name, seconds=round(seconds, 3), peak_rss_mb=round(peak_rss_mb(), 1))


@dataclass(frozen=True, slots=True)
class LogFile:
    """What stands in a log."""

    lines: tuple[Mapping[str, Any], ...] = ()  # whole lines, oldest first
    damaged: int = 0  # lines that are none of ours; passed over
    # Whether the file ends within a line: a process was stopped while it wrote, or is about to write on.
    torn: bool = False
    # Lines of the last attempt, from its ``start`` on.
    attempt: tuple[Mapping[str, Any], ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        starts = [number for number, line in enumerate(self.lines) if line["event"] == "start"]
        object.__setattr__(self, "attempt", self.lines[starts[-1] :] if starts else ())

    @property
    def process(self) -> ProcessMark | None:
        """The process of the last attempt."""
        if not self.attempt:
            return None
        start = self.attempt[0]
        if not isinstance(start.get("host"), str) or not isinstance(start.get("pid"), int):
            return None
        return ProcessMark(
            start["host"], start.get("boot"), start.get("space"), start["pid"], start.get("started")
        )

    def last(self, *events: str) -> Mapping[str, Any] | None:
        """Return the newest line of the last attempt with one of these events (of all, if none is named)."""
        return next((line for line in reversed(self.attempt) if not events or line["event"] in events), None)


def _constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _parse(data: bytes) -> Mapping[str, Any] | None:
    try:
        value = json.loads(data, parse_constant=_constant)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not {"ts", "mono", "event"} <= value.keys():
        return None
    if any(name in FIELDS and not _fits(name, found) for name, found in value.items()):
        return None
    return None if None in (value["ts"], value["mono"], value["event"]) else value


def _fits(name: str, value: Any) -> bool:
    """Whether a field may have a value."""
    kinds = FIELDS[name][0]
    if value is None:
        return True
    if isinstance(value, bool):
        return kinds is _FLAG
    if isinstance(value, int | float):
        return kinds is _NUMBER and abs(value) < _LARGEST
    return isinstance(value, kinds)


def read_log(path: Path) -> LogFile:
    """Read a log, also one that is being written; what is torn or damaged is passed over.

    Raises `OSError` if the file cannot be read. One that is not there is empty.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return LogFile()
    pieces = data.split(b"\n")
    torn = pieces.pop() != b""
    parsed = [_parse(piece) for piece in pieces if piece.strip()]
    lines = tuple(line for line in parsed if line is not None)
    return LogFile(lines, len(parsed) - len(lines), torn)
