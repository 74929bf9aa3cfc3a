"""DHC persons and units for microdata and tables: any count fits."""

from __future__ import annotations

import dataclasses

import numpy as np

from opendas.geography.frame import Frame
from opendas.schema.dhc_persons import dhc_persons
from opendas.schema.dhc_units import dhc_units
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product

GQ_CODES = (
    101, 102, 103, 104, 105, 106, 201, 202, 203, 301, 401, 402, 403, 404, 405,
    501, 601, 602, 701, 801, 802, 900, 901, 997,
)  # fmt: skip


def dhc_persons_product() -> Product:
    """Return the product without invariants, bounds and structural zeros."""
    return dataclasses.replace(dhc_persons(), invariants=(), bounds=(), structural_zeros=())


def both_histograms(
    frame: Frame, rng: np.random.Generator, entries: int = 600
) -> tuple[Frame, Histogram, Histogram]:
    """Random estimates of both histograms of units that agree in tenure; some blocks have no household."""
    schema = dhc_units().schema
    leaf = rng.choice([0, 1, 3, 4], size=entries)
    cells = schema.cells([rng.integers(0, size, entries) for size in schema.shape])
    households = Histogram.from_entries(
        leaf, cells, rng.integers(1, 4, entries), shape=(len(frame), schema.size)
    )
    return frame, households, beside(rng, households)


def beside(rng: np.random.Generator, households: Histogram) -> Histogram:
    """A random histogram of all units with the households' tenures."""
    dense = rng.integers(0, 3, (households.rows, 35))
    leaf = np.repeat(np.arange(households.rows), np.diff(households.indptr))
    tenure = dhc_units().schema.codes(households.cells)[5]
    for level in range(3):
        who = tenure == level
        dense[:, level] = np.bincount(leaf[who], weights=households.counts[who], minlength=households.rows)
    dense[:, 3] = rng.integers(0, dense[:, 2] + 1)
    dense[:, 2] -= dense[:, 3]
    rows, levels = np.nonzero(dense)
    return Histogram.from_entries(rows, levels, dense[rows, levels], shape=dense.shape)
