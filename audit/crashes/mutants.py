"""Ways to break the program that the harness must notice, switched on in the lives of a trial only."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from opendas.custody.folders import atomic_file, make_folder

__all__ = ["MUTANTS", "arm"]


def _draws_again() -> None:
    """Every process derives other noise: a resumed run draws twice."""
    from opendas.custody.run_key import RunKey

    derive = RunKey.derive
    life = os.environ["OPENDAS_CRASH_MAIN"].encode()

    def other(self: RunKey, purpose: str, *fields: bytes) -> bytes:
        return derive(self, purpose, *fields, *([life] if purpose.startswith("noise/") else []))

    RunKey.derive = other  # type: ignore[method-assign]


def _no_ledger() -> None:
    """The intent is never written."""
    from opendas.custody.ledger import Ledger

    def nothing(self: Ledger, entry: Any) -> None:
        pass

    Ledger.intend = nothing  # type: ignore[method-assign]
    Ledger.finished = nothing  # type: ignore[method-assign, assignment]


def _late_ledger() -> None:
    """The intent is written when the run is finished."""
    from opendas.custody.ledger import Ledger

    intend, finished = Ledger.intend, Ledger.finished
    waiting: list[Any] = []

    def later(self: Ledger, entry: Any) -> None:
        waiting.append(entry)

    def now(self: Ledger, run_id: str) -> None:
        for entry in waiting:
            intend(self, entry)
        finished(self, run_id)

    Ledger.intend = later  # type: ignore[method-assign]
    Ledger.finished = now  # type: ignore[method-assign]


def _charges_again() -> None:
    """A resumed run is entered as another act."""
    from opendas.custody import ledger
    from opendas.custody.ledger_lines import LedgerLine

    ledger._check_same_act = lambda known, entry: None
    original = ledger.Ledger.intend

    def twice(self: Any, entry: Any) -> None:
        original(self, entry)
        with self._file() as descriptor:
            lines = self._load(descriptor)
            if sum(line.run_id == entry.run_id for line in lines) == 1 and os.environ.get("OPENDAS_CRASH"):
                self._append(descriptor, LedgerLine.following(lines, entry))

    ledger.Ledger.intend = twice  # type: ignore[method-assign]


def _no_flush() -> None:
    """Nothing is ever flushed."""
    os.fsync = os.fdatasync = lambda fd: None


def _no_folder_flush() -> None:
    """Files are flushed, folders are not."""
    import stat

    fsync = os.fsync

    def files_only(fd: Any) -> None:
        number = fd if isinstance(fd, int) else fd.fileno()
        if not stat.S_ISDIR(os.fstat(number).st_mode):
            fsync(number)

    os.fsync = files_only


def _in_place() -> None:
    """Files are written under their final names."""

    def plain(path: Path) -> Iterator[Any]:
        make_folder(path.parent)
        with open(path, "wb") as file:
            yield file

    # The code is exchanged, because the function itself is known by name in many modules.
    atomic_file.__wrapped__.__code__ = plain.__code__  # type: ignore[attr-defined]


def _newline_at_once() -> None:
    """A ledger line and its newline are written together."""
    from opendas.custody import ledger

    def append(self: Any, descriptor: int, line: Any) -> None:
        os.write(descriptor, line.data + b"\n")
        ledger._sync(descriptor, self.path)

    ledger.Ledger._append = append  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    "draws again": _draws_again,
    "no ledger": _no_ledger,
    "late ledger": _late_ledger,
    "charges again": _charges_again,
    "no flush": _no_flush,
    "no folder flush": _no_folder_flush,
    "in place": _in_place,
    "newline at once": _newline_at_once,
}


def arm(name: str) -> None:
    """Break the program of this process."""
    MUTANTS[name]()
