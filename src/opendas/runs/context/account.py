"""The account of an act: a book that is given, one that knows the input, or the folder's own ledger.

Acts that draw are entered by :mod:`opendas.runs.act`; here are those that draw nothing, and what a
certificate says of all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Protocol

from opendas.custody.account import PUBLISH, AccountFacts, account_of, selection_of
from opendas.custody.books import Book, book_of, file_tags, known_books
from opendas.custody.ledger import Ledger
from opendas.custody.ledger_lines import LedgerAct
from opendas.custody.run_key import RunKey
from opendas.engines.truth import input_tag
from opendas.errors import ConfigError, PrivacyError
from opendas.readers.input.spec import InputData
from opendas.report.views import plural
from opendas.runs.context.workspace import book_in, read_state

_TEXTS = (".csv", ".txt", ".psv")
_HEADER = 1 << 16


class InputTagger:
    """Tags an input under the keys of books: each of its files, and the table that was read from them.

    The files find a data set whatever product is counted; the table finds it in another file or order.

    - `files`: those that hold records. Their digests, which have no key yet, stay in memory.
    - `table` (key): returns the keyed tag of the table.
    """

    def __init__(self, files: Iterable[Path], table: Callable[[RunKey], str] | None = None) -> None:
        self._files = tuple(files)
        self._table = table

    @cached_property
    def _digests(self) -> Sequence[bytes]:
        found = []
        for path in self._files:
            with path.open("rb") as file:
                head = file.read(_HEADER)
                whole = path.suffix in _TEXTS and len(head) < _HEADER
                if whole and len(head.strip().splitlines()) < 2:
                    continue  # a header alone is the same in parts of many data sets
                file.seek(0)
                found.append(hashlib.file_digest(file, "sha256").digest())
        return found

    def __call__(self, key: RunKey) -> tuple[str, ...]:
        """Return the tags under a key."""
        table = () if self._table is None else (self._table(key),)
        return (*file_tags(key, self._digests), *table)


class RecordsInput(Protocol):
    """A run, as far as its input goes."""

    @property
    def input_files(self) -> tuple[Path | str, ...]:
        """Where the records are read from."""
        ...

    def read(self) -> InputData:
        """Read the records."""
        ...


def tagger_of(run: RecordsInput, table: Callable[[RunKey], str] | None = None) -> InputTagger:
    """Return what tags the input of a run under the keys of books.

    `table` (key): tags the table; by default it is read again for that.
    """
    files = (each for each in run.input_files if isinstance(each, Path))
    whole = cache(lambda: run.read().histogram)
    return InputTagger(files, table or (lambda key: input_tag(key, whole())))


def find_book(tagger: InputTagger, books: Sequence[Book] | None = None) -> Book | None:
    """Return the book that knows an input, of those that runs of this user are held against.

    Raises `PrivacyError` if several know it: the account would be split. If a book is damaged;
    `EnvironmentFailure` if a book is not where it was.
    """
    known = known_books() if books is None else books
    found = [book for book in known if book.covers(tagger(book.key))]
    if len(found) > 1:
        names = " and ".join(book.path.name for book in found)
        raise PrivacyError(f"{names} both hold this input: its account is split. Keep one of these books.")
    return found[0] if found else None


def check_given(book: Book, tagger: InputTagger) -> None:
    """Refuse a book where another one knows the input."""
    other = find_book(
        tagger, [known for known in known_books() if known.terms.key_commitment != book.terms.key_commitment]
    )
    if other is not None:
        raise PrivacyError(
            f"this input is in the book {other.path.name} already, and {book.path.name} was given: its "
            f"account would be split. Give --ledger {other.path}."
        )


def state_folder(out: Path) -> Path:
    """Return where an output folder keeps its state: household tables have theirs under ``confidential/``."""
    return out / "state" if (out / "state").is_dir() else out / "confidential" / "state"


def ledger_of(out: Path) -> tuple[Book | None, Ledger | None]:
    """Return the book of an output folder and the ledger that its acts are in, as far as there are any."""
    book = book_in(state_folder(out))
    if book is not None:
        return book, Ledger.beside(book.path)
    own = out / "ledger.jsonl"
    return None, Ledger.beside(own) if own.is_file() else None


def run_ids(out: Path) -> dict[str, str]:
    """Return the run of each product of an output folder that measured: others are in no account."""
    paths = sorted(state_folder(out).glob("*/run.json"))
    return {state.product: state.run_id for state in map(read_state, paths) if not state.is_borrowed}


def account_facts(out: Path) -> AccountFacts | None:
    """Return what the certificate of an output folder says of its account; None where no ledger is there."""
    book, ledger = ledger_of(out)
    if ledger is None or not run_ids(out):
        return None
    return account_of(ledger.lines(), run_ids(out), None if book is None else book.blinded)


def note_reading(
    act: str,
    tagger: InputTagger,
    *,
    out: Path | None = None,
    product: str = "",
    ledger: str | Path | None = None,
) -> bool:
    """Enter that the truth is read without noise; read it only after this returns.

    - `act`: one of :data:`opendas.custody.account.READINGS`.
    - `out`: the output folder whose release is judged.
    - Returns: whether there was an account to enter it into.
    """
    own, folder = (None, None) if out is None else ledger_of(out)
    book = own if ledger is None else book_of(Path(ledger))
    if own is not None and book is not None and own.terms.key_commitment != book.terms.key_commitment:
        raise ConfigError(f"--ledger {ledger}: the acts of {out} are in the book {own.path}.")
    book = book or find_book(tagger)
    ids = {} if out is None else run_ids(out)
    said = LedgerAct(act, ids.get(product, ""), {"product": product} if product else {})
    if book is not None:
        said = replace(said, inputs=tagger(book.key))
        Ledger.beside(book.path).enter(said, again=True)
    elif folder is not None:
        folder.enter(said, again=True)
    return book is not None or folder is not None


def check_choice(out: Path, *, allowed: bool) -> bool:
    """Refuse to publish what may have been chosen by the truth.

    - `allowed`: the publisher states the choice, and it is stamped.
    - Returns: whether the release may have been chosen so.
    """
    _, ledger = ledger_of(out)
    if ledger is None or not run_ids(out):
        return False
    found = selection_of(ledger.lines(), run_ids(out).values())
    if found.possible and not allowed:
        why = (
            "its plan may have been chosen by the confidential data, which were read for a plan "
            f"({plural('time', found.plans)}) before it was measured"
            if found.plans
            else "releases of this data set were compared with the confidential data "
            f"({plural('time', found.evaluations)}), and {plural('other run', found.candidates)} of it "
            "stayed unpublished"
        )
        raise PrivacyError(
            f"{out} is not published: {why}. A choice by the confidential data is no post-processing, and "
            "no loss that was charged covers it. Publish a release that was not chosen in this way, or "
            "state the choice with --chosen-with-truth: the certificate is then stamped."
        )
    return found.possible


def note_publication(out: Path, address: str) -> None:
    """Enter that the runs of a release are published; publish only after this returns."""
    _, ledger = ledger_of(out)
    if ledger is None:
        return
    for product, run_id in run_ids(out).items():
        ledger.enter(LedgerAct(PUBLISH, run_id, {"product": product, "address": address}))
