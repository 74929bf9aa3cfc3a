"""The documentation builds without a warning, has every page in its navigation, and asks nobody else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
OUTSIDE = re.compile(r"^(?:https?:)?//", re.IGNORECASE)


class Requests(HTMLParser):
    """Collects what a browser fetches for a page by itself; links that a reader may follow are none."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        fetched = ["src", "srcset", "data", "poster"]
        if tag == "link" and given.get("rel") not in ("canonical", "prev", "next", "alternate"):
            fetched.append("href")
        self.found += [value for name in fetched if (value := given.get(name))]


def outside(html: str) -> list[str]:
    """Return the requests of a page that leave the site."""
    parser = Requests()
    parser.feed(html)
    return [address for address in parser.found if OUTSIDE.match(address)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"(\S+\.md)$", navigation, re.MULTILINE)
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert len(listed) == len(set(listed))
    assert set(listed) == pages


@pytest.mark.slow
def test_the_site_asks_nobody_else(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        html = page.read_text(encoding="utf-8")
        assert outside(html) == [], page
        # The theme would fetch a library for these.
        assert 'class="mermaid"' not in html, page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", sheet.read_text(encoding="utf-8"))


def test_an_outside_request_would_be_seen() -> None:
    assert outside('<img src="https://example.org/a.png"><a href="https://example.org">a</a>') == [
        "https://example.org/a.png"
    ]
    assert outside('<link rel="stylesheet" href="//fonts.example.org/css">')


@pytest.mark.slow
def test_links_to_places_on_a_page_lead_somewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        html = page.read_text(encoding="utf-8")
        for target in re.findall(r'<a href="([^":]*#[^"]+)"', html):
            path, _, place = target.partition("#")
            file = page if not path else (page.parent / path / "index.html").resolve()
            if file.is_file() and place:
                assert f'id="{place}"' in file.read_text(encoding="utf-8"), f"{page}: {target}"
