"""The benchmarks of nations and of reading: arithmetic, and a small pass over all of their steps."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.scripts import script

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def nation() -> ModuleType:
    return script(FOLDER / "nation.py")


def row(nation: ModuleType, **changes: Any) -> Any:
    plain = {
        "name": "made", "product": "persons", "workers": 2, "blocks": 130, "leaves": 100, "people": 4000,
        "geounits": {"us": 1, "state": 2, "block": 100}, "wall": 26.0, "cpu": 40.0, "largest": 300.0,
        "anonymous": 200.0, "together": 500.0, "disk": 9.0,
        "steps": {"read": 1.0, "estimate": 14.0, "verify": 3.0},
        "levels": {"us": 2.0, "state": 4.0, "block": 10.0},
    }  # fmt: skip
    return nation.Row(**plain | changes)


def test_a_projection_grows_each_level_with_its_children(nation: ModuleType, capsys: Any) -> None:
    whole = {"us": 1, "state": 10, "block": 1000}
    found = nation.project([row(nation)], whole, 2)
    # families 2 + 4 * 5 + 10 * 10, beyond them (2 * 14 - 16) * 10, other steps (1 + 3) * 10, start 26 - 18
    assert found["persons"] == pytest.approx((122 + 120) / 2 + 40 + 8)
    assert found["everything"] == found["persons"]
    told = capsys.readouterr().out
    assert "Assumed:" in told
    assert "10 state" in told
    one = nation.project([row(nation)], whole, 1)
    assert one["persons"] == pytest.approx(242 + 40 + 8)


def test_the_largest_run_of_each_product_counts(nation: ModuleType) -> None:
    whole = {"us": 1, "state": 2, "block": 100}
    rows = [row(nation, leaves=10, wall=99.0), row(nation), row(nation, product="units", wall=30.0)]
    found = nation.project(rows, whole, 2)
    assert found == {"persons": 26.0, "units": 30.0, "everything": 56.0}


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["scale", "--blocks", "400", "600"], ["tenth", "--blocks", "800"]])
def test_small_passes(
    nation: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, arguments: list[str]
) -> None:
    monkeypatch.setattr(nation, "warm", lambda scratch: None)
    monkeypatch.setattr(nation, "TENTH_STATES", 2)
    monkeypatch.setattr(nation, "SHORT", 500)
    monkeypatch.setattr(nation, "SHORT_TIMES", 2)
    kept = tmp_path / "rows.json"
    nation.main([*arguments, "--workers", "1", "--scratch", str(tmp_path / "scratch"), "--json", str(kept)])
    rows = nation.read_rows(kept)
    blocks = [nation.START, nation.START, 400, 400, 600] if arguments[0] == "scale" else [800, 800]
    assert [found.blocks for found in rows] == blocks
    for found in rows:
        assert found.wall > sum(found.steps.values())
        assert found.largest >= found.anonymous > 50
        assert found.together >= found.anonymous
        assert found.geounits["block"] == found.leaves
        assert set(found.levels) == set(found.geounits)
    made = list((tmp_path / "scratch").glob("made-*"))
    assert all("wall" in json.loads((folder / "made.json").read_text()) for folder in made)
    assert not [path for path in (tmp_path / "scratch").iterdir() if path not in made]
    capsys.readouterr()
    nation.main(["project", str(kept), "--workers", "2"])
    assert "everything:" in capsys.readouterr().out


@pytest.mark.slow
def test_small_readings(tmp_path: Path, capsys: Any) -> None:
    script(FOLDER / "reading.py").main(["--blocks", "700", "--scratch", str(tmp_path)])
    told = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in told] == ["codes", "labels", "shuffled", "csv"]
    assert len({line.split(" leaves")[0].split(maxsplit=1)[1] for line in told}) == 1  # the same rows
    folders = {path.name for path in (tmp_path / "reading-700").iterdir() if path.is_dir()}
    assert folders == {"persons", "units", "labels", "shuffled", "csv"}
