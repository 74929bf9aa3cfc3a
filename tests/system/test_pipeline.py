"""Whole runs on a miniature census: the two walls, resume, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.mini import from_dense, mini_frame, mini_histogram, to_dense, write_mini

import opendas.engines.local_backend as backend_module
import opendas.runs.release as pipeline
from opendas.custody.books import create_book
from opendas.custody.folders import write_atomic
from opendas.custody.run_key import RunKey
from opendas.engines.measurement_source import FileSource
from opendas.errors import ConfigError, DataError, EnvironmentFailure, PrivacyError
from opendas.files.nmf.reading import MeasurementFile
from opendas.readers.input.spec import InputData, ReaderSpec
from opendas.runs.context.run import load
from opendas.runs.context.workspace import forget_keys
from opendas.runs.options import RunOptions
from opendas.runs.release import estimate, measure, release
from opendas.verify.release import verify_release


@pytest.fixture(autouse=True)
def _fixed_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


def tree(folder: Path, *, without: tuple[str, ...] = ()) -> dict[str, bytes]:
    """Return every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in without
    }


each_estimator = pytest.mark.parametrize("estimator", ["topdown", "informed"])


def by(estimator: str) -> str:
    """Return a line of ``[run]``."""
    return f'estimator = "{estimator}"'


ISSUED = ("certificate.json", "certificate.pdf", "report.html")


def but_issued(folder: Path) -> dict[str, bytes]:
    """A release without what says where its key is."""
    return {name: data for name, data in tree(folder).items() if name not in ISSUED}


def test_a_run_writes_a_release_behind_the_release_wall(tmp_path: Path) -> None:
    out = tmp_path / "out"
    answer = release(load(write_mini(tmp_path)), out, RunOptions(keep_key=True))
    assert answer["records"] == mini_histogram(mini_frame()).total()
    assert set(ISSUED) <= {path.name for path in (out / "release").iterdir()}
    assert stat.S_IMODE((out / "confidential").stat().st_mode) == 0o700
    assert stat.S_IMODE((out / "ledger.jsonl").stat().st_mode) == 0o600
    assert stat.S_IMODE((out / "confidential" / "keys" / "mini.key").stat().st_mode) == 0o600
    assert not list((out / "state").rglob("*.part"))
    assert not list(out.rglob("*.partial"))


def test_nothing_confidential_enters_the_release(tmp_path: Path) -> None:
    """No key, tag, commitment, run id, path, host or user in any released byte."""
    out = tmp_path / "out"
    release(load(write_mini(tmp_path)), out, RunOptions(keep_key=True))
    state = json.loads((out / "state" / "mini" / "run.json").read_text())
    secrets = [
        (out / "confidential" / "keys" / "mini.key").read_text().split("\n")[2],
        state["input_tag"],
        state["key_commitment"],
        state["run_id"],
        str(tmp_path),
        os.uname().nodename,
    ]
    for name, data in tree(out / "release").items():
        for secret in secrets:
            assert secret.encode() not in data, name


@each_estimator
def test_a_lazy_run_equals_estimating_from_the_full_file(tmp_path: Path, estimator: str) -> None:
    run = load(write_mini(tmp_path, run=by(estimator)))
    release(run, tmp_path / "lazy", RunOptions(seed=4))
    measure(run, tmp_path / "phases", RunOptions(seed=4))
    os.rename(tmp_path / "counts.csv", tmp_path / "gone.csv")
    shutil.rmtree(tmp_path / "phases" / "confidential" / "keys")
    estimate(load(tmp_path / "run.toml", need_input=False), tmp_path / "phases", RunOptions())
    lazy, phases = tree(tmp_path / "lazy" / "release" / "mdf"), tree(tmp_path / "phases" / "release" / "mdf")
    assert lazy == phases


def test_one_measurement_is_estimated_both_ways_and_the_certificate_says_which(tmp_path: Path) -> None:
    measure(load(write_mini(tmp_path)), tmp_path / "topdown", RunOptions(seed=4))
    shutil.copytree(tmp_path / "topdown", tmp_path / "informed")
    found = {}
    for estimator in ("topdown", "informed"):
        out = tmp_path / estimator
        run = load(write_mini(tmp_path, run=by(estimator)), need_input=False)
        estimate(run, out, RunOptions())
        found[estimator] = tree(out / "release" / "mdf")
        certified = json.loads((out / "release" / "certificate.json").read_text())["runs"][0]
        assert certified["estimator"] == estimator
        assert all(check.ok for check in verify_release(out, allow_seeded=True))
        assert estimator in (out / "release" / "report.html").read_text()
    assert found["topdown"] != found["informed"]


def test_used_measurements_of_an_informed_run_are_those_its_families_could_use(tmp_path: Path) -> None:
    """They cannot be estimated from again; all of them come with ``measure``, at no further cost."""
    run, out = load(write_mini(tmp_path, run=by("informed"))), tmp_path / "out"
    release(run, out, RunOptions(seed=4, measurements="used", keep_key=True))
    folder = out / "release" / "measurements" / "mini"
    for level in ("region", "town", "block"):
        assert MeasurementFile(folder / f"{level}.parquet").metadata["stored"] == "used"
    measure(run, out, RunOptions(seed=4, resume=True))
    again = tmp_path / "again"
    measure(run, again, RunOptions(seed=4))
    assert tree(folder) == tree(again / "release" / "measurements" / "mini")
    assert all(check.ok for check in verify_release(out, allow_seeded=True))


def test_few_noisy_answers_are_written_in_full_unless_others_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = load(write_mini(tmp_path))
    draws = run.plan.draws
    for limit, asked, found in (
        (draws, "auto", "full"),
        (draws - 1, "auto", "used"),
        (draws - 1, "full", "full"),
        (draws, "used", "used"),
    ):
        monkeypatch.setattr("opendas.runs.options.FULL_UP_TO", limit)
        out = tmp_path / f"{limit}{asked}"
        release(run, out, RunOptions(seed=4, measurements=asked))
        folder = out / "release" / "measurements" / "mini"
        files = [MeasurementFile(folder / f"{level}.parquet") for level in run.spine.names]
        certified = json.loads((out / "release" / "certificate.json").read_text())["runs"][0]
        assert {file.metadata["stored"] for file in files} == {certified["measurements"]} == {found}
        written = sum(len(answers.values) for file in files for answers in file.read().values())
        assert written == draws if found == "full" else written < draws


def test_asking_for_the_full_file_gives_the_values_of_measure(tmp_path: Path) -> None:
    run = load(write_mini(tmp_path))
    release(run, tmp_path / "run", RunOptions(seed=4, measurements="full"))
    measure(run, tmp_path / "measure", RunOptions(seed=4))
    full, measured = (tree(tmp_path / name / "release" / "measurements") for name in ("run", "measure"))
    assert full == measured
    assert len(full) == 5


@each_estimator
def test_the_wall_same_measurements_same_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, estimator: str
) -> None:
    """Another confidential input that gives the same measurements and invariants gives the same bytes."""
    frame = mini_frame()
    truth = to_dense(mini_histogram(frame))
    other = truth.copy()
    regions = frame.codes("region")
    for region in np.unique(regions):
        inside = np.flatnonzero(regions == region)
        donors = inside[truth[inside, 0] > 0]
        other[donors[0], 0] -= 1
        other[inside[inside != donors[0]][0], 2] += 1
    assert not np.array_equal(truth, other)
    first = load(write_mini(tmp_path / "a", run=by(estimator)))
    second = load(write_mini(tmp_path / "b", histogram=from_dense(other), run=by(estimator)))
    release(first, tmp_path / "one", RunOptions(measurements="full"))
    folder = tmp_path / "one" / "release" / "measurements" / "mini"

    def recorded(levels, key):
        return FileSource(levels, folder)

    monkeypatch.setattr(pipeline, "KeyedSource", recorded)
    monkeypatch.setattr(
        pipeline,
        "write_full",
        lambda to, *rest: [shutil.copy(path, to / path.name) for path in folder.iterdir()],
    )
    release(second, tmp_path / "two", RunOptions(measurements="full"))
    assert tree(tmp_path / "one" / "release") == tree(tmp_path / "two" / "release")


@each_estimator
def test_two_workers_give_the_same_release(tmp_path: Path, estimator: str) -> None:
    run = load(write_mini(tmp_path, run=by(estimator)))
    release(run, tmp_path / "one", RunOptions(seed=1, workers=1))
    release(run, tmp_path / "two", RunOptions(seed=1, workers=2))
    assert tree(tmp_path / "one" / "release") == tree(tmp_path / "two" / "release")


class Stop(Exception):
    """An interruption."""


@pytest.mark.parametrize(
    ("estimator", "calls"),
    [*(("topdown", calls) for calls in range(1, 12)), *(("informed", calls) for calls in range(3, 17, 2))],
)
def test_a_run_stopped_anywhere_finishes_with_the_same_bytes(
    tmp_path: Path, estimator: str, calls: int
) -> None:
    run = load(write_mini(tmp_path, run=by(estimator)))
    out = tmp_path / "out"
    seen = []

    def progress(stage: str, done: int, total: int) -> None:
        seen.append(stage)
        if len(seen) == calls:
            raise Stop

    stopped = False
    try:
        release(run, out, RunOptions(progress=progress, keep_key=True))
    except Stop:
        stopped = True
    answer = release(run, out, RunOptions(resume=True, keep_key=True))
    assert stopped == (len(seen) >= calls)
    key = RunKey.load(out / "confidential" / "keys" / "mini.key")
    again = tmp_path / "again"
    command = f"echo {key._secret.hex()}"
    release(run, again, RunOptions(key_command=command))
    assert but_issued(out / "release") == but_issued(again / "release")
    assert all(check.ok for check in verify_release(out))
    intents = [line for line in (out / "ledger.jsonl").read_text().splitlines() if '"intent"' in line]
    assert len(intents) == 1
    assert answer["records"] > 0


def test_a_second_run_needs_resume_and_resume_returns_the_result(tmp_path: Path) -> None:
    run, out = load(write_mini(tmp_path)), tmp_path / "out"
    first = release(run, out, RunOptions())
    before = tree(out / "release")
    with pytest.raises(ConfigError, match="--resume"):
        release(run, out, RunOptions())
    assert release(run, out, RunOptions(resume=True)) == first
    assert tree(out / "release") == before


@pytest.mark.parametrize("other", [False, True])
def test_a_finished_run_that_is_resumed_leaves_no_input_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, other: bool
) -> None:
    """It reads its input again, to see that it is the same; what is large stands in a folder meanwhile."""
    path, out = write_mini(tmp_path), tmp_path / "out"
    release(load(path), out, RunOptions(keep_key=True))
    read = backend_module.LocalBackend.read
    put: list[Path] = []

    def read_and_put_aside(self: backend_module.LocalBackend, spec: ReaderSpec, cache: Path) -> InputData:
        cache.mkdir(parents=True)
        (cache / "counts").write_bytes(b"counts")
        put.append(cache)
        return read(self, spec, cache)

    monkeypatch.setattr(backend_module.LocalBackend, "read", read_and_put_aside)
    if other:
        write_mini(tmp_path, histogram=mini_histogram(mini_frame(), seed=9))
        with pytest.raises(PrivacyError, match="input"):
            release(load(path), out, RunOptions(resume=True))
    else:
        release(load(path), out, RunOptions(resume=True))
    assert len(put) == 1
    assert not put[0].exists()


def test_without_its_key_a_run_whose_input_was_changed_is_not_resumed(tmp_path: Path) -> None:
    """Each file is looked at, also where several have one name."""
    path, out = write_mini(tmp_path), tmp_path / "out"
    header, *rows = (tmp_path / "counts.csv").read_text().splitlines()
    for state in "ab":
        (tmp_path / state).mkdir()
        some = rows[:9] if state == "a" else rows[9:]
        (tmp_path / state / "counts.csv").write_text("\n".join([header, *some]) + "\n")
    path.write_text(path.read_text().replace('"counts.csv"', '["a/counts.csv", "b/counts.csv"]'))
    first = release(load(path), out, RunOptions())
    assert release(load(path), out, RunOptions(resume=True)) == first
    os.utime(tmp_path / "a" / "counts.csv", (1, 1))
    with pytest.raises(PrivacyError, match="or it was written again since"):
        release(load(path), out, RunOptions(resume=True))


def test_resume_refuses_other_input_plan_seed_and_key(tmp_path: Path) -> None:
    path, out = write_mini(tmp_path), tmp_path / "out"
    release(load(path), out, RunOptions(keep_key=True))
    text = path.read_text()
    changes = {
        "input": lambda: write_mini(tmp_path, histogram=mini_histogram(mini_frame(), seed=9)),
        "plan": lambda: path.write_text(text.replace('rho = "2"', 'rho = "3"')),
        "estimation": lambda: path.write_text(text + '[passes]\nslack = "0.01"\n'),
        "estimation settings": lambda: write_mini(tmp_path, run=by("informed")),
    }
    for what, change in changes.items():
        write_mini(tmp_path)
        change()
        with pytest.raises(PrivacyError, match=what):
            release(load(path), out, RunOptions(resume=True))
    write_mini(tmp_path)
    with pytest.raises(PrivacyError, match="seed"):
        release(load(path), out, RunOptions(resume=True, seed=1))


def test_measurements_of_another_plan_are_not_returned(tmp_path: Path) -> None:
    path, out = write_mini(tmp_path), tmp_path / "out"
    first = measure(load(path), out, RunOptions())
    assert measure(load(path), out, RunOptions(resume=True)) == first
    estimate(load(path), out, RunOptions())
    other = load(write_mini(tmp_path, loss='rho = "3"'))
    for resumed in (measure, estimate):
        with pytest.raises(PrivacyError, match="plan"):
            resumed(other, out, RunOptions(resume=True))


DROPPED = 'drop_invariants = ["total"]'


@pytest.mark.parametrize(("measured", "estimated"), [("", DROPPED), (DROPPED, "")])
def test_an_estimate_holds_the_invariants_that_were_published_with_its_measurements(
    tmp_path: Path, measured: str, estimated: str
) -> None:
    """Or the certificate would name other values as exact than those that stand in the release."""
    out = tmp_path / "out"
    measure(load(write_mini(tmp_path, run=measured)), out, RunOptions())
    with pytest.raises(PrivacyError, match="other invariants"):
        estimate(load(write_mini(tmp_path, run=estimated)), out, RunOptions())
    path = out / "release" / "certificate.json"
    certificate = json.loads(path.read_text())
    certificate["runs"][0]["invariants"] = [] if not measured else ["total@region"]
    path.write_text(json.dumps(certificate))
    failed = {check.name: check.detail for check in verify_release(out) if not check.ok}
    assert "differ" in failed["mini: declared constraints"]


def test_an_unfinished_run_needs_its_own_key(tmp_path: Path) -> None:
    run, out = load(write_mini(tmp_path)), tmp_path / "out"

    def progress(stage: str, done: int, total: int) -> None:
        if stage.startswith("estimating"):
            raise Stop

    with pytest.raises(Stop):
        release(run, out, RunOptions(progress=progress))
    path = out / "confidential" / "keys" / "mini.key"
    path.unlink()
    with pytest.raises(PrivacyError, match="cannot be resumed"):
        release(run, out, RunOptions(resume=True))
    RunKey.generate().save(path)
    with pytest.raises(PrivacyError, match="not the one"):
        release(run, out, RunOptions(resume=True))


def test_after_forget_key_a_finished_run_still_answers_and_draws_no_more(tmp_path: Path) -> None:
    run, out = load(write_mini(tmp_path)), tmp_path / "out"
    first = release(run, out, RunOptions(keep_key=True, measurements="used"))
    assert forget_keys(out) == ("mini",)
    assert not (out / "confidential" / "keys" / "mini.key").exists()
    assert release(run, out, RunOptions(resume=True)) == first
    with pytest.raises(PrivacyError, match="destroyed"):
        measure(run, out, RunOptions(resume=True))


def test_seeded_and_real_runs_share_no_folder(tmp_path: Path) -> None:
    run = load(write_mini(tmp_path))
    other = replace(run.resolved.product, name="other", layout="other")
    second = type(run)(run.path, replace(run.resolved, product=other))
    release(run, tmp_path / "out", RunOptions(seed=1))
    with pytest.raises(PrivacyError):
        release(second, tmp_path / "out", RunOptions())


def test_foreign_folders_and_files_are_refused(tmp_path: Path) -> None:
    run = load(write_mini(tmp_path))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match="thesis"):
        release(run, tmp_path / "full", RunOptions())
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.txt"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError):
        release(run, tmp_path / "file", RunOptions())


def test_a_full_disk_leaves_a_resumable_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, out = load(write_mini(tmp_path)), tmp_path / "out"

    def full(path: Path, data: bytes) -> None:
        if path.suffix == ".part" and path.name.startswith("stage1"):
            raise EnvironmentFailure("Could not write: No space left on device.")
        write_atomic(path, data)

    monkeypatch.setattr(backend_module, "write_atomic", full)
    with pytest.raises(EnvironmentFailure):
        release(run, out, RunOptions())
    assert not (out / "release" / "certificate.json").exists()
    monkeypatch.undo()
    assert release(run, out, RunOptions(resume=True))["records"] > 0


def test_a_key_used_with_other_input_in_one_ledger_is_refused(tmp_path: Path) -> None:
    command = "echo " + "ab" * 32
    ledger = tmp_path / "records.book"
    create_book(ledger, "record", rho="10")
    release(
        load(write_mini(tmp_path / "a")), tmp_path / "one", RunOptions(key_command=command, ledger=ledger)
    )
    other = write_mini(tmp_path / "b", histogram=mini_histogram(mini_frame(), seed=5))
    with pytest.raises(PrivacyError):
        release(load(other), tmp_path / "two", RunOptions(key_command=command, ledger=ledger))
    assert not (tmp_path / "two").exists(), "a run that never started leaves nothing"


@pytest.mark.parametrize(("command", "error"), [("false", EnvironmentFailure), ("echo 12", PrivacyError)])
def test_a_key_command_that_fails_is_an_error(tmp_path: Path, command: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        release(load(write_mini(tmp_path)), tmp_path / "out", RunOptions(key_command=command))


def test_pure_differential_privacy_runs_too(tmp_path: Path) -> None:
    path = write_mini(tmp_path, run='mechanism = "discrete-laplace"', loss='epsilon = "4"')
    answer = release(load(path), tmp_path / "out", RunOptions())
    assert answer["rho"] is None
    assert answer["epsilon"] == "4"


def test_unbounded_neighbours_need_dropped_invariants(tmp_path: Path) -> None:
    run = load(write_mini(tmp_path / "a", run='neighbours = "unbounded"'))
    with pytest.raises(PrivacyError, match="unbounded"):
        release(run, tmp_path / "out", RunOptions())
    assert not (tmp_path / "out").exists()
    path = write_mini(tmp_path / "b", run='neighbours = "unbounded"\ndrop_invariants = ["total"]')
    assert release(load(path), tmp_path / "out", RunOptions())["records"] >= 0


def test_block_by_block_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="block-by-block"):
        load(write_mini(tmp_path / "a", run='estimator = "block-by-block"'))
    path = write_mini(tmp_path / "b", run='estimator = "block-by-block"\ndrop_invariants = ["total"]')
    answer = release(load(path), tmp_path / "out", RunOptions())
    assert answer["families"] == len(mini_frame())


def test_a_run_that_never_started_leaves_nothing(tmp_path: Path) -> None:
    path = write_mini(tmp_path)
    counts = tmp_path / "counts.csv"
    counts.write_text(counts.read_text() + "000000,castle,adult,3\n")
    with pytest.raises(DataError):
        release(load(path), tmp_path / "out", RunOptions(keep_key=True))
    assert not (tmp_path / "out").exists()
    write_mini(tmp_path)
    assert release(load(path), tmp_path / "out", RunOptions(keep_key=True))["records"] > 0
    counts.write_text("nonsense")
    log = Path("confidential/logs/mini.jsonl")  # the attempt is told there, and nowhere else
    before = tree(tmp_path / "out")
    with pytest.raises(DataError):
        release(load(path), tmp_path / "out", RunOptions(resume=True))
    after = tree(tmp_path / "out")
    assert after.pop(str(log)).startswith(before.pop(str(log)))
    assert after == before
