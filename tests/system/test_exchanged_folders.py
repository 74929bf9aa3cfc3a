"""Someone who may write beside us exchanges names and folders between any two calls: nothing follows them.

The attacker of these tests is quick: he acts right before the n-th operation on the file system, for every n,
and puts a link to what is not his in place of a name or folder of the output folder.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.mini import write_mini

from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.custody.folders import (
    LOCK_NAME,
    hold,
    let_go,
    make_folder,
    move_folder,
    new_file,
    open_folder,
    remove_tree,
    write_atomic,
)
from opendas.custody.secret_files import destroy_secret, private_folder, write_secret
from opendas.errors import OpendasError, PrivacyError

OPERATIONS = ("open", "mkdir", "replace", "rename", "unlink", "rmdir", "fsync", "stat", "fstat")


def command(*words: str | Path) -> int:
    return guarded(cli, [str(word) for word in words])


@pytest.fixture(autouse=True)
def _fixed_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


class Attacker:
    """Acts once, right before the n-th operation."""

    def __init__(self, number: int, act: Callable[[], None]) -> None:
        self.number, self.act, self.count, self.busy = number, act, 0, False

    def before(self) -> None:
        if self.busy:
            return
        self.count += 1
        if self.count == self.number:
            self.busy = True
            try:
                self.act()
            finally:
                self.busy = False

    @contextmanager
    def at_work(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in OPERATIONS:
                patch.setattr(os, name, self.door(getattr(os, name)))
            yield

    def door(self, original: Any) -> Any:
        def call(*args: Any, **words: Any) -> Any:
            self.before()
            return original(*args, **words)

        return call


def tree(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, links by what they say."""
    return {
        str(path.relative_to(folder)): (
            os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
        )
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


class Place:
    """An output folder, and beside it what must not be touched."""

    def __init__(self, folder: Path) -> None:
        self.out, self.others = folder / "out", folder / "others"
        shutil.rmtree(folder, ignore_errors=True)
        for name in ("release/tables", "state", "confidential/keys"):
            (self.out / name).mkdir(parents=True)
            (self.others / name).mkdir(parents=True)
        (self.out / LOCK_NAME).touch()
        for place in (self.out, self.others):
            (place / "release" / "report.html").write_text("old")
            (place / "release" / "tables" / "P1.csv").write_text("old")
            (place / "confidential" / "keys" / "mini.key").write_text("key")
        self.before = tree(self.others)
        hold(self.out)

    def exchange(self, name: str) -> Callable[[], None]:
        """Put a link to what is not ours in place of a folder or file, if it is there."""

        def act() -> None:
            place = self.out / name
            if place.is_symlink() or not place.exists():
                return
            place.rename(place.with_name(f"{place.name}.moved"))
            place.symlink_to(self.others / name)

        return act


WRITES: dict[str, Callable[[Path], object]] = {
    "a file": lambda out: write_atomic(out / "release" / "report.html", b"new"),
    "a deep file": lambda out: write_atomic(out / "release" / "tables" / "P1.csv", b"new"),
    "a new folder": lambda out: write_atomic(out / "release" / "tables" / "more" / "P2.csv", b"new"),
    "folders": lambda out: make_folder(out / "release" / "a" / "b"),
    "a private folder": lambda out: private_folder(out / "confidential" / "logs"),
    "a secret": lambda out: write_secret(out / "confidential" / "keys" / "units.key", "secret\n"),
    "a secret destroyed": lambda out: destroy_secret(out / "confidential" / "keys" / "mini.key"),
    "a tree removed": lambda out: remove_tree(out / "release" / "tables"),
    "a folder moved": lambda out: move_folder(out / "release" / "tables", out / "release" / "T"),
    "a scratch file": lambda out: new_file(out / "state" / "scratch").close(),
}
NAMES = ("release", "release/tables", "release/report.html", "confidential", "confidential/keys", "state", "")


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", NAMES)
def test_whatever_is_exchanged_nothing_outside_is_written(name: str, write: str, tmp_path: Path) -> None:
    number, done = 0, False
    while not done:
        number += 1
        place = Place(tmp_path / "world")
        attacker = Attacker(number, place.exchange(name) if name else _exchange_all(place))
        try:
            with attacker.at_work():
                WRITES[write](place.out)
        except (OpendasError, OSError):
            pass
        finally:
            let_go(place.out)
        assert tree(place.others) == place.before, f"before operation {number}"
        partial = [path for path in tree(tmp_path / "world") if ".partial" in path]
        assert partial == [], f"left half written before operation {number}"
        for path in (tmp_path / "world").rglob("report.html"):
            assert path.read_bytes() in (b"old", b"new")
        done = attacker.count < number
    assert number > 5


def _exchange_all(place: Place) -> Callable[[], None]:
    """Put a link in place of the output folder itself."""

    def act() -> None:
        place.out.rename(place.out.with_name("away"))
        place.out.symlink_to(place.others)

    return act


def test_the_attack_above_succeeds_on_a_writer_that_goes_by_names(tmp_path: Path) -> None:
    place = Place(tmp_path / "world")
    attacker = Attacker(1, place.exchange("release"))
    with attacker.at_work():
        attacker.before()
        (place.out / "release" / "report.html").write_text("new")
    let_go(place.out)
    assert tree(place.others) != place.before


# What the review did.


def test_a_planted_temporary_name_is_not_written_through(tmp_path: Path) -> None:
    run, out = write_mini(tmp_path), tmp_path / "out"
    assert command("run", run, "--out", out) == 0
    victim = tmp_path / "victim.txt"
    victim.write_text("mine")
    for name in ("report.html", "certificate.json", "certificate.pdf"):
        (out / "release" / f".{name}.partial").symlink_to(victim)
    (out / "release" / "tables").mkdir()
    (out / "release" / "tables" / ".total_town.parquet.partial").symlink_to(victim)
    assert command("tabulate", out, "--tables", "total", "--geolevel", "town") == 0
    assert victim.read_text() == "mine"
    assert not (out / "release" / "report.html").is_symlink()


@pytest.mark.parametrize("name", ["release", "release/tables", "release/mdf"])
def test_a_linked_folder_of_a_release_is_refused(name: str, tmp_path: Path) -> None:
    run, out = write_mini(tmp_path), tmp_path / "out"
    assert command("run", run, "--out", out) == 0
    other = tmp_path / "other"
    other.mkdir()
    place = out / name
    if place.exists():
        place.rename(tmp_path / "moved")
        shutil.copytree(tmp_path / "moved", other, dirs_exist_ok=True)
    before = tree(other)
    place.symlink_to(other)
    assert command("tabulate", out, "--tables", "total", "--geolevel", "town") == (
        0 if name == "release/mdf" else 4
    )
    assert tree(other) == before


def test_a_folder_of_another_user_in_a_release_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path / "world")
    mine = os.geteuid()
    if mine:
        pytest.skip("only root can give a folder away")
    os.chown(place.out / "release" / "tables", 54321, 54321)
    with pytest.raises(PrivacyError, match="another user"):
        write_atomic(place.out / "release" / "tables" / "P1.csv", b"new")
    place.out.chmod(0o775)  # as after --group-writable
    write_atomic(place.out / "release" / "tables" / "P1.csv", b"new")
    let_go(place.out)


@pytest.mark.parametrize(("umask", "setgid"), [(0, True), (0o002, True), (0o007, False), (0o077, True)])
def test_nobody_else_can_write_into_a_release_unless_asked(umask: int, setgid: bool, tmp_path: Path) -> None:
    run, out = write_mini(tmp_path / "in"), tmp_path / "shared" / "out"
    out.parent.mkdir()
    out.parent.chmod(0o2777 if setgid else 0o777)
    before = os.umask(umask)
    try:
        assert command("run", run, "--out", out) == 0
        assert command("tabulate", out, "--tables", "total", "--geolevel", "town") == 0
    finally:
        os.umask(before)
    for path in (out, *out.rglob("*")):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o022, path
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o400 for path in out.rglob("*"))


def test_a_group_may_write_where_that_is_asked_for_and_then_no_more(tmp_path: Path) -> None:
    run, out = write_mini(tmp_path), tmp_path / "out"
    assert command("run", run, "--out", out, "--group-writable") == 0
    for path in (out, out / "release", out / "release" / "mdf"):
        assert stat.S_IMODE(path.stat().st_mode) & stat.S_IWGRP, path
    for path in (out / "confidential", out / "state"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for path in (path for path in (out / "release").rglob("*") if path.is_file()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o664
    assert command("run", run, "--out", out, "--resume") == 0
    folders = [out, *(path for path in (out / "release").rglob("*") if path.is_dir())]
    assert not any(stat.S_IMODE(path.stat().st_mode) & 0o022 for path in folders)


def test_what_a_killed_writer_left_is_removed_by_the_next_run(tmp_path: Path) -> None:
    run, out = write_mini(tmp_path), tmp_path / "out"
    assert command("run", run, "--out", out) == 0
    (out / "release" / ".0123.partial").write_text("half")
    (out / "state" / "mini" / ".4567.partial").symlink_to(run)
    assert command("run", run, "--out", out, "--resume") == 0
    assert not list(out.rglob("*.partial"))
    assert run.is_file()


def test_an_output_folder_that_was_exchanged_is_not_written(tmp_path: Path) -> None:
    place = Place(tmp_path / "world")
    place.out.rename(tmp_path / "away")
    shutil.copytree(tmp_path / "away", place.out)
    message = "is not the folder that it was"
    with pytest.raises(PrivacyError, match=message), open_folder(place.out / "release"):
        pass
    let_go(place.out)
    with open_folder(place.out / "release"):
        pass
