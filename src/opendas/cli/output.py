"""What commands say: answers on stdout, as strict JSON or text tables; progress on stderr."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

import click

from opendas.runs.progress.clock import StageSpeed, size_text

if TYPE_CHECKING:
    from opendas.runs.simulated.forecast import Forecast

FOR_ONE_COMMAND = "opendas-compiled-"
"""Begins the name of a folder of compiled code that is removed when the command ends."""

_TTY_SECONDS = 0.2
_LOG_SECONDS = 10.0


def _plain(value: Any) -> Any:
    """Return a value in JSON's types; what JSON has no number for becomes null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Fraction | Path):
        return str(value)
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, Iterable):
        return [_plain(item) for item in value]
    return str(value)


def emit_json(value: Any) -> None:
    """Write one strict JSON value (no NaN, no Infinity) to stdout."""
    click.echo(json.dumps(_plain(value), allow_nan=False, ensure_ascii=False))


def echo_protection(record: Mapping[str, Any]) -> None:
    """Write what the exact facts of a run leave protected, from its JSON."""
    from opendas.measurement.protected import Protection

    found = Protection.from_dict(record)
    known = f"with {', '.join(found.facts)} published exactly" if found.facts else "nothing published exactly"
    click.echo(textwrap.fill(f"what is protected of a record ({known}):", 100))
    click.echo(
        text_table([{"of a record": kind, "name": name, "is": text} for kind, name, text in found.rows()])
    )


def echo_paths(paths: Iterable[Path]) -> None:
    """Write paths to stdout, one a line."""
    for path in paths:
        click.echo(str(path))


def message(text: str) -> None:
    """Write a message to stderr."""
    click.echo(text, err=True)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else "-"
    return str(value)


def text_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """Return rows as aligned text: numbers to the right, words to the left.

    `columns`: which, in which order; by default those of the first row.
    """
    if not rows:
        return "(nothing)"
    names = list(columns or rows[0])
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    numeric = [all(isinstance(row.get(name), int | float | None) for row in rows) for name in names]
    widths = [max(len(name), *(len(row[i]) for row in cells)) for i, name in enumerate(names)]

    def line(values: Sequence[str]) -> str:
        parts = [
            value.rjust(width) if right else value.ljust(width)
            for value, width, right in zip(values, widths, numeric, strict=True)
        ]
        return "  ".join(parts).rstrip()

    return "\n".join([line(names), line(["-" * width for width in widths]), *(line(row) for row in cells)])


def echo_table(title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> None:
    """Write an empty line, a title and rows as a table; nothing where there are no rows."""
    if rows:
        click.echo(f"\n{title}\n{text_table(rows, columns)}")


def duration(seconds: float, about: str = "") -> str:
    """Write a duration shortly, with a word before those of a second or more.

    Examples
    --------
    >>> duration(0.2), duration(3.2), duration(75), duration(7384)
    ('less than 1 s', '3 s', '1 min 15 s', '2 h 03 min')
    """
    whole = round(seconds)
    if whole < 1:
        return "less than 1 s"
    if whole < 60:
        return f"{about}{whole} s"
    if whole < 3600:
        return f"{about}{whole // 60} min {whole % 60:02d} s"
    return f"{about}{whole // 3600} h {whole % 3600 // 60:02d} min"


@contextlib.contextmanager
def telling_compilation() -> Iterator[None]:
    """Say that code is compiled for this machine, and how much of it, where it is and only then.

    What was compiled before comes from the cache, of which nothing is told.
    """
    from numba.core import event  # takes half a second, which a run needs anyway

    kept = not Path(os.environ.get("NUMBA_CACHE_DIR", "")).name.startswith(FOR_ONE_COMMAND)

    class Teller(event.Listener):
        depth = kernels = 0
        told = 0.0

        def on_start(self, happened: Any) -> None:
            self.depth += 1
            now = time.monotonic()
            if not self.kernels and self.depth == 1:
                message(f"compiling code for this machine{', once' if kept else ''}")
            elif self.depth == 1 and now - self.told > _LOG_SECONDS:
                name = happened.data["dispatcher"].py_func.__name__.strip("_").replace("_", " ")
                message(f"compiling: {self.kernels} functions done, now {name}")
            else:
                return
            self.told = now

        def on_end(self, happened: Any) -> None:
            self.depth -= 1
            self.kernels += 1

    teller = Teller()
    with event.install_listener("numba:compile", teller):
        yield
    if teller.kernels:
        after = (
            "the next run reuses them"
            if kept
            else "no folder keeps them for the next run: see opendas doctor"
        )
        message(f"compiled {teller.kernels} functions; {after}")


class Progress:
    """Shows ``(stage, done, total)`` reports: one changing line on a terminal, else a line now and then.

    Time left is that of the stage, by its own speed. In a ``with`` statement a part that takes long is told
    too: every ten seconds, by a thread of its own.

    - `stream`, text stream: standard error by default.
    - `clock`: seconds, growing.
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
        self._total = 0
        self._ended = threading.Event()

    def __enter__(self) -> Progress:
        threading.Thread(target=self._follow, daemon=True).start()
        return self

    def _follow(self) -> None:
        while not self._ended.wait(_LOG_SECONDS):
            self.tick()

    def tick(self) -> None:
        """Say how far the stage under way is, where nothing was said for a while."""
        now = self._clock()
        if self._stage is not None and self._done < self._total and now - self._shown >= _LOG_SECONDS:
            self._shown = now
            self._show(self._line(self._stage, self._done, self._total, now))

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self.close()

    def announce(self, forecast: Forecast, warnings: tuple[str, ...] = ()) -> None:
        """Say what a run is expected to need."""
        disk = forecast.output_mb + forecast.scratch_mb
        self.close()
        self._stream.write(
            f"expected: {size_text(forecast.memory_mb)} of memory, {size_text(disk)} of disk\n"
        )
        self._stream.write(f"measurements: {forecast.measurements}\n")
        for warning in warnings:
            self._stream.write(f"warning: {warning}\n")
        self._stream.flush()

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Report that `done` of `total` parts of a stage are finished."""
        now = self._clock()
        new = stage != self._stage or done < self._done
        self._done, self._total = done, total
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
            so_far = f" {duration(elapsed)}" if elapsed >= _LOG_SECONDS else ""
            return f"{stage}: {duration(elapsed)}" if done >= total else f"{stage} ...{so_far}"
        text = f"{stage}: {done:,} of {total:,} ({100 * done // total} %)"
        if done >= total:
            return f"{text}, {duration(elapsed)}"
        left = self._speed.left(now)
        if left is None:
            return f"{text}, {duration(elapsed)}" if elapsed >= _LOG_SECONDS else text
        return f"{text}, {duration(max(1.0, left))} left"

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
