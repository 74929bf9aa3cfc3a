"""Microdata from published noisy measurements of the DHC, tied to a redistricting release."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.dhc_measurements import MadeCounty

import opendas
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.custody.stamps import DEMONSTRATION_FRAME
from opendas.schema.dhc_persons import GQ_CODES, PL94_CELL
from opendas.schema.dhc_units import dhc_units
from opendas.schema.pl94 import pl94_persons

MADE = MadeCounty(3, people=(70, 45, 60, 40, 50))
BLOCKS = tuple(f"4400103010010{k:02d}" for k in range(1, 6))
AREAS = ("", "", "", "2415", "2415")
HOMES, OCCUPIED = 9, 4
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
units = {{ path = "{frame}.csv" }}
[geography]
spine = "{spine}"
frame = "{frame}.csv"
{levels}
[budget]
preset = "pr2020-{preset}"
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
        lines.append(f"{code},{HOMES},{quarters},44001,11111,{area},00030")
    (folder / "frame.csv").write_text("\n".join(lines) + "\n")
    run_both(folder, "persons", "frame", "dhc", "nmf")
    return folder


def run_both(folder: Path, kind: str, frame: str, out: str, nmf: str) -> None:
    """Run the redistricting product and the one of the DHC that is tied to it, and export the second."""
    for product, spine, to, preset, tie in (
        (f"pl94-{kind}", "standard", "pl94", kind, ""),
        (f"dhc-{kind}", "dhc", out, f"dhc-{kind}", '[tie]\nrelease = "pl94"\n'),
    ):
        text = RUN.format(product=product, spine=spine, levels=LEVELS, preset=preset, frame=frame) + tie
        (folder / f"{product}.toml").write_text(text)
        opendas.release(opendas.load(folder / f"{product}.toml"), folder / to, measurements="full")
    opendas.export_measurements(folder / out, folder / nmf)


@pytest.fixture(scope="module")
def with_units(made: Path) -> Path:
    """Also the units of these blocks, with the facilities that the people live in."""
    rng = np.random.default_rng(5)
    households = dhc_units()
    possible = np.flatnonzero(households.possible)[::9973]
    frame = (made / "frame.csv").read_text().splitlines()
    lines = [",".join([frame[0], *(f"gq{code}" for code in GQ_CODES)])]
    rows: list[dict[str, object]] = []
    for code, people, line in zip(BLOCKS, MADE.blocks, frame[1:], strict=True):
        relgq = MADE.product.schema.codes(people)[0]
        facilities = [int(18 + k in relgq) for k in range(len(GQ_CODES))]
        lines.append(",".join([line, *map(str, facilities)]))
        for cell in rng.choice(possible, OCCUPIED):
            own = dict(zip(households.schema.names, households.schema.codes(cell), strict=True))
            tenure = int(own["hhtenshort_3lev"])
            free = tenure == 2 and rng.random() < 0.3
            rows.append({"geocode": code, "tenvacgq": tenure + free, **own})
        others = [*rng.integers(4, 11, HOMES - OCCUPIED), *(11 + np.flatnonzero(facilities))]
        rows += [{"geocode": code, "tenvacgq": kind} for kind in others]
    (made / "types.csv").write_text("\n".join(lines) + "\n")
    names = ("tenvacgq", *households.schema.names)
    table = {name: pa.array([row.get(name) for row in rows], pa.int32()) for name in names}
    blocks = pa.array([row["geocode"] for row in rows])
    pq.write_table(pa.table({"geocode": blocks, **table}), made / "dhc-units.parquet")
    kind = np.array([row["tenvacgq"] for row in rows])
    homes = pa.table({"geocode": blocks, "occupancy": (kind < 4).astype(np.int32)})
    pq.write_table(homes.filter(pa.array(kind < 11)), made / "pl94-units.parquet")
    run_both(made, "units", "types", "dhc-units", "nmf-units")
    return made


def test_persons_and_both_histograms_of_units(with_units: Path, tmp_path: Path, capsys) -> None:
    """Units are the run's own; persons have the types of group quarters that the file of units tells."""
    out, nmf = tmp_path / "out", with_units / "nmf-units" / "dhc-units"
    tie = ("--tie", with_units / "pl94")
    assert estimate(with_units / "nmf" / "dhc-persons", nmf, *tie, "--to", out) == 0
    own_files = microdata(with_units / "dhc-units")
    assert {name: data for name, data in microdata(out).items() if name in own_files} == own_files != {}
    folder = out / "release" / "mdf" / "dhc-persons"
    people = pq.read_table(folder, columns=["TABBLK", "GQTYPE"], partitioning=None).to_pylist()
    found = {(row["TABBLK"], row["GQTYPE"]) for row in people if row["GQTYPE"] != "000"}
    assert found == {(block[-4:], kind) for block, kind in facilities()}
    release, own = opendas.Release(out), opendas.Release(with_units / "dhc-units")
    assert [check.name for check in release.verify() if not check.ok] == []
    units = [run for run in release.certificate["runs"] if run["product"] != "dhc-persons"]
    for run, theirs in zip(units, own.certificate["runs"], strict=True):
        for key in ("product", "plan_digest", "rho", "invariants"):
            assert run[key] == theirs[key]
        assert run["published"]["name"] == "dhc-units"
    opendas.export_measurements(out, tmp_path / "again", product="dhc-units")
    for path in nmf.rglob("*.parquet/**/*.parquet"):
        again = pq.read_table(tmp_path / "again" / "dhc-units" / path.relative_to(nmf), partitioning=None)
        assert pq.read_table(path, partitioning=None).equals(again)
        if "Constraint" in path.parts:
            rows = list(zip(*(again[name].to_pylist() for name in ("geocode", "query_name")), strict=True))
            assert len(set(rows)) == len(rows)
    budget = ["--budget", with_units / "dhc-units.toml"]
    assert estimate(nmf, *tie, *budget, "--to", out, "--resume") == 0
    capsys.readouterr()
    asked = ["interval", str(nmf), "--query", "tenvacgq", "--geolevel", "block", "--json"]
    assert guarded(cli, asked) == 0
    told = [row for row in json.loads(capsys.readouterr().out)["rows"] if row["cell"].startswith("gq")]
    assert {row["law"] for row in told} == {"exact"}
    there = {(row["geocode"], row["cell"][2:5]) for row in told if row["lower"] == row["upper"] == 1}
    assert there == facilities()
    assert sum(row["upper"] for row in told) == len(there)


def facilities() -> set[tuple[str, str]]:
    """Blocks and types of group quarters in which somebody lives."""
    codes = list(GQ_CODES)
    return {
        (block, codes[kind - 18])
        for block, cells in zip(BLOCKS, MADE.blocks, strict=True)
        for kind in MADE.product.schema.codes(cells)[0].tolist()
        if kind >= 18
    }


def test_units_that_are_refused(with_units: Path, tmp_path: Path, capsys) -> None:
    nmf = tmp_path / "nmf"
    shutil.copytree(with_units / "nmf-units" / "dhc-units", nmf)

    def refused(code: int, *words: object) -> str:
        assert estimate(nmf, *words, "--to", tmp_path / "out") == code
        assert not (tmp_path / "out").exists()
        return " ".join(capsys.readouterr().err.split())

    tie = ("--tie", with_units / "pl94")
    assert "must agree with a release of pl94-units. Give one with --tie" in refused(2)
    assert "cannot keep counts of an earlier release" in refused(2, *tie, "--estimator", "informed")
    assert "the variances are not those of the preset us2020-dhc-units" in refused(
        3, *tie, "--budget", "us2020-dhc-units"
    )
    changed(nmf, "Block", "DPQuery", cut_households)  # found after all units were written
    assert "values in query 'hisp * hhtenshort_2lev': found 1, expected 4" in refused(3, *tie)
    shutil.rmtree(nmf)
    shutil.copytree(with_units / "nmf-units" / "dhc-units", nmf)
    changed(nmf, "County", "Constraint", one_more)
    assert "exact numbers of housing units and group quarters are not the sums" in refused(3, *tie)
    for path in nmf.rglob("Constraint/**/*.parquet"):
        rows = pq.read_table(path, partitioning=None)
        pq.write_table(rows.filter(pc.not_equal(rows["query_name"], "gq_vect_con")), path)
    assert "gq_vect_con is missing, or missing for some block" in refused(3, *tie)


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


def one_more(rows: Rows) -> None:
    row = rows["query_name"].index("gq_vect_con")
    rows["value"][row] = rows["value"][row] + 1


def cut_households(rows: Rows) -> None:
    row = rows["query_name"].index("hisp * hhtenshort_2lev_dpq")
    rows["value"][row] = rows["value"][row][:1]


def other_totals(rows: Rows) -> None:
    row = rows["query_name"].index("pl94_con")
    rows["value"][row] = rows["value"][row] + np.eye(1, len(rows["value"][row]), dtype=np.int32)[0] * 500


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
    "duplicated geounits": ("Block", "DPQuery", twice, "appears twice with query", ""),
    "an answer is missing": ("Block", "DPQuery", without_one, "a part of the file is missing", ""),
    "a query cut off": ("Block", "DPQuery", cut, "values in query 'sex * hispanic': found 3, expected 4", ""),
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
    changed(nmf, "State", "Constraint", other_totals)
    asked = ["interval", str(nmf), "--query", "sex * hispanic", "--geolevel", "county"]
    assert guarded(cli, asked) == 3
    said = "and the exact total of it and the other parts of its area together differ"
    assert said in capsys.readouterr().err
    totals.write_text(f"GEOID,P0010001\n44,{sum(MADE.people) + 500}\n")
    shutil.rmtree(nmf / "State.parquet" / "Constraint")
    asked = [nmf, "--totals", totals, "--tie", made / "pl94", "--to", tmp_path / "out"]
    assert estimate(*asked) == 3
    assert "standard deviations away" in " ".join(capsys.readouterr().err.split())
    totals.write_text(f"GEOID,P0010001\n44,{sum(MADE.people) + 1}\n")
    assert estimate(*asked) == 3
    assert "has other counts than the invariant" in " ".join(capsys.readouterr().err.split())
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

    assert "Give one with --tie" in refused(2, nmf)
    assert "cannot keep counts of an earlier release" in refused(
        2, nmf, "--tie", made / "pl94", "--estimator", "informed"
    )
    pl = tmp_path / "pl" / "pl94-persons"
    assert "need not agree with a redistricting release" in refused(2, pl, "--tie", made / "pl94")
    opendas.release(opendas.load(made / "pl94-persons.toml"), tmp_path / "seeded", seed=1)
    said = refused(4, nmf, "--tie", tmp_path / "seeded")
    assert "its noise can be computed by others" in said
    assert "give this run a seed" not in said, "published measurements take none"
