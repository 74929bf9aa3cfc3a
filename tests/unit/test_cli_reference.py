"""The page of commands is the commands."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_reference_page_is_up_to_date() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "generate_cli.py"))["page"]()
    assert (ROOT / "docs" / "cli.md").read_text() == page, "run python docs/generate_cli.py"


def test_every_command_is_on_the_page() -> None:
    from opendas.cli.main import COMMANDS

    text = (ROOT / "docs" / "cli.md").read_text()
    assert all(f"## opendas {name}\n" in text for name in COMMANDS)
