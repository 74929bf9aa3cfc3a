"""Writes the tables of fields on the page about watching a run: ``python docs/generate_observability.py``."""

from __future__ import annotations

import re
from pathlib import Path

from opendas.engines.outputs import FAMILY_FIELDS
from opendas.runs.progress.log import FIELDS

PAGE = Path(__file__).with_name("observability.md")


def page(text: str) -> str:
    """Return the page with the tables as the code has them."""
    tables = {
        "fields of the log": {name: meaning for name, (_, meaning) in FIELDS.items()},
        "fields of families": {name: meaning for name, (_, meaning) in FAMILY_FIELDS.items()},
    }
    for mark, fields in tables.items():
        rows = "".join(f"| `{name}` | {meaning} |\n" for name, meaning in fields.items())
        pattern = rf"(<!-- {mark} -->\n\n.*?\n\|---\|---\|\n).*?(\n<!-- end -->)"
        text, found = re.subn(pattern, lambda m, rows=rows: m[1] + rows + m[2], text, flags=re.DOTALL)
        if found != 1:
            raise SystemExit(f"the page has {found} places for the {mark}")
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
