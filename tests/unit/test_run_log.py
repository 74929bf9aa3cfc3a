"""The log of a run: strict lines, closed to others, whole after a crash, and without a place for a secret."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import click
import pytest

import opendas.runs.progress.log as run_log
from opendas.cli.failures import guarded
from opendas.errors import ConfigError, DataError, InfeasibleFamily, OpendasError, PrivacyError
from opendas.runs.progress.log import FIELDS, RunLog, exit_code_of, log_path, read_log, safe_message


class Hands:
    """Clocks that the test moves."""

    mono = 100.0

    def clock(self) -> float:
        return self.mono

    def now(self) -> float:
        return 1_700_000_000.0 + self.mono


def opened(folder: Path, hands: Hands | None = None) -> RunLog:
    hands = hands or Hands()
    return RunLog(log_path(folder, "mini"), clock=hands.clock, now=hands.now)


def begin(log: RunLog) -> None:
    log.start(product="mini", command="run", workers=2)


def fail(folder: Path, error: Exception) -> None:
    with opened(folder) as log:
        begin(log)
        raise error


def refuse(constant: str) -> None:
    raise AssertionError(constant)


def test_lines_are_strict_json_with_documented_fields_in_a_closed_folder(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        begin(log)
        log.progress("reading", 0, 1)
        log.step("read", 0.25)
    path = log_path(tmp_path, "mini")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    lines = [json.loads(line, parse_constant=refuse) for line in path.read_text("ascii").splitlines()]
    assert [line["event"] for line in lines] == ["start", "stage", "step", "end"]
    for line in lines:
        assert line.keys() <= FIELDS.keys()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["ts"])
    assert lines[0]["ts"] == "2023-11-14T22:15:00.000Z"
    assert lines[-1]["exit_code"] == 0
    assert tuple(lines) == read_log(path).lines


def test_attempts_follow_each_other_in_one_file(tmp_path: Path) -> None:
    for _ in range(3):
        with opened(tmp_path) as log:
            begin(log)
            log.progress("reading", 1, 1)
    found = read_log(log_path(tmp_path, "mini"))
    assert [line["event"] for line in found.lines] == ["start", "stage", "end"] * 3
    assert len(found.attempt) == 3
    assert found.process is not None
    assert found.process.pid == os.getpid()


def test_a_torn_last_line_is_passed_over_and_the_next_attempt_starts_on_a_line_of_its_own(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as log:
        begin(log)
        log.progress("reading", 0, 1)
    path = log_path(tmp_path, "mini")
    whole = path.read_bytes()
    for cut in range(1, 40):
        path.write_bytes(whole[:-cut])
        found = read_log(path)
        assert found.torn
        assert found.damaged == 0
        assert [line["event"] for line in found.lines] == ["start", "stage"]
        with opened(tmp_path) as log:
            begin(log)
        again = read_log(path)
        assert [line["event"] for line in again.lines][-2:] == ["start", "end"]
        # A line that lost its newline only is a whole line once the next attempt has ended it.
        assert again.damaged == (0 if cut == 1 else 1)
        assert not again.torn


def test_whatever_else_is_in_the_file_is_passed_over(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        begin(log)
    path = log_path(tmp_path, "mini")
    rubbish = (
        b"\x00\xff\n[1]\n{}\n\n" + b"[" * 100_000 + b'\n{"ts": "x", "mono": NaN, "event": "end"}\n'
        b'{"ts": "x", "mono": "y", "event": "end"}\n{"ts": null, "mono": 1, "event": "end"}\n'
        b'{"ts": "x", "mono": 1, "event": "stage", "done": true}\n'
    )
    path.write_bytes(rubbish + path.read_bytes() + rubbish)
    found = read_log(path)
    assert [line["event"] for line in found.lines] == ["start", "end"]
    assert found.damaged == 16
    assert read_log(tmp_path / "nowhere.jsonl").lines == ()


def test_no_field_and_no_type_is_taken_that_is_not_documented(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for fields in (
        {"count": 3},
        {"key": "00"},
        {"cells": [1]},
        {"message": [3]},
        {"done": "x"},
        {"done": True},
    ):
        with pytest.raises(ValueError, match="a log has no field"):
            log.write("note", **fields)
    for number in (float("nan"), float("inf"), 10**400):
        with pytest.raises(ValueError, match="a log has no field"):
            log.write("note", seconds=number)
    log.close()
    assert log_path(tmp_path, "mini").read_bytes() == b""


def test_progress_is_logged_at_the_ends_of_a_stage_and_now_and_then(tmp_path: Path) -> None:
    hands = Hands()
    with opened(tmp_path, hands) as log:
        for done in range(1001):
            log.progress("estimating block", done, 1000)
            hands.mono += 0.02
    lines = read_log(log_path(tmp_path, "mini")).lines
    shown = [line["done"] for line in lines if line["event"] in ("stage", "progress")]
    assert shown[0] == 0
    assert shown[-1] == 1000
    assert len(shown) == 5
    assert shown[1:-1] == pytest.approx([250, 500, 750], abs=3)


def test_an_error_ends_in_the_log_with_class_and_exit_code(tmp_path: Path) -> None:
    with pytest.raises(InfeasibleFamily):
        fail(tmp_path, InfeasibleFamily("44007", "least squares, pass 1 of 1", ["state total"]))
    last = read_log(log_path(tmp_path, "mini")).lines[-1]
    assert (last["event"], last["error"], last["exit_code"]) == ("error", "InfeasibleFamily", 5)
    assert "44007" in last["message"]


def test_what_a_foreign_error_says_is_not_logged(tmp_path: Path) -> None:
    secret = "the 17 people of block 440070001001000"
    with pytest.raises(KeyError):
        fail(tmp_path, KeyError(secret))
    text = log_path(tmp_path, "mini").read_text("ascii")
    assert "17" not in text.rpartition('"event":"error"')[2].partition('"exit_code"')[0]
    assert secret not in text
    last = json.loads(text.splitlines()[-1])
    assert (last["error"], last["exit_code"], last["message"]) == ("KeyError", 70, None)


def test_digits_that_could_be_a_key_are_left_out() -> None:
    key = "0123456789abcdef" * 4
    message = safe_message(PrivacyError(f"the command printed {key}, which is too long"))
    assert message == "the command printed [left out], which is too long"
    long = safe_message(ConfigError("x" * 10_000))
    assert long is not None
    assert len(long) < 4100
    assert safe_message(ValueError("3 people")) is None


def test_exit_codes_are_those_of_the_command_line(capsys: Any) -> None:
    errors: list[BaseException] = [
        ConfigError("a"),
        DataError("a"),
        PrivacyError("a"),
        OpendasError("a"),
        KeyboardInterrupt(),
        MemoryError(),
        ValueError("a"),
        *(OSError(code, "a", "b") for code in sorted(errno.errorcode) if code != errno.EPIPE),
        *(OSError(code, "a") for code in (errno.ENOENT, errno.ENOSPC, errno.ECONNRESET)),
    ]
    for error in errors:

        @click.command()
        def failing(error: BaseException = error) -> None:
            raise error

        assert exit_code_of(error) == guarded(failing, []), error


def test_a_log_that_cannot_be_written_stops_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").write_text("in the way")
    with opened(tmp_path) as log:
        begin(log)
        log.progress("reading", 0, 1)
    assert [record.levelname for record in caplog.records] == ["WARNING"]

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    caplog.clear()
    monkeypatch.setattr(run_log.os, "write", full)
    with opened(tmp_path / "other") as log:
        begin(log)
        log.step("read", 1.0)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_write_that_stops_halfway_is_a_torn_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, sizes = os.write, iter([10])

    def short(descriptor: int, data: bytes) -> int:
        return write(descriptor, data[: next(sizes, len(data))])

    log = opened(tmp_path)
    monkeypatch.setattr(run_log.os, "write", short)
    log.step("read", 1.0)
    log.step("plan", 1.0)
    log.close()
    found = read_log(log_path(tmp_path, "mini"))
    assert [line["step"] for line in found.lines] == ["plan"]
    assert found.damaged == 1


def test_a_link_in_the_place_of_the_log_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    path = log_path(tmp_path, "mini")
    path.parent.mkdir()
    path.symlink_to(elsewhere)
    with opened(tmp_path) as log:
        begin(log)
    assert not elsewhere.exists()
