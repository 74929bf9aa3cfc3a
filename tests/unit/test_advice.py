"""Better shares of the same loss in seconds: what they say is what a plan with them would say."""

from __future__ import annotations

import json
import re
import tomllib
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from support.mini import mini_frame, write_mini

import opendas as od
import opendas.tuning.advice as advice_module
from opendas.cli.main import cli
from opendas.errors import ConfigError
from opendas.measurement.loss import attribute_losses, within_losses
from opendas.privacy.zcdp import epsilon_cks
from opendas.runs.simulated.trial import Trial
from opendas.tuning.advice import NOTABLE, SEEN, Advice
from opendas.tuning.populated import Populated
from opendas.tuning.same_loss import FREE, KEPT

SHARES = '"*" = { total = "1/100", "kind * minor" = "98/100", detailed = "1/100" }'


def a_run(folder: Path, run: str = "", loss: str = 'rho = "1/10"') -> od.Run:
    path = write_mini(folder, frame=mini_frame(2, 4, 6), run=run, loss=loss)
    text = path.read_text()
    path.write_text(text.replace('"*" = { total = "1/4", "kind * minor" = "1/4", detailed = "1/2" }', SHARES))
    return od.load(path)


def with_advice(run: od.Run, advice: Advice, to: Path) -> od.Run:
    """Return the run of a run file that has the advised shares."""
    budget = json.loads(json.dumps(advice.to_dict()))
    shares = [
        f"{level} = {{ " + ", ".join(f'"{name}" = "{part}"' for name, part in parts.items()) + " }"
        for level, parts in budget["queries"].items()
    ]
    geolevels = ", ".join(f'{level} = "{share}"' for level, share in budget["geolevels"].items())
    lines = ["[budget]", 'rho = "1/10"', f"geolevels = {{ {geolevels} }}", "[budget.queries]", *shares]
    text = run.path.read_text()
    to.write_text(text[: text.index("[budget]")] + "\n".join(lines) + "\n")
    return od.load(to)


def forecast(run: od.Run) -> dict[tuple[str, str], float]:
    """Return expected errors on the cells of the synthetic counts, of a frame as small as all of its part."""
    trial = Trial.of(run, spread=True)
    assert trial is not None
    queries = run.product.query_names
    whole_tree = run.resolved.estimator == "informed"
    tree = Populated.of(trial.counts, run.spine, run.product, queries, whole_tree=whole_tree)
    precisions = np.zeros((len(run.plan.levels), len(queries)))
    for number, level in enumerate(run.plan.levels):
        for name, share in run.budget.query_shares(level.geolevel).items():
            if share:
                noise = run.budget.distribution(level.geolevel, name)
                precisions[number, queries.index(name)] = 1 / noise.variance
    errors = tree.errors(precisions)
    levels = [level.geolevel for level in run.plan.levels]
    return {(level, q): errors[i, j] for i, level in enumerate(levels) for j, q in enumerate(queries)}


def test_geolevels_that_are_not_measured_stay_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice_module, "BETTER", 0.0)  # there is little to gain without the middle
    run = a_run(tmp_path)
    text = run.path.read_text()
    budget = 'geolevels = { region = "1/2", town = "0", block = "1/2" }'
    run.path.write_text(re.sub(r"geolevels = {[^}]*}", budget, text.replace('"*" = {', "region = {", 1)))
    run.path.write_text(run.path.read_text() + SHARES.replace('"*"', "block") + "\n")
    found = od.advise(od.load(run.path))
    assert found
    for advice in found:
        changed = with_advice(run, advice, tmp_path / "advised.toml")
        assert list(advice.queries) == ["region", "block"]
        assert changed.budget.geolevels["town"] == 0


@pytest.mark.parametrize("estimator", ["topdown", "informed"])
def test_advice_is_what_the_plan_with_it_says(tmp_path: Path, estimator: str) -> None:
    """Same loss; forecasts, trials and prices are those of a run file with these shares."""
    run = a_run(tmp_path, f'estimator = "{estimator}"')
    found = od.advise(run)
    assert [advice.kind for advice in found] == [KEPT, FREE]
    before, trial = forecast(run), Trial.of(run)
    assert trial is not None
    tried = {(row.geolevel, row.query): row.mean_abs_error for row in trial.errors()}
    for number, advice in enumerate(found):
        changed = with_advice(run, advice, tmp_path / f"advised{number}.toml")
        assert changed.budget.total == run.budget.total
        assert (changed.budget.geolevels == run.budget.geolevels) == (advice.kind == KEPT)
        after = forecast(changed)
        leaves = [key for key in before if key[0] == "block"]
        improved = np.mean([after[key] / before[key] - 1 for key in leaves])
        assert advice.improved == pytest.approx(improved, rel=1e-3)
        assert advice.improved < -0.05
        listed = {(effect.geolevel, effect.query): effect for effect in advice.effects}
        for key, error in before.items():
            change = after[key] / error - 1 if error > 1e-6 else 0.0
            assert change < 0.05, key  # nothing grows notably by the forecast
            if key in listed:
                assert listed[key].before == pytest.approx(error, rel=1e-3)
                assert listed[key].change == pytest.approx(change, abs=1e-3)
            else:
                assert abs(change) < NOTABLE + 1e-3
        seen = {(row.geolevel, row.query): row.mean_abs_error for row in trial.errors(changed.budget)}
        assert {(effect.geolevel, effect.query): effect.after for effect in advice.tried} == {
            key: error for key, error in seen.items() if abs(error / tried[key] - 1) > SEEN
        }
        priced = {price.what: (price.before, price.after) for price in advice.prices}
        for words, losses in (
            ("moving within a {} of the spine", within_losses),
            ("changing {}", attribute_losses),
        ):
            old, new = losses(run.plan, run.protection), losses(changed.plan, changed.protection)
            for name in old:
                pair = tuple(epsilon_cks(loss[name], run.budget.delta) for loss in (old, new))
                assert priced.pop(words.format(name), (pair[0], pair[0])) == pair
        assert not priced
        moving = [price for price in advice.prices if price.what.startswith("moving")]
        assert bool(moving) == (advice.kind == FREE)


def test_shares_that_are_good_already_get_no_advice(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    kept = next(advice for advice in od.advise(run) if advice.kind == KEPT)
    better = with_advice(run, kept, tmp_path / "better.toml")
    assert all(advice.kind == FREE for advice in od.advise(better))


def test_records_are_those_that_plan_is_told(tmp_path: Path) -> None:
    """With ten times the records other cells have some: forecasts and trials are of these."""
    run = a_run(tmp_path)
    few, many = (od.advise(run, records=records)[0] for records in (500, 50_000))
    assert few.effects != many.effects
    assert few.tried != many.tried


def test_pure_privacy_ties_and_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pure = a_run(tmp_path / "pure", 'mechanism = "discrete-laplace"', 'epsilon = "1"')
    (*_, advice) = od.advise(pure)
    assert advice.kind == FREE
    assert all(0 < price.before <= 1 and 0 < price.after <= 1 for price in advice.prices)
    leaves = a_run(tmp_path / "leaves", 'estimator = "block-by-block"\ndrop_invariants = ["total"]')
    with pytest.raises(ConfigError, match="nothing to move"):
        od.advise(leaves)
    monkeypatch.setattr("opendas.runs.simulated.forecast.TIMED_CELLS", 3)
    with pytest.raises(ConfigError, match=r"too many cells, or is tied.*nothing is advised"):
        od.advise(pure)


def test_the_command_says_it(tmp_path: Path) -> None:
    path = a_run(tmp_path).path
    result = CliRunner().invoke(cli, ["plan", str(path), "--advise", "--json"], obj={})
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)["advice"]
    assert [advice["kind"] for advice in said] == [KEPT, FREE]
    assert all(sum(map(Fraction, advice["geolevels"].values())) == 1 for advice in said)
    result = CliRunner().invoke(cli, ["plan", str(path), "--advise", "--records", "900"], obj={})
    assert f"opendas tune {path} --same-loss --records 900 --to plan.toml" in result.stderr
    text = result.stdout
    assert "better shares of the same loss, geolevels kept: block -" in text
    assert "epsilon of moving within a" in text
    start = text.rindex("[budget]")
    pasted = tomllib.loads(text[start:])["budget"]
    assert sum(map(Fraction, pasted["geolevels"].values())) == 1
    assert all(sum(map(Fraction, parts.values())) == 1 for parts in pasted["queries"].values())
