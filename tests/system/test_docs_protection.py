"""The page on what the 2020 plans leave protected says what the plans say."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_tables_are_those_of_the_plans() -> None:
    script = runpy.run_path(str(DOCS / "generate_protection.py"))
    page = (DOCS / "protection.md").read_text(encoding="utf-8")
    assert {found[1] for found in script["TABLE"].findall(page)} == set(script["RUNS"])
    assert script["written"](page) == page, "run python docs/generate_protection.py"
    assert "geolevel | `block` | published exactly" in script["table"]("units")
    assert "attribute | `occupancy` | protected |" in script["table"]("units")
