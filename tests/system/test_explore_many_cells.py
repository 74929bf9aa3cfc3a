"""The explorer with the census's DHC products: a million cells, and two histograms of one budget."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from support.asgi import Client
from support.browser import chromium, explorer
from support.pl94_zip import some_blocks, write_zip
from support.two_histograms import write_two_histograms

pytest.importorskip("starlette")
pytest.importorskip("httpx")

import opendas
from opendas.demo.census import make_census
from opendas.errors import BudgetError
from opendas.explore import subjects
from opendas.explore.app import make_app
from opendas.explore.budget import answer_budget
from opendas.explore.budget_page import budget_state
from opendas.explore.run_file import read_run_file, run_file
from opendas.explore.session import Session, make_session
from opendas.explore.subjects import RunSubject
from opendas.explore.two_histograms import TwoHistograms
from opendas.gls.expected_error import expected_rows
from opendas.intervals.expected_margins import (
    expected_on_margin,
    expected_total,
    margin_megabytes,
    margin_rows,
)
from opendas.runs import plan as plan_module

HOST = "127.0.0.1:8321"


@pytest.fixture(scope="module")
def census(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("census")
    make_census(write_zip(folder / "fb2020.pl.zip", some_blocks("44"), 2020), folder / "made")
    return folder / "made"


@pytest.fixture(scope="module", autouse=True)
def _however_busy_this_machine_is() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subjects, "AT_ONCE", math.inf)
        yield


@pytest.fixture(scope="module")
def persons(census: Path) -> RunSubject:
    return RunSubject(opendas.load(census / "run-dhc-persons.toml"))


def asked(subject: subjects.Subject, **more: str) -> tuple[int, dict[str, Any]]:
    """Send the form of a subject as it starts; return status and answer."""
    client = Client(make_app(Session(subject), frozenset({HOST})), f"http://{HOST}")
    form = {"subject": subject.key, "plans": "1", **budget_state(subject).fields(), **more}
    answer = client.post("/budget/answers", data=form)
    return answer.status_code, answer.json()


def test_a_run_that_would_be_refused_is_said_to_be(persons: RunSubject) -> None:
    status, answer = asked(persons)
    assert status == 200
    for said in (" ".join(persons.notes), unescape(str(answer))):
        assert "opendas run and plan refuse run-dhc-persons.toml" in said
        assert "Tie the run to an earlier release" in said


def test_expected_errors_are_those_of_plan(persons: RunSubject) -> None:
    found = answer_budget(persons, persons.start())
    plan, frame, workload = persons.run.plan, persons.run.frame, persons.product.workload
    small = [name for name in persons.queries if 1 < workload.group(name).size <= 100]
    rows = (*expected_rows(expected_total(plan), frame), *margin_rows(plan, frame, small))
    planned = {(row.name, row.query): row.mean_sd for row in rows}
    assert set(persons.levels) - set(persons.off_spine) > {"block"}
    every = zip(plan.spine.levels, plan.spine.shares, strict=True)
    # geolevels whose share parents took over in every geounit
    unasked = {level.name for level, s in every if s is not None and not any(s.multiples[n] for n in s.which)}
    for query in persons.queries:
        small = workload.group(query).size <= 100
        assert (query in persons.never) is not small
        alone = expected_on_margin(plan, query) if small else None
        for level in persons.levels:
            cell = found.cells[level, query]
            assert (cell.least is None) == (query not in plan.budget.queries[level] or level in unasked)
            if alone is None:
                assert cell.expected is None
                continue
            assert cell.expected == pytest.approx(alone.summary(level, [query])[0].mean_sd)
            if level in frame.geolevels and level not in persons.off_spine:
                assert cell.expected == pytest.approx(planned[level, query])


def test_what_takes_long_is_worked_out_on_request(
    persons: RunSubject, census: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subjects, "AT_ONCE", 0.0)
    slow = RunSubject(persons.run)
    assert set(slow.later.queries) == set(slow.queries) - set(slow.never)
    status, answer = asked(slow)
    assert status == 200
    text = unescape(re.sub("<[^>]+>", " ", answer["answers"]))
    assert "sex × hispanic, relgq_4_groups × sex" in text
    assert re.search(r"about \d+ seconds?, and \d+ [KM]B of memory", text), text
    assert re.search(r"sex × hispanic\s+" + r"\s+".join("–" * len(slow.levels)), text), text
    status, answer = asked(slow, action="errors")
    text = unescape(re.sub("<[^>]+>", " ", answer["answers"]))
    cells = answer_budget(persons, persons.start()).cells
    wanted = [f"{cells[level, 'sex * hispanic'].expected:.3g}" for level in persons.levels]
    assert re.search(r"sex × hispanic\s+" + r"\s+".join(map(re.escape, wanted)), text), text
    assert "Worked out on request" not in text


def test_errors_that_no_memory_holds_are_left_out(
    persons: RunSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subjects, "available_memory_mb", lambda: 0.01)
    poor = RunSubject(persons.run)
    assert "sex * age_38_groups" in poor.never
    assert "total" not in poor.never
    found = answer_budget(poor, poor.start(), every=True)
    assert found.cells["block", "sex * age_38_groups"].expected is None
    assert found.cells["block", "total"].expected is not None


def test_the_page_says_what_it_leaves_out_and_answers_the_rest(persons: RunSubject) -> None:
    status, answer = asked(persons, action="areas")
    assert status == 200
    text = unescape(re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", answer["answers"])))
    assert "Not worked out: hhgq8lev × votingage × hispanic × cenrace" in text
    assert "Errors of released counts are not tried here: it is estimated in stages" in text
    assert "draw errors against that loss" not in text
    assert re.search(r"tract \d+ [\d.]+ [\d.]+", text), "tracts are off the spine"
    assert "Expected standard error of the total: " in answer["status"]
    assert "detailed – –" in text, "not worked out, and not an error of zero"
    status, answer = asked(persons, **{"a.total": "1/2"})
    assert (status, answer["status"].startswith("rho 0.5,")) == (200, True)


def test_a_tied_run_says_which_counts_err_as_those_before(census: Path, tmp_path: Path) -> None:
    opendas.release(opendas.load(census / "run-pl94-persons.toml"), out=tmp_path / "pl94", seed=1)
    text = (census / "run-dhc-persons.toml").read_text()
    tied = census / "tied.toml"
    tied.write_text(f'{text}\n[tie]\nrelease = "{tmp_path / "pl94"}"\n')
    _, answer = asked(make_session(tied).budgets.first)
    text = unescape(re.sub(r"\s+", " ", answer["answers"]))
    assert "Errors are by the measurements of dhc-persons alone. Its counts of hhgq8lev ×" in text
    assert "are those of pl94-persons: they err as there." in text
    assert "Errors of released counts are not tried here: its counts agree with those of pl94-persons" in text


def test_households_and_all_units_share_a_budget(census: Path) -> None:
    subject = make_session(census / "run-dhc-units.toml").budgets.first
    assert isinstance(subject, TwoHistograms)
    run = opendas.load(census / "run-dhc-units.toml")
    assert run.companion is not None
    start = subject.start()
    assert start.total == Fraction(15401, 2000)
    check_parts(subject, run)
    cells = answer_budget(subject, start).cells
    alone = answer_budget(RunSubject(run.companion), run.companion.budget).cells
    assert cells["block", "tenvacgq"] == alone["block", "detailed"]
    assert cells["block", "hhgq_vector"].is_exact
    assert cells["block", "hisp * hhtenshort_2lev"].expected is not None
    status, answer = asked(subject, action="exact")
    assert status == 200
    assert "opendas account --exact run-dhc-units.toml" in answer["answers"]
    status, answer = asked(
        subject, **{f"a.q0.{n}": "" for n, q in enumerate(subject.queries)} | {"a.l0": "0"}
    )
    assert status == 422


def test_a_plan_names_errors_that_memory_has_no_room_for(
    census: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = opendas.load(census / "run-dhc-units.toml")
    groups = run.product.workload.groups(run.product.query_names)
    small = {query.name: query.size for query in groups if 1 < query.size <= 100}
    assert {row.query for row in plan_module.make_plan(run).expected} == {"total", *small}
    total = expected_total(run.plan)
    room = margin_megabytes(total, min(small.values()))
    monkeypatch.setattr(plan_module, "available_memory_mb", lambda: 2 * room)
    plan = plan_module.make_plan(run)
    fit = {name for name, size in small.items() if margin_megabytes(total, size) <= room}
    assert {row.query for row in plan.expected} == {"total", *fit}
    (said,) = (one for one in plan.warnings if "half of the free memory" in one)
    without = ", ".join(name for name in small if name not in fit)
    assert said.startswith(f"expected errors of {without} are not computed")


def check_parts(subject: TwoHistograms, run: opendas.Run) -> None:
    """Compare the shared budget with those that a run divides it into."""
    assert run.companion is not None
    start = subject.start()
    for part, budget in ((subject._mine, run.budget), (subject._theirs, run.companion.budget)):
        found = start.part(part)
        assert (found.total, found.geolevels) == (budget.total, budget.geolevels)
        assert {k: dict(v) for k, v in found.queries.items()} == {
            k: dict(v) for k, v in budget.queries.items() if budget.geolevels[k]
        }


def test_a_plan_of_two_histograms_is_saved_and_run(tmp_path: Path) -> None:
    write_two_histograms(tmp_path)
    run = opendas.load(tmp_path / "run.toml")
    subject = TwoHistograms(run, run.companion)
    check_parts(subject, run)
    assert set(subject.queries) == {"total", "tenure", "tenure * size", "age", "detailed"} | {
        "kind", "occupancy", "status",
    }  # fmt: skip
    queries = {level: {"status": Fraction(1, 2), "age": Fraction(1, 2)} for level in subject.levels}
    budget = replace(subject.start(), total=Fraction(5, 2), queries=queries)
    nothing = replace(budget, queries={level: {"age": Fraction(1)} for level in subject.levels})
    with pytest.raises(BudgetError, match="gives nothing to kind, occupancy, status"):
        answer_budget(subject, nothing)
    text = run_file(subject, budget)
    assert read_run_file(text, subject) == budget
    (tmp_path / "saved.toml").write_text(text)
    saved = opendas.load(tmp_path / "saved.toml")
    assert saved.companion is not None
    assert (saved.budget.total, saved.companion.budget.total) == (Fraction(5, 4), Fraction(5, 4))
    assert dict(saved.companion.budget.queries["town"]) == {"detailed": 1}
    found, both = answer_budget(subject, budget), [RunSubject(saved), RunSubject(saved.companion)]
    mine, theirs = (answer_budget(each, each.start()) for each in both)
    assert found.cells["town", "age"] == mine.cells["town", "age"]
    assert found.cells["town", "status"] == theirs.cells["town", "detailed"]
    losses = {loss.name: loss.loss for loss in found.attributes}
    assert losses == {loss.name: loss.loss for loss in (*mine.attributes, *theirs.attributes)}
    for both_move, one, other in zip(found.within, mine.within, theirs.within, strict=True):
        assert both_move.loss == one.loss + other.loss
    release = opendas.release(saved, out=tmp_path / "out", seed=1)
    assert [check for check in release.verify(allow_seeded=True) if not check.ok] == []


def test_a_plan_of_a_million_cells_is_chosen_in_a_browser(census: Path, tmp_path: Path) -> None:
    pytest.importorskip("playwright")
    from playwright.sync_api import expect

    expect.set_options(timeout=120_000)
    run = census / "run-dhc-persons.toml"
    with chromium() as browser, explorer(str(run), "--save", str(tmp_path / "plan.toml")) as address:
        context = browser.new_context(viewport={"width": 1400, "height": 1000}, accept_downloads=True)
        page = context.new_page()
        page.set_default_timeout(120_000)
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        table = page.get_by_role("table", name=re.compile("Expected standard error of one answer"))
        row = table.get_by_role("row", name="sex × hispanic", exact=False).first
        before = row.inner_text()
        page.locator('[id="a.total"]').fill("1")
        expect(page.locator("#status")).to_contain_text("rho 1,")
        assert row.inner_text() != before
        assert re.search(r"\d", row.inner_text())
        expect(table.get_by_role("row", name=re.compile("^detailed"))).to_contain_text("–")
        # a button that is pressed while the slider's answer is being worked out
        page.evaluate(
            """async () => {
                const slider = document.querySelector('input[data-for="a.l1"]');
                slider.value = 0.4;
                slider.dispatchEvent(new Event("input", { bubbles: true }));
                await new Promise((done) => setTimeout(done, 60));
                [...document.querySelectorAll("button")].find((b) => b.value === "areas").click();
            }"""
        )
        expect(page.locator("#answers")).to_contain_text("Expected standard error of the total of one area")
        expect(page.locator('[id="a.l-sum-text"]')).to_have_text("Sum: 1")
        assert page.locator('[id="a.l1"]').input_value() == "0.4"
        with page.expect_download() as waiting:
            page.get_by_role("button", name="Save as a run file").click()
        waiting.value.save_as(census / "saved.toml")
        page.get_by_role("button", name="Write to plan.toml").click()
        expect(page.locator("main")).to_contain_text("was written to plan.toml")
        axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
        page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        results = axe.run(page)
        assert results.violations_count == 0, results.generate_report()
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        context.close()
    assert complaints == []
    assert (census / "saved.toml").read_bytes() == (tmp_path / "plan.toml").read_bytes()
    saved, given = tomllib.loads((census / "saved.toml").read_text()), tomllib.loads(run.read_text())
    assert {**saved, "budget": 0} == {**given, "budget": 0}
    assert opendas.load(census / "saved.toml").budget.total == 1
