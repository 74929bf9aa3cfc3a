"""How far a run is, from its log and state: at work, stopped, failed, finished, damaged, foreign."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import opendas.runs.progress.log
from opendas.errors import ConfigError, EnvironmentFailure, InfeasibleFamily
from opendas.runs.context.workspace import RunState
from opendas.runs.progress.log import RunLog, log_path
from opendas.runs.progress.processes import ProcessMark, own_mark
from opendas.runs.status import RunStatus, folder_status

START = 1_700_000_000.0


class Hands:
    """Clocks that the test moves."""

    mono = 0.0

    def clock(self) -> float:
        return self.mono

    def now(self) -> float:
        return START + self.mono


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def log(tmp_path: Path, hands: Hands) -> RunLog:
    (tmp_path / "confidential").mkdir()
    return RunLog(log_path(tmp_path / "confidential", "mini"), clock=hands.clock, now=hands.now)


def begin(
    log: RunLog, mark: ProcessMark | None = None, monkeypatch: Any = None, command: str = "run"
) -> None:
    if mark is not None:
        monkeypatch.setattr(opendas.runs.progress.log, "own_mark", lambda: mark)
    log.start(product="mini", command=command, workers=2)


def state(folder: Path, phase: str) -> None:
    found = RunState("00", "mini", "1.0", "aa", "bb", "cc", "dd", None, phase)
    path = folder / "state" / "mini" / "run.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({name: getattr(found, name) for name in RunState.__slots__}))


def only(folder: Path, hands: Hands | None = None) -> RunStatus:
    before = tree(folder)
    (row,) = folder_status(folder, (hands or Hands()).now)
    assert tree(folder) == before  # asking never writes
    json.dumps(row.to_dict(), allow_nan=False)
    return row


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    }


def test_a_run_at_work(tmp_path: Path, log: RunLog, hands: Hands) -> None:
    begin(log)
    row = only(tmp_path, hands)
    assert (row.product, row.phase, row.state, row.stage) == ("mini", "preparing", "running", None)
    assert (row.workers, row.engine, row.attempts) == (2, "local", 1)
    log.progress("estimating block", 100, 1000)
    state(tmp_path, "started")
    for _ in range(4):
        hands.mono += 10
        log.progress("estimating block", 100 + 10 * int(hands.mono), 1000)
    hands.mono += 5
    row = only(tmp_path, hands)
    assert (row.phase, row.state, row.stage) == ("started", "running", "estimating block")
    assert (row.done, row.total, row.rate) == (500, 1000, 10.0)
    assert row.stage_left == 45  # 500 at 10 a second, five seconds ago
    assert row.seconds_left is None
    assert row.elapsed == 45
    assert row.started == "2023-11-14T22:13:20.000Z"
    assert row.updated == "2023-11-14T22:14:00.000Z"
    assert row.last_event == "progress"
    assert row.memory_mb is None or row.memory_mb > 1
    assert row.advice == ""
    log.close()


def test_the_last_stage_gives_the_time_left_of_the_whole_estimate(
    tmp_path: Path, log: RunLog, hands: Hands
) -> None:
    begin(log)
    log.write("phase", phase="started", geounits={"state": 1, "tract": 10, "block": 100})
    for stage, expected in (("estimating tract", None), ("estimating block", 50)):
        log.progress(stage, 0, 100)
        hands.mono += 50
        log.progress(stage, 50, 100)
        row = only(tmp_path, hands)
        assert (row.stage_left, row.seconds_left) == (50, expected)
    log.close()


def ended_process() -> ProcessMark:
    """Return the mark of a process that is gone."""
    code = "import os; print(os.getpid())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    mark = own_mark()
    return replace(mark, pid=int(done.stdout), started=None if mark.started is None else mark.started + 1)


def test_a_killed_run_is_stopped_and_told_to_resume(
    tmp_path: Path, log: RunLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(log, ended_process(), monkeypatch)
    log.close()
    row = only(tmp_path)
    assert (row.state, row.phase) == ("stopped", "preparing")
    assert "nothing was spent" in row.advice
    state(tmp_path, "started")
    row = only(tmp_path)
    assert (row.state, row.phase, row.stage_left) == ("stopped", "started", None)
    assert "opendas run RUN.toml --out OUT --resume" in row.advice
    state(tmp_path, "finished")
    assert (only(tmp_path).state, only(tmp_path).advice) == ("finished", "")


def test_a_run_on_another_machine_is_not_judged(
    tmp_path: Path, log: RunLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(log, replace(ended_process(), host="elsewhere"), monkeypatch)
    log.close()
    state(tmp_path, "started")
    row = only(tmp_path)
    assert row.state == "unknown"
    assert "elsewhere" in row.advice


def test_a_failed_run_says_why(tmp_path: Path, log: RunLog) -> None:
    def fail() -> None:
        with log:
            begin(log)
            raise InfeasibleFamily("44007", "least squares, pass 1 of 1")

    with pytest.raises(InfeasibleFamily):
        fail()
    state(tmp_path, "started")
    row = only(tmp_path)
    assert row.state == "failed"
    assert row.error is not None
    assert row.error.startswith("InfeasibleFamily: Family 44007")
    assert row.advice.startswith("correct what the error says")
    assert "--resume" in row.advice


def test_an_interrupted_run_is_stopped_not_failed(tmp_path: Path, log: RunLog) -> None:
    def interrupt() -> None:
        with log:
            begin(log)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    state(tmp_path, "started")
    row = only(tmp_path)
    assert row.state == "stopped"
    assert row.advice.startswith("the same command with --resume")


def test_an_estimate_that_was_stopped_is_not_taken_for_finished_measurements(
    tmp_path: Path, log: RunLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    state(tmp_path, "measured")
    begin(log, ended_process(), monkeypatch, command="measure")
    assert only(tmp_path).state == "finished"
    begin(log, ended_process(), monkeypatch, command="estimate")
    log.close()
    row = only(tmp_path)
    assert (row.state, row.attempts) == ("stopped", 2)
    assert "opendas estimate" in row.advice


def test_a_folder_without_a_log(tmp_path: Path) -> None:
    state(tmp_path, "started")
    row = only(tmp_path)
    assert (row.state, row.phase, row.attempts) == ("unknown", "started", 0)
    assert row.advice
    state(tmp_path, "finished")
    assert (only(tmp_path).state, only(tmp_path).advice) == ("finished", "")


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '{"a": 1}', "\x00", '{"run_id": []}'])
def test_damage_is_told_and_does_not_hide_other_runs(tmp_path: Path, text: str) -> None:
    state(tmp_path, "finished")
    other = tmp_path / "state" / "other" / "run.json"
    other.parent.mkdir()
    other.write_text(text)
    good, bad = folder_status(tmp_path)
    assert (good.product, good.phase, good.problem) == ("mini", "finished", None)
    assert (bad.product, bad.phase) == ("other", "damaged")
    assert bad.problem is not None
    assert "damaged" in bad.problem


def test_a_state_of_other_types_is_damaged(tmp_path: Path) -> None:
    state(tmp_path, "finished")
    path = tmp_path / "state" / "mini" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "run_id": []}))
    assert only(tmp_path).phase == "damaged"


def test_a_state_that_was_removed_is_not_taken_for_a_run_that_spent_nothing(
    tmp_path: Path, log: RunLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(log, ended_process(), monkeypatch)
    assert "nothing was spent as far as this folder shows" in only(tmp_path).advice
    (tmp_path / "ledger.jsonl").write_text("")
    assert "nothing was spent: " in only(tmp_path).advice
    log.write("phase", phase="started", run_id="00")
    log.close()
    row = only(tmp_path)
    assert row.phase == "damaged"
    assert row.problem is not None
    assert "run.json of mini is gone" in row.problem
    assert "charged in full" in row.advice


def test_a_damaged_ledger_is_told(tmp_path: Path) -> None:
    state(tmp_path, "finished")
    (tmp_path / "ledger.jsonl").write_text("rubbish\n")
    row = only(tmp_path)
    assert row.phase == "finished"
    assert row.problem is not None
    assert "ledger.jsonl, line 1" in row.problem


@pytest.mark.parametrize(
    "line",
    [
        {"event": "start"},
        {"event": "start", "host": "h", "pid": -1},
        {"event": "start", "host": own_mark().host, "pid": 2**62, "versions": {"opendas": 3}},
        {"event": "stage", "stage": None, "done": None, "total": 3},
        {"event": "stage", "stage": "x", "done": 5, "total": 0},
        {"event": "forecast", "steps": {"reading": "x"}, "levels": {"a": {}}},
        {"event": "error"},
        {"event": "end", "peak_rss_mb": None},
        {"event": "start", "ts": "0001-01-01T00:00:00"},
        {"event": "stage", "ts": "never", "mono": 2**60},
        {"event": "another"},
    ],
    ids=str,
)
def test_odd_lines_of_a_log_are_borne(tmp_path: Path, log: RunLog, line: dict[str, Any]) -> None:
    begin(log)
    log.close()
    path = log_path(tmp_path / "confidential", "mini")
    with path.open("a") as file:
        file.write(json.dumps({"ts": "2023-11-14T22:13:20.000Z", "mono": 1.0, **line}) + "\n")
    only(tmp_path)


def test_folders_that_are_none_of_ours(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        folder_status(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="not an output folder"):
        folder_status(tmp_path)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match="is not a folder"):
        folder_status(file)


def test_a_folder_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state(tmp_path, "started")
    scandir = os.listdir

    def closed(path: Path) -> Any:
        if path.name == "state":
            raise PermissionError(13, "Permission denied", str(path))
        return (path / name for name in scandir(path))

    monkeypatch.setattr(Path, "iterdir", closed)
    with pytest.raises(EnvironmentFailure, match="cannot be read: Permission denied"):
        folder_status(tmp_path)
