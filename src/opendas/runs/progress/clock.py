"""Where the time goes, and how much is left: confidential, never in a release."""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

from opendas.custody.folders import write_atomic


class Clock:
    """Wall time of each step of a run, and peak memory at its end.

    `on_lap` (name, seconds): told of each lap.
    """

    def __init__(self, on_lap: Callable[[str, float], None] | None = None) -> None:
        self._start = self._last = time.perf_counter()
        self._laps: dict[str, float] = {}
        self.on_lap = on_lap

    def lap(self, name: str) -> None:
        """Book the time since the last lap."""
        now = time.perf_counter()
        seconds = now - self._last
        self._laps[name] = self._laps.get(name, 0.0) + seconds
        self._last = now
        if self.on_lap is not None:
            self.on_lap(name, seconds)

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
        """Return seconds and peak memory of a finished run; nothing where they are missing or damaged."""
        if not path.is_file():
            return {}
        try:
            document = json.loads(path.read_bytes())
            return {name: float(document[name]) for name in ("seconds", "peak_rss_mb")}
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return {}


def peak_rss_mb() -> float:
    """Return the largest resident set of this process or of one of its ended children, in MB."""
    unit = 1024 * 1024 if sys.platform == "darwin" else 1024
    own, children = (
        resource.getrusage(who).ru_maxrss / unit for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    status = Path("/proc/self/status")
    if status.exists():  # Linux counts to the former what the process was before it started this program
        (peak,) = (line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        own = int(peak) / 1024
    return max(own, children)


def size_text(mb: float) -> str:
    """Write an amount of memory or disk shortly.

    Examples
    --------
    >>> size_text(0.2), size_text(340.4), size_text(12_345)
    ('1 MB', '341 MB', '12.1 GB')
    """
    return f"{max(1, math.ceil(mb))} MB" if mb < 10_240 else f"{mb / 1024:.1f} GB"


class StageSpeed:
    """How fast the stage under way is, and how long it will still take: by what was done of it until now.

    A stage that has been silent for longer than its rest should take is expected to take as long again: the
    time left grows instead of standing at zero.
    """

    def __init__(self) -> None:
        self._stage: str | None = None
        self._began = self._seen = 0.0
        self._base = self._done = self._total = 0

    def see(self, now: float, stage: str, done: int, total: int) -> None:
        """Take note of progress: at the time `now`, `done` of `total` parts of a stage are finished."""
        if stage != self._stage or done < self._done:
            # Parts that were there at the start (a resumed run) say nothing about the speed.
            self._stage, self._began, self._base, self._seen = stage, now, done, now
        if done != self._done:
            self._seen = now
        self._done, self._total = done, total

    def rate(self) -> float | None:
        """Return the parts a second until the last one was finished, None where nothing tells."""
        fresh, elapsed = self._done - self._base, self._seen - self._began
        return fresh / elapsed if fresh > 0 and elapsed > 0 else None

    def left(self, now: float) -> float | None:
        """Return the seconds that the stage will still take, None where nothing tells."""
        if self._stage is None:
            return None
        if self._done >= self._total:
            return 0.0
        rate = self.rate()
        if rate is None:
            return None
        waited = max(0.0, now - self._seen)
        return max((self._total - self._done) / rate - waited, waited)
