"""What must hold for every input, whatever it is.

An input is accepted, or refused with an error of :mod:`opendas.errors` (through the command line: with an
exit code of the table in ``opendas --help``, never 70). A refusal of data names the file. No message quotes a
confidential value of the seed. Nothing takes longer, or more memory, than the limits below. A refused run
leaves no release; an accepted one leaves a release that verifies.
"""

from __future__ import annotations

import contextlib
import io
import re
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.errors import DataError, EnvironmentFailure, OpendasError

__all__ = ["MEMORY_LIMIT", "SECONDS", "Defect", "Outcome", "command", "judged", "place_of"]

SECONDS = 10.0
"""Longest that an input of a few kilobytes may take, on a machine that does other things too."""

MEMORY_LIMIT = 6 << 30
"""Address space of a process that fuzzes, in bytes."""

_CODES = frozenset({0, 1, 2, 3, 4, 5})


class Defect(AssertionError):
    """Something that must never happen did."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an input ended: exit code 0 for accepted, and what was said."""

    code: int
    message: str = ""
    kind: str = "accepted"


def place_of(error: BaseException) -> str:
    """Return kind and innermost place of an exception in our own code: what makes two defects the same."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/opendas/" in frame.filename] or list(frames)
    return f"{type(error).__name__} at {Path(own[-1].filename).name}:{own[-1].name}" if own else repr(error)


def command(folder: Path, *arguments: str) -> Outcome:
    """Run a command as a user does; paths in `arguments` are absolute."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = guarded(cli, list(arguments))
    said = err.getvalue()
    if code not in _CODES:
        found = re.search(r"internal error: (\w+ at [^,]*, line \d+, in \w+)", said)
        raise Defect(f"exit code {code}: {found.group(1) if found else said[-200:]}")
    if "Traceback" in said + out.getvalue():
        raise Defect("a traceback was printed")
    if code and "--json" in arguments and arguments[0] != "verify" and out.getvalue():
        raise Defect("a refused command wrote to stdout")
    return Outcome(code, said + out.getvalue(), f"exit {code}")


def judged(
    call: object, folder: Path, names: Iterable[str], marks: Iterable[str], *, where: bool = True
) -> Outcome:
    """Call a target and return how it ended.

    Parameters
    ----------
    call : callable(folder)
        Returns None, or the outcome of a command.
    folder : Path
    names : iterable of str
        Files that were damaged; a refusal of data must name one of the folder's.
    marks : iterable of str
        Confidential values, which no message may quote.

    Raises
    ------
    Defect
        Whenever one of the rules above is broken.
    """
    try:
        result = call(folder)  # type: ignore[operator]
        outcome = result if isinstance(result, Outcome) else Outcome(0)
    except Defect:
        raise
    except EnvironmentFailure as error:
        raise Defect(f"blamed the environment: {place_of(error)}: {str(error)[:200]}") from error
    except OpendasError as error:
        if type(error) is OpendasError:
            raise Defect(f"an error without a class: {error}") from error
        outcome = Outcome(error.exit_code, str(error), type(error).__name__)
        if where and isinstance(error, DataError):
            _check_names(outcome.message, folder)
    except MemoryError as error:
        raise Defect(f"too much memory: {place_of(error)}") from error
    except Exception as error:
        raise Defect(place_of(error)) from error
    for mark in marks:
        if mark in outcome.message:
            at = outcome.message.index(mark)
            raise Defect(f"quotes a confidential value: ...{outcome.message[max(at - 80, 0) : at + 20]!r}")
    return outcome


def _check_names(message: str, folder: Path) -> None:
    names = {path.name for path in folder.rglob("*")}
    if not any(name in message for name in names):
        raise Defect(f"names no file: {message[:200]!r}")
