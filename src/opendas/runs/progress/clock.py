"""Where the time goes, and how much is left: confidential, never in a release."""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from opendas.files.atomic import write_atomic

__all__ = [
    "STEPS",
    "Clock",
    "TimeLeft",
    "peak_rss_mb",
    "size_text",
    "step_of_lap",
    "step_of_stage",
]

STEPS = ("reading", "planning", "gathering", "estimating", "writing")
"""Steps of a run in order, as forecasts name them; gathering is the informed estimator's way up."""

_STEP_OF_LAP = {
    "read": "reading",
    "read measurements": "reading",
    "plan": "planning",
    "gather": "gathering",
    "estimate": "estimating",
}
_STEP_OF_STAGE = {"reading": "reading", "estimating": "estimating"}

_JUDGED = 0.25
"""From this part of a stage on, its own speed alone says how long it will take."""

_SLOWEST = 4.0
"""A machine is not taken to be more than so many times slower, or faster, than the forecast's."""


class Clock:
    """Wall time of each step of a run, and peak memory at its end.

    Parameters
    ----------
    on_lap : callable(name, seconds), optional
        Told of each lap.
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


def step_of_lap(name: str) -> str:
    """Return the step of :data:`STEPS` that a lap of a run's clock belongs to."""
    return _STEP_OF_LAP.get(name, "writing")


def step_of_stage(stage: str) -> str:
    """Return the step of :data:`STEPS` that a stage of a run's progress belongs to."""
    if stage.startswith("reading below"):
        return "gathering"
    return _STEP_OF_STAGE.get(stage.partition(" ")[0], "writing")


def peak_rss_mb() -> float:
    """Return the largest resident set of this process or of one of its ended children, in MB."""
    unit = 1024 * 1024 if sys.platform == "darwin" else 1024
    peaks = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max(peaks) / unit


def size_text(mb: float) -> str:
    """Write an amount of memory or disk shortly.

    Examples
    --------
    >>> size_text(0.2), size_text(340.4), size_text(12_345)
    ('1 MB', '341 MB', '12.1 GB')
    """
    return f"{max(1, math.ceil(mb))} MB" if mb < 10_240 else f"{mb / 1024:.1f} GB"


class TimeLeft:
    """How long a run will still take: by a forecast at first, then by what was measured.

    A stage is judged by the forecast until a quarter of it is done, more and more by its own speed. Later
    steps are those of the forecast, times how much slower this run was than its forecast so far.

    Parameters
    ----------
    steps : mapping of str to float, optional
        Forecast seconds of each of :data:`STEPS`. Without them, only a stage under way has a time left.
    levels : mapping of str to float, optional
        Part of the step ``estimating`` that each geolevel takes, top first; they add to 1.
    """

    def __init__(
        self, steps: Mapping[str, float] | None = None, levels: Mapping[str, float] | None = None
    ) -> None:
        self._steps: dict[str, float] = {}
        self._levels: dict[str, float] = {}
        self._stage: str | None = None
        self._step = STEPS[0]
        self._stage_began = 0.0
        self._began: float | None = None
        self._base = self._done = self._total = 0
        self._estimated = 0.0  # part of the step estimating that finished stages took
        self._share = 1.0
        self.expect(steps or {}, levels or {})

    def expect(self, steps: Mapping[str, float], levels: Mapping[str, float]) -> None:
        """Take a forecast, which may come when a run has begun already."""
        self._steps, self._levels = dict(steps), dict(levels)

    def rate(self, now: float) -> float | None:
        """Return the parts a second of the stage under way, None where nothing tells."""
        fresh, elapsed = self._done - self._base, now - self._stage_began
        return fresh / elapsed if fresh > 0 and elapsed > 0 else None

    def see(self, now: float, stage: str, done: int, total: int) -> None:
        """Take note of progress: at the time `now`, `done` of `total` parts of a stage are finished."""
        if self._began is None:
            self._began = now
        if stage != self._stage or done < self._done:
            self._enter(stage, now, done)
        self._done, self._total = done, total

    def _enter(self, stage: str, now: float, done: int) -> None:
        # Parts that were there at the start (a resumed run) say nothing about the speed.
        self._stage, self._stage_began, self._base = stage, now, done
        self._step = step_of_stage(stage)
        self._share = 1.0
        if self._step == "estimating":
            level = stage.partition(" ")[2]
            above = 0.0
            for name, share in self._levels.items():
                above += share
                if name == level:
                    self._share = max(0.0, above - self._estimated)
                    self._estimated = above

    def stage_left(self, now: float) -> float | None:
        """Return the seconds that the stage under way will still take, None where nothing tells."""
        if self._stage is None:
            return None
        if self._done >= self._total:
            return 0.0
        elapsed, fresh = now - self._stage_began, self._done - self._base
        todo = self._total - self._done
        measured = elapsed * todo / fresh if fresh > 0 else None
        expected = self._expected_stage()
        if expected is None or self._total <= 0:
            return measured
        prior = expected * todo / self._total
        if measured is None:
            return max(0.1 * prior, prior - elapsed)
        weight = min(1.0, fresh / (self._total - self._base) / _JUDGED)
        return weight * measured + (1 - weight) * prior

    def run_left(self, now: float) -> float | None:
        """Return the seconds that the run will still take, None without a forecast."""
        stage = self.stage_left(now)
        if stage is None or not self._steps:
            return None
        place = STEPS.index(self._step)
        later = sum(self._steps.get(name, 0.0) for name in STEPS[place + 1 :])
        if self._step == "estimating" and self._levels:
            later += self._steps.get("estimating", 0.0) * max(0.0, 1.0 - self._estimated)
        return stage + later * self._pace(now)

    def _expected_stage(self) -> float | None:
        return self._steps.get(self._step, 0.0) * self._share or None

    def _pace(self, now: float) -> float:
        """Return how much longer the run took than forecast until now, within limits."""
        if self._began is None:
            return 1.0
        place = STEPS.index(self._step)
        expected = sum(self._steps.get(name, 0.0) for name in STEPS[:place])
        if self._step == "estimating":
            expected += self._steps.get("estimating", 0.0) * max(0.0, self._estimated - self._share)
        under_way = self._expected_stage() or 0.0
        part = self._done / self._total if self._total else 0.0
        expected += under_way * part
        whole = sum(self._steps.values())
        if not whole or expected < 0.02 * whole:  # too early to tell
            return 1.0
        return min(_SLOWEST, max(1 / _SLOWEST, (now - self._began) / expected))
