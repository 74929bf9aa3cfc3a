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

from opendas.errors import ConfigError, PrivacyError
from opendas.sampling.ordering import keyed_labels

__all__ = ["KEY_PURPOSE", "Truncation", "select"]

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
    kept = np.ones(len(mafid), dtype=bool)
    if len(mafid) <= tau:
        return kept
    household = np.unique(mafid, return_inverse=True)[1]
    rows = np.flatnonzero(np.bincount(household)[household] > tau)
    if not len(rows):
        return kept
    large = mafid[rows]
    content = {name: np.asarray(column)[rows].astype(np.int64) for name, column in columns.items()}
    identity = _identity(household[rows], list(content.values()))
    twin = _index_among_identical(identity)
    if Truncation(mode) is Truncation.KEYED:
        if key is None:
            raise PrivacyError("Keyed truncation needs a key; nothing was selected.")
        words = np.column_stack([large, *content.values(), twin])
        label: NDArray[Any] = keyed_labels(key, words)
    else:
        label = _tumult_labels(large, content, twin)
    # Ties of labels fall to the rows themselves, so that the order of the input decides nothing.
    order = np.lexsort((twin, identity, label, large))
    kept[rows[order]] = _rank_in_runs(large[order]) < tau
    return kept


def _rank_in_runs(key: NDArray[Any]) -> NDArray[np.int64]:
    """Return each row's position within its run of equal keys."""
    position = np.arange(len(key), dtype=np.int64)
    starts = np.ones(len(key), dtype=bool)
    starts[1:] = key[1:] != key[:-1]
    return np.asarray(position - np.maximum.accumulate(np.where(starts, position, 0)))


def _identity(household: NDArray[Any], content: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return a number for each row, ordered as its household and columns, equal for identical rows only."""
    columns = [household.astype(np.int64), *content]
    least = [int(column.min()) for column in columns]
    bits = [(int(column.max()) - low).bit_length() for column, low in zip(columns, least, strict=True)]
    if sum(bits) < 64:
        packed = np.zeros(len(household), dtype=np.int64)
        for column, low, width in zip(columns, least, bits, strict=True):
            packed = (packed << width) | (column - low)
        return packed
    order = np.lexsort(tuple(reversed(columns)))
    changes = np.zeros(len(household), dtype=np.int64)
    for column in columns:
        changes[1:] |= column[order][1:] != column[order][:-1]
    identity = np.empty_like(changes)
    identity[order] = np.cumsum(changes)
    return identity


def _index_among_identical(identity: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the rows among those identical to them, from 1, in input order."""
    order = np.argsort(identity, kind="stable")
    index = np.empty(len(identity), dtype=np.int64)
    index[order] = _rank_in_runs(identity[order]) + 1
    return index


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
