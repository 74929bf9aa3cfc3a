"""Both redistricting readers on small made files, good and bad."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.pl94_zip import Block, members, some_blocks, write_zip

from opendas.errors import (
    ConfigError,
    DataError,
    EnvironmentFailure,
    FormatError,
    GeographyError,
    OpendasError,
)
from opendas.readers import InputData, ReaderSpec, make_reader
from opendas.schema.pl94 import pl94_persons, pl94_units
from opendas.schema.product import Product

YEARS = (2010, 2020)


def read(*paths: Path, year: int, product: Product | None = None, strict: bool = True) -> InputData:
    spec = ReaderSpec(f"pl94-{year}", paths, product or pl94_persons(), strict=strict)
    return make_reader(spec).read()


def by_block(data: InputData) -> dict[str, dict[tuple[int, ...], int]]:
    """Return counts by block and (hhgq, age, hispanic, race), the slow way."""
    out: dict[str, dict[tuple[int, ...], int]] = {}
    for row, geocode in enumerate(data.frame.geocodes):
        dense = data.histogram.dense(row).reshape(8, 2, 2, 63)
        out[geocode.decode()] = {tuple(map(int, i)): int(dense[tuple(i)]) for i in np.argwhere(dense)}
    return out


@pytest.mark.parametrize("year", YEARS)
def test_people_come_back_as_they_were(tmp_path: Path, year: int) -> None:
    blocks = some_blocks()
    found = by_block(read(write_zip(tmp_path / "fb.zip", blocks, year), year=year))
    leaves = [b for b in blocks if b.occupied + b.vacant or sum(b.people.values())]
    assert list(found) == [b.code for b in leaves]
    for block in leaves:
        summed: dict[tuple[int, ...], int] = {}
        for (_, *cell), count in found[block.code].items():
            summed[tuple(cell)] = summed.get(tuple(cell), 0) + count
        assert summed == block.people


def test_2010_puts_people_without_occupied_unit_into_one_facility(tmp_path: Path) -> None:
    data = read(write_zip(tmp_path / "fb.zip", some_blocks(), 2010), year=2010)
    for block in some_blocks():
        if not block.people:
            continue
        kinds = {cell[0] for cell in by_block(data)[block.code]}
        assert kinds == ({0} if block.occupied else {7})
    assert data.frame.units["gq7"].tolist() == [0, 0, 0, 1, 0]
    assert data.stamps == ("DEMONSTRATION FRAME",)


def test_2020_houses_as_many_as_table_p5_says(tmp_path: Path) -> None:
    data = read(write_zip(tmp_path / "fb.zip", some_blocks(), 2020), year=2020)
    found = by_block(data)
    for block in some_blocks():
        if not block.people:
            continue
        inside = dict.fromkeys(range(1, 8), 0)
        for (kind, age, _, _), count in found[block.code].items():
            if kind:
                inside[kind] += count
            assert (kind, age) != (3, 0), "no minors in nursing facilities"
        assert {k: n for k, n in inside.items() if n} == block.quarters
        row = list(found).index(block.code)
        assert [int(data.frame.units[f"gq{k}"][row]) for k in range(1, 8)] == [
            int(k in block.quarters) for k in range(1, 8)
        ]


@pytest.mark.parametrize("year", YEARS)
def test_units_are_vacant_and_occupied(tmp_path: Path, year: int) -> None:
    data = read(write_zip(tmp_path / "fb.zip", some_blocks(), year), year=year, product=pl94_units())
    for row, geocode in enumerate(data.frame.geocodes):
        block = next(b for b in some_blocks() if b.code == geocode.decode())
        assert data.histogram.dense(row).tolist() == [block.vacant, block.occupied]
        assert data.frame.units["hu"][row] == block.vacant + block.occupied


@pytest.mark.parametrize("year", YEARS)
def test_area_codes_are_unique_in_the_nation(tmp_path: Path, year: int) -> None:
    frame = read(write_zip(tmp_path / "fb.zip", some_blocks(), year), year=year).frame
    assert frame.entities["cousub"].tolist()[:2] == [b"9800110000", b"9800120000"]
    assert frame.entities["place"].tolist() == [b"9800100", b"", b"", b"", b""]
    assert frame.entities["vtd"].tolist() == [b"", b"", b"98001000A12", b"", b""]
    assert set(frame.entities["aianhh"].tolist()) == {b""}
    assert set(frame.entities["sduni"].tolist()) == {b""}
    assert set(frame.entities["cd"].tolist()) == {b"9801"}
    assert frame.names["county"]["98001"] == "98001 Peña County"


QUIRKS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    # At large; districts by letter; voting districts with a hyphen; no county subdivisions.
    "02": (
        {"CD": "00", "SLDU": "00A", "SLDL": "001", "VTD": "01-005", "COUSUB": "99999"},
        {"cd": "0200", "sldu": "0200A", "sldl": "02001", "vtd": "0200101-005", "cousub": ""},
    ),
    # One county, one place, a delegate, wards in place of a senate, no house.
    "11": (
        {"CD": "98", "SLDU": "001", "SLDL": "ZZZ", "VTD": "000129", "PLACE": "50000", "COUSUB": "00000"},
        {"cd": "1198", "sldu": "11001", "sldl": "", "place": "1150000", "cousub": "1100100000"},
    ),
    # Parishes; precincts with a blank inside.
    "22": ({"CD": "01", "VTD": "1 1A"}, {"cd": "2201", "vtd": "220011 1A"}),
    # One chamber only; a reservation.
    "31": (
        {"SLDU": "001", "SLDL": "ZZZ", "AIANHH": "4625"},
        {"sldu": "31001", "sldl": "", "aianhh": "4625"},
    ),
    # Districts by county.
    "50": (
        {"CD": "00", "SLDU": "CAL", "SLDL": "A-1", "VTD": "ZZZZZZ"},
        {"cd": "5000", "sldu": "50CAL", "sldl": "50A-1", "vtd": ""},
    ),
    # A resident commissioner, barrios and zonas urbanas, no legislature and no voting districts in the file.
    "72": (
        {"CD": "98", "SLDU": "", "SLDL": "", "VTD": "", "PLACE": "06593", "COUSUB": "01577"},
        {"cd": "7298", "sldu": "", "sldl": "", "vtd": "", "place": "7206593", "cousub": "7200101577"},
    ),
}
"""What a block's header says, and the areas that it then lies in; the codes are partly made up."""


@pytest.mark.parametrize("state", sorted(QUIRKS))
@pytest.mark.parametrize("year", YEARS)
def test_quirks_of_states(tmp_path: Path, year: int, state: str) -> None:
    """A block on land, and one of water with nobody: tract 9900, block group 0."""
    given, wanted = QUIRKS[state]
    names = {"CD": "CD116", "SLDU": "SLDU18", "SLDL": "SLDL18"} if year == 2020 else {}
    areas = {names.get(name, name): code for name, code in given.items()}
    blocks = [
        Block(f"{state}0010001001000", {(1, 0, 0): 5}, 3, 1, areas=areas),
        Block(f"{state}0019900000001", areas=areas | {"BLKGRP": "0"}),
    ]
    data = read(write_zip(tmp_path / "state.zip", blocks, year), year=year)
    assert data.frame.geocodes.tolist() == [f"{state}0010001001000".encode()]
    assert data.histogram.total() == 5
    for category, code in wanted.items():
        there = data.frame.entities.get(category, np.array([b""]))
        assert there[0].decode() == code, category


@pytest.mark.parametrize("year", YEARS)
@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_members_as_others_pack_them(tmp_path: Path, year: int, encoding: str) -> None:
    """In a folder, in capitals, beside what a Mac leaves there; a municipio with an accent in its name."""
    texts = members(some_blocks("72"), year)
    with zipfile.ZipFile(tmp_path / "pr.zip", "w") as archive:
        for name, text in texts.items():
            if encoding == "utf-8" and year == 2010:
                text = text.replace("ña County ", "ña County")  # a line has 500 bytes
            archive.writestr(f"PR{year}/{name.upper()}", text.replace("|FB|", "|PR|").encode(encoding))
            archive.writestr(f"__MACOSX/PR{year}/._{name}", b"resource fork")
    packed, plain = (
        read(path, year=year)
        for path in (tmp_path / "pr.zip", write_zip(tmp_path / "plain.zip", some_blocks("72"), year))
    )
    assert packed.frame.names["county"]["72001"] == "72001 Peña County"
    assert by_block(packed) == by_block(plain)


@pytest.mark.parametrize("year", YEARS)
@pytest.mark.parametrize("root", ["state", "us"])
def test_several_states_make_one_run(tmp_path: Path, year: int, root: str) -> None:
    paths = tuple(write_zip(tmp_path / f"{s}.zip", some_blocks(s), year) for s in ("98", "97"))
    data = make_reader(ReaderSpec(f"pl94-{year}", paths, pl94_persons(), root=root)).read()
    one = read(paths[0], year=year)
    assert len(data.frame) == 2 * len(one.frame)
    assert data.frame.geocodes[0].startswith(b"97")
    assert data.histogram.total() == 2 * one.histogram.total()
    assert data.histogram.row_totals().tolist() == 2 * one.histogram.row_totals().tolist()
    assert data.frame.geolevels[0] == root


@pytest.mark.parametrize("year", YEARS)
def test_a_state_is_read_once(tmp_path: Path, year: int) -> None:
    paths = [write_zip(tmp_path / name, some_blocks(), year) for name in ("a.zip", "b.zip")]
    with pytest.raises(GeographyError, match=r"read from a\.zip already"):
        read(*paths, year=year)


@pytest.mark.parametrize("year", YEARS)
def test_record_numbers_are_compared_as_integers_and_in_any_order(tmp_path: Path, year: int) -> None:
    texts = members(some_blocks(), year)
    name = f"fb00001{year}.pl"
    lines = [line.replace("|0000", "|", 1).replace(",0000", ",", 1) for line in texts[name].splitlines(True)]
    shuffled = write_zip(tmp_path / "s.zip", some_blocks(), year, {name: "".join(reversed(lines))})
    plain = write_zip(tmp_path / "p.zip", some_blocks(), year)
    assert by_block(read(shuffled, year=year)) == by_block(read(plain, year=year))


@pytest.mark.parametrize("year", YEARS)
def test_a_summary_that_differs_is_a_warning_or_with_strict_an_error(tmp_path: Path, year: int) -> None:
    texts = members(some_blocks(), year)
    name = f"fb00001{year}.pl"
    lines = texts[name].splitlines(True)
    sep = "," if year == 2010 else "|"
    fields = lines[1].split(sep)  # the first county
    fields[5] = str(int(fields[5]) + 1234)
    lines[1] = sep.join(fields)
    path = write_zip(tmp_path / "fb.zip", some_blocks(), year, {name: "".join(lines)})
    findings = read(path, year=year, strict=False).findings
    assert [(f.line, f.field) for f in findings] == [(2, "P0010001")]
    assert "county 98 001" in findings[0].rule
    with pytest.raises(DataError, match="county 98 001"):
        read(path, year=year, strict=True)


def broken(name: str, change: str, year: int) -> dict[str, str | None]:
    """Return one member, damaged."""
    texts = members(some_blocks(), year)
    lines = texts[name].splitlines(True)
    sep = "," if year == 2010 else "|"
    fields = lines[-1].rstrip("\n").split(sep)
    if change == "missing row":
        lines.pop()
    elif change == "extra row":
        lines.append(lines[-1].replace(fields[4], "0000999"))
    elif change == "twice":
        lines.append(lines[-1])
    elif change == "cut":
        lines[-1] = lines[-1][:40]
    elif change == "empty":
        lines = []
    elif change == "garbage":
        lines = ["\x00\x01\x02 not a table\n"]
    else:
        fields[9] = change
        lines[-1] = sep.join(fields) + "\n"
    return {name: "".join(lines)}


def test_a_damaged_segment_is_told_by_member_and_rule(tmp_path: Path) -> None:
    for change, rule in [
        ("missing row", "has no counts"),
        ("extra row", "expected a record number that"),
        ("twice", "each record number once"),
        ("cut", "columns"),
        ("empty", "empty"),
        ("garbage", "columns"),
        ("-1", "whole number"),
        ("31415.5", "whole number"),
        ("0x31415", "whole number"),
        ("", "whole number"),
        ('"7"', "whole number"),
        ("31415926535897932384626", "below 2\\*\\*62"),
        (str(1 << 62), "below 2\\*\\*62"),
    ]:
        for segment in [1, 2]:
            for year in YEARS:
                name = f"fb0000{segment}{year}.pl"
                path = write_zip(tmp_path / "fb.zip", some_blocks(), year, broken(name, change, year))
                with pytest.raises(FormatError, match=rule) as caught:
                    read(path, year=year)
                assert all("fb.zip" in finding.file for finding in caught.value.findings)
                assert "31415" not in str(caught.value), "an error never shows a count"


def test_counts_close_to_the_limit_are_refused_without_overflow(tmp_path: Path) -> None:
    huge = Block("980010001001000", {(1, 0, 0): (1 << 62) - 1}, 1, 0)
    path = write_zip(
        tmp_path / "fb.zip", [huge, Block("980010001001001", {(1, 0, 0): (1 << 61)}, 1, 0)], 2010
    )
    with pytest.raises(DataError):
        read(path, year=2010)


@pytest.mark.parametrize("year", YEARS)
def test_swapped_members_are_told(tmp_path: Path, year: int) -> None:
    texts = members(some_blocks(), year)
    first, second = f"fb00001{year}.pl", f"fb00002{year}.pl"
    path = write_zip(tmp_path / "fb.zip", some_blocks(), year, {first: texts[second], second: texts[first]})
    with pytest.raises(FormatError, match="swapped"):
        read(path, year=year)


@pytest.mark.parametrize("year", YEARS)
def test_the_other_year_is_recognised(tmp_path: Path, year: int) -> None:
    other = 4030 - year
    texts = members(some_blocks(), other)
    path = write_zip(tmp_path / "fb.zip", some_blocks(), year, {f"fbgeo{year}.pl": texts[f"fbgeo{other}.pl"]})
    with pytest.raises(FormatError, match=f'use reader = "pl94-{other}"'):
        read(path, year=year)


@pytest.mark.parametrize("year", YEARS)
def test_a_missing_member_is_named(tmp_path: Path, year: int) -> None:
    path = write_zip(tmp_path / "fb.zip", some_blocks(), year, {f"fb00002{year}.pl": None})
    with pytest.raises(FormatError, match="data segment 2"):
        read(path, year=year)


@pytest.mark.parametrize("year", YEARS)
def test_what_is_no_zip_is_told(tmp_path: Path, year: int) -> None:
    for content in (b"", b"PK", b"no zip at all", (tmp_path / "whole").name.encode()):
        (tmp_path / "fb.zip").write_bytes(content)
        with pytest.raises(FormatError, match="official zip file"):
            read(tmp_path / "fb.zip", year=year)
    with pytest.raises(EnvironmentFailure):
        read(tmp_path / "absent.zip", year=year)


@pytest.mark.parametrize("year", YEARS)
def test_a_truncated_or_flipped_zip_never_gives_a_traceback(tmp_path: Path, year: int) -> None:
    data = write_zip(tmp_path / "fb.zip", some_blocks(), year).read_bytes()
    for stop in range(0, len(data), 97):
        (tmp_path / "cut.zip").write_bytes(data[:stop])
        with pytest.raises(FormatError):
            read(tmp_path / "cut.zip", year=year)
    good = by_block(read(tmp_path / "fb.zip", year=year))
    for position in range(0, len(data), 61):
        flipped = bytearray(data)
        flipped[position] ^= 0x55
        (tmp_path / "flipped.zip").write_bytes(flipped)
        try:
            assert by_block(read(tmp_path / "flipped.zip", year=year)) == good  # a byte that does not matter
        except OpendasError:
            continue


def test_encrypted_members_are_told(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "fb.zip", some_blocks(), 2010)
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo("fb000012010.pl")
    data = bytearray(path.read_bytes())
    data[entry.header_offset + 6] |= 1
    central = data.rindex(b"fb000012010.pl") - 46
    data[central + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(FormatError, match="damaged or encrypted"):
        read(path, year=2010)


def header_with(column: slice, value: str, line: int = -1) -> dict[str, str | None]:
    lines = members(some_blocks(), 2010)["fbgeo2010.pl"].splitlines(True)
    lines[line] = lines[line][: column.start] + value + lines[line][column.stop :]
    return {"fbgeo2010.pl": "".join(lines)}


def test_a_wrong_geocode_is_told_by_line_and_field(tmp_path: Path) -> None:
    for column, value, field in [
        (slice(29, 32), "0 1", "COUNTY"),
        (slice(54, 60), "      ", "TRACT"),
        (slice(60, 61), "7", "BLKGRP"),
        (slice(61, 65), "100 ", "BLOCK"),
        (slice(27, 29), "97", "STATE"),
        (slice(61, 65), "1000", "BLOCK"),
    ]:
        path = write_zip(tmp_path / "fb.zip", some_blocks(), 2010, header_with(column, value))
        with pytest.raises(GeographyError) as caught:
            read(path, year=2010, strict=False)
        last = len(members(some_blocks(), 2010)["fbgeo2010.pl"].splitlines())
        assert any(f.field == field and f.line == last for f in caught.value.findings)


def test_errors_of_one_file_come_together(tmp_path: Path) -> None:
    changes = {**broken("fb000012010.pl", "-1", 2010), **broken("fb000022010.pl", "-1", 2010)}
    path = write_zip(tmp_path / "fb.zip", some_blocks(), 2010, changes)
    with pytest.raises(FormatError) as caught:
        read(path, year=2010)
    assert {f.file for f in caught.value.findings} == {"fb.zip!fb000012010.pl", "fb.zip!fb000022010.pl"}


def test_a_header_of_wrong_width_is_told(tmp_path: Path) -> None:
    texts = members(some_blocks(), 2010)
    lines = texts["fbgeo2010.pl"].splitlines(True)
    lines[2] = lines[2][:300] + "\n"
    path = write_zip(tmp_path / "fb.zip", some_blocks(), 2010, {"fbgeo2010.pl": "".join(lines)})
    with pytest.raises(FormatError, match="500 characters") as caught:
        read(path, year=2010)
    assert [f.line for f in caught.value.findings] == [3]


def test_windows_line_ends_and_a_missing_last_one_are_fine(tmp_path: Path) -> None:
    texts = members(some_blocks(), 2010)
    windows = {name: text.replace("\n", "\r\n") for name, text in texts.items()}
    stripped = {name: text.rstrip("\n") for name, text in texts.items()}
    mixed = {name: text.replace("\n", "\r\n", 3) for name, text in texts.items()}
    plain = by_block(read(write_zip(tmp_path / "p.zip", some_blocks(), 2010), year=2010))
    assert by_block(read(write_zip(tmp_path / "m.zip", some_blocks(), 2010, mixed), year=2010)) == plain
    assert by_block(read(write_zip(tmp_path / "w.zip", some_blocks(), 2010, windows), year=2010)) == plain
    assert by_block(read(write_zip(tmp_path / "s.zip", some_blocks(), 2010, stripped), year=2010)) == plain


def test_tables_that_contradict_each_other_are_told(tmp_path: Path) -> None:
    for table, segment, cell in [("P1", 1, 7), ("P2", 1, 77), ("P4", 2, 80), ("H1", 2, -1)]:
        for year in YEARS:
            sep = "," if year == 2010 else "|"
            name = f"fb0000{segment}{year}.pl"
            lines = members(some_blocks(), year)[name].splitlines(True)
            fields = lines[-6].rstrip("\n").split(sep)
            fields[cell] = "271828"
            lines[-6] = sep.join(fields) + "\n"
            path = write_zip(tmp_path / "fb.zip", some_blocks(), year, {name: "".join(lines)})
            with pytest.raises(DataError) as caught:
                read(path, year=year, product=pl94_persons(), strict=False)
            assert any(f.field in (table, "P1-P4") for f in caught.value.findings)
            assert "271828" not in str(caught.value)


@pytest.mark.parametrize(
    ("block", "rule"),
    [
        (
            Block("980010001001000", {(1, 0, 0): 3}, 1, 0, {1: 4}),
            "more people in group quarters than live there",
        ),
        (
            Block("980010001001000", {(0, 0, 0): 3}, 1, 0, {3: 1}),
            "more people in nursing facilities than adults",
        ),
        (Block("980010001001000", {(1, 0, 0): 3}, 0, 0, {1: 2}), "no housing unit"),
    ],
)
def test_2020_group_quarters_that_cannot_be_are_told(tmp_path: Path, block: Block, rule: str) -> None:
    with pytest.raises(DataError, match=rule):
        read(write_zip(tmp_path / "fb.zip", [block], 2020), year=2020)


def test_published_counts_of_the_header_are_not_read(tmp_path: Path) -> None:
    lines = members(some_blocks(), 2010)["fbgeo2010.pl"].splitlines(True)
    other = [line[:318] + "123456789987654321" + line[336:] for line in lines]
    path = write_zip(tmp_path / "o.zip", some_blocks(), 2010, {"fbgeo2010.pl": "".join(other)})
    plain = write_zip(tmp_path / "p.zip", some_blocks(), 2010)
    assert by_block(read(path, year=2010)) == by_block(read(plain, year=2010))


def test_other_products_are_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "fb.zip", some_blocks(), 2010)
    other = pl94_units()
    schema = type(other.schema)((type(other.schema.attributes[0])("age", ("a", "b")),))
    product = Product("ages", schema, (), ("total",), (), (), (), "person", "ages", other.passes)
    with pytest.raises(ConfigError, match="ages"):
        read(path, year=2010, product=product)
