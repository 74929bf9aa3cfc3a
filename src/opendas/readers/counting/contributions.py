"""At most so many records of each unit are counted: contribution bounding by keyed truncation.

Which records of a unit are counted depends on the records of that unit and on two keys, and on nothing
else: neither on other units, nor on the order of rows, files or batches. Argument: docs/proofs/units.md.
Identifiers are replaced by 128 keyed bits while they are read. What is too much for memory stands under
``confidential/`` as runs sorted by these bits, and is read back a range of them at a time: beyond
:data:`IN_MEMORY` records memory grows only with the records of the largest unit.

Axes: ``r`` rows, ``e`` entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from opendas.arrays import Codes, Ints
from opendas.errors import Finding
from opendas.readers.columns.findings import joined
from opendas.readers.counting.entries import IN_MEMORY, SortedRuns
from opendas.readers.input.spec import SelectionKeys
from opendas.sampling.ordering import keep_at_most, keyed_labels, keyed_texts
from opendas.schema.declarations import ContributionBound, Distinct

_RUNS = ".units.partial"
_PIECE_BITS: Final = 14
_Words = npt.NDArray[np.uint64]


class Contributions:
    """Records with the units that they belong to; a context manager, which removes what it put on disk.

    - `size`: cells of the schema.
    - `cache`: folder for what is more than `limit` records; without one everything stays in memory.
    - `limit`: records held in memory; by default :data:`IN_MEMORY`.
    """

    def __init__(
        self,
        bound: ContributionBound,
        keys: SelectionKeys,
        size: int,
        cache: Path | None,
        limit: int | None = None,
    ) -> None:
        self._bound = bound
        self._keys = keys
        self._size = size
        self._cache = cache
        self._limit = IN_MEMORY if limit is None else limit
        self._waiting: list[tuple[_Words, Ints]] = []
        self._rows = 0
        self._runs: SortedRuns | None = None
        self.units = 0
        """Units whose records were chosen already."""
        self.larger = 0
        """Those of them of which not all records are counted."""
        self.left_out = 0
        """Records that are not counted."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._runs is not None:
            self._runs.remove()

    def add(self, ids: Codes, keys: Ints) -> None:
        """Add records: the identifier of each one's unit, and ``leaf * size + cell``; (r,) both."""
        self._waiting.append((keyed_texts(self._keys.units, ids), keys))
        self._rows += len(keys)
        if self._cache is not None and self._rows > self._limit:
            self._flush(self._cache)

    def counted(self) -> Iterator[tuple[Ints, Ints]]:
        """Yield the records that are counted, of some units after the other.

        Returns `keys`, `counts` (e,): ``leaf * size + cell``, ascending, and how many there are.
        """
        if self._runs is None:
            yield self._chosen(*self._taken())
            return
        assert self._cache is not None
        self._flush(self._cache)
        for _, _, runs in self._runs.pieces(self._limit):
            parts = [(np.stack([high, low], axis=1).view(np.uint64), keys) for high, low, keys in runs]
            if parts:
                yield self._chosen(*_join_records(parts))

    def findings(self, where: str) -> tuple[Finding, ...]:
        """Say what was left out. Confidential."""
        if not self.left_out:
            return ()
        rule = (
            f"at_most = {self._bound.at_most}: {self.left_out:,} records are not counted; they belong to "
            f"{self.larger:,} of {self.units:,} units"
        )
        return (Finding(where, None, self._bound.unit_id, rule),)

    def _taken(self) -> tuple[_Words, Ints]:
        """Return what waits, and forget it."""
        waiting, self._waiting, self._rows = self._waiting, [], 0
        return _join_records(waiting)

    def _flush(self, cache: Path) -> None:
        """Append what waits to the runs on disk."""
        unit, keys = self._taken()
        piece = unit[:, 0] >> np.uint64(64 - _PIECE_BITS)
        order = np.argsort(piece, kind="stable")
        if self._runs is None:
            self._runs = SortedRuns(cache / _RUNS, ("high", "low", "keys"))
        cuts = np.searchsorted(piece[order], np.arange(1, 1 << _PIECE_BITS, dtype=np.uint64))
        self._runs.append(cuts, (unit[order, 0], unit[order, 1], keys[order]))

    def _chosen(self, unit: _Words, keys: Ints) -> tuple[Ints, Ints]:
        """Return the records of whole units that are counted."""
        order = np.lexsort((unit[:, 1], unit[:, 0]))
        unit, keys = unit[order], keys[order]
        new = np.ones(len(keys), dtype=np.bool_)
        new[1:] = np.any(unit[1:] != unit[:-1], axis=1)
        number = np.cumsum(new, dtype=np.int64)
        leaf, cell = np.divmod(keys, self._size)
        words = unit.view(np.int64)

        def label(rows: Ints, twin: Ints) -> npt.NDArray[Any]:
            return keyed_labels(
                self._keys.records, np.column_stack([words[rows], leaf[rows], cell[rows], twin])
            )

        columns = {Distinct.LEAF: leaf, Distinct.CELL: cell, Distinct.RECORD: keys}
        apart = None if self._bound.distinct is None else columns[self._bound.distinct]
        kept = keep_at_most(self._bound.at_most, number, [keys], label, apart)
        self.units += int(new.sum())
        self.larger += len(np.unique(number[~kept]))
        self.left_out += int(np.count_nonzero(~kept))
        distinct, counts = np.unique(keys[kept], return_counts=True)
        return distinct, counts.astype(np.int64)


def _join_records(parts: list[tuple[_Words, Ints]]) -> tuple[_Words, Ints]:
    """Join records; the list is emptied, so that they do not stay in memory twice."""
    units, keys = [unit for unit, _ in parts], [key for _, key in parts]
    parts.clear()
    if not units:
        return np.empty((0, 2), np.uint64), np.empty(0, np.int64)
    return joined(units), joined(keys)
