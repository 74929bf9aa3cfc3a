"""Types of unit that a leaf does not have: people of such a type are moved to one that it has.

A tie holds how many people are in a set of types together (major group quarters), and public unit counts say
which of these types there are in a leaf, and how many units of each. Families know the first and not the
second: with both, a family may have no solution (docs/dhc.md). So the second is made true afterwards, leaf by
leaf and inside the rows of the tie: every sum that the tie holds stays, and sums above are those of leaves.

Letters: ``L`` leaves, ``T`` levels that have a column of units.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Ints, sum_by_key
from opendas.arrays.kernels import mix
from opendas.errors import DataError, EstimationError
from opendas.geography.frame import Frame
from opendas.schema.declarations import MAX_PEOPLE_PER_UNIT
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product

_mix: Callable[[npt.NDArray[np.uint64]], npt.NDArray[np.uint64]] = mix.py_func


@dataclass(frozen=True, slots=True, eq=False)
class UnitTypes:
    """Which levels of an attribute the leaves of a frame have units of."""

    product: Product
    geocodes: npt.NDArray[np.bytes_]  # (L,)
    axis: int  # of the attribute
    levels: Ints  # (T,)
    sets: Ints  # (T,): levels with the same number share the rows of the tie
    units: Ints  # (L, T): public
    # Leaf -> records that were moved there, of leaves that were asked for.
    moved: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, product: Product, frame: Frame) -> UnitTypes | None:
        """Return what the tie of a run and its frame say; None without a tie, or without all the columns."""
        tie = product.tied
        if tie is None or not tie.units or not set(tie.units.values()) <= set(frame.units):
            return None
        (axis,) = (
            number
            for number, attribute in enumerate(product.schema.attributes)
            if set(tie.units) <= set(attribute.levels)
        )
        places = product.schema.attributes[axis].levels
        levels = np.array([places.index(label) for label in tie.units], dtype=np.int64)
        rows = product.workload.group(tie.query).row_of_cell.reshape(product.schema.shape)
        first = np.moveaxis(rows, axis, 0).reshape(len(places), -1)[:, 0]
        units = np.stack([frame.units[column] for column in tie.units.values()], axis=1)
        return cls(product, frame.geocodes, axis, levels, first[levels].astype(np.int64), units)

    def check(self, tied: Histogram) -> None:
        """Check that tied counts, over the leaves of the frame, leave people for every unit."""
        rows = self._row_of_cell.reshape(self.product.schema.shape)
        for number in np.unique(self.sets).tolist():
            inside = self.sets == number
            ours = np.unique(np.take(rows, self.levels[inside], axis=self.axis))
            here = np.isin(tied.cells, ours)
            leaf = tied.row_of_entries()[here]
            people = np.bincount(leaf, tied.counts[here], tied.rows).astype(np.int64)
            units = self.units[:, inside].sum(axis=1)
            wrong = np.flatnonzero((people < units) | (people > MAX_PEOPLE_PER_UNIT * units))
            if len(wrong):
                labels = self.product.schema.attributes[self.axis].levels
                types = ", ".join(labels[level] for level in self.levels[inside].tolist())
                raise DataError(
                    f"[tie]: in {self.geocodes[wrong[0]].decode()} the frame has {units[wrong[0]]} units of "
                    f"the types {types}, and the tied release {people[wrong[0]]} people in all of them. "
                    "Give both the same public units."
                )

    def on(self, leaves: Callable[[Ints], Histogram]) -> Callable[[Ints], Histogram]:
        """Return the same estimates, mended."""
        return lambda places: self.mended(places, leaves(places))

    def broken(self, places: Ints, counts: Histogram) -> Ints:
        """Return the rows with people of a type without a unit, or with fewer people than units."""
        least, most = self.units[places], MAX_PEOPLE_PER_UNIT * self.units[places]
        held = self._held(counts)
        return np.flatnonzero(((held < least) | (held > most)).any(axis=1))

    def mended(self, places: Ints, counts: Histogram) -> Histogram:
        """Return estimates of leaves at some places of the frame, with people of the types that they have."""
        wrong = self.broken(places, counts)
        if not len(wrong):
            return counts
        leaf = counts.row_of_entries()
        rows, cells, changes = [leaf], [counts.cells.astype(np.int64)], [counts.counts]
        held = self._held(counts.take(wrong))
        for number, row in enumerate(wrong.tolist()):
            here = slice(int(counts.indptr[row]), int(counts.indptr[row + 1]))
            people = dict(zip(counts.cells[here].tolist(), counts.counts[here].tolist(), strict=True))
            moves = list(self._moves(int(places[row]), people, held[number]))
            rows.append(np.full(2 * len(moves), row))
            cells.append(np.array([cell for old, new, _ in moves for cell in (old, new)], dtype=np.int64))
            changes.append(np.array([part for *_, n in moves for part in (-n, n)], dtype=np.int64))
            self.moved[int(places[row])] = sum(n for *_, n in moves)
        key = np.concatenate(rows) * self.product.schema.size + np.concatenate(cells)
        unique, sums = sum_by_key(key, np.concatenate(changes))
        row, cell = np.divmod(unique, self.product.schema.size)
        shape = (counts.rows, self.product.schema.size)
        return Histogram.from_entries(row, cell, sums, shape=shape)

    @property
    def _row_of_cell(self) -> npt.NDArray[np.int32]:
        tie = self.product.tied
        assert tie is not None
        return self.product.workload.group(tie.query).row_of_cell

    def _held(self, counts: Histogram) -> Ints:
        """Count people of each type, int64 (rows, T)."""
        place = np.full(self.product.schema.shape[self.axis], -1, dtype=np.int64)
        place[self.levels] = np.arange(len(self.levels))
        of_entry = place[self.product.schema.codes(counts.cells)[self.axis]]
        inside = of_entry >= 0
        leaf = counts.row_of_entries()
        held = np.zeros((counts.rows, len(self.levels)), dtype=np.int64)
        np.add.at(held, (leaf[inside], of_entry[inside]), counts.counts[inside])
        return held

    def _moves(self, leaf: int, people: dict[int, int], held: Ints) -> Iterator[tuple[int, int, int]]:
        """Yield (cell, new cell, people) until every type of a leaf has as many people as it may have.

        First types give what they may not keep, then what they can spare. It goes where people lack, then to
        the type with most people. Whose type changes, the rounding's public hash of geocode and cell decides.
        """
        least, most = self.units[leaf], MAX_PEOPLE_PER_UNIT * self.units[leaf]
        for number in np.unique(self.sets).tolist():
            inside = np.flatnonzero(self.sets == number)
            while True:
                over, short = held[inside] - most[inside], least[inside] - held[inside]
                if over.max() <= 0 and short.max() <= 0:
                    break
                if over.max() <= 0:
                    over = held[inside] - least[inside]
                giver = int(inside[np.argmax(over)])
                if short.max() > 0:
                    taker, room = int(inside[np.argmax(short)]), int(short.max())
                else:
                    able = np.where(held[inside] < most[inside], held[inside], -1)
                    taker = int(inside[np.argmax(able)])
                    room = int(most[taker] - held[taker])
                left = min(int(over.max()), room)
                if left <= 0 or giver == taker:
                    raise EstimationError("tied counts leave no people for the units of a leaf")
                for cell in self._order(leaf, people, giver):
                    n = min(left, people[cell])
                    new = self._other(cell, int(self.levels[taker]))
                    people[cell] -= n
                    people[new] = people.get(new, 0) + n
                    held[giver] -= n
                    held[taker] += n
                    left -= n
                    yield cell, new, n
                    if not left:
                        break

    def _order(self, leaf: int, people: dict[int, int], giver: int) -> list[int]:
        """Return the cells with people of a type, in an order of their own for each leaf."""
        cells = np.array([cell for cell, n in people.items() if n], dtype=np.int64)
        of_type = self.product.schema.codes(cells)[self.axis] == self.levels[giver]
        start = zlib.crc32(bytes(self.geocodes[leaf])) << 32
        with np.errstate(over="ignore"):
            keys = _mix(np.uint64(start) ^ cells[of_type].astype(np.uint64))
        found: list[int] = cells[of_type][np.argsort(keys, kind="stable")].tolist()
        return found

    def _other(self, cell: int, level: int) -> int:
        """Return the cell of the same row of the tie with another type, all else the same where it can be.

        Else one other attribute has the nearest level that is possible with the type.
        """
        schema, possible = self.product.schema, self.product.possible
        rows = self._row_of_cell
        codes = [int(code[0]) for code in schema.codes(np.array([cell]))]
        codes[self.axis] = level

        def fits(found: Ints) -> Bools:
            return np.asarray(possible[found] & (rows[found] == rows[cell]))

        for axis in (self.axis, *(axis for axis in range(len(codes)) if axis != self.axis)):
            options = [level] if axis == self.axis else np.arange(schema.shape[axis])
            changed = [np.full(len(options), code) for code in codes]
            changed[axis] = np.asarray(options)
            found = schema.cells(changed).astype(np.int64)
            fitting = np.flatnonzero(fits(found))
            if len(fitting):
                nearest = np.argmin(np.abs(np.asarray(options)[fitting] - codes[axis]))
                return int(found[fitting[nearest]])
        raise EstimationError("no possible cell of another type has the tied row of a record")
