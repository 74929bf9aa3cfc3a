"""Walking to a folder: an interrupt in the middle is told as one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from opendas.custody.folders import open_folder


def test_an_interrupt_after_a_folder_was_closed_is_no_failure_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing a descriptor again fails, or closes what another thread has opened since."""
    close: Callable[[int], None] = os.close

    def interrupted(descriptor: int) -> None:
        close(descriptor)
        monkeypatch.setattr(os, "close", close)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "close", interrupted)
    with pytest.raises(KeyboardInterrupt), open_folder(tmp_path):
        pass
