"""Margins of error of table cells, where one measurement answers the cell directly.

A margin here is that of the noise added to one measured answer: the least m such that at least the given
part of the noise lies within -m to m. It describes the noisy measurement, before post-processing made it
consistent, whole and non-negative, and not the error of the published estimate, which post-processing
usually makes smaller and may bias for small counts. A cell that is the sum of several measured answers has
no margin here. An invariant cell has the margin 0: it is exact.

Axes: ``g`` geounits of the table, ``t`` columns.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from opendas.arrays import Bools, Ints
from opendas.files.nmf.reading import MeasurementFile
from opendas.files.release_folder import ReleasedProduct
from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace
from opendas.schema.query_groups import QueryGroup
from opendas.tables.cells import Table
from opendas.tables.counting import Grouping

__all__ = ["NO_MARGIN", "margins", "matching_row"]

NO_MARGIN = -1
"""Where no margin is known."""


def matching_row(group: QueryGroup, members: Bools) -> int:
    """Return the row of a query group that counts exactly the cells `members`, bool (n,); -1 if none does."""
    rows = group.row_of_cell[members]
    if len(rows) == 0 or bool(np.any(rows != rows[0])):
        return -1
    return int(rows[0]) if int(np.sum(group.row_of_cell == rows[0])) == len(rows) else -1


def _spine_geounit(released: ReleasedProduct, level: int, grouping: Grouping) -> Ints:
    """Return, for each geounit of the table, the geounit of the spine with the same leaves; -1 if none."""
    spine = released.spine
    starts = spine.leaf_starts(level)
    of_leaf = np.repeat(np.arange(len(starts) - 1), np.diff(starts))[spine.place_of_leaf]
    inside = grouping.unit >= 0
    sizes = np.bincount(grouping.unit[inside], minlength=len(grouping))
    lowest = np.full(len(grouping), len(starts), dtype=np.int64)
    highest = np.full(len(grouping), -1, dtype=np.int64)
    np.minimum.at(lowest, grouping.unit[inside], of_leaf[inside])
    np.maximum.at(highest, grouping.unit[inside], of_leaf[inside])
    same = (lowest == highest) & (np.diff(starts)[np.minimum(lowest, len(starts) - 2)] == sizes)
    return np.where(same, lowest, -1)


def _best_queries(released: ReleasedProduct, file: MeasurementFile, table: Table) -> list[str | None]:
    """Return, for each column, the measured query group that answers it with the least noise."""
    chosen: list[str | None] = []
    groups = {query: released.product.workload.group(query) for query in file.queries}
    for members in table.members:
        direct = [query for query, group in groups.items() if matching_row(group, members) >= 0]
        chosen.append(min(direct, key=lambda query: file.parameter(query)[1], default=None))
    return chosen


def _noise_margin(file: MeasurementFile, query: str, multiple: Fraction, confidence: Fraction) -> int:
    """Return the margin where the geounit has `multiple` times its level's share; no share, no margin."""
    if multiple == 0:
        return NO_MARGIN
    name, value = file.parameter(query)
    noise = DiscreteGaussian(value / multiple) if name == "sigma2" else DiscreteLaplace(value / multiple)
    return noise.margin(confidence)


def margins(released: ReleasedProduct, table: Table, grouping: Grouping, confidence: Fraction) -> Ints:
    """Return the margin of error of each cell, int64 (g, t); :data:`NO_MARGIN` where none is known.

    Parameters
    ----------
    released : ReleasedProduct
    table : Table
    grouping : Grouping
        Of the same frame. Margins exist at official geolevels that are levels of the spine used, for the
        geounits that the spine has with the same leaves; an only child whose share its parent took over has
        the parent's.
    confidence : Fraction
        In (0, 1), for instance 9/10.
    """
    out = np.full((len(grouping), len(table.columns)), NO_MARGIN, dtype=np.int64)
    spine = released.spine
    if grouping.geolevel not in spine.names:
        return out
    level = spine.index(grouping.geolevel)
    place = _spine_geounit(released, level, grouping)
    known = place >= 0
    above, geounit, left = level, place.copy(), known
    while left.any() and above >= 0:
        multiples, which = spine.multiples(above)
        measured = left & np.array([multiple > 0 for multiple in multiples])[which[geounit]]
        _fill(out, released, table, confidence, above, np.where(measured, geounit, -1))
        left = left & ~measured
        if above:
            alone = np.diff(spine.child_starts(above - 1)) == 1
            parent = spine.levels[above].parent[geounit]
            left &= alone[parent]
            geounit = parent
        above -= 1
    for block in released.constraints:
        if block.geolevel == grouping.geolevel and block.kind in ("invariant", "joint"):
            of_any = block.kind == "joint" or block.name.endswith(f"@{spine.leaf.name}")
            exact = np.ones(len(grouping), dtype=np.bool_) if of_any else known
            group = released.product.workload.group(block.query)
            for column, members in enumerate(table.members):
                if matching_row(group, members) >= 0:
                    out[exact, column] = 0
    return out


def _fill(
    out: Ints,
    released: ReleasedProduct,
    table: Table,
    confidence: Fraction,
    level: int,
    place: Ints,
) -> None:
    """Set the margins of the rows whose geounit of a spine level is not -1, where the level was measured."""
    file = released.measurement(released.spine.names[level])
    known = place >= 0
    if file is None or not known.any():
        return
    multiples, which = released.spine.multiples(level)
    best = _best_queries(released, file, table)
    each = {
        query: np.array([_noise_margin(file, query, multiple, confidence) for multiple in multiples])
        for query in set(best)
        if query is not None
    }
    for column, query in enumerate(best):
        if query is not None:
            out[known, column] = each[query][which[place[known]]]
