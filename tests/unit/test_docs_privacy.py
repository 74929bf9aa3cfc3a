"""The table of rules names tests and modules that exist; pages link to pages that exist."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest

from opendas.budget.presets import preset
from opendas.privacy.zcdp import SEVERAL, Account, group_loss

ROOT = Path(__file__).parents[2]
RULES = ROOT / "docs" / "proofs" / "rules.md"
PAGES = [RULES, ROOT / "docs" / "guarantee.md", ROOT / "docs" / "known-weaknesses.md"]

pytestmark = pytest.mark.skipif(not RULES.is_file(), reason="the documentation is not beside the tests")


def test_every_test_that_the_table_names_exists() -> None:
    named = re.findall(
        r"`((?:unit|system|reference|statistical|contract|property)/[\w/]+\.py)(?:::(\w+))?`",
        RULES.read_text(),
    )
    assert len(named) > 80
    for file, function in named:
        path = ROOT / "tests" / file
        assert path.is_file(), file
        if function:
            assert f"\ndef {function}(" in path.read_text(), f"{file}::{function}"


def test_every_module_that_the_table_names_exists() -> None:
    text = RULES.read_text()
    cells = [row.split("|")[2] for row in text.splitlines() if row.startswith("| ") and row.count("|") >= 4]
    modules = {m for cell in cells for m in re.findall(r"`([\w/]+(?:\.py|/))`", cell)}
    assert len(modules) > 20
    for module in modules:
        assert (ROOT / "src" / "opendas" / module).exists(), module


def test_every_rule_has_a_test() -> None:
    rows = [row for row in RULES.read_text().splitlines() if row.startswith("| ") and "---" not in row]
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if cells[0] in ("Rule", "Probe", "Mutant") or len(cells) < 3:
            continue
        assert cells[-1] or "said so" in cells[0], cells[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", page.read_text()):
        assert (page.parent / target).is_file(), target


def test_what_a_household_loses_is_what_the_page_says() -> None:
    page = " ".join((ROOT / "docs" / "what-rho-means.md").read_text(encoding="utf-8").split())
    losses = [group_loss(preset("us2020-persons").rho, persons, pure=False) for persons in SEVERAL]
    epsilons = [Account(loss, Fraction(1, 10**10)).epsilon("cks") for loss in losses]
    two, four = (
        f"{float(loss):.2f} (epsilon {epsilon:.2f}" for loss, epsilon in zip(losses, epsilons, strict=True)
    )
    assert f"two persons together lose up to rho = {two} at delta = 1e-10), four {four})." in page
