from __future__ import annotations

import json
import shutil
import zipfile
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.mdf import write_mdf
from support.release_builder import add_product, issue_release

from opendas.custody.account import AccountFacts
from opendas.custody.folders import sha256_file
from opendas.errors import ConfigError
from opendas.files.mdf.reading import read_mdf
from opendas.geography.spine import Shares, Spine, SpineLevel
from opendas.report.certificate import issue
from opendas.report.guarantee import account_text
from opendas.schema.histogram import Histogram
from opendas.tables.tabulate import write_tables
from opendas.verify.files import check_machine, machine_names
from opendas.verify.release import verify_release


def failures(out, **kwargs):
    return {check.name: check.detail for check in verify_release(out, **kwargs) if not check.ok}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folders of finished releases, each built once."""
    return {"root": tmp_path_factory.mktemp("made")}


@pytest.fixture
def without_tables(persons, units, made, tmp_path):
    """A fresh copy of a release of persons and units."""
    if "microdata" not in made:
        folder = made["root"] / "microdata"
        made["facts"] = [add_product(folder / "release", example) for example in (persons, units)]
        shutil.copytree(folder, made["root"] / "uncertified")
        issue_release(folder / "release", made["facts"])
        made["microdata"] = folder
    return shutil.copytree(made["microdata"], tmp_path / "without tables")


@pytest.fixture
def out(without_tables, made, tmp_path):
    """The same with tables."""
    if "census" not in made:
        folder = made["root"] / "uncertified"
        for fmt in ("parquet", "csv", "pl94"):
            write_tables(folder, ["P1", "H1"], ["block"], fmt=fmt)
        write_tables(folder, ["hhgq"], ["county"])
        write_tables(folder, ["pl94-units:total"], ["block_group"], fmt="csv", confidence=Fraction(95, 100))
        issue_release(folder / "release", made["facts"])
        made["census"] = folder
    return shutil.copytree(made["census"], tmp_path / "out")


def relist(release):
    """Make the certificate list what is there now, as someone would who tampers with care."""
    path = release / "certificate.json"
    certificate = json.loads(path.read_text())
    for entry in certificate["files"]:
        file = release / entry["path"]
        entry["bytes"], entry["sha256"] = file.stat().st_size, sha256_file(file)
    rewrite(release, certificate)


def rewrite(release, certificate):
    old = sha256_file(release / "certificate.json")
    (release / "certificate.json").write_text(json.dumps(certificate))
    report = (release / "report.html").read_text()
    (release / "report.html").write_text(report.replace(old, sha256_file(release / "certificate.json")))


def certificate_of(release):
    return json.loads((release / "certificate.json").read_text())


def test_a_whole_release_passes(out):
    checks = verify_release(out)
    assert [check for check in checks if not check.ok] == []
    assert {check.name for check in checks} >= {
        "certificate", "files", "digests", "documents", "machine", "stamps", "products", "tables",
        "pl94-persons: budget", "pl94-persons: noise", "pl94-persons: plan", "pl94-persons: measurements",
        "pl94-persons: microdata", "pl94-persons: constraints", "pl94-units: units and people",
    }  # fmt: skip
    assert {check.detail for check in checks if check.name == "tables"} == {
        "7 tables, equal to counts of the microdata"
    }


def test_no_release_is_a_wrong_command(tmp_path):
    with pytest.raises(ConfigError, match="holds no release"):
        verify_release(tmp_path)


def test_a_flipped_byte_is_seen(out):
    path = out / "release" / "mdf" / "persons" / "44001.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    assert "mdf/persons/44001.parquet" in failures(out)["digests"]


def test_added_missing_and_linked_files_are_seen(out):
    release = out / "release"
    (release / "tables" / "notes.txt").write_text("hello")
    assert "tables/notes.txt" in failures(out)["files"]
    (release / "tables" / "notes.txt").unlink()
    (release / "mdf" / ".44001.parquet.partial").write_bytes(b"half")
    assert ".44001.parquet.partial" in failures(out)["files"]
    (release / "mdf" / ".44001.parquet.partial").unlink()
    path = release / "mdf" / "units" / "44003.parquet"
    path.rename(out / "elsewhere.parquet")
    found = failures(out)
    assert "missing: mdf/units/44003.parquet" in found["files"]
    assert "pl94-units: microdata" in found
    path.symlink_to(out / "elsewhere.parquet")
    assert set(failures(out)) == {"files"}


def test_missing_or_foreign_certificate_ends_the_checks(out):
    path = out / "release" / "certificate.json"
    for text in ('{"format": "x"}', "{", '{"format": NaN}', None):
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
        assert list(failures(out)) == ["certificate"]


def test_a_run_without_what_decides_the_checks_ends_them(without_tables):
    whole = certificate_of(without_tables / "release")
    for change in ({"declared": None}, {"declared": 5}, {"estimator": None}):
        certificate = json.loads(json.dumps(whole))
        certificate["runs"][0] |= change
        if None in change.values():
            del certificate["runs"][0][next(iter(change))]
        (without_tables / "release" / "certificate.json").write_text(json.dumps(certificate))
        assert list(failures(without_tables)) == ["certificate"], change


def test_certificate_changed_after_the_report_is_seen(out):
    certificate = certificate_of(out / "release")
    (out / "release" / "certificate.json").write_text(json.dumps(certificate))
    assert list(failures(out)) == ["documents"]


def test_damaged_files_fail_without_a_traceback(out):
    release = out / "release"
    for name in (
        "geography/pl94-persons.parquet",
        "measurements/pl94-units/spine.parquet",
        "measurements/pl94-persons/block.parquet",
        "measurements/pl94-persons/constraints.parquet",
        "mdf/units/44001.parquet",
        "tables/P1_block.parquet",
        "run/pl94-units.toml",
    ):
        path = release / name
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        found = failures(out)
        assert {"digests"} < set(found), name
        path.write_bytes(whole)
    assert failures(out) == {}


BUDGETS = {
    "geolevel share": (
        lambda run: run["budget"]["geolevels"].update(block="1/3000"),
        "budget",
        "geolevel shares sum to",
    ),
    "query share": (
        lambda run: run["budget"]["queries"]["county"].update(total="1/3"),
        "budget",
        "query shares sum to",
    ),
    "two geolevels exchanged": (
        lambda run: run["budget"]["geolevels"].update(state="5/15", block="1/15"),
        "noise",
        "product of its shares",
    ),
    "rho": (lambda run: run.update(rho="2"), "noise", "product of its shares"),
    "sigma2": (lambda run: run["rows"][3].update(sigma2=1.5), "noise", "does not match its loss"),
    "variance": (lambda run: run["rows"][3].update(variance=1.5), "noise", "variance or margin"),
    "margin": (lambda run: run["rows"][3].update(moe90=1), "noise", "variance or margin"),
    "geounits": (lambda run: run["geounits"].update(block=5), "noise", "those of the spine"),
    "row left out": (lambda run: run["rows"].pop(), "noise", "product of its shares"),
    "neighbours": (lambda run: run.update(neighbours="unbounded"), "noise", "does not match its loss"),
    "plan digest": (lambda run: run.update(plan_digest="0" * 64), "plan", "not the certified one"),
    "spine digest": (lambda run: run.update(spine_digest="0" * 64), "plan", "not the certified one"),
    "attribute loss": (
        lambda run: run["attributes"]["hhgq"].update(rho="1/1000"),
        "partial losses",
        "attribute hhgq",
    ),
    "loss within": (lambda run: run["within"]["tract"].update(rho="1/9"), "partial losses", "one tract"),
    "loss within an official tract": (
        lambda run: run["within_official"]["tract"]["median"].update(rho="1/9"),
        "losses within official areas",
        "official tract",
    ),
    "number above the spine": (
        lambda run: run["within_official"]["county"].update(above_spine=7),
        "losses within official areas",
        "official county",
    ),
    "no word of places": (
        lambda run: run["within_official"].pop("block_group"),
        "losses within official areas",
        "official block_group",
    ),
    "records": (lambda run: run.update(records=19), "microdata", "18 records"),
    "stored": (lambda run: run.update(measurements="used"), "measurements", "metadata"),
}


@pytest.mark.parametrize("name", sorted(BUDGETS))
def test_a_changed_certificate_is_seen_even_with_its_digest_mended(without_tables, name):
    change, check, words = BUDGETS[name]
    certificate = certificate_of(without_tables / "release")
    change(certificate["runs"][0])
    rewrite(without_tables / "release", certificate)
    found = failures(without_tables)
    assert words in found[f"pl94-persons: {check}"]
    assert "documents" not in found


def test_a_changed_total_is_seen(without_tables):
    out = without_tables
    for number in range(3):
        certificate = certificate_of(out / "release")
        original = certificate["totals"][number]["rho"]
        certificate["totals"][number]["rho"] = "1/2"
        rewrite(out / "release", certificate)
        assert "not the sum of the runs" in failures(out)["totals"]
        certificate["totals"][number]["rho"] = original
        rewrite(out / "release", certificate)
    assert failures(out) == {}
    certificate["totals"][0]["unbounded"] = True
    rewrite(out / "release", certificate)
    assert "every run has a finite loss" in failures(out)["totals"]


BOOK = {
    "book": True,
    "acts": 3,
    "places": {"pl94-persons": 1, "pl94-units": 3},
    "readings": 1,
    "head": "0" * 64,
    "unit": "person",
    "relation": "bounded",
    "change": "one person with the unit changes it induces",
    "limit": {"rho": "2000"},
    "spent": "1000",
}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({}, ""),
        ({"places": {"pl94-persons": 1, "pl94-units": 4}}, "do not match the products"),
        ({"places": {"pl94-persons": 1, "pl94-units": 1}}, "do not match the products"),
        ({"places": {"pl94-persons": 1, "other": 2}}, "do not match the products"),
        ({"places": {"pl94-persons": 1}}, "do not match the products"),
        ({"spent": "2001"}, "spent more than its limit"),
        ({"spent": "1/100"}, "less than the runs"),
        ({"surprise": 1}, "was changed"),
    ],
)
def test_what_is_said_of_the_account_agrees_with_itself(without_tables, changes, match):
    out = without_tables
    certificate = certificate_of(out / "release")
    account = {**BOOK, **changes}
    certificate["account"] = account
    certificate["scope"] = account_text(AccountFacts.from_dict({name: account[name] for name in BOOK}))
    rewrite(out / "release", certificate)
    found = failures(out)
    assert match in found.get("account", "")
    assert ("account" in found) is bool(match)
    certificate["scope"] = certificate["scope"].replace("1 time", "no time")
    rewrite(out / "release", certificate)
    assert "account" in failures(out)


def move(example, release, source, target, cell):
    """Write the microdata again with one record moved between blocks, and mend all digests."""
    rows = np.repeat(np.arange(example.estimate.rows), np.diff(example.estimate.indptr))
    counts = example.estimate.counts.copy()
    at = np.flatnonzero((rows == source) & (example.estimate.cells == cell))
    counts[at] -= 1
    changed = Histogram.from_entries(
        np.append(rows, target),
        np.append(example.estimate.cells, cell),
        np.append(counts, 1),
        shape=(example.estimate.rows, example.estimate.size),
    )
    write_mdf(release / "mdf" / example.product.layout, example.product, example.frame, changed)
    relist(release)


def test_what_was_checked_is_said_and_no_more(without_tables):
    details = {check.name: check.detail for check in verify_release(without_tables)}
    assert details["pl94-units: units and people"] == "unit rows of every block equal the frame"
    assert details["pl94-persons: constraints"].endswith(" rows, all held")


def test_a_person_moved_into_a_block_without_housing_is_seen(out, persons):
    cell = int(persons.estimate.cells[persons.estimate.counts == 5][0])
    move(persons, out / "release", 0, 5, cell)
    found = failures(out)
    assert "hhgq=household by hu does not hold in 44003020200" in found["pl94-persons: constraints"]
    assert "household people without a unit" in found["pl94-persons: units and people"]
    assert "P1_block" in found["tables"]
    assert "digests" not in found


def test_group_quarters_without_people_are_seen(out, persons):
    cell = int(persons.estimate.cells[persons.estimate.indptr[5]])
    move(persons, out / "release", 5, 3, cell)
    found = failures(out)
    assert "fewer than facilities" in found["pl94-persons: units and people"]
    assert "pl94-persons: constraints" in found


def test_a_unit_moved_between_blocks_is_seen(out, units):
    move(units, out / "release", 0, 1, 1)
    found = failures(out)
    assert "total@block does not hold" in found["pl94-units: constraints"]
    assert "housing-unit rows" in found["pl94-units: units and people"]


def test_a_dropped_record_is_seen(out):
    release = out / "release"
    path = release / "mdf" / "persons" / "44001.parquet"
    table = pq.read_table(path)
    pq.write_table(table.slice(0, len(table) - 1), path)
    relist(release)
    found = failures(out)
    assert "EPNUM" in found["pl94-persons: microdata"]
    assert "total@state does not hold" in found["pl94-persons: constraints"]


def test_an_illegal_code_is_seen(out):
    release = out / "release"
    path = release / "mdf" / "persons" / "44003.parquet"
    table = pq.read_table(path)
    column = table.column("CENRACE").to_pylist()
    changed = table.set_column(12, "CENRACE", pa.array(["64", *column[1:]]))
    pq.write_table(changed, path)
    relist(release)
    assert "CENRACE" in failures(out)["pl94-persons: microdata"]


def test_relaxed_bounds_on_file_are_seen(out):
    release = out / "release"
    path = release / "measurements" / "pl94-persons" / "constraints.parquet"
    metadata = pq.ParquetFile(path).metadata.metadata
    table = pq.read_table(path)
    upper = [[value + 1 for value in row] for row in table.column("upper").to_pylist()]
    position = table.schema.get_field_index("upper")
    table = table.set_column(position, "upper", pa.array(upper, pa.list_(pa.int64())))
    pq.write_table(table.replace_schema_metadata({b"opendas": metadata[b"opendas"]}), path)
    relist(release)
    assert "differs from the frame" in failures(out)["pl94-persons: declared constraints"]


def test_a_changed_variance_in_a_measurement_file_is_seen(out):
    release = out / "release"
    path = release / "measurements" / "pl94-persons" / "county.parquet"
    metadata = pq.ParquetFile(path).metadata.metadata
    table = pq.read_table(path)
    position = table.schema.get_field_index("variance")
    table = table.set_column(position, "variance", pa.array([1.0] * len(table)))
    pq.write_table(table.replace_schema_metadata({b"opendas": metadata[b"opendas"]}), path)
    relist(release)
    assert "a variance differs from the plan" in failures(out)["pl94-persons: measurements"]
    path.unlink()
    assert "not those of the geolevels with a budget" in failures(out)["pl94-persons: measurements"]


def test_a_changed_table_is_seen_in_every_format(out):
    release = out / "release"
    csv_path = release / "tables" / "P1_block.csv"
    text = csv_path.read_text()
    csv_path.write_text(text.replace(",5,", ",6,", 1))
    parquet_path = release / "tables" / "hhgq_county.parquet"
    metadata = pq.ParquetFile(parquet_path).metadata.metadata
    table = pq.read_table(parquet_path).slice(0, 1)
    pq.write_table(table.replace_schema_metadata({b"opendas": metadata[b"opendas"]}), parquet_path)
    zip_path = release / "tables" / "pl94_block" / "ri2020.pl.zip"
    with zipfile.ZipFile(zip_path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(zip_path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data.replace(b"|18|", b"|19|"))
    relist(release)
    found = failures(out)
    assert list(found) == ["tables"]
    for name in ("P1_block.csv", "hhgq_county.parquet", "ri2020.pl.zip"):
        assert name in found["tables"]


def test_run_file_with_another_budget_is_seen(out):
    release = out / "release"
    path = release / "run" / "pl94-persons.toml"
    path.write_text(path.read_text().replace('rho = "5/2"', 'rho = "7/2"'))
    relist(release)
    assert failures(out) == {
        "pl94-persons: plan": "run/pl94-persons.toml: its budget differs from the certificate's."
    }


def test_run_file_with_another_source_of_its_shares_is_seen(out):
    release = out / "release"
    path = release / "run" / "pl94-persons.toml"
    path.write_text(path.read_text().replace("[budget]\n", '[budget]\nsource = "a guess"\n'))
    relist(release)
    assert list(failures(out)) == ["pl94-persons: plan"]


def test_seeded_releases_fail_unless_allowed(persons, tmp_path):
    release = tmp_path / "release"
    issue_release(release, [add_product(release, persons, stamps=("NOT FOR RELEASE",), fmt="pipe")])
    assert list(failures(tmp_path)) == ["stamps"]
    assert failures(tmp_path, allow_seeded=True) == {}


def test_measured_only_and_own_products_pass(wards, tmp_path):
    release = tmp_path / "release"
    issue_release(release, [add_product(release, wards, estimated=False)])
    assert failures(tmp_path) == {}
    issue_release(release, [add_product(release, wards)])
    assert failures(tmp_path) == {}
    write_tables(tmp_path, ["age*broad", "total"], ["district"], fmt="csv")
    assert "tables/age+broad_district.csv" in failures(tmp_path)["files"]
    issue(release, version="0.0.test")
    assert failures(tmp_path) == {}


def test_a_table_keeps_its_name_when_another_product_comes(persons, units, tmp_path):
    release = tmp_path / "release"
    facts = add_product(release, persons)
    for fmt in ("csv", "parquet"):
        write_tables(tmp_path, ["total", "hhgq"], ["county"], fmt=fmt)
    issue_release(release, [facts])
    assert failures(tmp_path) == {}
    issue_release(release, [add_product(release, units)])
    assert failures(tmp_path) == {}


def test_spine_with_shares_of_its_own_passes(persons, tmp_path):
    codes = persons.frame.geocodes
    spine = Spine(
        (
            SpineLevel("state", np.array([b"44"]), np.zeros(1, np.int64)),
            SpineLevel("group", np.array([b"a", b"b"]), np.zeros(2, np.int64)),
            SpineLevel("block", codes, np.array([0, 0, 0, 0, 0, 1])),
        ),
        np.arange(6),
        (
            None,
            Shares.of([Fraction(1), Fraction(5, 2)], np.arange(2)),
            Shares.of([*(Fraction(1),) * 5, Fraction(0)], np.arange(6)),
        ),
    )
    release = tmp_path / "release"
    issue_release(release, [add_product(release, persons, spine=spine)])
    assert failures(tmp_path) == {}


@pytest.mark.parametrize(
    "text",
    [
        b'"path": "/home/someone/data"',
        b"C:\\Users\\someone\\ri.zip",
        b"made on builder-17.example",
        b"2026-01-31T10:11:12",
    ],
)
def test_traces_of_the_machine_are_seen(out, text):
    release = out / "release"
    path = release / "run" / "pl94-units.toml"
    path.write_bytes(path.read_bytes() + b"\n# " + text + b"\n")
    with pytest.raises(Exception, match=r"run/pl94-units.toml"):
        check_machine(release, ["builder-17"])


def test_names_of_the_machine_are_no_ordinary_words():
    assert all(len(name) >= 5 for name in machine_names())


def test_estimate_read_by_verify_is_what_was_written(out, persons):
    found = read_mdf(out / "release" / "mdf" / "persons", persons.product, persons.frame)
    assert np.array_equal(found.counts, persons.estimate.counts)


def test_compressed_data_that_look_like_a_path_are_none(tmp_path):
    chance = rb"$o</b,e*c*f'R/6p-X!/Y:\f\8elB>X /home/x1"
    (tmp_path / "certificate.pdf").write_bytes(b"%PDF-1.4\n<< >>\nstream\n" + chance + b"\nendstream\n")
    pq.write_table(
        pa.table({"a": [chance]}), tmp_path / "a.parquet", compression="none", write_statistics=False
    )
    assert check_machine(tmp_path, [])
    (tmp_path / "certificate.pdf").write_bytes(b"%PDF-1.4\n<< /Title (/home/someone/x) >>\n")
    with pytest.raises(Exception, match=r"certificate\.pdf"):
        check_machine(tmp_path, [])
