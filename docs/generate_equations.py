"""Write docs/equations.md: from every numbered equation, algorithm and program of a paper to file and line.

A docstring or comment cites a paper as ``Abowd et al. (2022), equation (7.5)``, ``Cumings-Menon et al.
(2024), Algorithm 2``, ``Sexton et al. (2024), Algorithm 3`` or ``Ko et al. (2025), programs (6) and (7)``;
what it cites is found here. With --check, nothing is written: exit 1 if the page is not what the code says.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "equations.md"

ABOWD, SPINES = "Abowd et al. (2022)", "Cumings-Menon et al. (2024)"
SEXTON, KO = "Sexton et al. (2024)", "Ko et al. (2025)"

TITLES = {
    ABOWD: "The 2020 Census Disclosure Avoidance System TopDown Algorithm",
    SPINES: "Geographic Spines in the 2020 Census Disclosure Avoidance System",
    SEXTON: "PHSafe: Disclosure Avoidance for the 2020 Census Supplemental Demographic and Housing "
    "Characteristics File",
    KO: "Optimal Allocation of Privacy Budget on Hierarchical Data Release",
}
"""The four papers, by how docstrings cite them."""

ITEMS = {
    ABOWD: {
        "(6.2)": "linear constraints with whole coefficients",
        "(7.1)": "constrained non-negative least squares of one geounit",
        "(7.2)": "the same of all children of a parent",
        "(7.3)": "controlled rounding of one geounit",
        "(7.4)": "controlled rounding of all children of a parent",
        "(7.5)": "least squares in passes, what earlier passes found being held",
        "(7.6)": "the least tolerance within which earlier passes can be held",
        "(7.7)": "controlled rounding in passes",
        "Theorem 2": "what the measurements cost, in zCDP",
    },
    SPINES: {
        "(3.1)": "the strategy matrix of TopDown's measurements, geolevel by geolevel",
        "(3.2)": "the workload of all geolevels",
        "(3.3)": "the generalised least squares estimate from the whole tree",
        "(3.4)": "the variances of what is estimated so",
        "(4.1)": "distance of an entity from the spine, at the parents of leaves: with the parent",
        "(4.2)": "the same, without the parent",
        "(4.3)": "the recursion to the geolevels above: with the geounit",
        "(4.4)": "the same, without the geounit",
        "(5.1)": "bypassing keeps the loss, under pure differential privacy",
        "(5.2)": "the loss of a pair of neighbours, under pure differential privacy",
        "(5.3)": "bypassing keeps the loss, under zCDP",
        "(5.4)": "the loss of a pair of neighbours, under zCDP",
        "Algorithm 1": "distances of the entities of a category from the spine",
        "Algorithm 2": "optimised block groups and tract groups",
        "Algorithm 3": "bypassing parents, up to the Pareto frontier",
    },
    SEXTON: {
        "Algorithm 1": "tables that join persons to their households",
        "Algorithm 2": "tables of households alone",
        "Algorithm 3": "truncation and join",
        "Algorithm 4": "rows to cells of a table",
        "Algorithm 5": "discrete Gaussian noise on a vector of counts",
    },
    KO: {
        "(1)": "a count with Laplace noise, clamped at zero",
        "(2)": "mean squared error as squared bias and variance",
        "(3)": "mean squared error of a clamped count, in closed form",
        "(4)": "summed over a hierarchy",
        "(5)": "weighted by level",
        "(6)": "the least error for a budget",
        "(7)": "the least budget for an error",
        "(8)": "hierarchical post-processing",
    },
}
"""Numbered equations, algorithms and programs; lemmas and theorems where code rests on them."""

PROSE = {
    (SPINES, "(3.1)"): "a definition; the plan is its rows: `measurement/plan.py`",
    (SPINES, "(3.2)"): "a definition; query groups are its factors: `schema/query_groups.py`",
    (SPINES, "(5.1)"): "proved in [proofs/bypass.md](proofs/bypass.md), checked by "
    "`tests/reference/brute_force_accountant.py`",
    (SPINES, "(5.2)"): "the same",
    (SPINES, "(5.3)"): "the same",
    (SPINES, "(5.4)"): "the same",
}
"""What is no computation: where it is argued instead."""

_AUTHORS = "|".join(re.escape(name) for name in TITLES)
CITATION = re.compile(
    rf"({_AUTHORS}),?\s+((?:(?!{_AUTHORS}).)*?)(?:\.\s|\.$|;|:\s|$|(?={_AUTHORS}))", re.DOTALL
)
NUMBER = re.compile(r"\((\d+(?:\.\d+)?)\)")
NAMED = re.compile(r"(Algorithm|Theorem)s?\s+(\d+(?:(?:,\s*|\s+and\s+)\d+)*)")


@dataclass(frozen=True, order=True)
class Place:
    """Where code cites a paper."""

    file: str
    line: int
    name: str


def cited(text: str) -> Iterator[tuple[str, str]]:
    """Yield (paper, item) of every citation in a docstring or comment."""
    for paper, rest in CITATION.findall(" ".join(text.split())):
        for number in NUMBER.findall(rest):
            yield paper, f"({number})"
        for kind, numbers in NAMED.findall(rest):
            for number in re.findall(r"\d+", numbers):
                yield paper, f"{kind} {number}"


@cache
def places() -> dict[tuple[str, str], list[Place]]:
    """Find every citation in the package: by function, class or module, or by the line of a comment."""
    found: dict[tuple[str, str], set[Place]] = defaultdict(set)
    for path in sorted((ROOT / "src" / "opendas").rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        if "et al." not in " ".join(text.split()):
            continue
        tree = ast.parse(text)
        spans = []
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                name = getattr(node, "name", "module")
                line = getattr(node, "lineno", 1)
                spans.append((line, getattr(node, "end_lineno", 1 << 30), name))
                for item in cited(ast.get_docstring(node) or ""):
                    found[item].add(Place(file, line, name))
        if not re.search(r"#.*\(\d{4}\)", text):
            continue
        for token in _tokens(path):
            if token.type != tokenize.COMMENT:
                continue
            line = token.start[0]
            inside = [span for span in spans if span[0] <= line <= span[1]]
            name = max(inside)[2] if inside else "module"
            for item in cited(token.string.lstrip("# ")):
                found[item].add(Place(file, line, name))
    return {item: sorted(where) for item, where in found.items()}


def _tokens(path: Path) -> Iterator[tokenize.TokenInfo]:
    with tokenize.open(path) as file:
        yield from tokenize.generate_tokens(file.readline)


def missing() -> list[tuple[str, str]]:
    """Return what no code cites and no sentence explains, and what is cited but is no item of its paper."""
    found = places()
    needed = {(paper, item) for paper, items in ITEMS.items() for item in items}
    absent = [item for item in sorted(needed) if item not in found and item not in PROSE]
    return absent + [item for item in sorted(found) if item not in needed and item[1][0] == "("]


def page() -> str:
    """Return the page."""
    found = places()
    lines = [
        "# From the papers to the code",
        "",
        "Every numbered equation, algorithm and program of the four papers, and where the code cites it.",
        "Written by `python docs/generate_equations.py` from docstrings and comments; a test compares them.",
    ]
    for paper, items in ITEMS.items():
        lines += ["", f"## {paper}", "", f"*{TITLES[paper]}*", ""]
        lines += ["| | What it is | Where it is |", "|---|---|---|"]
        for item, what in items.items():
            where = ", ".join(_link(place) for place in found.get((paper, item), []))
            lines.append(f"| {item} | {what} | {where or PROSE.get((paper, item), '')} |")
    return "\n".join(lines) + "\n"


def _link(place: Place) -> str:
    name = "" if place.name == "module" else f" {place.name}"
    return f"`{place.file.removeprefix('src/opendas/')}:{place.line}{name}`"


def main() -> int:
    """Write or check the page."""
    text = page()
    if "--check" in sys.argv[1:]:
        current = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
        bad = missing()
        for paper, item in bad:
            sys.stderr.write(f"{paper} {item}: cited nowhere, or no item of the paper\n")
        if current != text:
            sys.stderr.write("docs/equations.md is out of date: run python docs/generate_equations.py\n")
        return int(bool(bad) or current != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
