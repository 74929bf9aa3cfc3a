"""The state of the machine."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from click.testing import CliRunner

import opendas
from opendas.cli.main import cli
from opendas.runs.context import machine


def test_doctor_passes_where_these_tests_run() -> None:
    result = CliRunner().invoke(cli, ["doctor", "--json"], obj={})
    answer = json.loads(result.stdout)
    assert result.exit_code == (0 if answer["ready"] else 6)
    names = {check["name"] for check in answer["checks"]}
    assert {"python", "cores", "memory", "disk", "permissions", "packages", "compiler cache", "java"} <= names
    assert all(check["advice"] for check in answer["checks"] if check["level"] == "problem")


def test_doctor_finds_the_pages_that_messages_name_and_the_folder_of_compiled_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    found = {finding.name: finding for finding in machine.examine()}
    package = Path(opendas.__file__).parent
    assert found["documentation"].detail == f"pages named docs/... are in {package.parents[1] / 'docs'}"
    assert found["compiler cache"].detail == f"kept under {package}"


def test_a_full_disk_is_a_problem_with_advice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 0))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["doctor"], obj={})
    assert result.exit_code == 6
    assert "problem  disk: 0.0 GiB free" in result.stdout
    assert "not ready" in result.stdout


def test_a_missing_or_old_package_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = ["numpy>=999", "no-such-package-here>=1", "click", 'pandas>=999; extra == "frames"']
    monkeypatch.setattr(machine.metadata, "requires", lambda name: needed)
    problems = {f.name: f for f in machine.examine() if f.level == "problem"}
    assert {"numpy", "no-such-package-here"} <= set(problems)
    assert "pandas" not in problems


@pytest.mark.parametrize(
    ("version", "least", "good"),
    [
        ("2.10.1", "2.9", True),
        ("1.9", "1.14", False),
        ("5", "5.0", True),
        ("26.0.1", "18", True),
        ("3.0rc1", "3", True),
    ],
)
def test_versions_are_compared_by_number(version: str, least: str, good: bool) -> None:
    assert machine.version_at_least(version, least) is good
