"""The forecast of a table of 29,232 cells beside what its run takes, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.scripts import script

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_time_and_memory_of_many_cells_are_forecast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forecast from made records; in the run, each record has its label of each attribute by itself.

    A forecast that knows leaves and not cells says a tenth of either.
    """
    monkeypatch.syspath_prepend(FOLDER)
    tables = script(FOLDER / "wide_tables.py")
    run = tables.write_table(tmp_path / "table", [2, 116, 63, 2], 9_000, 200)
    assert tables.one_run(run, tmp_path / "compiled", 1)
    plan = [sys.executable, "-m", "opendas", "plan", str(run), "--records", "9000", "--json"]
    done = subprocess.run(plan, capture_output=True, text=True, check=True)
    said, taken = json.loads(done.stdout)["forecast"], tables.one_run(run, tmp_path / "out", 1)
    assert said["memory_mb"] == pytest.approx(taken["peak_rss_mb"], rel=0.4)
    seconds = taken["steps"]["estimate"]
    assert seconds / 4 < said["seconds"] < 4 * seconds
