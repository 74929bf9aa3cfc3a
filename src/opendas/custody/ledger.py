"""The ledger: a permanent record of every privacy act, written before the act.

``ledger.jsonl`` holds one JSON object per line. Each line has the SHA-256 of the previous line and of its own
content, so that a changed, removed or reordered line is detected. An *intent* is forced to disk before the
first draw of a run and counts as spent from then on, even if the run fails. An *act* draws nothing but
belongs in the account: the truth was read, a key destroyed. A *finished* note is not an act. A line without
its newline was never acknowledged, so nothing was drawn after it, and it is cut. Any other damage stops the
run. What this proves: ``docs/proofs/ledger.md``.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from opendas.custody.book_terms import BookTerms
from opendas.custody.folders import LOCK_NAME, open_folder
from opendas.custody.ledger_entries import LedgerEntry
from opendas.custody.ledger_lines import Finished, LedgerAct, LedgerLine, read_lines
from opendas.errors import EnvironmentFailure, PrivacyError


class Ledger:
    """An open ledger, which locks its output folder while open.

    Use :meth:`open` as a context manager. The folder's lock excludes a second run. The ledger file has its
    own lock, held only while a line is written or read, so that several folders may share one ledger. Each
    operation reads the file again, because another folder may have added to it. A book is a ledger whose
    first line has terms; see :meth:`create`.
    """

    def __init__(self, path: Path, lock: int | None) -> None:
        self._path = path
        self._lock = lock
        self._closed = False

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, folder: str | os.PathLike[str] | None = None) -> Self:
        """Lock an output folder and open its ledger, creating the file if missing.

        - `path`: the ledger file. Created with mode 0600; its folder must exist.
        - `folder`: the output folder to lock; by default, the ledger's own. They differ if ``--ledger``
          shares one ledger between output folders.

        Raises `EnvironmentFailure` if another process holds the folder, or disk or permissions prevent
        writing; `PrivacyError` if the ledger is damaged other than by a torn last line.
        """
        ledger_path = Path(path)
        locked = Path(folder) if folder is not None else ledger_path.parent
        ledger = cls(ledger_path, _lock_folder(locked))
        try:
            with ledger._file() as descriptor:
                ledger._load(descriptor)
                _sync(descriptor, ledger_path)
        except BaseException:
            ledger.close()
            raise
        return ledger

    @classmethod
    def beside(cls, path: str | os.PathLike[str]) -> Self:
        """Return an existing ledger without locking an output folder."""
        return cls(Path(path), None)

    @classmethod
    def create(cls, path: Path, terms: BookTerms) -> None:
        """Create a book with one line.

        Raises `EnvironmentFailure` if the file exists already or cannot be forced to disk; nothing is left
        behind.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _disk_failure(path, error) from error
        try:
            os.fchmod(descriptor, 0o600)
            cls(path, None)._append(descriptor, LedgerLine.following((), terms))
        except OSError as error:
            path.unlink(missing_ok=True)
            raise _disk_failure(path, error) from error
        finally:
            os.close(descriptor)

    def moved_to(self, path: Path) -> Ledger:
        """Return another ledger for the same output folder, and pass it this ledger's lock."""
        other = Ledger(path, self._lock)
        self._lock, self._closed = None, True
        return other

    @property
    def path(self) -> Path:
        """Path of the ledger file."""
        return self._path

    @property
    def terms(self) -> BookTerms | None:
        """Terms of a book; None for other ledgers."""
        return _terms_of(self.lines())

    def lines(self) -> tuple[LedgerLine, ...]:
        """Return every line, in order."""
        with self._file() as descriptor:
            return self._load(descriptor)

    def inputs(self) -> frozenset[str]:
        """Return the tags of all recorded inputs."""
        said = (line.said for line in self.lines())
        return frozenset(t for s in said if isinstance(s, LedgerEntry | LedgerAct) for t in s.inputs)

    def close(self) -> None:
        """Release the output folder. Closing twice is harmless."""
        self._closed = True
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def intend(self, entry: LedgerEntry) -> None:
        """Record a privacy act and force it to disk. Draw only after this returns.

        An entry equal in every field is the same act resumed, which repeats the same draws; it is neither
        written nor charged again.

        Raises `PrivacyError` if the run id is recorded with other fields (another plan, input, key or
        version), another run used the key, seeded and real runs would share the ledger, or the act would
        exceed a book's limit; `EnvironmentFailure` if the line cannot be forced to disk; nothing may then be
        drawn.
        """
        with self._file() as descriptor:
            lines = self._load(descriptor)
            earlier = [line.entry for line in lines if line.entry is not None]
            known = next((found for found in earlier if found.run_id == entry.run_id), None)
            if known is not None:
                _check_same_act(known, entry)
                return
            _check_fresh_act(earlier, entry)
            terms = _terms_of(lines)
            if terms is not None:
                terms.admit(earlier, entry)
            self._append(descriptor, LedgerLine.following(lines, entry))

    def finished(self, run_id: str) -> None:
        """Note that a run is finished. This is not a privacy act, and is written once only."""
        with self._file() as descriptor:
            lines = self._load(descriptor)
            if not any(line.entry is not None and line.run_id == run_id for line in lines):
                raise PrivacyError(
                    f"Ledger {self._path.name}: run {run_id} was never started with this ledger."
                )
            if not any(line.said == Finished(run_id) for line in lines):
                self._append(descriptor, LedgerLine.following(lines, Finished(run_id)))

    def enter(self, act: LedgerAct, *, again: bool = False) -> None:
        """Record an act that draws nothing, and force it to disk. Perform it only after this returns.

        `again`: record it even if an equal act exists: each reading of the truth counts, but a key is
        destroyed once.

        Raises `EnvironmentFailure` if the line cannot be forced to disk.
        """
        with self._file() as descriptor:
            lines = self._load(descriptor)
            if again or not any(line.said == act for line in lines):
                self._append(descriptor, LedgerLine.following(lines, act))

    def entries(self) -> tuple[LedgerEntry, ...]:
        """Return all privacy acts, oldest first."""
        return tuple(line.entry for line in self.lines() if line.entry is not None)

    def find(self, run_id: str) -> LedgerEntry | None:
        """Return the privacy act of a run, or None."""
        return next((entry for entry in self.entries() if entry.run_id == run_id), None)

    @staticmethod
    def read(path: str | os.PathLike[str]) -> tuple[LedgerEntry, ...]:
        """Read the acts of a ledger without locking its folder or changing it.

        Raises `PrivacyError` if the ledger is damaged other than by a torn last line, which is ignored;
        `EnvironmentFailure` if the file cannot be read.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise _disk_failure(Path(path), error) from error
        lines, _ = read_lines(data, Path(path).name)
        return tuple(line.entry for line in lines if line.entry is not None)

    @contextmanager
    def _file(self) -> Iterator[int]:
        """Open and lock the ledger file for one operation."""
        if self._closed:
            raise PrivacyError(f"Ledger {self._path.name} is closed: its output folder is no longer locked.")
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with open_folder(self._path.parent) as folder:
                descriptor = os.open(self._path.name, flags, 0o600, dir_fd=folder.descriptor)
        except OSError as error:
            raise _disk_failure(self._path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.fchmod(descriptor, 0o600)
            yield descriptor
        except OSError as error:
            raise _disk_failure(self._path, error) from error
        finally:
            os.close(descriptor)

    def _load(self, descriptor: int) -> tuple[LedgerLine, ...]:
        data = _read_all(descriptor)
        lines, whole = read_lines(data, self._path.name)
        if whole < len(data):
            os.ftruncate(descriptor, whole)
            _sync(descriptor, self._path)
        return lines

    def _append(self, descriptor: int, line: LedgerLine) -> None:
        """Write a line, force it to disk, and only then its newline.

        A power cut may leave any part of unforced data, in any order of sectors. Because the newline comes
        last, a line with one is complete, and any error in it is damage, not a torn write.
        """
        size = os.fstat(descriptor).st_size
        try:
            for data in (line.data, b"\n"):
                written = 0
                while written < len(data):
                    written += os.write(descriptor, data[written:])
                _sync(descriptor, self._path)
        except OSError:
            # The caller must not draw, so the line is removed; if that fails too, it counts as spent.
            os.ftruncate(descriptor, size)
            raise


def _terms_of(lines: Sequence[LedgerLine]) -> BookTerms | None:
    first = lines[0].said if lines else None
    return first if isinstance(first, BookTerms) else None


def _lock_folder(folder: Path) -> int:
    lock = folder / LOCK_NAME
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with open_folder(folder) as opened:
            descriptor = os.open(LOCK_NAME, flags, 0o600, dir_fd=opened.descriptor)
    except OSError as error:
        raise _disk_failure(lock, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise EnvironmentFailure(
            f"Another run or command of OpenDAS is active in the output folder {folder.name!r}. Wait until "
            "it ends, or use another output folder."
        ) from error
    except OSError as error:
        os.close(descriptor)
        raise _disk_failure(lock, error) from error
    return descriptor


def _read_all(descriptor: int) -> bytes:
    os.lseek(descriptor, 0, os.SEEK_SET)
    parts = []
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def _sync(descriptor: int, path: Path) -> None:
    """Force a file and its directory entry to disk."""
    os.fsync(descriptor)
    with open_folder(path.parent) as folder:
        folder.sync()


def _disk_failure(path: Path, error: OSError) -> EnvironmentFailure:
    return EnvironmentFailure(
        f"Ledger file {path.name}: {error.strerror or error}. Nothing may be drawn without the ledger. Check "
        f"the path, the disk and the permissions of {path.parent}."
    )


def _check_same_act(known: LedgerEntry, entry: LedgerEntry) -> None:
    differing = known.differing_fields(entry)
    if differing:
        raise PrivacyError(
            f"Run {entry.run_id} was started with another {' and another '.join(differing)}. A run can only "
            "be resumed unchanged. Resume it as it was started, or start a new run in a new folder, which is "
            "charged in full."
        )


def _check_fresh_act(earlier: Iterable[LedgerEntry], entry: LedgerEntry) -> None:
    for other in earlier:
        if other.seeded != entry.seeded:
            raise PrivacyError(
                "Seeded and real runs cannot share a ledger or an output folder. Give the seeded run a "
                "folder and a ledger of its own."
            )
        # A seed is not secret and may be reused; a real key covers one run only.
        if not entry.seeded and other.key_commitment == entry.key_commitment:
            raise PrivacyError(
                f"The key of run {entry.run_id} was already used by run {other.run_id}. Every run needs "
                "its own key, because two runs under one key reveal the difference of their inputs."
            )
