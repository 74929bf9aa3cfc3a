"""Tables of DHC units against direct counts of their microdata, and against their own sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.dhc import both_histograms
from support.each import each

from opendas.files.mdf.writing import MdfFiles
from opendas.geography.frame import Frame
from opendas.schema.dhc_units import dhc_units, dhc_units_tenvacgq
from opendas.schema.histogram import Histogram
from opendas.tables.cells import dhc_table, published_tables
from opendas.tables.counting import count_table
from opendas.tables.dhc_units import household_tables, unit_tables

from .conftest import block_frame

SIZES = {
    "P15": 17, "P18": 9, "P19": 19, "P20": 34, "P22": 21, "P23": 15, "P24": 11, "P25": 11, "P26": 11,
    "P28": 16, "P38": 20, "PCT14": 3, "PCT15": 13, "PCT18": 15, "H1": 1, "H3": 3, "H4": 4, "H5": 8,
    "H6": 8, "H7": 17, "H13": 8, "H14": 17, "H15": 7, "H16": 17, "H17": 21, "H18": 69,
    "H19": 7,
}  # fmt: skip
REPEATED = ("P18", "P28", "P38", "PCT14", "H13", "H16", "H17")
LETTERS = "ABCDEFGHI"

World = tuple[Frame, Histogram, Histogram, pd.DataFrame]
Rows = Iterator[pd.DataFrame]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Random units, and their microdata as pandas reads them."""
    folder: Path = tmp_path_factory.mktemp("units")
    frame, households, units = both_histograms(block_frame(), np.random.default_rng(8), 4_000)
    for file in MdfFiles(folder, dhc_units(), frame, households.take, "parquet", units):
        file.write()
    return frame, households, units, pd.read_parquet(folder).astype(str)


def counted(world: World, name: str) -> list[int]:
    frame, households, units, _ = world
    of_units = name in unit_tables()
    table = dhc_table(dhc_units_tenvacgq() if of_units else dhc_units(), name)
    return count_table(units if of_units else households, table, frame.grouping("state"))[0].tolist()


def families(here: pd.DataFrame, rows: Callable[[pd.DataFrame], Rows] = lambda here: iter(())) -> Rows:
    married = here[here["HHT"] == "1"]
    yield married
    yield from rows(married)
    yield here[here["HHT"].isin(["2", "3"])]
    for code in "23":
        yield here[here["HHT"] == code]
        yield from rows(here[here["HHT"] == code])


def nothing(here: pd.DataFrame) -> Rows:
    yield from ()


def sexes(here: pd.DataFrame, rows: Callable[[pd.DataFrame], Rows] = nothing) -> Rows:
    for code in "12":
        yield here[here["HHSEX"] == code]
        yield from rows(here[here["HHSEX"] == code])


def family_or_not(
    here: pd.DataFrame, first: Callable[[pd.DataFrame], Rows], second: Callable[[pd.DataFrame], Rows]
) -> Rows:
    for is_family, rows in ((True, first), (False, second)):
        within = here[here["HHT"].isin(["1", "2", "3"]) == is_family]
        yield within
        yield from rows(within)


def by(column: str, *codes: str) -> Callable[[pd.DataFrame], Rows]:
    def rows(here: pd.DataFrame) -> Rows:
        for code in codes:
            yield here[here[column].isin(code.split())]

    return rows


def nested(here: pd.DataFrame, column: str, codes: list[str], rows: Callable[[pd.DataFrame], Rows]) -> Rows:
    for code in codes:
        within = here[here[column].isin(code.split())]
        yield within
        yield from rows(within)


RACES = by("THHRACE", *(f"{k:02d}" for k in range(1, 8)))
SIZE = by("HHSIZE", *"1234567")
LARGER = by("HHSIZE", *"234567")
AGE = by("THHLDRAGE", *"123456789")
ALONE = by("HHSIZE", "1", "2 3 4 5 6 7")
TENURES = ["1 2", "3 4"]


def minors(here: pd.DataFrame) -> Rows:
    with_minors = here[here["PAC"] != "4"]
    yield with_minors
    ages = by("PAC", "1", "3", "2")
    yield from family_or_not(with_minors, lambda h: families(h, ages), lambda h: sexes(h, ages))
    without = here[here["PAC"] == "4"]
    yield without
    yield from family_or_not(without, families, sexes)


def own_children(here: pd.DataFrame) -> Rows:
    yield here[here["PAOC"] != "4"]
    yield from by("PAOC", "1", "3", "2", "4")(here)


def sizes_and_own(here: pd.DataFrame) -> Rows:
    yield here[here["HHSIZE"] == "1"]
    yield from sexes(here[here["HHSIZE"] == "1"])
    more = here[here["HHSIZE"] != "1"]
    yield more
    yield from family_or_not(more, lambda h: families(h, by("PAOC", "1 2 3", "4")), sexes)


def size_and_family(here: pd.DataFrame) -> Rows:
    yield here[here["HHSIZE"] == "1"]
    more = here[here["HHSIZE"] != "1"]
    yield more
    yield from family_or_not(more, nothing, nothing)


def couples(here: pd.DataFrame) -> Rows:
    yield here[~here["CPLT"].isin(["0", "5"])]
    for first, second in ("12", "34"):
        yield here[here["CPLT"].isin([first, second])]
        yield here[here["CPLT"] == first]
        yield here[here["CPLT"] == second]
        yield from sexes(here[here["CPLT"] == second])
    yield here[here["CPLT"].isin(["0", "5"])]


def types_by_age(here: pd.DataFrame) -> Rows:
    ages = by("THHLDRAGE", "1 2", "3 4 5 6", "7 8 9")
    yield from family_or_not(
        here,
        lambda h: families(h, ages),
        lambda h: sexes(h, lambda of_sex: nested(of_sex, "HHSIZE", ["1", "2 3 4 5 6 7"], ages)),
    )


def generations(here: pd.DataFrame) -> Rows:
    yield here[here["MULTG"] == "2"]
    yield here[here["MULTG"] != "2"]


DIRECT: dict[str, Callable[[pd.DataFrame], Rows]] = {
    "P15": lambda here: nested(here, "THHSPAN", ["1", "2"], RACES),
    "P18": lambda here: family_or_not(here, families, ALONE),
    "P19": sizes_and_own,
    "P20": minors,
    "P22": lambda here: family_or_not(here, AGE, AGE),
    "P23": lambda here: nested(here, "TP60", ["1", "0"], lambda h: family_or_not(h, families, nothing)),
    "P24": lambda here: nested(here, "TP60", ["1", "0"], size_and_family),
    "P25": lambda here: nested(here, "TP65", ["1", "0"], size_and_family),
    "P26": lambda here: nested(here, "TP75", ["1", "0"], size_and_family),
    "P28": lambda here: family_or_not(here, LARGER, SIZE),
    "P38": lambda here: families(here, own_children),
    "PCT14": generations,
    "PCT15": couples,
    "PCT18": lambda here: sexes(
        here, lambda h: nested(h, "HHSIZE", ["1", "2 3 4 5 6 7"], by("THHLDRAGE", "1 2 3 4 5 6", "7 8 9"))
    ),
    "H4": by("TEN", "1", "2", "3 4"),
    "H6": RACES,
    "H13": SIZE,
    "H14": lambda here: nested(here, "TEN", TENURES, RACES),
    "H15": lambda here: nested(here, "TEN", TENURES, by("THHSPAN", "1", "2")),
    "H16": lambda here: nested(here, "TEN", TENURES, SIZE),
    "H17": lambda here: nested(here, "TEN", TENURES, AGE),
    "H18": lambda here: nested(here, "TEN", TENURES, types_by_age),
    "H19": lambda here: nested(here, "TEN", TENURES, by("PAC", "1 2 3", "4")),
}
DIRECT["H7"] = DIRECT["P15"]


def of_iteration(households: pd.DataFrame, letter: str) -> pd.DataFrame:
    if letter == "":
        return households
    if letter == "H":
        return households[households["THHSPAN"] == "2"]
    if letter == "I":
        return households[(households["THHSPAN"] == "1") & (households["THHRACE"] == "01")]
    return households[households["THHRACE"] == f"{LETTERS.index(letter) + 1:02d}"]


def universe(records: pd.DataFrame, name: str) -> pd.DataFrame:
    households = records[records["TEN"] != "0"]
    if name == "P38":
        return households[households["HHT"].isin(["1", "2", "3"])]
    return households[households["HHT"] > "3"] if name == "PCT18" else households


@each("name", [*DIRECT, *(f"{name}{letter}" for name in REPEATED for letter in LETTERS)])
def test_tables_equal_direct_counts_of_the_microdata(world: World, name: str) -> None:
    base, letter = (name[:-1], name[-1]) if name[-1] in LETTERS else (name, "")
    chosen = of_iteration(universe(world[3], base), letter)
    assert counted(world, name) == [len(chosen), *map(len, DIRECT[base](chosen))]


def test_tables_of_all_housing_units_equal_direct_counts(world: World) -> None:
    housing = world[3][world[3]["RTYPE"] == "2"]
    vacancies = [int((housing["VACS"] == code).sum()) for code in "1234567"]
    assert counted(world, "H1") == [len(housing)]
    assert counted(world, "H3") == [len(housing), len(housing) - sum(vacancies), sum(vacancies)]
    assert counted(world, "H5") == [sum(vacancies), *vacancies]


def test_tables_have_the_published_number_of_rows() -> None:
    tables = {**household_tables(), **unit_tables()}
    assert set(tables) == {*SIZES, *(f"{name}{letter}" for name in REPEATED for letter in LETTERS)}
    assert set(published_tables("dhc-units")) | set(published_tables("tenvacgq")) == set(tables)
    for name, table in tables.items():
        rows = [label for label, _ in table.rows()]
        assert len(rows) == len(set(rows)) == SIZES[name if name in SIZES else name[:-1]], name


def test_rows_add_up_to_the_rows_above_them(world: World) -> None:
    for name, table in {**household_tables(), **unit_tables()}.items():
        count = dict(zip([label for label, _ in table.rows()], counted(world, name), strict=True))
        for parent in count:
            inside = [
                label for label in count if label.startswith("" if parent == "Total" else f"{parent}; ")
            ]
            inside = [label for label in inside if label != parent]
            depth = 0 if parent == "Total" else parent.count("; ") + 1
            children = [count[label] for label in inside if label.count("; ") == depth]
            assert not children or sum(children) == count[parent], (name, parent)


def test_labels_name_the_rows_above_their_own() -> None:
    labels = [label for label, _ in household_tables()["P18"].rows()]
    assert labels[1:6] == [
        "Family households",
        "Family households; Married couple family",
        "Family households; Other family",
        "Family households; Other family; Male householder, no spouse present",
        "Family households; Other family; Female householder, no spouse present",
    ]
