"""Microdata from published noisy measurements of DHC persons, tied to a redistricting release."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.dhc_measurements import MadeCounty

import opendas
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.custody.stamps import DEMONSTRATION_FRAME
from opendas.schema.dhc_persons import PL94_CELL
from opendas.schema.pl94 import pl94_persons

MADE = MadeCounty(3, people=(70, 45, 60, 40, 50))
BLOCKS = tuple(f"4400103010010{k:02d}" for k in range(1, 6))
AREAS = ("", "", "", "2415", "2415")
LEVELS = """levels = [
    { name = "state", prefix = 2 }, { name = "county", prefix = 5 }, { name = "tract", prefix = 11 },
    { name = "block_group", prefix = 12 }, { name = "block", prefix = 15 },
]
"""
RUN = """
[run]
product = "{product}"
[input]
reader = "records"
path = "{product}.parquet"
units = {{ path = "frame.csv" }}
[geography]
spine = "{spine}"
frame = "frame.csv"
{levels}
[budget]
preset = "pr2020-{persons}"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two releases of five blocks, two of them in an American Indian area, and the second one's export."""
    folder = tmp_path_factory.mktemp("dhc")
    tied = MADE.product.workload.group(PL94_CELL)
    blocks = np.repeat(BLOCKS, [len(cells) for cells in MADE.blocks])
    cells = np.concatenate(MADE.blocks)
    for product, own in ((MADE.product, cells), (pl94_persons(), tied.row_of_cell[cells])):
        codes = dict(zip(product.schema.names, product.schema.codes(own), strict=True))
        pq.write_table(pa.table({"geocode": blocks, **codes}), folder / f"{product.name}.parquet")
    names = ["geocode", "hu", *(f"gq{k}" for k in range(1, 8)), "cousub", "place", "aianhh", "sduni"]
    lines = [",".join(names)]
    for code, people, area in zip(BLOCKS, MADE.blocks, AREAS, strict=True):
        kinds = np.unique(pl94_persons().schema.codes(tied.row_of_cell[people])[0])
        quarters = ",".join(str(int(kind in kinds)) for kind in range(1, 8))
        lines.append(f"{code},{len(people)},{quarters},44001,11111,{area},00030")
    (folder / "frame.csv").write_text("\n".join(lines) + "\n")
    for product, spine, persons in (
        ("pl94-persons", "standard", "persons"),
        ("dhc-persons", "dhc", "dhc-persons"),
    ):
        text = RUN.format(product=product, spine=spine, levels=LEVELS, persons=persons)
        if product == "dhc-persons":
            text += '[tie]\nrelease = "pl94"\n'
        (folder / f"{product}.toml").write_text(text)
        run = opendas.load(folder / f"{product}.toml")
        opendas.release(run, folder / product[:-8], measurements="full")
    opendas.export_measurements(folder / "dhc", folder / "nmf")
    return folder


def microdata(out: Path) -> dict[str, bytes]:
    folder = out / "release" / "mdf"
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.parquet")}


def estimate(*words: object) -> int:
    return guarded(cli, ["estimate", "--from-nmf", *map(str, words)])


def test_own_measurements_give_own_microdata(made: Path, tmp_path: Path) -> None:
    spine = opendas.load(made / "dhc-persons.toml").spine
    assert spine.names[2:5] == ("prim", "tract_subset_group", "tract_subset")
    assert [len(level) for level in spine.levels[:2]] == [2, 2]  # in the area and outside
    out = tmp_path / "out"
    assert estimate(made / "nmf" / "dhc-persons", "--tie", made / "pl94", "--to", out) == 0
    assert microdata(out) == microdata(made / "dhc") != {}
    release, own = opendas.Release(out), opendas.Release(made / "dhc")
    assert [check.name for check in release.verify(rederive=True) if not check.ok] == []
    (run,), (theirs,) = release.certificate["runs"], own.certificate["runs"]
    assert (run["plan_digest"], run["rho"], run["invariants"]) == (
        theirs["plan_digest"],
        theirs["rho"],
        theirs["invariants"],
    )
    assert run["published"]["name"] == "dhc-persons"
    assert "this release adds no loss" in run["guarantee"]
    assert "agree with an earlier release, of pl94-persons" in run["guarantee"]
    assert run["key"] == "none: published measurements"
    opendas.export_measurements(out, tmp_path / "again")
    for path in (made / "nmf").rglob("*.parquet/**/*.parquet"):
        again = tmp_path / "again" / path.relative_to(made / "nmf")
        assert pq.read_table(path, partitioning=None).equals(pq.read_table(again, partitioning=None))


Rows = dict[str, list]
Change = Callable[[Rows], None]


def changed(folder: Path, level: str, kind: str, change: Change) -> None:
    """Change the first part of a geolevel; values are arrays."""
    path = min((folder / f"{level}.parquet" / kind).rglob("*.parquet"))
    table = pq.read_table(path, partitioning=None)
    rows = {name: table[name].to_pylist() for name in table.column_names if name != "value"}
    rows["value"] = [values.values.to_numpy() for values in table["value"]]
    change(rows)
    offsets = np.cumsum([0, *map(len, rows["value"])]).astype(np.int32)
    values = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(rows["value"])))
    rows["value"] = values.cast(table.schema.field("value").type)
    pq.write_table(pa.table({name: rows[name] for name in table.column_names}, table.schema), path)


def twice(rows: Rows) -> None:
    for values in rows.values():
        values.append(values[0])


def without_one(rows: Rows) -> None:
    for values in rows.values():
        values.pop()


def cut(rows: Rows) -> None:
    row = rows["query_name"].index("sex * hispanic_dpq")
    rows["value"][row] = rows["value"][row][:3]


def louder(rows: Rows) -> None:
    rows["variance"] = [2 * variance for variance in rows["variance"]]


def other_people(rows: Rows) -> None:
    """The same codes, queries and noise, of 4,000 more people in each geounit."""
    for row, name in enumerate(rows["query_name"]):
        if name in ("sex * hispanic_dpq", "popSehsdTargetsRelship_dpq"):
            rows["value"][row] = rows["value"][row] + 4000 // len(rows["value"][row])


def moved(rows: Rows) -> None:
    """Blocks under codes that are those of no block group."""
    rows["geocode"] = [code[:-17] + "9" + code[-16:] for code in rows["geocode"]]


FAULTS = {
    "duplicated geounits": ("Block", "DPQuery", twice, "is there twice with query", ""),
    "an answer is missing": ("Block", "DPQuery", without_one, "a part of the file is missing", ""),
    "a query cut off": ("Block", "DPQuery", cut, "3 values in query 'sex * hispanic', expected 4", ""),
    "another spine": ("Block", "DPQuery", moved, "is below no geounit of Block_Group.parquet", ""),
    "another census": ("Block", "DPQuery", other_people, "standard deviations, more than chance", ""),
    "other variances": ("Block", "DPQuery", louder, "cannot come from one budget", "warned"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_a_file_are_named_and_nothing_stays(
    made: Path, tmp_path: Path, fault: str, capsys, caplog
) -> None:
    level, kind, change, said, by_intervals = FAULTS[fault]
    nmf = tmp_path / "nmf"
    shutil.copytree(made / "nmf" / "dhc-persons", nmf)
    changed(nmf, level, kind, change)
    assert estimate(nmf, "--tie", made / "pl94", "--to", tmp_path / "out") == 3
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()
    asked = ["interval", str(nmf), "--query", "sex * hispanic", "--geolevel", "block"]
    assert guarded(cli, asked) == (0 if by_intervals else 3)
    assert said in (caplog.text if by_intervals else " ".join(capsys.readouterr().err.split()))


def test_totals_that_the_measurements_contradict(made: Path, tmp_path: Path, capsys) -> None:
    nmf, totals = tmp_path / "nmf", tmp_path / "totals.csv"
    shutil.copytree(made / "nmf" / "dhc-persons", nmf)
    totals.write_text(f"GEOID,P0010001\n44,{sum(MADE.people) + 500}\n")
    shutil.rmtree(nmf / "State.parquet" / "Constraint")
    asked = [nmf, "--totals", totals, "--tie", made / "pl94", "--to", tmp_path / "out"]
    assert estimate(*asked) == 3
    assert "standard deviations away" in " ".join(capsys.readouterr().err.split())
    totals.write_text(f"GEOID,P0010001\n44,{sum(MADE.people) + 1}\n")
    assert estimate(*asked) == 3
    assert "has other totals than the invariant" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_units_of_a_stamped_release_are_stamped_here_too(made: Path, tmp_path: Path) -> None:
    """The tied release found its group quarters in the records: what is made with them says so."""
    lines = [line.split(",") for line in (made / "frame.csv").read_text().splitlines()]
    (tmp_path / "bare.csv").write_text("\n".join(",".join([one[0], *one[9:]]) for one in lines) + "\n")
    text = (made / "pl94-persons.toml").read_text().replace('units = { path = "frame.csv" }\n', "")
    text = text.replace("frame.csv", "bare.csv").replace('path = "', f'path = "{made}/')
    (tmp_path / "pl94.toml").write_text(text)
    opendas.release(opendas.load(tmp_path / "pl94.toml"), tmp_path / "pl94")
    nmf = made / "nmf" / "dhc-persons"
    assert estimate(nmf, "--tie", tmp_path / "pl94", "--to", tmp_path / "out") == 0
    release = opendas.Release(tmp_path / "out")
    (run,) = release.certificate["runs"]
    assert run["stamps"] == opendas.Release(tmp_path / "pl94").certificate["stamps"] == [DEMONSTRATION_FRAME]
    assert run["domain"]["units"] == "from-records"
    assert [check.name for check in release.verify() if not check.ok] == []


def test_ties_that_are_refused(made: Path, tmp_path: Path, capsys) -> None:
    nmf = made / "nmf" / "dhc-persons"
    opendas.export_measurements(made / "pl94", tmp_path / "pl")

    def refused(code: int, *words: object) -> str:
        assert estimate(*words, "--to", tmp_path / "out") == code
        assert not (tmp_path / "out").exists()
        return " ".join(capsys.readouterr().err.split())

    assert "give one with --tie" in refused(2, nmf)
    assert "knows no counts of an earlier release" in refused(
        2, nmf, "--tie", made / "pl94", "--estimator", "informed"
    )
    pl = tmp_path / "pl" / "pl94-persons"
    assert "agrees with a redistricting release" in refused(2, pl, "--tie", made / "pl94")
    opendas.release(opendas.load(made / "pl94-persons.toml"), tmp_path / "seeded", seed=1)
    said = refused(4, nmf, "--tie", tmp_path / "seeded")
    assert "its noise can be computed by others" in said
    assert "give this run a seed" not in said, "published measurements take none"
