"""Least-squares estimates of a noisy tree, by the passes over the whole tree, with the laws of their errors.

Axes: ``g`` geounits, ``a`` areas, ``t`` sums of cells asked for, ``r`` kinds of these, ``n`` cells, ``U``
different covariances.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from opendas.arrays import Bools, Floats, Ints
from opendas.gls.areas import area_estimates
from opendas.gls.downward import Estimates, down_pass
from opendas.gls.model import LEAST_VARIANCE, TreeModel
from opendas.gls.upward import Sweep, up_sweep
from opendas.intervals.answers import Areas, Estimated
from opendas.intervals.error_laws import ErrorLaws
from opendas.intervals.noisy_tree import NoisyTree
from opendas.intervals.rows import Rows
from opendas.schema.query_groups import QueryGroup

__all__ = ["TreeEstimates", "tree_model"]


def tree_model(tree: NoisyTree) -> TreeModel:
    """Return the model of least squares of a noisy tree: its noise, masks and exact answers."""
    queries: dict[str, QueryGroup] = {}
    for level in tree.levels:
        queries |= {query.name: query for query in level.queries}
    names = list(queries)
    weights = []
    for level in tree.levels:
        table = np.zeros((len(level.laws), len(names)))
        columns = [names.index(query.name) for query in level.queries]
        table[:, columns] = 1.0 / np.maximum(level.variances, LEAST_VARIANCE)
        weights.append((table, level.which))
    return TreeModel.build(
        tree.product,
        tree.spine,
        tuple(queries.values()),
        [tuple(query.name for query in level.queries) for level in tree.levels],
        weights,
        tree.constraints,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """Answers to one request for a whole geolevel."""

    value: Floats
    variance: Floats
    kind: Ints
    which: Ints
    rows: Rows

    def take(self, geounits: Ints) -> tuple[Floats, Floats, Ints]:
        which = self.which[geounits]
        columns = self.rows.of_row
        return self.value[geounits], self.variance[which][:, columns], self.kind[which][:, columns]


class TreeEstimates:
    """Least-squares estimates of a noisy tree; an :class:`opendas.intervals.answers.EstimateSource`.

    Notes
    -----
    Every noisy answer is read once on the way up, those of the leaves once more on the way down. Estimates of
    all geounits above the leaves are kept; of the leaves, only the sums asked for last.
    """

    def __init__(self, tree: NoisyTree) -> None:
        self.tree = tree
        self._laws = ErrorLaws(tree)
        self._last: tuple[bytes, _Level] | None = None

    @cached_property
    def model(self) -> TreeModel:
        """Noise, masks and exact answers."""
        return tree_model(self.tree)

    @cached_property
    def sweep(self) -> Sweep:
        """What the pass up the tree found."""
        return up_sweep(self.model, self.tree.full)

    def geounits(self, level: int, geounits: Ints, members: Bools) -> Estimated:
        """Return sums over `members`, bool (t, n), in geounits of a geolevel of the spine."""
        found = self._whole_level(level, members)
        value, variance, kind = found.take(geounits)
        return Estimated(value, variance, self._laws.kinds, kind)

    def areas(self, areas: Areas, members: Bools) -> Estimated:
        """Return weighted sums over `members` in sets of leaves."""
        rows = Rows.build(self.model.domain, members)
        found = area_estimates(self.sweep, areas.which, areas.leaf, areas.weight, areas.number)
        kinds, which = rows.variances(found)
        variance = kinds[which]
        roots = next(self.estimates(0)).covariance
        kind = self._laws.of_areas(self.sweep, roots, areas, rows, variance)
        columns = rows.of_row
        return Estimated(rows.values(found.mean), variance[:, columns], self._laws.kinds, kind[:, columns])

    @cached_property
    def _inner(self) -> tuple[Estimates, ...]:
        """Estimates of each geolevel above the leaves."""
        return tuple(itertools.islice(down_pass(self.sweep), len(self.model.levels) - 1))

    def estimates(self, level: int) -> Iterator[Estimates]:
        """Yield the estimates of a geolevel: above the leaves in one piece, the leaves in runs."""
        if level < len(self.model.levels) - 1:
            return iter((self._inner[level],))
        return (found for found in down_pass(self.sweep) if found.level == level)

    def _whole_level(self, level: int, members: Bools) -> _Level:
        key = bytes([level]) + np.packbits(members).tobytes() + bytes(str(members.shape), "ascii")
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        rows = Rows.build(self.model.domain, members)
        values, variances, kinds, which = [], [], [], []
        shift = 0
        for run in self.estimates(level):
            own, covariance = self._laws.classes(level, run.first, run.covariance.which)
            variance, kind = rows.variances(run)
            each = variance[kind[np.unique(own, return_index=True)[1]]]
            kinds.append(self._laws.of(self.sweep, run, rows, own, covariance, each))
            variances.append(each)
            values.append(rows.values(run.mean))
            which.append(own + shift)
            shift += len(each)
        found = _Level(
            np.concatenate(values),
            np.concatenate(variances),
            np.concatenate(kinds),
            np.concatenate(which),
            rows,
        )
        self._last = (key, found)
        return found
