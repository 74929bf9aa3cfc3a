"""Synthetic records on any frame, for trials of a run; apart, as only this package draws synthetic data."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from opendas.arrays import Floats, Ints
from opendas.constraints.table import ConstraintTable
from opendas.geography.frame import Frame
from opendas.schema.attributes import Schema
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product

RECORDS, A_HOME = 45.0, 2.3
"""Synthetic records of a leaf, where the frame has no housing units; and people of a housing unit."""
RARER, SPREAD = 2.4, 1.0
"""The levels of an attribute have frequencies that fall with this power of their rank: as those of race and
age in a census; and records that are spread over many cells (Zipf's law)."""
ALIKE, SPREAD_ALIKE = 2.0, 2.0
"""How alike leaves are: in a census the concentration of the Dirichlet frequencies of each attribute's levels
in a leaf, which make it like its neighbours in most races and unlike them in a few; else the shape of the
gamma weights of its cells."""
SELDOM = 1e-9
"""Weight of what is usual where a leaf has nobody in the cells that it may use."""
_SEED = 0


def _frequencies(schema: Schema, rarer: float) -> list[Floats]:
    """Return how frequent the levels of each attribute are: their first ones most."""
    weights = [np.arange(1.0, len(attribute.levels) + 1) ** -rarer for attribute in schema.attributes]
    return [each / each.sum() for each in weights]


def _product(frequencies: Sequence[Floats]) -> Floats:
    """Return the frequency of each cell, float64 (n,), of attributes that do not depend on each other."""
    found: Floats = reduce(np.outer, frequencies).ravel()
    return found


def _sizes(frame: Frame, product: Product, records: float | None) -> Ints:
    """Return how many records each leaf gets, int64 (leaves,), from public housing units where there are."""
    homes = frame.units.get("hu")
    each = A_HOME if product.protected_unit == "person" else 1.0
    sizes = np.full(len(frame), RECORDS) if homes is None else each * homes
    if records is not None and sizes.any():
        upto = np.rint(np.cumsum(sizes) * (records / sizes.sum()))
        sizes = np.diff(upto, prepend=0.0)
    return np.asarray(np.rint(sizes), dtype=np.int64)


def synthetic_counts(
    constraints: ConstraintTable,
    place_of_leaf: Ints,
    frame: Frame,
    product: Product,
    records: float | None = None,
    *,
    census: bool = True,
) -> Histogram:
    """Return synthetic records that keep structural zeros and bounds, a row for each leaf of the frame.

    - `constraints`: of the frame's spine, without invariants.
    - `place_of_leaf` (leaves,): place of each leaf of the frame on the spine.
    - `records`: about how many there are in all; by default :data:`RECORDS` a leaf, or :data:`A_HOME` a home.
    - `census`: most records are in few cells, and neighbours are alike; else they are spread over many.
    """
    rng = np.random.default_rng(_SEED)
    frequencies = _frequencies(product.schema, RARER if census else SPREAD)
    frequency, sizes = _product(frequencies), _sizes(frame, product, records)
    leaf = constraints.levels[-1]
    rows: list[Ints] = []
    columns: list[Ints] = []
    counts: list[Ints] = []
    for i, place in enumerate(place_of_leaf.tolist()):
        closed = constraints.bound_cells[leaf.upper[place] == 0]
        cells = np.flatnonzero(constraints.possible & ~closed.any(axis=0))
        if not len(cells):
            continue
        if census:
            mixture = _product([rng.dirichlet(ALIKE * each) for each in frequencies])[cells]
            mixture += SELDOM * frequency[cells]
        else:
            mixture = frequency[cells] * rng.gamma(SPREAD_ALIKE, size=len(cells))
        made = rng.multinomial(sizes[i], mixture / mixture.sum())
        for bound in np.flatnonzero(leaf.lower[place] > 0):
            inside = np.flatnonzero(constraints.bound_cells[bound][cells])
            missing = int(leaf.lower[place, bound] - made[inside].sum())
            made[inside[0]] += max(0, missing)
        some = np.flatnonzero(made)
        rows.append(np.full(len(some), i, dtype=np.int64))
        columns.append(cells[some])
        counts.append(made[some])
    none = [np.zeros(0, dtype=np.int64)]
    shape = (len(frame), product.schema.size)
    entries = [np.concatenate(none + parts) for parts in (rows, columns, counts)]
    return Histogram.from_entries(*entries, shape=shape)
