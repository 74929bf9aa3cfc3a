"""Planning opens no confidential record, as the kernel sees it; where it had to, it says so and stops."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.made_cef_files import write_cef
from support.mini import write_mini

import opendas as od
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.errors import PrivacyError
from opendas.explore.session import make_session

Capture = pytest.CaptureFixture[str]
_IN_OPEN = 0x20


@contextmanager
def watched(path: Path) -> Iterator[list[int]]:
    """Collect how often a file is opened in the block, by whomever: the kernel counts (inotify(7))."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_NONBLOCK)
    assert descriptor >= 0
    assert libc.inotify_add_watch(descriptor, os.fsencode(path), _IN_OPEN) >= 0
    seen: list[int] = []
    try:
        yield seen
        with contextlib.suppress(BlockingIOError):
            while data := os.read(descriptor, 4096):
                seen += [1] * (len(data) // 16)
    finally:
        os.close(descriptor)


def command(*words: str | Path) -> int:
    return guarded(cli, [str(word) for word in words])


COMMANDS = {
    "plan": ("plan",),
    "advice": ("plan", "--advise"),
    "spine": ("spine",),
    "account": ("account",),
    "exact account": ("account", "--exact"),
    "allocate": ("allocate", "--total", "1"),
    "tune": (
        *("tune", "--same-loss", "--improve", "block/total", "--may-worsen", "region"),
        *("--may-worsen", "town", "--may-worsen", "block"),
        *("--runs", "2", "--confirm", "2", "--rounds", "1", "--steps", "0"),
    ),
}


def from_records(folder: Path) -> Path:
    run = write_mini(folder)
    text = run.read_text().replace('frame = "frame.csv"', 'frame = "from-records"')
    run.write_text(text.replace('provenance = "public"\n', ""))
    product = folder / "product.toml"
    text = product.read_text()
    product.write_text(text[: text.index("[[bounds]]")])
    return run


@pytest.mark.parametrize("what", COMMANDS)
def test_a_run_with_a_frame_is_planned_without_its_records(what: str, tmp_path: Path) -> None:
    run = write_mini(tmp_path)
    name, *more = COMMANDS[what]
    with watched(tmp_path / "counts.csv") as opened:
        assert command(name, run, *more) == 0
    assert not opened


@pytest.mark.parametrize("what", COMMANDS)
def test_where_the_frame_is_in_the_records_planning_stops_and_says_what_to_do(
    what: str, tmp_path: Path, capsys: Capture
) -> None:
    run = from_records(tmp_path)
    name, *more = COMMANDS[what]
    with watched(tmp_path / "counts.csv") as opened:
        assert command(name, run, *more) == 4
    assert not opened
    assert "--read-records" in capsys.readouterr().err
    with watched(tmp_path / "counts.csv") as opened:
        assert command(name, run, *more, "--read-records") == 0
    assert opened, "the watch sees an opening"


def test_the_explorer_opens_them_only_where_it_is_told_to(tmp_path: Path) -> None:
    run = write_mini(tmp_path / "frame")
    with watched(tmp_path / "frame" / "counts.csv") as opened:
        make_session(run)
    assert not opened
    run = from_records(tmp_path / "records")
    with watched(tmp_path / "records" / "counts.csv") as opened, pytest.raises(PrivacyError):
        make_session(run)
    assert not opened
    make_session(run, read_records=True)


def test_the_same_from_python(tmp_path: Path) -> None:
    run = from_records(tmp_path)
    with pytest.raises(PrivacyError, match="read_records"):
        od.plan(od.load(run))
    assert od.plan(od.load(run, read_records=True)).to_dict()["rows"]


def test_a_run_itself_reads_its_records_and_is_found_again_when_its_key_is_gone(tmp_path: Path) -> None:
    run, out = from_records(tmp_path), tmp_path / "out"
    assert command("run", run, "--out", out) == 0
    assert command("run", run, "--out", out, "--resume") == 0
    assert json.loads((out / "release" / "certificate.json").read_bytes())["runs"][0]["key"] == "destroyed"


@pytest.mark.parametrize("name", ["plan", "account", "spine"])
def test_the_census_edited_file_is_not_opened_to_plan(name: str, tmp_path: Path, capsys: Capture) -> None:
    for run in write_cef(tmp_path, blocks=60, seed=3):
        with ExitStack() as stack:
            opened = [stack.enter_context(watched(path)) for path in tmp_path.glob("CEF*")]
            assert command(name, run) == 4
        assert len(opened) == 2
        assert not any(opened)
        assert "--read-records" in capsys.readouterr().err
        assert command(name, run, "--read-records") == 0


def test_records_that_are_opened_to_plan_are_entered_into_their_book(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The book counts it as a reading; where the frame is public nothing is opened, nor entered."""
    monkeypatch.setenv("OPENDAS_BOOKS", str(tmp_path / "books"))
    run, book = from_records(tmp_path / "records"), tmp_path / "mini.book"
    assert command("ledger", "create", book, "--limit-rho", "9", "--unit", "record") == 0
    assert command("run", run, "--out", tmp_path / "out", "--ledger", book) == 0

    def acts() -> list[str]:
        return [act["act"] for act in od.ledger(book)["acts"]]

    before = acts()
    assert command("plan", run) == 4
    assert acts() == before
    assert command("plan", run, "--read-records") == 0
    assert acts() == [*before, "plan"]
    public = write_mini(tmp_path / "public")
    with watched(tmp_path / "public" / "counts.csv") as opened:
        assert command("plan", public, "--read-records") == 0
    assert not opened
    assert acts() == [*before, "plan"]
    assert (
        command("publish", tmp_path / "out", (tmp_path / "shop").as_uri(), "--allow-domain-from-records") == 0
    )
    account = json.loads((tmp_path / "shop" / "certificate.json").read_bytes())["account"]
    assert account["readings"] == 1
