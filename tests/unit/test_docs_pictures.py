"""Pictures on the pages of evidence show the tables below them."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from support.scripts import script

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return script(DOCS / "generate_pictures.py")


def test_the_files_are_drawn_from_the_tables(generator: ModuleType) -> None:
    for path, text in generator.pictures().items():
        assert path.read_text(encoding="utf-8") == text, f"run docs/generate_pictures.py: {path.name}"


def test_each_picture_stands_before_its_table(generator: ModuleType) -> None:
    for picture in (*generator.PICTURES, *generator.CURVES):
        page = (DOCS / picture.page).read_text(encoding="utf-8")
        _, _, at = generator.table(page, picture.head)
        assert page.splitlines()[at - 2].endswith(f"assets/{picture.name}.svg)"), picture.name


def test_every_number_of_the_columns_has_a_mark(generator: ModuleType) -> None:
    for picture in generator.PICTURES:
        page = (DOCS / picture.page).read_text(encoding="utf-8")
        columns, rows, _ = generator.table(page, picture.head)
        text = generator.draw(picture, page)
        for order, name in enumerate(picture.series):
            cells = [generator.number(row[columns.index(name)]) for row in rows]
            drawn = [value for value in cells if value is not None and (picture.linear or value > 0)]
            assert drawn
            marks = re.findall(rf'<(?:circle|rect|path) [^>]*class="s{order}"', text)
            assert len(marks) == len(drawn) + 1, (picture.name, name)  # one in the key


def test_every_row_is_a_point_of_its_series(generator: ModuleType) -> None:
    for curves in generator.CURVES:
        page = (DOCS / curves.page).read_text(encoding="utf-8")
        rows, found = generator.table(page, curves.head)[1], generator.points(curves, page)
        assert sum(map(len, found.values())) == len(rows)
        text = generator.draw_curves(curves, page)
        for order, each in enumerate(found.values()):
            assert len(each) > 1
            marks = re.findall(rf'<(?:circle|rect|path) [^>]*class="s{order}"', text)
            assert len(marks) == len(each) + 1  # one in the key
            assert len(re.findall(rf'<polyline [^>]*class="s{order}"', text)) == 1


def test_numbers_of_cells(generator: ModuleType) -> None:
    cells = {"653,512.00 ± 127.88": 653512.0, "PIQP 8.6 (75 x)": 8.6, "-12 ± 1": -12.0, "–": None, "": None}
    cells |= {"none within 60 s": None, "0.12 ms": 0.12, "HiGHS 13.0": 13.0, "+3 ± 31": 3.0}
    for cell, value in cells.items():
        assert generator.number(cell) == value, cell
