"""The page about watching a run has the fields that the code has."""

from __future__ import annotations

import runpy
from dataclasses import fields
from pathlib import Path

from opendas.runs.status import RunStatus

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_tables_of_fields_are_up_to_date() -> None:
    page = runpy.run_path(str(DOCS / "generate_observability.py"))["page"]
    text = (DOCS / "observability.md").read_text(encoding="utf-8")
    assert page(text) == text, "run python docs/generate_observability.py"


def test_every_field_of_a_status_is_explained() -> None:
    text = (DOCS / "observability.md").read_text(encoding="utf-8")
    table = text.partition("## From outside: status")[2].partition("## The log")[0]
    for field in fields(RunStatus):
        assert f"`{field.name}`" in table, field.name
