"""A synthetic nation from the command line: released on the AIAN spine, persons and units, and verified."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from opendas.demo import plan_nation, write_nation
from opendas.engines.local_backend import LocalBackend
from opendas.readers.counting import entries
from opendas.readers.counting.entries import open_histogram
from opendas.readers.input.spec import InputData, ReaderSpec
from opendas.runs.context.run import load
from opendas.runs.options import RunOptions
from opendas.runs.release import release


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
    states = sum(1 + state.reservations for state in plan_nation(3000, states=3).states)
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


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_an_input_on_disk_gives_the_same_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    write_nation(tmp_path / "in", 500, 4, 2, people=8.0)
    run = load(tmp_path / "in" / "persons.toml")
    release(run, tmp_path / "memory", RunOptions(seed=3, workers=1))
    mapped: list[bool] = []
    read = LocalBackend.read

    def noted(self: LocalBackend, spec: ReaderSpec, cache: Path) -> InputData:
        data = read(self, spec, cache)
        mapped.append(isinstance(data.histogram.cells, np.memmap))
        assert open_histogram(cache / "histogram").total() == data.histogram.total()
        return data

    monkeypatch.setattr(entries, "IN_MEMORY", 50)
    monkeypatch.setattr(LocalBackend, "read", noted)
    out = tmp_path / "disk"
    release(load(tmp_path / "in" / "persons.toml"), out, RunOptions(seed=3, workers=2))
    assert mapped == [True]
    assert contents(out / "release") == contents(tmp_path / "memory" / "release")
    assert not list((out / "confidential").rglob("histogram"))
