"""The notebooks run from top to bottom, and their pages show the cells that they have now."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from support.scripts import script

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "examples" / "notebooks").glob("*.py"))


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    pytest.importorskip("nbclient", reason="the extra docs executes notebooks")
    return script(ROOT / "docs" / "generate_notebooks.py")


def test_there_are_notebooks() -> None:
    if not (ROOT / "examples").is_dir():
        pytest.skip("the examples are not beside the tests")
    assert len(SOURCES) >= 6


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_each_page_shows_the_cells_of_its_source(generator: ModuleType, source: Path) -> None:
    page = (ROOT / "docs" / "notebooks" / f"{source.stem}.md").read_text()
    cells = generator.notebook_of(source).cells
    assert len(cells) > 5
    where = [page.find(cell.source) for cell in cells]
    assert -1 not in where, "run docs/generate_notebooks.py"
    assert where == sorted(where)
    assert f"notebooks/{source.stem}.md" in (ROOT / "mkdocs.yml").read_text()
    for picture in re.findall(r"\]\((\w+\.png)\)", page):
        assert (ROOT / "docs" / "notebooks" / picture).is_file()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the packages that execute notebooks
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_it_runs_from_top_to_bottom(generator: ModuleType, source: Path, tmp_path: Path) -> None:
    notebook = generator.execute(source)
    page = generator.page_of(notebook, source.stem, tmp_path)
    assert "Traceback" not in page
    assert page.count("```python") == sum(cell.cell_type == "code" for cell in notebook.cells)
