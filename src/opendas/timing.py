"""Where the time goes: confidential, never in a release."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

from opendas.io.atomic import write_atomic

__all__ = ["Clock", "default_workers", "peak_rss_mb"]


def default_workers() -> int:
    """Return the number of worker processes used by default: the machine's cores, at most two."""
    return min(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


class Clock:
    """Wall time of each step of a run, and peak memory at its end."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """Book the time since the last lap."""
        now = time.perf_counter()
        self._laps[name] = self._laps.get(name, 0.0) + now - self._last
        self._last = now

    def save(self, path: Path) -> None:
        """Write the laps."""
        document = {
            "seconds": round(time.perf_counter() - self._start, 3),
            "peak_rss_mb": round(peak_rss_mb(), 1),
            "steps": {name: round(seconds, 3) for name, seconds in self._laps.items()},
        }
        write_atomic(path, json.dumps(document, indent=1).encode())

    @staticmethod
    def read(path: Path) -> dict[str, float]:
        """Return seconds and peak memory of a finished run."""
        if not path.is_file():
            return {}
        document = json.loads(path.read_text(encoding="utf-8"))
        return {"seconds": document["seconds"], "peak_rss_mb": document["peak_rss_mb"]}


def peak_rss_mb() -> float:
    """Return the largest resident set of this process or of one of its ended children, in MB."""
    unit = 1024 * 1024 if sys.platform == "darwin" else 1024
    peaks = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max(peaks) / unit
