"""The readers of published and production microdata."""

from __future__ import annotations

import dataclasses
import gzip
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.data import shared_data
from support.dhc import beside
from support.mdf import write_mdf
from support.pl94_zip import write_csv

from opendas.comparison.sources import open_source
from opendas.errors import ConfigError, DataError, GeographyError, SchemaError
from opendas.files.mdf.writing import MdfFiles
from opendas.geography.frame import GQ_COLUMNS, Frame, official_codes
from opendas.readers import ReaderSpec, UnitsSpec, make_reader
from opendas.readers.microdata import public_microdata
from opendas.schema.dhc_persons import PL94_CELL, dhc_persons
from opendas.schema.dhc_units import dhc_units, dhc_units_tenvacgq
from opendas.schema.histogram import Histogram
from opendas.schema.pl94 import pl94_persons, pl94_units
from opendas.schema.product import Product

PLACE = ["TABBLKST", "TABBLKCOU", "TABTRACTCE", "TABBLKGRPCE", "TABBLK"]
HEAD = [*PLACE, "RTYPE", "GQTYPE_PL", "VOTING_AGE", "CENHISP", "CENRACE"]
ROW = ["98", "001", "000100", "1", "1000", "3", "0", "2", "1", "01"]


def persons_file(folder: Path, *rows: list[str], head: list[str] = HEAD) -> Path:
    return write_csv(folder / "p.csv", [list(head), *map(list, rows)])


def test_the_published_sample_reads_record_by_record() -> None:
    path = shared_data("ppmf_sample/ppmf_20210428_eps12-2_P_perry_al.csv.gz")
    data = make_reader(ReaderSpec("ppmf", (path,), pl94_persons())).read()
    assert data.histogram.total() == 10_588
    assert len(data.frame) == 511
    assert data.stamps == ("DEMONSTRATION FRAME",)
    assert data.declared == ("populated leaves",)
    slow: Counter[tuple[str, int]] = Counter()
    with gzip.open(path, "rt") as file:
        for line in list(file)[1:]:
            f = [value.strip('"') for value in line.strip().split(",")]
            cell = ((int(f[7]) * 2 + int(f[8]) - 1) * 2 + int(f[9]) - 1) * 63 + int(f[10]) - 1
            slow[f[1] + f[2] + f[3] + f[5], cell] += 1
    rows = np.repeat(np.arange(len(data.frame)), np.diff(data.histogram.indptr))
    fast = zip(rows.tolist(), data.histogram.cells.tolist(), data.histogram.counts.tolist(), strict=True)
    assert {(data.frame.geocodes[row].decode(), cell): count for row, cell, count in fast} == slow


def test_long_and_short_column_names_are_the_same(tmp_path: Path) -> None:
    short = [name.replace("TRACTCE", "TRACT").replace("GRPCE", "GRP") for name in HEAD]
    for head in (HEAD, short, ["VINTAGE", *short]):
        row = ROW if head[0] != "VINTAGE" else ["x", *ROW]
        data = make_reader(
            ReaderSpec("ppmf", (persons_file(tmp_path, row, head=head),), pl94_persons())
        ).read()
        assert data.frame.geocodes.tolist() == [b"980010001001000"]
        assert data.histogram.cells.tolist() == [126]


def test_units_give_the_frame(tmp_path: Path) -> None:
    rows = [["980010001001000", 2, 0], ["980010001001001", 0, 1], ["980010001001002", 0, 0]]
    units = write_csv(tmp_path / "u.csv", [["block", "hu", "gq5"], *rows])
    spec = ReaderSpec("ppmf", (persons_file(tmp_path, ROW),), pl94_persons(), units=UnitsSpec(units, "block"))
    data = make_reader(spec).read()
    assert len(data.frame) == 2
    assert (data.stamps, data.declared) == ((), ())
    assert [f.field for f in data.findings] == ["gq5"]  # a college without anybody
    with pytest.raises(DataError, match="gq5"):
        make_reader(dataclasses.replace(spec, strict=True)).read()
    outside = persons_file(tmp_path, [*ROW[:4], "1002", *ROW[5:]])
    with pytest.raises(GeographyError, match="frame holds"):
        make_reader(dataclasses.replace(spec, paths=(outside,))).read()
    for bad in ("98001000100100X", rows[0][0]):
        write_csv(units, [["block", "hu", "gq5"], *rows, [bad, 1, 0]])
        with pytest.raises(GeographyError) as caught:
            make_reader(spec).frame()
        assert [(f.file, f.line) for f in caught.value.findings] == [("u.csv", 5)], bad


def test_a_code_outside_its_list_is_told(tmp_path: Path) -> None:
    for column, value, kind, field in [
        (1, "1", GeographyError, "TABBLKCOU"),
        (2, "00010A", GeographyError, "block"),
        (3, "2", GeographyError, "TABBLKGRPCE"),
        (4, "100", GeographyError, "TABBLK"),
        (5, "2", SchemaError, "RTYPE"),
        (5, "5", SchemaError, "RTYPE"),
        (6, "8", SchemaError, "GQTYPE_PL"),
        (6, "1", SchemaError, "RTYPE"),
        (7, "0", SchemaError, "VOTING_AGE"),
        (8, "3", SchemaError, "CENHISP"),
        (9, "00", SchemaError, "CENRACE"),
        (9, "64", SchemaError, "CENRACE"),
        (9, "", SchemaError, "CENRACE"),
    ]:
        bad = [*ROW[:column], value, *ROW[column + 1 :]]
        with pytest.raises(kind) as caught:
            make_reader(ReaderSpec("ppmf", (persons_file(tmp_path, ROW, bad),), pl94_persons())).read()
        assert field in [f.field for f in caught.value.findings]


def made_frame() -> Frame:
    geocodes = np.array([b"980010001001000", b"980010001002000", b"980030001001000"])
    units = {"hu": np.array([5, 0, 2])} | {name: np.zeros(3, dtype=np.int64) for name in GQ_COLUMNS}
    units["gq7"] = np.array([1, 2, 0])
    return Frame(geocodes, official_codes(geocodes, "state"), "block", units)


@pytest.mark.parametrize("form", ["parquet", "pipe"])
@pytest.mark.parametrize("make", [pl94_persons, pl94_units])
def test_our_own_release_reads_back(tmp_path: Path, form: str, make: type) -> None:
    product = make()
    frame = made_frame()
    cells = [0, 2015, 7 * 252 + 130] if product.layout == "persons" else [0, 1, 0]
    rows = [0, 0, 1] if product.layout == "persons" else [0, 0, 2]
    counts = [4, 2, 3] if product.layout == "persons" else [3, 2, 2]
    shape = (3, product.schema.size)
    histogram = Histogram.from_entries(np.array(rows), np.array(cells), np.array(counts), shape=shape)
    folder = tmp_path / "mdf"
    write_mdf(folder, product, frame, histogram, fmt=form)
    paths = tuple(sorted(path for path in folder.iterdir() if path.is_file()))
    data = make_reader(ReaderSpec("mdf", paths, product)).read()
    populated = histogram.row_totals() > 0
    if product.layout == "units":
        populated |= frame.units["gq7"] > 0
        assert data.frame.units["hu"].tolist() == [5, 0, 2]
        assert data.frame.units["gq7"].tolist() == [0, 1, 0]
    assert data.frame.geocodes.tolist() == frame.geocodes[populated].tolist()
    assert data.histogram.cells.tolist() == histogram.cells.tolist()
    assert data.histogram.counts.tolist() == histogram.counts.tolist()


def test_other_products_need_another_reader(tmp_path: Path) -> None:
    product = dataclasses.replace(pl94_units(), name="other", schema=pl94_persons().schema)
    assert (
        make_reader(ReaderSpec("ppmf", (persons_file(tmp_path, ROW),), product)).read().histogram.total() == 1
    )
    wrong = dataclasses.replace(
        pl94_units(), name="other", schema=type(product.schema)(product.schema.attributes[:1])
    )
    with pytest.raises(ConfigError):
        make_reader(ReaderSpec("ppmf", (persons_file(tmp_path, ROW),), wrong)).read()


def dhc_file(folder: Path, kind: str, form: str) -> tuple[Path, dict[str, Histogram], Frame]:
    """Random records of the DHC in a published form, and what each product counts of them."""
    frame, rng = made_frame(), np.random.default_rng(5)
    if kind == "persons":
        product, companion = dhc_persons(), None
        cells = rng.choice(np.flatnonzero(product.possible), 400)
        counts = rng.integers(1, 4, 400)
        leaf = rng.integers(0, 3, 400)
        whole = Histogram.from_entries(leaf, cells, counts, shape=(3, product.schema.size))
        less = Histogram.from_entries(
            leaf, product.workload.group(PL94_CELL).row_of_cell[cells], counts, shape=(3, 2016)
        )
        known = {"dhc-persons": whole, "pl94-persons": less}
    else:
        product, size = dhc_units(), dhc_units().schema.size
        whole = Histogram.from_entries(
            rng.integers(0, 3, 400),
            rng.choice(np.flatnonzero(product.possible), 400),
            np.ones(400, dtype=np.int64),
            shape=(3, size),
        )
        companion = beside(rng, whole)
        leaf = np.repeat(np.arange(3), np.diff(companion.indptr))
        housing = companion.cells < 11
        less = Histogram.from_entries(
            leaf[housing],
            (companion.cells[housing] < 4).astype(np.int64),
            companion.counts[housing],
            shape=(3, 2),
        )
        known = {"dhc-units": whole, "dhc-units-tenvacgq": companion, "pl94-units": less}
    written = folder / "written"
    files = MdfFiles(
        written,
        product,
        frame,
        whole.take,
        "parquet" if form == "parquet" else "pipe",
        companion,
    )
    for file in files:
        file.write()
    if form in ("parquet", "pipe"):
        return written, known, frame
    texts = [path.read_text().splitlines() for path in sorted(written.iterdir())]
    rows = [line for lines in texts for line in lines if not line.startswith("#")]
    rows = [rows[0], *(line for line in rows if line != rows[0])]
    text = "\n".join(rows).replace("|", ",") + "\n"
    path = folder / "2020_ppmf.csv"
    path.write_text(text)
    if form == "zip":
        with zipfile.ZipFile(folder / "2020_ppmf.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(path, path.name)
        path = folder / "2020_ppmf.zip"
    return path, known, frame


@pytest.mark.parametrize("form", ["parquet", "pipe", "csv", "zip"])
@pytest.mark.parametrize("kind", ["persons", "units"])
def test_microdata_of_the_dhc_are_read_for_its_products_and_the_redistricting_ones(
    tmp_path: Path, kind: str, form: str
) -> None:
    path, known, frame = dhc_file(tmp_path, kind, form)
    files = tuple(sorted(path.iterdir())) if path.is_dir() else (path,)
    made = {"dhc-units-tenvacgq": dhc_units_tenvacgq(), "pl94-units": pl94_units()}
    made |= {"dhc-persons": dhc_persons(), "pl94-persons": pl94_persons(), "dhc-units": dhc_units()}
    for name, expected in known.items():
        data = make_reader(public_microdata(files, made[name])).read()
        assert data.frame.geocodes.tolist() == frame.geocodes.tolist()
        assert len(data.histogram.unlike(expected)) == 0, name
    assert {counts.product.name for counts in open_source(path).counts} == set(known) - {"dhc-units-tenvacgq"}


@pytest.mark.parametrize(
    ("kind", "column", "value", "product"),
    [
        ("persons", "QAGE", "116", dhc_persons),
        ("persons", "QAGE", "116", pl94_persons),
        ("persons", "GQTYPE", "107", pl94_persons),
        ("persons", "RTYPE", "5", dhc_persons),
        ("persons", "LIVE_ALONE", "0", dhc_persons),
        ("units", "TEN", "5", dhc_units),
        ("units", "VACS", "7", pl94_units),
        ("units", "HHSIZE", "0", dhc_units),
    ],
)
def test_codes_of_the_dhc_that_do_not_fit_are_told(
    tmp_path: Path, kind: str, column: str, value: str, product: Callable[[], Product]
) -> None:
    path, _, _ = dhc_file(tmp_path, kind, "csv")
    head, *rows = [line.split(",") for line in path.read_text().splitlines()]
    at = {name: place for place, name in enumerate(head)}
    line = next(
        number
        for number, row in enumerate(rows)
        if row[at["GQTYPE"]] == "000" and row[at["TEN" if kind == "units" else "RTYPE"]] != "0"
    )
    rows[line][at[column]] = value
    write_csv(path, [head, *rows])
    with pytest.raises(SchemaError) as caught:
        make_reader(public_microdata((path,), product())).read()
    assert {finding.line for finding in caught.value.findings} == {line + 2}
