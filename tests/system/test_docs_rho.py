"""The figures on the page about rho are those that the runs give."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
SCRIPT = runpy.run_path(str(DOCS / "generate_rho.py"))
TEXTS = {path: path.read_text(encoding="utf-8") for path in SCRIPT["PAGES"]}
MARKS = sorted({mark for text in TEXTS.values() for mark in SCRIPT["marked"](text)})


def current(name: str, stands: str) -> None:
    found = SCRIPT["TABLES"][name]() if name in SCRIPT["TABLES"] else SCRIPT["FIGURES"][name]()
    assert stands.strip() == found.strip(), f"{name}: run python docs/generate_rho.py"


@pytest.mark.parametrize(("name", "stands"), [mark for mark in MARKS if mark[0] not in SCRIPT["SLOW"]])
def test_figures_are_those_of_the_runs(name: str, stands: str) -> None:
    current(name, stands)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "stands"), [mark for mark in MARKS if mark[0] in SCRIPT["SLOW"]])
def test_exact_figures_are_those_of_the_runs(name: str, stands: str) -> None:
    current(name, stands)


def test_every_table_and_figure_has_its_place() -> None:
    assert {name for name, _ in MARKS} == {*SCRIPT["TABLES"], *SCRIPT["FIGURES"]}


def test_known_figures() -> None:
    """As published, and as a review found them with a program of its own (75 areas, without exact facts)."""
    stand = dict(MARKS)
    assert (stand["cks"], stand["bun-steinke"], stand["noise-whole"]) == ("17.14", "17.90", "16.47")
    assert (stand["held-official"], stand["held-aian"]) == ("13.13", "16.47")
    assert (stand["areas"], stand["areas-above"]) == ("88", "74")
    assert (stand["areas-median"], stand["areas-largest"]) == ("0.886", "2.491")
    assert "| Household or group-quarters type only | 0.585 |" in stand["tests"]
    assert "| Voting age only | 0.635 |" in stand["tests"]


@pytest.mark.parametrize("path", sorted(DOCS.parent.glob("*.md")) + sorted(DOCS.rglob("*.md")), ids=str)
def test_no_page_calls_a_block_group_of_the_spine_an_official_one(path: Path) -> None:
    """0.103 and 13.13 hold for the spine, and for the official spine: each page that quotes them says so."""
    for paragraph in path.read_text(encoding="utf-8").split("\n\n"):
        if re.search(r"\b0\.103\b|\b13\.13\b(?! s)", paragraph):
            assert "spine" in paragraph, paragraph
