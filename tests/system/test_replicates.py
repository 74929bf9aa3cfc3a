"""``opendas replicates`` and ``opendas margin``: from a release alone, the same whatever interrupts them."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.mini import write_mini

import opendas as od
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.errors import ConfigError, FormatError
from opendas.files.replicate_files import ReplicateFile
from opendas.runs.simulated import replicates as drawing

RUNS = 12


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of ``release/`` alone: no input, no key, no state beside it."""
    folder = tmp_path_factory.mktemp("finished")
    write_mini(folder)
    od.release(od.load(folder / "run.toml"), folder / "out", seed=1)
    return shutil.copytree(folder / "out" / "release", folder / "copy")


@pytest.fixture
def release(finished: Path, tmp_path: Path) -> od.Release:
    return od.Release(shutil.copytree(finished, tmp_path / "copy"))


def content(release: od.Release) -> bytes:
    return (release.folder / "replicates" / "mini.parquet").read_bytes()


def test_margins_come_from_a_copy_of_the_release_alone(
    release: od.Release, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(release.path)
    assert guarded(cli, ["replicates", out, "--runs", str(RUNS), "--workers", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == RUNS
    assert guarded(cli, ["verify", out, "--allow-seeded"]) == 0
    assert f"replicates: {RUNS} of mini" in capsys.readouterr().out
    assert guarded(cli, ["margin", out, "--query", "kind", "--geolevel", "town", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    published = release.table("kind", geolevel="town").to_arrow().to_pylist()
    cells = [row[name] for row in published for name in ("home", "school", "prison")]
    assert [row["count"] for row in rows] == cells
    assert all(row["margin"] >= 0 and row["standard_error"] >= 0 for row in rows)
    assert any(row["margin"] > 0 for row in rows)
    assert guarded(cli, ["margin", out, "--query", "kind", "--geolevel", "town"]) == 0
    assert "margins of the published counts" in capsys.readouterr().err
    assert not release.scratch.exists() or not any(release.scratch.rglob("*.parquet"))


def test_invariants_and_structural_zeros_hold_in_every_replicate(release: od.Release) -> None:
    od.replicates(release, runs=RUNS, workers=1)
    exact = release.margin("total", geolevel="region").to_arrow()
    assert not any(exact.column(name).to_numpy().any() for name in ("margin", "bias", "standard_error"))
    file = ReplicateFile(release.folder / "replicates" / "mini.parquet")
    frame, counts = release.frame(), release.estimate()
    for number in range(1, RUNS + 1):
        found = file.differences(number, frame, counts.size)
        assert not np.any(found.cells == 6)  # a child in prison
        assert found.counts.sum() == 0


def test_areas_that_somebody_drew_have_margins(release: od.Release) -> None:
    od.replicates(release, runs=RUNS, workers=1)
    codes = [code.decode() for code in release.frame().geocodes]
    whole = release.margin("age", blocks=codes).to_arrow().to_pylist()
    regions = release.margin("age", geolevel="region").to_arrow().to_pylist()
    for row in whole:
        assert row["count"] == sum(one["count"] for one in regions if one["cell"] == row["cell"])
        assert row["bias"] == pytest.approx(sum(o["bias"] for o in regions if o["cell"] == row["cell"]))
    with pytest.raises(ConfigError, match="either"):
        release.margin("age")


def test_interrupted_or_extended_or_in_other_processes_replicates_are_the_same_bytes(
    release: od.Release, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    od.replicates(release, runs=RUNS, workers=1)
    straight = content(release)

    other = od.Release(shutil.copytree(finished, tmp_path / "other"))
    draw, drawn = drawing._Draw.__call__, []

    def stop_after_five(self: object, number: int) -> None:
        if len(drawn) == 5:
            raise KeyboardInterrupt
        drawn.append(number)
        draw(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(drawing._Draw, "__call__", stop_after_five)
        with pytest.raises(KeyboardInterrupt):
            od.replicates(other, runs=RUNS, workers=1)
    with pytest.raises(ConfigError, match="--resume"):
        od.replicates(other, runs=RUNS, workers=1)
    od.replicates(other, runs=RUNS, workers=1, resume=True)
    assert content(other) == straight

    third = od.Release(shutil.copytree(finished, tmp_path / "third"))
    od.replicates(third, runs=5, workers=2)
    first = pq.read_table(third.folder / "replicates" / "mini.parquet")
    od.replicates(third, runs=RUNS, workers=1)
    assert content(third) == straight
    both = pq.read_table(third.folder / "replicates" / "mini.parquet")
    assert both.slice(0, len(first)).equals(first)
    od.replicates(third, runs=3, workers=1)
    assert content(third) == straight, "fewer are asked for than there are"

    od.replicates(third, runs=RUNS, workers=1, seed=2)
    assert content(third) != straight


def test_replicates_of_other_counts_are_refused_and_fail_verification(release: od.Release) -> None:
    od.replicates(release, runs=RUNS, workers=1)
    part = next(iter(sorted((release.folder / "mdf" / "mini").glob("*.parquet"))))
    table = pq.read_table(part)
    pq.write_table(table.slice(1), part)
    with pytest.raises(FormatError, match="other counts"):
        release.margin("age", geolevel="town")
    failed = {check.name for check in release.verify(allow_seeded=True) if not check.ok}
    assert "replicates" in failed


def test_without_replicates_the_command_that_draws_them_is_named(release: od.Release) -> None:
    with pytest.raises(ConfigError, match="opendas replicates OUT"):
        release.margin("age", geolevel="town")


def test_nothing_under_confidential_is_opened(tmp_path: Path) -> None:
    write_mini(tmp_path)
    out = tmp_path / "out"
    od.release(od.load(tmp_path / "run.toml"), out, seed=1)
    opened: list[str] = []
    watching = [True]

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if watching[0] and event == "open":
            opened.append(str(arguments[0]))

    sys.addaudithook(watch)
    try:
        od.replicates(od.Release(out), runs=3, workers=1)
    finally:
        watching[0] = False
    assert any("release" in path for path in opened)
    hidden = [path for path in opened if "confidential" in path or path.endswith(("counts.csv", ".key"))]
    assert hidden == []


def test_tables_print_the_margin_of_the_count_and_stay_valid_when_more_replicates_are_drawn(
    release: od.Release,
) -> None:
    od.tabulate(release, ["age"], "region")
    od.replicates(release, runs=RUNS, workers=1)
    for fmt in ("parquet", "csv"):
        od.tabulate(release, ["kind"], "town", format=fmt)
    path = release.folder / "tables" / "kind_town.parquet"
    table = pq.read_table(path).to_pylist()
    margins = release.margin("kind", geolevel="town").to_arrow().to_pylist()
    printed = [row[f"{name}_MOE90"] for row in table for name in ("home", "school", "prison")]
    assert printed == [row["margin"] for row in margins]
    assert "age_MOE90" not in pq.read_schema(release.folder / "tables" / "age_region.parquet").names
    assert all(check.ok for check in release.verify(allow_seeded=True))

    od.replicates(release, runs=RUNS + 8, workers=1)
    (release.folder / "tables" / "kind_town.csv").unlink()
    od.tabulate(release, ["kind"], "region", format="csv")
    assert pq.read_table(path).to_pylist() == table, "it says what it said"
    assert all(check.ok for check in release.verify(allow_seeded=True))

    changed = pq.read_table(path)
    at = changed.column_names.index("home_MOE90")
    column = np.asarray(changed.column(at)) + 1
    metadata = pq.read_schema(path).metadata
    lying = changed.set_column(at, "home_MOE90", [column]).replace_schema_metadata(metadata)
    pq.write_table(lying, path)
    failed = {check.name for check in release.verify(allow_seeded=True) if not check.ok}
    assert "tables" in failed
