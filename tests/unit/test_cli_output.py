"""JSON, tables and progress."""

from __future__ import annotations

import io
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from opendas.cli.output import Progress, emit_json, telling_compilation, text_table
from opendas.runs.simulated.forecast import Forecast


def test_json_is_strict(capsys: pytest.CaptureFixture[str]) -> None:
    emit_json(
        {
            "nan": float("nan"),
            "inf": [float("inf"), np.float64("-inf")],
            "rho": Fraction(293764, 114921),
            "n": np.int64(3),
            "path": Path("a"),
            "array": np.array([1.5]),
        }
    )

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    answer = json.loads(capsys.readouterr().out, parse_constant=refuse)
    expected = {"nan": None, "inf": [None, None], "rho": "293764/114921", "n": 3, "path": "a", "array": [1.5]}
    assert answer == expected


def test_tables_are_aligned() -> None:
    text = text_table(
        [{"geolevel": "block", "n": 5, "x": 1.23456}, {"geolevel": "tract", "n": 12345, "x": None}]
    )
    assert text.splitlines() == [
        "geolevel      n      x",
        "--------  -----  -----",
        "block         5  1.235",
        "tract     12345      -",
    ]
    assert text_table([]) == "(nothing)"


class Clock:
    """A clock that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_every_ten_seconds() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress(stream, clock) as progress:
        for second in range(31):
            clock.now = float(second)
            progress("tracts", second, 30)
    lines = stream.getvalue().splitlines()
    assert lines == [
        "tracts: 0 of 30 (0 %)",
        "tracts: 10 of 30 (33 %), 20 s left",
        "tracts: 20 of 30 (66 %), 10 s left",
        "tracts: 30 of 30 (100 %), 30 s",
    ]


def test_a_resumed_stage_judges_its_speed_by_fresh_work() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, clock)
    progress("blocks", 80, 100)
    clock.now = 10.0
    progress("blocks", 90, 100)
    assert stream.getvalue().splitlines()[-1] == "blocks: 90 of 100 (90 %), 10 s left"


def test_a_long_part_is_told_every_ten_seconds_and_never_with_nothing_left() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, clock)
    progress("estimating county", 0, 3)
    for second in range(1, 41):
        clock.now = float(second)
        if second == 1:
            progress("estimating county", 2, 3)
        progress.tick()
    clock.now = 41.0
    progress("estimating county", 3, 3)
    assert stream.getvalue().splitlines() == [
        "estimating county: 0 of 3 (0 %)",
        "estimating county: 2 of 3 (66 %), 9 s left",
        "estimating county: 2 of 3 (66 %), 19 s left",
        "estimating county: 2 of 3 (66 %), 29 s left",
        "estimating county: 2 of 3 (66 %), 39 s left",
        "estimating county: 3 of 3 (100 %), 41 s",
    ]


def test_a_terminal_gets_one_changing_line() -> None:
    stream, clock = Terminal(), Clock()
    with Progress(stream, clock) as progress:
        for step in range(11):
            clock.now = step / 10
            progress("a", step, 10)
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert text.count("\r") < 11


def test_a_single_step_says_that_it_is_at_work() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, clock)
    progress("reading", 0, 1)
    clock.now = 4.0
    progress("reading", 1, 1)
    assert stream.getvalue().splitlines() == ["reading ...", "reading: 4 s"]


FORECAST = Forecast(
    steps={},
    peak_rss_mb=300.0,
    memory_mb=900.0,
    output_mb=20.0,
    scratch_mb=5.5,
    answers=7,
    full=True,
    full_mb=0.1,
    workers=2,
    assumptions=("guessed",),
)


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_a_forecast_is_shown_and_the_time_left_of_each_stage(kind: type[io.StringIO]) -> None:
    stream, clock = kind(), Clock()
    with Progress(stream, clock) as progress:
        progress("reading", 0, 1)
        clock.now = 10.0
        progress("reading", 1, 1)
        progress.announce(FORECAST, ("memory is short.",))
        clock.now = 20.0
        progress("estimating tract", 0, 200)
        clock.now = 45.0
        progress("estimating tract", 100, 200)
        clock.now = 70.0
        progress("estimating tract", 200, 200)
        progress("estimating block", 0, 1000)
        clock.now = 130.0
        progress("estimating block", 500, 1000)
    lines = stream.getvalue().replace("\r", "\n").splitlines()
    shown = [line.rstrip() for line in lines if line.strip()]
    assert shown == [
        "reading ...",
        "reading: 10 s",
        "expected: 900 MB of memory, 26 MB of disk",
        f"measurements: {FORECAST.measurements}",
        "warning: memory is short.",
        "estimating tract: 0 of 200 (0 %)",
        "estimating tract: 100 of 200 (50 %), 25 s left",
        "estimating tract: 200 of 200 (100 %), 50 s",
        "estimating block: 0 of 1,000 (0 %)",
        "estimating block: 500 of 1,000 (50 %), 1 min 00 s left",
    ]


def test_compilation_is_told_where_it_happens_and_only_then(capsys: pytest.CaptureFixture[str]) -> None:
    from numba import njit

    @njit
    def twice(number: int) -> int:
        return 2 * number

    with telling_compilation():
        assert twice(2) == 4
    said = capsys.readouterr().err
    assert "compiling code for this machine, once" in said
    assert "compiled 1 functions" in said
    with telling_compilation():
        assert twice(3) == 6
    assert capsys.readouterr().err == ""
