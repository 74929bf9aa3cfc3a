"""The commands on the pages for the first hour do what the pages say."""

from __future__ import annotations

import random
import re
import shlex
import shutil
from pathlib import Path

import pytest
from support.data import shared_data

from opendas.cli.failures import guarded
from opendas.cli.main import cli

DOCS = Path(__file__).resolve().parents[2] / "docs"


def commands(page: str) -> list[list[str]]:
    """Return the arguments of every indented ``opendas`` command of a page."""
    found = re.findall(r"^    opendas (.*)$", (DOCS / page).read_text(), re.MULTILINE)
    return [shlex.split(line) for line in found]


def run_all(lines: list[list[str]]) -> None:
    for line in lines:
        assert guarded(cli, line) == 0, line


def test_my_own_csv_in_five_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = random.Random(1)
    rows = ["region,hospital,ward,age,severity"]
    for _ in range(2000):
        region = rng.choice(["north", "south"])
        hospital = f"{region[0].upper()}{rng.randint(1, 3)}"
        values = (rng.choice(["adult", "child"]), rng.choice(["low", "high"]))
        rows.append(f"{region},{hospital},{hospital}-{rng.choice('abcd')},{','.join(values)}")
    Path("patients.csv").write_text("\n".join(rows) + "\n")
    monkeypatch.setenv("OPENDAS_BOOKS", str(tmp_path / "books"))
    lines = [line for line in commands("own-csv.md") if "stand-in" not in " ".join(line)]
    names = [line[0] for line in lines]
    assert names == ["ledger", "init", "plan", "run", "verify", "tabulate", "evaluate"]
    run_all(lines)
    tables = sorted(path.name for path in Path("tables").iterdir())
    assert tables == ["detailed_hospital.csv", "total_hospital.csv"]


def test_the_first_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_all([["demo", "--blocks", "300"]])
    lines = [
        line for line in commands("first-hour.md") if "ri" not in line and "ri2010" not in " ".join(line)
    ]
    names = [line[0] for line in lines]
    assert names == ["demo", "--version", "doctor", "verify", "plan", "account", "tabulate", "evaluate"]
    run_all([line for line in lines if line[0] not in ("demo", "doctor")])
    assert Path("demo-out/out/release/report.html").is_file()
    for path in re.findall(r"^    demo-out/out/(\S+)", (DOCS / "first-hour.md").read_text(), re.MULTILINE):
        assert (Path("demo-out/out") / path).exists(), path


@pytest.mark.slow
def test_a_real_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = shared_data("pl94_2010_ri/ri2010.pl.zip")
    monkeypatch.chdir(tmp_path)
    lines = [line for line in commands("first-hour.md") if "ri" in line or "ri2010" in " ".join(line)]
    assert [line[0] for line in lines] == ["init", "fetch", "plan", "run", "run", "verify"]
    # The test does without the internet: fetch keeps a whole file that is there.
    shutil.copy(archive, tmp_path / "ri2010.pl.zip")
    run_all(lines)
