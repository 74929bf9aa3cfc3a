"""The way up of the informed estimator: what is known at each cut of the spine, and what a task makes of it.

A task of the way up reads all noisy answers of its part and tells what they say about the geounits at the
top. A task of the way down takes what is known at its bottom, and reads again, as noise is a function of its
address, only what lies between two cuts. All of it is a function of noisy answers, invariants and public
geography.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Floats, Ints
from opendas.engines.subtree import Part, PartLevel
from opendas.gls.cells import Domain
from opendas.gls.information import Extended
from opendas.gls.model import TreeModel
from opendas.gls.operators import Operators, numbered
from opendas.gls.upward import Sums, UpwardMessages, up_statistics
from opendas.measurement.family import MeasurementSource, PartialSource
from opendas.topdown.family_data import Information

MOST_KEPT = 64 << 20
"""Bytes that are kept for one cut of the spine, about: a cut at more geounits is not worth what it saves."""


@dataclass(frozen=True, slots=True, eq=False)
class Matrices:
    """Operators of consecutive geounits as plain arrays, without the rows and columns that are zero."""

    # (u, k d): for each dimension of blocks, the rows that are not zero in all blocks of a different
    # operator; where something is infinite, the same of the infinite parts.
    rows: tuple[Bools, ...]
    # (e,): what stands in these rows and columns, block by block, one operator after the other.
    values: tuple[Floats, ...]
    which: Ints  # (g,): that of each geounit

    @classmethod
    def of(cls, operators: Operators) -> Matrices:
        """Take those that a geounit has."""
        used = operators.compact()
        stacks = used.stacks.finite + (used.stacks.infinite or ())
        rows = tuple((stack != 0.0).any(axis=(1, 2)) for stack in stacks)
        values = tuple(stack[_squares(some, stack)] for some, stack in zip(rows, stacks, strict=True))
        return cls(rows, values, used.which.astype(np.int64))

    def within(self, domain: Domain) -> Operators:
        """Return the operators."""
        stacks = []
        kinds = itertools.cycle(domain.kinds)
        for some, values, kind in zip(self.rows, self.values, kinds, strict=False):
            stack = np.zeros((len(some), *kind.matrices.shape[1:]))
            stack[_squares(some, stack)] = values
            stacks.append(stack)
        finite, infinite = tuple(stacks[: len(domain.kinds)]), tuple(stacks[len(domain.kinds) :])
        return Operators(domain, Extended(finite, infinite or None), self.which)

    def slice(self, start: int, stop: int) -> Matrices:
        """Return those of geounits ``start:stop``."""
        used, which = np.unique(self.which[start:stop], return_inverse=True)
        values = []
        for some, entries in zip(self.rows, self.values, strict=True):
            squares = some.sum(axis=1).astype(np.int64) ** 2
            blocks = len(entries) // max(1, int(squares.sum()))
            chosen = np.zeros(len(some), dtype=bool)
            chosen[used] = True
            values.append(entries[np.repeat(chosen, blocks * squares)])
        return Matrices(
            tuple(some[used] for some in self.rows), tuple(values), which.ravel().astype(np.int64)
        )

    @classmethod
    def joined(cls, parts: Sequence[Matrices]) -> Matrices:
        """Return those of several runs of geounits, one after the other."""
        shifts = np.cumsum([0, *(len(part.rows[0]) for part in parts[:-1])])
        return cls(
            tuple(np.concatenate(rows) for rows in zip(*(part.rows for part in parts), strict=True)),
            tuple(np.concatenate(values) for values in zip(*(part.values for part in parts), strict=True)),
            np.concatenate([part.which + shift for part, shift in zip(parts, shifts, strict=True)]),
        )


def _squares(rows: Bools, stack: Floats) -> Bools:
    """Return where some rows and columns of each block stand, bool (u, b, k d, k d)."""
    found = rows[:, None, :, None] & rows[:, None, None, :]
    return np.asarray(np.broadcast_to(found, stack.shape))


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """Cell vectors of consecutive geounits, without the dense categories that are zero."""

    rows: Bools  # (g, k)
    values: Floats  # (r, e): of each category that is not zero, in order

    @classmethod
    def of(cls, domain: Domain, x: Floats) -> Vectors:
        """Take vectors, float64 (g, n)."""
        placed = domain.placed(x)
        rows = (placed != 0.0).any(axis=2)
        return cls(rows, placed[rows])

    def within(self, domain: Domain) -> Floats:
        """Return the vectors, float64 (g, n)."""
        placed = np.zeros((len(self.rows), *domain.cell.shape))
        placed[self.rows] = self.values
        return domain.unplaced(placed)

    def slice(self, start: int, stop: int) -> Vectors:
        """Return those of geounits ``start:stop``."""
        low, high = (int(self.rows[:at].sum()) for at in (start, stop))
        return Vectors(self.rows[start:stop], self.values[low:high])

    @classmethod
    def joined(cls, parts: Sequence[Vectors]) -> Vectors:
        """Return those of several runs of geounits, one after the other."""
        rows, values = ([getattr(part, name) for part in parts] for name in ("rows", "values"))
        return cls(np.concatenate(rows), np.concatenate(values))


@dataclass(frozen=True, slots=True, eq=False)
class BelowPart:
    """What all below a cut, and the measurements at the cut, say about its geounits: formally private.

    :class:`opendas.gls.upward.UpwardMessages` without the cell space, so that it can go to other
    processes and to files as it is.
    """

    level: int
    first: int
    precision: Matrices
    linear: Vectors
    exact_linear: Vectors | None
    weights: Floats

    @classmethod
    def of(cls, statistics: UpwardMessages) -> BelowPart:
        """Take the arrays of a pass."""
        if statistics.linear is None:
            raise AssertionError("a cut is above the leaves")
        domain, exact_linear = statistics.precision.domain, statistics.exact_linear
        return cls(
            statistics.level,
            statistics.first,
            Matrices.of(statistics.precision),
            Vectors.of(domain, statistics.linear),
            None if exact_linear is None else Vectors.of(domain, exact_linear),
            statistics.weights,
        )

    def within(self, domain: Domain) -> UpwardMessages:
        """Return it for the next pass."""
        return UpwardMessages(
            self.level,
            self.first,
            self.precision.within(domain),
            self.linear.within(domain),
            self.weights,
            None if self.exact_linear is None else self.exact_linear.within(domain),
        )

    def slice(self, start: int, stop: int) -> BelowPart:
        """Return what is known of geounits ``start:stop`` of the level."""
        low, high = start - self.first, stop - self.first
        return BelowPart(
            self.level,
            start,
            self.precision.slice(low, high),
            self.linear.slice(low, high),
            None if self.exact_linear is None else self.exact_linear.slice(low, high),
            self.weights[low:high],
        )

    @classmethod
    def joined(cls, parts: Sequence[BelowPart]) -> BelowPart:
        """Put together what tasks told of consecutive geounits, in order."""
        exact = [part.exact_linear for part in parts if part.exact_linear is not None]
        return cls(
            parts[0].level,
            parts[0].first,
            Matrices.joined([part.precision for part in parts]),
            Vectors.joined([part.linear for part in parts]),
            Vectors.joined(exact) if exact else None,
            np.concatenate([part.weights for part in parts]),
        )

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return it as named arrays, for a file."""
        found: dict[str, npt.NDArray[np.generic]] = {
            "place": np.array([self.level, self.first], dtype=np.int64),
            "weights": self.weights,
            "which": self.precision.which,
        }
        for name, vectors in (("linear", self.linear), ("exact", self.exact_linear)):
            if vectors is not None:
                found |= {f"{name} cells": vectors.rows, f"{name} values": vectors.values}
        for i, (rows, values) in enumerate(zip(self.precision.rows, self.precision.values, strict=True)):
            found |= {f"rows {i}": rows, f"entries {i}": values}
        return found

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> BelowPart:
        """Undo :meth:`arrays`."""
        kinds = range(sum(key.startswith("rows") for key in arrays))
        rows, values = (tuple(arrays[f"{what} {i}"] for i in kinds) for what in ("rows", "entries"))

        def vectors(name: str) -> Vectors:
            return Vectors(arrays[f"{name} cells"], arrays[f"{name} values"])

        level, first = arrays["place"].tolist()
        precision = Matrices(rows, values, arrays["which"])
        exact_linear = vectors("exact") if "exact cells" in arrays else None
        return cls(level, first, precision, vectors("linear"), exact_linear, arrays["weights"])


def kept_at_a_cut(model: TreeModel) -> int:
    """Return how many geounits a cut may have so that what is known of all of them can be kept."""
    lowest = model.levels[max(0, len(model.levels) - 2)]
    categories = lowest.patterns.sum(axis=1)[lowest.pattern].astype(np.float64)
    blocks = sum(len(kind.offsets) * kind.dimension**2 for kind in model.domain.kinds)
    numbers = categories * model.domain.cell.shape[1] + categories**2 * blocks
    return int(MOST_KEPT // (8.0 * max(1.0, float(numbers.mean()))))


def _ranges(levels: Sequence[PartLevel]) -> dict[int, tuple[int, int]]:
    return {level.level: (level.first, level.first + len(level.geocodes)) for level in levels}


def model_of(model: TreeModel, levels: Sequence[PartLevel]) -> TreeModel:
    """Return what a task needs of the model of the whole tree: that of its geounits and of their parents.

    Totals that parents hold together have no meaning: some of their parts may be in another task.
    """
    ranges, top = _ranges(levels), levels[0].level
    if top:
        first, stop = ranges[top]
        parents = model.levels[top].parent[first - model.levels[top].first : stop - model.levels[top].first]
        if len(parents):
            ranges[top - 1] = int(parents[0]), int(parents[-1]) + 1
        above = replace(model.levels[top - 1], joint=None)
        model = replace(model, levels=(*model.levels[: top - 1], above, *model.levels[top:]))
    return model.slice(ranges)


def _sums(model: TreeModel, source: MeasurementSource) -> Sums | None:
    """Return what sums the noisy answers of leaves that touch a cell the leaf may use, if the source can.

    Others say nothing, and are most of them: seven of eight where a leaf has no group quarters.
    """
    if not isinstance(source, PartialSource):
        return None
    partial, leaves = source, model.levels[-1]

    def sums(level: int, first: int, group: Ints) -> list[Ints]:
        patterns = leaves.pattern[first - leaves.first : first - leaves.first + len(group)]
        used, _, which = numbered(patterns, len(leaves.patterns))
        cells = model.domain.cells_of(leaves.patterns[used])
        return partial.sums(level, first, cells, which, group)

    return sums


def upward_messages(
    part: Part, model: TreeModel, source: MeasurementSource, below: BelowPart | None
) -> BelowPart:
    """Return what all measurements at and below the geounits of a part's top say about them.

    - `part`: with at least two levels.
    - `below`: what is known of the part's bottom level; None where these are leaves.
    """
    known = None if below is None else below.within(model.domain)
    statistics = up_statistics(model, _ranges(part.levels), source.full, known, _sums(model, source))
    return BelowPart.of(statistics[0])


def information_of(
    part: Part, model: TreeModel, source: MeasurementSource, below: BelowPart | None
) -> dict[int, Information]:
    """Return what is known of the geounits that a part estimates, leaves left out, by level.

    Leaves have nothing below them: their own measurements are all there is.
    """
    levels = part.levels if part.parents is None else part.levels[1:]
    last = len(model.levels) - 1
    if all(level.level == last for level in levels):
        return {}
    known = None if below is None else below.within(model.domain)
    statistics = up_statistics(model, _ranges(levels), source.full, known, _sums(model, source))
    rows = tuple(query.row_of_cell for query in model.queries)
    return {
        one.level: Information(one.first, one.precision, one.linear, one.weights, rows)
        for one in statistics
        if one.linear is not None
    }
