"""Rules of privacy that show only in a whole run: what is written where, in which order, and under which key.

The table of all rules and their tests is ``docs/proofs/rules.md``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.mini import (
    from_dense,
    mini_frame,
    mini_histogram,
    prior_table,
    to_dense,
    write_earlier,
    write_mini,
)

import opendas.engines.work as work
import opendas.runs.act as act_module
import opendas.runs.context.workspace as workspace
import opendas.runs.release as pipeline
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.custody.books import create_book
from opendas.custody.ledger import Ledger
from opendas.custody.run_key import RunKey
from opendas.engines.truth import input_tag
from opendas.errors import GeographyError, PrivacyError
from opendas.report.certificate import ISSUED_FILES
from opendas.runs.context.run import load
from opendas.runs.options import RunOptions
from opendas.runs.release import measure, release
from opendas.sampling.noise import NoiseSource
from opendas.schema.histogram import Histogram
from opendas.verify.release import verify_release

LEVELS = ("region", "town", "block")


@pytest.fixture(autouse=True)
def _fixed_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# What is written where.

RELEASED = {
    "certificate.json",
    "certificate.pdf",
    "report.html",
    "run/mini.toml",
    "geography/mini.parquet",
    "measurements/mini/spine.parquet",
    "measurements/mini/constraints.parquet",
    *(f"measurements/mini/{level}.parquet" for level in LEVELS),
}


@pytest.mark.parametrize("estimator", ["topdown", "informed", "posterior"])
def test_a_run_writes_these_files_and_no_others(tmp_path: Path, estimator: str) -> None:
    out = tmp_path / "out"
    release(
        load(write_mini(tmp_path, run=f'estimator = "{estimator}"')), out, RunOptions(measurements="used")
    )
    released = set(files(out / "release"))
    assert {name for name in released if not name.startswith("mdf/mini/")} == RELEASED
    rest = {name for name in files(out) if not name.startswith("release/")}
    assert rest == {
        ".opendas.lock",
        "ledger.jsonl",
        "state/.gitignore",
        "state/mini/run.json",
        "confidential/.gitignore",
        "confidential/inputs/mini.json",
        "confidential/timings/mini.json",
        "confidential/timings/mini_families.parquet",
        "confidential/logs/mini.jsonl",
    }
    state = json.loads((out / "state" / "mini" / "run.json").read_text())
    assert set(state) == {
        "run_id",
        "product",
        "version",
        "plan_digest",
        "estimation_digest",
        "input_tag",
        "key_commitment",
        "seed",
        "phase",
        "result",
        "ending",
    }


def test_what_is_not_for_publication_is_closed_to_others(tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = os.umask(0)
    try:
        release(load(write_mini(tmp_path)), out, RunOptions(keep_key=True))
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in out.iterdir()}
    assert modes["confidential"] == 0o700
    assert modes["state"] == 0o700
    assert modes["ledger.jsonl"] == 0o600
    assert modes[".opendas.lock"] == 0o600
    keys = out / "confidential" / "keys"
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    assert stat.S_IMODE((keys / "mini.key").stat().st_mode) == 0o600


@pytest.mark.parametrize("estimator", ["topdown", "informed", "posterior"])
def test_checkpoints_hold_estimates_and_noisy_answers_only(tmp_path: Path, estimator: str) -> None:
    """Two inputs that agree on all noisy answers and invariants leave the same checkpoints."""
    first, second = twins(tmp_path, run=f'estimator = "{estimator}"')
    folder = full_measurements(first, tmp_path)
    saved = []
    for name, run_file in (("a", first), ("b", second)):
        with pytest.MonkeyPatch.context() as patch:
            use_recorded(patch, folder)
            patch.setattr(workspace, "remove_checkpoints", lambda folder: None)
            patch.setattr(act_module, "token_hex", lambda size: "same run id for both")
            release(load(run_file), tmp_path / name, RunOptions(measurements="used"))
        saved.append({k: v for k, v in files(tmp_path / name / "state").items() if k.endswith(".part")})
    assert saved[0]
    assert any("/up" in name for name in saved[0]) == (estimator != "topdown")
    assert saved[0] == saved[1]


# No unkeyed digest.


def digests_of(data: bytes) -> Iterator[bytes]:
    for algorithm in ("sha256", "sha1", "md5", "sha512", "sha3_256", "blake2b", "blake2s"):
        digest = hashlib.new(algorithm, data)
        yield digest.hexdigest().encode()
        yield digest.digest()


def guesses(counts: Histogram, *paths: Path) -> Iterator[bytes]:
    """Encodings of the input that someone who knows it could hash."""
    yield counts.counts.tobytes()
    yield counts.cells.tobytes()
    yield counts.indptr.tobytes()
    yield to_dense(counts).tobytes()
    for path in paths:
        yield path.read_bytes()


def test_no_unkeyed_digest_of_the_input_is_written_anywhere(tmp_path: Path) -> None:
    out = tmp_path / "out"
    release(load(write_mini(tmp_path)), out, RunOptions(keep_key=True))
    counts = mini_histogram(mini_frame())
    written = b"\0".join(files(out).values())
    for guess in guesses(counts, tmp_path / "counts.csv"):
        for digest in digests_of(guess):
            assert digest not in written
    # The tag is there, and it needs the key.
    key = RunKey.load(out / "confidential" / "keys" / "mini.key")
    tag = input_tag(key, counts)
    assert tag.encode() in (out / "ledger.jsonl").read_bytes()
    assert tag.encode() not in b"\0".join(files(out / "release").values())


# The order of events.


def test_key_and_intent_are_on_disk_before_the_first_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    seen = []

    class Watched(NoiseSource):
        def _run(self, requests: object) -> None:
            intents = Ledger.read(out / "ledger.jsonl")
            state = json.loads((out / "state" / "mini" / "run.json").read_text())
            key = RunKey.load(out / "confidential" / "keys" / "mini.key")
            assert [entry.run_id for entry in intents] == [state["run_id"]]
            assert intents[0].key_commitment == key.commitment()
            assert intents[0].input_tag == input_tag(key, mini_histogram(mini_frame()))
            seen.append(1)
            super()._run(requests)  # type: ignore[arg-type]

    monkeypatch.setattr(work, "NoiseSource", Watched)
    release(load(write_mini(tmp_path)), out, RunOptions(measurements="full"))
    assert len(seen) > 3


@pytest.mark.parametrize("act", [release, measure])
def test_nothing_is_drawn_where_the_ledger_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[..., object]
) -> None:
    def refuse(self: Ledger, entry: object) -> None:
        raise PrivacyError("the ledger refuses")

    def never(self: NoiseSource, key: bytes) -> None:
        raise AssertionError("a draw without a ledger entry")

    monkeypatch.setattr(Ledger, "intend", refuse)
    monkeypatch.setattr(NoiseSource, "__init__", never)
    with pytest.raises(PrivacyError, match="refuses"):
        act(load(write_mini(tmp_path)), tmp_path / "out", RunOptions())
    assert list((tmp_path / "out" / "release").rglob("*")) == []


# What the noise key is bound to.


def noise_key(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: object) -> bytes:
    """The noise key of a run under one run key."""
    found: list[bytes] = []

    class Stop(Exception):
        pass

    def stop(levels: object, key: bytes) -> None:
        found.append(key)
        raise Stop

    monkeypatch.setattr(pipeline, "KeyedSource", stop)
    product = changes.pop("product", None)
    path = write_mini(folder, **changes)  # type: ignore[arg-type]
    if product is not None:
        text = (folder / "product.toml").read_text().replace('name = "mini"', f'name = "{product}"')
        (folder / "product.toml").write_text(text)
    with pytest.raises(Stop):
        release(load(path), folder / "out", RunOptions(key_command="echo " + "5a" * 32))
    monkeypatch.undo()
    return found[0]


def one_record_more() -> Histogram:
    dense = to_dense(mini_histogram(mini_frame()))
    dense[0, 0] += 1
    return from_dense(dense)


def test_the_noise_key_is_bound_to_plan_and_input_and_to_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = mini_frame(blocks=5)
    others: dict[str, dict[str, object]] = {
        "rho": {"loss": 'rho = "3"'},
        "mechanism": {"run": 'mechanism = "discrete-laplace"', "loss": 'epsilon = "2"'},
        "input": {"histogram": one_record_more()},
        "frame": {"frame": frame, "histogram": mini_histogram(frame)},
        "product": {"product": "mini2"},
        "relation": {"run": 'neighbours = "unbounded"\ndrop_invariants = ["total"]'},
    }
    same: dict[str, dict[str, object]] = {
        "passes": {"more": '[passes]\nslack = "0.01"\n'},
        "invariants": {"run": 'drop_invariants = ["total"]'},
        "failsafe": {"run": "failsafe = true"},
        "estimator": {"run": 'estimator = "informed"'},
        "posterior": {"run": 'estimator = "posterior"'},
        "delta": {"loss": 'rho = "2"\ndelta = "1e-6"'},
    }
    base = noise_key(tmp_path / "base", monkeypatch)
    keys = [noise_key(tmp_path / name, monkeypatch, **change) for name, change in others.items()]
    assert len({base, *keys}) == 1 + len(others)
    for name, change in same.items():
        assert noise_key(tmp_path / name, monkeypatch, **change) == base, name


# Lazy and full.


def answers(path: Path) -> dict[tuple[str, str, int], int]:
    """Every answer of a measurement file, by geocode, query group and row."""
    found = {}
    for row in pq.read_table(path).to_pylist():
        cells = row["cells"] if row["cells"] is not None else range(len(row["values"]))
        for cell, value in zip(cells, row["values"], strict=True):
            found[row["geocode"], row["query"], cell] = value
    return found


@pytest.mark.parametrize("estimator", ["topdown", "informed", "posterior"])
def test_every_value_a_lazy_run_shows_is_that_of_the_full_file(tmp_path: Path, estimator: str) -> None:
    frame = mini_frame()
    sparse = to_dense(mini_histogram(frame))
    sparse[:, 4:] = 0  # few cells are populated, so that much is never read
    sparse[frame.units["schools"] > 0, 4] = 1
    sparse[frame.units["prisons"] > 0, 7] = 1
    text = f'estimator = "{estimator}"'
    run = load(write_mini(tmp_path, histogram=from_dense(sparse), loss='rho = "40"', run=text))
    release(run, tmp_path / "lazy", RunOptions(seed=3, measurements="used"))
    measure(run, tmp_path / "full", RunOptions(seed=3))
    fewer = False
    for level in LEVELS:
        place = Path("release") / "measurements" / "mini" / f"{level}.parquet"
        lazy, full = answers(tmp_path / "lazy" / place), answers(tmp_path / "full" / place)
        assert lazy.items() <= full.items()
        fewer |= len(lazy) < len(full)
    assert fewer, "this test needs answers that a lazy run does not read"


def shapes(folder: Path) -> dict[str, list[tuple[str, str, int]]]:
    return {
        path.name: [(r["geocode"], r["query"], len(r["values"])) for r in pq.read_table(path).to_pylist()]
        for path in sorted(folder.glob("*.parquet"))
        if path.stem in LEVELS
    }


def test_the_full_file_has_the_same_shape_whatever_the_records_are(tmp_path: Path) -> None:
    frame = mini_frame()
    empty = np.zeros((len(frame), 9), dtype=np.int64)
    empty[frame.units["schools"] > 0, 4] = 1
    empty[frame.units["prisons"] > 0, 7] = 1
    for name, histogram in (("some", mini_histogram(frame)), ("none", from_dense(empty))):
        measure(load(write_mini(tmp_path / name, histogram=histogram)), tmp_path / name / "out", RunOptions())
    some, none = (
        shapes(tmp_path / n / "out" / "release" / "measurements" / "mini") for n in ("some", "none")
    )
    assert some == none
    assert len(some["block.parquet"]) == 3 * len(frame)


# Two inputs that agree on every noisy answer.


def twins(tmp_path: Path, *, run: str = "", more: str = "") -> tuple[Path, Path]:
    """Run files of two inputs with the same invariants: people move between the blocks of a region."""
    frame = mini_frame()
    truth = to_dense(mini_histogram(frame))
    other = truth.copy()
    for region in np.unique(frame.codes("region")):
        inside = np.flatnonzero(frame.codes("region") == region)
        for donor in inside[truth[inside, 0] > 0][:3]:
            other[donor, 0] -= 1
            other[inside[(inside != donor).argmax()], 2] += 1
    assert not np.array_equal(truth, other)
    changed = write_mini(tmp_path / "two", histogram=from_dense(other), run=run, more=more)
    return write_mini(tmp_path / "one", run=run, more=more), changed


def full_measurements(run_file: Path, tmp_path: Path) -> Path:
    measure(load(run_file), tmp_path / "recorded", RunOptions())
    return tmp_path / "recorded" / "release" / "measurements" / "mini"


def use_recorded(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[tuple[int, int, int, bytes]]:
    """Let runs see recorded noisy answers instead of their own; returns the list of what they read."""
    from opendas.engines.measurement_source import FileSource

    reads: list[tuple[int, int, int, bytes]] = []

    class Source(FileSource):
        def open(self, part: object, table: Histogram | None) -> object:  # type: ignore[override]
            assert table is not None, "the run hands over its counts; the recorded source leaves them alone"
            opened = super().open(part, None)  # type: ignore[arg-type]

            class Read:
                def family(self, level: int, first: int, children: int, support: np.ndarray) -> object:
                    reads.append((level, first, children, support.tobytes()))
                    return opened.family(level, first, children, support)

                def full(self, level: int, first: int, geounits: int) -> object:
                    reads.append((level, first, geounits, b"everything"))
                    return opened.full(level, first, geounits)

            return Read()

    monkeypatch.setattr(pipeline, "KeyedSource", lambda levels, key: Source(levels, folder))
    return reads


def check_same_release(tmp_path: Path, run: str) -> None:
    """Two inputs with the same noisy answers, invariants and public facts give the same release."""
    first, second = twins(tmp_path, run=run)
    folder = full_measurements(first, tmp_path)
    found = []
    for name, run_file in (("a", first), ("b", second)):
        with pytest.MonkeyPatch.context() as patch:
            reads = use_recorded(patch, folder)
            release(load(run_file), tmp_path / name, RunOptions(workers=1, measurements="used"))
            found.append(reads)
    assert found[0] == found[1]
    assert files(tmp_path / "a" / "release") == files(tmp_path / "b" / "release")


def check_same_bytes_by_workers(run_file: Path) -> None:
    """One worker process and two give the same release."""
    out = run_file.parent
    for workers in (1, 2):
        release(load(run_file), out / str(workers), RunOptions(seed=4, workers=workers))
    assert files(out / "1" / "release") == files(out / "2" / "release")


@pytest.mark.parametrize(
    ("estimator", "prior"),
    [("topdown", ""), ("informed", ""), ("posterior", ""), ("posterior", prior_table("../earlier.csv"))],
)
def test_what_is_read_depends_on_noisy_answers_and_invariants_only(
    tmp_path: Path, estimator: str, prior: str
) -> None:
    write_earlier(tmp_path / "earlier.csv")
    first, second = twins(tmp_path, run=f'estimator = "{estimator}"', more=prior)
    folder = full_measurements(first, tmp_path)
    found = []
    for name, run_file in (("a", first), ("b", second)):
        with pytest.MonkeyPatch.context() as patch:
            reads = use_recorded(patch, folder)
            release(load(run_file), tmp_path / name, RunOptions(workers=1, measurements="used"))
            found.append(reads)
    assert len(found[0]) > 5
    assert any(support == b"everything" for *_, support in found[0]) == (estimator != "topdown")
    assert found[0] == found[1]
    assert files(tmp_path / "a" / "release") == files(tmp_path / "b" / "release")


# Planted markers.

MARK = "QZX77317"
NUMBER = "77317731"


def corrupt(folder: Path, line: str, *, header: str | None = None) -> Path:
    path = write_mini(folder)
    text = (folder / "counts.csv").read_text()
    if header is not None:
        text = text.replace("geocode,kind,age,count", header)
    (folder / "counts.csv").write_text(text + line + "\n")
    return path


SPOILED = {
    "a label outside its list": lambda f: corrupt(f, f"000000,{MARK},adult,3"),
    "a geocode outside the frame": lambda f: corrupt(f, f"{MARK[:6]},home,adult,3"),
    "a geocode of another length": lambda f: corrupt(f, f"{MARK}{MARK},home,adult,3"),
    "a count that is not a number": lambda f: corrupt(f, f"000000,home,adult,{MARK}"),
    "a count that is negative": lambda f: corrupt(f, f"000000,home,adult,-{NUMBER}"),
    "a count that is too large": lambda f: corrupt(f, f"000000,home,adult,{NUMBER}{NUMBER}{NUMBER}"),
    "a count with a fraction": lambda f: corrupt(f, f"000000,home,adult,{NUMBER}.5"),
    "a row that is too long": lambda f: corrupt(f, f"000000,home,adult,3,{MARK}"),
    "a structural zero": lambda f: corrupt(f, f"000000,prison,child,{NUMBER}"),
    "people without a unit": lambda f: corrupt(f, f"000000,school,adult,{NUMBER}"),
    "a quote that is not closed": lambda f: corrupt(f, f'000000,home,"{MARK},3'),
    "a letter of another encoding": lambda f: corrupt(f, f"000000,home,{MARK}\udcff,3"),
}


def everything_said(out: Path, capture: pytest.CaptureFixture[str], log: pytest.LogCaptureFixture) -> bytes:
    said = capture.readouterr()
    outside = files(out) if out.exists() else {}
    kept = b"\0".join(data for name, data in outside.items() if not name.startswith("confidential/"))
    return (said.out + said.err + log.text).encode() + b"\0" + kept + b"\0".join(n.encode() for n in outside)


@pytest.mark.parametrize("what", list(SPOILED))
@pytest.mark.parametrize("debug", [False, True])
def test_no_message_quotes_the_input(
    tmp_path: Path,
    what: str,
    debug: bool,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if what == "a letter of another encoding":
        path = corrupt(tmp_path, "")
        with (tmp_path / "counts.csv").open("ab") as file:
            file.write(f"000000,home,{MARK}".encode() + b"\xff,3\n")
    else:
        path = SPOILED[what](tmp_path)
    if debug:
        monkeypatch.setenv("OPENDAS_DEBUG", "1")
    caplog.set_level(logging.DEBUG)
    out = tmp_path / "out"
    code = guarded(cli, ["run", str(path), "--out", str(out)])
    assert code in (0, 3, 5), what
    text = everything_said(out, capsys, caplog)
    assert MARK.encode() not in text
    assert MARK[:6].encode() not in text
    if code:
        assert NUMBER.encode() not in text
    if code == 3:
        assert not (out / "ledger.jsonl").exists() or (out / "ledger.jsonl").read_bytes() == b""


def test_columns_that_a_run_does_not_ask_for_leave_no_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = write_mini(tmp_path)
    lines = (tmp_path / "counts.csv").read_text().splitlines()
    lines = [f"{lines[0]},name_{MARK}", *(f"{line},{MARK}" for line in lines[1:])]
    (tmp_path / "counts.csv").write_text("\n".join(lines) + "\n")
    out = tmp_path / "out"
    assert guarded(cli, ["run", str(path), "--out", str(out)]) == 0
    assert MARK.encode() not in everything_said(out, capsys, caplog)


def test_an_internal_error_in_a_run_shows_no_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local variable, the message and the cause of the error hold the count: stderr has none of them."""

    def broken(self: object, level: int, first: int, children: int, support: object) -> None:
        count = int(NUMBER)
        try:
            raise KeyError(count)
        except KeyError as error:
            raise ValueError(f"unexpected {count}") from error

    monkeypatch.setattr(work.NoisyMeasurements, "family", broken)
    # The check for sparse tables estimates synthetic counts before the run has a folder for a trace.
    monkeypatch.setattr("opendas.runs.prepare.sparse_warning", lambda *_, **__: None)
    monkeypatch.setenv("OPENDAS_DEBUG", "1")
    out = tmp_path / "out"
    assert guarded(cli, ["run", str(write_mini(tmp_path)), "--out", str(out)]) == 70
    said = capsys.readouterr()
    assert NUMBER not in said.err + said.out
    outside = {n: d for n, d in files(out).items() if not n.startswith("confidential/")}
    assert NUMBER.encode() not in b"\0".join(outside.values())
    trace = (out / "confidential" / "logs" / "traceback.txt").read_text()
    assert "count = int" not in trace.replace("count = int(NUMBER)", ""), "no values of locals"


# Commands.


def test_the_released_run_file_names_no_path_and_no_key(tmp_path: Path) -> None:
    secret = "c3" * 32
    out = tmp_path / "out"
    create_book(tmp_path / "shared-ledger", "record", rho="10")
    options = RunOptions(key_command=f"echo {secret}", ledger=tmp_path / "shared-ledger")
    release(load(write_mini(tmp_path)), out, options)
    text = (out / "release" / "run" / "mini.toml").read_text()
    for word in (secret, "echo", "counts.csv", "frame.csv", "product.toml", "ledger", str(tmp_path), "key"):
        assert word not in text
    assert not list((out / "confidential" / "keys").iterdir()), "a key from a command is kept elsewhere"
    assert secret.encode() not in b"\0".join(files(out).values())


def test_evaluate_writes_under_confidential_only_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = write_mini(tmp_path), tmp_path / "out"
    release(load(path), out, RunOptions())
    before = files(out)
    assert guarded(cli, ["evaluate", str(out), "--truth", str(path)]) == 0
    assert "confidential" in capsys.readouterr().err
    new = files(out)
    changed = {name for name in new if new[name] != before.get(name)}
    assert changed
    issued = {"ledger.jsonl", *(f"release/{name}" for name in ISSUED_FILES)}  # that it was evaluated
    assert all(name.startswith("confidential/evaluation/") for name in changed - issued)
    assert "read 1 time" not in before["release/certificate.json"].decode()
    assert "the confidential data were read 1 time without noise" in new["release/certificate.json"].decode()
    assert before.keys() <= new.keys()


def test_a_lost_or_forgotten_key_is_a_privacy_refusal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = write_mini(tmp_path), tmp_path / "out"
    release(load(path), out, RunOptions(measurements="used"))
    assert guarded(cli, ["forget-key", str(out)]) in (0, 2)
    if (out / "confidential" / "keys" / "mini.key").exists():
        assert guarded(cli, ["forget-key", str(out), "--yes"]) == 0
    assert guarded(cli, ["measure", str(path), "--out", str(out), "--resume"]) == 4
    assert guarded(cli, ["run", str(path), "--out", str(out), "--resume"]) == 0
    state = out / "state" / "mini" / "run.json"
    state.write_text(state.read_text().replace('"finished"', '"started"'))
    assert guarded(cli, ["run", str(path), "--out", str(out), "--resume"]) == 4
    capsys.readouterr()


def test_showing_the_rest_of_a_measurement_keeps_the_finished_run(tmp_path: Path) -> None:
    path, out = write_mini(tmp_path), tmp_path / "out"
    first = release(load(path), out, RunOptions(keep_key=True, measurements="used"))
    before = files(out / "release")
    certified = json.loads(before["certificate.json"])["runs"][0]
    answer = measure(load(path), out, RunOptions(resume=True, keep_key=True))
    after = files(out / "release")
    assert answer["records"] == first["records"]
    assert json.loads(after["certificate.json"])["runs"][0] == certified | {"measurements": "full"}
    unchanged = [n for n in before if n.startswith(("mdf/", "geography/", "run/"))]
    assert all(before[name] == after[name] for name in unchanged)
    assert all(check.ok for check in verify_release(out))
    assert release(load(path), out, RunOptions(resume=True))["records"] == first["records"]
    assert len(Ledger.read(out / "ledger.jsonl")) == 1


@pytest.mark.parametrize("kept", ["key", "nothing"])
def test_a_product_whose_state_was_removed_is_not_run_again_in_its_folder(tmp_path: Path, kept: str) -> None:
    path, out = write_mini(tmp_path), tmp_path / "out"
    release(load(path), out, RunOptions(keep_key=True))
    shutil.rmtree(out / "state" / "mini")
    if kept == "nothing":
        (out / "confidential" / "keys" / "mini.key").unlink()
    with pytest.raises(PrivacyError, match="new folder"):
        release(load(path), out, RunOptions(keep_key=True))
    assert len(Ledger.read(out / "ledger.jsonl")) == 1


def test_leaves_that_the_microdata_cannot_show_are_refused_before_anything_is_spent(tmp_path: Path) -> None:
    (tmp_path / "frame.csv").write_text("geocode\n0101\n0102\n")
    (tmp_path / "counts.csv").write_text("geocode,occupancy,count\n0101,occupied,3\n")
    (tmp_path / "run.toml").write_text(
        """\
[run]
product = "pl94-units"
[input]
reader = "histogram"
path = "counts.csv"
[geography]
levels = [{ name = "region", prefix = 2 }, { name = "ward", prefix = 4 }]
frame = "frame.csv"
[budget]
rho = "1"
geolevels = { region = "1/2", ward = "1/2" }
[budget.queries]
"*" = { detailed = "1" }
"""
    )
    out = tmp_path / "out"
    with pytest.raises(GeographyError):
        release(load(tmp_path / "run.toml"), out, RunOptions())
    assert not out.exists() or Ledger.read(out / "ledger.jsonl") == ()


def test_a_plan_is_made_without_reading_a_record(tmp_path: Path) -> None:
    """Spine, budget and noise are functions of public data: the counts may be anything."""
    path = write_mini(tmp_path)
    before = load(path).plan.digest()
    (tmp_path / "counts.csv").write_text("geocode,kind,age,count\n" + MARK * 100)
    assert load(path).plan.digest() == before
