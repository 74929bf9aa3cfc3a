"""The explorer as people use it: in Chromium, by mouse, by keys, without a script, on paper, on a phone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from support.browser import chromium, explorer

pytest.importorskip("starlette")
pytest.importorskip("playwright")

from playwright.sync_api import expect

import opendas as od
from opendas.demo.generator import write_demo
from opendas.phsafe.config import Mode, parse_config

expect.set_options(timeout=60_000)  # machines that test may be busy

DESK = {"width": 1400, "height": 1000}
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with explorer() as found:
        yield found


class Visit:
    """A page, and everything that it asked for or complained about."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": DESK, "accept_downloads": True, **options})
        self.page = self.context.new_page()
        self.start = address
        self.address = address.partition("/?")[0].rstrip("/")
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._heard)

    def _heard(self, message: Any) -> None:
        # What is wrong with a form is answered with status 422, which the browser notes by itself.
        if message.type in ("error", "warning") and "422" not in message.text:
            self.complaints.append(message.text)

    def go(self, path: str) -> Any:
        self.page.goto(self.start if path == "/" else self.address + path)
        return self.page

    def field(self, name: str) -> Any:
        return self.page.locator(f'[id="{name}"]')

    def slider(self, name: str) -> Any:
        return self.page.locator(f'input[type=range][data-for="{name}"]')

    def press(self, button: Any) -> None:
        """Press a button that leads to another page, and wait for it."""
        with self.page.expect_navigation():
            button.click()

    def status(self, text: str) -> None:
        """Wait until the status says so."""
        expect(self.page.locator("#status")).to_contain_text(text)

    def close(self) -> None:
        assert self.complaints == []
        assert all(url.startswith((self.address, "blob:", "data:")) for url in self.asked), self.asked
        self.context.close()


@pytest.fixture
def visit(browser: Any, address: str) -> Iterator[Visit]:
    found = Visit(browser, address)
    yield found
    found.close()


def test_a_slider_is_answered_and_the_link_brings_it_back(visit: Visit) -> None:
    page = visit.go("/")
    before = page.locator("#answers").inner_text()
    assert "one measured answer" not in before, "the noise of single measurements is folded away"
    page.get_by_text("The noise of single measurements").click()
    assert "90 % margin of one measured answer" in page.locator("#answers").inner_text()
    visit.slider("a.l5").fill("0.5")
    visit.status("standard error of one detailed count: county 5.47, tract 3.53, block group 2.")
    assert visit.field("a.l5").input_value() == "0.5"
    assert page.locator("#answers").inner_text() != before
    assert "Sum: 1" in visit.field("a.l-sum").inner_text()
    link = visit.field("link").input_value()
    assert page.url == link
    moved = visit.field("a.l1").input_value()
    page.goto(link)
    assert visit.field("a.l5").input_value() == "0.5"
    assert visit.field("a.l1").input_value() == moved
    assert float(visit.slider("a.l5").input_value()) == 0.5


def test_many_moves_at_once_end_at_the_last(visit: Visit) -> None:
    page = visit.go("/")
    page.evaluate(
        """async () => {
            for (let step = 1; step <= 40; step += 1) {
                const slider = document.querySelector(`input[data-for="a.l${step % 2 ? 1 : 5}"]`);
                slider.value = step % 2 ? 0.1 + step / 200 : 0.2 + step / 200;
                slider.dispatchEvent(new Event("input", { bubbles: true }));
                await new Promise((done) => setTimeout(done, 5 * (step % 7)));
            }
        }"""
    )
    expect(visit.field("a.l5")).to_have_value("0.4")
    expect(visit.field("a.l-sum-text")).to_have_text("Sum: 1")
    page.wait_for_load_state("networkidle")
    page.goto(visit.field("link").input_value())
    assert visit.field("a.l5").input_value() == "0.4"
    assert visit.field("a.l-sum-text").inner_text() == "Sum: 1"


def test_keys_alone_do_everything(visit: Visit) -> None:
    page = visit.go("/budget?start=state-persons:")
    page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "To the answers"
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        name = page.evaluate("document.activeElement.id || document.activeElement.dataset.for || ''")
        seen.append(name)
        if name == "a.l4":
            break
    wanted = ["follow", "a.mechanism", "a.neighbours", "a.total", "a.delta", "a.l0", "a.l4"]
    assert [name for name in dict.fromkeys(seen) if name in wanted] == wanted
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    visit.slider("a.total").focus()
    old = visit.field("a.total").input_value()
    page.keyboard.press("ArrowRight")
    expect(visit.field("a.total")).not_to_have_value(old)
    visit.status(f"rho {visit.field('a.total').input_value()}")
    assert visit.slider("a.total").get_attribute("aria-valuetext") == visit.field("a.total").input_value()
    visit.field("a.total").fill("1/2")
    page.keyboard.press("Enter")
    visit.status("rho 0.5")


def test_what_is_wrong_is_said_where_it_was_typed_and_can_be_mended(visit: Visit) -> None:
    page = visit.go("/budget?start=state-persons:")
    visit.field("a.l0").fill("many")
    visit.status("cannot be used")
    assert visit.field("a.l0").get_attribute("aria-invalid") == "true"
    error = visit.field("a.l0-error")
    assert error.is_visible()
    assert "'many' is not a number" in error.inner_text()
    assert "a.l0-error" in (visit.field("a.l0").get_attribute("aria-describedby") or "")
    assert page.locator("#stale").is_visible()
    visit.field("a.l0").fill("0.5")
    expect(visit.field("a.l0")).not_to_have_attribute("aria-invalid", "true")
    assert "too much" in visit.field("a.l-sum").inner_text()
    visit.field("a.l-sum").get_by_role("button").click()
    expect(page.locator("#stale")).to_be_hidden()
    assert "Sum: 1 " in visit.field("a.l-sum").inner_text().replace("\n", " ")
    assert "/" in visit.field("a.l0").input_value()


def test_two_plans_are_compared_side_by_side(visit: Visit) -> None:
    page = visit.go("/")
    visit.press(page.get_by_role("button", name="Compare with a second plan"))
    page.locator("summary", has_text="Plan B").click()
    visit.field("b.total").fill("1")
    visit.status("Plan B: rho 1,")
    assert page.locator("#answers .card").count() == 2
    assert page.locator("#answers table .vb").first.inner_text().startswith("B ")
    visit.press(page.get_by_role("button", name="Swap A and B"))
    assert visit.field("a.total").input_value() == "1"
    visit.press(page.get_by_role("button", name="Leave out B"))
    assert visit.field("a.total").input_value() == "1"
    assert page.locator("#answers .card").count() == 1


def test_everything_works_without_a_script(browser: Any, address: str) -> None:
    visit = Visit(browser, address, java_script_enabled=False)
    page = visit.go("/")
    assert not page.locator("input[type=range]").first.is_visible()
    visit.field("a.total").fill("1/2")
    visit.press(page.get_by_role("button", name="Answer"))
    assert "rho 0.5," in page.locator("#status").inner_text()
    visit.field("a.l0").fill("0.7")
    visit.field("a.l0").press("Enter")
    assert "too much" in visit.field("a.l-sum").inner_text()
    visit.press(visit.field("a.l-sum").get_by_role("button"))
    assert "rho 0.5," in page.locator("#status").inner_text()
    page.get_by_label("Open a link").fill("nonsense")
    visit.press(page.get_by_role("button", name="Open"))
    assert visit.field("text-error").is_visible()
    page = visit.go("/phsafe")
    visit.press(page.get_by_role("button", name="Type target margins instead"))
    assert visit.field("a.v.PH3.3").input_value() == "20"
    visit.close()


def test_a_plan_that_was_saved_is_run(browser: Any, tmp_path: Path) -> None:
    write_demo(tmp_path, blocks=60, seed=1)
    run_file = tmp_path / "persons.toml"
    with explorer(str(run_file), "--save", str(tmp_path / "written.toml")) as address:
        visit = Visit(browser, address)
        page = visit.go("/")
        assert "persons.toml" in page.locator("h1").inner_text()
        page.get_by_role("button", name="draw errors against that loss").click()
        picture = page.get_by_role(
            "img", name="mean absolute error of a block against epsilon within a block group"
        )
        expect(picture.locator("circle")).to_have_count(8)
        expect(page.get_by_role("row", name="moved down")).to_have_count(4)
        visit.field("a.total").fill("7/3")
        visit.slider("a.l2").fill("0.4")
        visit.status("rho 2.333")
        with page.expect_download() as waiting:
            page.get_by_role("button", name="Save as a run file").click()
        waiting.value.save_as(tmp_path / "saved.toml")
        visit.press(page.get_by_role("button", name="Write to written.toml"))
        assert "was written to written.toml" in page.locator("main").inner_text()
        visit.close()
    assert (tmp_path / "written.toml").read_bytes() == (tmp_path / "saved.toml").read_bytes()
    saved = tomllib.loads((tmp_path / "saved.toml").read_text())
    given = tomllib.loads(run_file.read_text())
    assert {**saved, "budget": 0} == {**given, "budget": 0}
    assert saved["budget"]["rho"] == "7/3"
    assert Fraction(saved["budget"]["geolevels"]["tract"]) == Fraction(2, 5)
    release = od.release(od.load(tmp_path / "saved.toml"), out=tmp_path / "out", seed=1)
    assert [check for check in release.verify(allow_seeded=True) if not check.ok] == []


def test_a_table_becomes_a_product_file(browser: Any, tmp_path: Path) -> None:
    rows = "".join(f"H{n % 4 // 2},W{n % 4},{n * 7 % 95},{'fm'[n // 5 % 2]}\n" for n in range(300))
    (tmp_path / "stays.csv").write_text("hospital,ward,age,sex\n" + rows)
    with explorer(str(tmp_path / "stays.csv"), "--save", str(tmp_path / "files")) as address:
        visit = Visit(browser, address)
        page = visit.go("/")
        assert page.locator("h1").inner_text() == "stays.csv"
        expect(page.locator("#columns")).to_contain_text("0-4, 5-17, 18-24")
        edges = page.get_by_label("Classes of age begin at")
        expect(edges).to_have_value("0, 5, 18, 25, 35, 45, 55, 65, 75, 85")
        edges.fill("0, 65, 18")
        page.get_by_label("Protected unit").fill("stay")
        visit.press(page.get_by_role("button", name="Count cells"))
        expect(edges).to_have_accessible_description(re.compile("18 follows 65"))
        expect(edges).to_have_attribute("aria-invalid", "true")
        edges.fill("0, 18, 65")
        visit.press(page.get_by_role("button", name="Count cells"))
        expect(page.locator("#columns")).to_contain_text("0-17, 18-64, 65+")
        expect(page.locator(".told")).to_contain_text("6 cells in each of 4 leaves, 300 rows")
        visit.press(page.get_by_role("button", name="Write product file and run file"))
        expect(page.get_by_role("status")).to_contain_text("stays-run.toml --read-records")
        axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
        results = axe.run(page)
        assert results.violations_count == 0, results.generate_report()
        page.set_viewport_size(PHONE)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        visit.close()
    run = od.load(tmp_path / "files" / "stays-run.toml", read_records=True)
    assert run.product.schema.names == ("age", "sex")
    assert run.product.schema.attributes[0].levels == ("0-17", "18-64", "65+")


def test_household_tables_give_table_10_and_a_configuration(visit: Visit) -> None:
    page = visit.go("/phsafe?start=targets")
    row = page.locator("#answers tr", has_text="PH3").filter(has_text="state, groups A-G")
    assert row.locator("td").all_inner_texts()[2:] == [
        "0.662976",
        "±20 meets 20",
        "±19",
        "±53 of 7",
        "0.662976",
        "1.325952",
        *row.locator("td").all_inner_texts()[8:],
    ]
    visit.status("rho 1.257 unbounded, 2.515 bounded")
    page.get_by_label("nation, groups A-G", exact=True).first.uncheck()
    expect(page.locator("#answers")).not_to_contain_text("nation, groups A-G")
    visit.press(page.get_by_role("button", name="Type budgets instead"))
    visit.field("a.tau.PH1_num").fill("0")
    visit.status("cannot be used")
    assert visit.field("a.tau.PH1_num-error").is_visible()
    visit.field("a.tau.PH1_num").fill("5")
    visit.status("unbounded")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save as config.json").click()
    text = Path(waiting.value.path()).read_text()
    assert json.loads(text)["tau"]["PH1_num"] == 5
    assert "usa_A-G" not in {level.name for level in parse_config(text, Mode.PRIVATE).budgets["PH1_num"]}
    page.get_by_label("Open a link").fill(text)
    visit.press(page.get_by_role("button", name="Open", exact=True))
    assert visit.field("a.tau.PH1_num").input_value() == "5"


PLACES = {
    "budget": "/budget",
    "compared": "/budget?action=compare",
    "wrong": "/budget?a.l0=many&a.total=-1&a.q1.0=0.9",
    "household tables": "/phsafe?start=targets&action=compare",
    "damaged": "/phsafe?s=AAAA&a.tau.PH3=0",
}


@pytest.mark.parametrize(
    ("name", "scheme"), [*((name, "light") for name in PLACES), ("compared", "dark"), ("wrong", "dark")]
)
def test_axe_finds_nothing(browser: Any, address: str, name: str, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    visit = Visit(browser, address, color_scheme=scheme)
    page = visit.go(PLACES[name])
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    results = axe.Axe().run(page)
    assert results.violations_count == 0, results.generate_report()
    visit.context.close()


@pytest.mark.parametrize("name", PLACES)
def test_a_phone_is_wide_enough(browser: Any, address: str, name: str) -> None:
    visit = Visit(browser, address, viewport=PHONE)
    page = visit.go(PLACES[name])
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    visit.context.close()


@pytest.mark.parametrize("name", ["budget", "household tables"])
def test_what_is_printed_is_the_answers(browser: Any, address: str, name: str, tmp_path: Path) -> None:
    if shutil.which("pdftotext") is None:
        pytest.skip("needs pdftotext, which is not on this machine")
    visit = Visit(browser, address)
    page = visit.go(PLACES[name])
    page.pdf(path=tmp_path / "page.pdf")
    command = ["pdftotext", "-layout", str(tmp_path / "page.pdf"), "-"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert text.count("\f") <= 6
    assert "How far off the counts may be" in text or "Margins and losses" in text
    assert "293764/114921" in text or "Plan B" in text
    assert not re.search(r"Rescale|Start from|Save as", text)
    visit.context.close()
