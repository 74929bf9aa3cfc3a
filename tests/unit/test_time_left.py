"""Time left: by the forecast at first, then by what was measured."""

from __future__ import annotations

import pytest

from opendas.runs.progress.clock import STEPS, TimeLeft, step_of_lap, step_of_stage

STEPS_AHEAD = {"reading": 10.0, "planning": 10.0, "estimating": 100.0, "writing": 30.0}
LEVELS = {"state": 0.1, "tract": 0.2, "block": 0.7}


def test_without_a_forecast_a_stage_is_judged_by_its_own_speed() -> None:
    left = TimeLeft()
    assert left.stage_left(0) is None
    left.see(0, "estimating block", 40, 100)
    assert left.stage_left(3) is None
    left.see(10, "estimating block", 60, 100)
    assert left.stage_left(10) == 20
    assert left.rate(10) == 2
    assert left.run_left(10) is None


def test_a_forecast_is_believed_at_the_start_of_a_stage_and_forgotten_after_a_quarter() -> None:
    left = TimeLeft(STEPS_AHEAD, LEVELS)
    left.see(0, "reading", 0, 1)
    assert left.stage_left(0) == 10
    assert left.run_left(0) == 150
    left.see(10, "reading", 1, 1)
    left.see(20, "estimating tract", 0, 100)
    assert left.stage_left(20) == pytest.approx(30)
    assert left.run_left(20) == pytest.approx(130)
    left.see(30, "estimating tract", 10, 100)  # three times slower than forecast
    assert left.stage_left(30) == pytest.approx(0.4 * 90 + 0.6 * 27)
    left.see(45, "estimating tract", 25, 100)
    assert left.stage_left(45) == pytest.approx(75)


def test_later_steps_are_as_slow_as_the_run_was_until_now() -> None:
    left = TimeLeft(STEPS_AHEAD, LEVELS)
    left.see(0, "reading", 0, 1)
    left.see(20, "reading", 1, 1)  # everything takes twice as long
    left.see(40, "estimating tract", 0, 100)
    left.see(100, "estimating tract", 100, 100)
    left.see(100, "estimating block", 0, 100)
    assert left.run_left(100) == pytest.approx(70 + 2 * 30)
    left.see(240, "estimating block", 100, 100)
    left.see(240, "writing", 0, 1)
    assert left.run_left(240) == pytest.approx(30)
    left.see(300, "writing", 1, 1)
    assert left.run_left(300) == 0


def test_time_left_never_grows_below_zero_and_waits_at_the_end() -> None:
    left = TimeLeft(STEPS_AHEAD)
    left.see(0, "reading", 0, 1)
    assert left.stage_left(9.5) == pytest.approx(1)
    assert left.stage_left(1000) == pytest.approx(1)


def test_a_resumed_stage_counts_what_was_there_as_done() -> None:
    left = TimeLeft(STEPS_AHEAD)
    left.see(0, "estimating block", 90, 100)
    assert left.stage_left(0) == pytest.approx(10)


def test_stages_and_laps_have_steps() -> None:
    assert [step_of_stage(s) for s in ("reading", "reading below tract", "estimating block")] == [
        *("reading", "gathering", "estimating")
    ]
    assert step_of_stage("measuring") == step_of_stage("writing") == "writing"
    assert step_of_lap("certificate and report") == "writing"
    assert {step_of_lap(lap) for lap in ("read", "plan", "estimate")} <= set(STEPS)
