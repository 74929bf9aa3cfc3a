"""Exact counts that noisy measurement files leave out: people of states, housing units of blocks.

Both were invariants: the published counts are those of the census itself. What a table says of other areas is
no exact count, and stands apart from what is held here.

Axes: ``g`` geounits of a geolevel, ``b`` blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opendas.arrays import Codes, Ints, positions_of
from opendas.errors import FormatError
from opendas.files.nmf.bureau import BureauLevel
from opendas.files.nmf.bureau_answers import read_values
from opendas.intervals.tree_estimates import MOST_APART
from opendas.sampling.laws import DiscreteGaussian

_MOST_ROWS = 10_000
"""Sums of query groups with more rows say little about a total, and take long to read."""


@dataclass(frozen=True, slots=True, eq=False)
class PublicTotals:
    """Published counts that are exact."""

    source: str  # name of the file
    people: Mapping[str, int]  # of states, by two digits
    blocks: Codes  # (b,): fifteen digits each, ascending
    housing: Ints  # (b,): housing units

    def states(self, codes: Sequence[str]) -> Ints | None:
        """Return the people of some states, int64 (g,); None where the file has none of them."""
        there = [code for code in codes if code in self.people]
        if not there:
            return None
        missing = sorted(set(codes) - set(there))
        if missing:
            raise FormatError(
                f"{self.source}: no total of state {missing[0]}; give the totals of all measured states, or "
                "of none."
            )
        return np.array([self.people[code] for code in codes], dtype=np.int64)

    def housing_of(self, blocks: Codes) -> Ints | None:
        """Return the housing units of some blocks, int64 (g,); None where the file has no blocks."""
        if len(self.blocks) == 0:
            return None
        place = positions_of(self.blocks, blocks)
        lost = place < 0
        if lost.any():
            raise FormatError(
                f"{self.source} lacks {int(lost.sum()):,} of the {len(blocks):,} measured blocks, for "
                f"instance {blocks[lost][0].decode()}. Give the totals of the same census and of all "
                "measured blocks."
            )
        return np.asarray(self.housing[place])


def check_states(level: BureauLevel, totals: Mapping[str, int], what: str, source: str) -> None:
    """Compare exact totals of states with what was measured about them.

    Every query group divides all people, so that the sum of its answers measures the total, with the sum of
    the noise, whose tails :class:`opendas.intervals.tree_estimates.MeasuredTotals` bounds.

    - `level`: of states, or parts of them.
    - `what`: what is counted, in words.
    """
    rows = level.measured
    sizes = np.array([int(np.prod(shape)) for shape in rows.shapes], dtype=np.int64)
    asked = np.flatnonzero(np.isfinite(rows.variance) & (rows.variance > 0))
    estimate: dict[str, tuple[float, float]] = {}
    for code in level.geocodes.tolist():
        mine = asked[rows.geocode[asked] == code]
        values, weights = [], []
        for row in mine.tolist():
            size = int(sizes[rows.shape[row]])
            if size > _MOST_ROWS or rows.names[rows.name[row]] == "tenvacgq_dpq":
                continue
            query = f"query {rows.names[rows.name[row]]!r}"
            answers = read_values(rows, np.array([row]), size, level.folder, query)
            values.append(float(answers.sum()))
            weights.append(float(1 / DiscreteGaussian.of_variance(float(rows.variance[row])).sigma2) / size)
        if not values:
            return
        state = code[-2:].decode()
        value, variance = estimate.get(state, (0.0, 0.0))
        value += float(np.average(values, weights=weights))
        estimate[state] = value, variance + 1.0 / sum(weights)
    for state, (value, variance) in estimate.items():
        if state in totals and abs(value - totals[state]) > MOST_APART * variance**0.5:
            apart = abs(value - totals[state]) / variance**0.5
            raise FormatError(
                f"{source}: {totals[state]:,} {what} in state {state}, and its measurements say "
                f"{value:,.0f}, which is more than {int(apart):,} standard deviations away: more than "
                "chance. See whether both are of one census, and whether a part of the measurements is "
                "missing."
            )
