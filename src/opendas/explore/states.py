"""The state of a page as one value, and as the text of a link or a file."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from opendas.errors import ConfigError
from opendas.explore.drafts import Draft

__all__ = [
    "FORMAT",
    "BudgetState",
    "differences",
    "read_link",
    "read_text",
    "read_texts",
    "state_document",
    "write_link",
]

FORMAT: Final = 1
_LONGEST_LINK: Final = 60_000
_LONGEST_STATE: Final = 1_000_000
_LONGEST_FIELD: Final = 200
_BROKEN: Final = "The link is damaged: it was cut off or changed on the way. Copy it again, all of it."


@dataclass(frozen=True, slots=True)
class BudgetState:
    """What the budget page shows.

    Parameters
    ----------
    subject : str
        Key of the subject.
    product : str
        Its product, so that a state of another product is told apart.
    geolevels, queries : tuple of str
        Its geolevels and query groups, which number the fields of the drafts.
    plans : tuple of Draft
        Plan A, and plan B where two are compared.
    """

    subject: str
    product: str
    geolevels: tuple[str, ...]
    queries: tuple[str, ...]
    plans: tuple[Draft, ...]

    def to_document(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "opendas-explore": FORMAT,
            "page": "budget",
            "subject": self.subject,
            "product": self.product,
            "geolevels": list(self.geolevels),
            "queries": list(self.queries),
            "plans": [
                {
                    "mechanism": plan.mechanism,
                    "neighbours": plan.neighbours,
                    "total": plan.total,
                    "delta": plan.delta,
                    "levels": list(plan.levels),
                    "shares": [list(row) for row in plan.queries],
                }
                for plan in self.plans
            ],
        }

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> BudgetState:
        """Read plain data.

        Raises
        ------
        ConfigError
            If it is no state of the budget page.
        """
        geolevels, queries = read_texts(document.get("geolevels")), read_texts(document.get("queries"))
        given = document.get("plans")
        if not isinstance(given, list) or not 1 <= len(given) <= 2:
            raise ConfigError(_BROKEN)
        return cls(
            read_text(document.get("subject")),
            read_text(document.get("product")),
            geolevels,
            queries,
            tuple(_draft(plan, len(geolevels), len(queries)) for plan in given),
        )


def _draft(plan: object, geolevels: int, queries: int) -> Draft:
    if not isinstance(plan, dict):
        raise ConfigError(_BROKEN)
    shares = plan.get("shares")
    if not isinstance(shares, list) or len(shares) != geolevels:
        raise ConfigError(_BROKEN)
    return Draft(
        read_text(plan.get("mechanism")),
        read_text(plan.get("neighbours")),
        read_text(plan.get("total")),
        read_text(plan.get("delta")),
        read_texts(plan.get("levels"), geolevels),
        tuple(read_texts(row, queries) for row in shares),
    )


def read_text(value: object) -> str:
    """Return a text of a state's document; refuses anything else, and texts too long for a field."""
    if not isinstance(value, str) or len(value) > _LONGEST_FIELD:
        raise ConfigError(_BROKEN)
    return value


def read_texts(value: object, count: int | None = None) -> tuple[str, ...]:
    """Return a list of texts of a state's document, of so many entries where that is known."""
    if not isinstance(value, list) or len(value) > 400 or (count is not None and len(value) != count):
        raise ConfigError(_BROKEN)
    return tuple(read_text(item) for item in value)


def write_link(document: Mapping[str, Any]) -> str:
    """Write a state as the value of a link's ``s``: compressed, with a check sum.

    Examples
    --------
    >>> read_link(write_link({"opendas-explore": 1, "page": "budget"}))["page"]
    'budget'
    """
    plain = json.dumps(document, separators=(",", ":"), sort_keys=True, ensure_ascii=True)
    return base64.urlsafe_b64encode(zlib.compress(plain.encode("ascii"), 9)).decode("ascii").rstrip("=")


def read_link(text: str) -> dict[str, Any]:
    """Read what :func:`write_link` wrote.

    Raises
    ------
    ConfigError
        If the text is damaged, or of a later version.
    """
    if not text or len(text) > _LONGEST_LINK:
        raise ConfigError(_BROKEN)
    try:
        packed = base64.b64decode(
            text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True
        )
        reader = zlib.decompressobj()
        plain = reader.decompress(packed, _LONGEST_STATE)
        if not reader.eof or reader.unused_data:
            raise ConfigError(_BROKEN)
        document = json.loads(plain)
    except (ValueError, binascii.Error, zlib.error, RecursionError):
        raise ConfigError(_BROKEN) from None
    return state_document(document)


def state_document(document: object) -> dict[str, Any]:
    """Check that plain data are a state of this version.

    Raises
    ------
    ConfigError
        If they are not.
    """
    if not isinstance(document, dict) or "opendas-explore" not in document:
        raise ConfigError("This is no state of opendas explore.")
    if document["opendas-explore"] != FORMAT:
        raise ConfigError("The state was written by another version of opendas explore.")
    return document


def differences(state: BudgetState, product: str, geolevels: Sequence[str], queries: Sequence[str]) -> str:
    """Say why a state does not belong to a subject; empty where it does."""
    if state.product != product:
        return f"This is a plan of the product {state.product}; this page explores {product}."
    if list(state.geolevels) != list(geolevels):
        return (
            f"This is a plan for the geolevels {', '.join(state.geolevels)}; this page explores "
            f"{', '.join(geolevels)}."
        )
    if list(state.queries) != list(queries):
        return f"This is a plan for other query groups of {product} than this page explores."
    return ""
