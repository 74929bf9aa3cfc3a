"""No engine, worker count, partition, order or crash changes a result."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from support.assembled import assemble, same
from support.mini import mini_frame, mini_histogram, mini_product
from support.used import used_answers

import opendas.engines.tasks as tasks
import opendas.engines.upward as upward
from opendas.engines.checkpoint import Checkpoints
from opendas.engines.drive import Estimation, estimate_on, estimate_spine
from opendas.engines.local import LocalEngine, WorkerPool
from opendas.engines.truth import LeafCounts
from opendas.measurement.family import UsedAnswers
from opendas.topdown.informed import Informed
from opendas.topdown.posterior import Posterior

ESTIMATORS = ("topdown", "informed", "posterior", "block-by-block")

WHOLE_TREE = {"informed": Informed(), "posterior": Posterior()}


@pytest.fixture(autouse=True)
def _small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages of the informed estimator are cut for more than a miniature census."""
    monkeypatch.setattr(tasks, "LEAST_GEOUNITS", 4)
    monkeypatch.setattr(tasks, "LEAST_LEAVES", 16)


def made(estimator: str):
    frame = mini_frame(regions=3, towns=12, blocks=5)
    product = mini_product(invariant=estimator != "block-by-block")
    return assemble(product, frame, mini_histogram(frame), whole_tree=WHOLE_TREE.get(estimator))


@pytest.fixture(name="run", scope="module")
def _run():
    return made("topdown")


def estimate(run, **more) -> Estimation:
    estimator = more.pop("estimator", "topdown")
    return estimate_spine(
        run.spine,
        run.constraints,
        run.worker(),
        histogram=run.counts,
        estimator=estimator,
        workers=more.pop("workers", 1),
        model=run.model if estimator in WHOLE_TREE else None,
        **more,
    )


def used(found: Estimation) -> list[UsedAnswers]:
    every = [used for task in found.finished() for used in used_answers(task.read().used)]
    return sorted(every, key=lambda used: (used.level, used.first))


def identical(one: Estimation, two: Estimation) -> bool:
    return (
        same(one.leaves, two.leaves)
        and one.records == two.records
        and len(used(one)) == len(used(two))
        and all(
            (a.level, a.first, a.query) == (b.level, b.first, b.query)
            and np.array_equal(a.rows, b.rows)
            and np.array_equal(a.values, b.values)
            for a, b in zip(used(one), used(two), strict=True)
        )
    )


def test_two_workers_give_what_one_gives(run) -> None:
    assert identical(estimate(run), estimate(run, workers=2))


@pytest.mark.parametrize("kept", [upward.MOST_KEPT, 0])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_another_partition_gives_the_same(estimator: str, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made(estimator)
    expected = estimate(run, estimator=estimator)
    monkeypatch.setattr(tasks, "MANY_SUBTREES", 2)
    monkeypatch.setattr(tasks, "TASKS_PER_STAGE", 3)
    monkeypatch.setattr(tasks, "LEAST_LEAVES", 5)
    monkeypatch.setattr(upward, "MOST_KEPT", kept)
    assert identical(expected, estimate(run, estimator=estimator))


def test_processes_that_run_already_learn_one_worker_after_the_other() -> None:
    """With each estimator two workers give what one gives."""
    runs = [made(estimator) for estimator in ESTIMATORS]
    pool = WorkerPool(2)
    for _, answer in pool.spread(abs, [-1, -2, -3]):
        assert answer > 0
    for run, estimator in zip(runs, ESTIMATORS, strict=True):
        # All engines but the first come with processes that know the worker of the one before.
        engine = LocalEngine(run.worker(), 2, pool)
        found = estimate_on(
            engine,
            run.spine,
            run.constraints,
            counts=LeafCounts.on(run.spine, run.counts),
            estimator=estimator,
            model=run.model if estimator in WHOLE_TREE else None,
        )
        assert identical(found, estimate(run, estimator=estimator)), estimator
        if estimator == ESTIMATORS[-1]:
            engine.__exit__(None)
    with pytest.raises(RuntimeError):
        next(pool.spread(abs, [-1]))


def test_workers_that_need_memory_are_not_taken_for_leaking() -> None:
    """loky would start another one in their place, and warn of it in the middle of a run."""
    pool = WorkerPool(1)
    ((_, limit),) = pool.spread(os.getenv, ["LOKY_MAX_MEMORY_LEAK_SIZE"])
    pool.close()
    assert float(limit) >= 1e15


def covers(cuts: tuple[int, ...], geounits: int) -> bool:
    return cuts[0] == 0 and cuts[-1] == geounits and all(a < b for a, b in pairwise(cuts))


def test_stages_cover_every_geounit_once(run) -> None:
    for stage in (*tasks.cut_spine(run.spine), *tasks.cut_leaves(run.spine)):
        assert covers(stage.cuts, len(run.spine.levels[stage.top]))


@pytest.mark.parametrize("cells", [1, 1 << 20, 1 << 30])
def test_tasks_of_the_way_up_cover_every_geounit_once(run, cells: int, monkeypatch) -> None:
    monkeypatch.setattr(tasks, "LEAST_GEOUNITS", 1)
    monkeypatch.setattr(tasks, "LEAST_LEAVES", 1)
    stages = tasks.cut_spine(run.spine, kept=1000, cells=cells)
    assert len(stages) > 1
    for stage in stages:
        assert covers(stage.up, len(run.spine.levels[stage.top]))
        assert len(stage.up) <= len(stage.cuts)
    assert stages[-1].up == stages[-1].cuts
    fewer = [stage for stage in stages[:-1] if len(stage.up) < len(stage.cuts)]
    assert bool(fewer) == (cells == 1 and any(len(stage.cuts) > 2 for stage in stages[:-1]))


@pytest.mark.parametrize("cells", [1, 1 << 40])
def test_cuts_of_the_way_up_change_nothing(cells: int, monkeypatch) -> None:
    run = made("informed")
    expected = estimate(run, estimator="informed")
    monkeypatch.setattr(tasks, "LEAST_GEOUNITS", 1)
    monkeypatch.setattr(tasks, "LEAST_LEAVES", 1)
    monkeypatch.setattr(tasks, "LEAST_CELLS", cells)
    assert identical(estimate(run, estimator="informed"), expected)


class Stop(Exception):
    """An interruption."""


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_an_interrupted_run_finishes_with_the_same_result(estimator: str, tmp_path: Path) -> None:
    run = made(estimator)
    expected = estimate(run, estimator=estimator)
    checkpoints = Checkpoints(tmp_path, "run 1", write)
    seen = []

    def progress(stage: str, done: int, total: int) -> None:
        seen.append(done)
        if len(seen) in (3, 9):
            raise Stop

    for _ in range(2):
        with pytest.raises(Stop):
            estimate(run, estimator=estimator, checkpoints=checkpoints, progress=progress)
    before = len(list(tmp_path.glob("*.part")))
    assert before > 0
    again = estimate(run, estimator=estimator, checkpoints=checkpoints, progress=progress)
    assert identical(expected, again)
    assert len(list(tmp_path.glob("*.part"))) > before


@pytest.mark.parametrize("estimator", ["topdown", "informed", "posterior"])
def test_torn_and_foreign_checkpoints_are_done_again(estimator: str, tmp_path: Path) -> None:
    run = made(estimator)
    checkpoints = Checkpoints(tmp_path, "run 1", write)
    expected = estimate(run, estimator=estimator, checkpoints=checkpoints)
    for kind in ("stage", "up") if estimator in WHOLE_TREE else ("stage",):
        files = sorted(tmp_path.glob(f"{kind}*.part"))
        assert len(files) > 2
        files[0].write_bytes(files[0].read_bytes()[:-7])
        files[1].write_bytes(b"")
        damaged = bytearray(files[2].read_bytes())
        damaged[len(damaged) // 2] ^= 1
        files[2].write_bytes(bytes(damaged))
    assert checkpoints.load(0, 0) is None
    assert not checkpoints.holds(0, 0)
    assert identical(expected, estimate(run, estimator=estimator, checkpoints=checkpoints))
    assert checkpoints.holds(0, 0)
    assert Checkpoints(tmp_path, "run 2", write).load(0, 0) is None


@pytest.mark.parametrize("estimator", ["topdown", "informed", "posterior"])
def test_a_loaded_checkpoint_equals_what_was_saved(estimator: str, tmp_path: Path) -> None:
    run = made(estimator)
    checkpoints = Checkpoints(tmp_path, "run 1", write)
    first = estimate(run, estimator=estimator, checkpoints=checkpoints)
    assert identical(first, estimate(run, estimator=estimator, checkpoints=checkpoints))


def test_what_is_loaded_is_not_searched_for_garbage_after_every_task() -> None:
    code = """
import gc
import opendas.engines.work
from opendas.engines.local import keep_modules
assert len(gc.get_objects()) > 20_000 and gc.get_freeze_count() < 1000  # of the interpreter itself
keep_modules()
assert len(gc.get_objects()) < 1000
before = gc.get_freeze_count()
keep_modules()  # there is little left to be put away
assert gc.get_freeze_count() == before > 20_000
"""
    subprocess.run([sys.executable, "-c", code], check=True)
