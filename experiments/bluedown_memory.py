"""The most memory a process had; Linux counts that of the process that started it with `getrusage`."""

from __future__ import annotations

from pathlib import Path


def most_memory() -> float:
    """Return the peak of this process's own memory so far, in MiB."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmHWM in /proc/self/status")
