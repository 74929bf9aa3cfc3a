"""The page of ``opendas compare`` as people use it: in Chromium, by mouse, by keys, on paper, on a phone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browser import chromium
from support.pl94_zip import some_blocks, write_zip

pytest.importorskip("playwright")
pytest.importorskip("geopandas")

import geopandas
import shapely
from playwright.sync_api import expect

import opendas as od
from opendas.comparison.comparison import Comparison
from opendas.comparison.geometry import GRID, draw, read_shapes
from opendas.comparison.page import compare_page
from opendas.errors import ConfigError, DataError, EnvironmentFailure, FormatError

PHONE = {"width": 390, "height": 844}
NAMES = ("fb2020.pl.zip", "other2020.pl.zip")


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Two official files with points: the second has more people in one block and none in another."""
    folder = tmp_path_factory.mktemp("page")
    paths = []
    for name, more in zip(NAMES, (0, 7), strict=True):
        blocks = some_blocks("44")
        for number, block in enumerate(blocks):
            block.at = (f"+41.{number}", f"-071.{number}")
        blocks[0].people[1, 0, 0] += more
        if more:
            blocks[5].people.clear()
            blocks[5].occupied, blocks[5].vacant = 0, 1
        paths.append(write_zip(folder / name, blocks, 2020))
    return od.compare(*paths)


def squares(codes: list[str], crs: int = 4269) -> Any:
    """Return a square for each code, side by side in one row, of 0.1 degrees."""
    shapes = [shapely.box(-72 + 0.1 * k, 41, -71.9 + 0.1 * k, 41.1) for k in range(len(codes))]
    return geopandas.GeoDataFrame({"GEOID20": codes}, geometry=shapes, crs=4269).to_crs(crs)


def units_of(comparison: Comparison) -> dict[str, Any]:
    common = comparison.common[0]
    return {name: comparison.units(common, name) for name in comparison.levels_of(common)}


def codes_of(comparison: Comparison, geolevel: str) -> list[str]:
    return [bytes(code).decode() for code in units_of(comparison)[geolevel].geocodes]


@pytest.mark.parametrize(
    ("name", "driver", "crs"),
    [
        ("blocks.geojson", "GeoJSON", 4326),
        ("blocks.gpkg", "GPKG", 26919),
        ("blocks.shp", "ESRI Shapefile", 4269),
    ],
)
def test_shapes_of_blocks_are_found_and_joined_upward(
    compared: Comparison, tmp_path: Path, name: str, driver: str, crs: int
) -> None:
    codes = codes_of(compared, "block")
    squares([*codes, "440019999999999"], crs).to_file(tmp_path / name, driver=driver)
    units = units_of(compared)
    shapes = read_shapes([tmp_path / name], units)
    assert {code.decode() for code in shapes["block"]} == set(codes)
    one = squares(codes).geometry
    for geolevel, width in (("tract", 11), ("county", 5), ("state", 2)):
        for code, shape in shapes[geolevel].items():
            inside = [o for o, block in zip(one, codes, strict=True) if block[:width] == code.decode()]
            assert shapely.union_all(inside).symmetric_difference(shape).area < 1e-6
    drawing = draw(units, shapes, None)
    assert drawing is not None
    assert drawing.width == GRID
    assert [len(rings or []) for rings in drawing.areas["block"]] == [1] * len(codes)
    x, y, *steps = drawing.areas["block"][0][0]
    assert 0 <= x <= GRID
    assert 0 <= y <= drawing.height
    assert (sum(steps[::2]), sum(steps[1::2])) == (0, 0)  # a ring is closed


def test_a_zipped_shapefile_is_read_and_shared_codes_are_told_apart(
    compared: Comparison, tmp_path: Path
) -> None:
    codes = codes_of(compared, "county")
    (tmp_path / "shapes").mkdir()
    squares(codes).to_file(tmp_path / "shapes" / "counties.shp")
    path = shutil.make_archive(str(tmp_path / "counties"), "zip", tmp_path / "shapes")
    shapes = read_shapes([Path(path)], units_of(compared))
    assert {"county", "state"} <= set(shapes)
    assert "block" not in shapes


def test_shapes_that_cannot_be_used_are_refused(
    compared: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = units_of(compared)
    with pytest.raises(ConfigError, match="no such file"):
        read_shapes([tmp_path / "absent.gpkg"], units)
    (tmp_path / "text.geojson").write_text("no shapes")
    with pytest.raises(FormatError, match="geopandas cannot read shapes"):
        read_shapes([tmp_path / "text.geojson"], units)
    squares(["990019999999999"]).to_file(tmp_path / "other.gpkg")
    with pytest.raises(DataError, match="no column holds codes"):
        read_shapes([tmp_path / "other.gpkg"], units)
    monkeypatch.setitem(sys.modules, "geopandas", None)
    with pytest.raises(EnvironmentFailure, match=r"opendas\[maps\]"):
        read_shapes([tmp_path / "other.gpkg"], units)


def test_more_numbers_than_a_page_takes_are_left_out_and_said(
    compared: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opendas.comparison.page.MOST_NUMBERS", 400)
    page = compare_page(compared).decode()
    assert "this page has the first variable" in page
    monkeypatch.setattr("opendas.comparison.page.MOST_NUMBERS", 5)
    page = compare_page(compared).decode()
    assert "blocks are in compare.parquet, not on this page" in page


def test_no_name_ends_the_script(tmp_path: Path) -> None:
    folder = tmp_path / "<script>alert(1)<"
    folder.mkdir()
    path = write_zip(folder / "a2020.pl.zip", some_blocks("44"), 2020)
    changed = write_zip(folder / "<b>&2020.pl.zip", some_blocks("44"), 2020)
    page = compare_page(od.compare(path, changed)).decode()
    assert "<b>&2020" not in page
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert data is not None
    assert json.loads(data[1])["sources"] == ["a2020.pl.zip", "<b>&2020.pl.zip"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def pages(compared: Comparison, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    squares(codes_of(compared, "block")).to_file(folder / "blocks.gpkg")
    made = {"points": (), "shapes": (folder / "blocks.gpkg",)}
    for name, geometry in made.items():
        od.write_comparison(compared, folder / name, geometry=geometry)
    return {name: (folder / name / "compare.html").as_uri() for name in made}


class Visit:
    """A page, and everything that it asked for or complained about."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1400, "height": 1000}, **options})
        self.page = self.context.new_page()
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.goto(address)
        self.address = address

    def choose(self, field: str, start: str) -> None:
        labels = self.page.locator(f"#{field} option").all_inner_texts()
        self.page.select_option(f"#{field}", label=next(text for text in labels if text.startswith(start)))

    def close(self) -> None:
        assert self.complaints == []
        assert self.asked == [self.address]
        self.context.close()


@pytest.mark.parametrize("kind", ["points", "shapes"])
def test_an_area_is_found_on_the_map_in_the_table_and_by_search(
    browser: Any, pages: dict[str, str], kind: str
) -> None:
    visit = Visit(browser, pages[kind])
    page = visit.page
    visit.choose("level", "blocks")
    expect(page.locator("#said")).to_contain_text("the largest difference is −7, in Block 1000")
    first = page.locator("#table tbody tr").first
    assert first.locator("td").all_inner_texts()[:3] == ["21", "14", "−7"]
    first.get_by_role("button").click()
    expect(page.locator("#chosen h3")).to_contain_text("440010001001000")
    expect(page.locator("#chosen")).to_contain_text("White alone")
    page.locator("#search").fill("block group 9")
    expect(page.locator("#count")).to_have_text("No area has this name or code.")
    page.locator("#search").fill("44003000100")
    page.locator("#search").press("Enter")
    expect(page.locator("#chosen h3")).to_contain_text("(440030001001")
    shown = page.evaluate(
        "() => { const c = document.getElementById('map'), d = c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data; let n = 0;"
        "for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n; }"
    )
    assert shown > 500
    page.locator("#map").scroll_into_view_if_needed()
    box = page.locator("#map").bounding_box()
    found = False
    for x in range(20, int(box["width"]), 15):
        for y in range(20, int(box["height"]), 25):
            page.mouse.move(box["x"] + x, box["y"] + y)
            if page.locator("#hover").is_visible():
                found = True
                break
        if found:
            break
    assert found
    assert re.search(r"Block \d+.*was", page.locator("#hover").inner_text())
    visit.close()


def test_keys_alone_reach_the_map_and_move_it(browser: Any, pages: dict[str, str]) -> None:
    visit = Visit(browser, pages["shapes"])
    page = visit.page
    page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "To the figures"
    seen = []
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id"))
        if seen[-1] == "search":
            break
    named = [name for name in dict.fromkeys(seen) if name]
    assert named == ["view", "level", "variable", "show", "map", "scatter", "search"]
    page.locator("#map").focus()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"

    def picture() -> str:
        return str(page.evaluate("document.getElementById('map').toDataURL()"))

    seen = [picture()]
    for key in ("+", "ArrowRight", "0"):
        page.keyboard.press(key)
        seen.append(picture())
    assert len(set(seen)) == 3
    assert seen[-1] == seen[0]
    visit.close()


def test_every_level_variable_and_kind_is_shown(browser: Any, pages: dict[str, str]) -> None:
    visit = Visit(browser, pages["shapes"])
    page = visit.page
    for field in ("view", "level", "variable", "show"):
        for k in range(page.locator(f"#{field} option").count()):
            page.select_option(f"#{field}", index=k)
            assert page.locator("#table tbody tr").count() > 0
            assert page.locator("#legend li").count() > 0 or field == "show"
    visit.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Any, pages: dict[str, str], scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    visit = Visit(browser, pages["shapes"], color_scheme=scheme)
    visit.page.locator("#table tbody button").first.click()
    results = axe.Axe().run(visit.page)
    assert results.violations_count == 0, results.generate_report()
    visit.context.close()


@pytest.mark.parametrize("kind", ["points", "shapes"])
def test_a_phone_is_wide_enough(browser: Any, pages: dict[str, str], kind: str) -> None:
    visit = Visit(browser, pages[kind], viewport=PHONE)
    visit.page.locator("#table tbody button").first.click()
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    visit.close()


def test_what_is_printed_is_the_figures(browser: Any, pages: dict[str, str], tmp_path: Path) -> None:
    if shutil.which("pdftotext") is None:
        pytest.skip("needs pdftotext, which is not on this machine")
    visit = Visit(browser, pages["shapes"])
    visit.page.pdf(path=tmp_path / "page.pdf")
    command = ["pdftotext", "-layout", str(tmp_path / "page.pdf"), "-"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "What changed where" in text
    assert "Bias by race and origin" in text
    assert not re.search(r"Zoom in|Search by name|Show more", text)
    visit.context.close()


def test_without_a_script_the_overview_is_there(browser: Any, pages: dict[str, str]) -> None:
    visit = Visit(browser, pages["shapes"], java_script_enabled=False)
    assert "need JavaScript" in visit.page.locator("main").inner_text()
    assert visit.page.locator("#overview tbody tr").count() > 5
    visit.context.close()
