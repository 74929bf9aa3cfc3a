"""`opendas init table --rho`: a domain found privately, from the table to the totals of the certificate."""

from __future__ import annotations

import csv
import dataclasses
import json
import random
import shutil
import tomllib
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import opendas
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.custody.book_terms import BookTerms, rho_within
from opendas.custody.ledger import Ledger
from opendas.custody.ledger_entries import LedgerEntry
from opendas.errors import GeographyError, PrivacyError
from opendas.readers.counting.values import count_values
from opendas.report.certificate import issue, read_runs
from opendas.runs.starting import discovery
from opendas.schema.provenance import Domain, Provenance
from opendas.verify.release import verify_release

LONE = "Morbus Wilson (J. Smith)"
ASKED = ("--geography", "region,hospital,ward", "--attributes", "age,severity")


def rows(number: int = 2000, seed: int = 1) -> list[tuple[str, ...]]:
    """Patients of two regions; and few of a third, in a ward by themselves, with an illness of their own."""
    rng = random.Random(seed)
    found = []
    for _ in range(number):
        region = rng.choice(["north", "south"])
        hospital = f"{region[0].upper()}{rng.randint(1, 2)}"
        ward = f"{hospital}-{rng.choice('ab')}"
        found.append((region, hospital, ward, rng.choice(["adult", "child"]), rng.choice(["low", "high"])))
    found += [("west", "W1", "W1-a", "adult", "low")] * 3
    found += [("north", "N1", "N1-z", "adult", LONE), ("north", "N7", "N7-a", "old", "low")]
    found += [("", "", "", "", "")]
    return found


def write(folder: Path, patients: list[tuple[str, ...]]) -> Path:
    path = folder / "patients.csv"
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(
            [("region", "hospital", "ward", "age", "severity"), *patients]
        )
    return path


def init(folder: Path, *more: str, rho: str = "1/2") -> int:
    data = str(folder / "patients.csv")
    return guarded(cli, ["init", "table", data, "--rho", rho, "--to", str(folder), *ASKED, *more])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, its discovered domain and its release."""
    folder = tmp_path_factory.mktemp("found")
    write(folder, rows())
    assert init(folder, "--unit", "patient") == 0
    opendas.release(opendas.load(folder / "patients-run.toml"), out=folder / "out", workers=1)
    return folder


def test_what_one_record_alone_has_is_not_shown(found: Path) -> None:
    product = tomllib.loads((found / "patients-product.toml").read_text())
    assert product["attributes"] == {"age": ["adult", "child", "other"], "severity": ["high", "low", "other"]}
    assert product["product"]["provenance"] == "private"
    for path in found.rglob("*"):
        if path.is_file() and path.name != "patients.csv":
            assert b"Wilson" not in path.read_bytes(), path
            assert b"N1-z" not in path.read_bytes(), path


def test_the_release_needs_no_stamp_and_passes(found: Path) -> None:
    assert [check for check in verify_release(found / "out") if not check.ok] == []
    run = json.loads((found / "out" / "release" / "certificate.json").read_text())["runs"][0]
    assert run["stamps"] == []
    assert run["domain"]["labels"] == {"age": "private", "severity": "private"}
    assert (run["domain"]["levels"], run["domain"]["frame"]) == ("private", "private")
    assert "rho = 1/2 and delta = 1e-11 beside the loss of this run" in run["guarantee"]


def test_rho_and_delta_of_the_act_are_in_ledger_and_totals(found: Path) -> None:
    (act,) = Ledger.read(found / "patients-ledger.jsonl")
    assert (act.loss, act.delta, act.protected_unit) == (Fraction(1, 2), Fraction(1, 10**11), "patient")
    certificate = json.loads((found / "out" / "release" / "certificate.json").read_text())
    (total,) = certificate["totals"]
    assert (total["change"], total["rho"], total["runs"]) == ("one patient record", "3/2", 1)
    assert (total["discoveries"], total["discovery_delta"]) == (1, "1/100000000000")
    assert Fraction(total["delta_exact"]) == Fraction(1, 10**10) + Fraction(1, 10**11)
    alone = certificate["runs"][0]["epsilon"]["cks"]
    assert total["epsilon"]["cks"] == pytest.approx(opendas.account(rho="3/2").epsilon("cks"))
    assert total["epsilon"]["cks"] > alone


def test_every_record_has_a_place_and_the_others_are_with_their_unit(found: Path) -> None:
    run = opendas.load(found / "patients-run.toml")
    data = run.read()
    codes = [code.decode() for code in data.frame.geocodes]
    counted = {code: int(n) for code, n in zip(codes, data.histogram.row_totals(), strict=True) if n}
    truth = Counter(ward for _, _, ward, *_ in rows())
    expected = {ward: n for ward, n in truth.items() if n > 10}
    expected |= {"other:hospital:N1": 1, "other:region:north": 1, "other": 4}
    assert counted == expected
    assert data.histogram.total() == len(rows())
    assert data.findings == ()
    assert (tuple(data.frame.levels), data.frame.leaf) == (("all", "region", "hospital"), "ward")
    severity = run.product.schema.attribute("severity").levels
    cells = {}
    for row in range(len(codes)):
        for cell, n in enumerate(data.histogram.dense(row).tolist()):
            label = severity[cell % len(severity)]
            cells[label] = cells.get(label, 0) + n
    assert cells["other"] == 2  # the lone illness, and the empty row


def test_where_a_record_belongs_does_not_depend_on_other_records(found: Path, tmp_path: Path) -> None:
    """One record is replaced: one cell loses it, one gains it, whatever the record is."""
    run = opendas.load(found / "patients-run.toml")
    before = run.read().histogram
    patients = rows()
    for new in (
        ("east", "E1", "E1-a", "old", "?"),
        ("north", "N1", "", "", LONE),
        ("south", "N1", "N1-a", "adult", "low"),
        ("other:hospital:N1", "other", "other", "other", "other"),
        ("\x00", "é", " N1-a", "0", "1"),
    ):
        write(found, [new, *patients[1:]])
        after = run.read().histogram
        assert after.total() == before.total()
        changed = sum(
            abs(int(a) - int(b))
            for row in range(before.rows)
            for a, b in zip(before.dense(row), after.dense(row), strict=True)
        )
        assert changed in (0, 2)
    write(found, patients)


def test_a_changed_total_or_a_hidden_discovery_fails(found: Path, tmp_path: Path) -> None:
    release = tmp_path / "release"
    shutil.copytree(found / "out" / "release", release)
    facts = read_runs(release)[0]
    labels = dict.fromkeys(("age", "severity"), Provenance.CODE_BOOK)
    object.__setattr__(facts, "domain", Domain(labels, Provenance.PUBLIC, Provenance.PUBLIC))
    issue(release, (facts,), version="0.0.test")
    failed = {check.name: check.detail for check in verify_release(tmp_path) if not check.ok}
    assert "its provenance is not the certified one" in failed["patients: domain"]


def test_the_act_is_charged_before_it_draws_and_nothing_appears_if_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, rows(200))
    seen: list[int] = []

    def stops(*_: object) -> None:
        seen.append(len(Ledger.read(tmp_path / "patients-ledger.jsonl")))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(discovery, "discover", stops)
        assert init(tmp_path) == 130
    assert seen == [1]
    assert not (tmp_path / "patients-product.toml").exists()
    assert not (tmp_path / "patients-frame.csv").exists()
    assert len(Ledger.read(tmp_path / "patients-ledger.jsonl")) == 1
    (tmp_path / "patients-ledger.jsonl").write_text("no ledger\n")
    with monkeypatch.context() as patch:
        patch.setattr(discovery, "discover", pytest.fail)
        assert init(tmp_path) == 4
    assert not (tmp_path / "patients-product.toml").exists()


def test_files_that_are_there_are_refused_before_anything_is_charged(tmp_path: Path) -> None:
    write(tmp_path, rows(200))
    (tmp_path / "patients-frame.csv").write_text("mine")
    assert init(tmp_path) == 2
    assert not (tmp_path / "patients-ledger.jsonl").exists()


def test_a_book_holds_the_act_and_its_limit_refuses_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second discovery, in another folder and without naming the book, finds it by the data."""
    monkeypatch.setenv("OPENDAS_BOOKS", str(tmp_path / "books"))
    write(tmp_path, rows(500))
    book = tmp_path / "patients.book"
    terms = ["--limit-rho", "9/5", "--unit", "patient"]
    assert guarded(cli, ["ledger", "create", str(book), *terms]) == 0
    assert init(tmp_path, "--unit", "patient", "--ledger", str(book)) == 0
    assert not (tmp_path / "patients-ledger.jsonl").exists()
    (tmp_path / "again").mkdir()
    assert init(tmp_path, "--to", str(tmp_path / "again"), "--unit", "patient") == 0
    acts = Ledger.read(book)
    assert [act.loss for act in acts] == [Fraction(1, 2)] * 2
    assert acts[0].key_commitment != acts[1].key_commitment
    capsys.readouterr()
    assert guarded(cli, ["ledger", str(book), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(act["act"], act["delta"]) for act in told["acts"]] == [("discover", "1/100000000000")] * 2
    assert (told["spent"]["rho"], told["totals"][0]["delta"]) == ("1", "1/50000000000")
    files = [tomllib.loads((tmp_path / name / "patients-run.toml").read_text()) for name in (".", "again")]
    assert files[0]["geography"]["discovery"]["act"] != files[1]["geography"]["discovery"]["act"]
    assert guarded(cli, ["run", str(tmp_path / "patients-run.toml"), "--out", str(tmp_path / "out")]) == 4
    assert "4/5 is left" in capsys.readouterr().err
    (tmp_path / "third").mkdir()
    assert init(tmp_path, "--to", str(tmp_path / "third"), "--unit", "patient", rho="9/10") == 4
    assert list((tmp_path / "third").iterdir()) == []
    assert len(Ledger.read(book)) == 2


def test_the_limit_of_a_book_in_epsilon_counts_the_deltas_of_its_acts() -> None:
    terms = BookTerms.declare("patient", epsilon=3, delta="1e-10", key_commitment="k", version="v")
    act = LedgerEntry(
        *("r", "p", "c", "t", "d", "discrete-gaussian", terms.rho, "bounded", "patient", "v"),
        delta=Fraction(1, 10**11),
    )
    with pytest.raises(PrivacyError, match="left"):
        terms.admit((), act)
    terms.admit((), dataclasses.replace(act, delta=Fraction(0)))
    terms.admit((), dataclasses.replace(act, loss=rho_within(Fraction(3), Fraction(9, 10**11))))
    with pytest.raises(PrivacyError, match="of the limit 0"):
        terms.admit((), dataclasses.replace(act, loss=Fraction(1, 10**9), delta=Fraction(1, 10**9)))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rho", "0.1"), "--geography is required"),
        (("--rho", "0.1", "--geography", "ward"), "--attributes is required"),
        (("--rho", "0.1", "--geography", "ward", "--attributes", "sex"), "it has region, hospital, ward"),
        (("--rho", "0.1", "--geography", "ward", "--attributes", "ward"), "named twice"),
        (("--rho", "0", *ASKED), "rho of a discovery must be positive"),
        (("--rho", "0.1", "--delta", "0", *ASKED), "delta of a discovery"),
        (("--rho", "0.1", "--delta", "1e-3", *ASKED), "at most 1e-06 is allowed"),
        (("--ledger", "book"), "--ledger goes with --rho"),
        (("--rho", "1", "--interactive"), "do not go with --rho"),
    ],
)
def test_columns_are_named_and_never_chosen_by_their_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    path = write(tmp_path, rows(50))
    assert guarded(cli, ["init", "table", str(path), "--to", str(tmp_path), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["patients.csv"]


def test_a_table_of_counts_and_one_of_records_are_counted_alike(tmp_path: Path) -> None:
    patients = [row for row in rows(300) if row[0]]
    write(tmp_path, patients)
    sums = Counter(patients)
    table = {
        name: [row[k] for row in sums]
        for k, name in enumerate(("region", "hospital", "ward", "age", "severity"))
    }
    pq.write_table(pa.table(table | {"n": list(sums.values())}), tmp_path / "counts.parquet")
    groups = [("age",), ("region", "hospital"), ("region", "hospital", "ward")]
    records = count_values(tmp_path / "patients.csv", groups, all)
    assert records == count_values(tmp_path / "counts.parquet", groups, all, "n")
    assert records[0] == dict(sorted(Counter((row[3],) for row in patients).items()))
    assert records[2][("north", "N1", "N1-z")] == 1


def test_a_code_has_one_place_and_units_above_what_was_found_are_found() -> None:
    found = discovery._leaves(
        [
            {("north",): 90, ("south",): 80},
            {("north", "H"): 40, ("south", "H"): 70, ("south", "K"): 30},
            {("south", "H", "w1"): 30, ("north", "H", "w2"): 50, ("north", "L", "w1"): 31},
        ],
        ["region", "hospital"],
    )
    assert found == (
        ("other", "other", "other"),
        ("south", "H", "other:hospital:H"),
        ("south", "K", "other:hospital:K"),
        ("north", "L", "other:hospital:L"),
        ("north", "other:region:north", "other:region:north"),
        ("south", "other:region:south", "other:region:south"),
        ("north", "L", "w1"),
    )
    above = [{row[:k] for row in found} for k in (1, 2, 3)]
    assert [len({path[-1] for path in level}) == len(level) for level in above] == [True] * 3


def test_a_domain_found_record_by_record_does_not_serve_a_unit_of_several(tmp_path: Path) -> None:
    write(tmp_path, rows(500))
    assert init(tmp_path) == 0
    run = tmp_path / "patients-run.toml"
    run.write_text(run.read_text().replace("[input]\n", '[input]\nunit_id = "age"\nat_most = 2\n'))
    with pytest.raises(PrivacyError, match="protects one row"):
        opendas.load(run)


def test_a_frame_without_a_leaf_for_others_is_refused(tmp_path: Path) -> None:
    write(tmp_path, rows(500))
    assert init(tmp_path) == 0
    frame = tmp_path / "patients-frame.csv"
    frame.write_text(frame.read_text().replace("other,other,other\n", ""))
    with pytest.raises(GeographyError, match="no leaf 'other'"):
        opendas.load(tmp_path / "patients-run.toml").read()
