"""Execute the notebooks of ``examples/notebooks`` and write their pages, each beside the executed notebook.

    python docs/generate_notebooks.py [NAME ...]

A source is a Python file with cells, ``# %%`` and ``# %% [markdown]``, that editors open as a notebook.
"""

from __future__ import annotations

import base64
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "examples" / "notebooks"
PAGES = ROOT / "docs" / "notebooks"
_LOOKS = re.compile(
    r'<style scoped>.*?</style>| border="1" class="dataframe"| style="text-align: right;"', re.DOTALL
)
"""What pandas says of looks: pages have their own."""


def notebook_of(source: Path) -> Any:
    """Return the notebook of a source, not executed."""
    notebook = nbformat.v4.new_notebook()
    for part in ("\n" + source.read_text(encoding="utf-8")).split("\n# %%")[1:]:
        kind, _, text = part.partition("\n")
        if "[markdown]" in kind:
            lines = [line.removeprefix("#").removeprefix(" ") for line in text.strip().splitlines()]
            cell = nbformat.v4.new_markdown_cell("\n".join(lines))
        else:
            cell = nbformat.v4.new_code_cell(text.strip())
        cell["id"] = f"cell-{len(notebook.cells)}"  # by default a random one
        notebook.cells.append(cell)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return notebook


def execute(source: Path) -> Any:
    """Return the notebook of a source, executed in an empty folder."""
    notebook = notebook_of(source)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=900, resources={"metadata": {"path": folder}})
        client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of day
    return notebook


def page_of(notebook: Any, name: str, folder: Path) -> str:
    """Return the page of an executed notebook; its pictures are written into a folder."""
    parts, pictures = [], 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            data = output.get("data", {})
            if output.output_type == "stream":
                if output.name == "stdout":
                    parts.append(f"```text\n{output.text.rstrip()}\n```")
            elif "image/png" in data:
                pictures += 1
                path = folder / f"{name}_{pictures}.png"
                path.write_bytes(base64.b64decode(data["image/png"]))
                parts.append(f"![Output of the cell above]({path.name})")
            elif "text/html" in data:
                shown = _LOOKS.sub("", data["text/html"]).strip()
                parts.append(f'<div class="output" markdown="0">\n{shown}\n</div>')
            elif "text/plain" in data:
                parts.append(f"```text\n{data['text/plain']}\n```")
    parts.append(f"[This page as a notebook]({name}.ipynb)")
    return "\n\n".join(parts) + "\n"


def main(names: list[str]) -> None:
    """Write the pages of some notebooks, by default of all."""
    PAGES.mkdir(exist_ok=True)
    for source in sorted(SOURCES.glob("*.py")):
        if names and source.stem not in names:
            continue
        notebook = execute(source)
        nbformat.write(notebook, PAGES / f"{source.stem}.ipynb")
        page = page_of(notebook, source.stem, PAGES)
        (PAGES / f"{source.stem}.md").write_text(page, encoding="utf-8")
        sys.stdout.write(f"{source.stem}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
