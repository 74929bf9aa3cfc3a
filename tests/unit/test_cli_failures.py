"""Exit codes and messages."""

from __future__ import annotations

import ctypes
import errno
import signal
import time
from pathlib import Path

import click
import pytest
from support.each import each

from opendas import errors
from opendas.cli.failures import guarded
from opendas.cli.main import interrupt
from opendas.cli.options import remember_out
from opendas.runs.progress.log import exit_code_of

SECRET = "1052567"


def failing(error: BaseException, out: Path | None = None) -> click.Command:
    @click.command()
    def command() -> None:
        if out is not None:
            click.get_current_context().obj["out"] = out
        raise error

    return command


def by_signal() -> SystemError:
    """What Python makes of a signal that meets compiled code."""
    inner, error = (SystemError("a function returned a result with an exception set") for _ in range(2))
    inner.__cause__, error.__cause__ = KeyboardInterrupt(), inner
    return error


@each(
    ("error", "code"),
    [
        (errors.ConfigError("x"), 2),
        (errors.BudgetError("x"), 2),
        (errors.DataError("x"), 3),
        (errors.FormatError("x"), 3),
        (errors.GeographyError("x"), 3),
        (errors.PrivacyError("x"), 4),
        (errors.InfeasibleFamily("44", "least squares"), 5),
        (errors.SolverFailure("44", "least squares", 1.0), 5),
        (errors.EnvironmentFailure("x"), 6),
        (errors.CheckFailed("x"), 1),
        (OSError(errno.ENOSPC, "No space left on device", "file"), 6),
        (PermissionError(errno.EACCES, "Permission denied", "file"), 6),
        (OSError(errno.EROFS, "Read-only"), 6),
        (MemoryError(), 6),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "file/x"), 2),
        (IsADirectoryError(errno.EISDIR, "Is a directory", "folder"), 2),
        (FileNotFoundError(errno.ENOENT, "No such file", "file"), 2),
        (FileExistsError(errno.EEXIST, "File exists", "file"), 2),
        (OSError(errno.ELOOP, "Too many levels", "link"), 2),
        (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 300), 2),
        (FileNotFoundError(errno.ENOENT, "of nobody knows what"), 70),
        (OSError(errno.EBADF, "Bad file descriptor"), 70),
        (ValueError(SECRET), 70),
        (KeyboardInterrupt(), 130),
        (by_signal(), 130),
        (SystemError("of another kind"), 70),
        (click.Abort(), 130),
        (click.UsageError("x"), 2),
        (click.exceptions.Exit(1), 1),
    ],
)
def test_every_error_has_its_exit_code(error: BaseException, code: int) -> None:
    assert guarded(failing(error), []) == code


def test_success_is_zero() -> None:
    @click.command()
    def command() -> None:
        pass

    assert guarded(command, []) == 0


def test_an_internal_error_shows_its_place_and_no_value(capsys: pytest.CaptureFixture[str]) -> None:
    guarded(failing(ValueError(SECRET)), [])
    said = capsys.readouterr()
    assert "ValueError at test_cli_failures.py" in said.err
    assert "CONTRIBUTING.md" in said.err
    assert SECRET not in said.err
    assert said.out == ""


def test_a_traceback_goes_under_confidential_only_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "confidential").mkdir()
    log = tmp_path / "confidential" / "logs" / "traceback.txt"
    guarded(failing(ValueError(SECRET), tmp_path), [])
    assert not log.exists()
    monkeypatch.setenv("OPENDAS_DEBUG", "1")
    guarded(failing(ValueError(SECRET), tmp_path), [])
    assert SECRET not in capsys.readouterr().err
    text = log.read_text()
    assert "Traceback" in text
    assert log.stat().st_mode & 0o777 == 0o600
    assert log.parent.stat().st_mode & 0o777 == 0o700


def test_the_traceback_holds_no_locals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "confidential").mkdir()
    monkeypatch.setenv("OPENDAS_DEBUG", "1")

    @click.command()
    def command() -> None:
        click.get_current_context().obj["out"] = tmp_path
        secret = int(SECRET)
        secret.nothing  # type: ignore[attr-defined]  # noqa: B018

    assert guarded(command, []) == 70
    assert SECRET not in (tmp_path / "confidential" / "logs" / "traceback.txt").read_text()


def test_an_interrupted_run_says_how_to_finish(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "file")
    for error in (KeyboardInterrupt(), full):
        guarded(ending(error, tmp_path, click.Option(["--resume"], is_flag=True)), [])
        assert "--resume" in capsys.readouterr().err
        guarded(ending(error, tmp_path), [])
        assert "--resume" not in capsys.readouterr().err, "the command has no such option"
        guarded(ending(error, tmp_path / "not-there", click.Option(["--resume"], is_flag=True)), [])
        assert "--resume" not in capsys.readouterr().err, "nothing is there to go on from"


def ending(error: BaseException, out: Path, *options: click.Parameter) -> click.Command:
    """A command with an output folder that ends with an error."""

    def work(**_: object) -> None:
        remember_out(out)
        raise error

    return click.Command("work", callback=work, params=list(options))


@each(
    ("error", "code", "words"),
    [
        (EOFError("marshal data too short"), 6, "cut short"),
        (EOFError("Compressed file ended"), 70, "internal error: EOFError"),
        (ImportError("x.so: failed to map segment from shared object"), 6, "noexec"),
        (MemoryError(), 6, "not enough memory"),
    ],
)
def test_a_cause_is_named_where_it_is_known(
    error: BaseException, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(failing(error), []) == code
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), by_signal()])
def test_the_log_of_a_run_tells_the_same(error: BaseException) -> None:
    assert exit_code_of(error) == 130


def test_an_interrupt_that_meets_a_callback_of_the_compiler_is_not_lost() -> None:
    """The library that calls back drops errors: the run would go on as if nobody had pressed Ctrl-C."""

    def _raw_object_cache_notify() -> None:
        signal.raise_signal(signal.SIGTERM)

    def run() -> None:
        ctypes.CFUNCTYPE(None)(_raw_object_cache_notify)()
        time.sleep(10)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            run()
    finally:
        signal.signal(signal.SIGTERM, before)
