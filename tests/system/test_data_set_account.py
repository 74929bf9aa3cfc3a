"""One account of a data set: whole runs against a book, given or found by itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from support.households import configuration, random_world, write_world
from support.mini import mini_frame, mini_histogram
from support.mini import write_mini as write_plain
from support.spark_cluster import start_cluster

import opendas
import opendas.runs.context.workspace as workspace_module
import opendas.tuning.tune as tune_module
from opendas.api import create_ledger, evaluate, ledger, publish_to
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.custody.ledger import Ledger
from opendas.custody.ledger_lines import LedgerAct, head_of
from opendas.custody.signing_key import SigningKey
from opendas.errors import ConfigError, EnvironmentFailure, PrivacyError
from opendas.phsafe.accuracy import run_accuracy
from opendas.phsafe.run import HouseholdOptions, run_exact, run_private
from opendas.runs.context.run import load
from opendas.runs.finished_release import Release
from opendas.runs.options import RunOptions
from opendas.runs.release import estimate, measure, release


@pytest.fixture(autouse=True)
def _office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENDAS_BOOKS", str(tmp_path / "office"))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


@pytest.fixture
def book(tmp_path: Path) -> Path:
    create_ledger(tmp_path / "persons.book", "person", rho="5")
    return tmp_path / "persons.book"


def write_mini(folder: Path, unit: str = "person", **more: Any) -> Path:
    """Write a run of a product that says what its records are."""
    path = write_plain(folder, **more)
    product = folder / "product.toml"
    product.write_text(
        product.read_text().replace('name = "mini"', f'name = "mini"\nprotected_unit = "{unit}"')
    )
    return path


def account(out: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((out / "release" / "certificate.json").read_bytes())["account"]
    return found


def acts(book: Path) -> list[str]:
    return [str(act["act"]) for act in ledger(book)["acts"]]


def test_a_second_folder_finds_the_book_by_itself_until_the_limit(tmp_path: Path, book: Path) -> None:
    path = write_mini(tmp_path / "data")
    release(load(path), tmp_path / "one", RunOptions(ledger=book))
    assert account(tmp_path / "one")["places"] == {"mini": 1}
    release(load(path), tmp_path / "two", RunOptions())
    found = account(tmp_path / "two")
    assert (found["book"], found["acts"], found["places"], found["spent"]) == (True, 2, {"mini": 2}, "4")
    assert not (tmp_path / "two" / "ledger.jsonl").exists(), "the book is its ledger"
    with pytest.raises(PrivacyError, match="1 is left"):
        release(load(path), tmp_path / "three", RunOptions())
    assert not (tmp_path / "three").exists(), "nothing was drawn, and no trace is left"
    assert all(check.ok for check in Release(tmp_path / "two").verify())
    assert ledger(book)["spent"] == {"rho": "4"}
    (row,) = opendas.status(tmp_path / "two")
    assert row["rho"] == "2"


@pytest.mark.slow
def test_the_book_is_found_and_charged_on_spark_as_here(tmp_path: Path, book: Path) -> None:
    """One run here and one on Spark spend of one limit, of which a third would need more than is left."""
    path = write_mini(tmp_path / "data")
    release(load(path), tmp_path / "one", RunOptions(ledger=book))
    (tmp_path / "spark").mkdir()
    with start_cluster(tmp_path / "spark") as cluster:
        words = ["run", str(path), "--out", str(tmp_path / "two"), "--engine", "spark"]
        done = subprocess.run(
            [sys.executable, "-m", "opendas", *words, "--master", cluster.url],
            env={**cluster.environment, "OPENDAS_BOOKS": os.environ["OPENDAS_BOOKS"]},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    found = account(tmp_path / "two")
    assert (found["book"], found["acts"], found["places"], found["spent"]) == (True, 2, {"mini": 2}, "4")
    assert acts(book) == ["measure", "destroy-key"] * 2
    tags = re.findall(r'"inputs":\[("[^]]+)\]', book.read_text())
    assert len(tags) == 2
    assert tags[0] == tags[1], "files and table are known to the book, whichever engine read them"
    with pytest.raises(PrivacyError, match="1 is left"):
        release(load(path), tmp_path / "three", RunOptions())
    assert all(check.ok for check in Release(tmp_path / "two").verify())


def test_the_table_finds_it_in_another_file_and_the_file_for_another_product(
    tmp_path: Path, book: Path
) -> None:
    path = write_mini(tmp_path / "data")
    release(load(path), tmp_path / "one", RunOptions(ledger=book))
    again = write_mini(tmp_path / "copy")
    counts = again.parent / "counts.csv"
    header, *rows = counts.read_text().splitlines()
    counts.write_text("\n".join([header, *reversed(rows)]) + "\n")
    release(load(again), tmp_path / "two", RunOptions())
    other = path.parent / "product.toml"
    other.write_text(other.read_text().replace('name = "mini"', 'name = "mini-again"'))
    with pytest.raises(PrivacyError, match="1 is left"):
        release(load(path), tmp_path / "three", RunOptions())
    unknown = write_mini(tmp_path / "else", histogram=mini_histogram(mini_frame(), seed=9))
    release(load(unknown), tmp_path / "four", RunOptions())
    assert account(tmp_path / "four")["book"] is False


def test_parts_without_records_are_of_no_data_set(tmp_path: Path, book: Path) -> None:
    """A data set in parts is found by each of them, but not by one that holds a header alone."""
    runs = []
    for name, seed in (("one", 0), ("other", 9)):
        runs.append(write_mini(tmp_path / name, histogram=mini_histogram(mini_frame(), seed=seed)))
        counts = tmp_path / name / "counts.csv"
        (tmp_path / name / "parts").mkdir()
        (tmp_path / name / "parts" / "a.csv").write_text(counts.read_text().splitlines()[0] + "\n")
        counts.rename(tmp_path / name / "parts" / "b.csv")
        runs[-1].write_text(runs[-1].read_text().replace('"counts.csv"', '"parts"'))
    release(load(runs[0]), tmp_path / "out", RunOptions(ledger=book))
    release(load(runs[1]), tmp_path / "out-other", RunOptions())
    assert account(tmp_path / "out-other")["book"] is False
    (tmp_path / "one" / "parts" / "a.csv").unlink()
    release(load(runs[0]), tmp_path / "again", RunOptions())
    assert account(tmp_path / "again")["book"] is True


def test_another_name_of_the_unit_does_not_get_a_sum_of_its_own(tmp_path: Path, book: Path) -> None:
    path = write_mini(tmp_path / "data")
    release(load(path), tmp_path / "one", RunOptions(ledger=book))
    write_mini(tmp_path / "data", "record")
    with pytest.raises(PrivacyError, match="protected_unit"):
        release(load(path), tmp_path / "two", RunOptions())


def test_household_tables_are_in_the_sum(tmp_path: Path, book: Path) -> None:
    release(load(write_mini(tmp_path / "data")), tmp_path / "one", RunOptions(ledger=book))
    data = write_world(tmp_path / "cef", random_world(1))
    config = tmp_path / "config.json"
    config.write_text(json.dumps(configuration(tau=3)))
    options = HouseholdOptions(ledger=book)
    with pytest.raises(PrivacyError, match="is left"):
        run_private(config, data, tmp_path / "tables", options)
    wide = tmp_path / "wide.book"
    create_ledger(wide, "person", rho="1000000")
    answer = run_private(config, data, tmp_path / "tables", HouseholdOptions(ledger=wide))
    answer_again = run_private(config, data, tmp_path / "again", HouseholdOptions())
    spent = 2 * Fraction(answer["rho"]["bounded"])
    assert ledger(wide)["spent"] == {"rho": str(spent)}, "the second folder found the book"
    certificate = json.loads((tmp_path / "again" / "certificate.json").read_bytes())
    assert certificate["account"]["places"] == {"phsafe": 2}
    assert answer_again["rho"] == answer["rho"]
    run_exact(config, data, tmp_path / "exact", HouseholdOptions())
    assert acts(wide)[-1] == "exact", "exact tables are a reading of the truth"
    run_accuracy(config, data, 1, HouseholdOptions())
    assert acts(wide)[-1] == "experiment", "so are errors of simulated tables"


def test_a_given_book_is_refused_where_another_knows_the_input(tmp_path: Path, book: Path) -> None:
    path = write_mini(tmp_path / "data")
    release(load(path), tmp_path / "one", RunOptions(ledger=book))
    other = tmp_path / "other.book"
    create_ledger(other, "person", rho="5")
    with pytest.raises(PrivacyError, match=r"persons\.book"):
        release(load(path), tmp_path / "two", RunOptions(ledger=other))
    assert ledger(other)["acts"] == []


def test_what_is_no_book_is_refused_with_the_command_that_makes_one(tmp_path: Path) -> None:
    path = write_mini(tmp_path / "data")
    with pytest.raises(ConfigError, match="opendas ledger create"):
        release(load(path), tmp_path / "one", RunOptions(ledger=tmp_path / "none"))
    release(load(path), tmp_path / "own", RunOptions())
    with pytest.raises(ConfigError, match="opendas ledger create"):
        release(load(path), tmp_path / "one", RunOptions(ledger=tmp_path / "own" / "ledger.jsonl"))
    assert not (tmp_path / "one").exists()


def test_seeded_runs_are_not_for_data_with_an_account(tmp_path: Path, book: Path) -> None:
    path = write_mini(tmp_path / "data")
    release(load(path), tmp_path / "one", RunOptions(ledger=book))
    with pytest.raises(PrivacyError, match=r"exceed every limit|share"):
        release(load(path), tmp_path / "two", RunOptions(seed=1))
    assert acts(book).count("measure") == 1


def test_a_run_that_died_between_state_and_intent_is_charged_once(
    tmp_path: Path, book: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = write_mini(tmp_path / "data"), tmp_path / "one"

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    for where in ("intend", "finished"):
        with monkeypatch.context() as patched:
            patched.setattr(workspace_module.Ledger, where, die)
            with pytest.raises(KeyboardInterrupt):
                release(load(path), out, RunOptions(ledger=book, resume=True))
    release(load(path), out, RunOptions(resume=True))
    assert ledger(book)["spent"] == {"rho": "2"}
    assert acts(book).count("measure") == 1


def test_measuring_and_estimating_apart_are_one_act(tmp_path: Path, book: Path) -> None:
    path, out = write_mini(tmp_path / "data"), tmp_path / "one"
    measure(load(path), out, RunOptions(ledger=book))
    moved = tmp_path / "moved"
    shutil.move(book, moved)
    shutil.move(f"{book}.key", f"{moved}.key")
    for link in (tmp_path / "office").iterdir():
        link.unlink()
    with pytest.raises(EnvironmentFailure, match="not there"):
        estimate(load(path), out, RunOptions())
    assert guarded(cli, ["forget-key", str(out)]) == 6
    estimate(load(path), out, RunOptions(ledger=moved))
    assert acts(moved) == ["measure", "destroy-key"]
    assert account(out)["places"] == {"mini": 1}


def test_a_damaged_book_stops_everything(tmp_path: Path, book: Path) -> None:
    path = write_mini(tmp_path / "data")
    release(load(path), tmp_path / "one", RunOptions(ledger=book))
    book.write_bytes(book.read_bytes().replace(b'"rho":"2"', b'"rho":"1"'))
    for options in (RunOptions(), RunOptions(ledger=book)):
        with pytest.raises(PrivacyError, match="damaged"):
            release(load(path), tmp_path / "two", options)
    assert not (tmp_path / "two").exists()


def test_two_runs_at_once_do_not_pass_the_limit_together(tmp_path: Path) -> None:
    """Whole commands in processes of their own, on a book that has room for one of them."""
    path = write_mini(tmp_path / "data")
    create_ledger(tmp_path / "narrow.book", "person", rho="3")
    words = ["run", str(path), "--ledger", str(tmp_path / "narrow.book"), "--out"]
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "opendas", *words, str(tmp_path / name)], stderr=subprocess.PIPE, text=True
        )
        for name in ("one", "two")
    ]
    said = [process.communicate()[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 4]
    assert "1 is left" in "".join(said)
    assert acts(tmp_path / "narrow.book").count("measure") == 1
    assert (tmp_path / "one").exists() != (tmp_path / "two").exists()


# Readings, and what may be published.


def test_the_best_of_several_is_not_published_as_if_it_were_the_only_one(
    tmp_path: Path, book: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_mini(tmp_path / "data", loss='rho = "1"')
    for name in ("a", "b", "c"):
        release(load(path), tmp_path / name, RunOptions(ledger=book))
        assert guarded(cli, ["evaluate", str(tmp_path / name), "--truth", str(path)]) == 0
    assert account(tmp_path / "c")["readings"] == 3
    address = (tmp_path / "web").as_uri()
    assert guarded(cli, ["publish", str(tmp_path / "b"), address]) == 4
    assert "no post-processing" in capsys.readouterr().err
    assert not (tmp_path / "web").exists()
    assert guarded(cli, ["publish", str(tmp_path / "b"), address, "--chosen-with-truth"]) == 0
    published = json.loads((tmp_path / "web" / "certificate.json").read_bytes())
    assert published["stamps"] == ["CHOSEN WITH THE TRUTH"]
    assert "may have been chosen" in published["runs"][0]["guarantee"]
    assert published["account"]["spent"] == "3", "what was never published counts"
    assert (published["account"]["readings"], published["account"]["acts"]) == (3, 3)
    assert "act 2 of 3" in published["scope"]
    assert acts(book).count("publish") == 1
    assert all(check.ok for check in Release(tmp_path / "b").verify())


def test_one_release_that_was_evaluated_is_published_and_says_so(tmp_path: Path, book: Path) -> None:
    path, out = write_mini(tmp_path / "data"), tmp_path / "one"
    release(load(path), out, RunOptions(ledger=book))
    evaluate(Release(out), load(path))
    publish_to(out, (tmp_path / "web").as_uri())
    published = json.loads((tmp_path / "web" / "certificate.json").read_bytes())
    assert published["stamps"] == []
    assert published["account"]["readings"] == 1
    assert "the confidential data were read 1 time without noise" in published["scope"]


def test_a_signed_certificate_that_the_account_has_left_behind_is_signed_again(
    tmp_path: Path, book: Path
) -> None:
    path, out, web = write_mini(tmp_path / "data"), tmp_path / "one", (tmp_path / "web").as_uri()
    key = SigningKey.generate()
    key.save(tmp_path / "office.key")
    release(load(path), out, RunOptions(ledger=book))
    Release(out).sign(tmp_path / "office.key")
    Ledger.beside(book).enter(LedgerAct("evaluate"), again=True)
    with pytest.raises(ConfigError, match="sign it again"):
        publish_to(out, web)
    assert not (tmp_path / "web").exists()
    assert "publish" not in acts(book)
    Release(out).sign(tmp_path / "office.key")
    publish_to(out, web)
    assert (tmp_path / "web" / "certificate.sig").is_file()


def test_readings_of_a_folder_without_a_book_are_in_its_own_ledger(tmp_path: Path) -> None:
    path, out = write_mini(tmp_path / "data"), tmp_path / "one"
    release(load(path), out, RunOptions())
    assert account(out)["readings"] == 0
    evaluate(Release(out), load(path))
    entered = [
        line.said.act
        for line in Ledger.beside(out / "ledger.jsonl").lines()
        if isinstance(line.said, LedgerAct)
    ]
    assert entered == ["destroy-key", "evaluate"]
    assert (account(out)["book"], account(out)["readings"]) == (False, 1)
    assert all(check.ok for check in Release(out).verify())


def test_a_budget_from_the_data_of_a_book_is_noted_and_not_published(tmp_path: Path, book: Path) -> None:
    path = write_mini(tmp_path / "data")
    release(load(path), tmp_path / "one", RunOptions(ledger=book))
    later = write_mini(tmp_path / "later", histogram=mini_histogram(mini_frame(), seed=9))
    opendas.allocate_run(load(later), stand_in=load(path), source="last year")
    assert acts(book) == ["measure", "destroy-key", "allocate"]
    release(load(later), tmp_path / "two", RunOptions(ledger=book))
    with pytest.raises(PrivacyError, match="its plan may have been chosen"):
        publish_to(tmp_path / "two", (tmp_path / "web").as_uri())


def test_a_plan_tuned_on_the_data_of_a_book_is_noted_before_it_is_made(
    tmp_path: Path, book: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_mini(tmp_path / "data")
    release(load(path), tmp_path / "one", RunOptions(ledger=book))

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tune_module, "Simulator", stop)
    with pytest.raises(KeyboardInterrupt):
        tune_module.tune(load(path), [], tune_module.Settings(source="our own data"))
    assert acts(book)[-1] == "tune"


# The wall.


def test_a_book_changes_what_is_said_of_the_account_and_nothing_else(tmp_path: Path, book: Path) -> None:
    path = write_mini(tmp_path / "data")
    key = "echo " + "ab" * 32
    release(load(path), tmp_path / "without", RunOptions(key_command=key))
    release(load(path), tmp_path / "with", RunOptions(key_command=key, ledger=book))

    def released(name: str) -> dict[str, bytes]:
        root = tmp_path / name / "release"
        return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}

    without, with_book = released("without"), released("with")
    assert without.keys() == with_book.keys()
    differing = {name for name in without if without[name] != with_book[name]}
    assert differing == {"certificate.json", "certificate.pdf", "report.html"}
    one, two = (json.loads(files["certificate.json"]) for files in (without, with_book))
    assert {name for name in one if one[name] != two[name]} == {"account", "scope"}


def test_nothing_that_identifies_data_or_keys_reaches_the_release(tmp_path: Path, book: Path) -> None:
    path, out = write_mini(tmp_path / "data"), tmp_path / "one"
    release(load(path), out, RunOptions(ledger=book))
    (line,) = [line for line in Ledger.beside(book).lines() if line.entry is not None]
    assert line.entry is not None
    head = head_of(Ledger.beside(book).lines())
    secrets = [line.run_id, line.entry.key_commitment, line.entry.input_tag, head, *line.entry.inputs]
    public = b"".join(p.read_bytes() for p in (out / "release").rglob("*") if p.is_file())
    assert len(line.entry.inputs) == 2
    for text in (*secrets, str(book), book.name):
        assert text.encode() not in public
