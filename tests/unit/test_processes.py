"""Processes that are there, gone, or out of sight."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import opendas.runs.progress.processes
from opendas.runs.progress.processes import ProcessMark, available_memory_mb, is_alive, memory_mb, own_mark

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_this_process_is_alive() -> None:
    mark = own_mark()
    assert mark.pid == os.getpid()
    assert is_alive(mark) is True


@linux
def test_another_process_under_the_same_number_is_not_taken_for_the_first() -> None:
    mark = own_mark()
    assert mark.started is not None
    assert is_alive(replace(mark, started=mark.started - 1)) is False


def test_a_machine_that_was_started_again_has_none_of_its_processes() -> None:
    mark = own_mark()
    if mark.boot is None:
        pytest.skip("this system has no name for its last start")
    assert is_alive(replace(mark, boot="another")) is False


def test_other_machines_and_containers_are_out_of_sight() -> None:
    mark = own_mark()
    assert is_alive(replace(mark, host=mark.host + "-other")) is None
    assert is_alive(replace(mark, space="pid:[1]")) is None


@linux
def test_an_ended_process_is_gone_before_and_after_it_is_collected() -> None:
    code = (
        "from opendas.runs.progress.processes import own_mark as m; print(m().started, flush=True); input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    mark = replace(own_mark(), pid=process.pid, started=int(process.stdout.readline()))
    assert is_alive(mark) is True
    process.stdin.close()
    process.stdout.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and not collected
    assert is_alive(mark) is False
    process.wait()
    assert is_alive(mark) is False


@linux
def test_memory_counts_what_is_below() -> None:
    own = memory_mb(os.getpid())
    assert own is not None
    code = (
        "block = bytearray(64 << 20); block[::4096] = b'1' * len(block[::4096]); print(flush=True); input()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    more = memory_mb(os.getpid())
    process.stdin.close()
    process.stdout.close()
    process.wait()
    assert more is not None
    assert more - own > 48
    assert memory_mb(2**22 + 1) is None


@linux
def test_some_memory_is_available() -> None:
    assert available_memory_mb() > 1


@linux
def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (
        ("max", "100000000"),
        ("current", "90000000"),
        ("stat", "anon 5\ninactive_file 485760\n"),
    ):
        (tmp_path / name).write_text(text)
    layout = (tmp_path / "max", tmp_path / "current", tmp_path / "stat", "inactive_file ")
    monkeypatch.setattr(opendas.runs.progress.processes, "_GROUPS", (layout,))
    assert available_memory_mb() == 10
    (tmp_path / "max").write_text("max\n")
    assert available_memory_mb() > 10


def test_a_mark_without_a_start_is_judged_by_its_number() -> None:
    mark = own_mark()
    plain = ProcessMark(mark.host, None, mark.space, mark.pid, None)
    assert is_alive(plain) is True
