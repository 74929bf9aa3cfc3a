"""The output folder: key, ledger and state of the runs in it, and what may be resumed.

Order of events: lock the folder; key on disk; what the run is a function of in ``state/<product>/run.json``;
intent in the ledger; only then draws. Whatever a crash leaves, a second start either finds no intent, and
nothing was drawn, or finds it, and repeats the same draws.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from opendas.custody.books import Book, book_of, known_books
from opendas.custody.folders import (
    flush_tree,
    hold,
    keep_from_git,
    let_go,
    make_folder,
    open_folder,
    remove_file,
    remove_partials,
    remove_tree,
    write_atomic,
)
from opendas.custody.ledger import Ledger
from opendas.custody.ledger_entries import LedgerEntry
from opendas.custody.ledger_lines import LedgerAct
from opendas.custody.passphrase import Passphrase
from opendas.custody.run_key import KEY_BYTES, RunKey
from opendas.custody.secret_files import destroy_secret, forbid_core_files, private_folder
from opendas.custody.stamps import KeyCustody
from opendas.errors import ConfigError, EnvironmentFailure, PrivacyError

_PHASES = ("started", "measured", "finished")
_BOOK = "book.json"

_KEY_SECONDS = 300
"""How long a key command may take."""


@dataclass(frozen=True, slots=True)
class RunState:
    """What a run is a function of, and how far it is: ``state/<product>/run.json``."""

    run_id: str  # random
    product: str
    version: str
    plan_digest: str  # of the measurement plan
    estimation_digest: str  # of everything that estimation adds
    input_tag: str  # keyed digest of the input; of published measurements, the digest of their files
    key_commitment: str  # keyed digest of the key; empty for published measurements
    seed: int | None
    phase: str = "started"  # ``started``, ``measured`` or ``finished``
    result: Mapping[str, Any] | None = None  # answer of a finished run
    # What is still to be done of a run that has its result: where its key is to be (``key``), and what its
    # certificate says (``facts``). None before, and when it is done.
    ending: Mapping[str, Any] | None = None

    @property
    def known(self) -> Mapping[str, Any]:
        """What is known of its result so far."""
        return self.result or {}

    @property
    def is_borrowed(self) -> bool:
        """Whether the measurements were taken by others: no key was made, and nothing charged."""
        return not self.key_commitment

    def differing(self, other: RunState) -> tuple[str, ...]:
        """Name what differs between two runs of one product, apart from identity and progress."""
        names = {
            "version": f"program version ({self.version} and {other.version})",
            "plan_digest": "plan",
            "estimation_digest": "estimation settings or provenance",
            "input_tag": "input",
            "seed": "seed",
        }
        return tuple(text for name, text in names.items() if getattr(self, name) != getattr(other, name))


def read_state(path: Path) -> RunState:
    """Read ``state/<product>/run.json``."""
    try:
        state = RunState(**json.loads(path.read_bytes()))
        names = [each.name for each in fields(state) if each.type == "str"]
        right = all(isinstance(getattr(state, name), str) for name in names) and state.phase in _PHASES
        right = right and state.product == path.parent.name
        right = right and (state.seed is None or type(state.seed) is int)
        more = (state.result, state.ending)
        if not right or not all(each is None or isinstance(each, Mapping) for each in more):
            raise TypeError
        return state
    except (ValueError, TypeError, RecursionError) as error:
        raise PrivacyError(
            f"{path.name} of {path.parent.name} is damaged, or another version of OpenDAS wrote it: the run "
            "cannot be resumed. A new run in a new folder is charged in full."
        ) from error


class Workspace:
    """An output folder, locked while it is open.

    - `ledger`: a book; by default the one of earlier runs of the folder, else ``ledger.jsonl`` in it.
    - `group_writable`: open folder and release to the group of the folder.
    """

    def __init__(self, out: Path, ledger: Path | None = None, *, group_writable: bool = False) -> None:
        forbid_core_files()
        self.out = out
        self.refuse(out)
        if ledger is not None and ledger.resolve().is_relative_to(self.release.resolve()):
            raise ConfigError(
                f"--ledger {ledger}: a ledger is not for publication, and this path lies in the release."
            )
        given = None if ledger is None else book_of(ledger)
        self._fresh = not out.exists() or not any(out.iterdir())
        make_folder(out)
        _close(out, group_writable)
        hold(out)
        try:
            for folder in (self.confidential, self.confidential / "keys", self.state):
                private_folder(folder)
            for folder in (self.confidential, self.state):
                keep_from_git(folder)
            make_folder(self.release)
            self.book = self._book(given)
            """The book that the acts of this folder are in; None where they are in its own ledger."""
            self.ledger = Ledger.open(self.own_ledger if self.book is None else self.book.path, folder=out)
            _close_below(self.release, group_writable)
            remove_partials(out)
            flush_tree(out)
        except BaseException:
            let_go(out)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ledger.close()
        try:
            if kind is not None and self._fresh and not any(self.state.rglob("run.json")):
                # Nothing was drawn or promised: leave no trace of a run that never started.
                remove_tree(self.out)
        finally:
            let_go(self.out)

    def _book(self, given: Book | None) -> Book | None:
        """Return the book of this folder, given now or at an earlier run."""
        if given is not None and self.own_ledger.is_file() and self.own_ledger.stat().st_size:
            raise ConfigError(
                f"--ledger {given.path}: the acts of {self.out} are in the folder's own ledger, and cannot "
                "be moved to a book. Choose a new output folder for runs on a book."
            )
        noted = book_in(self.state, given)
        if noted is not None and given is not None:
            note_book(self.state, given)  # perhaps at a new place
        return noted or given

    @property
    def own_ledger(self) -> Path:
        """The ledger of this folder alone."""
        return self.out / "ledger.jsonl"

    def join(self, book: Book) -> None:
        """Enter the acts of this folder, which has none yet, into a book that knows its input."""
        if self.ledger.entries():
            raise PrivacyError(
                f"this input is in the book {book.path}, and {self.out} has acts in a ledger of its own: the "
                "account would be split. Choose a new output folder."
            )
        self.ledger = self.ledger.moved_to(book.path)
        self.book = book
        remove_file(self.own_ledger)

    def refuse(self, out: Path) -> None:
        """Refuse a folder that is not ours; see :func:`refuse_foreign`."""
        refuse_foreign(out)

    @property
    def release(self) -> Path:
        """What may be published."""
        return self.out / "release"

    @property
    def confidential(self) -> Path:
        """What must not leave the office; mode 0700."""
        return self.out / "confidential"

    @property
    def state(self) -> Path:
        """Checkpoints of noisy and estimated values, input tag and key commitment; mode 0700."""
        return self.out / "state"

    def cache(self, product: str) -> Path:
        """Return where a run may put its input while it works on it: confidential, and removed at the end."""
        return self.confidential / "cache" / product

    def key_path(self, product: str) -> Path:
        """Return the key file of a product's run."""
        return self.confidential / "keys" / f"{product}.key"

    def state_path(self, product: str) -> Path:
        """Return the state file of a product's run."""
        return self.state / product / "run.json"

    def load_state(self, product: str) -> RunState | None:
        """Return the state of a product's run, or None where there is none.

        What a death between the last result and the end of that run left undone is done first.
        """
        path = self.state_path(product)
        if not path.is_file():
            return None
        state = read_state(path)
        if state.phase != "started" and state.ending is None:
            self.close(state)
        return state

    def close(self, state: RunState) -> None:
        """Note in the ledger that a run is finished, and remove what only an unfinished one needs.

        Harmless when done again. An act that stands in another ledger gets no note: none is needed, since an
        act counts from its intent on.
        """
        if state.phase == "finished":
            if self.ledger.find(state.run_id) is not None:
                self.ledger.finished(state.run_id)
            remove_checkpoints(self.state / state.product)
        remove_cache(self.cache(state.product))

    def destroy_key(self, state: RunState) -> None:
        """Destroy the stored key of a run and note it in its ledger. Harmless when done again."""
        path = self.key_path(state.product)
        if path.exists() or path.is_symlink():
            destroy_secret(path)
        if self.ledger.find(state.run_id) is not None:
            self.ledger.enter(LedgerAct("destroy-key", state.run_id, {"product": state.product}))

    def begin(self, state: RunState, entry: LedgerEntry) -> None:
        """Write the state of a new run, then its intent; draw only after this returns.

        Raises `PrivacyError` if the ledger refuses the act: then it is as if the run had never been started.
        """
        if self.book is not None:
            note_book(self.state, self.book)
        self.save_state(state)
        try:
            self.ledger.intend(entry)
        except PrivacyError:
            remove_file(self.state_path(state.product))
            raise

    def save_state(self, state: RunState) -> None:
        """Write the state of a product's run."""
        text = json.dumps(
            {name: getattr(state, name) for name in RunState.__slots__}, indent=1, sort_keys=True
        )
        write_atomic(self.state_path(state.product), text.encode())

    def key_at_hand(self, product: str, passphrase: Passphrase | None) -> bool:
        """Whether the key of a run is stored here, in clear or with a passphrase given for it."""
        path = self.key_path(product)
        return path.exists() and (passphrase is not None or not RunKey.is_encrypted(path))

    def new_key(
        self, product: str, seed: int | None, command: str | None, passphrase: Passphrase | None = None
    ) -> RunKey:
        """Return the key of a new run, on disk unless a key command keeps it elsewhere.

        A key left by a run that never reached the ledger was never used and is replaced.
        """
        if command is not None:
            return key_from_command(command)
        path = self.key_path(product)
        if path.exists():
            entries = self.ledger.entries()
            old = RunKey.load(path, passphrase) if entries else None
            # Runs with one seed have one key, those of other products too: that it was used means nothing.
            if old is not None and not old.is_seeded and _used(old, entries):
                raise PrivacyError(
                    f"the key of {product} in this folder was used before and its run's state is gone; "
                    "start a new run in a new folder, which is charged in full."
                )
            destroy_secret(path)
        key = RunKey.generate() if seed is None else RunKey.seeded(seed)
        key.save(path, passphrase)
        return key

    def how_to_give_key(self, state: RunState) -> str:
        """Say how a key that is not at hand can be given, or what is left without it."""
        path, custody = self.key_path(state.product), state.known.get("key")
        if path.exists():
            return f"{path} is encrypted: give its passphrase with --ask-passphrase or --key-passphrase-file."
        if custody == KeyCustody.DESTROYED:
            return "The run's state says that it was destroyed. A new run in a new folder is charged in full."
        if custody == KeyCustody.ELSEWHERE:
            return "A key command gave it: give the same one with --key-command."
        if custody in (KeyCustody.KEPT, KeyCustody.SEALED):
            return (
                f"It was kept in {path}, and is no longer there: it was moved, lost, or destroyed with "
                "opendas forget-key. If you have a copy, put it back. Without one only a new run in a new "
                "folder is left, which is charged in full."
            )
        return (
            "If a key command gave it, give the same one with --key-command. If the key was lost, or "
            "destroyed with forget-key, only a new run in a new folder is left, which is charged in full."
        )

    def known_key(self, state: RunState, command: str | None, passphrase: Passphrase | None = None) -> RunKey:
        """Return the key of an earlier attempt; that of a seed needs no file."""
        path = self.key_path(state.product)
        if state.seed is not None and not path.exists():
            return RunKey.seeded(state.seed)
        if command is None and not path.exists():
            if state.phase == "measured":
                raise PrivacyError(
                    f"the measurements of {state.product} are complete, and its key is not in this folder. "
                    "opendas estimate continues from the measurements, without key or input."
                )
            raise PrivacyError(
                f"the key of {state.product} is not in this folder, and its run cannot be resumed "
                f"without it. {self.how_to_give_key(state)}"
            )
        key = key_from_command(command) if command is not None else RunKey.load(path, passphrase)
        if key.commitment() != state.key_commitment:
            raise PrivacyError(
                f"the key of {state.product} is not the one that its run started with: resuming would draw "
                "new noise. Give the key that the run started with. A new run in a new folder is charged in "
                "full."
            )
        return key


def _used(key: RunKey, entries: Sequence[LedgerEntry]) -> bool:
    commitment = key.commitment()
    return any(entry.key_commitment == commitment for entry in entries)


def holds_files(folder: Path) -> bool:
    """Return whether a file below a folder says something: an attempt that died at once leaves empty ones."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return any(path.stat().st_size > 0 for path in files)


def refuse_foreign(out: Path) -> None:
    """Refuse an output folder that is none, or holds something else than runs of ours."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ConfigError(f"{out} is not a folder; choose another --out.")
    ours = {"release", "confidential", "state", "ledger.jsonl"}
    found = {path.name for path in out.iterdir() if not path.name.startswith(".")}
    if found and not (found <= ours and "state" in found) and holds_files(out):
        other = sorted(found - ours)
        what = f"other things, for instance {other[0]}" if other else "files, but no folder state/ of a run"
        raise ConfigError(f"{out} holds {what}; choose an empty or new folder with --out.")


def check_custody(seed: int | None, command: str | None, passphrase: Passphrase | None) -> None:
    """Refuse two answers to the question where the key comes from."""
    if seed is not None and command is not None:
        raise ConfigError("a seeded run takes no key command.")
    if passphrase is not None and seed is not None:
        raise ConfigError("a seeded run takes no passphrase: its key is not a secret.")
    if passphrase is not None and command is not None:
        raise ConfigError("a passphrase goes with a stored key; that of a key command is kept elsewhere.")


def check_passphrase(key_file: Path, passphrase: Passphrase) -> None:
    """Try a passphrase on the key of an earlier run, or on none: a wrong one is better known at once."""
    if key_file.exists():
        RunKey.load(key_file, passphrase)
    else:
        passphrase.check_new()


def _close(out: Path, group_writable: bool) -> None:
    """Let nobody else exchange the folders in OUT: no writing by everybody, nor by the group unless asked."""
    with open_folder(out) as folder:
        mode = stat.S_IMODE(os.fstat(folder.descriptor).st_mode)
        wanted = (mode | stat.S_IWGRP if group_writable else mode & ~stat.S_IWGRP) & ~stat.S_IWOTH
        if mode & stat.S_ISVTX and not group_writable:
            wanted = mode  # in a folder like /tmp nobody exchanges what is another's
        if wanted == mode:
            return
        try:
            folder.set_mode(wanted)
        except OSError:
            if wanted & ~mode:
                raise PrivacyError(
                    f"--group-writable: {out} cannot be opened to its group; choose another output folder, "
                    "or let its owner run chmod g+w,o-w on it."
                ) from None
            raise PrivacyError(
                f"others may write into {out}, and could replace the folder of keys; choose another output "
                "folder, or let its owner run chmod go-w on it."
            ) from None


def _close_below(release: Path, group_writable: bool) -> None:
    """Take from folders of a release what others may do to them; files are replaced, never written again."""
    if group_writable:
        return
    for place in (release, *(path for path in release.rglob("*") if path.is_dir())):
        with open_folder(place) as folder:
            mode = stat.S_IMODE(os.fstat(folder.descriptor).st_mode)
            if mode & 0o022 and os.fstat(folder.descriptor).st_uid == os.geteuid():
                folder.set_mode(mode & ~0o022)


def key_from_command(command: str) -> RunKey:
    """Return the key that an external command prints: 64 hexadecimal digits.

    The command is not run through a shell. Its output is never logged.
    """
    try:
        words = shlex.split(command)
        if not words:
            raise ConfigError("--key-command is empty; give the command that prints the run key.")
        done = subprocess.run(words, capture_output=True, check=False, timeout=_KEY_SECONDS)
    except subprocess.TimeoutExpired:
        raise EnvironmentFailure(f"the key command did not end within {_KEY_SECONDS} seconds.") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise EnvironmentFailure(f"the key command could not be run: {reason}.") from None
    if done.returncode != 0:
        raise EnvironmentFailure(f"the key command ended with status {done.returncode}.")
    try:
        secret = bytes.fromhex(done.stdout.decode("ascii").strip())
    except ValueError:
        secret = b""
    if len(secret) != KEY_BYTES:
        raise PrivacyError(f"the key command must print {2 * KEY_BYTES} hexadecimal digits and nothing else.")
    return RunKey(secret)


def note_book(state: Path, book: Book) -> None:
    """Write down in an output folder which book its acts are in."""
    text = json.dumps({"key_commitment": book.terms.key_commitment, "path": str(book.path.resolve())})
    write_atomic(state / _BOOK, text.encode())


def book_in(state: Path, given: Book | None = None) -> Book | None:
    """Return the book that the acts of an output folder are in; None where they are in its own ledger.

    `given`: the same, perhaps at a new place.
    """
    path = state / _BOOK
    if not path.is_file():
        return None
    try:
        noted = json.loads(path.read_bytes())
        known_as, place = str(noted["key_commitment"]), Path(noted["path"])
    except (ValueError, KeyError, TypeError) as error:
        raise PrivacyError(
            f"{path} is damaged: it does not say in which book the acts of this folder are. Restore it from "
            "a copy."
        ) from error
    if given is not None:
        if given.terms.key_commitment != known_as:
            raise ConfigError(f"--ledger {given.path}: the acts of this folder are in another book, {place}.")
        return given
    if place.is_file() and (book := book_of(place)).terms.key_commitment == known_as:
        return book
    for book in known_books():
        if book.terms.key_commitment == known_as:
            return book
    raise EnvironmentFailure(
        f"the acts of this folder are in a book that was at {place}, and is not there: put it back, or give "
        "its new place with --ledger."
    )


def forget_keys(out: Path, kind: type[Workspace] = Workspace, ledger: Path | None = None) -> tuple[str, ...]:
    """Destroy the keys of a folder: measurements can then no longer be unmade, nor more be drawn.

    The file is overwritten before it is removed; what the file system or a backup keeps is beyond reach. An
    encrypted key needs no passphrase for that.

    - `kind`: layout of the folder.
    - `ledger`: the book that its acts are in, if it lies elsewhere now.
    - Returns: products whose key was destroyed.
    """
    folder = out / "confidential" / "keys"
    if not folder.is_dir():
        raise ConfigError(f"{out} is not an output folder of a run.")
    gone = []
    with kind(out, ledger) as space:
        for path in sorted(folder.glob("*.key")):
            state = space.load_state(path.stem)
            if state is None:
                destroy_secret(path)
            else:
                space.destroy_key(state)
            gone.append(path.stem)
    return tuple(gone)


def refuse_clear_keys(out: Path) -> None:
    """Refuse an output folder with a run key that anybody who reads it has."""
    clear = [
        path.stem
        for path in sorted((out / "confidential" / "keys").glob("*.key"))
        if not RunKey.is_encrypted(path)
    ]
    if clear:
        raise PrivacyError(
            f"{out} holds the key of {', '.join(clear)} in clear: anyone who has it and the release can "
            "compute the confidential counts. Run opendas forget-key first, or give --allow-key."
        )


def remove_checkpoints(folder: Path) -> None:
    """Remove finished tasks once the release stands."""
    for path in folder.glob("*.part"):
        remove_file(path)


def remove_cache(folder: Path) -> None:
    """Remove what a run put aside of its input."""
    remove_tree(folder)
    if folder.exists():
        raise EnvironmentFailure(f"{folder} holds exact counts and could not be removed; remove it yourself.")
