"""Rules for all tests."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # no test depends on how busy the machine is
settings.load_profile("untimed")


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
