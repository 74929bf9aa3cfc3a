"""Microdata from published noisy measurements: those of the run that measured, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import opendas
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.custody.stamps import NOT_FOR_RELEASE
from opendas.demo import write_demo
from opendas.demo.nation import write_nation
from opendas.errors import ConfigError, FormatError, GeographyError, PrivacyError

SPINES = ("standard", "aian", "narrow")
"""The last with American Indian areas, too, and noise much narrower than one count."""


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, Path]:
    """Runs of a made state on two spines, persons and units, with their measurements exported."""
    found = {}
    for spine in SPINES:
        folder = found[spine] = tmp_path_factory.mktemp(spine)
        for path in write_demo(folder, 60):
            name = spine if spine in ("standard", "aian") else "aian"
            text = path.read_text().replace('spine = "standard"', f'spine = "{name}"')
            rho = '[budget]\nrho = "60"\n'
            path.write_text(text.replace("[budget]\n", rho) if spine == "narrow" else text)
            opendas.release(opendas.load(path), folder / "out", seed=1, measurements="full")
        opendas.export_measurements(folder / "out", folder / "nmf")
        (folder / "nmf" / "STAMPS").rename(folder / "STAMPS")  # published files of the Bureau have none
    return found


def test_stamps_of_a_release_stand_beside_what_has_no_place_for_them(
    made: dict[str, Path], tmp_path: Path
) -> None:
    """The noise of these runs came from a seed: anyone could take it away."""
    out = made["standard"] / "out"
    opendas.export_microdata(out, tmp_path / "ppmf")
    for exported in (made["standard"], tmp_path / "ppmf"):
        said = (exported / "STAMPS").read_text().splitlines()
        assert said == [f"pl94-{name}: {NOT_FOR_RELEASE}" for name in ("persons", "units")]


def test_stamps_beside_measurements_go_with_what_is_made_of_them(
    made: dict[str, Path], tmp_path: Path, capsys
) -> None:
    """What is made of measurements whose noise anyone can take away is stamped like them."""
    nmf, out = tmp_path / "nmf" / "pl94-persons", tmp_path / "out"
    shutil.copytree(made["standard"] / "nmf" / "pl94-persons", nmf)
    shutil.copy(made["standard"] / "STAMPS", nmf.parent)
    opendas.estimate_published([nmf], out)
    release = opendas.Release(out)
    assert release.certificate["runs"][0]["stamps"] == [NOT_FOR_RELEASE]
    assert all(total["unbounded"] for total in release.certificate["totals"])
    assert [check.name for check in release.verify() if not check.ok] == ["stamps"]
    assert all(check.ok for check in release.verify(allow_seeded=True, rederive=True))
    assert guarded(cli, ["publish", str(out), f"file://{tmp_path}/there"]) == 1
    assert guarded(cli, ["estimate", "--from-nmf", str(nmf), "--to", str(nmf / "State.parquet" / "out")]) == 2
    assert "lies in a folder of noisy measurements" in capsys.readouterr().err
    assert not (nmf / "State.parquet" / "out").exists()
    with (nmf.parent / "STAMPS").open("a") as file:
        file.write("pl94-persons: FINE\n")
    assert guarded(cli, ["estimate", "--from-nmf", str(nmf), "--to", str(tmp_path / "more")]) == 3
    assert "STAMPS, line 3: expected a product" in capsys.readouterr().err
    assert not (tmp_path / "more").exists()


def microdata(out: Path) -> dict[str, bytes]:
    folder = out / "release" / "mdf"
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.parquet")}


@pytest.mark.parametrize("spine", SPINES)
def test_own_measurements_give_own_microdata(
    made: dict[str, Path], tmp_path: Path, capsys, spine: str
) -> None:
    folder, out = made[spine], tmp_path / "out"
    if spine == "narrow":
        for name in ("pl94-persons", "pl94-units"):
            assert guarded(cli, ["nmf", str(folder / "nmf" / name), "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["rho"] == pytest.approx(60, rel=1e-6)
    files = [str(folder / "nmf" / name) for name in ("pl94-persons", "pl94-units")]
    assert guarded(cli, ["estimate", "--from-nmf", *files, "--to", str(out), "--json"]) == 0
    assert microdata(out) == microdata(folder / "out") != {}
    checks = opendas.Release(out).verify(rederive=True)
    assert [check.name for check in checks if not check.ok] == []
    here, there = (
        [run["plan_digest"] for run in opendas.Release(each).certificate["runs"]]
        for each in (out, folder / "out")
    )
    assert here == there
    for name in ("pl94-persons", "pl94-units"):
        for path in (folder / "out" / "release" / "measurements" / name).glob("*.parquet"):
            if path.stem in ("spine", "constraints"):
                continue
            ours, theirs = (
                pq.read_table(root / "release" / "measurements" / name / path.name)
                for root in (out, folder / "out")
            )
            assert ours.equals(theirs)


@pytest.mark.parametrize("estimator", ["informed", "posterior"])
def test_other_estimators(made: dict[str, Path], tmp_path: Path, estimator: str) -> None:
    """The estimators of the whole tree give what they gave the run that measured."""
    folder = made["standard"]
    path = tmp_path / "persons.toml"
    text = (folder / "persons.toml").read_text().replace("[run]\n", f'[run]\nestimator = "{estimator}"\n')
    path.write_text(text)
    for name in ("persons.parquet", "frame.parquet"):
        shutil.copy(folder / name, tmp_path / name)
    opendas.release(opendas.load(path), tmp_path / "own", seed=1, measurements="full")
    opendas.estimate_published([folder / "nmf" / "pl94-persons"], tmp_path / "out", estimator=estimator)
    assert microdata(tmp_path / "out") == microdata(tmp_path / "own") != {}


@pytest.fixture(scope="module")
def estimated(made: dict[str, Path], tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("borrowed") / "out"
    nmf, frame = made["standard"] / "nmf" / "pl94-persons", made["standard"] / "frame.parquet"
    opendas.estimate_published([nmf], out, frame=[frame])
    return out


def test_the_certificate_says_whose_measurements_these_are(estimated: Path, made: dict[str, Path]) -> None:
    certificate = json.loads((estimated / "release" / "certificate.json").read_text())
    (run,) = certificate["runs"]
    nmf = made["standard"] / "nmf" / "pl94-persons"
    listed = (estimated / "release/measurements/pl94-persons/published.sha256").read_text().splitlines()
    assert run["published"]["files"] == len(listed) == len(list(nmf.glob("*/**/*.parquet")))
    assert sorted(line.split("  ")[1] for line in listed) == sorted(
        path.relative_to(nmf).as_posix() for path in nmf.glob("*/**/*.parquet")
    )
    assert run["key"] == "none: published measurements"
    assert run["budget"]["source"] == "published variances: the preset pr2020-persons"
    assert "was spent by them" in run["guarantee"]
    assert "adds no loss" in run["guarantee"]
    assert "secret key" not in run["guarantee"]
    assert certificate["account"]["acts"] == 0
    assert certificate["account"]["places"] == {}
    own = json.loads((made["standard"] / "out" / "release" / "certificate.json").read_text())["runs"][0]
    assert run["rho"] == own["rho"]
    assert run["rows"] == own["rows"]
    assert not list((estimated / "confidential" / "keys").iterdir())
    assert (estimated / "ledger.jsonl").read_text() == ""


def test_verify_finds_another_list_of_files(estimated: Path, tmp_path: Path) -> None:
    shutil.copytree(estimated / "release", tmp_path / "release")
    path = tmp_path / "release/measurements/pl94-persons/published.sha256"
    path.write_text(path.read_text().replace("State=", "Other="))
    checks = {check.name: check for check in opendas.Release(tmp_path / "release").verify()}
    assert not checks["pl94-persons: published files"].ok


def test_what_follows_a_release_works_on_it(estimated: Path, made: dict[str, Path], tmp_path: Path) -> None:
    own = opendas.Release(made["standard"] / "out")
    release = opendas.Release(estimated)
    for table in ("P1", "P4"):
        one, two = (each.table(table, geolevel="block").to_pandas() for each in (own, release))
        assert one.equals(two)
        assert one["P0010001"].sum() == two["P0010001"].sum() if table == "P1" else True
    one, two = (each.intervals("votingage", geolevel="county").to_pandas() for each in (own, release))
    assert np.allclose(one["estimate"], two["estimate"])
    opendas.export_measurements(estimated, tmp_path / "again")
    first = made["standard"] / "nmf" / "pl94-persons"
    for path in first.rglob("*.parquet"):
        again = tmp_path / "again" / "pl94-persons" / path.relative_to(first)
        assert pq.read_table(path, partitioning=None).equals(pq.read_table(again, partitioning=None))


def test_it_goes_on_and_returns_its_result(made: dict[str, Path], tmp_path: Path, monkeypatch) -> None:
    """After the measurements are read, an estimate that was interrupted needs the same command."""
    from opendas.runs.borrowed import taking

    nmf, out = made["standard"] / "nmf" / "pl94-persons", tmp_path / "out"

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(taking, "estimate", stop)
        with pytest.raises(KeyboardInterrupt):
            opendas.estimate_published([nmf], out)
    opendas.estimate_published([nmf], out)
    first = microdata(out)
    own = microdata(made["standard"] / "out")
    assert first == {name: data for name, data in own.items() if name.startswith("persons")} != {}
    with pytest.raises(ConfigError, match="--resume"):
        opendas.estimate_published([nmf], out)
    opendas.estimate_published([nmf], out, resume=True)
    with pytest.raises(PrivacyError, match="other measurements"):
        opendas.estimate_published([made["aian"] / "nmf" / "pl94-persons"], out)
    assert microdata(out) == first


Change = Callable[[pa.Table], pa.Table]


def changed(folder: Path, level: str, kind: str, change: Change) -> None:
    (path,) = (folder / f"{level}.parquet" / kind).rglob("*.parquet")
    table = pq.read_table(path, partitioning=None)
    pq.write_table(change(table), path)


def column(table: pa.Table, name: str, values: list) -> pa.Table:
    place = table.column_names.index(name)
    return table.set_column(place, name, pa.array(values, table.schema.field(name).type))


def without_first(table: pa.Table) -> pa.Table:
    code = table.column("geocode")[0]
    return table.filter(pa.compute.not_equal(table.column("geocode"), code))


def without_total(table: pa.Table) -> pa.Table:
    return table.filter(pa.compute.not_equal(table["query_name"], "total_con"))


def cut(table: pa.Table) -> pa.Table:
    values = table.column("value").to_pylist()
    last = max(range(len(values)), key=lambda i: len(values[i]))
    values[last] = values[last][:-1]
    return column(table, "value", values)


def other_units(table: pa.Table) -> pa.Table:
    values, names = table.column("value").to_pylist(), table.column("query_name").to_pylist()
    row = next(i for i, name in enumerate(names) if name == "hhgq_total_ub_con")
    values[row] = [values[row][0] + 1, *values[row][1:]]
    return column(table, "value", values)


def louder(table: pa.Table) -> pa.Table:
    return column(table, "variance", [2 * v for v in table.column("variance").to_pylist()])


def elsewhere(table: pa.Table) -> pa.Table:
    codes = table.column("geocode").to_pylist()
    return column(table, "geocode", [code[:-17] + "9" + code[-16:] for code in codes])


FAULTS = {
    "another spine": ("Block", "DPQuery", elsewhere, "is below no geounit of Block_Group.parquet"),
    "a part is missing": (
        "Block_Group",
        "DPQuery",
        without_first,
        "a part of its measurements may be missing",
    ),
    "duplicated geounits": ("County", "DPQuery", lambda t: pa.concat_tables([t, t]), "appears twice"),
    "a query cut off": ("Block", "DPQuery", cut, "values in query"),
    "other variances": (
        "Tract",
        "DPQuery",
        louder,
        "not those of the preset pr2020-persons",
    ),
    "bounds of no units": ("Block", "Constraint", other_units, "for each of its units"),
    "no bounds": ("Block", "Constraint", lambda t: t.slice(0, 0), "for each of its units"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_a_file_are_named_and_nothing_stays(made, tmp_path: Path, fault: str, capsys) -> None:
    level, kind, change, said = FAULTS[fault]
    shutil.copytree(made["standard"] / "nmf" / "pl94-persons", tmp_path / "nmf")
    changed(tmp_path / "nmf", level, kind, change)
    if fault == "other variances":  # all of a level: another budget, and no fault unless one is stated
        options = ["--budget", "pr2020-persons"]
    else:
        options = []
    command = ["estimate", "--from-nmf", str(tmp_path / "nmf"), "--to", str(tmp_path / "out"), *options]
    assert guarded(cli, command) == 3
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def moved(table: pa.Table) -> pa.Table:
    """Give each block the answers of another one: as measured on another hierarchy."""
    values = table.column("value").to_pylist()
    names = table.column("query_name").to_pylist()
    rows = [i for i, name in enumerate(names) if name in ("total_dpq", "detailed_dpq")]
    for i in rows:
        values[i] = [value + 40 for value in values[i]]
    return column(table, "value", values)


def test_measurements_that_differ_about_totals(made, tmp_path: Path) -> None:
    """Files of two censuses, or another spine: what lies below a geounit says something else than its own."""
    shutil.copytree(made["standard"] / "nmf" / "pl94-persons", tmp_path / "nmf")
    changed(tmp_path / "nmf", "Block", "DPQuery", moved)
    with pytest.raises(FormatError, match=r"differ about its total by more than [\d,]+ standard deviations"):
        opendas.estimate_published([tmp_path / "nmf"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_other_geography_and_a_file_without_blocks(made, tmp_path: Path) -> None:
    nmf, frame = made["standard"] / "nmf" / "pl94-persons", tmp_path / "frame.csv"
    frame.write_text("GEOID\n440010001001000\n")
    with pytest.raises(GeographyError, match="Give the geography of the same census"):
        opendas.estimate_published([nmf], tmp_path / "out", frame=[frame])
    shutil.copytree(nmf, tmp_path / "nmf")
    shutil.rmtree(tmp_path / "nmf" / "Block.parquet" / "DPQuery")
    with pytest.raises(FormatError, match="no block was measured"):
        opendas.estimate_published([tmp_path / "nmf"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_blocks_alone_in_what_is_above_them(tmp_path: Path) -> None:
    """Their budget went up to it: no block was asked, and nothing is missing."""
    path, _ = write_demo(tmp_path, 50)
    old = pq.read_table(tmp_path / "frame.parquet")["GEOID"].to_pylist()
    new = {code: f"{code[:5]}{number:06d}1001" for number, code in enumerate(old, start=100)}
    for file in (tmp_path / "frame.parquet", tmp_path / "persons.parquet"):
        table = pq.read_table(file)
        pq.write_table(column(table, "GEOID", [new[code] for code in table["GEOID"].to_pylist()]), file)
    path.write_text(path.read_text().replace('spine = "standard"', 'spine = "optimized"'))
    opendas.release(opendas.load(path), tmp_path / "own", seed=1, measurements="full")
    opendas.export_measurements(tmp_path / "own", tmp_path / "nmf")
    nmf = tmp_path / "nmf" / "pl94-persons"
    (tmp_path / "nmf" / "STAMPS").unlink()
    assert not (nmf / "Block.parquet" / "DPQuery").exists()
    release = opendas.estimate_published([nmf], tmp_path / "out")
    assert microdata(tmp_path / "out") == microdata(tmp_path / "own") != {}
    assert all(check.ok for check in release.verify(rederive=True))


def test_one_state_of_two(made, tmp_path: Path) -> None:
    """A file of two states gives for one of them what the file of that state alone gives."""
    first, nmf = made["standard"] / "nmf" / "pl94-persons", tmp_path / "nmf"
    shutil.copytree(first, nmf)
    for path in sorted(first.glob("*/*/*/*.parquet")):
        table = pq.read_table(path, partitioning=None)
        codes = [code.replace("99", "44") for code in table.column("geocode").to_pylist()]
        other = nmf / path.relative_to(first).parent.parent / "State=044" / path.name
        other.parent.mkdir()
        pq.write_table(column(table, "geocode", codes), other)
    alone = opendas.estimate_published([nmf], tmp_path / "out", state="RI")
    assert {str(path)[:2] for path in (p.name for p in (tmp_path / "out/release/mdf").rglob("44*"))} == {"44"}
    assert all(check.ok for check in alone.verify(rederive=True))
    own = [path for name, path in microdata(made["standard"] / "out").items() if name.startswith("persons")]
    assert len(microdata(tmp_path / "out")) == len(own)


def test_several_states_with_american_indian_areas(tmp_path: Path, caplog) -> None:
    """Parts of a state hold its total together, and all totals tell that the nation is these states."""
    write_nation(tmp_path, 150, 3, states=2)
    own, nmf, frame = tmp_path / "own", tmp_path / "nmf", str(tmp_path / "frame.parquet")
    for product in ("persons", "units"):
        run = opendas.load(tmp_path / f"{product}.toml").with_(rho="1/2")
        parts = run.spine.levels[1].geocodes.tolist()
        assert parts.index(b"101") < parts.index(b"002")  # not in the order of published codes
        opendas.release(run, own, seed=1, measurements="full")
    opendas.export_measurements(own, nmf)
    (nmf / "STAMPS").unlink()
    people = opendas.Release(own).table("P1", geolevel="state").to_pandas()
    totals = tmp_path / "totals.csv"
    totals.write_text("GEOID,P0010001\n01,{}\n02,{}\n".format(*people["P0010001"]))
    asked = ["estimate", "--frame", frame, "--from-nmf", str(nmf / "pl94-units"), str(nmf / "pl94-persons")]
    assert guarded(cli, [*asked, "--totals", str(totals), "--to", str(tmp_path / "out")]) == 0
    assert microdata(tmp_path / "out") == microdata(own) != {}
    release = opendas.Release(tmp_path / "out")
    assert [check.name for check in release.verify(rederive=True) if not check.ok] == []
    assert {(run["product"], run["plan_digest"]) for run in release.certificate["runs"]} == {
        (run["product"], run["plan_digest"]) for run in opendas.Release(own).certificate["runs"]
    }
    files = opendas.NoisyFile(nmf / "pl94-persons", totals=totals)
    one, two = (
        each.intervals("votingage", geolevel="tract").to_pandas() for each in (files, opendas.Release(own))
    )
    assert np.allclose(one[["estimate", "variance"]], two[["estimate", "variance"]])
    assert "of 51 states" not in caplog.text
    assert guarded(cli, [*asked, "--to", str(tmp_path / "open")]) == 0  # its persons may be of more states
    assert "State.parquet has 2 of 51 states (with DC)" in caplog.text


def test_published_to_an_address(estimated: Path, tmp_path: Path) -> None:
    """No account has it: nothing is entered, and no truth was read by which it could have been chosen."""
    address = f"file://{tmp_path / 'there'}"
    assert guarded(cli, ["publish", str(estimated), address]) == 0
    assert opendas.Release(tmp_path / "there").certificate["runs"][0]["published"]["files"]


def test_a_budget_of_no_preset_is_told_to_nine_digits(made, tmp_path: Path) -> None:
    shutil.copytree(made["standard"] / "nmf" / "pl94-persons", tmp_path / "nmf")
    changed(tmp_path / "nmf", "Tract", "DPQuery", louder)
    release = opendas.estimate_published([tmp_path / "nmf"], tmp_path / "out")
    (run,) = release.certificate["runs"]
    assert run["budget"]["source"].endswith("rounded to nine digits")
    assert all(check.ok for check in release.verify(rederive=True))
    preset = 293764 / 114921
    assert float(Fraction(run["rho"])) == pytest.approx(preset * (1 - 772 / 4099 / 2), rel=1e-6)


def test_a_missing_geolevel_and_other_products(made, tmp_path: Path, capsys) -> None:
    nmf = tmp_path / "nmf"
    shutil.copytree(made["standard"] / "nmf" / "pl94-persons", nmf)
    shutil.rmtree(nmf / "Block.parquet")
    asked = ["estimate", "--to", str(tmp_path / "out"), "--from-nmf"]
    assert guarded(cli, [*asked, str(nmf)]) == 3
    assert "geolevel Block is missing" in capsys.readouterr().err
    assert guarded(cli, [*asked, str(tmp_path)]) == 2
    assert guarded(cli, [*asked, *[str(made["standard"] / "nmf" / "pl94-persons")] * 2]) == 2
    assert "appear twice" in capsys.readouterr().err
    assert guarded(cli, ["estimate", str(made["standard"] / "persons.toml"), "--state", "RI"]) == 2
    assert guarded(cli, ["estimate", "--from-nmf", str(nmf)]) == 2
    units = str(made["standard"] / "nmf" / "pl94-units")
    for name, said in (
        ("posterior", "invariant total@block"),
        ("block-by-block", "measurements of blocks alone"),
        ("topdwn", "topdwn"),
    ):
        assert guarded(cli, [*asked, units, "--estimator", name]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_persons_and_units_of_two_censuses(made, tmp_path: Path) -> None:
    """Both hold the housing units of each block exactly, the one in its bounds, the other as its totals."""
    nmf = tmp_path / "units"
    shutil.copytree(made["standard"] / "nmf" / "pl94-units", nmf)

    def one_more(table: pa.Table) -> pa.Table:
        return column(table, "value", [[v + 1 for v in row] for row in table.column("value").to_pylist()])

    changed(nmf, "Block", "Constraint", one_more)
    for level in ("State", "County", "Tract", "Block_Group"):
        changed(nmf, level, "Constraint", lambda table: table.slice(0, 0))
    with pytest.raises(FormatError, match="differ about the housing units of"):
        opendas.estimate_published([made["standard"] / "nmf" / "pl94-persons", nmf], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_totals_that_the_measurements_contradict(made, tmp_path: Path) -> None:
    totals = tmp_path / "totals.csv"
    nmf = tmp_path / "nmf"
    shutil.copytree(made["standard"] / "nmf" / "pl94-persons", nmf)
    changed(
        nmf, "State", "Constraint", lambda t: t.filter(pa.compute.not_equal(t["query_name"], "total_con"))
    )
    own = opendas.Release(made["standard"] / "out")
    people = int(own.table("P1", geolevel="state").to_pandas()["P0010001"].iloc[0])
    totals.write_text(f"GEOID,P0010001\n99,{people + 5000}\n")
    with pytest.raises(FormatError, match="standard deviations away"):
        opendas.estimate_published([nmf], tmp_path / "out", totals=totals)
    totals.write_text(f"GEOID,P0010001\n99,{people}\n")
    opendas.estimate_published([nmf], tmp_path / "out", totals=totals)
    assert {k: v for k, v in microdata(made["standard"] / "out").items() if "persons" in k} == microdata(
        tmp_path / "out"
    )
    dropped = opendas.estimate_published([nmf], tmp_path / "none")
    assert dropped.certificate["runs"][0]["dropped_invariants"] == ["total@state"]
    assert all(check.ok for check in dropped.verify(rederive=True))
