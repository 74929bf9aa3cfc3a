"""``opendas spine``: what it prints, its JSON, and that it reads no record."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.cli.plan import _PERCENTILES
from opendas.demo import write_demo
from opendas.geography.off_spine_distance import entity_distances
from opendas.geography.summary import PERCENTS
from opendas.runs.context.run import load


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spine")
    write_demo(folder, 300)
    return folder


def run_file(folder: Path, geography: str, name: str = "run.toml") -> Path:
    text = (folder / "persons.toml").read_text().replace('spine = "standard"', geography)
    (folder / name).write_text(text)
    return folder / name


def asked(path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[str, str]:
    capsys.readouterr()
    assert guarded(cli, ["spine", str(path), *more]) == 0
    said = capsys.readouterr()
    return said.out, said.err


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no strict JSON")


def test_json_is_strict_and_has_what_the_interface_names(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run_file(folder, 'spine = "optimized"\nentities = ["place"]')
    answer = json.loads(asked(path, capsys, "--json")[0], parse_constant=refuse)
    run = load(path)
    assert [level["geolevel"] for level in answer["levels"]] == list(run.spine.names)
    for number, level in enumerate(answer["levels"]):
        assert level["geounits"] == len(run.spine.levels[number])
        assert {"max_fanout", "single_child_parents"} <= set(level)
    for number, level in enumerate(answer["levels"][:-1]):
        fanout = np.bincount(run.spine.levels[number + 1].parent)
        assert level["max_fanout"] == int(fanout.max())
        assert level["single_child_parents"] == int((fanout == 1).sum())
    entities = {entity["category"]: entity for entity in answer["entities"]}
    assert set(entities) == {name for name, codes in run.frame.entities.items() if (codes != b"").any()}
    places = entity_distances(run.spine, run.frame.entities["place"])
    found = entities["place"]
    assert (found["count"], found["mean_distance"], found["max_distance"]) == (
        *(len(places), places.mean, places.maximum),
    )
    assert found["mean_distance"] < found["standard_mean"]
    assert answer["warnings"] == []


def test_text_shows_levels_children_and_distances(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_file(folder, 'spine = "optimized"\nentities = ["place"]')
    out, err = asked(path, capsys)
    answer = json.loads(asked(path, capsys, "--json")[0])
    lines = [line.split() for line in out.splitlines()]
    for level in answer["levels"][:-1]:
        row = next(line for line in lines if line[:1] == [level["geolevel"]])
        fewest, _, low, half, high, _, most = level["fanouts"]
        assert row[1:] == [
            str(level["geounits"]),
            "yes" if level["official"] else "no",
            *(str(n) for n in (fewest, low, half, high, most)),
            str(level["single_child_parents"]),
            str(level["bypassed"]),
        ]
    for entity in answer["entities"]:
        row = next(line for line in lines if line[:1] == [entity["category"]])
        assert row[1] == str(entity["count"])
        assert float(row[2]) == pytest.approx(entity["mean_distance"], abs=0.006)
        assert float(row[3]) == pytest.approx(entity["standard_mean"], abs=0.006)
        assert row[-2:] == [str(entity["max_distance"]), str(entity["standard_max"])]
    assert next(line[2] for line in lines if line[:1] == ["block_group"]) == "no"
    assert err == ""


def test_the_text_takes_the_percentiles_that_there_are() -> None:
    assert len(PERCENTS) == _PERCENTILES
    assert (PERCENTS[2], PERCENTS[_PERCENTILES // 2], PERCENTS[4]) == (25, 50, 75)


def test_warnings_go_to_stderr_and_into_the_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One block group a leaf cannot bring anything closer; and every parent of one child is told."""
    recipe = '[{ step = "block_groups", fanout_cutoff = 1, entities = ["block"] }]'
    path = run_file(folder, f'spine = {recipe}\nentities = ["place"]', "alone.toml")
    out, err = asked(path, capsys)
    assert "warning:" not in out
    assert "with one child" in err
    answer = json.loads(asked(path, capsys, "--json")[0])
    assert [line.removeprefix("warning: ") for line in err.splitlines()] == answer["warnings"]


def test_areas_to_build_around_that_hold_no_leaf_are_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run_file(folder, 'spine = "optimized"\nentities = ["place", "aianhh"]')  # no reservation here
    err = asked(path, capsys)[1]
    assert "no leaf of the frame lies in an area of 'aianhh'" in err
    assert "'place'" not in err


def test_the_counts_are_not_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_file(folder, 'spine = "optimized"', "blind.toml")
    first = asked(path, capsys)
    saved = (folder / "persons.parquet").read_bytes()
    try:
        (folder / "persons.parquet").write_bytes(b"no table at all")
        assert asked(path, capsys) == first
    finally:
        (folder / "persons.parquet").write_bytes(saved)


@pytest.mark.parametrize(
    ("geography", "words"),
    [
        ('spine = [{ step = "bypas" }]', "bypass"),
        ('spine = [{ step = "block_groups", fanout_cutoff = 0 }]', "greater than or equal to 1"),
        ('spine = [{ step = "split", level = "ward" }]', "ward"),
        ('spine = [{ step = "bypass" }, { step = "block_groups" }]', "bypass comes last"),
        ('spine = [{ step = "aian", codes = ["8888"] }]', "8888"),
        ('spine = [{ step = "group", name = "parish", level = "tract", level2 = "x" }]', "level2"),
    ],
)
def test_recipes_that_do_not_hold_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], geography: str, words: str
) -> None:
    path = run_file(folder, geography, "wrong.toml")
    assert guarded(cli, ["spine", str(path)]) == 2
    assert words in capsys.readouterr().err
