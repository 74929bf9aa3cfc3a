"""Runs whose units have several records: the wall, resuming, and the same release everywhere."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyarrow.csv import write_csv
from support.units import AGES, KINDS, LEAVES, Row, table

from opendas.api import create_ledger, evaluate, ledger
from opendas.errors import PrivacyError
from opendas.files.mdf.writing import PartFile
from opendas.runs.context.run import Run, load
from opendas.runs.finished_release import Release
from opendas.runs.options import RunOptions
from opendas.runs.release import estimate, measure, release
from opendas.verify.release import verify_release

VISITS: list[Row] = [
    (f"u{n}", (n * n + visit) % 4, (n + visit * visit) % 6) for n in range(40) for visit in range(n % 5 + 1)
]
KEY = "printf " + "5a" * 32


@pytest.fixture(autouse=True)
def _fixed_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


def written(folder: Path, rows: list[Row], *, more: str = "", at_most: int = 2, files: int = 1) -> Run:
    """A run file over the rows, in one file or several."""
    (folder / "rows").mkdir(parents=True)
    for number in range(files):
        write_csv(table(rows[number::files]), folder / "rows" / f"{number}.csv")
    (folder / "wards.csv").write_text("\n".join(["ward", *LEAVES]) + "\n")
    (folder / "visits.toml").write_text(
        f"""
[product]
name = "visits"
provenance = "code-book"
[attributes]
age = {json.dumps(AGES)}
kind = {json.dumps(KINDS)}
"""
    )
    (folder / "run.toml").write_text(
        f"""
[run]
product = "visits.toml"
[input]
reader = "records"
path = "rows"
geocode = "ward"
unit_id = "who"
at_most = {at_most}
{more}
[geography]
levels = [{{ name = "all", prefix = 0 }}, {{ name = "side", prefix = 1 }}, {{ name = "ward" }}]
frame = "wards.csv"
provenance = "public"
[budget]
rho = "7/3"
geolevels = {{ all = "1/6", side = "1/3", ward = "1/2" }}
[budget.queries]
"*" = {{ total = "1/2", detailed = "1/2" }}
"""
    )
    return load(folder / "run.toml")


def released(folder: Path) -> dict[str, bytes]:
    """Every file of a release."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted((folder / "release").rglob("*"))
        if path.is_file()
    }


def test_two_inputs_of_which_the_same_is_counted_give_the_same_release(tmp_path: Path) -> None:
    """The wall: what was left out, and how much, is in no byte that is published."""
    once = [(f"u{n}", n % 4, n % 6) for n in range(50)]
    often = [row for row in once for _ in range(2 + row[1] % 3)]
    for name, rows in (("once", once), ("often", often)):
        run = written(tmp_path / name, rows, at_most=1)
        release(run, tmp_path / name / "out", RunOptions(key_command=KEY, workers=1))
    first, second = (released(tmp_path / name / "out") for name in ("once", "often"))
    assert first.keys() == second.keys()
    assert first == second
    found = {
        name: (tmp_path / name / "out" / "confidential" / "findings" / "visits.txt").read_text()
        for name in ("once", "often")
    }
    left_out = f"{len(often) - 50} records are not counted; they belong to 50 of 50 units"
    assert left_out in found["often"]
    assert "not counted" not in found["once"]


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release, whose records of one unit lie in different wards."""
    folder = tmp_path_factory.mktemp("visits")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        release(written(folder, VISITS, more='distinct = "leaf"'), folder / "out", RunOptions(workers=1))
    return folder / "out"


def certified(out: Path) -> dict[str, Any]:
    certificate: dict[str, Any] = json.loads((out / "release" / "certificate.json").read_text())
    return certificate


def test_a_release_says_whose_loss_it_states_and_is_estimated_again(visits: Path) -> None:
    checks = Release(visits).verify(rederive=True, workers=1)
    assert len(checks) > 20
    assert [check for check in checks if not check.ok] == []
    (entry,) = certified(visits)["runs"]
    assert entry["protected_unit"] == "who"
    assert {name: entry["contribution"][name] for name in ("unit_id", "at_most", "distinct")} == {
        **{"unit_id": "who", "at_most": 2, "distinct": "leaf"},
    }
    assert entry["rho"] == "7/3"
    # all and side: two of two records replaced, in one row; ward: two replaced, each in a row of its own
    assert entry["contribution"]["one_record"]["rho"] == "7/3"
    assert [loss["rho"] for loss in entry["several"].values()] == ["28/3", "112/3"]
    assert "replacing all records of one who by any others, or by none" in entry["guarantee"]
    assert "at most 2 of them are counted, each in another leaf" in entry["guarantee"]
    assert [total["change"] for total in certified(visits)["totals"]] == ["one who"]
    # sigma2 is D2 k m / (2 share rho): at the wards m is 1, above it is 2
    sigma2 = {(row["geolevel"], row["query"]): row["sigma2"] for row in entry["rows"]}
    assert sigma2["ward", "total"] == pytest.approx(2 / (1 / 4 * 7 / 3))
    assert sigma2["side", "total"] == pytest.approx(4 / (1 / 6 * 7 / 3))


def test_no_identifier_is_in_a_release(tmp_path: Path) -> None:
    rows = [(f"secret{unit}", leaf, cell) for unit, leaf, cell in VISITS]
    release(written(tmp_path, rows), tmp_path / "out", RunOptions(workers=1))
    everything = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not any(b"secretu" in path.read_bytes() for path in everything), "nor anywhere else"


@pytest.mark.parametrize(
    ("key", "value"),
    [("at_most", 1), ("distinct", None), ("unit_id", "other"), ("one_record", "1/100"), ("several", "1")],
)
def test_another_contribution_in_the_certificate_is_seen(
    visits: Path, tmp_path: Path, key: str, value: object
) -> None:
    out = tmp_path / "out"
    shutil.copytree(visits, out)
    certificate = certified(out)
    (entry,) = certificate["runs"]
    if key == "several":
        entry["several"]["4"]["rho"] = value
    elif key == "one_record":
        entry["contribution"]["one_record"]["rho"] = value
    else:
        entry["contribution"][key] = value
    (out / "release" / "certificate.json").write_text(json.dumps(certificate, indent=1, sort_keys=True))
    wrong = {check.name for check in verify_release(out) if not check.ok}
    assert any("visits" in name for name in wrong), wrong


def test_an_interrupted_run_is_resumed_with_the_same_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = written(tmp_path, VISITS)
    release(run, tmp_path / "whole", RunOptions(key_command=KEY, workers=1))

    def dies(self: PartFile) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PartFile, "write", dies)
        with pytest.raises(KeyboardInterrupt):
            release(run, tmp_path / "out", RunOptions(key_command=KEY, workers=1))
    # rows in another order, in other files, are the same input; one row of another unit is another
    shuffled = written(tmp_path / "shuffled", VISITS[::-1], files=3)
    other = written(tmp_path / "other", [*VISITS, ("new", 0, 0)])
    with pytest.raises(PrivacyError, match="differ in input"):
        release(other, tmp_path / "out", RunOptions(key_command=KEY, resume=True, workers=1))
    release(shuffled, tmp_path / "out", RunOptions(key_command=KEY, resume=True, workers=1))
    assert released(tmp_path / "out") == released(tmp_path / "whole")


def test_the_phases_apart_and_more_workers_give_the_same_release(tmp_path: Path) -> None:
    run = written(tmp_path, VISITS)
    release(run, tmp_path / "one", RunOptions(key_command=KEY, measurements="full", workers=1))
    measure(run, tmp_path / "two", RunOptions(key_command=KEY, workers=2))
    estimate(run, tmp_path / "two", RunOptions(workers=2))
    assert released(tmp_path / "one") == released(tmp_path / "two")


def test_keys_choose_other_records_and_evaluation_sees_all(tmp_path: Path) -> None:
    """With noise next to none, what is released is what was counted: two keys count different records."""
    run = written(tmp_path, VISITS)
    text = (tmp_path / "run.toml").read_text().replace('rho = "7/3"', 'rho = "100000"')
    (tmp_path / "run.toml").write_text(text)
    run = load(tmp_path / "run.toml")
    counts = []
    for number in (1, 2):
        out = tmp_path / f"out{number}"
        release(run, out, RunOptions(key_command=f"printf {number:064x}", workers=1))
        counts.append(Release(out).estimate("visits"))
        kept = sum(min(n % 5 + 1, 2) for n in range(40))
        assert counts[-1].total() == kept
        errors = evaluate(Release(out), run)
        (whole,) = [
            row for row in errors.to_dict()["rows"] if (row["geolevel"], row["query"]) == ("all", "total")
        ]
        assert whole["mean_abs_error"] == len(VISITS) - kept
    first, second = ((each.counts.tolist(), each.cells.tolist()) for each in counts)
    assert first != second


def test_a_book_finds_the_rows_in_another_file_and_order_whatever_was_counted_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENDAS_BOOKS", str(tmp_path / "books"))
    create_ledger(tmp_path / "visits.book", "who", rho="5")
    release(
        written(tmp_path / "a", VISITS),
        tmp_path / "one",
        RunOptions(workers=1, ledger=tmp_path / "visits.book"),
    )
    again = written(tmp_path / "b", VISITS[::-1], files=2)
    release(again, tmp_path / "two", RunOptions(workers=1))
    assert ledger(tmp_path / "visits.book")["left"] == {"rho": "1/3"}
    with pytest.raises(PrivacyError, match="limit"):
        release(written(tmp_path / "c", VISITS, files=3), tmp_path / "three", RunOptions(workers=1))


def test_spark_counts_the_same_records(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    written(tmp_path, VISITS, files=3)
    for engine in ("local", "spark"):
        words = [
            "run",
            tmp_path / "run.toml",
            "--out",
            tmp_path / engine,
            "--engine",
            engine,
            "--workers",
            "1",
        ]
        done = subprocess.run(
            [sys.executable, "-m", "opendas", *words, "--key-command", KEY], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert released(tmp_path / "local") == released(tmp_path / "spark")
