"""The answers of the page are those of ``opendas plan`` and of the least-squares engine."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from support.data import shared_data
from support.mini import write_mini

import opendas
from opendas.budget.noise import attribute_rho, within_rho
from opendas.demo.generator import write_demo
from opendas.explore.app import Pages
from opendas.explore.budget import BudgetAnswers, answer_budget, budget_fields, read_budget
from opendas.explore.budget_page import BudgetPage
from opendas.explore.fields import Problems
from opendas.explore.session import make_session
from opendas.explore.subjects import RunSubject, StandIn, stand_in
from opendas.geography.frame import Frame
from opendas.geography.partitions import standard_spine
from opendas.geography.states import STATES
from opendas.gls.expected_error import ExpectedError
from opendas.measurement.loss import attribute_losses, plan_loss, within_losses
from opendas.measurement.plan import MeasurementPlan
from opendas.measurement.protection import ProtectionMap
from opendas.privacy.attacker import pure_power_bound, zcdp_power_bound
from opendas.privacy.relations import Mechanism
from opendas.privacy.zcdp import epsilon_cks
from opendas.runs.context.facts import noise_rows
from opendas.runs.context.run import Run
from opendas.runs.starting.templates import pl94_run_file
from opendas.schema.pl94 import pl94_persons

SPINES = {
    "standard": '"standard"',
    "bypass": '[{ step = "bypass" }]',
    "aian": '"aian"',
    "optimized": '"optimized"',
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    write_demo(folder, blocks=150, seed=3)
    return folder


def compare(found: BudgetAnswers, plan: MeasurementPlan, held: ProtectionMap) -> None:
    """Compare with the rows of the plan and the engine, each worked out again."""
    margins: dict[tuple[str, str], list[int]] = {}
    for row in noise_rows(plan):
        margins.setdefault((row.geolevel, row.query), []).append(row.moe90)
    expected = ExpectedError.build(plan)
    for level in plan.spine.names:
        for query in plan.product.query_names:
            cell = found.cells[level, query]
            here = margins.get((level, query))
            assert (cell.least, cell.most) == ((None, None) if here is None else (min(here), max(here)))
            (row,) = expected.summary(level, [query])
            assert cell.expected == pytest.approx(row.mean_sd, rel=1e-9, abs=1e-9)
    losses = {loss.name: loss.loss for loss in found.attributes if loss.loss}
    assert losses == dict(attribute_losses(plan, held))


@pytest.mark.parametrize("name", SPINES)
@pytest.mark.parametrize("kind", ["persons", "units"])
def test_a_run_file_is_answered_as_it_is_planned(made: Path, name: str, kind: str) -> None:
    path = made / f"{kind}-{name}.toml"
    text = (made / f"{kind}.toml").read_text()
    assert 'spine = "standard"' in text
    path.write_text(text.replace('spine = "standard"', f"spine = {SPINES[name]}"))
    run = opendas.load(path)
    subject = RunSubject(run)
    found = answer_budget(subject, subject.start())
    compare(found, run.plan, run.protection)
    # other shares: where parents are bypassed, every share of the spine is another
    levels = subject.levels
    shares = {level: Fraction(2 * (i + 1), len(levels) * (len(levels) + 1)) for i, level in enumerate(levels)}
    queries = {level: {"total": Fraction(1, 4), "detailed": Fraction(3, 4)} for level in levels}
    budget = replace(run.budget, total=Fraction(1, 3), geolevels=shares, queries=queries)
    other = subject.with_budget(budget)
    compare(answer_budget(subject, budget), other.plan, other.protection)


def test_a_product_of_ones_own_is_answered_as_it_is_planned(tmp_path: Path) -> None:
    run = opendas.load(write_mini(tmp_path))
    subject = RunSubject(run)
    compare(answer_budget(subject, subject.start()), run.plan, run.protection)


def test_block_by_block_spends_everything_on_the_leaves(tmp_path: Path) -> None:
    run = opendas.load(write_mini(tmp_path, run='estimator = "block-by-block"\ndrop_invariants = ["total"]'))
    subject = RunSubject(run)
    thirds = dict.fromkeys(subject.levels, Fraction(1, 3))
    queries = dict.fromkeys(subject.levels, run.budget.query_shares(subject.levels[-1]))
    budget = replace(run.budget, geolevels=thirds, queries=queries)
    found = answer_budget(subject, budget)
    compare(found, run.plan, run.protection)
    assert "block-by-block" in found.warnings[0]
    assert answer_budget(subject, subject.start()).warnings == ()


def test_a_geolevel_without_budget_is_spread_evenly_by_the_topdown_estimator_alone(tmp_path: Path) -> None:
    shares = {"region": Fraction(1, 2), "town": Fraction(0), "block": Fraction(1, 2)}
    for estimator, told in (("topdown", ["Geolevel town"]), ("informed", [])):
        subject = RunSubject(opendas.load(write_mini(tmp_path / estimator, run=f'estimator = "{estimator}"')))
        found = answer_budget(subject, replace(subject.start(), geolevels=shares))
        assert [text[:13] for text in found.warnings if "spread evenly" in text] == told


def test_sentences_are_true_of_one_geolevel_and_of_units_of_several_records(tmp_path: Path) -> None:
    (tmp_path / "leaves.csv").write_text("ward\nn\ns\n")
    (tmp_path / "t.csv").write_text("ward,colour,who\nn,red,a\n")
    (tmp_path / "p.toml").write_text(
        '[product]\nname = "p"\nprotected_unit = "voter"\nprovenance = "public"\n'
        '[attributes]\ncolour = ["red", "blue"]\n[queries]\ngroups = []\n'
        '[[invariants]]\nquery = "total"\ngeolevel = "all"\n'
    )
    text = (
        '[run]\nproduct = "p.toml"\n'
        '[input]\nreader = "records"\npath = "t.csv"\ngeocode = "ward"\nunit_id = "who"\nat_most = 2\n'
        '[geography]\nlevels = [{ name = "all", prefix = 0 }, { name = "ward" }]\n'
        'frame = "leaves.csv"\nprovenance = "public"\n'
        '[budget]\nrho = "1"\ngeolevels = { all = "1/2", ward = "1/2" }\n'
        '[budget.queries]\n"*" = { detailed = "1" }\n'
    )
    (tmp_path / "two.toml").write_text(text)
    one = text.replace('{ name = "all", prefix = 0 }, ', "").replace(
        'all = "1/2", ward = "1/2"', 'ward = "1"'
    )
    (tmp_path / "one.toml").write_text(one.replace("[input]", 'drop_invariants = ["total"]\n[input]'))
    summaries, pages = [], []
    for name in ("two", "one"):
        session = make_session(tmp_path / f"{name}.toml")
        page = session.budgets
        found = page.answer(page.started())
        summaries.append(page.summary(found).partition("count: ")[2])
        pages.append(bytes(Pages(session).render(page, found).body).decode())
    assert [summary.split()[0] for summary in summaries] == ["all", "ward"]
    assert all("all records of one who replaced" in text for text in pages)
    problems = Problems()
    subject = make_session(tmp_path / "two.toml").budgets.first
    read_budget(
        {**budget_fields(subject.start(), subject), "neighbours": "unbounded"}, "a", subject, problems
    )
    assert "With the total of all records published exactly" in problems.by_field["a.neighbours"]


def test_the_power_of_a_test_is_bounded_as_in_the_report() -> None:
    subject = stand_in("us-persons")
    budget = subject.start()
    for rate, power in answer_budget(subject, budget).power:
        assert power == zcdp_power_bound(budget.total, rate)
    pure = replace(budget, mechanism=Mechanism.DISCRETE_LAPLACE)
    for rate, power in answer_budget(subject, pure).power:
        assert power == pure_power_bound(budget.total, rate)


def even_frame(counts: dict[str, int]) -> Frame:
    """Geounits dealt out evenly: the first parents have one child more."""
    codes = [f"{i:03d}" for i in range(next(iter(counts.values())))]
    levels: dict[str, list[str]] = {}
    sizes = list(counts.values())
    for name, above, size in zip(counts, [1, *sizes], sizes, strict=False):
        if not levels:
            levels[name] = codes
            continue
        share, more = divmod(size, above)
        fanout = [share + 1] * more + [share] * (above - more)
        levels[name] = [f"{code}{k:03d}" for code, n in zip(codes, fanout, strict=True) for k in range(n)]
        codes = levels[name]
    leaf = np.array(codes, dtype="S")
    above_leaf = {name: leaf.astype(f"S{3 * (i + 1)}") for i, name in enumerate(list(counts)[:-1])}
    return Frame(leaf, above_leaf, list(counts)[-1])


def test_a_stand_in_is_answered_as_a_spine_of_these_numbers() -> None:
    counts = {"us": 1, "state": 3, "county": 8, "tract": 17, "block_group": 40, "block": 101}
    subject = StandIn("x", "x", "x", pl94_persons(), counts, {}, "us2020-persons")
    found = answer_budget(subject, subject.start())
    frame = even_frame(counts)
    spine = standard_spine(frame)
    assert {level.name: len(level) for level in spine.levels} == counts
    plan = MeasurementPlan(subject.product, spine, subject.start())
    compare(found, plan, ProtectionMap.without_facts(plan))


def test_the_small_state_stands_in_for_rhode_island(tmp_path: Path) -> None:
    """Its mean errors are those of the real spine: within 11 % at five counties, within 2 % elsewhere."""
    text = pl94_run_file(next(state for state in STATES if state.postal == "RI"), 2010, "persons")
    source = shared_data("pl94_2010_ri") / "ri2010.pl.zip"
    (tmp_path / "run.toml").write_text(text.replace('"ri2010.pl.zip"', f'"{source}"'))
    real, made_up = RunSubject(opendas.load(tmp_path / "run.toml")), stand_in("state-persons")
    assert real.start() == made_up.start()
    assert real.geounits == made_up.geounits
    found, instead = answer_budget(real, real.start()), answer_budget(made_up, made_up.start())
    for (level, query), cell in found.cells.items():
        assert (instead.cells[level, query].least, instead.cells[level, query].most) == (
            cell.least,
            cell.most,
        )
        near = 0.11 if level == "county" else 0.02
        assert instead.cells[level, query].expected == pytest.approx(cell.expected, rel=near)


def test_states_that_the_spine_divides_are_known_as_wholes_only() -> None:
    subject = stand_in("us-persons")
    found = answer_budget(subject, subject.start())
    assert found.cells["us", "total"].expected == 0
    assert found.cells["state", "total"].expected > 0
    assert not found.cells["state", "total"].is_exact
    assert found.cells["us", "total"].is_exact


def test_losses_and_the_curve_are_those_of_the_accountant() -> None:
    subject = stand_in("us-persons")
    budget = subject.start()
    found = answer_budget(subject, budget)
    attributes = attribute_rho(budget, subject.attributes)
    assert {loss.name: loss.loss for loss in found.attributes} == dict(attributes)
    assert {loss.name: loss.loss for loss in found.within} == dict(within_rho(budget))
    assert found.whole.epsilon["cks"] == epsilon_cks(budget.total, budget.delta)
    for loss in (*found.attributes, *found.within):
        assert loss.epsilon["cks"] == epsilon_cks(loss.loss, budget.delta)
    for exponent, epsilon in found.curve.items():
        assert epsilon["cks"] == epsilon_cks(budget.total, Fraction(1, 10**exponent))


@pytest.mark.parametrize("spine", ["standard", pytest.param("optimized", marks=pytest.mark.slow)])
def test_the_exact_epsilon_is_that_of_the_plan(made: Path, spine: str) -> None:
    path = made / f"exact-{spine}.toml"
    path.write_text((made / "persons.toml").read_text().replace('spine = "standard"', f'spine = "{spine}"'))
    run = opendas.load(path)
    subject = RunSubject(run)
    bounds = subject.exact_loss(run.budget).epsilon(run.budget.delta)
    wanted = plan_loss(run.plan, run.protection).epsilon(run.budget.delta)
    assert (bounds.lower, bounds.upper) == (wanted.lower, wanted.upper)
    shown = answer_budget(subject, run.budget)
    parts = attribute_losses(run.plan, run.protection)
    assert {loss.name: loss.loss for loss in shown.attributes if loss.loss} == parts
    assert {loss.name: loss.loss for loss in shown.within} == within_losses(run.plan, run.protection)
    page = BudgetPage(subject)
    found = page.answer(page.started(), "exact")
    ((name, lower, upper),) = found.more["exact"]
    assert name == "A"
    assert Fraction(lower) <= bounds.lower <= bounds.upper <= Fraction(upper)
    assert bounds.upper < found.plans[0][1].whole.epsilon["cks"]


def test_areas_off_the_spine_have_the_errors_that_the_plan_shows(made: Path) -> None:
    run = opendas.load(made / "persons.toml")
    subject = RunSubject(run)
    page = BudgetPage(subject)
    found = page.answer(page.started(), "areas")
    wanted = [row for row in opendas.plan(run).expected if row.kind == "entity"]
    assert wanted
    assert [row.name for row in wanted] == list(subject.categories)
    for row, other in zip(found.more["areas"][0], wanted, strict=True):
        assert (row.name, row.areas) == (other.name, other.areas)
        assert row.mean_sd == pytest.approx(other.mean_sd, rel=1e-9)
        assert row.max_sd == pytest.approx(other.max_sd, rel=1e-9)
    assert stand_in("us-persons").categories == ()


def test_a_run_is_tried_when_asked_as_the_plan_tries_it(made: Path) -> None:
    run = opendas.load(made / "persons.toml")
    subject = RunSubject(run)
    page = BudgetPage(subject)
    assert page.context(page.answer(page.started()))["tried"] == []
    less = budget_fields(replace(run.budget, total=run.budget.total / 8), subject)
    found = page.answer(replace(page.started(), plans=(page.started().plans[0], less)), "tried")
    ours, other = found.more["tried"]
    wanted = {(row.geolevel, row.query): row.mean_abs_error for row in opendas.plan(run).tried().rows}
    assert ours == wanted
    assert ours["block", "total"] < other["block", "total"]
    rows = dict(page.context(found)["tried"])
    assert f"{ours['block', 'total']:.3g}" in rows["total"][-1]
    assert rows["total"][0] == found.per_plan(("\u2013", "\u2013"))  # of one state nothing is said
    assert subject.can_be_tried
    assert not stand_in("us-persons").can_be_tried


def test_two_ways_to_spend_more_on_blocks_cost_a_move_within_a_block_group_the_same(made: Path) -> None:
    run = opendas.load(made / "persons.toml")
    subject = RunSubject(run)
    page = BudgetPage(subject)
    assert page.context(page.answer(page.started()))["price"] == {}
    found = page.answer(page.started(), "price")
    (ways,) = found.more["price"]
    more, moved = ways["more in all"], ways["moved down"]
    assert len(more) == len(moved) == 4
    for factor, one, other in zip((Fraction(1, 2), 1, 2, 4), more, moved, strict=True):
        assert one.budget == replace(run.budget, total=run.budget.total * factor)
        assert other.budget.total == run.budget.total
        losses = [within_losses(run.with_budget(each.budget).plan)["block_group"] for each in (one, other)]
        assert losses[0] == losses[1] == run.budget.total * run.budget.geolevels["block"] * factor
        assert one.within == other.within == epsilon_cks(losses[0], run.budget.delta)
        (wanted,) = (
            row.mean_abs_error
            for row in subject.tried(other.budget, 1)
            if (row.geolevel, row.query) == ("block", "votingage")
        )
        assert other.errors["votingage"] == wanted
    for way in (more, moved):
        errors = [one.errors["total"] for one in way]
        assert errors == sorted(errors, reverse=True)
    view = page.context(found)["price"]
    assert view["picture"].count("<circle") == len(view["rows"]) == 8
    both = page.answer(page.after_action(page.started(), "compare"), "price")
    assert page.context(both)["price"]["picture"].count('class="plan1 moved"') == 1
    # Of a stand-in no block is tried; and no unit moves between blocks whose numbers of units are published.
    for other in (BudgetPage(), BudgetPage(RunSubject(opendas.load(made / "units.toml")))):
        found = other.answer(other.started(), "price")
        assert found.more == {}
        assert not other.context(found)["can_be_priced"]


def test_a_stand_in_has_the_exact_epsilon_of_its_noise() -> None:
    counts = {"us": 1, "state": 2, "county": 4, "tract": 8, "block_group": 16, "block": 32}
    subject = StandIn("x", "x", "x", pl94_persons(), counts, {}, "us2020-persons")
    budget = subject.start()
    plan = MeasurementPlan(subject.product, standard_spine(even_frame(counts)), budget)
    wanted = plan_loss(plan).epsilon(budget.delta)
    found = subject.exact_loss(budget).epsilon(budget.delta)
    assert (found.lower, found.upper) == (wanted.lower, wanted.upper)


def test_budget_for_what_is_published_exactly_is_pointed_out(made: Path) -> None:
    run: Run = opendas.load(made / "persons.toml")
    subject = RunSubject(run)
    budget = subject.presets["us2020-persons"]
    found = answer_budget(subject, budget)
    assert "add nothing" in " ".join(found.warnings)
    assert not answer_budget(stand_in("us-persons"), stand_in("us-persons").start()).warnings
