"""A made nation from the command line: released on the AIAN spine, persons and units, and verified."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from opendas.demo import plan_nation


def opendas(*arguments: str | Path) -> str:
    found = subprocess.run(
        [sys.executable, "-m", "opendas", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def nation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nation") / "input"
    told = opendas("make-nation", "--to", folder, "--blocks", "3000", "--states", "3", "--people", "20")
    assert "3 states" in told
    return folder


def test_it_is_released_on_the_aian_spine(nation: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    states = plan_nation(3000, states=3).state_parts
    assert states > 3
    for run in ("persons", "units"):
        told = opendas("run", nation / f"{run}.toml", "--out", out, "--workers", "1", "--seed", "1", "--json")
        assert json.loads(told)["product"] == f"pl94-{run}"
        spine = pq.read_table(out / "release" / "measurements" / f"pl94-{run}" / "spine.parquet")
        assert spine["geolevel"].to_pylist().count("state") == states
    opendas("verify", out, "--allow-seeded")


def test_a_folder_in_use_is_refused(nation: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "opendas", "make-nation", "--to", str(nation), "--blocks", "3000"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 2
    assert "is not empty" in found.stderr
