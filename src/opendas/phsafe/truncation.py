"""Truncate large households: keep at most tau persons of each.

There are two orders. ``keyed`` sorts the rows of a household by a keyed label of (table, MAFID, row, index
among identical rows): without the key nobody can predict who is dropped. ``tumult-0.12`` reproduces the
public, unkeyed order of tmlt.core 0.12.0, for comparison with the published program. In both, the rows kept
of a household depend on that household's rows and the key alone, as the sensitivity proof requires
(``docs/proofs/phsafe.md``, assumption N1), and adding a row drops at most one other (2-stability).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opendas.arrays import Ints
from opendas.errors import ConfigError, PrivacyError
from opendas.sampling.ordering import keep_at_most, keyed_labels

KEY_PURPOSE: Final = "phsafe/truncation"
"""Purpose of the derived key, ``run_key.derive(KEY_PURPOSE, table.encode())``, with no other field.

An input tag in particular would make the key depend on all rows, so that one household could decide who is
kept in another. Assumption N1 excludes that."""

# Columns of the published person record, in its order, with the number of characters of a text code
# (None: an integer).
_PUBLISHED: Final[tuple[tuple[str, int | None], ...]] = (
    ("rtype", 1),
    ("mafid", None),
    ("qage", None),
    ("cenhisp", None),
    ("cenrace", 2),
    ("relship", 2),
)


class Truncation(StrEnum):
    """Order of a household's rows, of which the first tau are kept."""

    KEYED = "keyed"
    TUMULT = "tumult-0.12"


def select(
    mafid: NDArray[np.int64],
    columns: Mapping[str, NDArray[Any]],
    tau: int,
    *,
    mode: Truncation = Truncation.KEYED,
    key: bytes | None = None,
) -> NDArray[np.bool_]:
    """Return which rows are kept: at most tau of each household.

    - `mafid` (n,): household of each row that passes the table's person filter.
    - `columns`: the other columns of the rows, always in one order. ``tumult-0.12`` needs ``rtype``,
      ``qage``, ``cenhisp``, ``cenrace`` and ``relship``.
    - `tau`, >= 1: most rows kept of a household.
    - `key`, 32 bytes: for ``keyed``; see :data:`KEY_PURPOSE`.
    - Returns: True for rows kept. Of identical rows, the earlier ones are kept.

    Notes
    -----
    Sexton et al. (2024), Algorithm 3, lines 2 to 10. Only households larger than tau are hashed.
    """
    if isinstance(tau, bool) or not isinstance(tau, int) or tau < 1:
        raise ConfigError("tau must be a positive integer: the number of persons kept of a household.")
    content = {name: np.asarray(column) for name, column in columns.items()}

    def label(rows: Ints, twin: Ints) -> NDArray[Any]:
        some = {name: column[rows].astype(np.int64) for name, column in content.items()}
        if Truncation(mode) is Truncation.TUMULT:
            return _tumult_labels(mafid[rows], some, twin)
        if key is None:
            raise PrivacyError("Keyed truncation needs a key; nothing was selected.")
        return keyed_labels(key, np.column_stack([mafid[rows], *some.values(), twin]))

    return keep_at_most(tau, mafid, list(content.values()), label)


def _tumult_labels(
    mafid: NDArray[np.int64], content: Mapping[str, NDArray[np.int64]], twin: NDArray[np.int64]
) -> NDArray[np.bytes_]:
    """Return the sort labels of tmlt.core 0.12.0: SHA-256 over the SHA-256 of the columns, twice.

    Texts are hashed directly, integers as binary digits. The last column is the index among identical rows.
    """
    available = {**content, "mafid": mafid}
    parts: list[list[str]] = []
    for name, width in _PUBLISHED:
        if name not in available:
            raise ConfigError(
                f"The order {Truncation.TUMULT} hashes the published person columns; {name} is missing. "
                f"Use {Truncation.KEYED} for other data."
            )
        parts.append(_column_digests(available[name], width))
    parts.append(_column_digests(twin, None))
    labels = [_digest(_digest(",".join(row))) for row in zip(*parts, strict=True)]
    return np.array(labels, dtype="S64")


def _column_digests(values: NDArray[np.int64], width: int | None) -> list[str]:
    """Return the digest of each value, hashing each distinct value once."""
    distinct, place = np.unique(values, return_inverse=True)
    texts = [_text(value, width) for value in distinct.tolist()]
    digests = [_digest(text) for text in texts]
    return [digests[i] for i in place.tolist()]


def _text(value: int, width: int | None) -> str:
    # Spark's bin() writes negative numbers in two's complement of 64 bits.
    return format(value & (2**64 - 1), "b") if width is None else str(value).zfill(width)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("ascii")).hexdigest()
