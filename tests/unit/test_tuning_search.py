"""Searches on trials whose answer is known: errors that are functions of the losses."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.mini import mini_product
from support.seeds import examples

from opendas.errors import BudgetError, ConfigError, EstimationError, SolverFailure
from opendas.privacy.relations import Mechanism
from opendas.runs.simulated.finished import FinishedRuns
from opendas.schema.product import PassPlan
from opendas.tuning.candidate import EXACT, Candidate, Strategy, bureau_strategies
from opendas.tuning.judge import Judge, Tallies, least_factor, read_tallies
from opendas.tuning.search import level_by_level, search
from opendas.tuning.targets import Tally, Target

LEVELS = ("region", "town", "block")
PLAIN = Strategy("plain", {level: {"total": Fraction(1, 4), "detailed": Fraction(3, 4)} for level in LEVELS})


def mean(limit: int) -> Target:
    return Target("town", "mean-absolute-error", "total", "total", Fraction(limit), Fraction(1))


@dataclass
class Formula:
    """Trials whose errors are given functions of the losses, in millionths."""

    errors: Sequence[Callable[[dict[str, float]], float]]
    targets: tuple[Target, ...] = ()
    made: int = 0

    def __post_init__(self) -> None:
        self.targets = tuple(mean(1_000_000) for _ in self.errors)

    def trial(self, candidate: Candidate, seed: int) -> tuple[Tally, ...]:
        self.made += 1
        losses = {
            f"{level} {name}": float(EXACT if queries is None else queries[name])
            for level, queries in candidate.losses.items()
            for name in PLAIN.shares[level]
        }
        return tuple(Tally(1, 0, round(1e6 * error(losses))) for error in self.errors)


def judge(formula: Formula, runs: int = 1, most: int = 10_000) -> Judge:
    return Judge(formula, range(runs), FinishedRuns(read_tallies), most)


def level(losses: dict[str, float], name: str) -> float:
    return losses[f"{name} total"] + losses[f"{name} detailed"]


@given(st.floats(1e-6, 1e6), st.floats(0.01, 0.5))
def test_the_least_factor_is_found_within_the_tolerance(threshold: float, tolerance: float) -> None:
    tried: list[Fraction] = []

    def passes(factor: Fraction) -> bool:
        tried.append(factor)
        return factor >= threshold

    found = least_factor(passes, tolerance)
    assert found in tried
    assert found >= threshold
    assert found <= threshold * (1 + tolerance) * 1.001
    assert len(tried) < 40


def test_a_factor_is_not_sought_below_the_lowest() -> None:
    assert least_factor(lambda factor: True, 0.1, lowest=1.0) == 1
    assert least_factor(lambda factor: True, 0.1, lowest=0.25) == Fraction(1, 4)


def test_targets_that_no_multiple_meets() -> None:
    with pytest.raises(EstimationError, match="nor with any smaller multiple tried"):
        least_factor(lambda factor: False, 0.1)


@settings(max_examples=examples(20), deadline=None)
@given(st.tuples(*[st.floats(0.05, 5.0)] * 3))
def test_geolevels_that_do_not_trade_are_found_one_by_one(needs: tuple[float, float, float]) -> None:
    """Each target needs one geolevel: the least budget is the sum of the needs."""
    errors = [lambda x, n=n, a=a: a / max(level(x, n), 1e-12) for n, a in zip(LEVELS, needs, strict=True)]
    found = search(judge(Formula(errors)), [(PLAIN, dict.fromkeys(LEVELS, Fraction(1)))], 0.02, queries=False)
    for name, need in zip(LEVELS, needs, strict=True):
        assert need * 0.995 <= float(found.levels[name]) <= need * 1.03


def test_an_exchange_finds_what_cuts_alone_do_not() -> None:
    """1 / (a b c) at most 1, of weights that make the proportions of the start wrong: cuts cannot move."""

    def error(x: dict[str, float]) -> float:
        a, b, c = (max(level(x, name), 1e-9) for name in LEVELS)
        return float(1 / (a * b * c))

    start = {"region": Fraction(8), "town": Fraction(1, 2), "block": Fraction(1, 4)}
    found = search(judge(Formula([error])), [(PLAIN, start)], 0.01, queries=False)
    assert float(found.total) < 3.6, "the optimum is 3; the start needs 8.75"


def test_query_groups_that_nothing_needs_are_dropped() -> None:
    errors = [lambda x: 1 / max(sum(x[f"{name} detailed"] for name in LEVELS), 1e-12)]
    found = search(judge(Formula(errors)), [(PLAIN, dict.fromkeys(LEVELS, Fraction(1)))], 0.05)
    assert float(found.total) < 1.1
    assert sum(float(q["total"]) for q in found.losses.values() if q) < 0.02


def test_a_geolevel_of_which_no_target_speaks_keeps_a_little() -> None:
    errors = [lambda x: 1 / max(level(x, "town"), 1e-12)]
    found = search(judge(Formula(errors)), [(PLAIN, dict.fromkeys(LEVELS, Fraction(1)))], 0.05, queries=False)
    assert float(found.levels["town"]) < 1.06
    for name in ("region", "block"):
        assert 0 < found.levels[name] < Fraction(1, 50) * found.total


@pytest.mark.parametrize("error", [BudgetError("too wide to be drawn"), SolverFailure("99", "pass 1", 1e-5)])
def test_an_allocation_that_cannot_be_run_meets_nothing(error: Exception) -> None:
    class Wide(Formula):
        def trial(self, candidate: Candidate, seed: int) -> tuple[Tally, ...]:
            if candidate.total < 5:
                raise error
            return super().trial(candidate, seed)

    judged = judge(Wide([lambda x: 0.0]))
    found = search(judged, [(PLAIN, dict.fromkeys(LEVELS, Fraction(4)))], 0.05, queries=False)
    assert 5 <= float(found.total) < 5.6
    assert any(step.values == (None,) and not step.passed for step in judged.path)


def test_level_by_level_ends_with_noise_at_every_geolevel_and_the_targets_met() -> None:
    errors = [lambda x: sum(0.5 / max(level(x, name), 1e-12) for name in LEVELS)]
    formula = Formula(errors)
    found = level_by_level(judge(formula), [PLAIN], LEVELS, 0.02)
    assert all(found.losses[name] is not None for name in LEVELS)
    (tally,) = formula.trial(found, 0)
    assert formula.targets[0].passes(tally)
    assert float(found.total) == pytest.approx(5.0, rel=0.05), "2, 2 and 1: it never looks back"
    ours = search(judge(formula), [(PLAIN, found.levels)], 0.02, queries=False)
    assert float(ours.total) == pytest.approx(4.5, rel=0.03), "the optimum: 1.5 each"


def test_strategies_that_cost_twice_as_much_are_ruled_out() -> None:
    worse = Strategy(
        "worse", {name: {"total": Fraction(3, 4), "detailed": Fraction(1, 4)} for name in LEVELS}
    )
    errors = [lambda x: sum(0.5 / max(x[f"{name} detailed"], 1e-12) for name in LEVELS)]
    judged = judge(Formula(errors))
    found = level_by_level(judged, [PLAIN, worse], LEVELS, 0.05)
    assert found.strategy.name == "plain"
    assert not any(step.stage.startswith("worse: down to") for step in judged.path)


class Forgetful(FinishedRuns[Tallies]):
    """Remembers nothing: two strategies with the same losses are told apart here."""

    def get(self, name: str, seed: int) -> None:
        return None


def test_a_strategy_that_no_loss_saves_is_out() -> None:
    """For instance one whose weights spread so far that no family is certified."""
    hopeless = Strategy("hopeless", PLAIN.shares)

    class Some(Formula):
        def trial(self, candidate: Candidate, seed: int) -> tuple[Tally, ...]:
            if candidate.strategy.name == "hopeless":
                raise SolverFailure("99", "pass 1", 1e-5)
            return super().trial(candidate, seed)

    errors = [lambda x: sum(0.5 / max(level(x, name), 1e-12) for name in LEVELS)]
    judged = judge(Some(errors))
    judged.memory = Forgetful(read_tallies)
    assert level_by_level(judged, [hopeless, PLAIN], LEVELS, 0.1).strategy.name == "plain"
    with pytest.raises(EstimationError, match="nor with any smaller multiple tried"):
        level_by_level(judged, [hopeless], LEVELS, 0.1)


def test_a_verdict_needs_no_more_runs_than_settle_it() -> None:
    class Halves:
        targets = (Target("town", "absolute-error", "total", "total", Fraction(1), Fraction(9, 10)),)

        def trial(self, candidate: Candidate, seed: int) -> tuple[Tally, ...]:
            return (Tally(10, 5),)

    judged = Judge(Halves(), range(10), FinishedRuns(read_tallies), 100)
    assert not judged.passes(Candidate.of_levels(PLAIN, dict.fromkeys(LEVELS, Fraction(1))), "x")
    assert judged.path[0].seeds == 3, "after 15 of 30 the other 70 can no longer lift 85 of 100 to 90"


def test_it_gives_up_after_the_most_runs() -> None:
    errors = [lambda x: 1 / max(level(x, "town"), 1e-12)]
    with pytest.raises(EstimationError, match="most-runs"):
        search(judge(Formula(errors), most=5), [(PLAIN, dict.fromkeys(LEVELS, Fraction(1)))], 0.01)


def test_a_stopped_search_goes_on_from_its_memory(tmp_path: Path) -> None:
    errors = [lambda x: 1 / max(level(x, "town"), 1e-12)]
    start = [(PLAIN, dict.fromkeys(LEVELS, Fraction(1)))]
    path = tmp_path / "runs.jsonl"
    first = Formula(errors)
    with pytest.raises(EstimationError):
        search(Judge(first, range(1), FinishedRuns(read_tallies, path, "me"), 9), start, 0.05)
    with path.open("a") as file:
        file.write('{"run": "torn')
    second, whole = Formula(errors), Formula(errors)
    found = search(Judge(second, range(1), FinishedRuns(read_tallies, path, "me"), 1000), start, 0.05)
    assert found == search(judge(whole), start, 0.05)
    assert second.made == whole.made - 9
    with pytest.raises(ConfigError, match="something else"):
        FinishedRuns(read_tallies, path, "you")
    path.write_text("{}\n")
    with pytest.raises(ConfigError, match="not a file of finished runs"):
        FinishedRuns(read_tallies, path, "me")


def test_budgets_are_exact() -> None:
    losses = {"region": Fraction("0.123"), "town": None, "block": Fraction(7, 3)}
    budget = Candidate.of_levels(PLAIN, losses).budget(Mechanism.DISCRETE_GAUSSIAN)
    assert sum(budget["geolevels"].values()) == 1
    assert all(sum(shares.values()) == 1 for shares in budget["queries"].values())


def test_six_strategies() -> None:
    product = mini_product()
    found = bureau_strategies(product, LEVELS)
    assert len({strategy.name for strategy in found}) == len(found) == 6
    sizes = {name: product.workload.group(name).size for name in product.query_names}
    for strategy, level_name in itertools.product(found, LEVELS):
        shares = strategy.shares[level_name]
        assert sum(shares.values()) == 1
        power = {"inverse square": -2, "square": 2, "even": 0}[strategy.name.split(", ")[1]]
        for (a, x), (b, y) in itertools.combinations(shares.items(), 2):
            assert x * Fraction(sizes[b]) ** power == y * Fraction(sizes[a]) ** power
        assert strategy.one_pass == (power == 2)
    assert "kind * minor" not in found[3].shares["town"]
    assert set(found[0].shares["town"]) == set(product.query_names)
    assert json.dumps([strategy.name for strategy in found])
    staged = replace(product.passes, earlier=(PassPlan({}, {"*": (("kind",),)}),))
    found = bureau_strategies(replace(product, passes=staged), LEVELS)
    assert not any(strategy.one_pass for strategy in found)
