"""Create and open books, and find the book that covers an input.

The owner chooses the place of a book, and its key lies beside it. A link in the user's or office's folder of
books (``OPENDAS_BOOKS``) lets runs in any folder find it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from secrets import token_hex

from opendas.custody.book_terms import BookTerms
from opendas.custody.ledger import Ledger
from opendas.custody.ledger_entries import ELSEWHERE, LedgerEntry
from opendas.custody.run_key import RunKey
from opendas.custody.secret_files import destroy_secret, private_folder
from opendas.errors import ConfigError, EnvironmentFailure, PrivacyError
from opendas.privacy.exact import parse_fraction
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.version import __version__

FOLDER_VARIABLE = "OPENDAS_BOOKS"
_KEY_SUFFIX = ".key"
_FILE = b"opendas input file 1"


@dataclass(frozen=True, slots=True)
class Book:
    """A book with its key."""

    path: Path
    terms: BookTerms
    key: RunKey = field(repr=False)  # tags inputs and blinds the head; it never draws noise

    def covers(self, tags: Iterable[str]) -> bool:
        """Whether the book holds an input with one of these tags."""
        return not Ledger.beside(self.path).inputs().isdisjoint(tags)

    def blinded(self, head: str) -> str:
        """Return the blinded form of a head of this book, 64 hexadecimal digits.

        It reveals nothing about the book's content; anyone with book and key can recompute it.
        """
        return self.key.tag(b"opendas head of a book 1" + bytes.fromhex(head))


def add_loss(book: Book, rho: Fraction | str | int, what: str) -> None:
    """Enter a loss spent elsewhere: by another program, or before the book existed.

    - `rho`: loss of one protected unit of the book, under its relation, with induced changes.
    - `what`: description for readers of the book.

    Raises `ConfigError` if the description is empty; `PrivacyError` if the sum would exceed the limit, which
    is then too small.
    """
    if not what.strip():
        raise ConfigError("say in a few words what was released, and when (--note).")
    entry = LedgerEntry(
        run_id=token_hex(16),
        product=what.strip(),
        key_commitment=token_hex(32),  # no key is known here; random, because commitments must differ
        input_tag=ELSEWHERE,
        plan_digest="-",
        mechanism=Mechanism.DISCRETE_GAUSSIAN,
        loss=parse_fraction(rho, "rho"),
        relation=book.terms.relation,
        protected_unit=book.terms.unit,
        version=__version__,
    )
    Ledger.beside(book.path).intend(entry)


def file_tags(key: RunKey, digests: Sequence[bytes]) -> tuple[str, ...]:
    """Return the keyed tags of files, given their SHA-256."""
    return tuple(key.tag(_FILE + digest) for digest in digests)


def create_book(
    path: Path,
    unit: str,
    *,
    rho: Fraction | str | int | None = None,
    epsilon: Fraction | str | int | None = None,
    delta: Fraction | str | int | None = None,
    relation: Neighbours | str = Neighbours.BOUNDED,
) -> Book:
    """Create a book, with its key beside it, and link it in the folder of books.

    - `path`: a new file, in a folder that exists.
    - `rho`, `epsilon`, `delta`: the limit: a rho, or an epsilon at a delta.

    Raises `ConfigError` if the file exists already, or unit or limit are invalid; `EnvironmentFailure` if it
    cannot be written. If only the link fails, the book exists and is used with ``--ledger``.
    """
    key_path = _key_path(path)
    if path.exists() or path.is_symlink():
        raise ConfigError(f"{path} exists already. Give the path of a new file.")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{path}: the folder {path.absolute().parent} does not exist. Create it first.")
    if key_path.exists():
        raise ConfigError(f"{key_path} exists already. Choose another name for the book.")
    key = RunKey.generate()
    commitment = key.commitment()
    terms = BookTerms.declare(
        unit,
        rho=rho,
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        key_commitment=commitment,
        version=__version__,
    )
    key.save(key_path)
    try:
        Ledger.create(path, terms)
    except BaseException:
        destroy_secret(key_path)
        raise
    _link_book(path.resolve(), terms)
    return Book(path, terms, key)


def book_of(path: Path) -> Book:
    """Open a book."""
    if not path.is_file():
        raise ConfigError(f"--ledger {path}: there is no such book; opendas ledger create makes one.")
    terms = Ledger.beside(path).terms
    if terms is None:
        raise ConfigError(
            f"{path} is not a book: it declares no limit and no protected unit. Create a book with opendas "
            "ledger create BOOK --limit-rho R --unit NAME, and give its path."
        )
    key_path = _key_path(path.resolve())
    if not key_path.is_file():
        raise PrivacyError(
            f"there is no key at {key_path}. Without the key, OpenDAS cannot tell which inputs {path.name} "
            "has recorded. Restore the key from a copy."
        )
    key = RunKey.load(key_path)
    if key.commitment() != terms.key_commitment:
        raise PrivacyError(f"{_key_path(path)} is not the key of {path.name}. Restore the key of this book.")
    return Book(path, terms, key)


def books_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder of links to books; None if there is no place for one.

    It is ``OPENDAS_BOOKS``, or else ``opendas/books`` in the user's data folder.
    """
    given = environment.get(FOLDER_VARIABLE)
    if given:
        return Path(given)
    data = environment.get("XDG_DATA_HOME")
    home = environment.get("HOME")
    if data or home:
        return Path(data or f"{home}/.local/share") / "opendas" / "books"
    return None


def known_books() -> tuple[Book, ...]:
    """Open the books that may cover runs of this user.

    Raises `EnvironmentFailure` if a linked book is missing: whether it covers an input is then unknown;
    `PrivacyError` if one is damaged, or its key is missing.
    """
    folder = books_folder()
    if folder is None or not folder.is_dir():
        return ()
    found = []
    for name in sorted(folder.iterdir()):
        if name.name.startswith(".") or name.name.endswith(_KEY_SUFFIX):
            continue
        if not name.exists():
            raise EnvironmentFailure(
                f"the book {name.name} is not where it was, at {name.resolve()}. Without it, OpenDAS cannot "
                "tell whether the book covers this input. Put the book back. If it is no longer in use, "
                f"remove {name}."
            )
        found.append(book_of(name.resolve()))
    return tuple(found)


def _key_path(path: Path) -> Path:
    return path.with_name(path.name + _KEY_SUFFIX)


def _link_book(path: Path, terms: BookTerms) -> None:
    """Link a book in the folder of books, unless it lies there."""
    folder = books_folder()
    if folder is None or path.parent == folder.resolve():
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if not folder.exists():
            private_folder(folder)
        (folder / f"{path.name}-{terms.key_commitment[:8]}").symlink_to(path)
    except OSError as error:
        raise EnvironmentFailure(
            f"{path.name} was created, but OpenDAS could not link it in {folder} ({error.strerror}). Runs "
            f"use this book only if you name it with --ledger. Before you create the next book, set "
            f"{FOLDER_VARIABLE} to a writable folder."
        ) from error
