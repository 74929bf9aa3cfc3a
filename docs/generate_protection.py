"""Write the tables of docs/protection.md, or check with --check: what the 2020 plans leave protected.

They are computed from runs of the production plans on a synthetic nation. A table stands between ``<!-- table
NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import re
import sys
import tempfile
from functools import cache
from pathlib import Path

import opendas as od
from opendas.demo.nation import write_nation
from opendas.measurement.protected import Protection

PAGE = Path(__file__).parent / "protection.md"
TABLE = re.compile(r"(<!-- table (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
RUNS = {
    "persons": "persons.toml",
    "persons-standard": "persons-standard.toml",
    "units": "units.toml",
}
BLOCKS, STATES = 600, 3


@cache
def protections() -> dict[str, Protection]:
    """Return what each plan leaves protected on the synthetic nation."""
    with tempfile.TemporaryDirectory() as folder:
        write_nation(folder, BLOCKS, states=STATES)
        return {name: od.account(od.load(Path(folder) / path)).protection for name, path in RUNS.items()}


def table(name: str) -> str:
    """Return a table of the page."""
    found = protections()[name]
    lines = ["| Of a record | | What the exact facts leave |", "| --- | --- | --- |"]
    lines += [f"| {kind} | `{part}` | {words} |" for kind, part, words in found.rows()]
    return "\n".join([*lines, "", f"Published exactly: {', '.join(found.facts)}. {found.alternatives}", ""])


def written(text: str) -> str:
    """Return a page with all its tables as they are now."""
    return TABLE.sub(lambda found: found[1] + "\n" + table(found[2]) + "\n" + found[4], text)


def main() -> None:
    """Write the page, or fail with --check if it is not as it should be."""
    old = PAGE.read_text(encoding="utf-8")
    new = written(old)
    if "--check" in sys.argv[1:]:
        sys.exit(f"{PAGE}: run python docs/generate_protection.py" if new != old else 0)
    PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
