"""Inside the dying process: file operations are counted, recorded, and at one of them the process dies.

Switched on by the environment variable ``OPENDAS_CRASH``, a JSON object (:class:`Orders`). Python's doors
to the file system are replaced before the program is imported: ``open`` and the operations of :mod:`os`.
What goes past them (arrays that numpy writes through C) is not counted, but it is on the disk like
everything else, and as little durable until somebody flushes it: the journal rests on flushes, not on
writes.

The journal is one file of JSON lines per process. It says what became durable, and nothing else: the
content of a file when it was flushed, the entries of a folder when it was flushed, and which folders are
new.
"""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import shutil
import signal
import stat
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["VARIABLE", "Orders", "start"]

VARIABLE = "OPENDAS_CRASH"
_MAIN = "OPENDAS_CRASH_MAIN"
_FULL = "full"

_open, _os_open, _os_write = io.open, os.open, os.write
_fsync, _exists, _kill = os.fsync, os.path.exists, os.kill


@dataclass(frozen=True, slots=True)
class Orders:
    """What the recorder is to do.

    Parameters
    ----------
    root : str
        The disk: only operations below it count.
    journal : str
        Folder outside of it.
    durable : bool
        Write down what became durable, for a power cut.
    who : str
        ``main`` or ``worker``: whose operations are counted.
    at : int
        The operation to die at, from 1; 0 for none.
    act : str
        ``kill``: this process is killed; ``cut``: all processes of the run are; ``full``: from here on the
        disk takes nothing more; ``SIGINT`` or ``SIGTERM``: the signal is sent to this process.
    share : float
        Of a write that is died at, how much still reaches the file.
    mutant : str
        Name of a mutant to break the program with; see :mod:`audit.crashes.mutants`.
    """

    root: str
    journal: str
    durable: bool = False
    who: str = "main"
    at: int = 0
    act: str = "kill"
    share: float = 0.0
    mutant: str = ""

    def text(self) -> str:
        """Return what goes into the environment variable."""
        return json.dumps(asdict(self))


class Recorder:
    """Counts and records the file operations of one process."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.root = os.path.realpath(orders.root)
        self.counted = ("worker" if _MAIN in os.environ else "main") == orders.who
        os.environ.setdefault(_MAIN, str(os.getpid()))
        self.count = 0
        self.full = os.path.join(orders.journal, _FULL)
        self._log = -1

    def place(self, target: Any, folder: int | None = None) -> str:
        """Return the absolute path of a path or descriptor, or nothing where it cannot be known."""
        try:
            if isinstance(target, int):
                return os.readlink(f"/proc/self/fd/{target}")
            path = os.fsdecode(target)
            if folder is not None:
                path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
            return os.path.abspath(path)
        except (OSError, TypeError, ValueError):
            return ""

    def inside(self, target: Any, folder: int | None = None) -> bool:
        """Whether an operation is on the disk under test."""
        path = self.place(target, folder)
        return path == self.root or path.startswith(self.root + os.sep)

    def reach(self, operation: str) -> bool:
        """Count an operation; return whether it is the one to die at."""
        if not self.counted:
            return False
        self.count += 1
        return self.count == self.orders.at

    def before(self, operation: str, *, grows: bool = False) -> None:
        """Count an operation that is no write, and die before it where that was ordered."""
        if self.reach(operation):
            self.strike()
        if grows and _exists(self.full):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def strike(self) -> None:
        """Do what was ordered."""
        act = self.orders.act
        self.say("struck", at=self.count)
        if act == "kill":
            _kill(os.getpid(), signal.SIGKILL)
        elif act == "cut":
            os.killpg(os.getpgrp(), signal.SIGKILL)
        elif act == "full":
            with _open(self.full, "w"):
                pass
        else:
            _kill(os.getpid(), getattr(signal, act))

    def write(self, data: Any, put: Any) -> int:
        """Write through `put`, or a part of it where that was ordered, or nothing where the disk is full."""
        view = memoryview(data).cast("B")
        part = int(self.orders.share * len(view))
        if self.reach("write"):
            if part and self.orders.act in ("kill", "cut", "full"):
                put(view[:part])
            self.strike()
        if _exists(self.full):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(put(data))

    def say(self, kind: str, **fields: object) -> None:
        """Append a line to the journal of this process."""
        if self._log < 0:
            path = os.path.join(self.orders.journal, f"{os.getpid()}.jsonl")
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._log = _os_open(path, flags, 0o600)
        line = json.dumps({"time": time.monotonic_ns(), "kind": kind, **fields}) + "\n"
        _os_write(self._log, line.encode())

    def flushed(self, descriptor: int) -> None:
        """Record what is durable now: taken before the flush itself, so that nothing later is counted in."""
        if not self.orders.durable:
            return
        status = os.fstat(descriptor)
        path = self.place(descriptor)
        if stat.S_ISDIR(status.st_mode):
            entries = {
                entry.name: [entry.inode(), entry.is_dir(follow_symlinks=False)] for entry in os.scandir(path)
            }
            self.say("folder", inode=status.st_ino, entries=entries)
        elif stat.S_ISREG(status.st_mode):
            copy = os.path.join(self.orders.journal, "contents", f"{os.getpid()}-{time.monotonic_ns()}")
            with _open(f"/proc/self/fd/{descriptor}", "rb") as source, _open(copy, "wb") as target:
                shutil.copyfileobj(source, target)
            self.say("file", inode=status.st_ino, content=copy, mode=stat.S_IMODE(status.st_mode))

    def made(self, what: str, status: os.stat_result) -> None:
        """Record a new file or folder: nothing of it is durable, whatever had its inode before."""
        if self.orders.durable:
            self.say(f"new {what}", inode=status.st_ino)


class _File(io.FileIO):
    """A file whose writes are counted."""

    recorder: Recorder

    def write(self, data: Any) -> int:
        return self.recorder.write(data, super().write)

    def truncate(self, size: int | None = None) -> int:
        self.recorder.before("truncate")
        return super().truncate(size)


def _opener(recorder: Recorder) -> Any:
    def opened(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        writes = bool(set(mode) & set("wax+"))
        if not writes or not recorder.inside(file):
            return _open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        if not isinstance(file, int):
            recorder.before("open", grows=True)
        known = isinstance(file, int) or _exists(file)
        raw = _File(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        if not known:
            recorder.made("file", os.fstat(raw.fileno()))
        if "b" in mode and buffering == 0:
            return raw
        size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
        buffered = io.BufferedRandom(raw, size) if "+" in mode else io.BufferedWriter(raw, size)
        if "b" in mode:
            return buffered
        return io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)

    return opened


def _replace(recorder: Recorder) -> None:
    """Put counting doors in the place of those of :mod:`os`."""
    make, truncate = os.mkdir, os.ftruncate

    def os_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & (os.O_CREAT | os.O_TRUNC) and recorder.inside(path, dir_fd):
            recorder.before("open", grows=bool(flags & os.O_CREAT))
            known = _exists(recorder.place(path, dir_fd))
            descriptor = _os_open(path, flags, mode, dir_fd=dir_fd)
            if not known:
                recorder.made("file", os.fstat(descriptor))
            return descriptor
        return _os_open(path, flags, mode, dir_fd=dir_fd)

    def os_write(descriptor: int, data: Any) -> int:
        if not recorder.inside(descriptor):
            return _os_write(descriptor, data)
        return recorder.write(data, lambda part: _os_write(descriptor, part))

    def fsync(fd: Any) -> None:
        number = fd if isinstance(fd, int) else fd.fileno()
        if recorder.inside(number):
            recorder.before("fsync")
            recorder.flushed(number)
        else:
            _fsync(number)

    def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        inside = recorder.inside(path, dir_fd)
        if inside:
            recorder.before("mkdir", grows=True)
        make(path, mode, dir_fd=dir_fd)
        if inside:
            recorder.made("folder", os.stat(path, dir_fd=dir_fd))

    def ftruncate(descriptor: int, length: int) -> None:
        if recorder.inside(descriptor):
            recorder.before("truncate")
        truncate(descriptor, length)

    def one(name: str) -> Any:
        original = getattr(os, name)

        def call(path: Any, *more: Any, **options: Any) -> Any:
            if recorder.inside(path, options.get("dir_fd", options.get("src_dir_fd"))):
                recorder.before(name)
            return original(path, *more, **options)

        return call

    for name in ("rename", "replace", "unlink", "remove", "rmdir", "link", "chmod", "truncate"):
        setattr(os, name, one(name))
    os.open, os.write, os.mkdir, os.ftruncate = os_open, os_write, mkdir, ftruncate
    os.fsync = os.fdatasync = fsync
    builtins.open = io.open = _opener(recorder)


def start(text: str) -> None:
    """Begin to record in this process."""
    orders = Orders(**json.loads(text))
    recorder = Recorder(orders)
    _File.recorder = recorder
    _replace(recorder)
    if orders.mutant:
        from audit.crashes.mutants import arm

        arm(orders.mutant)
    if recorder.counted:
        import atexit

        atexit.register(lambda: recorder.say("count", operations=recorder.count))


def operations(journal: Path) -> int:
    """Return how many operations an undisturbed life had, in the process that did most of them."""
    found = [0]
    for path in journal.glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        found += [line["operations"] for line in lines if line["kind"] == "count"]
    return max(found)


if __name__ == "__main__":
    sys.exit("the recorder is started by audit/crashes/site/sitecustomize.py")
