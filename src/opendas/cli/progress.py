"""Progress with time left, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from opendas.runs.progress.clock import StageSpeed, size_text

if TYPE_CHECKING:
    from opendas.runs.progress.forecast import Forecast

__all__ = ["Progress", "duration"]

_TTY_SECONDS = 0.2
_LOG_SECONDS = 10.0


def duration(seconds: float) -> str:
    """Write a duration shortly.

    Examples
    --------
    >>> duration(3.2), duration(75), duration(7384)
    ('3 s', '1 min 15 s', '2 h 03 min')
    """
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Progress:
    """Shows ``(stage, done, total)`` reports: one changing line on a terminal, else a line now and then.

    Time left is that of the stage, by its own speed.

    Parameters
    ----------
    stream : text stream, optional
        Standard error by default.
    clock : callable, optional
        Seconds, growing.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._terminal = self._stream.isatty()
        self._stage: str | None = None
        self._started = 0.0
        self._done = 0
        self._speed = StageSpeed()
        self._shown = -_LOG_SECONDS
        self._width = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def announce(self, forecast: Forecast, warnings: tuple[str, ...] = ()) -> None:
        """Say what a run is expected to need."""
        disk = forecast.output_mb + forecast.scratch_mb
        self.close()
        self._stream.write(
            f"expected: {size_text(forecast.memory_mb)} of memory, {size_text(disk)} of disk\n"
        )
        for warning in warnings:
            self._stream.write(f"warning: {warning}\n")
        self._stream.flush()

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Report that `done` of `total` parts of a stage are finished."""
        now = self._clock()
        new = stage != self._stage or done < self._done
        self._done = done
        if new:
            self._stage, self._started = stage, now
        self._speed.see(now, stage, done, total)
        pause = _TTY_SECONDS if self._terminal else _LOG_SECONDS
        ended = done >= total
        if new or ended or now - self._shown >= pause:
            self._shown = now
            self._show(self._line(stage, done, total, now))

    def _line(self, stage: str, done: int, total: int, now: float) -> str:
        elapsed = now - self._started
        if total <= 1:
            return f"{stage}: {duration(elapsed)}" if done >= total else f"{stage} ..."
        text = f"{stage}: {done:,} of {total:,} ({100 * done // total} %)"
        if done >= total:
            return f"{text}, {duration(elapsed)}"
        left = self._speed.left(now)
        return text if left is None else f"{text}, {duration(left)} left"

    def _show(self, line: str) -> None:
        if self._terminal:
            self._stream.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def close(self) -> None:
        """End the changing line."""
        if self._terminal and self._width:
            self._stream.write("\n")
            self._stream.flush()
            self._width = 0
