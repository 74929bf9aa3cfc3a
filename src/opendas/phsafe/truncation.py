"""Which persons of a large household are kept: at most tau, the truncation threshold, a household.

Two orders are offered. ``keyed`` sorts the rows of a household by a keyed label of (table, MAFID, row, index
among identical rows): without the key nobody can foresee who is dropped. ``tumult-0.12`` reproduces the
public, unkeyed order of tmlt.core 0.12.0, for comparisons with the published program. Either way the rows
kept of a household depend on that household's rows and the key alone, which is what the sensitivity proof
needs (``docs/proofs/phsafe.md``, assumption N1), and adding a row drops at most one other (2-stability).
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
"""Purpose of the derived key: ``run_key.derive(KEY_PURPOSE, table.encode())``, and nothing else in it.

In particular no input tag: a key that depends on all rows would let one household decide who is kept in
another, which assumption N1 excludes."""

# Columns of the published person record, in its order, and how many characters a code has as a text there
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
    """How the rows of a household are ordered before the first tau are kept."""

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
    """Choose at most tau rows of each household.

    Parameters
    ----------
    mafid : int64 (n,)
        Household of each row: the rows left after the table's person filter.
    columns : mapping of str to int (n,)
        The other columns of the rows, always in the same order. ``tumult-0.12`` needs ``rtype``, ``qage``,
        ``cenhisp``, ``cenrace`` and ``relship``.
    tau : int, >= 1
        Rows kept of a household.
    mode : Truncation
    key : bytes, 32 of them
        For ``keyed``; see :data:`KEY_PURPOSE`.

    Returns
    -------
    bool (n,)
        True for rows kept. Of identical rows the earlier ones are kept.

    Raises
    ------
    ConfigError
        If tau is not a positive integer, or a column that the order needs is missing.
    PrivacyError
        If ``keyed`` has no key.

    Notes
    -----
    Sexton et al. (2024), Algorithm 3, lines 2 to 10. Only households above tau are hashed.
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
    """Return the order of tmlt.core 0.12.0: SHA-256 over the SHA-256 of the columns, twice over.

    Texts are hashed as they are, integers as their binary digits. The index among identical rows is the
    last column.
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
    """Digest each value; each distinct value once."""
    distinct, place = np.unique(values, return_inverse=True)
    texts = [_text(value, width) for value in distinct.tolist()]
    digests = [_digest(text) for text in texts]
    return [digests[i] for i in place.tolist()]


def _text(value: int, width: int | None) -> str:
    # Spark's bin() writes negative numbers in two's complement of 64 bits.
    return format(value & (2**64 - 1), "b") if width is None else str(value).zfill(width)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("ascii")).hexdigest()
