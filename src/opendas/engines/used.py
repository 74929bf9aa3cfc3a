"""The noisy answers that estimation read, as plain arrays: what a result file holds of them.

Letters: ``f`` pairs of family and query group, ``r`` rows that a family used, ``g`` geounits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints
from opendas.measurement.family import UsedAnswers

Integers = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True, eq=False)
class UsedColumns:
    """Noisy answers of many families."""

    names: tuple[str, ...]  # query groups
    numbers: Ints  # (f, 5): level, first geounit, geounits, query group (its place in `names`) and rows used
    rows: Integers  # rows used, one pair after the other
    values: Integers  # answers, one pair after the other, geounit by geounit

    @classmethod
    def of(cls, used: Sequence[UsedAnswers]) -> UsedColumns:
        """Collect what families used."""
        names = sorted({each.query for each in used})
        numbers = np.array(
            [[u.level, u.first, u.children, names.index(u.query), len(u.rows)] for u in used], dtype=np.int64
        ).reshape(-1, 5)
        empty = np.zeros(0, np.int64)
        return cls(
            tuple(names),
            numbers,
            np.concatenate([empty, *(each.rows for each in used)]),
            np.concatenate([empty, *(each.values.ravel() for each in used)]),
        )

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[UsedAnswers]:
        row = value = 0
        for level, first, children, name, count in self.numbers.tolist():
            yield UsedAnswers(
                level,
                first,
                children,
                self.names[name],
                self.rows[row : row + count].astype(np.int32),
                self.values[value : value + children * count].astype(np.int64).reshape(children, count),
            )
            row += count
            value += children * count

    def of_query(self, level: int, query: str, first: int, geounits: int) -> tuple[Ints, Ints, Ints]:
        """Return what was used of one query group, geounit by geounit.

        - `first`, `geounits`: consecutive geounits of the level, all that were used among them.
        - Returns `offsets` (g + 1,): geounit ``i`` has the entries ``offsets[i]:offsets[i + 1]`` of what
          follows.
        - Returns `rows`, `values` (entries,).
        """
        lengths = np.zeros(geounits, dtype=np.int64)
        _, starts, children, name, used = self.numbers.T
        chosen = np.flatnonzero(self.numbers[:, 0] == level)
        chosen = chosen[name[chosen] == (self.names.index(query) if query in self.names else -1)]
        chosen = chosen[np.argsort(starts[chosen], kind="stable")]
        own, count = children[chosen], used[chosen]
        geounit = np.repeat(starts[chosen] - first - (np.cumsum(own) - own), own) + np.arange(own.sum())
        lengths[geounit] = np.repeat(count, own)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        entries = np.arange(offsets[-1])
        blocks = own * count
        values = np.repeat(_before(children * used)[chosen] - _before(blocks), blocks) + entries
        rows = np.repeat(np.repeat(_before(used)[chosen], own) - offsets[:-1][geounit], lengths[geounit])
        return offsets, self.rows[rows + entries].astype(np.int64), self.values[values].astype(np.int64)


def _before(sizes: Ints) -> Ints:
    """Return how much lies before each of consecutive pieces."""
    return np.asarray(np.cumsum(sizes) - sizes)
