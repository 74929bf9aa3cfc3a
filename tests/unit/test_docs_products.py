"""The tables on the pages of products are what the code declares."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
SCRIPT = runpy.run_path(str(DOCS / "generate_products.py"))
NAMES = ("pl94-persons", "pl94-units", "dhc-persons", "dhc-units", "dhc-units-tenvacgq")


@pytest.mark.parametrize("name", NAMES)
def test_the_tables_are_up_to_date(name: str) -> None:
    written = (DOCS / "products" / f"{name}.md").read_text(encoding="utf-8")
    assert SCRIPT["page"](name) == written, "run python docs/generate_products.py"


def test_a_stale_table_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCRIPT["TABLES"], "passes", lambda product: "| another |\n")
    written = (DOCS / "products" / "pl94-units.md").read_text(encoding="utf-8")
    assert SCRIPT["page"]("pl94-units") != written


def test_every_product_has_its_page_and_no_table_is_empty() -> None:
    assert set(SCRIPT["PRODUCTS"]) == set(NAMES)
    for name in NAMES:
        text = (DOCS / "products" / f"{name}.md").read_text(encoding="utf-8")
        found = SCRIPT["MARK"].findall(text)
        assert found, name
        assert all(body.strip().count("\n") >= 2 for _, _, body, _ in found)


def test_the_numbers_known_from_elsewhere() -> None:
    """Figures of the production certificates and of the TopDown paper, Tables 6 to 8, not of this code."""
    persons = (DOCS / "products" / "pl94-persons.md").read_text(encoding="utf-8")
    units = (DOCS / "products" / "pl94-units.md").read_text(encoding="utf-8")
    assert (
        "| `us2020-persons` | 2020 redistricting data, persons, 50 states and DC | 293764/114921 | 17.14,"
        in persons
    )
    assert "| 11417641/152349649 | 2.47," in units
    assert "| *geolevel* | 104/4099 | 1440/4099 | 447/4099 | 687/4099 | 1256/4099 | 165/4099 |" in persons
    assert "07 White-Black" in persons
    assert "63 White-Black-AIAN-Asian-NHPI-SOR" in persons
    assert "| `detailed` | 19.66 (" in persons
