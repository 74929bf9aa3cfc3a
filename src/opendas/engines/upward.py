"""The way up of the informed estimator: what lies below each cut of the spine, and what a task makes of it.

A task of the way up reads all noisy answers of its part and tells what they say about the geounits at the
top. A task of the way down reads those of its own levels again, as noise is a function of its address, and
keeps nothing when it is done. All of it is a function of noisy answers, invariants and public geography.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opendas.engines.subtree import Part, PartLevel
from opendas.estimation.informed import LevelInformation
from opendas.measurement.family import MeasurementSource, PartialSource
from opendas.whole_tree.domain import Domain
from opendas.whole_tree.model import TreeModel
from opendas.whole_tree.operators import Operators
from opendas.whole_tree.up import Below, Sums, up_pass

__all__ = ["BelowPart", "information_of", "kept_at_a_cut", "model_of", "tell_below"]

Floats = npt.NDArray[np.float64]

MOST_KEPT = 64 << 20
"""Bytes that are kept for one cut of the spine, about: a cut at more geounits is not worth what it saves."""


@dataclass(frozen=True, slots=True, eq=False)
class Matrices:
    """Operators of consecutive geounits as plain arrays.

    Parameters
    ----------
    stacks : tuple of float64 (u, b, d, d)
        Different ones.
    which : int64 (g,)
        That of each geounit.
    """

    stacks: tuple[Floats, ...]
    which: npt.NDArray[np.int64]

    @classmethod
    def of(cls, operators: Operators) -> Matrices:
        """Take those that a geounit has."""
        used = operators.compact()
        return cls(used.stacks, used.which.astype(np.int64))

    def slice(self, start: int, stop: int) -> Matrices:
        """Return those of geounits ``start:stop``."""
        used, which = np.unique(self.which[start:stop], return_inverse=True)
        return Matrices(tuple(stack[used] for stack in self.stacks), which.ravel().astype(np.int64))

    @classmethod
    def joined(cls, parts: Sequence[Matrices]) -> Matrices:
        """Return those of several runs of geounits, one after the other."""
        shifts = np.cumsum([0, *(len(part.stacks[0]) for part in parts[:-1])])
        return cls(
            tuple(np.concatenate(stacks) for stacks in zip(*(part.stacks for part in parts), strict=True)),
            np.concatenate([part.which + shift for part, shift in zip(parts, shifts, strict=True)]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class BelowPart:
    """What lies below consecutive geounits: formally private.

    :class:`opendas.whole_tree.up.Below` without the cell space, so that it can go to other processes and to
    files as it is.
    """

    level: int
    first: int
    covariance: Matrices
    mean: Floats
    weights: Floats
    unknown: Matrices | None

    @classmethod
    def of(cls, below: Below) -> BelowPart:
        """Take the arrays of a pass."""
        return cls(
            below.level,
            below.first,
            Matrices.of(below.covariance),
            below.mean,
            below.weights,
            None if below.unknown is None else Matrices.of(below.unknown),
        )

    def within(self, domain: Domain) -> Below:
        """Return it for the next pass."""
        return Below(
            self.level,
            self.first,
            Operators(domain, self.covariance.stacks, self.covariance.which),
            self.mean,
            self.weights,
            None if self.unknown is None else Operators(domain, self.unknown.stacks, self.unknown.which),
        )

    def slice(self, start: int, stop: int) -> BelowPart:
        """Return what lies below geounits ``start:stop`` of the level."""
        low, high = start - self.first, stop - self.first
        return BelowPart(
            self.level,
            start,
            self.covariance.slice(low, high),
            self.mean[low:high],
            self.weights[low:high],
            None if self.unknown is None else self.unknown.slice(low, high),
        )

    @classmethod
    def joined(cls, parts: Sequence[BelowPart]) -> BelowPart:
        """Put together what tasks told of consecutive geounits, in order."""
        unknown = [part.unknown for part in parts if part.unknown is not None]
        return cls(
            parts[0].level,
            parts[0].first,
            Matrices.joined([part.covariance for part in parts]),
            np.concatenate([part.mean for part in parts]),
            np.concatenate([part.weights for part in parts]),
            Matrices.joined(unknown) if unknown else None,
        )


def kept_at_a_cut(model: TreeModel) -> int:
    """Return how many geounits a cut may have so that what lies below all of them can be kept."""
    domain = model.domain
    numbers = domain.cells + sum(
        stack[0].size for stack in domain.information(np.zeros((1, len(domain.queries))))
    )
    return int(MOST_KEPT // (8 * numbers))


def _ranges(levels: Sequence[PartLevel]) -> dict[int, tuple[int, int]]:
    return {level.level: (level.first, level.first + len(level.geocodes)) for level in levels}


def model_of(model: TreeModel, levels: Sequence[PartLevel]) -> TreeModel:
    """Return what a task needs of the model of the whole tree: that of the geounits it looks at."""
    return model.slice(_ranges(levels))


def _sums(model: TreeModel, source: MeasurementSource) -> Sums | None:
    """Return what sums the noisy answers of leaves that touch a cell the leaf may use, if the source can.

    Others say nothing, and are most of them: seven of eight where a leaf has no group quarters.
    """
    if not isinstance(source, PartialSource):
        return None
    partial, leaves = source, model.levels[-1]

    def sums(level: int, first: int, group: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        patterns = leaves.pattern[first - leaves.first : first - leaves.first + len(group)]
        used, which = np.unique(patterns, return_inverse=True)
        cells = model.domain.cells_of(leaves.patterns[used])
        return partial.sums(level, first, cells, which.ravel().astype(np.int64), group)

    return sums


def tell_below(part: Part, model: TreeModel, source: MeasurementSource, below: BelowPart | None) -> BelowPart:
    """Return what all below the geounits of a part's top says about them.

    Parameters
    ----------
    part : Part
        With at least two levels.
    model : TreeModel
    source : MeasurementSource
    below : BelowPart or None
        What lies below the part's bottom level; None where these are leaves.
    """
    known = None if below is None else below.within(model.domain)
    ranges = _ranges(part.levels[1:])
    _, found = up_pass(model, ranges, source.full, known, _sums(model, source))
    if found is None:
        raise AssertionError("the way up ends below the top of the tree")
    return BelowPart.of(found)


def information_of(
    part: Part, model: TreeModel, source: MeasurementSource, below: BelowPart | None
) -> dict[int, LevelInformation]:
    """Return what is known of the geounits that a part estimates, leaves left out, by level.

    Leaves have nothing below them: their own measurements are all there is.
    """
    levels = part.levels if part.parents is None else part.levels[1:]
    last = len(model.levels) - 1
    if all(level.level == last for level in levels):
        return {}
    known = None if below is None else below.within(model.domain)
    statistics, _ = up_pass(model, _ranges(levels), source.full, known, _sums(model, source))
    rows = tuple(query.row_of_cell for query in model.queries)
    return {
        one.level: LevelInformation(one.first, one.precision, one.linear, one.weights, rows)
        for one in statistics
        if one.linear is not None
    }
