"""From errors to messages and exit codes. Nothing here prints the value of a variable."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click

from opendas.custody.folders import open_folder
from opendas.errors import ENVIRONMENT_ERRORS, PATH_ERRORS, OpendasError, is_interrupt
from opendas.version import issue_date

EXIT_USAGE = 2
EXIT_ENVIRONMENT = 6
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130
_NUMBA_CACHE = ("numba", "core", "caching.py")


def _write_to_stderr(message: str) -> None:
    with suppress(OSError):  # where nobody can be told, the exit code is left
        click.echo(f"opendas: {message}", err=True)


def guarded(command: click.Command, arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    - `arguments`: without the program's name; by default those of the process.
    - Returns: as listed by ``opendas --help``.
    """
    context: dict[str, Path] = {}
    try:
        os.getcwd()
    except OSError:
        _write_to_stderr("the working folder is gone, or closed to this user. Change to another one.")
        return EXIT_ENVIRONMENT
    try:
        if "SOURCE_DATE_EPOCH" in os.environ:
            # Checked before libraries load that read it and fail without a sentence.
            issue_date()
        code = command.main(
            args=None if arguments is None else list(arguments),
            prog_name="opendas",
            standalone_mode=False,
            obj=context,
        )
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except OpendasError as error:
        _write_to_stderr(str(error))
        return error.exit_code
    except (KeyboardInterrupt, click.Abort) as error:
        if isinstance(error.__cause__, EOFError):  # which click takes for the end of what someone types
            return _ended_early(error.__cause__, context)
        _write_to_stderr(_interrupted(context))
        return EXIT_INTERRUPTED
    except (OSError, ImportError) as error:
        if "failed to map segment" in str(error):  # the loader of libraries says this of both causes
            _write_to_stderr(
                "a library could not be loaded. Either memory is short, or the library lies on a file system "
                "that forbids running code (mounted noexec). Use a machine with more memory, or install "
                "OpenDAS on another file system."
            )
            return EXIT_ENVIRONMENT
        return _system_error(error, context) if isinstance(error, OSError) else _internal(error, context)
    except MemoryError:
        return _out_of_memory()
    except Exception as error:
        if is_interrupt(error):
            _write_to_stderr(_interrupted(context))
            return EXIT_INTERRUPTED
        return _internal(error, context)


def _out_of_memory() -> int:
    _write_to_stderr(
        "not enough memory. Use a machine with more memory, or fewer --workers if the command has that "
        "option."
    )
    return EXIT_ENVIRONMENT


def _ended_early(error: EOFError, context: dict[str, Path]) -> int:
    """Tell a compiled file of the program that is cut short from other data that end too early."""
    places = [Path(frame.filename).parts[-3:] for frame in traceback.extract_tb(error.__traceback__)]
    if not str(error).startswith(("marshal data", "EOF read")) and _NUMBA_CACHE not in places:
        return _internal(error, context)
    _write_to_stderr(
        "a compiled file of the program is cut short. Remove the folders __pycache__ of OpenDAS and its "
        "packages, or install them again."
    )
    return EXIT_ENVIRONMENT


def _interrupted(context: dict[str, Path]) -> str:
    out = context.get("resumable")
    if out is None or not out.exists():
        return "interrupted."
    return f"interrupted. The same command with --resume continues from what {out} holds."


def _system_error(error: OSError, context: dict[str, Path]) -> int:
    if error.errno == errno.EPIPE:
        # The reader of our output left early (opendas plan | head): nothing is wrong.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return 0
    where = f" ({error.filename})" if isinstance(error.filename, str | Path) else ""
    if error.errno in PATH_ERRORS and where:
        _write_to_stderr(f"{PATH_ERRORS[error.errno]}{where}. Check the path.")
        return EXIT_USAGE
    if error.errno not in ENVIRONMENT_ERRORS:
        return _internal(error, context)
    what = ENVIRONMENT_ERRORS[error.errno]
    again = "run the command again"
    if "resumable" in context and context["resumable"].exists():
        again = "run the same command with --resume"
    _write_to_stderr(f"{what}{where}. Correct this, then {again}.")
    return EXIT_ENVIRONMENT


def _internal(error: BaseException, context: dict[str, Path]) -> int:
    """Report an internal error by its kind and place.

    The message of a foreign exception may quote data, so that it is shown to nobody; a debug log goes under
    ``confidential/``, the only place where it may.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if f"{os.sep}opendas{os.sep}" in frame.filename and frame.filename != __file__
    ] or list(frames)
    place = (
        f"{Path(own[-1].filename).name}, line {own[-1].lineno}, in {own[-1].name}" if own else "unknown place"
    )
    _write_to_stderr(
        f"internal error: {type(error).__name__} at {place}. This is a bug: please report this line, the "
        "command and `opendas doctor` (CONTRIBUTING.md says where). No data are shown, and none are needed."
    )
    if os.environ.get("OPENDAS_DEBUG"):
        _write_to_stderr(_debug_log(error, context))
    elif "out" in context:
        _write_to_stderr("With OPENDAS_DEBUG=1, a traceback is written under OUT/confidential/logs.")
    return EXIT_INTERNAL


def _debug_log(error: BaseException, context: dict[str, Path]) -> str:
    out = context.get("out")
    if out is None or not (out / "confidential").is_dir():
        return "no traceback was written: this command has no output folder with a confidential part."
    folder = out / "confidential" / "logs"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        text = "".join(traceback.TracebackException.from_exception(error, capture_locals=False).format())
        path = folder / "traceback.txt"
        with open_folder(folder) as opened, opened.whole(path.name, 0o600) as file:
            file.write(text.encode())
    except OSError:
        return "the traceback could not be written."
    return f"traceback: {path}. It is confidential: it may quote input."
