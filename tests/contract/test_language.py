"""The phrases that docs/style.md asks not to write stand nowhere in pages, code or messages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STYLE = ROOT / "docs" / "style.md"
SEARCHED = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "docs/**/*.md", "src/opendas/**/*.*"),
    *("examples/**/*.py", "experiments/*.py"),
)
TEXTS = {".md", ".py", ".js", ".j2", ".html", ".toml", ""}


def phrases(page: str) -> list[str]:
    """First column of the table of phrases, without its heading."""
    rows = re.findall(r"^\| (.+?) \| .+? \|$", page, re.MULTILINE)
    return [row for row in rows if row != "Do not write"]


def found(phrase: str, text: str) -> list[int]:
    """Lines on which a phrase begins, also where it runs over the end of a line."""
    words = r"[\s#]+".join(re.escape(word) for word in phrase.split())
    return [text.count("\n", 0, hit.start()) + 1 for hit in re.finditer(rf"\b{words}\b", text, re.IGNORECASE)]


def plain(text: str) -> str:
    """In lower case, without line ends and marks of comments, as a quick look before :func:`found`."""
    return " ".join(text.lower().replace("#", " ").split())


def test_a_phrase_is_found_over_the_end_of_a_line() -> None:
    assert phrases(STYLE.read_text(encoding="utf-8"))[0] == "made state"
    assert found("made state", "a\n# made\n# state of mind; Made   state, remade state") == [2, 3]


def names(path: Path) -> set[str]:
    """Names that a module defines, and its own, in words: ``MadeState`` is "made state"."""
    tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    defined = {each.name for each in tree if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    words = (re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name) for name in defined | {path.stem})
    return {" ".join(word.lower() for word in each) for each in words}


def test_no_name_is_what_the_style_page_forbids() -> None:
    page = STYLE.read_text(encoding="utf-8")
    alone = set(re.findall(r"`(\w+)`", page.partition("## Names")[2].partition("alone")[0]))
    assert alone >= {"some", "thing", "watch"}
    listed = phrases(page)
    wrong = []
    for path in sorted((ROOT / "src" / "opendas").rglob("*.py")):
        refused = {each for each in names(path) if each in alone or any(found(one, each) for one in listed)}
        wrong += [f"{path.relative_to(ROOT)}: {each!r}" for each in sorted(refused)]
        wrong += [f"{path.relative_to(ROOT)}: a module"] if path.stem == "place" else []
    assert not wrong, "\n".join(wrong)


def test_no_phrase_that_the_style_page_lists_is_written() -> None:
    listed = phrases(STYLE.read_text(encoding="utf-8"))
    files = {path for pattern in SEARCHED for path in ROOT.glob(pattern) if path.suffix in TEXTS}
    wrong = []
    for path in sorted(path for path in files - {STYLE} if path.is_file()):
        text = path.read_text(encoding="utf-8")
        short = plain(text)
        wrong += [
            f"{path.relative_to(ROOT)}:{line}: {phrase!r}"
            for phrase in listed
            if phrase in short
            for line in found(phrase, text)
        ]
    assert not wrong, "\n".join(wrong)
