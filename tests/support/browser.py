"""The explorer in a real browser: its process, and a page of headless Chromium."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["chromium", "explorer"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@contextmanager
def chromium() -> Iterator[Any]:
    """Start headless Chromium through Playwright; skips the test where one of them is absent."""
    program = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("needs Chromium, which is not on this machine")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def explorer(*arguments: str) -> Iterator[str]:
    """Run ``opendas explore`` as a user does; gives the address that it prints."""
    command = [sys.executable, "-m", "opendas", "explore", "--no-browser", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+/\S*", line)
            assert found is not None, line + process.stderr.read()
            yield found.group()
        finally:
            process.terminate()
            process.wait(20)
