"""A run that is watched: forecast, log, status from outside, families; and what none of them may say."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.mini import mini_frame, mini_histogram, write_mini

import opendas as od
import opendas.runs.options
import opendas.runs.simulated.forecast
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.errors import EnvironmentFailure
from opendas.runs.act import Act
from opendas.runs.context.run import load
from opendas.runs.options import RunOptions
from opendas.runs.progress.log import log_path, read_log
from opendas.runs.release import estimate, measure, release
from opendas.runs.simulated.forecast import Forecast

Capture = pytest.CaptureFixture[str]

STOP = """
import os, signal, sys
import opendas as od

def stop(stage, done, total):
    if stage.startswith("estimating") and done:
        os.kill(os.getpid(), signal.SIGKILL)

od.release(od.load(sys.argv[1]), sys.argv[2], progress=stop)
"""


def log_of(out: Path) -> Any:
    return read_log(log_path(out / "confidential", "mini"))


def test_a_run_says_what_it_will_need_and_logs_what_it_did(tmp_path: Path) -> None:
    told: list[Forecast] = []
    out = tmp_path / "out"
    answer = release(load(write_mini(tmp_path)), out, RunOptions(expect=lambda f, w: told.append(f)))
    assert len(told) == 1
    lines = log_of(out).lines
    events = [line["event"] for line in lines]
    assert (events[0], events[-1]) == ("start", "end")
    assert events.index("forecast") < events.index("phase")  # which is when the ledger has the act
    phase = lines[events.index("phase")]
    assert (phase["phase"], phase["leaves"], phase["workers"]) == ("started", 24, 1)
    assert phase["geounits"]["block"] == 24
    certificate = json.loads((out / "release" / "certificate.json").read_text())
    assert phase["plan_digest"] in json.dumps(certificate)
    assert phase["spine_digest"] in json.dumps(certificate)
    stages = {line["stage"] for line in lines if line["event"] == "stage"}
    assert {"reading", "estimating block", "writing"} <= stages
    steps = [line["step"] for line in lines if line["event"] == "step"]
    assert {"read", "plan", "estimate", "certificate and report"} <= set(steps)
    families = pq.read_table(out / "confidential" / "timings" / "mini_families.parquet")
    assert families.num_rows == answer["families"]
    assert sum(families.column("fallback").to_pylist()) == answer["fallbacks"]
    assert all(seconds > 0 for seconds in families.column("seconds").to_pylist())
    (row,) = od.status(out)
    assert (row["state"], row["phase"], row["attempts"]) == ("finished", "finished", 1)


def test_no_log_and_no_status_holds_what_is_confidential(tmp_path: Path) -> None:
    out = tmp_path / "out"
    release(load(write_mini(tmp_path)), out, RunOptions(keep_key=True))
    text = log_path(out / "confidential", "mini").read_text("ascii")
    key = (out / "confidential" / "keys" / "mini.key").read_text().split()[-1]
    assert key not in text
    state = json.loads((out / "state" / "mini" / "run.json").read_text())
    assert state["input_tag"] not in text
    assert state["key_commitment"] not in text
    # The numbers of a log are times, sizes, and public numbers of geounits and files.
    records = mini_histogram(mini_frame()).total()
    for line in log_of(out).lines:
        for name in ("done", "total", "leaves"):
            assert line.get(name) != records
    # What the machine measured (times, memory) may hold any digits; every other number is compared.
    measured = {"pid", "peak_rss_mb", "elapsed", "started", "updated"}
    (row,) = od.status(out)
    assert measured - {"pid"} <= set(row)
    said = json.dumps({name: value for name, value in row.items() if name not in measured})
    assert str(records) not in re.findall(r"\d+", said)


def test_status_while_another_process_is_at_work_in_the_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = "import sys, json, opendas; print(json.dumps(opendas.status(sys.argv[1])))"
    seen: list[dict[str, Any]] = []

    def look(stage: str, done: int, total: int) -> None:
        if (stage == "reading" and not done) or (stage == "estimating block" and done == total):
            asked = subprocess.run(
                [sys.executable, "-c", code, str(out)], capture_output=True, check=True, text=True
            )
            seen.extend(json.loads(asked.stdout))

    release(load(write_mini(tmp_path)), out, RunOptions(progress=look))
    assert {row["state"] for row in seen} == {"running"}
    assert seen[0]["phase"] == "preparing"
    assert (seen[-1]["phase"], seen[-1]["stage"]) == ("started", "estimating block")
    assert (seen[-1]["done"], seen[-1]["total"]) == (24, 24)
    assert sys.platform != "linux" or seen[-1]["memory_mb"] > 1


def test_a_killed_run_is_seen_as_stopped_and_goes_on_in_the_same_log(tmp_path: Path, capsys: Capture) -> None:
    run_file, out = write_mini(tmp_path), tmp_path / "out"
    killed = subprocess.run([sys.executable, "-c", STOP, str(run_file), str(out)], check=False)
    assert killed.returncode == -signal.SIGKILL
    (row,) = od.status(out)
    assert (row["state"], row["phase"]) == ("stopped", "started")
    assert guarded(cli, ["status", str(out)]) == 0
    assert "--resume" in capsys.readouterr().out
    assert guarded(cli, ["run", str(run_file), "--out", str(out), "--resume"]) == 0
    (row,) = od.status(out)
    assert (row["state"], row["attempts"]) == ("finished", 2)
    log = log_of(out)
    assert [line["resume"] for line in log.lines if line["event"] == "start"] == [False, True]
    assert (log.damaged, log.torn) == (0, False)
    families = pq.read_table(out / "confidential" / "timings" / "mini_families.parquet")
    assert None not in families.column("seconds").to_pylist()  # those of the first attempt are kept


def test_an_error_is_the_last_line(tmp_path: Path) -> None:
    run, out = load(write_mini(tmp_path)), tmp_path / "out"

    def fail(stage: str, done: int, total: int) -> None:
        if stage == "estimating block":
            raise EnvironmentFailure("the disk is full.")

    with pytest.raises(EnvironmentFailure):
        release(run, out, RunOptions(progress=fail))
    last = log_of(out).lines[-1]
    assert (last["event"], last["error"], last["exit_code"]) == ("error", "EnvironmentFailure", 6)
    (row,) = od.status(out)
    assert (row["state"], row["error"]) == ("failed", "EnvironmentFailure: the disk is full.")
    release(run, out, RunOptions(resume=True))
    assert od.status(out)[0]["state"] == "finished"


def test_measuring_and_estimating_are_attempts_of_one_log(tmp_path: Path) -> None:
    run, out = load(write_mini(tmp_path)), tmp_path / "out"
    told: list[Forecast] = []
    measure(run, out, RunOptions(measurements="full", expect=lambda f, w: told.append(f)))
    assert told[0].scratch_mb == 0
    assert od.status(out)[0]["state"] == "finished"
    estimate(run, out, RunOptions())
    log = log_of(out)
    assert [line["command"] for line in log.lines if line["event"] == "start"] == ["measure", "estimate"]
    assert (out / "confidential" / "timings" / "mini_families.parquet").is_file()


def test_a_disk_that_cannot_hold_the_outputs_is_refused_before_anything_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    class Full:
        free = 0

    monkeypatch.setattr(opendas.runs.simulated.forecast.shutil, "disk_usage", lambda path: Full)
    run_file, out = write_mini(tmp_path), tmp_path / "out"
    assert guarded(cli, ["run", str(run_file), "--out", str(out)]) == 6
    assert "nothing was drawn" in capsys.readouterr().err
    assert not out.exists()


def test_the_forecast_is_on_the_screen_before_the_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(opendas.runs.simulated.forecast, "available_memory_mb", lambda: 1.0)
    run_file, out = write_mini(tmp_path), tmp_path / "out"
    assert guarded(cli, ["run", str(run_file), "--out", str(out), "--json"]) == 0
    said = capsys.readouterr()
    json.loads(said.out)
    assert said.err.index("expected: ") < said.err.index("estimating")
    assert "warning: 1 MB of memory is available" in said.err
    assert any(line["event"] == "note" and "1 MB" in line["message"] for line in log_of(out).lines)
    assert guarded(cli, ["plan", str(run_file), "--json"]) == 0
    forecast = json.loads(capsys.readouterr().out)["forecast"]
    assert forecast["seconds"] > 0
    assert any("24 block" in line for line in forecast["assumptions"])


def test_what_a_run_will_not_write_is_said_before_it_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    run_file, out = write_mini(tmp_path), tmp_path / "out"
    answers = load(run_file).plan.draws

    def planned() -> tuple[dict[str, Any], str]:
        assert guarded(cli, ["plan", str(run_file), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["forecast"]["measurements"]
        for more in ([], ["--full"]):
            assert guarded(cli, ["plan", str(run_file), *more]) == 0
            assert f"measurements: {found['text']}" in capsys.readouterr().out
        return found, found["text"]

    found, said = planned()
    assert (found["stored"], found["answers"]) == ("full", answers)
    assert said.startswith(f"all {answers:,} noisy answers")

    monkeypatch.setattr(opendas.runs.options, "FULL_UP_TO", answers - 1)
    found, said = planned()
    assert found["stored"] == "used"
    for word in ("--measurements full", "opendas measure --resume", "--keep-key", f"of {answers:,}"):
        assert word in said
    charge, before = Act.charge, []

    def charged(self: Act, *given: object) -> object:
        before.append(" ".join(capsys.readouterr().err.split()))
        return charge(self, *given)

    monkeypatch.setattr(Act, "charge", charged)
    assert guarded(cli, ["run", str(run_file), "--out", str(out)]) == 0
    assert said in before[0], "nothing is spent yet"
    (certified,) = json.loads((out / "release" / "certificate.json").read_text())["runs"]
    assert certified["measurements"] == "used", "what was said is what was done"


def test_watching_ends_with_the_run(tmp_path: Path, capsys: Capture) -> None:
    run_file, out = write_mini(tmp_path), tmp_path / "out"
    assert guarded(cli, ["run", str(run_file), "--out", str(out)]) == 0
    capsys.readouterr()
    assert guarded(cli, ["status", str(out), "--watch"]) == 0
    assert capsys.readouterr().out.startswith("mini: finished\n")
    assert os.listdir(out / "confidential" / "logs") == ["mini.jsonl"]
