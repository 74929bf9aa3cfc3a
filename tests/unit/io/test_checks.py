"""Checks that run beside others."""

from __future__ import annotations

from threading import Event

import pytest

from opendas.errors import CheckFailed
from opendas.verify.check import BackgroundCheck, Check, require


def test_a_check_beside_others_tells_what_it_found() -> None:
    with BackgroundCheck("mini: measurements", lambda _: "3 files") as check:
        assert check.outcome() == Check("mini: measurements", True, "3 files")


def test_a_check_beside_others_fails_as_others_do() -> None:
    def check(_: Event) -> str:
        raise CheckFailed("a file too many.")

    with BackgroundCheck("mini: measurements", check) as beside:
        assert beside.outcome() == Check("mini: measurements", False, "a file too many.")


def test_an_interrupt_does_not_wait_for_a_check_beside() -> None:
    started, ended = Event(), Event()

    def check(stop: Event) -> str:
        started.set()
        require(not stop.wait(60), "interrupted.")
        ended.set()  # only if nobody stopped it for a minute
        return "done"

    def interrupted() -> None:
        with BackgroundCheck("mini: measurements", check):
            assert started.wait(60)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not ended.is_set()
