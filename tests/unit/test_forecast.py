"""Forecasts: what they add up from, how they grow, and what is said where the machine is too small."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.mini import mini_frame, mini_histogram, write_mini

import opendas.runs.context.machine as machine
import opendas.runs.simulated.forecast as module
from opendas.cli.main import main
from opendas.constraints.table import bound_table
from opendas.errors import ConfigError, EnvironmentFailure
from opendas.runs.context.run import Run, load
from opendas.runs.plan import make_plan
from opendas.runs.simulated.forecast import check_families, check_room, forecast_run, measure_small_run
from opendas.schema.attributes import Schema

SECONDS = {"region": 1.0, "town": 0.1, "block": 0.01}


def mini(folder: Path, blocks: int = 4, **settings: str) -> Run:
    frame = mini_frame(blocks=blocks)
    return load(write_mini(folder, frame=frame, histogram=mini_histogram(frame), **settings))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return mini(tmp_path)


def test_time_is_that_of_the_geounits_shared_by_the_workers(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "cores", lambda: 2)
    one, two, crowd = (
        forecast_run(run.plan, "topdown", workers, geounit_seconds=SECONDS) for workers in (1, 2, 8)
    )
    assert one.steps == pytest.approx({"region": 2.0, "town": 0.6, "block": 0.24})
    assert one.seconds == pytest.approx(2.84)
    assert two.seconds == pytest.approx(2.84 / 1.9) == crowd.seconds
    assert one.peak_rss_mb == one.memory_mb < two.memory_mb < crowd.memory_mb
    assert two.peak_rss_mb < two.memory_mb
    assert "8 workers share 2 cores" in crowd.assumptions


def test_what_was_not_measured_is_not_promised(run: Run) -> None:
    found = forecast_run(run.plan, "topdown", 1)
    assert found.seconds is None
    assert found.to_dict()["seconds"] is None
    assert not any("time" in line for line in found.assumptions)


def test_more_leaves_and_all_measurements_need_more(tmp_path: Path) -> None:
    few, many = (mini(tmp_path / str(blocks), blocks).plan for blocks in (4, 40))
    for estimator in ("topdown", "informed", "block-by-block"):
        for name in ("peak_rss_mb", "memory_mb", "output_mb", "scratch_mb"):
            small, large = (getattr(forecast_run(plan, estimator, 2), name) for plan in (few, many))
            assert 0 <= small < large, name
    used, full = (forecast_run(few, "topdown", 1, full=full) for full in (False, True))
    assert full.output_mb > used.output_mb
    assert full.memory_mb > used.memory_mb
    assert forecast_run(many, "topdown", 1, estimates=False).scratch_mb == 0


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"run": 'estimator = "informed"'},
        {"run": 'estimator = "block-by-block"\ndrop_invariants = ["total"]'},
        {"run": 'mechanism = "discrete-laplace"', "loss": 'epsilon = "4"'},
    ],
)
def test_a_small_run_measures_every_geolevel_without_the_input(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    run = mini(tmp_path, 20, **settings)
    (tmp_path / "counts.csv").write_text("nobody reads this")
    seconds = measure_small_run(run)
    assert list(seconds) == ["region", "town", "block"]
    assert seconds["block"] > 0
    assert all(one >= 0 for one in seconds.values())


def test_synthetic_counts_lie_in_cells_that_bounds_and_zeros_allow(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    counts_of = module._synthetic_counts
    monkeypatch.setattr(
        module, "_synthetic_counts", lambda *given: made.append(counts_of(*given)) or made[-1]
    )
    measure_small_run(run)
    counts = made[-1]
    leaves = np.repeat(np.arange(counts.rows), np.diff(counts.indptr))
    prisons = run.frame.units["prisons"][leaves]
    assert not np.any((counts.cells // 3 == 2) & (prisons == 0))
    assert not np.any(counts.cells == 6)  # children in prison
    assert counts.total() == module.RECORDS * counts.rows


def test_of_many_records_a_few_are_drawn_that_stand_for_several(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A nation's records in the leaves of a small run would not fit into memory one by one."""
    product = replace(run.product, invariants=())
    constraints = bound_table(product, run.frame, run.spine, {})
    straight = module._synthetic_counts(constraints, 1000)
    monkeypatch.setattr(module, "ONE_BY_ONE", 480)
    counts = module._synthetic_counts(constraints, 1000)
    assert np.array_equal(counts.row_totals(), straight.row_totals())
    assert len(counts.cells) <= 480
    many = module._synthetic_counts(constraints, 10**12)
    assert set(many.row_totals().tolist()) == {10**12}
    for records in (0, -1, 1e30):
        with pytest.raises(ConfigError, match="records: expected"):
            make_plan(run, records)


def test_the_answer_is_strict_json_and_states_its_assumptions(run: Run) -> None:
    document = forecast_run(run.plan, "topdown", 1, geounit_seconds=SECONDS).to_dict()
    json.dumps(document, allow_nan=False)
    assert document["disk_mb"].keys() == {"outputs", "scratch"}
    text = " ".join(document["assumptions"])
    for word in ("on this machine", "come on top", "how many records", "24 block"):
        assert word in text


def room(monkeypatch: pytest.MonkeyPatch, *, disk: float, memory: float) -> None:
    free = SimpleNamespace(free=disk * 2**20)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: free)
    monkeypatch.setattr(module, "available_memory_mb", lambda: memory)


def test_a_disk_that_cannot_hold_the_outputs_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed: Any = replace(
        forecast_run(run.plan, "topdown", 1), output_mb=100.0, scratch_mb=50.0, memory_mb=1000.0
    )
    out = tmp_path / "not" / "there"
    room(monkeypatch, disk=200, memory=2000)
    assert check_room(needed, out) == ()
    room(monkeypatch, disk=120, memory=2000)
    (warning,) = check_room(needed, out)
    assert "--resume" in warning
    room(monkeypatch, disk=49, memory=2000)
    with pytest.raises(EnvironmentFailure, match="about 100 MB: nothing was drawn"):
        check_room(needed, out)


def test_too_little_memory_is_a_warning(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed: Any = replace(forecast_run(run.plan, "topdown", 2), memory_mb=1000.0)
    room(monkeypatch, disk=10_000, memory=900)
    (warning,) = check_room(needed, tmp_path)
    assert "900 MB" in warning
    assert "Fewer --workers" in warning
    (warning,) = check_room(replace(needed, workers=1), tmp_path)
    assert "Fewer" not in warning


def test_a_family_whose_answers_memory_cannot_hold_is_refused_before_a_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = mini(tmp_path, blocks=10).plan
    monkeypatch.setattr(module, "MANY_CELLS", 5)
    monkeypatch.setattr(module, "CHILD_CELL", 2.0**20)
    family = module._largest_family(plan, 1e9)
    assert (plan.spine.names[family.level], family.children) == ("block", 10)
    room(monkeypatch, disk=10_000, memory=family.bytes / 2**21)
    check_families(plan, 1e9)
    room(monkeypatch, disk=10_000, memory=4.5 * family.cells)
    answers = 10 * round(family.cells)
    with pytest.raises(EnvironmentFailure, match=f"detailed at geolevel block: .* {answers} noisy") as caught:
        check_families(plan, 1e9)
    assert "nothing was drawn" in str(caught.value)
    assert "no geounit has more than 4 children" in str(caught.value)
    room(monkeypatch, disk=10_000, memory=1.0)
    with pytest.raises(SystemExit) as ended:
        main(["run", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out"), "--seed", "1"])
    assert ended.value.code == EnvironmentFailure.exit_code
    assert "estimated together" in capsys.readouterr().err
    assert not list((tmp_path / "out").rglob("ledger.jsonl"))
    assert not (tmp_path / "out/release").exists()


MANY_ATTRIBUTES = """
[product]
name = "survey"
protected_unit = "person"
provenance = "code-book"
[attributes]
""" + "\n".join(f"a{number:02} = {list('xyz')[: 3 if number < 17 else 2]}" for number in range(20))

THEIR_RUN = """
[run]
product = "survey.toml"
[input]
reader = "records"
path = "unread.csv"
[geography]
levels = [{ name = "all", prefix = 0 }, { name = "ward" }]
frame = "frame.csv"
provenance = "public"
[budget]
rho = "1"
geolevels = { all = "1/2", ward = "1/2" }
queries = { "*" = { detailed = "1" } }
"""


def test_a_table_too_large_for_the_machine_is_refused_unread_with_the_nearest_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "survey.toml").write_text(MANY_ATTRIBUTES)
    (tmp_path / "run.toml").write_text(THEIR_RUN)
    (tmp_path / "unread.csv").write_text("no record of such a table: who reads it speaks of columns\n")
    (tmp_path / "frame.csv").write_text("geocode\n1\n2\n")
    monkeypatch.setattr(machine, "available_memory_mb", lambda: 8192.0)
    for command in (["plan"], ["run", "--out", str(tmp_path / "out")]):
        with pytest.raises(SystemExit) as ended:
            main([command[0], str(tmp_path / "run.toml"), *command[1:]])
        assert ended.value.code == EnvironmentFailure.exit_code
        said = capsys.readouterr().err
        assert "1,033,121,304 cells" in said
        assert not (tmp_path / "out").exists()
    named = said.split("attributes ")[1].split(":")[0].split(", ")
    product = load(tmp_path / "run.toml").product
    attributes = product.schema.attributes
    few = Schema(tuple(product.schema.attribute(name) for name in named))
    assert [each.name for each in attributes if each.name in named] == named
    machine.check_cells(replace(product, schema=few))
    assert few.size * machine.CELL_MB <= 8192
    assert few.size <= machine.TIMED_CELLS < 3 * few.size


def test_many_cells_are_forecast_by_children_and_the_cells_of_their_parent(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MANY_CELLS", 5)
    few, many = (
        forecast_run(run.plan, "topdown", 1, records=records).memory_mb for records in (10.0, 10_000_000.0)
    )
    assert few < many
    asked = []

    def small(run: Run, leaves: int, records: int, *, spread: bool = False, root: bool = True) -> Any:
        asked.append((leaves, records, spread, root))
        cells = 4 if spread and records == 600 else 8
        families = (
            SimpleNamespace(geolevel="region", children=1, cells=12),
            SimpleNamespace(geolevel="town", children=2, cells=cells),
            SimpleNamespace(geolevel="block", children=10, cells=5),
            SimpleNamespace(geolevel="block", children=1, cells=5),
        )
        return module._SmallRun(run.spine, families, (0.5, 1e-4 * cells**3, 1.0, 9.0), 0.1)

    monkeypatch.setattr(module, "_small_run", small)
    leaves, possible = len(run.frame), int(run.product.possible.sum())
    records = 20_000.0
    found = measure_small_run(run, records)
    assert [each[2] for each in asked] == [False, False, True, True]
    assert [each[1] for each in asked[2:]] == [600, 2000]
    assert [each[3] for each in asked] == [False, True, False, False]  # the root is solved once
    assert found["region"] == 0.5 / len(run.spine.levels[0])
    # 1 second for 10 children in 5 cells; an only child takes none
    children, cells = module._families(run.spine, 2, records, possible)
    assert children.sum() == leaves
    assert found["block"] == pytest.approx(0.02 * (children * cells).sum() / leaves + 0.1 / 10)
    # between top and leaves the seconds of a family grow with the cube of its cells, as measured twice
    children, cells = module._families(run.spine, 1, records, possible)
    towns = len(run.spine.levels[1])
    assert found["town"] == pytest.approx(1e-4 / 2 * (children * cells**3).sum() / towns)


def test_a_small_run_without_its_root_has_the_families_of_one_with_it(run: Run) -> None:
    whole, below = (module._small_run(run, 10, 40, root=root) for root in (True, False))
    assert [f.geolevel for f in below.families] == [f.geolevel for f in whole.families]
    assert whole.families[0].methods
    assert not below.families[0].methods
