"""The examples on the explanatory pages run, on the synthetic state, as they stand.

Indented lines that start with ``opendas`` are commands; Python after ``<!-- run -->`` is executed; a run file
after ``<!-- file: PATH -->`` is written there. All in the order of the page, in a folder where ``opendas
demo`` has been.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

import opendas as od
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.demo import write_demo

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = (
    "explanation/topdown.md",
    "explanation/choosing-a-budget.md",
    "explanation/allocation.md",
    "explanation/spines.md",
    "explanation/informed.md",
    "explanation/intervals.md",
    "constraints.md",
    "reproducibility.md",
    "how-it-runs.md",
    "observability.md",
)
STEP = re.compile(
    r"^    (?P<command>(?:[A-Z_]+=\S+ )*opendas [^\n]*)$|^<!-- run -->\n```python\n(?P<code>.*?)^```$"
    r"|^<!-- file: (?P<file>\S+) -->\n```toml\n(?P<content>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
COMMAND = re.compile(r"(?P<settings>(?:[A-Z_]+=\S+ )*)opendas (?P<arguments>.*)")


def steps(page: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) of everything on a page that runs."""
    for match in STEP.finditer((DOCS / page).read_text(encoding="utf-8")):
        if match["file"]:
            yield match["file"], match["content"]
        else:
            kind = "command" if match["command"] else "code"
            yield kind, match[kind]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    for run_file in write_demo(folder / "demo-out" / "input", 300):
        od.release(od.load(run_file), out=folder / "demo-out" / "out", workers=1)
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run(
    page: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas")
    shutil.copytree(made / "demo-out", tmp_path / "demo-out")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "example"}
    done = 0
    for kind, text in steps(page):
        if kind == "code":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(text, page, "exec"), names)
        elif kind != "command":
            Path(kind).write_text(text, encoding="utf-8")
        else:
            command = COMMAND.fullmatch(text)
            assert command is not None, text
            with monkeypatch.context() as settings:
                for setting in command["settings"].split():
                    settings.setenv(*setting.split("=", 1))
                assert guarded(cli, shlex.split(command["arguments"])) == 0, text
        done += 1
    assert done, page


def test_a_page_that_says_run_is_run() -> None:
    marked = {
        str(path.relative_to(DOCS))
        for path in DOCS.rglob("*.md")
        if "<!-- run -->" in path.read_text(encoding="utf-8")
    }
    assert marked == set(PAGES)


def test_the_numbers_quoted_from_the_plan() -> None:
    """The margins that the pages on budgets and questions quote are those of the presets."""
    from opendas.budget.noise import invariant_shares
    from opendas.budget.presets import preset
    from opendas.budget.resolve import BudgetSpec, resolve_budget

    margins, ninety = [], Fraction(9, 10)
    for name in ("us2020-persons", "pr2020-persons"):
        budget = resolve_budget(BudgetSpec(preset=name), list(preset(name).geolevels))
        margins.append([budget.distribution("block", q).margin(ninety) for q in ("total", "detailed")])
        if name.startswith("us"):
            wasted = invariant_shares(budget, [("state", "total")])
    assert margins == [[147, 5], [147, 5]]
    assert round(100 * float(wasted["state", "total"])) == 32
    text = " ".join((DOCS / "explanation/choosing-a-budget.md").read_text(encoding="utf-8").split())
    assert "with a margin of 147" in text
    assert "with a margin of 5 each" in text
    assert "spends 32 % of rho" in text
