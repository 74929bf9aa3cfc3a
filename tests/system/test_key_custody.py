"""Keys through whole commands: encrypted, asked for, fetched, refused, resumed and destroyed."""

from __future__ import annotations

import json
import os
import pty
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.households import configuration, random_world, write_world
from support.mini import write_mini

import opendas.measurement.noisy as noisy
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.custody import passphrase as sealing
from opendas.custody.ledger import Ledger
from opendas.custody.passphrase import Passphrase
from opendas.custody.run_key import RunKey

TEXT = "seven dull geese cross"
SECRET = "5a" * 32

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: Patch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    monkeypatch.setattr(sealing, "_COST", (1 << 14, 8, 1))


def passphrase_file(folder: Path, text: str = TEXT) -> Path:
    path = folder / "passphrase"
    path.write_text(text + "\n")
    path.chmod(0o600)
    return path


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def interrupted(patch: Patch, *words: str | Path) -> int:
    """Run a command that is interrupted at its first measurement: key and ledger stand already."""
    with patch.context() as inner:
        inner.setattr(noisy.NoisyMeasurements, "__init__", _interrupt)
        inner.setattr(
            "opendas.runs.prepare.sparse_warning", lambda *_, **__: None
        )  # measures synthetic counts
        return guarded(cli, [str(word) for word in words])


def _interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def command(*words: str | Path) -> int:
    return guarded(cli, [str(word) for word in words])


def test_an_encrypted_key_is_needed_again_to_resume(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    run, out, given = write_mini(tmp_path), tmp_path / "out", passphrase_file(tmp_path)
    words = ("run", run, "--out", out, "--key-passphrase-file", given)
    assert interrupted(monkeypatch, *words) == 130
    key_file = out / "confidential" / "keys" / "mini.key"
    assert key_file.read_text().startswith("opendas-run-key 2\nreal\n")
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    before = files(out)
    capsys.readouterr()
    # Without it, with another one, with a file that others can read: refused before the input is read.
    good = (tmp_path / "counts.csv").read_text()
    (tmp_path / "counts.csv").write_text("no table at all\n")
    passphrase_file(tmp_path, "seven dull geese fly")
    assert command(*words, "--resume") == 4
    assert "does not open the key" in capsys.readouterr().err
    passphrase_file(tmp_path).chmod(0o644)
    assert command(*words, "--resume") == 4
    assert "mode 0644" in capsys.readouterr().err
    (tmp_path / "counts.csv").write_text(good)
    assert command("run", run, "--out", out, "--resume") == 4
    assert "--key-passphrase-file" in capsys.readouterr().err
    changed = {n for n, data in files(out).items() if before.get(n) != data}
    assert not any(name.startswith(("release/", "ledger", "state/")) for name in changed)
    given.chmod(0o600)
    assert command(*words, "--resume") == 0
    assert command("verify", out) == 0
    assert len(Ledger.read(out / "ledger.jsonl")) == 1
    said = capsys.readouterr()
    assert TEXT not in said.out + said.err
    assert TEXT.encode() not in b"\0".join(files(out).values())


def test_the_draws_are_those_of_the_key_whatever_encrypts_it(tmp_path: Path) -> None:
    """The release under a sealed key is that of the same key in clear, byte for byte."""
    run, given = write_mini(tmp_path), passphrase_file(tmp_path)
    assert command("run", run, "--out", tmp_path / "a", "--key-passphrase-file", given, "--keep-key") == 0
    key = RunKey.load(tmp_path / "a" / "confidential" / "keys" / "mini.key", Passphrase(TEXT))
    fetch = f"echo {key._secret.hex()}"
    assert command("run", run, "--out", tmp_path / "b", "--key-command", fetch) == 0
    one, two = (files(tmp_path / name / "release") for name in ("a", "b"))
    issued = {name for name in one if one[name] != two.get(name)}
    assert issued == {"certificate.json", "certificate.pdf", "report.html"}, "they say where the key is"
    assert one.keys() == two.keys()


def test_a_finished_run_answers_without_its_passphrase_and_draws_no_more(tmp_path: Path) -> None:
    run, out, given = write_mini(tmp_path), tmp_path / "out", passphrase_file(tmp_path)
    asked = ("--measurements", "used", "--keep-key", "--key-passphrase-file", given)
    assert command("run", run, "--out", out, *asked) == 0
    assert command("run", run, "--out", out, "--resume") == 0
    assert command("measure", run, "--out", out, "--resume") == 4
    assert command("measure", run, "--out", out, "--resume", "--key-passphrase-file", given) == 0


def test_an_encrypted_key_is_destroyed_without_its_passphrase(tmp_path: Path, capsys: Capture) -> None:
    run, out, given = write_mini(tmp_path), tmp_path / "out", passphrase_file(tmp_path)
    assert command("measure", run, "--out", out, "--key-passphrase-file", given, "--keep-key") == 0
    key_file = out / "confidential" / "keys" / "mini.key"
    os.link(key_file, tmp_path / "copy")
    old = key_file.read_bytes()
    assert command("forget-key", out) == 0
    assert "destroyed the key of mini" in capsys.readouterr().out
    assert not key_file.exists()
    assert (tmp_path / "copy").read_bytes() != old, "under another name nothing but random bytes is left"
    assert command("forget-key", out) == 0


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (("--seed", "1"), 2),
        (("--key-command", "echo " + SECRET), 2),
        (("--ask-passphrase",), 2),
    ],
)
def test_a_passphrase_that_has_nothing_to_protect_is_refused(
    tmp_path: Path, more: tuple[str, ...], code: int
) -> None:
    run, given = write_mini(tmp_path), passphrase_file(tmp_path)
    words = ("run", run, "--out", tmp_path / "out", "--key-passphrase-file", given)
    assert command(*words, *more) == code
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("text", "code"), [("short", 4), ("", 4), ("two\nlines of text", 4)])
def test_what_is_no_passphrase_starts_nothing(tmp_path: Path, text: str, code: int) -> None:
    run, given = write_mini(tmp_path), passphrase_file(tmp_path, text)
    assert command("run", run, "--out", tmp_path / "out", "--key-passphrase-file", given) == code
    assert command("run", run, "--out", tmp_path / "out", "--key-passphrase-file", tmp_path / "none") == 6
    assert not (tmp_path / "out").exists()


def test_households_under_a_passphrase(tmp_path: Path) -> None:
    data = write_world(tmp_path / "data", random_world(3, 60))
    (tmp_path / "config.json").write_text(json.dumps(configuration(tau=3)))
    given = passphrase_file(tmp_path)
    words = ("phsafe", tmp_path / "config.json", data, tmp_path / "out")
    assert command(*words, "--keep-key", "--key-passphrase-file", given) == 0
    key = tmp_path / "out" / "confidential" / "keys" / "phsafe.key"
    assert RunKey.load(key, Passphrase(TEXT))
    assert command(*words, "--resume", "--key-passphrase-file", given) == 0
    passphrase_file(tmp_path, "another passphrase")
    assert command(*words, "--resume", "--key-passphrase-file", given) == 4
    assert command(*words, "--mode", "non-private", "--key-passphrase-file", given) == 2


# Asked for on a terminal.

ASKING = """
import sys
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.custody import passphrase as sealing
sealing._COST = (1 << 14, 8, 1)
sys.exit(guarded(cli, sys.argv[1:]))
"""


def typed(words: list[str], lines: list[str]) -> tuple[int, str]:
    """Run a command on a terminal of its own, and type lines when it asks; returns status and screen."""
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-c", ASKING, *words])
    screen = b""
    waiting = list(lines)
    answered = 0
    while True:
        try:
            got = os.read(terminal, 4096)
        except OSError:
            break
        if not got:
            break
        screen += got
        # What is typed before a question is thrown away.
        if waiting and screen.count(b"mini: ") + screen.count(b"confirmation: ") > answered:
            answered += 1
            os.write(terminal, f"{waiting.pop(0)}\n".encode())
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), screen.decode(errors="replace")


def test_a_passphrase_is_asked_for_twice_and_then_once_and_not_shown(tmp_path: Path) -> None:
    run, out = write_mini(tmp_path), tmp_path / "out"
    words = ["measure", str(run), "--out", str(out), "--ask-passphrase", "--keep-key"]
    code, screen = typed(words, [TEXT, TEXT])
    assert code == 0, screen
    assert "Passphrase of the key of mini" in screen
    assert TEXT not in screen
    code, screen = typed([*words, "--resume"], ["not the one it was"])
    assert code == 4, screen
    assert "does not open" in screen
    code, screen = typed([*words, "--resume"], [TEXT])
    assert code == 0, screen


def test_where_there_is_no_terminal_nothing_is_asked(tmp_path: Path) -> None:
    run = write_mini(tmp_path)
    words = [
        sys.executable,
        "-m",
        "opendas",
        "run",
        str(run),
        "--out",
        str(tmp_path / "out"),
        "--ask-passphrase",
    ]
    done = subprocess.run(words, input=TEXT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "needs a terminal" in done.stderr
    assert not (tmp_path / "out").exists()


# A key command.


def script(folder: Path, text: str) -> str:
    path = folder / "fetch-key"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


FETCHES: dict[str, tuple[str, int]] = {
    "prints it and fails": (f"echo {SECRET}; echo {SECRET} >&2; exit 3", 6),
    "prints two": (f"echo {SECRET}; echo {SECRET}", 4),
    "prints half": (f"echo {SECRET[:32]}", 4),
    "prints other letters": (f"echo {SECRET[:-2]}zz", 4),
    "prints bytes": (f"printf '\\377\\376'; echo {SECRET}", 4),
    "talks beside it": (f"echo {SECRET} >&2; echo {SECRET}", 0),
}


@pytest.mark.parametrize("what", FETCHES)
def test_what_a_key_command_says_is_shown_nowhere(what: str, tmp_path: Path, capfd: Capture) -> None:
    text, code = FETCHES[what]
    run, out = write_mini(tmp_path / "input"), tmp_path / "out"
    assert command("run", run, "--out", out, "--key-command", script(tmp_path, text)) == code
    said = capfd.readouterr()
    assert SECRET[:16] not in said.out + said.err
    assert SECRET[:16].encode() not in b"\0".join(files(out).values()) if out.exists() else True
    assert out.exists() is (code == 0)


def test_a_key_command_gets_no_secret_of_ours(tmp_path: Path, monkeypatch: Patch) -> None:
    text = (
        f"env > {tmp_path}/environment; tr '\\0' ' ' < /proc/$PPID/cmdline > {tmp_path}/caller; echo {SECRET}"
    )
    run = write_mini(tmp_path / "input")
    monkeypatch.setenv("BEFORE", "1")
    assert command("measure", run, "--out", tmp_path / "out", "--key-command", script(tmp_path, text)) == 0
    names = {line.partition("=")[0] for line in (tmp_path / "environment").read_text().splitlines()}
    assert names - set(os.environ) <= {"_", "PWD", "OLDPWD", "SHLVL", "LINES", "COLUMNS"}
    assert SECRET not in (tmp_path / "caller").read_text()


def test_shares_of_officers_are_the_key_of_a_run(tmp_path: Path, capfd: Capture) -> None:
    """Two of three start it, two others go on with it; one alone, or of another set, does not."""
    run, out, ours = write_mini(tmp_path / "input"), tmp_path / "out", tmp_path / "ours"
    for folder in (ours, tmp_path / "theirs"):
        assert command("keys", "split", "--shares", "3", "--threshold", "2", "--to", folder) == 0

    def of(*paths: Path) -> str:
        return shlex.join([sys.executable, "-m", "opendas", "keys", "join", *map(str, paths)])

    one, two, three = (ours / f"{index}.share" for index in (1, 2, 3))
    for shares in ((one,), (one, tmp_path / "theirs" / "2.share"), (one, one)):
        assert command("measure", run, "--out", out, "--key-command", of(*shares)) == 6
        assert not out.exists()
    assert command("measure", run, "--out", out, "--key-command", of(one, three)) == 0
    assert command("measure", run, "--out", out, "--resume", "--key-command", of(two, one)) == 0
    assert len(Ledger.read(out / "ledger.jsonl")) == 1
    said = capfd.readouterr()
    assert command("keys", "join", two, three) == 0
    key = capfd.readouterr().out.strip()
    assert RunKey(bytes.fromhex(key)).commitment() == one.read_text().split("\n")[1].removeprefix("key ")
    assert RunKey(bytes.fromhex(key)).commitment() in (out / "ledger.jsonl").read_text()
    assert key not in said.out + said.err
    assert key.encode() not in b"\0".join(files(tmp_path).values())
    assert not (out / "confidential" / "keys" / "mini.key").exists()


# Folders and files that are not ours alone.


@pytest.fixture
def _no_umask() -> Any:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_no_umask")
def test_without_any_umask_nothing_confidential_is_open(tmp_path: Path) -> None:
    run, out = write_mini(tmp_path), tmp_path / "out"
    assert command("run", run, "--out", out, "--measurements", "full", "--keep-key") == 0
    assert command("evaluate", out, "--truth", run) == 0
    modes = {path.relative_to(out).as_posix(): stat.S_IMODE(path.stat().st_mode) for path in out.rglob("*")}
    assert not stat.S_IMODE(out.stat().st_mode) & stat.S_IWOTH, "nobody else can exchange the folders"
    for name in ("confidential", "state", "confidential/keys"):
        assert modes[name] == 0o700
    assert modes["ledger.jsonl"] == modes["confidential/keys/mini.key"] == 0o600


@pytest.mark.usefixtures("_no_umask")
def test_exact_tables_are_closed_from_the_first_moment(tmp_path: Path) -> None:
    data = write_world(tmp_path / "data", random_world(3, 30))
    (tmp_path / "config.json").write_text(json.dumps(configuration(tau=3)))
    words = ("phsafe", tmp_path / "config.json", data, tmp_path / "out", "--mode", "non-private")
    assert command(*words) == 0
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700
    assert added_by_git(tmp_path) == {"data", "config.json"}


def added_by_git(folder: Path) -> set[str]:
    """Return what git would take up: names at the top, and below ``out`` those of its folders and files."""
    git = ("git", "-C", str(folder))
    subprocess.run([*git, "init", "-q"], check=True)
    said = subprocess.run([*git, "add", "-An"], check=True, capture_output=True, text=True).stdout
    paths = [Path(line.removeprefix("add '").removesuffix("'")) for line in said.splitlines()]
    return {"/".join(path.parts[: 2 if path.parts[0] == "out" else 1]) for path in paths}


def test_git_takes_up_nothing_confidential(tmp_path: Path) -> None:
    run, out = write_mini(tmp_path), tmp_path / "out"
    assert command("measure", run, "--out", out, "--keep-key") == 0
    assert (out / "confidential/keys/mini.key").exists()
    assert added_by_git(tmp_path) & {"out/confidential", "out/state"} == set()
    for folder in ("confidential", "state"):  # as an earlier version left them
        (out / folder / ".gitignore").unlink()
    assert command("run", run, "--out", out, "--resume", "--keep-key") == 0
    assert command("evaluate", out, "--truth", run) == 0
    assert command("status", out) == command("verify", out) == command("forget-key", out) == 0
    assert added_by_git(tmp_path) & {"out/confidential", "out/state"} == set()


def test_git_takes_up_nothing_confidential_of_household_tables(tmp_path: Path) -> None:
    data = write_world(tmp_path / "data", random_world(3, 30))
    (tmp_path / "config.json").write_text(json.dumps(configuration(tau=3)))
    assert command("phsafe", tmp_path / "config.json", data, tmp_path / "out") == 0
    found = added_by_git(tmp_path)
    assert "out/certificate.json" in found
    assert "out/confidential" not in found
    assert command("verify", tmp_path / "out") == 0


@pytest.mark.parametrize("name", ["confidential", "confidential/keys", "state"])
def test_a_link_in_the_place_of_a_folder_stops_the_run(name: str, tmp_path: Path, capsys: Capture) -> None:
    run, out = write_mini(tmp_path), tmp_path / "out"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    (out / name).parent.mkdir(parents=True)
    (out / name).symlink_to(elsewhere)
    (out / "state").mkdir(exist_ok=True)
    assert command("run", run, "--out", out) == 4
    assert "is a link, or no folder" in capsys.readouterr().err
    assert list(elsewhere.iterdir()) == []
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o755


def test_a_folder_of_another_user_stops_the_run(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    run, out = write_mini(tmp_path), tmp_path / "out"
    (out / "confidential").mkdir(parents=True)
    (out / "state").mkdir()
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    assert command("run", run, "--out", out) == 4
    assert "belongs to another user" in capsys.readouterr().err
    assert list((out / "confidential").iterdir()) == []


def restored_wider(key_file: Path) -> None:
    key_file.chmod(0o644)


def restored_as_link(key_file: Path) -> None:
    key_file.rename(key_file.parents[3] / "vault")
    key_file.symlink_to(key_file.parents[3] / "vault")


def restored_with_second_name(key_file: Path) -> None:
    os.link(key_file, key_file.parents[3] / "copy")


def restored_cut(key_file: Path) -> None:
    key_file.write_bytes(key_file.read_bytes()[:-9])


@pytest.mark.parametrize(
    "change",
    [restored_wider, restored_as_link, restored_with_second_name, restored_cut],
    ids=lambda f: f.__name__,
)
def test_a_key_restored_in_another_state_is_refused(
    change: Any, tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    run, out = write_mini(tmp_path), tmp_path / "out"
    assert interrupted(monkeypatch, "run", run, "--out", out) == 130
    key_file = out / "confidential" / "keys" / "mini.key"
    secret = key_file.read_text().split("\n")[2]
    shutil.copytree(out, tmp_path / "kept")
    change(key_file)
    assert command("run", run, "--out", out, "--resume") == 4
    said = capsys.readouterr()
    assert "mini.key" in said.err
    assert secret[:16] not in said.out + said.err
    # The backup as it was finishes the run.
    assert command("run", run, "--out", tmp_path / "kept", "--resume") == 0


def test_a_link_is_not_followed_when_a_key_is_destroyed(tmp_path: Path, capsys: Capture) -> None:
    run, out = write_mini(tmp_path), tmp_path / "out"
    assert command("measure", run, "--out", out, "--keep-key") == 0
    key_file = out / "confidential" / "keys" / "mini.key"
    restored_as_link(key_file)
    before = (tmp_path / "vault").read_bytes()
    assert command("forget-key", out) == 4
    assert "nothing was destroyed" in capsys.readouterr().err
    assert (tmp_path / "vault").read_bytes() == before
