"""The page from equations to code is what the code says; no numbered item of the papers is missing."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
SCRIPT = runpy.run_path(str(DOCS / "generate_equations.py"))


def test_the_page_is_up_to_date() -> None:
    written = (DOCS / "equations.md").read_text(encoding="utf-8")
    assert SCRIPT["page"]() == written, "run python docs/generate_equations.py"


def test_every_equation_algorithm_and_program_has_its_place() -> None:
    assert SCRIPT["missing"]() == []


def test_citations_are_read_as_they_are_written() -> None:
    text = (
        "As in Abowd et al. (2022), equations (7.2) and (7.5). Proved in Cumings-Menon et al. (2024), "
        "Theorem 2; see Ko et al. (2025), programs (6) and (7), Sexton et al. (2024), Algorithms 1 and 2."
    )
    assert set(SCRIPT["cited"](text)) == {
        ("Abowd et al. (2022)", "(7.2)"),
        ("Abowd et al. (2022)", "(7.5)"),
        ("Cumings-Menon et al. (2024)", "Theorem 2"),
        ("Ko et al. (2025)", "(6)"),
        ("Ko et al. (2025)", "(7)"),
        ("Sexton et al. (2024)", "Algorithm 1"),
        ("Sexton et al. (2024)", "Algorithm 2"),
    }
    assert set(SCRIPT["cited"]("Equation (7.5) of another paper, 2022.")) == set()
