"""A synthetic task that workers do before the real ones come; apart, since it imports all that they take.

Worker processes start while the run is still read and planned. Compiled code loads with its first call, a
quarter of a second in all, which would otherwise pass while everybody waits for the first geolevels.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from opendas.constraints.table import JointTotal, LevelConstraints
from opendas.engines.subtree import Part, PartLevel
from opendas.engines.tasks import Task
from opendas.engines.work import KeyedSource, Worker
from opendas.measurement.noisy import MeasuredLevel, MeasuredQuery
from opendas.sampling.laws import DiscreteGaussian
from opendas.schema.histogram import Histogram
from opendas.topdown.family_data import LevelRules

_SIZES = (2, 4, 16)
"""Geounits of each geolevel: two roots that hold their total together, their children, and theirs."""

_KINDS, _EACH = 25, 16
_CELLS = _KINDS * _EACH
"""So many that a family's Hessian matrix is handled by its structure, as that of large products."""

_MORE = 5
"""Counts are less."""

_NO_KEY = bytes(32)
"""Instead of a key: the counts are synthetic, and nothing that is drawn here is kept."""


def warm_up() -> None:
    """Measure and estimate a synthetic tree of three geolevels, and forget the result."""
    queries = {
        "total": np.zeros(_CELLS, np.int32),
        "kind": np.repeat(np.arange(_KINDS), _EACH).astype(np.int32),
        "place": np.tile(np.arange(_EACH), _KINDS).astype(np.int32),
        "detailed": np.arange(_CELLS, dtype=np.int32),
    }
    for rows in queries.values():
        rows.flags.writeable = False  # as those of products, for which code is compiled apart
    rules = tuple(_rules(level, queries) for level in range(len(_SIZES)))
    measured = tuple(_measured(level, queries) for level in range(len(_SIZES)))
    counts = np.arange(_SIZES[-1] * _CELLS, dtype=np.int64) % _MORE
    part = Part(tuple(_part_level(level, int(counts.sum())) for level in range(len(_SIZES))), None)
    row, cell = np.divmod(np.arange(len(counts)), _CELLS)
    table = Histogram.from_entries(row, cell, counts, shape=(_SIZES[-1], _CELLS))
    worker = Worker(rules, KeyedSource(measured, _NO_KEY), failsafe=False, keep_used=True)
    worker(Task(0, 0, part, table))


def _rules(level: int, queries: dict[str, npt.NDArray[np.int32]]) -> LevelRules:
    every = tuple(queries.items())
    return LevelRules(
        str(level),
        ("kind 0",),
        queries["kind"][None, :] == 0,
        np.ones(_CELLS, np.bool_),
        (("total",), ("kind", "place", "detailed")),
        (every[:1], (every[1], every[-1])),
    )


def _measured(level: int, queries: dict[str, npt.NDArray[np.int32]]) -> MeasuredLevel:
    noise = (DiscreteGaussian(Fraction(4)),)
    return MeasuredLevel(
        str(level),
        level,
        tuple(
            MeasuredQuery(name, address, int(rows.max()) + 1, rows, noise)
            for address, (name, rows) in enumerate(queries.items())
        ),
        (Fraction(1),),
        None,
    )


def _part_level(level: int, total: int) -> PartLevel:
    size = _SIZES[level]
    joint = JointTotal("total", np.zeros(size, np.int32), np.array([total])) if level == 0 else None
    starts = None
    if level + 1 < len(_SIZES):
        starts = np.arange(size + 1, dtype=np.int64) * (_SIZES[level + 1] // size)
    bounds = np.zeros((size, 1), np.int64)
    return PartLevel(
        level,
        0,
        np.array([f"{level}{geounit:02d}" for geounit in range(size)], dtype="S3"),
        starts,
        LevelConstraints(bounds, bounds + _SIZES[-1] * _MORE * _EACH, (), joint),
    )
