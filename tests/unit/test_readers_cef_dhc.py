"""Census records for the DHC: a synthetic census, written as the census holds it, is read back whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.assembled import same
from support.pl94_zip import some_blocks, write_zip

from opendas.demo import make_census
from opendas.errors import DataError, SchemaError
from opendas.readers import InputData, ReaderSpec, make_reader
from opendas.readers.cef.records import PERSONS, UNITS, RecordLayout
from opendas.schema.dhc_persons import GQ_CODES, dhc_persons
from opendas.schema.dhc_units import HOUSEHOLD_TYPES, dhc_units, dhc_units_tenvacgq
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product

PRODUCTS = {product.name: product for product in (dhc_persons(), dhc_units(), dhc_units_tenvacgq())}
CODES = [*map(int, GQ_CODES)]
Row = dict[str, int | None]


def line(layout: RecordLayout, **fields: int | str) -> str:
    """One record; fields that are not given are blank."""
    letters = [" "] * layout.width
    for name, value in fields.items():
        start, end = layout.fields[name]
        letters[start:end] = str(value).zfill(end - start)
    return "".join(letters)


def quarters_code(level: int) -> int:
    """A code of QGQTYP for a type of group quarters; 997 stands for codes that the census has for it."""
    return 702 if CODES[level] == 997 else CODES[level]


def unit_line(row: Row, mafid: int, oid: int, people: list[Row]) -> str:
    level = row["tenvacgq"] or 0
    fields: dict[str, int] = {"MAFID": mafid, "OIDTB": oid, "FINAL_POP": len(people), "RTYPE": 2, "VACS": 0}
    if level >= 11:
        return line(UNITS, **{**fields, "RTYPE": 4, "QGQTYP": quarters_code(level - 11)})
    if level >= 4:
        return line(UNITS, **{**fields, "VACS": level - 3})
    (head,) = [person for person in people if person["relgq"] in (0, 1)]
    married, related = row["couple"] in (1, 2), row["relatives"]
    ages = [person["age"] or 0 for person in people]
    fields |= {
        "TEN": level + 1, "HHSEX": (row["sex"] or 0) + 1, "HHLDRAGE": head["age"] or 0,
        "HHSPAN": (row["hisp"] or 0) + 1, "HHRACE": (head["cenrace"] or 0) + 1,
        "HHT": 1 if married else 2 if related else 4, "CPLT": row["couple"] or 0,
        "MULTG": 0 if (row["size"] or 0) <= 2 else 1 + (row["multig"] or 0), "PAOC": row["paoc"] or 0,
        "PAC": row["pac"] or 0, "P18": sum(age < 18 for age in ages), "P60": sum(age >= 60 for age in ages),
        "P65": sum(age >= 65 for age in ages), "P75": sum(age >= 75 for age in ages),
    }  # fmt: skip
    return line(UNITS, **fields)


def person_line(row: Row, mafid: int) -> str:
    relgq = row["relgq"] or 0
    relationship = max(relgq, 1) + 19 if relgq < 18 else 37 if relgq < 33 else 38
    return line(
        PERSONS, RTYPE=3 if relgq < 18 else 5, MAFID=mafid, RELSHIP=relationship, QSEX=(row["sex"] or 0) + 1,
        QAGE=row["age"] or 0, CENHISP=(row["hispanic"] or 0) + 1, CENRACE=(row["cenrace"] or 0) + 1,
    )  # fmt: skip


def write_records(made: Path, folder: Path) -> None:
    """Write a synthetic census as person and unit records and a GRF-C, one line after another."""
    folder.mkdir()
    people: dict[tuple[str, int, int], list[Row]] = {}
    for person in pq.read_table(made / "persons.parquet").to_pylist():
        relgq = person["relgq"]
        people.setdefault((person["GEOID"], person["household"], max(relgq - 18, -1)), []).append(person)
    blocks = pq.read_table(made / "frame.parquet")["GEOID"].to_pylist()
    units, persons = [], []
    listed = [
        row for name in ("units", "quarters") for row in pq.read_table(made / f"{name}.parquet").to_pylist()
    ]
    for number, row in enumerate(listed):
        mafid = 100_000_001 + number
        level = row["tenvacgq"]
        # Everybody in the group quarters of a block and type lives in the first facility.
        lived_in = people.pop((row["GEOID"], row.get("household") or 0, max(level - 11, -1)), [])
        persons += [person_line(person, mafid) for person in lived_in]
        units.append(unit_line(row, mafid, 7_000 + blocks.index(row["GEOID"]), lived_in))
    names = ["OIDTABBLK", "TABBLKST", "TABBLKCOU", "TABTRACTCE", "TABBLKGRPCE", "TABBLK"]
    rows = [
        [str(7_000 + k), code[:2], code[2:5], code[5:11], code[11], code[11:]]
        for k, code in enumerate(blocks)
    ]
    (folder / "GRFC.txt").write_text("\n".join("|".join(row) for row in [names, *rows]) + "\n")
    (folder / "UNIT.txt").write_text("\n".join(units) + "\n")
    (folder / "PER.txt").write_text("\n".join(persons) + "\n")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("census")
    make_census(write_zip(folder / "fb.zip", some_blocks(), 2020), folder / "made")
    write_records(folder / "made", folder / "cef")
    return folder


def from_census(folder: Path, product: Product, *, strict: bool = True) -> InputData:
    spec = ReaderSpec(
        "cef",
        (folder / "PER.txt",),
        product,
        strict=strict,
        unit_records=(folder / "UNIT.txt",),
        block_files=(folder / "GRFC.txt",),
    )
    return make_reader(spec).read()


def counted(made: Path, product: Product) -> Histogram:
    """Count the tables of the synthetic census, without a reader."""
    blocks = np.array(pq.read_table(made / "frame.parquet")["GEOID"].to_pylist())
    files = ["persons"] if product.name == "dhc-persons" else ["units", "quarters"]
    names = list(product.schema.names)
    parts = [pq.read_table(made / f"{name}.parquet", columns=["GEOID", *names]).drop_null() for name in files]
    leaf = np.concatenate(
        [np.searchsorted(blocks, np.array(part["GEOID"].to_pylist(), "U15")) for part in parts]
    )
    codes = [np.concatenate([part[name].to_numpy() for part in parts]).astype(np.int64) for name in names]
    cells = product.schema.cells(codes)
    return Histogram.from_entries(leaf, cells, cells * 0 + 1, shape=(len(blocks), product.schema.size))


@pytest.mark.parametrize("name", [*PRODUCTS])
def test_the_made_census_comes_back(made: Path, name: str) -> None:
    got, frame = from_census(made / "cef", PRODUCTS[name]), pq.read_table(made / "made/frame.parquet")
    assert got.frame.geocodes.astype("U15").tolist() == frame["GEOID"].to_pylist()
    assert same(got.histogram, counted(made / "made", PRODUCTS[name]))
    for column, counts in got.frame.units.items():
        assert np.array_equal(counts, frame[column].to_numpy()), column
    assert set(got.frame.units) >= {f"gq{code}" for code in GQ_CODES}
    assert got.findings == ()


def replaced(
    folder: Path, to: Path, file: str, number: int, layout: RecordLayout, fields: Mapping[str, int]
) -> None:
    to.mkdir()
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    lines = (folder / file).read_text().splitlines()
    for name, value in fields.items():
        start, end = layout.fields[name]
        old = lines[number - 1]
        lines[number - 1] = old[:start] + str(value).zfill(end - start) + old[end:]
    (to / file).write_text("\n".join(lines) + "\n")


def line_of(folder: Path, file: str, layout: RecordLayout, **fields: int) -> int:
    for number, text in enumerate((folder / file).read_text().splitlines(), start=1):
        found = {name: text[slice(*layout.fields[name])].strip() for name in fields}
        if all(found[name] != "" and int(found[name]) == value for name, value in fields.items()):
            return number
    raise AssertionError("no such record in the synthetic census")


@pytest.mark.parametrize(
    ("file", "where", "changed", "field"),
    [
        ("UNIT.txt", {"FINAL_POP": 1, "VACS": 0, "RTYPE": 2}, {"CPLT": 1}, "HHT"),
        ("UNIT.txt", {"FINAL_POP": 1, "VACS": 0, "RTYPE": 2}, {"MULTG": 2}, "HHT"),
        ("UNIT.txt", {"FINAL_POP": 2, "VACS": 0, "RTYPE": 2}, {"PAOC": 3}, "HHT"),
        ("UNIT.txt", {"FINAL_POP": 2, "VACS": 0, "RTYPE": 2}, {"TEN": 0}, "TEN"),
        ("UNIT.txt", {"FINAL_POP": 2, "VACS": 0, "RTYPE": 2}, {"TEN": 5}, "TEN"),
        ("UNIT.txt", {"FINAL_POP": 2, "VACS": 0, "RTYPE": 2}, {"HHSEX": 0}, "HHSEX"),
        ("UNIT.txt", {"FINAL_POP": 1, "VACS": 0, "RTYPE": 2}, {"HHLDRAGE": 80, "P75": 0}, "HHLDRAGE"),
        ("UNIT.txt", {"FINAL_POP": 1, "VACS": 0, "RTYPE": 2}, {"HHLDRAGE": 9}, "HHLDRAGE"),
        ("PER.txt", {"RTYPE": 3, "RELSHIP": 20}, {"RELSHIP": 38}, "RELSHIP"),
        ("PER.txt", {"RTYPE": 5}, {"RELSHIP": 20}, "RELSHIP"),
        ("PER.txt", {"RTYPE": 3, "RELSHIP": 20}, {"QAGE": 14}, "QAGE"),
        ("PER.txt", {"RTYPE": 3}, {"QAGE": 116}, "QAGE"),
        ("PER.txt", {"RTYPE": 3}, {"QSEX": 3}, "QSEX"),
    ],
)
def test_what_contradicts_itself_is_told_by_line(
    made: Path, tmp_path: Path, file: str, where: dict[str, int], changed: dict[str, int], field: str
) -> None:
    layout = UNITS if file == "UNIT.txt" else PERSONS
    number = line_of(made / "cef", file, layout, **where)
    replaced(made / "cef", tmp_path / "cef", file, number, layout, changed)
    product = dhc_units() if file == "UNIT.txt" else dhc_persons()
    with pytest.raises((DataError, SchemaError)) as error:
        from_census(tmp_path / "cef", product)
    (finding,) = [each for each in error.value.findings if each.field == field]
    assert (finding.file, finding.line) == (file, number)


def test_every_type_of_household_is_read(tmp_path: Path) -> None:
    """One household of each of the 522 types, by the codes that the production's reader takes."""
    couples = ("married_opposite_sex", "married_same_sex", "cohabiting_opposite_sex", "cohabiting_same_sex")
    children = {"under6": 1, "6to17": 2, "both": 3, "none": 4}
    rows = []
    for k, kind in enumerate(HOUSEHOLD_TYPES):
        couple = couples.index(kind.couple) + 1 if kind.couple in couples else 5
        rows.append(
            line(
                UNITS, MAFID=100_000_001 + k, OIDTB=7_000, RTYPE=2, VACS=0, FINAL_POP=kind.size, TEN=3,
                HHSEX=1, HHLDRAGE=16, HHSPAN=1, HHRACE=1, CPLT=couple,
                HHT=1 if couple < 3 else 2 if kind.relatives else 4,
                MULTG=(kind.size > 2) * (1 + kind.multigenerational), PAOC=children[kind.own_children],
                PAC=children[kind.children], P18=int(kind.minor), P60=0, P65=0, P75=0,
            )
        )  # fmt: skip
    names = "OIDTABBLK|TABBLKST|TABBLKCOU|TABTRACTCE|TABBLKGRPCE|TABBLK"
    (tmp_path / "GRFC.txt").write_text(f"{names}\n7000|98|001|000100|1|1000\n")
    (tmp_path / "UNIT.txt").write_text("\n".join(rows) + "\n")
    histogram = from_census(tmp_path, dhc_units()).histogram
    types = dhc_units().schema.codes(histogram.cells)[6]
    assert sorted(types.tolist()) == list(range(522))
    assert histogram.total() == 522
