"""Tables of DHC persons against direct counts of the microdata, against their own sums, and in a release."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from support.dhc import dhc_persons_product
from support.mdf import write_mdf
from support.release_builder import add_product, issue_release

from opendas.errors import ConfigError
from opendas.files.release_folder import ReleaseFolder
from opendas.report.pyramids import MOST_AREAS, Pyramid, pyramids
from opendas.schema.histogram import Histogram
from opendas.schema.pl94 import pl94_persons
from opendas.schema.product import Product
from opendas.tables.cells import (
    check_lowest,
    dhc_table,
    find_table,
    pl94_cells,
    pl94_table,
    published_tables,
)
from opendas.tables.counting import count_table
from opendas.tables.dhc import UNANSWERED, dhc_tables
from opendas.tables.dhc_units import household_tables, unit_tables
from opendas.tables.tabulate import tabulate, write_tables
from opendas.verify.release import verify_release

pytestmark = pytest.mark.slow

SIZES = {"P1": 1, "P3": 8, "P4": 3, "P5": 17, "P6": 7, "P7": 15, "P12": 49, "P14": 43, "P43": 63,
         "PCT12": 209, "PCT13": 49, "PCT22": 21, "PCO": 39,
         "P8": 71, "P9": 73, "P10": 71, "P11": 73, "P16": 3, "H10": 1, "PCO43": 63}  # fmt: skip
ITERATIONS = {"P12": "ABCDEFGHI", "PCT12": "ABCDEFGHIJKLMNO", "PCT13": "ABCDEFGHI", "PCO43": "ABCDEFGHI"}


@pytest.fixture(scope="module")
def product() -> Product:
    return dhc_persons_product()


@pytest.fixture
def people(dhc_persons):
    """Several thousand people in random cells of a few blocks."""
    rng = np.random.default_rng(20)
    size, leaves, entries = dhc_persons.product.schema.size, len(dhc_persons.frame), 6_000
    counts = Histogram.from_entries(
        rng.integers(0, leaves, entries), rng.integers(0, size, entries), rng.integers(1, 4, entries),
        shape=(leaves, size),
    )  # fmt: skip
    return dataclasses.replace(dhc_persons, estimate=counts)


@pytest.fixture
def records(people, tmp_path):
    """The microdata as pandas reads them."""
    write_mdf(tmp_path, people.product, people.frame, people.estimate)
    found = pd.read_parquet(tmp_path).astype({"QAGE": int, "CENRACE": int, "GQTYPE": int})
    found["county"] = found["TABBLKST"].astype(str) + found["TABBLKCOU"].astype(str)
    return found


def test_tables_have_the_published_number_of_rows(product):
    names = {f"{table}{letter}" for table, letters in ITERATIONS.items() for letter in letters}
    names |= {f"PCO{number}" for number in range(1, 11)} | set(SIZES) - {"PCO", "PCO43"}
    assert set(dhc_tables()) == names == set(published_tables("dhc-persons"))
    for name in names:
        base = name.rstrip("ABCDEFGHIJKLMNO")
        base = "PCO" if base.startswith("PCO") and base != "PCO43" else base
        rows = [label for label, _ in dhc_tables()[name].rows()]
        assert len(rows) == len(set(rows)) == SIZES[base], name


def test_labels_are_the_official_age_groups():
    labels = [label for label, _ in dhc_tables()["P12"].rows()]
    assert labels[2:9] == [
        "Male; Under 5 years", "Male; 5 to 9 years", "Male; 10 to 14 years", "Male; 15 to 17 years",
        "Male; 18 and 19 years", "Male; 20 years", "Male; 21 years",
    ]  # fmt: skip
    assert labels[-1] == "Female; 85 years and over"
    single = [label for label, _ in dhc_tables()["PCT12"].rows()]
    assert single[2:4] == ["Male; Under 1 year", "Male; 1 year"]
    assert single[-3:] == [
        "Female; 100 to 104 years", "Female; 105 to 109 years", "Female; 110 years and over"
    ]  # fmt: skip


def counted(people, name, geolevel="county"):
    grouping = people.frame.grouping(geolevel)
    table = dhc_table(people.product, name)
    frame = pd.DataFrame(count_table(people.estimate, table, grouping), columns=table.labels)
    return frame.set_axis([code.decode() for code in grouping.geocodes])


RACE_OF_LETTER = {letter: code for code, letter in enumerate("ABCDEF", start=1)}


def of_iteration(records, letter):
    """Say by the codes of the file whom an iteration counts."""
    if letter == "":
        return records
    if letter == "H":
        return records[records["CENHISP"] == "2"]
    if letter >= "I":
        letter, records = chr(ord(letter) - 8), records[records["CENHISP"] == "1"]
    if letter == "G":
        return records[records["CENRACE"] > 6]
    return records[records["CENRACE"] == RACE_OF_LETTER[letter]]


P12_EDGES = [0, 5, 10, 15, 18, 20, 21, 22, 25, 30, 35, 40, 45, 50, 55, 60, 62, 65, 67, 70, 75, 80, 85, 116]
PCT12_EDGES = [*range(101), 105, 110, 116]
FIVE_YEARS = [*range(0, 90, 5), 116]


def sex_by_age(records, edges, counties):
    """Count rows in the order of the published tables: total, male and ages, female and ages."""
    rows = {}
    for county in counties:
        here = records[records["county"] == county]
        row = [len(here)]
        for sex in "12":
            ages = here.loc[here["QSEX"] == sex, "QAGE"]
            row += [len(ages), *np.histogram(ages, bins=edges)[0]]
        rows[county] = row
    return rows


@pytest.mark.parametrize(
    ("name", "letter", "edges"),
    [(table, letter, edges)
     for table, edges in (("P12", P12_EDGES), ("PCT12", PCT12_EDGES), ("PCT13", P12_EDGES))
     for letter in ("", *ITERATIONS[table])],
)  # fmt: skip
def test_sex_by_age_equals_direct_counts_of_the_microdata(people, records, name, letter, edges):
    found = counted(people, name + letter)
    chosen = of_iteration(records, letter)
    if name == "PCT13":
        chosen = chosen[chosen["RTYPE"] == "3"]
    for county, row in sex_by_age(chosen, edges, found.index).items():
        assert found.loc[county].tolist() == row


def test_under_20_and_races_equal_direct_counts(people, records):
    found = counted(people, "P14", "state").iloc[0].tolist()
    state = records[records["QAGE"] < 20].assign(county="44")
    young = sex_by_age(state, list(range(21)), ["44"])["44"]
    # The total of P14 is of the population under 20.
    assert found == young
    races = [int((records["CENRACE"] == code).sum()) for code in range(1, 7)]
    races.append(int((records["CENRACE"] > 6).sum()))
    assert counted(people, "P3", "state").iloc[0].tolist() == [len(records), *races]
    origins = [records["CENHISP"] == code for code in "12"]
    assert counted(people, "P4", "state").iloc[0].tolist() == [len(records), *(int(o.sum()) for o in origins)]
    both = []
    for origin in origins:
        here = records.loc[origin, "CENRACE"]
        both += [len(here), *(int((here == code).sum()) for code in range(1, 7)), int((here > 6).sum())]
    assert counted(people, "P5", "state").iloc[0].tolist() == [len(records), *both]


def combination_rows(records):
    """The 63 codes of the file by how many races they are: 6, 15, 20, 15, 6 and 1 of them."""
    ends = np.cumsum([0, 6, 15, 20, 15, 6, 1])
    codes = [int((records["CENRACE"] == code).sum()) for code in range(1, 64)]
    groups = [codes[low:high] for low, high in itertools.pairwise(ends)]
    rows = [sum(groups[0]), *groups[0], sum(map(sum, groups[1:]))]
    return [*rows, *(row for group in groups[1:] for row in (sum(group), *group))]


@pytest.mark.parametrize(("every", "origin", "least"), [("P8", "P9", 0), ("P10", "P11", 18)])
def test_combinations_of_races_equal_direct_counts(people, records, every, origin, least):
    here = records[records["QAGE"] >= least]
    assert counted(people, every, "state").iloc[0].tolist() == [len(here), *combination_rows(here)]
    others = here[here["CENHISP"] == "1"]
    assert counted(people, origin, "state").iloc[0].tolist() == [
        len(here), len(here) - len(others), len(others), *combination_rows(others),
    ]  # fmt: skip
    labels = [label.rsplit("; ", 1)[-1] for label, _ in dhc_tables()[every].rows()]
    redistricting = {"P8": "P1", "P10": "P3"}[every]
    assert [cell.label.replace("; ", " + ") for cell in pl94_cells(redistricting)] == [
        label.replace("; ", " + ") for label in labels
    ]


def races_tallied(records):
    """How many have each of the six races, alone or not; codes follow combinations by size."""
    combinations = [held for n in range(1, 7) for held in itertools.combinations(range(6), n)]
    return [
        int(records["CENRACE"].isin([k + 1 for k, held in enumerate(combinations) if race in held]).sum())
        for race in range(6)
    ]


def test_races_tallied_equal_direct_counts_and_have_no_intervals(people, records):
    everybody = races_tallied(records)
    assert counted(people, "P6", "state").iloc[0].tolist() == [sum(everybody), *everybody]
    assert sum(everybody) > len(records)
    others, hispanic = (races_tallied(records[records["CENHISP"] == code]) for code in "12")
    assert counted(people, "P7", "state").iloc[0].tolist() == [
        sum(everybody), sum(others), *others, sum(hispanic), *hispanic
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="counts a record once for each of its races"):
        _ = dhc_table(people.product, "P6").members


def test_pyramids_count_the_released_people_and_are_verified(people, records, tmp_path):
    frame, where = people.frame, np.arange(len(people.frame))
    halves = [(part, people.estimate.take(part)) for part in (where[::2], where[1::2])]
    found = pyramids(people.product, frame, halves)
    assert found == pyramids(people.product, frame, [(where, people.estimate)])
    counties = sorted(records["county"].unique())
    assert [one.geocode for one in found] == ["44", *counties]
    for one in found:
        here = records[records["county"].str.startswith(one.geocode)]
        for sex, side in zip("12", one.counts, strict=True):
            ages = here.loc[here["QSEX"] == sex, "QAGE"]
            assert list(side) == np.histogram(ages, bins=FIVE_YEARS)[0].tolist()
    assert [Pyramid.from_dict(one.to_dict()) for one in found] == list(found)
    out = tmp_path / "out" / "release"
    facts = dataclasses.replace(add_product(out, people), pyramids=found)
    issue_release(out, [facts])

    def microdata() -> list[str]:
        return [c.detail for c in verify_release(out.parent) if "microdata" in c.name and not c.ok]

    assert microdata() == []
    counts = tuple(tuple(reversed(side)) for side in found[0].counts)
    issue_release(out, [dataclasses.replace(facts, pyramids=(dataclasses.replace(found[0], counts=counts),))])
    assert any("by sex and age" in detail for detail in microdata())
    few = dataclasses.replace(frame, levels={**frame.levels, "county": frame.geocodes})
    if len(frame) > MOST_AREAS:
        assert [one.geolevel for one in pyramids(people.product, few, halves)] == ["state"]
    assert pyramids(pl94_persons(), frame, halves) == ()


def test_every_table_is_answered_or_said_not_to_be(people, persons, tmp_path):
    """All of P1 to P20, PCT12 and H1 to H22; the page and the message say why."""
    answered = {*dhc_tables(), *household_tables(), *unit_tables()}
    listed = {*(f"P{k}" for k in range(1, 21)), "PCT12", *(f"H{k}" for k in range(1, 23))}
    assert listed - answered == set(UNANSWERED)
    assert not answered & set(UNANSWERED)
    page = (Path(__file__).parents[3] / "docs" / "formats" / "outputs.md").read_text()
    for number, example in enumerate((people, persons)):
        out = tmp_path / str(number)
        add_product(out / "release", example)
        for name, why in UNANSWERED.items():
            assert f"`{name}`" in page
            if name != "P2":  # of the redistricting data too
                with pytest.raises(ConfigError, match=re.escape(f"answers table {name}: {why}")):
                    tabulate(out, name, "state")


def test_every_table_that_the_reference_lists_is_answered_or_refused_with_its_reason():
    reference = Path(__file__).resolve().parents[4] / "shared" / "reference" / "dhc-production.md"
    if not reference.is_file():
        pytest.skip(f"the list of the production's tables is not at {reference}")
    listed = reference.read_text(encoding="utf-8").split("\n## 7. ")[1].split("\n## ")[0]
    found = re.findall(r"\b(P|PCT|PCO|H)(\d+)(?:-(?:P|PCT|PCO|H)?(\d+))?([A-O]-[A-O])?\b", listed)
    names = {
        f"{series}{number}{chr(letter)}"
        for series, low, high, letters in found
        for number in range(int(low), int(high or low) + 1)
        for letter in (range(ord(letters[0]), ord(letters[2]) + 1) if letters else [0])
    }
    names = {name.rstrip("\0") for name in names}
    assert {"P4", "P26", "PCT22", "PCO10", "PCO43I", "H13"} <= names
    assert names <= {*dhc_tables(), *household_tables(), *unit_tables(), *UNANSWERED}
    assert all(UNANSWERED.values())


def test_people_in_households_equal_direct_counts(people, records):
    here = records[records["RTYPE"] == "3"]
    young = int((here["QAGE"] < 18).sum())
    assert counted(people, "P16", "state").iloc[0].tolist() == [len(here), young, len(here) - young]
    assert counted(people, "H10", "state").iloc[0].tolist() == [len(here)]


MAJOR = [[1], [2], [3], [4], [5], [6], [7, 8, 9]]


def quarters_rows(records):
    """Institutional and its four types, other and its three: by the first digit of GQTYPE."""
    by_type = [int(records["GQTYPE"].floordiv(100).isin(digits).sum()) for digits in MAJOR]
    return [sum(by_type[:4]), *by_type[:4], sum(by_type[4:]), *by_type[4:]]


def test_group_quarters_equal_direct_counts(people, records):
    inside = records[records["RTYPE"] == "5"]
    adults = inside[inside["QAGE"] >= 18]
    row, detailed = [len(adults)], [len(inside)]
    for sex in "12":
        of_sex = adults[adults["QSEX"] == sex]
        row += [len(of_sex), *quarters_rows(of_sex)]
        of_sex = inside[inside["QSEX"] == sex]
        detailed.append(len(of_sex))
        for low, high in ((0, 18), (18, 65), (65, 116)):
            here = of_sex[(of_sex["QAGE"] >= low) & (of_sex["QAGE"] < high)]
            detailed += [len(here), *quarters_rows(here)]
    assert counted(people, "PCT22", "state").iloc[0].tolist() == row
    assert counted(people, "P43", "state").iloc[0].tolist() == detailed
    for letter in ITERATIONS["PCO43"]:
        assert counted(people, f"PCO43{letter}").iloc[:, 0].sum() == len(of_iteration(inside, letter)), letter
    others = [counted(people, f"PCO43{letter}") for letter in "ABCDEFG"]
    assert sum(others).equals(counted(people, "P43"))
    kinds = [range(1, 10), range(1, 5), *MAJOR[:4], range(5, 10), *MAJOR[4:]]
    for number, digits in enumerate(kinds, start=1):
        chosen = inside[inside["GQTYPE"].floordiv(100).isin(list(digits))].assign(county="44")
        wanted = sex_by_age(chosen, FIVE_YEARS, ["44"])["44"]
        assert counted(people, f"PCO{number}", "state").iloc[0].tolist() == wanted


def test_rows_add_up_to_the_rows_above_them(people):
    for name in dhc_tables():
        row = counted(people, name, "state").iloc[0]
        for parent in ("Male", "Female"):
            if parent in row.index:
                direct = [label for label in row.index if label.startswith(f"{parent}; ")]
                leaves = [a for a in direct if not any(b.startswith(f"{a}; ") for b in direct)]
                assert row[parent] == row[leaves].sum(), name
        top = [label for label in row.index[1:] if "; " not in label]
        if top:
            assert row.iloc[0] == row[top].sum(), name
    races = [counted(people, f"PCT12{letter}", "state") for letter in "ABCDEFG"]
    assert sum(races).equals(counted(people, "PCT12", "state"))
    others = [counted(people, f"PCT12{letter}", "state") for letter in "HIJKLMNO"]
    assert sum(others).equals(counted(people, "PCT12", "state"))


@pytest.mark.parametrize("name", ["P1", "P2", "P4", "P5"])
def test_boxes_make_the_same_members_as_cell_by_cell(name):
    product = pl94_persons()
    wanted = np.stack([product.schema.box(cell.levels) for cell in pl94_cells(name)])
    table = pl94_table(product, name)
    assert np.array_equal(table.members, wanted)
    assert np.array_equal(np.stack(list(table.each_column())), wanted)


def test_few_classes_stand_for_a_million_cells(product):
    for name in ("PCT12", "P12A", "P43"):
        table = dhc_table(product, name)
        assert len(table.class_of_cell) == product.schema.size
        assert len(table.classes) <= 500


@pytest.fixture
def both(persons, people, tmp_path):
    folder = tmp_path / "out" / "release"
    facts = [add_product(folder, persons), add_product(folder, people)]
    return folder.parent, facts, people


def test_a_name_of_two_products_needs_the_product(both):
    out, _, people = both
    release = ReleaseFolder(out)
    with pytest.raises(ConfigError, match=r"dhc-persons:P1, pl94-persons:P1"):
        find_table(release, "P1")
    assert find_table(release, "P2")[0].name == "pl94-persons"
    assert find_table(release, "P12")[0].name == "dhc-persons"
    assert tabulate(out, "dhc-persons:P1", "state")["P1_001N"].to_pylist() == [people.estimate.total()]
    assert tabulate(out, "pl94-persons:P1", "state")["P0010001"].to_pylist() == [18]


def test_tables_are_refused_below_their_lowest_geolevel(both):
    out, _, people = both
    for name, geolevel in (("PCT12", "block"), ("PCT13A", "block_group"), ("PCO1", "tract")):
        with pytest.raises(ConfigError, match=r"publishes table \w+ down to the"):
            tabulate(out, name, geolevel)
    for name, geolevel in (("PCT12", "tract"), ("P12A", "block"), ("PCO1", "county"), ("PCO1", "place")):
        check_lowest(people.frame, dhc_table(people.product, name), geolevel)
    assert tabulate(out, "PCT12", "tract").num_rows == len(people.frame.grouping("tract"))


def test_a_table_of_a_product_that_was_not_run_names_it(persons, tmp_path):
    add_product(tmp_path / "out" / "release", persons)
    with pytest.raises(ConfigError, match="table PCT12 needs the product dhc-persons"):
        tabulate(tmp_path / "out", "PCT12", "tract")


@pytest.mark.parametrize("fmt", ["parquet", pytest.param("csv", marks=pytest.mark.slow)])
def test_written_tables_are_verified_again(both, fmt):
    out, facts, _ = both
    paths = write_tables(out, ["P12", "PCT12A", "dhc-persons:P1", "pl94-persons:P1"], ["county"], fmt=fmt)
    assert [path.stem for path in paths] == [
        "P12_county", "PCT12A_county", "dhc-persons.P1_county", "pl94-persons.P1_county"
    ]  # fmt: skip
    if fmt == "parquet":
        names = [name for name in pq.read_table(paths[0]).column_names if "_NOISE" not in name]
        assert names[:3] == ["GEOID", "P12_001N", "P12_002N"]
    issue_release(out / "release", facts)
    failed = {check.name: check.detail for check in verify_release(out) if not check.ok}
    assert not [name for name in failed if "table" in name], failed
    assert not [name for name in failed if "micro" in name or "record" in name], failed
