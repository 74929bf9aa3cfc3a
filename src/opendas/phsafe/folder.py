"""The output folder of the household tables: the published folders, and this program's own files.

Private: table folders, ``certificate.json``, ``ledger.jsonl`` (0600) and ``confidential/`` (0700) with key
and state. Non-private: the folder itself is 0700, because all of it is confidential. A folder holds output of
one kind only, named in ``confidential/mode``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opendas.custody.folders import keep_from_git, make_folder, remove_tree, write_atomic
from opendas.custody.secret_files import forbid_core_files, private_folder
from opendas.errors import ConfigError
from opendas.phsafe.config import Mode
from opendas.report.certificate import CERTIFICATE
from opendas.runs.context.workspace import Workspace, holds_files

PRODUCT = "phsafe"
"""Product name of the run in ledger, state and key file."""

_MODE = Path("confidential", "mode")


def stored_mode(out: Path) -> Mode | None:
    """Return the kind of output in a folder; None if this program did not create it."""
    path = out / _MODE
    if not path.is_file():
        return None
    text = path.read_text(encoding="utf-8", errors="replace").strip()
    return Mode(text) if text in (Mode.PRIVATE, Mode.NON_PRIVATE) else None


def refuse_other(out: Path, mode: Mode) -> None:
    """Refuse a folder with anything other than output of this kind."""
    if mode is Mode.NON_PRIVATE:
        refuse_inside_release(out)
    if not out.exists():
        return
    if not out.is_dir():
        raise ConfigError(f"{out} is not a folder; choose another OUT.")
    stored = stored_mode(out)
    if stored is mode:
        return
    if stored is not None:
        raise ConfigError(
            f"{out} holds {stored} output, and {mode} output needs a folder of its own, so that nobody takes "
            "exact counts for protected ones. Choose another OUT."
        )
    found = sorted(path.name for path in out.iterdir() if not path.name.startswith("."))
    if found and holds_files(out):
        raise ConfigError(
            f"{out} holds other files, for instance {found[0]}; choose an empty or new folder for OUT."
        )


def refuse_inside_release(out: Path) -> None:
    """Refuse a folder for exact counts inside a published folder, except under ``confidential/``."""
    place = out.resolve()
    for folder in place.parents:
        released = stored_mode(folder) is Mode.PRIVATE or (folder / CERTIFICATE).is_file()
        if released and not place.is_relative_to(folder / "confidential"):
            raise ConfigError(
                f"{out} lies in the release {folder.name}, and exact counts are as confidential as the "
                "input. Choose a folder outside the release."
            )


class HouseholdWorkspace(Workspace):
    """The folder of a private run, locked while open (:class:`opendas.runs.context.workspace.Workspace`)."""

    def __init__(self, out: Path, ledger: Path | None = None, *, group_writable: bool = False) -> None:
        super().__init__(out, ledger, group_writable=group_writable)
        if stored_mode(out) is None:
            write_atomic(out / _MODE, f"{Mode.PRIVATE}\n".encode())

    def refuse(self, out: Path) -> None:
        """Refuse a folder that this program did not create, or that holds exact counts."""
        refuse_other(out, Mode.PRIVATE)

    @property
    def release(self) -> Path:
        """The output folder itself, which holds the tables."""
        return self.out

    @property
    def state(self) -> Path:
        """Path of the state, under ``confidential/`` because the folder has the published layout."""
        return self.confidential / "state"


@contextmanager
def exact_folder(out: Path) -> Iterator[Path]:
    """Open the folder of a non-private run for its owner only; remove a new one if the run fails."""
    refuse_other(out, Mode.NON_PRIVATE)
    fresh = not out.exists() or not any(out.iterdir())
    forbid_core_files()
    make_folder(out.parent)
    private_folder(out)
    try:
        keep_from_git(out)
        write_atomic(out / _MODE, f"{Mode.NON_PRIVATE}\n".encode())
        yield out
    except BaseException:
        if fresh:
            remove_tree(out)
        raise
