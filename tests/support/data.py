"""Where the tests find data that are not part of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def shared_data(name: str) -> Path:
    """Return a file or folder of ``../shared/data``, or skip the test where it is absent.

    With the environment variable ``OPENDAS_REQUIRE_ALL`` set, an absent file fails the test instead.
    """
    path = _SHARED / name
    if path.exists():
        return path
    reason = f"needs ../shared/data/{name}, which is not part of the repository"
    if os.environ.get("OPENDAS_REQUIRE_ALL"):
        pytest.fail(reason)
    pytest.skip(reason)
