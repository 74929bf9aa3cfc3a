"""The declarations of the DHC production, for tests that compare ours with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

TABLES = Path(__file__).resolve().parents[3] / "shared" / "reference" / "dhc-tables.json"


def production_tables(product: str) -> dict[str, Any]:
    """Return what the production declares for ``dhcp`` or ``dhch``; skips where the file is absent."""
    if not TABLES.is_file():
        pytest.skip(f"the tables of the production's own declarations are not at {TABLES}")
    found: dict[str, Any] = json.loads(TABLES.read_text(encoding="utf-8"))["products"][product]
    return found


def ranges(text: str) -> set[int]:
    """Read ``"0-2,31"``."""
    found: set[int] = set()
    for part in text.split(","):
        low, _, high = part.partition("-")
        found |= set(range(int(low), int(high or low) + 1))
    return found
