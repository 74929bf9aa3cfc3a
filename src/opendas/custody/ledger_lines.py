"""Lines of a ledger file: what each says, and how each follows from the one before it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Self

from opendas.custody.book_terms import BookTerms
from opendas.custody.ledger_entries import LedgerEntry
from opendas.errors import OpendasError, PrivacyError
from opendas.privacy.exact import canonical_json

_FORMAT: Final = 2
_KNOWN_FORMATS: Final = (1, 2)
_GENESIS: Final = "0" * 64
_KIND = re.compile(r"[a-z]+(-[a-z]+)*")
_MOST_TEXT: Final = 4000


@dataclass(frozen=True, slots=True)
class LedgerAct:
    """An act that draws nothing and belongs into the account: the truth was read, a key destroyed ..."""

    # What was done, in lower-case words joined by hyphens: ``evaluate``, ``destroy-key``, ``publish``, ...
    act: str
    run_id: str = ""  # the run that it is about; empty where it is about none
    # What else a reader of the ledger wants to know, such as the product. Nothing unkeyed of the input.
    details: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()  # tags of the input under the key of the account

    def __post_init__(self) -> None:
        if not isinstance(self.act, str) or not _KIND.fullmatch(self.act):
            raise PrivacyError("Ledger act: its name is made of lower-case words joined by hyphens.")
        texts = (self.run_id, *self.details, *self.details.values(), *self.inputs)
        if not all(isinstance(text, str) and len(text) <= _MOST_TEXT for text in texts):
            raise PrivacyError(
                f"Ledger act: run, details and inputs are texts of at most {_MOST_TEXT} characters."
            )
        object.__setattr__(self, "details", MappingProxyType(dict(self.details)))

    def __reduce__(self) -> tuple[object, ...]:
        # A mapping proxy cannot be pickled.
        return type(self), (self.act, self.run_id, dict(self.details), self.inputs)

    def as_json(self) -> dict[str, object]:
        """Return plain data for one line."""
        plain: dict[str, object] = {"act": self.act, "run_id": self.run_id}
        return plain | {"details": dict(self.details), "inputs": list(self.inputs)}

    @classmethod
    def from_json(cls, record: Mapping[str, object]) -> Self:
        """Read what :meth:`as_json` wrote; every field must be there and no other."""
        inputs = record["inputs"]
        if not isinstance(record["details"], dict) or not isinstance(inputs, list):
            raise PrivacyError("Ledger act: a field has the wrong type.")
        return cls(**{**record, "inputs": tuple(inputs)})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Finished:
    """A note that a run has its result: no act."""

    run_id: str

    def as_json(self) -> dict[str, object]:
        """Return plain data for one line."""
        return {"run_id": self.run_id}

    @classmethod
    def from_json(cls, record: Mapping[str, object]) -> Self:
        """Read what :meth:`as_json` wrote; every field must be there and no other."""
        if set(record) != {"run_id"} or not isinstance(record["run_id"], str):
            raise PrivacyError("Finished note: a field is missing or has the wrong type.")
        return cls(record["run_id"])


Said = BookTerms | LedgerEntry | LedgerAct | Finished
"""What a line says."""

_KINDS: Mapping[str, type[BookTerms] | type[LedgerEntry] | type[LedgerAct] | type[Finished]] = {
    "book": BookTerms,
    "intent": LedgerEntry,
    "act": LedgerAct,
    "finished": Finished,
}


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One line of a ledger file."""

    data: bytes  # the line without its newline
    said: Said

    @property
    def run_id(self) -> str:
        """The run that the line is about; empty where it is about none."""
        return self.said.run_id

    @property
    def entry(self) -> LedgerEntry | None:
        """The privacy act of an intent, None for other lines."""
        return self.said if isinstance(self.said, LedgerEntry) else None

    @classmethod
    def following(cls, earlier: Sequence[LedgerLine], said: Said) -> Self:
        """Build a line, chained to the lines before it."""
        kind = next(name for name, kind in _KINDS.items() if isinstance(said, kind))
        link = {"format": _FORMAT, "index": len(earlier), "kind": kind, "previous": head_of(earlier)}
        content = link | said.as_json()
        return cls(canonical_json(content | {"sha256": _checksum(content)}), said)


def head_of(lines: Sequence[LedgerLine]) -> str:
    """Return the SHA-256 of the last line, which vouches for every line before it; zeros where there is none.

    It stays with the ledger: it is no part of a release (docs/proofs/ledger.md).
    """
    return hashlib.sha256(lines[-1].data).hexdigest() if lines else _GENESIS


def _checksum(content: Mapping[str, object]) -> str:
    """Hash one line's own content: the last line has no successor to vouch for it."""
    return hashlib.sha256(canonical_json(content)).hexdigest()


def read_lines(data: bytes, name: str) -> tuple[tuple[LedgerLine, ...], int]:
    """Read and verify the content of a ledger file.

    - `data`: the whole file.
    - Returns: `whole`: length in bytes of the whole lines. Less than ``len(data)`` if the last line is torn.
    """
    whole = data.rfind(b"\n") + 1
    lines: list[LedgerLine] = []
    for number, text in enumerate(data[:whole].split(b"\n")[:-1], start=1):
        try:
            lines.append(_read_line(text, lines))
        except _Unknown as error:
            raise PrivacyError(
                f"{name}, line {number}: {error}. A newer version of OpenDAS may have written it. Use that "
                "version with this ledger; until it is read, what was spent is unknown."
            ) from error
        except (OpendasError, ValueError, KeyError, TypeError, RecursionError) as error:
            other = "" if lines else ", or this file is not a ledger"
            raise PrivacyError(
                f"{name}, line {number}: the ledger is damaged{other}: {_reason(error)}. OpenDAS never "
                "changes a line that it has written. Restore the ledger from a copy; until then, what was "
                "spent is unknown."
            ) from error
    return tuple(lines), whole


class _Unknown(Exception):
    """A line that is whole, and says something that this version does not know."""


def _reason(error: Exception) -> str:
    return str(error).rstrip(".") if isinstance(error, PrivacyError) else "this is not a ledger line"


def _read_line(text: bytes, earlier: Sequence[LedgerLine]) -> LedgerLine:
    record = json.loads(text)
    if not isinstance(record, dict) or canonical_json(record) != text:
        raise PrivacyError("this is not a ledger line")
    if record.pop("sha256") != _checksum(record):
        raise PrivacyError("the line does not match its own checksum")
    if record.pop("format") not in _KNOWN_FORMATS:
        raise _Unknown("the line has a format that this version of OpenDAS does not know")
    if record.pop("previous") != head_of(earlier) or record.pop("index") != len(earlier):
        raise PrivacyError("the line does not follow from the line before it")
    kind = record.pop("kind")
    if kind not in _KINDS:
        raise _Unknown("the line is of a kind that this version of OpenDAS does not know")
    if kind == "book" and earlier:
        raise PrivacyError("only the first line of a book states its terms")
    return LedgerLine(text, _KINDS[kind].from_json(record))
