"""Which process is at work, whether it still is, and how much memory it has."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ProcessMark", "available_memory_mb", "is_alive", "memory_mb", "own_mark"]

_PROC = Path("/proc")
_GONE = ("Z", "X", "x")
"""States of a process that has ended and was not collected yet."""


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """What tells one process from all others, also after its number was given to another.

    Parameters
    ----------
    host : str
        Name of the machine.
    boot : str or None
        Identifier of the machine's last start; None where the system has none.
    space : str or None
        Identifier of the space in which process numbers are unique (a container has its own).
    pid : int
    started : int or None
        When it started, in the kernel's ticks since the machine's start.
    """

    host: str
    boot: str | None
    space: str | None
    pid: int
    started: int | None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def _stat(pid: int) -> list[str] | None:
    """Return the fields of a process after its name, which may hold blanks: state first."""
    text = _text(_PROC / str(pid) / "stat")
    return None if text is None else text.rpartition(")")[2].split()


def _started(fields: list[str] | None) -> int | None:
    return int(fields[19]) if fields is not None and len(fields) > 19 else None


def own_mark() -> ProcessMark:
    """Return the mark of this process."""
    try:
        space = os.readlink(_PROC / "self" / "ns" / "pid")
    except OSError:
        space = None
    boot = _text(_PROC / "sys" / "kernel" / "random" / "boot_id")
    return ProcessMark(socket.gethostname(), boot, space, os.getpid(), _started(_stat(os.getpid())))


def is_alive(mark: ProcessMark) -> bool | None:
    """Whether a process is still there; None where that cannot be seen from here.

    Parameters
    ----------
    mark : ProcessMark
        Of a process on this machine; of any other, the answer is None.
    """
    here = own_mark()
    if mark.host != here.host:
        return None
    if mark.boot is not None and here.boot is not None and mark.boot != here.boot:
        return False  # the machine was started again since
    if mark.space != here.space:
        return None
    fields = _stat(mark.pid)
    if fields is not None:
        same = mark.started is None or mark.started == _started(fields)
        return same and fields[0] not in _GONE
    if here.started is not None:  # this system shows its processes, and that one is not among them
        return False
    try:
        os.kill(mark.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in (_PROC / str(pid) / "task").glob("*/children"):
        found.extend(int(word) for word in (_text(task) or "").split())
    return found


def _resident_kb(pid: int, field: str) -> int | None:
    for line in (_text(_PROC / str(pid) / "status") or "").splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    return None


def memory_mb(pid: int) -> float | None:
    """Return the memory of a process and of all below it in MB; None where the system does not say.

    All that the process itself has resident, and of those below what is not backed by a file: programs and
    mapped files they have in common.
    """
    own = _resident_kb(pid, "VmRSS:")
    if own is None:
        return None
    seen, waiting, total = {pid}, _children(pid), own
    while waiting:
        child = waiting.pop()
        if child in seen:
            continue
        seen.add(child)
        total += _resident_kb(child, "RssAnon:") or 0
        waiting.extend(_children(child))
    return total / 1024


def available_memory_mb() -> float | None:
    """Return how much memory new work could take without swapping; None where the system does not say.

    The limit of a container counts where it is the smaller one.
    """
    free = [
        int(line.split()[1]) / 1024
        for line in (_text(_PROC / "meminfo") or "").splitlines()
        if line.startswith("MemAvailable:")
    ]
    free += [room for layout in _GROUPS if (room := _group_room(*layout)) is not None]
    return min(free) if free else None


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
