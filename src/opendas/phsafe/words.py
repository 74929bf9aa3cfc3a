"""Rows as 64-bit words: how they are hashed, and how they travel between processes.

A row is its MAFID, one or two words with its other columns, and (where it travels) its line. Columns stand
in the words in their order, little-endian, each in its own bytes; what is left is zero.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from opendas.phsafe.model import Persons, Places, Units

__all__ = ["from_words", "to_words"]

_WORD = 8
_KEYS = ("mafid", "line")

_Rows = TypeVar("_Rows", Persons, Units, Places)


def _record(kind: type[Any]) -> np.dtype[Any]:
    """Return the layout of a row's codes: packed, filled up to whole words."""
    types = {
        name: np.dtype(kinds).newbyteorder("<") for name, kinds in kind.dtypes().items() if name not in _KEYS
    }
    offsets = np.cumsum([0, *(one.itemsize for one in types.values())])
    size = -(-int(offsets[-1]) // _WORD) * _WORD
    return np.dtype(
        {
            "names": list(types),
            "formats": list(types.values()),
            "offsets": [int(offset) for offset in offsets[:-1]],
            "itemsize": size,
        }
    )


_RECORDS = {kind: _record(kind) for kind in (Persons, Units, Places)}


def to_words(rows: Persons | Units | Places) -> npt.NDArray[np.int64]:
    """Return the columns of rows but key and line, int64 (n, 2) for units, (n, 1) for the others."""
    record = _RECORDS[type(rows)]
    packed = np.zeros(len(rows), dtype=record)
    for name in record.names or ():
        packed[name] = getattr(rows, name)
    return packed.view("<i8").reshape(len(rows), record.itemsize // _WORD)


def from_words(
    kind: type[_Rows], mafid: npt.NDArray[np.int64], words: npt.NDArray[np.int64], line: npt.NDArray[np.int64]
) -> _Rows:
    """Return the rows that :func:`to_words` packed.

    Parameters
    ----------
    kind : type
        Persons, Units or Places.
    mafid, line : int64 (n,)
    words : int64 (n, w)
        Further words than the kind has are passed over.
    """
    record = _RECORDS[kind]
    packed = np.ascontiguousarray(words[:, : record.itemsize // _WORD], dtype="<i8").view(record).reshape(-1)
    columns: dict[str, Any] = {"mafid": mafid, "line": line}
    for name, wanted in kind.dtypes().items():
        if name not in columns:
            columns[name] = packed[name].astype(wanted)
    return kind(**columns)
