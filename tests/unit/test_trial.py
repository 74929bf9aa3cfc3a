"""Trials on synthetic counts: what they hold, and that they say what a release of such counts would."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from support.mini import mini_frame, to_dense, write_mini

import opendas as od
from opendas.cli.plan import _other_estimator
from opendas.constraints.table import bound_table
from opendas.demo.synthetic_counts import A_HOME
from opendas.errors import ConfigError
from opendas.runs.simulated import forecast
from opendas.runs.simulated import trial as module
from opendas.runs.simulated.trial import Trial
from opendas.schema.declarations import Tie


def a_run(folder: Path, loss: str = 'rho = "2"') -> od.Run:
    return od.load(write_mini(folder, frame=mini_frame(2, 4, 6), loss=loss))


def test_synthetic_counts_keep_zeros_bounds_and_public_sizes(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    found = Trial.of(run)
    assert found is not None
    part, dense = found.simulation.run, to_dense(found.counts)
    assert dense[:, ~run.product.possible].sum() == 0
    table = bound_table(replace(run.product, invariants=()), part.frame, part.spine, {})
    inside = dense @ table.bound_cells.T.astype(np.int64)
    place = part.spine.place_of_leaf
    assert (inside >= table.levels[-1].lower[place]).all()
    assert (inside[table.levels[-1].upper[place] == 0] == 0).all()
    shares = np.sort(dense.sum(axis=0))[::-1] / dense.sum()
    assert shares[0] > 0.4  # few cells have most


def test_leaves_have_people_as_they_have_homes(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    frame = run.frame
    homes = np.arange(len(frame), dtype=np.int64)
    with_homes = run.on_frame(replace(frame, units={**frame.units, "hu": homes}))
    found = Trial.of(with_homes)
    assert found is not None
    each = A_HOME if run.product.protected_unit == "person" else 1.0
    made = to_dense(found.counts).sum(axis=1)
    wanted = np.rint(each * homes).astype(np.int64)
    part = found.simulation.run
    table = bound_table(replace(run.product, invariants=()), part.frame, part.spine, {})
    least = table.levels[-1].lower[part.spine.place_of_leaf].sum(axis=1)
    assert ((wanted <= made) & (made <= wanted + least)).all()  # more only where a bound asks for it


def test_errors_vanish_with_the_noise_and_grow_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FEWEST", 2)
    errors = []
    for loss in ("1000000", "2", "1/50"):
        folder = tmp_path / loss.replace("/", "-")
        folder.mkdir()
        found = Trial.of(a_run(folder, f'rho = "{loss}"'))
        assert found is not None
        rows = found.errors()
        assert {row.geolevel for row in rows} == {"region", "town", "block"}
        errors.append(sum(row.mean_abs_error for row in rows))
    assert errors[0] == 0.0 < errors[1] < errors[2]


def test_only_geolevels_with_enough_geounits_are_spoken_of(tmp_path: Path) -> None:
    found = Trial.of(a_run(tmp_path))
    assert found is not None
    assert {(row.geolevel, row.geounits) for row in found.errors()} == {("block", 48)}


def test_what_an_invariant_below_the_root_makes_exact_is_planned_and_released_exact(tmp_path: Path) -> None:
    """Totals of towns are published: those of regions are their sums, and no estimator errs in either."""
    path = write_mini(tmp_path)
    product = tmp_path / "product.toml"
    product.write_text(product.read_text().replace('geolevel = "region"', 'geolevel = "town"'))
    plan = od.plan(od.load(path))
    said = {row.name: (row.mean_sd, row.max_sd) for row in plan.expected if row.query == "total"}
    gains = {row.geolevel: (row.topdown, row.informed) for row in plan.gains if row.query == "total"}
    for found in (said, gains):
        assert found["region"] == found["town"] == (0, 0)
        assert min(found["block"]) > 0
    for estimator in ("topdown", "informed"):
        run = od.load(path).with_(estimator=estimator)
        release = od.release(run, out=tmp_path / estimator, seed=1, workers=1)
        rows = od.evaluate(release, truth=run, save=False).rows
        off = {row["geolevel"]: row["mean_abs_error"] for row in rows if row["query"] == "total"}
        assert off["region"] == off["town"] == 0 < off["block"]


def test_another_budget_is_tried_with_the_same_draws(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    found = Trial.of(run)
    assert found is not None
    rows = found.errors()
    assert rows == found.errors(run.budget)
    more = found.errors(replace(run.budget, total=Fraction(200)))
    assert all(other.mean_abs_error <= row.mean_abs_error for row, other in zip(rows, more, strict=True))


def test_tied_and_huge_runs_are_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(tmp_path)
    tied = run.changed(product=replace(run.product, tie=Tie("other", "kind")))
    assert Trial.of(tied) is None
    monkeypatch.setattr(forecast, "TIMED_CELLS", 3)
    assert Trial.of(run) is None
    assert od.plan(run).to_dict()["tried"] == []


def test_advice_says_what_moves_do_to_released_counts(tmp_path: Path) -> None:
    run = a_run(tmp_path, 'rho = "1/10"')
    found = Trial.of(run)
    assert found is not None
    before = {(row.geolevel, row.query): row.mean_abs_error for row in found.errors()}
    moves = od.advise(run)
    assert any(move.tried for move in moves)
    for move in moves:
        budget = replace(run.budget, geolevels=move.geolevels, queries={**run.budget.queries, **move.queries})
        after = {(row.geolevel, row.query): row.mean_abs_error for row in found.errors(budget)}
        for effect in move.tried:
            key = effect.geolevel, effect.query
            assert (effect.before, effect.after) == (before[key], after[key])
        seen = {(effect.geolevel, effect.query) for effect in move.tried}
        assert all(
            abs(after[key] / before[key] - 1) <= 0.03 for key in before if key not in seen and before[key]
        )


def test_the_other_estimator_is_tried_on_the_same_records(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    found = module.other_estimator(run)
    assert isinstance(found, module.OtherEstimator)
    assert found.estimator == "informed"
    assert found.times > 0
    ours, theirs = Trial.of(run), Trial.of(run.with_(estimator="informed"))
    assert ours is not None
    assert theirs is not None
    for mine, other in zip(ours.tried().usual, theirs.tried().usual, strict=True):
        assert found.change[mine.geolevel] == pytest.approx(other.misplaced / mine.misplaced - 1)
    back = module.other_estimator(run.with_(estimator="informed"))
    assert isinstance(back, module.OtherEstimator)
    assert back.estimator == "topdown"


def test_of_many_cells_the_other_estimator_is_tried_on_fewer_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(tmp_path)
    monkeypatch.setattr(module, "MANY_CELLS", 3)
    monkeypatch.setattr(module, "OTHER_CHILD_CELLS", 80.0)
    found = od.plan(run, records=2000).to_dict()["other_estimator"]
    assert module.FEWEST <= found["leaves"] < len(run.frame)
    trials = [Trial.of(run.with_(estimator=name), 2000, child_cells=80.0) for name in ("topdown", "informed")]
    (ours, theirs) = (trial.tried(draws=1).usual for trial in trials if trial is not None)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.geounits <= found["leaves"]
        assert found["change"][mine.geolevel] == pytest.approx(other.misplaced / mine.misplaced - 1)


def test_plan_says_why_the_other_estimator_was_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(tmp_path)

    def refuses(*_: object) -> None:
        raise ConfigError("no such passes.")

    monkeypatch.setattr(module, "_timed_draws", refuses)
    said = "informed was not compared, since the trial ended with an error: no such passes"
    assert module.other_estimator(run) == said
    assert od.plan(run).to_dict()["other_not_tried"] == said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"ward": -0.14, "region": 0.02},
            "; informed, on 40 leaves: 14 % fewer in ward, 2 % more in region, "
            "in 6 times the time: worth a try",
        ),
        ({"ward": -0.03, "region": 0.0}, "; informed, on 40 leaves: 3 % fewer in ward, in 6 times the time"),
        ({"ward": 0.001}, "; informed, on 40 leaves: as many, in 6 times the time"),
    ],
)  # fmt: skip
def test_plan_says_what_the_other_estimator_gives_and_costs(change: dict[str, float], said: str) -> None:
    other = {"estimator": "informed", "change": change, "times": 6.0, "leaves": 40}
    assert _other_estimator(other) == said
