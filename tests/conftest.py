"""Rules for all tests."""

from __future__ import annotations

import fcntl
import itertools
import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from numba.core.dispatcher import Dispatcher
from support.seeds import NEW_EXAMPLES, examples

collect_ignore_glob = ["reference/make_*.py"]  # scripts that need what tests do not

# No test depends on how busy the machine is, or on chance unless one asks for it.
settings.register_profile(
    "here", deadline=None, max_examples=examples(settings().max_examples), derandomize=not NEW_EXAMPLES
)
settings.load_profile("here")


_LOCKS = Path(tempfile.gettempdir()) / f"opendas-kernels-{os.getuid()}"
_compile = Dispatcher.compile


def _compile_in_turn(self: Any, signature: Any) -> Any:
    """Compile a kernel while no other process does: who waited finds it in the compiler's cache."""
    _LOCKS.mkdir(exist_ok=True)
    with (_LOCKS / f"{self.py_func.__module__}.{self.py_func.__qualname__}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _compile(self, signature)


Dispatcher.compile = _compile_in_turn


_NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def _no_books_of_this_user(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test note a book where this user's runs look, nor find one there, nor one of another test."""
    monkeypatch.setenv("OPENDAS_BOOKS", str(tmp_path_factory.getbasetemp() / f"books-{next(_NUMBERS)}"))


def _fail_if_skipped(report: Any) -> None:
    """Turn a skip into a failure where everything that tests need was announced to be there."""
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("OPENDAS_REQUIRE_ALL"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"skipped although OPENDAS_REQUIRE_ALL is set: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    report = yield
    _fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    report = yield
    _fail_if_skipped(report)
    return report
