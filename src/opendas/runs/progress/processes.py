"""Which process is at work, whether it still is, and how much memory it has."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil

_TICKS = 100
"""Of the kernel, a second: what a process's start is counted in."""


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """What tells one process from all others, also after its number was given to another."""

    host: str  # name of the machine
    boot: str | None  # identifier of the machine's last start; None where the system has none
    space: str | None  # identifier of the space in which process numbers are unique (a container has its own)
    pid: int
    started: int | None  # when it started, in the kernel's ticks since the machine's start


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def _started(process: psutil.Process) -> int:
    boot = psutil.boot_time()  # asked for first: the start of a process is counted from the same moment
    return round((process.create_time() - boot) * _TICKS)


def own_mark() -> ProcessMark:
    """Return the mark of this process."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = None
    boot = _text(Path("/proc/sys/kernel/random/boot_id"))
    return ProcessMark(socket.gethostname(), boot, space, os.getpid(), _started(psutil.Process()))


def is_alive(mark: ProcessMark) -> bool | None:
    """Whether a process is still there; None where that cannot be seen from here.

    `mark`: of a process on this machine; of any other, the answer is None.
    """
    here = own_mark()
    if mark.host != here.host:
        return None
    if mark.boot is not None and here.boot is not None and mark.boot != here.boot:
        return False  # the machine was started again since
    if mark.space != here.space:
        return None
    try:
        process = psutil.Process(mark.pid)
        same = mark.started is None or mark.started == _started(process)
        return same and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.AccessDenied:
        return True
    except (psutil.Error, ValueError, OverflowError):
        return False


def memory_mb(pid: int) -> float | None:
    """Return the memory of a process and of all below it in MB; None where the system does not say.

    All that the process itself has resident, and of those below what is not shared: programs and mapped files
    they have in common.
    """
    try:
        process = psutil.Process(pid)
        total = int(process.memory_info().rss)
        below = process.children(recursive=True)
    except (psutil.Error, ValueError, OverflowError):
        return None
    for child in below:
        try:
            found = child.memory_info()
        except psutil.Error:
            continue  # ended meanwhile
        total += found.rss - getattr(found, "shared", 0)
    return total / (1 << 20)


def available_memory_mb() -> float:
    """Return how much memory new work could take without swapping.

    The limit of a container counts where it is the smaller one.
    """
    free = psutil.virtual_memory().available / (1 << 20)
    return min([free, *(room for layout in _GROUPS if (room := _group_room(*layout)) is not None)])


_GROUP = Path("/sys/fs/cgroup")
_GROUPS = (
    (_GROUP / "memory.max", _GROUP / "memory.current", _GROUP / "memory.stat", "inactive_file "),
    (
        _GROUP / "memory" / "memory.limit_in_bytes",
        _GROUP / "memory" / "memory.usage_in_bytes",
        _GROUP / "memory" / "memory.stat",
        "total_inactive_file ",
    ),
)
"""Where a container's limit, use and files that could be dropped stand, in the newer and the older layout."""


def _group_room(limit: Path, used: Path, statistics: Path, droppable: str) -> float | None:
    """Return the MB that a container may still use; None where it has no limit."""
    most, now = _text(limit) or "", _text(used) or ""
    if not (most.isdigit() and now.isdigit()):
        return None
    lines = (_text(statistics) or "").splitlines()
    cache = sum(int(line.split()[1]) for line in lines if line.startswith(droppable))
    return max(0, int(most) - int(now) + cache) / (1 << 20)
