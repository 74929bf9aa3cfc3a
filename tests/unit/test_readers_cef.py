"""Reader ``cef``: the synthetic state comes back from fixed-width records, and what is wrong is told."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.assembled import same
from support.made_cef_files import write_cef
from support.made_households import house_people, list_units

from opendas.arrays import Lookup
from opendas.custody.stamps import POPULATED_LEAVES
from opendas.demo import make_state, write_demo
from opendas.errors import ConfigError, DataError, FormatError, GeographyError, OpendasError, SchemaError
from opendas.readers import InputData, ReaderSpec, UnitsSpec, make_reader
from opendas.readers.cef.reader import QUARTERS_COUNTS, UNIT_COUNTS
from opendas.readers.cef.records import GQ_CODES, PERSONS, UNITS
from opendas.runs.context.run import load
from opendas.schema.pl94 import pl94_persons, pl94_units
from opendas.schema.product import Product

PRODUCTS = {"persons": pl94_persons(), "units": pl94_units()}


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state")
    write_cef(folder / "cef", blocks=400, seed=5)
    write_demo(folder / "demo", blocks=400, seed=5)
    return folder


def cef_spec(folder: Path, product: Product, *, strict: bool = False) -> ReaderSpec:
    return ReaderSpec(
        "cef",
        (folder / "CEF20_PER_99.txt",),
        product,
        strict=strict,
        unit_records=(folder / "CEF20_UNIT_99.txt",),
        block_files=(folder / "GRFC_99.txt",),
        plan_from_records=True,
    )


def same_histogram(left: InputData, right: InputData) -> bool:
    return same(left.histogram, right.histogram)


MAY_BE_BLANK = {
    "HHLDRAGE",
    "HHSPAN",
    "HHLDRACE",
    "HHRACE",
    "QGQTYP",
    "GQSEX",
    *(f"QRACE{k}" for k in range(2, 9)),
}
"""Fields for which the record classes of the Bureau's reader take blanks."""


def test_no_field_is_left_out(state: Path) -> None:
    """The Bureau's classes refuse blanks elsewhere; ``experiments/cef_records.py`` runs them."""
    for name, layout in (("UNIT", UNITS), ("PER", PERSONS)):
        lines = (state / "cef" / f"CEF20_{name}_99.txt").read_text().splitlines()
        for field, (start, end) in layout.fields.items():
            blank = sum(line[start:end].strip() == "" for line in lines)
            assert blank == 0 or field in MAY_BE_BLANK, field
    people = (state / "cef" / "CEF20_PER_99.txt").read_text().splitlines()
    start, end = PERSONS.fields["QDB"]
    age, stop = PERSONS.fields["QAGE"]
    for line in people[:500]:
        born = line[start:end]
        had = born[4:] <= "0401"
        assert 2020 - int(born[:4]) - (not had) == int(line[age:stop])


@pytest.mark.parametrize("name", ["persons", "units"])
def test_the_made_state_comes_back(state: Path, name: str) -> None:
    got = make_reader(cef_spec(state / "cef", PRODUCTS[name], strict=True)).read()
    demo = state / "demo"
    units = UnitsSpec(demo / "frame.parquet", "GEOID")
    spec = ReaderSpec(
        "histogram",
        (demo / f"{name}.parquet",),
        PRODUCTS[name],
        geocode="GEOID",
        frame=units.path,
        units=units,
    )
    expected = make_reader(spec).read()
    assert same_histogram(got, expected)
    assert (got.stamps, got.declared, got.findings) == ((), (UNIT_COUNTS,), ())
    assert np.array_equal(got.frame.geocodes, expected.frame.geocodes)
    for column, counts in expected.frame.units.items():
        assert np.array_equal(got.frame.units[column], counts), column
    for category, codes in expected.frame.entities.items():
        assert np.array_equal(got.frame.entities[category], codes), category
    planned, stamps = make_reader(cef_spec(state / "cef", PRODUCTS[name])).frame()
    assert stamps == ()
    assert np.array_equal(planned.geocodes, got.frame.geocodes)


def slow_histogram(folder: Path) -> dict[tuple[str, int], int]:
    """Count people by block and cell, record by record."""

    def value(line: str, layout: dict[str, tuple[int, int]], name: str) -> str:
        start, end = layout[name]
        return line[start:end].strip()

    rows = [line.split("|") for line in (folder / "GRFC_99.txt").read_text().splitlines()]
    named = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    block = {
        int(row["OIDTABBLK"]): row["TABBLKST"] + row["TABBLKCOU"] + row["TABTRACTCE"] + row["TABBLK"]
        for row in named
    }
    home = {}
    for line in (folder / "CEF20_UNIT_99.txt").read_text().splitlines():
        layout = dict(UNITS.fields)
        code = value(line, layout, "QGQTYP")
        kind = min(int(code[0]), 7) if code else 0
        home[int(value(line, layout, "MAFID"))] = (block[int(value(line, layout, "OIDTB"))], kind)
    counts: dict[tuple[str, int], int] = {}
    for line in (folder / "CEF20_PER_99.txt").read_text().splitlines():
        layout = dict(PERSONS.fields)
        place, kind = home[int(value(line, layout, "MAFID"))]
        adult = int(int(value(line, layout, "QAGE")) >= 18)
        origin = int(value(line, layout, "CENHISP")) - 1
        cell = ((kind * 2 + adult) * 2 + origin) * 63 + int(value(line, layout, "CENRACE")) - 1
        counts[place, cell] = counts.get((place, cell), 0) + 1
    return counts


def test_reading_agrees_with_the_slow_way(state: Path) -> None:
    data = make_reader(cef_spec(state / "cef", PRODUCTS["persons"])).read()
    row = np.repeat(np.arange(data.histogram.rows), np.diff(data.histogram.indptr))
    places = data.frame.geocodes[row].astype("U15").tolist()
    cells, counts = data.histogram.cells.tolist(), data.histogram.counts.tolist()
    fast = {(place, cell): n for place, cell, n in zip(places, cells, counts, strict=True)}
    assert fast == slow_histogram(state / "cef")


def test_layouts_have_the_published_widths_and_places() -> None:
    assert (UNITS.width, PERSONS.width) == (76, 91)
    assert UNITS.fields["OIDTB"] == (37, 59)
    assert UNITS.fields["VACS"] == (32, 33)
    assert UNITS.fields["QGQTYP"] == (33, 36)
    assert UNITS.fields["HHSEX"] == (75, 76)
    assert PERSONS.fields["QAGE"] == (23, 26)
    assert PERSONS.fields["CENHISP"] == (47, 48)
    assert PERSONS.fields["CENRACE"] == (81, 83)
    assert PERSONS.fields["QGQTYP"] == (87, 90)
    assert all(kind == min(code // 100, 7) for code, kind in GQ_CODES.items())


def test_the_made_people_fit_their_homes() -> None:
    made = make_state(300, seed=2)
    units = list_units(made)
    people = house_people(made, units, np.random.default_rng(1))
    homes = made.homes
    size = np.bincount(people.unit, minlength=len(units))
    assert np.array_equal(size > 0, units.occupied)
    assert people.age[people.number == 1].min() >= 0
    household = units.hhgq == 0
    assert np.array_equal(np.bincount(units.block[household], minlength=300), homes.housing)
    assert np.array_equal(np.bincount(units.block, weights=size, minlength=300), homes.people.sum(axis=1))
    heads = people.age[(people.number == 1) & household[people.unit]]
    assert heads.min() >= 15


def test_the_same_seed_gives_the_same_records(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_cef(tmp_path / name, blocks=100, seed=9)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    records = ["CEF20_PER_99.txt", "CEF20_UNIT_99.txt", "GRFC_99.txt"]
    assert files == [*records, "cef_config.ini", "persons.toml", "units.toml"]
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


# --- forms of a file that are right ---


@pytest.fixture
def small(tmp_path: Path) -> Path:
    write_cef(tmp_path, blocks=60, seed=3)
    return tmp_path


@pytest.mark.parametrize("form", ["crlf", "no last end", "gzip", "two files", "folder"])
def test_other_forms_of_the_same_records(small: Path, form: str) -> None:
    spec = cef_spec(small, PRODUCTS["persons"], strict=True)
    expected = make_reader(spec).read()
    person, unit = spec.paths[0], spec.unit_records[0]
    assert isinstance(person, Path)
    assert isinstance(unit, Path)
    text = person.read_bytes()
    paths: tuple[Path, ...] = (person,)
    if form == "crlf":
        for path in (person, unit):
            path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    elif form == "no last end":
        person.write_bytes(text[:-1])
    elif form == "gzip":
        paths = (small / "p.txt.gz",)
        paths[0].write_bytes(gzip.compress(text))
    else:
        half = 92 * 100
        paths = (small / "one" / "p.txt", small / "two" / "p.txt")
        for path, part in zip(paths, (text[:half], text[half:]), strict=True):
            path.parent.mkdir()
            path.write_bytes(part)
    got = make_reader(
        ReaderSpec(
            "cef",
            paths,
            spec.product,
            strict=True,
            unit_records=spec.unit_records,
            block_files=spec.block_files,
        )
    ).read()
    assert same_histogram(got, expected)


def test_units_alone_are_enough_for_the_units_product(small: Path) -> None:
    spec = cef_spec(small, PRODUCTS["units"])
    alone = ReaderSpec("cef", spec.unit_records, spec.product, block_files=spec.block_files)
    assert same_histogram(make_reader(alone).read(), make_reader(spec).read())


def test_units_that_are_protected_and_not_invariant_are_not_published(small: Path) -> None:
    spec = cef_spec(small, replace(PRODUCTS["units"], invariants=()))
    data = make_reader(spec).read()
    assert data.declared == (POPULATED_LEAVES, QUARTERS_COUNTS)
    assert set(data.frame.units["hu"].tolist()) == {1}
    assert same_histogram(data, make_reader(cef_spec(small, PRODUCTS["units"])).read())
    change(small / "CEF20_UNIT_99.txt", quarters_line(small), 33, "   ")
    change(small / "CEF20_UNIT_99.txt", quarters_line(small), 0, "2")
    changed, _ = make_reader(spec).frame()
    assert changed.units["hu"].tolist() == data.frame.units["hu"].tolist()


def test_columns_of_the_grfc_are_found_by_name(small: Path) -> None:
    spec = cef_spec(small, PRODUCTS["units"])
    path = small / "GRFC_99.txt"
    expected, _ = make_reader(spec).frame()
    rows = [line.split("|")[::-1] for line in path.read_text().splitlines()]
    rows[0] = ["CD116FP" if name == "CDCURFP" else name for name in rows[0]]
    rows += [rows[3]]  # a row that only repeats another
    path.write_text("\n".join("|".join(row) for row in rows) + "\n")
    frame, _ = make_reader(spec).frame()
    assert np.array_equal(frame.geocodes, expected.geocodes)
    for category, codes in expected.entities.items():
        assert np.array_equal(frame.entities[category], codes), category


def test_numbers_may_have_blanks_or_zeros_in_front(small: Path) -> None:
    spec = cef_spec(small, PRODUCTS["persons"], strict=True)
    expected = make_reader(spec).read()
    path = small / "CEF20_UNIT_99.txt"
    lines = []
    for number, line in enumerate(path.read_text().splitlines()):
        oid = line[37:59].strip().lstrip("0")
        oid = (oid.zfill(22), oid.rjust(22), oid.ljust(22), oid.center(22))[number % 4]
        pop = str(int(line[17:22]))
        pop = pop.rjust(5) if number % 2 else pop.zfill(5)
        code = "000" if number % 3 == 0 and line[33:36] == "   " else line[33:36]
        lines.append(line[:17] + pop + line[22:33] + code + line[36] + oid + line[59:])
    path.write_text("\n".join(lines) + "\n")
    assert same_histogram(make_reader(spec).read(), expected)


# --- what is wrong ---


def change(path: Path, line: int, start: int, text: str) -> None:
    lines = path.read_text().splitlines()
    old = lines[line - 1]
    lines[line - 1] = old[:start] + text + old[start + len(text) :]
    path.write_text("\n".join(lines) + "\n")


def error_of(folder: Path, product: str = "persons", *, strict: bool = False) -> DataError:
    with pytest.raises(DataError) as caught:
        make_reader(cef_spec(folder, PRODUCTS[product], strict=strict)).read()
    return caught.value


def quarters_line(folder: Path) -> int:
    lines = (folder / "CEF20_UNIT_99.txt").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line[0] == "4")


UNIT_ERRORS: list[tuple[str, int, str, type[DataError]]] = [
    ("RTYPE", 0, "3", SchemaError),
    ("MAFID", 1, "000000007", SchemaError),
    ("MAFID", 1, "10x000001", SchemaError),
    ("MAFID", 1, "1 0000001", SchemaError),
    ("FINAL_POP", 17, "0-001", SchemaError),
    ("VACS", 32, "8", SchemaError),
    ("VACS", 32, " ", SchemaError),
    ("QGQTYP", 33, "502", SchemaError),
    ("QGQTYP", 33, "1 1", SchemaError),
    ("OIDTB", 37, "   " + "9" * 19, SchemaError),
    ("OIDTB", 37, " " * 22, SchemaError),
    ("OIDTB", 37, "0" * 21 + "1", GeographyError),
]


@pytest.mark.parametrize(("field", "start", "text", "kind"), UNIT_ERRORS)
def test_wrong_units_are_told_by_file_line_and_field(
    small: Path, field: str, start: int, text: str, kind: type[DataError]
) -> None:
    change(small / "CEF20_UNIT_99.txt", 7, start, text)
    error = error_of(small, "units")
    assert type(error) is kind
    assert [(f.file, f.line, f.field) for f in error.findings] == [("CEF20_UNIT_99.txt", 7, field)]
    assert error.exit_code == 3


PERSON_ERRORS: list[tuple[str, int, str, type[DataError]]] = [
    ("RTYPE", 0, "2", SchemaError),
    ("MAFID", 1, "899999999", DataError),
    ("MAFID", 1, "900000000", SchemaError),
    ("QAGE", 23, "116", SchemaError),
    ("QAGE", 23, "   ", SchemaError),
    ("CENHISP", 47, "0", SchemaError),
    ("CENRACE", 81, "00", SchemaError),
    ("CENRACE", 81, "64", SchemaError),
    ("QGQTYP", 87, "301", SchemaError),
    ("QGQTYP", 87, "30x", SchemaError),
]


@pytest.mark.parametrize(("field", "start", "text", "kind"), PERSON_ERRORS)
def test_wrong_persons_are_told_by_file_line_and_field(
    small: Path, field: str, start: int, text: str, kind: type[DataError]
) -> None:
    path = small / "CEF20_PER_99.txt"
    lines = path.read_text().splitlines()
    line = next(number for number, row in enumerate(lines, 1) if row[0] == "3" and number > 20)
    change(path, line, start, text)
    error = error_of(small)
    assert type(error) is kind
    assert [(f.file, f.line, f.field) for f in error.findings] == [("CEF20_PER_99.txt", line, field)]


def test_all_that_is_wrong_in_a_file_comes_together_and_long_lists_are_cut(small: Path) -> None:
    path = small / "CEF20_PER_99.txt"
    for line in range(1, 41):
        change(path, line, 47, "9")
    change(path, 50, 81, "99")
    error = error_of(small)
    hispanic = [f for f in error.findings if f.field == "CENHISP"]
    assert [f.line for f in hispanic[:20]] == list(range(1, 21))
    assert "20 more lines" in hispanic[20].rule
    assert [f.line for f in error.findings if f.field == "CENRACE"] == [50]


def test_no_message_holds_a_value(small: Path) -> None:
    change(small / "CEF20_PER_99.txt", 3, 1, "345678912")
    change(small / "CEF20_PER_99.txt", 4, 23, "777")
    text = str(error_of(small))
    assert "345678912" not in text
    assert "777" not in text


def test_types_of_person_and_unit_agree(small: Path) -> None:
    path = small / "CEF20_PER_99.txt"
    lines = path.read_text().splitlines()
    change(path, 1, 0, "5" if lines[0][0] == "3" else "3")
    error = error_of(small)
    assert [(f.line, f.field) for f in error.findings] == [(1, "RTYPE")]


@pytest.mark.parametrize(("start", "text", "field"), [(33, "   ", "QGQTYP"), (32, "3", "VACS")])
def test_group_quarters_have_a_type_and_are_not_vacant(
    small: Path, start: int, text: str, field: str
) -> None:
    line = quarters_line(small)
    change(small / "CEF20_UNIT_99.txt", line, start, text)
    error = error_of(small, "units")
    assert [(f.line, f.field) for f in error.findings] == [(line, field)]


def test_a_mafid_comes_once(small: Path) -> None:
    path = small / "CEF20_UNIT_99.txt"
    change(path, 9, 1, path.read_text().splitlines()[2][1:10])
    error = error_of(small, "units")
    assert [(f.line, f.field) for f in error.findings] == [(9, "MAFID")]
    assert isinstance(error, SchemaError)


def test_minors_do_not_live_in_nursing_homes(small: Path) -> None:
    unit, person = small / "CEF20_UNIT_99.txt", small / "CEF20_PER_99.txt"
    line = quarters_line(small)
    change(unit, line, 33, "301")
    mafid = unit.read_text().splitlines()[line - 1][1:10]
    rows = person.read_text().splitlines()
    inside = [number for number, row in enumerate(rows, 1) if row[1:10] == mafid]
    for number in inside:
        change(person, number, 87, "   ")
        change(person, number, 23, "040")
    change(person, inside[0], 23, "017")
    error = error_of(small)
    assert [(f.line, f.field) for f in error.findings] == [(inside[0], "QAGE")]
    change(person, inside[0], 23, " 18")
    make_reader(cef_spec(small, PRODUCTS["persons"])).read()


def test_numbers_of_people_that_disagree_are_a_warning_and_an_error_when_strict(small: Path) -> None:
    person = small / "CEF20_PER_99.txt"
    lines = person.read_text().splitlines()
    person.write_text("\n".join(lines[1:]) + "\n")
    data = make_reader(cef_spec(small, PRODUCTS["persons"])).read()
    assert data.histogram.total() == len(lines) - 1
    assert [f.field for f in data.findings] == ["FINAL_POP"]
    assert error_of(small, strict=True).findings == data.findings


def test_vacancy_and_people_that_disagree_are_a_warning(small: Path) -> None:
    unit = small / "CEF20_UNIT_99.txt"
    rows = unit.read_text().splitlines()
    line = next(n for n, row in enumerate(rows, 1) if row[0] == "2" and row[32] == "0")
    change(unit, line, 32, "1")
    data = make_reader(cef_spec(small, PRODUCTS["units"])).read()
    assert [(f.line, f.field) for f in data.findings] == [(line, "FINAL_POP")]


def shorter(text: bytes) -> bytes:
    lines = text.split(b"\n")
    return b"\n".join([*lines[:4], lines[4][:-1], *lines[5:]])


def broken_line(text: bytes) -> bytes:
    return text[: 92 * 4 + 10] + b"\n" + text[92 * 4 + 11 :]


def mixed_ends(text: bytes) -> bytes:
    lines = text.split(b"\n")
    return b"\n".join([*lines[:4], lines[4][:-1] + b"\r", *lines[5:]])


def cut_off(text: bytes) -> bytes:
    return text[: 92 * 4 + 30]


def blank_line(text: bytes) -> bytes:
    return text[: 92 * 4] + b"\n" + text[92 * 4 :]


def test_a_line_of_wrong_width_is_named(small: Path) -> None:
    for damage in [shorter, broken_line, mixed_ends, cut_off, blank_line]:
        path = small / "CEF20_PER_99.txt"
        path.write_bytes(damage(path.read_bytes()))
        error = error_of(small)
        assert isinstance(error, FormatError)
        assert error.findings[0].line == 5
        assert "91 characters" in error.findings[0].rule


def test_other_files_are_told_apart(small: Path) -> None:
    spec = cef_spec(small, PRODUCTS["persons"])
    for paths, units in (
        (spec.unit_records, spec.unit_records),
        (spec.paths, spec.paths),
        (spec.block_files, spec.unit_records),
    ):
        wrong = ReaderSpec("cef", paths, spec.product, unit_records=units, block_files=spec.block_files)
        with pytest.raises(FormatError, match="characters"):
            make_reader(wrong).read()
    wrong = ReaderSpec(
        "cef", spec.paths, spec.product, unit_records=spec.unit_records, block_files=spec.unit_records
    )
    with pytest.raises(FormatError, match="OIDTABBLK"):
        make_reader(wrong).read()


def test_files_without_a_record(small: Path) -> None:
    for text in [b"", b"\n", b"x" * 300]:
        for name in ["CEF20_PER_99.txt", "CEF20_UNIT_99.txt", "GRFC_99.txt"]:
            (small / name).write_bytes(text)
            assert error_of(small).findings


def test_damaged_gzip(small: Path) -> None:
    spec = cef_spec(small, PRODUCTS["persons"])
    path = small / "p.txt.gz"
    path.write_bytes(gzip.compress((small / "CEF20_PER_99.txt").read_bytes())[:-20])
    spec = ReaderSpec(
        "cef", (path,), spec.product, unit_records=spec.unit_records, block_files=spec.block_files
    )
    with pytest.raises(FormatError, match="gzip"):
        make_reader(spec).read()


GRFC_ERRORS = [
    ("TABBLK", "9999", "TABBLKGRPCE"),
    ("TABBLK", "12x4", "TABBLK"),
    ("TABTRACTCE", "123", "TABTRACTCE"),
    ("TABBLKGRPCE", "", "TABBLKGRPCE"),
    ("OIDTABBLK", "-5", "OIDTABBLK"),
    ("PLACEFP", "1", "PLACEFP"),
    ("AIANNHCE", "12 4", "AIANNHCE"),
]


def change_grfc(path: Path, row: int, column: str, text: str) -> None:
    rows = [line.split("|") for line in path.read_text().splitlines()]
    rows[row - 1][rows[0].index(column)] = text
    path.write_text("\n".join("|".join(row) for row in rows) + "\n")


@pytest.mark.parametrize(("column", "text", "field"), GRFC_ERRORS)
def test_wrong_blocks_are_told(small: Path, column: str, text: str, field: str) -> None:
    change_grfc(small / "GRFC_99.txt", 6, column, text)
    error = error_of(small)
    assert [(f.file, f.line, f.field) for f in error.findings] == [("GRFC_99.txt", 6, field)]


def test_blocks_that_contradict_each_other(small: Path) -> None:
    path = small / "GRFC_99.txt"
    rows = path.read_text().splitlines()
    oid = rows[0].split("|").index("OIDTABBLK")
    number = rows[3].split("|")[oid]
    change_grfc(path, 6, "OIDTABBLK", number)  # one number, two blocks
    assert [(f.line, f.field) for f in error_of(small).findings] == [(6, "OIDTABBLK")]
    path.write_text("\n".join([*rows, rows[3]]) + "\n")
    change_grfc(path, len(rows) + 1, "OIDTABBLK", "77")  # one block, two numbers
    assert [(f.line, f.field) for f in error_of(small).findings] == [(len(rows) + 1, "OIDTABBLK")]
    path.write_text("\n".join([*rows, rows[3]]) + "\n")
    change_grfc(path, len(rows) + 1, "VTDST", "777777")  # one block, two voting districts
    error = error_of(small)
    assert isinstance(error, GeographyError)
    assert [(f.line, f.field) for f in error.findings] == [(len(rows) + 1, "VTDST")]


# --- run files ---


def test_run_files_of_the_made_state_are_loaded_and_planned(small: Path) -> None:
    for name in ("persons", "units"):
        run = load(small / f"{name}.toml", strict=True, read_records=True)
        assert run.spine.names[0] == "state"
        data = run.read()
        assert len(data.frame) == len(run.frame)
        assert data.stamps == ()


RUN_ERRORS = [
    ('frame = "GRFC_99.txt"', "", "GRF-C"),
    ('frame = "GRFC_99.txt"', 'frame = "from-records"', "GRF-C"),
    ('frame = "GRFC_99.txt"', 'frame = "absent.txt"', "frame: nothing found"),
    ("units = { path", "#", "units: required"),
    ("CEF20_UNIT_99.txt", "absent*.txt", "units: nothing found"),
    ('CEF20_UNIT_99.txt"', 'CEF20_UNIT_99.txt", geocode = "G"', "layout is fixed"),
    ("units = { path", 'geocode = "G"\nunits = { path', "layout is fixed"),
    ("spine =", 'levels = [{ name = "a" }]\nspine =', "levels"),
]


@pytest.mark.parametrize(("old", "new", "message"), RUN_ERRORS)
def test_run_files_that_do_not_fit(small: Path, old: str, new: str, message: str) -> None:
    path = small / "persons.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError, match=message):
        load(path)


def test_a_folder_and_a_list_of_files(small: Path) -> None:
    for name, file in (("p", "CEF20_PER_99.txt"), ("u", "CEF20_UNIT_99.txt"), ("g", "GRFC_99.txt")):
        (small / name).mkdir()
        (small / file).rename(small / name / file)
    text = (small / "persons.toml").read_text()
    text = text.replace('"CEF20_PER_99.txt"', '["p"]').replace('"CEF20_UNIT_99.txt"', '["u/*.txt"]')
    (small / "persons.toml").write_text(text.replace('"GRFC_99.txt"', '"g"'))
    assert load(small / "persons.toml", strict=True).read().histogram.total() > 0


def test_other_readers_take_one_unit_file(small: Path) -> None:
    text = (small / "persons.toml").read_text()
    text = text.replace('reader = "cef"', 'reader = "ppmf"').replace('frame = "GRFC_99.txt"', "")
    (small / "persons.toml").write_text(text.replace('"CEF20_UNIT_99.txt"', '["a", "b"]'))
    with pytest.raises(OpendasError, match="one file"):
        load(small / "persons.toml")


# --- helpers ---


def test_lookup_finds_like_a_list() -> None:
    rng = np.random.default_rng(5)
    known = rng.permutation(1000)[:200]
    wanted = np.repeat(rng.integers(-1, 1000, 300), 2)
    listed = known.tolist()
    slow = [listed.index(number) if number in listed else -1 for number in wanted.tolist()]
    assert Lookup.of(known).positions(wanted).tolist() == slow
    assert len(Lookup.of(known).positions(wanted[:0])) == 0
