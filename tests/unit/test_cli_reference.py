"""The page of commands is the commands."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_reference_page_is_up_to_date() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "generate_cli.py"))["page"]()
    assert (ROOT / "docs" / "cli.md").read_text() == page, "run python docs/generate_cli.py"


def test_every_command_is_on_the_page() -> None:
    from opendas.cli.main import COMMANDS

    text = (ROOT / "docs" / "cli.md").read_text()
    assert all(f"## opendas {name}\n" in text for name in COMMANDS)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_the_line_for_bash_completes_commands_and_options() -> None:
    (line,) = re.findall(r"(eval .*bash_source.*)", (ROOT / "docs" / "cli.md").read_text())
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for typed, offered in (("ta", "tabulate"), ("plan --fu", "--full")):
        words = f"COMP_WORDS=(opendas {typed}); COMP_CWORD={len(typed.split())}"
        script = f'{line}; {words}; _opendas_completion opendas; echo "${{COMPREPLY[@]}}"'
        done = subprocess.run(
            ["bash", "-c", script], env={**os.environ, "PATH": programs}, capture_output=True, text=True
        )
        assert done.stdout.split() == [offered], done.stderr
