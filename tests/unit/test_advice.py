"""Budget moves: what they say is what a plan with them would say."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.mini import mini_frame, write_mini

import opendas as od
from opendas.cli.main import cli
from opendas.errors import ConfigError
from opendas.gls.expected_error import ExpectedError
from opendas.gls.expected_topdown import gain_rows
from opendas.measurement.loss import attribute_losses, within_losses
from opendas.privacy.zcdp import epsilon_cks

SHARES = '"*" = { total = "1/100", "kind * minor" = "98/100", detailed = "1/100" }'


def a_run(folder: Path, run: str = "", loss: str = 'rho = "1/10"') -> od.Run:
    path = write_mini(folder, frame=mini_frame(2, 4, 6), run=run, loss=loss)
    text = path.read_text()
    path.write_text(text.replace('"*" = { total = "1/4", "kind * minor" = "1/4", detailed = "1/2" }', SHARES))
    return od.load(path)


@pytest.mark.parametrize("estimator", ["topdown", "informed"])
def test_effects_and_prices_are_those_of_the_plan_with_the_move(tmp_path: Path, estimator: str) -> None:
    run = a_run(tmp_path, f'estimator = "{estimator}"')
    moves = od.advise(run)
    within = [move for move in moves if move.kind == "within"]
    between = [move for move in moves if move.kind == "between"]
    moved = {name for move in within for name in move.queries}
    # The informed estimator uses the answers below: a move there may cost something above, and is not named.
    assert moved == {"region", "town", "block"} if estimator == "topdown" else "region" in moved
    assert len(between) == 2
    before = {
        (row.geolevel, row.query): row
        for row in gain_rows(ExpectedError.build(run.plan), run.product.query_names)
    }
    for number, move in enumerate(moves):
        assert sum(move.geolevels.values()) == 1
        assert all(sum(shares.values()) == 1 for shares in move.queries.values())
        shares = {level: dict(run.budget.query_shares(level)) for level in run.budget.geolevels} | dict(
            move.queries
        )
        queries = [
            f"{level} = {{ " + ", ".join(f'"{name}" = "{part}"' for name, part in parts.items()) + " }"
            for level, parts in shares.items()
        ]
        lines = [
            "[budget]", 'rho = "1/10"',
            "geolevels = { " + ", ".join(f'{k} = "{v}"' for k, v in move.geolevels.items()) + " }",
            "[budget.queries]",
            *queries,
        ]  # fmt: skip
        text = (tmp_path / "run.toml").read_text()
        other = tmp_path / f"move{number}.toml"
        other.write_text(text[: text.index("[budget]")] + "\n".join(lines) + "\n")
        changed = od.load(other)
        rows = gain_rows(ExpectedError.build(changed.plan), run.product.query_names)
        after = {(row.geolevel, row.query): row for row in rows}
        assert move.effects
        for effect in move.effects:
            place = (effect.geolevel, effect.query)
            assert effect.before == pytest.approx(getattr(before[place], estimator))
            assert effect.after == pytest.approx(getattr(after[place], estimator))
        delta = run.budget.delta
        for price in move.prices:
            if price.what.startswith("moving within a "):
                level = price.what.removeprefix("moving within a ").removesuffix(" of the spine")
                assert price.before == epsilon_cks(within_losses(run.plan, run.protection)[level], delta)
                rho = within_losses(changed.plan, changed.protection)[level]
                assert price.after == epsilon_cks(rho, delta)
                assert move.kind == "between"
                assert price.after > price.before


def test_what_is_exact_has_no_price(tmp_path: Path) -> None:
    """Totals of towns are published: nobody's town is hidden, and no move has a price above."""
    run = a_run(tmp_path)
    product = tmp_path / "product.toml"
    product.write_text(product.read_text().replace('geolevel = "region"', 'geolevel = "town"'))
    exact = od.load(tmp_path / "run.toml")
    losses = within_losses(exact.plan, exact.protection)
    assert losses["region"] == losses["town"] < within_losses(run.plan, run.protection)["region"]
    priced = {price.what: price for move in od.advise(exact) for price in move.prices}
    of_region = priced["moving within a region of the spine"]
    assert of_region.before == epsilon_cks(losses["region"], run.budget.delta)
    assert attribute_losses(exact.plan, exact.protection)


def test_a_move_within_a_geolevel_costs_nothing_above(tmp_path: Path) -> None:
    levels = ["region", "town", "block"]
    for move in od.advise(a_run(tmp_path)):
        if move.kind == "within":
            (level,) = move.queries
            above = levels[: levels.index(level)]
            assert not [effect for effect in move.effects if effect.geolevel in above]
            assert min(effect.change for effect in move.effects) < -0.05


def test_even_shares_that_are_good_already_get_no_move_within(tmp_path: Path) -> None:
    run = od.load(write_mini(tmp_path, loss='rho = "1/10"'))
    for move in od.advise(run):
        if move.kind == "within":
            changes = [1 + effect.change for effect in move.effects]
            assert min(changes) < 0.95


def test_pure_privacy_and_block_by_block(tmp_path: Path) -> None:
    pure = a_run(tmp_path / "pure", 'mechanism = "discrete-laplace"', 'epsilon = "1"')
    moves = od.advise(pure)
    (move, *_) = [one for one in moves if one.kind == "between"]
    assert all(0 < price.before <= 1 and 0 < price.after <= 1 for price in move.prices)
    leaves = a_run(tmp_path / "leaves", 'estimator = "block-by-block"\ndrop_invariants = ["total"]')
    with pytest.raises(ConfigError, match="nothing to move"):
        od.advise(leaves)


def test_the_command_says_it(tmp_path: Path) -> None:
    a_run(tmp_path)
    result = CliRunner().invoke(cli, ["plan", str(tmp_path / "run.toml"), "--advise", "--json"], obj={})
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert {move["kind"] for move in answer["advice"]} == {"within", "between"}
    assert all(Fraction(share) >= 0 for move in answer["advice"] for share in move["geolevels"].values())
    assert {row["geolevel"] for row in answer["gains"]} == {"region", "town", "block"}
    text = CliRunner().invoke(cli, ["plan", str(tmp_path / "run.toml"), "--advise"], obj={}).stdout
    assert "of the loss from region to town" in text
    assert "epsilon of moving within a" in text
