"""Time left of a stage: by what was done of it until now."""

from __future__ import annotations

from opendas.runs.progress.clock import StageSpeed


def test_a_stage_is_judged_by_its_own_speed() -> None:
    speed = StageSpeed()
    assert speed.left(0) is None
    speed.see(0, "estimating tract", 40, 100)  # a resumed run: what was there says nothing about the speed
    assert speed.left(3) is None
    speed.see(10, "estimating tract", 60, 100)
    assert (speed.rate(), speed.left(10)) == (2, 20)
    speed.see(40, "estimating tract", 100, 100)
    assert speed.left(40) == 0


def test_a_new_stage_begins_anew() -> None:
    speed = StageSpeed()
    speed.see(0, "estimating tract", 0, 100)
    speed.see(10, "estimating tract", 100, 100)
    speed.see(10, "estimating block", 0, 100)
    assert speed.left(10) is None
    speed.see(30, "estimating block", 10, 100)
    assert speed.left(30) == 180
    speed.see(31, "estimating block", 0, 100)  # the same name again, as in another attempt
    assert speed.rate() is None


def test_a_part_that_lasts_is_never_said_to_end_now() -> None:
    speed = StageSpeed()
    speed.see(0, "estimating county", 0, 3)
    speed.see(1, "estimating county", 2, 3)
    left = [speed.left(1 + seconds) for seconds in (0, 0.25, 1, 60, 180)]
    assert left == [0.5, 0.25, 1, 60, 180]
