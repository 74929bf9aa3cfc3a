"""A noisy measurement file of the Bureau's layout as one tree: spine, frame, noise and constraints.

Axes: ``g`` geounits of a geolevel in spine order, ``B`` bounds.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from opendas.arrays import Ints
from opendas.constraints.table import ConstraintTable, InvariantAnswers, LevelConstraints, bound_cells
from opendas.errors import ConfigError, FormatError
from opendas.files.nmf.bureau import (
    BureauAnswers,
    BureauLevel,
    as_fraction,
    classes_of,
    index_rows,
    read_bureau_levels,
    read_values,
)
from opendas.geography.frame import Frame, official_codes
from opendas.geography.spine import Spine, SpineLevel
from opendas.intervals.implied import UNBOUNDED
from opendas.intervals.noisy_tree import NoisyLevel, NoisyTree
from opendas.sampling.laws import DiscreteGaussian
from opendas.schema.declarations import Invariant
from opendas.schema.pl94 import pl94_persons, pl94_units
from opendas.schema.product import Product
from opendas.schema.query_groups import QueryGroup

__all__ = ["bureau_tree"]

log = logging.getLogger(__name__)


_GEOCODE = 16
_STATES = 51
"""With fewer states below it, the measurements of the nation say nothing about what is there."""


def bureau_tree(path: Path) -> NoisyTree:
    """Open a noisy measurement file of the Bureau's layout.

    Parameters
    ----------
    path : Path
        Folder with ``State.parquet``, ``County.parquet`` and so on.

    Raises
    ------
    FormatError
        Naming the geolevel, and the geocode or query, that is missing, there twice or of another form.

    Notes
    -----
    The file of one state may come with that of the nation. The nation's measurements are then left out: they
    are about all states.
    """
    levels = _without_nation(read_bureau_levels(path))
    product = _product(levels, path.name)
    spine = _spine(levels)
    frame, spine = _frame(spine)
    noisy, rows = [], []
    for level in levels:
        used = np.unique(np.column_stack([level.measured.name, level.measured.shape]), axis=0).tolist()
        queries: dict[str, QueryGroup] = {}
        for name, shape in used:
            text = level.measured.names[name]
            queries[text] = _query(product, text, level.measured.shapes[shape], level.folder)
        groups, row, variance = index_rows(level, queries)
        kinds, which = classes_of(variance)
        laws = tuple(
            tuple(DiscreteGaussian(as_fraction(v)) if np.isfinite(v) else None for v in kind)
            for kind in kinds.tolist()
        )
        noisy.append(NoisyLevel(level.geolevel, groups, laws, which))
        rows.append(row)
    table, product = _constraints(product, spine, levels)
    answers = BureauAnswers(levels, tuple(level.queries for level in noisy), tuple(rows))
    return NoisyTree(product, frame, spine, tuple(noisy), table, answers)


def _product(levels: Sequence[BureauLevel], name: str) -> Product:
    """Return the product that was measured, by the shape of its detailed query.

    Raises
    ------
    FormatError
        If it is neither of the two redistricting products.
    """
    shapes: set[tuple[int, ...]] = set()
    for level in levels:
        rows = level.measured
        for number in np.unique(np.column_stack([rows.name, rows.shape]), axis=0).tolist():
            if rows.names[number[0]] == "detailed_dpq":
                shapes.add(rows.shapes[number[1]])
    for product in (pl94_persons(), pl94_units()):
        if shapes == {product.schema.shape}:
            return product
    raise FormatError(
        f"{name}: detailed of shape {', '.join(str(shape) for shape in sorted(shapes)) or '(none)'}: this is "
        "neither of the redistricting products, (8, 2, 2, 63) for persons and (2,) for housing units."
    )


def _query(product: Product, name: str, shape: tuple[int, ...], level: str) -> QueryGroup:
    """Return the query group behind a row's name, after a look at its shape.

    Raises
    ------
    FormatError
        If the product has no such query group, or its shape is another.
    """
    plain = re.sub(r"_dpq$", "", name)
    try:
        query = product.workload.group(plain)
    except ConfigError as error:
        raise FormatError(
            f"{level}.parquet: query {name!r} is no query group of {product.name}: these are measurements of "
            "another plan."
        ) from error
    sizes = dict(zip(query.factors, query.shape, strict=True))
    positions = product.workload.positions
    expected = [1] * len(product.schema.shape)
    for factor, size in sizes.items():
        expected[positions[factor]] = size
    if tuple(expected) != shape:
        raise FormatError(
            f"{level}.parquet: query {name!r} of shape {shape}, expected {tuple(expected)} of {product.name}."
        )
    return query


def _without_nation(levels: tuple[BureauLevel, ...]) -> tuple[BureauLevel, ...]:
    if levels[0].folder != "US" or levels[1].folder != "State":
        return levels
    states = np.unique([code[-2:] for code in levels[1].geocodes.tolist()])
    if len(states) >= _STATES:
        return levels
    log.warning(
        "%d of %d states are there: the measurements of the nation are left out.", len(states), _STATES
    )
    return levels[1:]


def _spine(levels: Sequence[BureauLevel]) -> Spine:
    """Make the hierarchy: children are ordered by their codes, which begin with their parent's."""
    found: list[SpineLevel] = []
    for number, level in enumerate(levels):
        codes = level.geocodes
        parent = np.zeros(len(codes), dtype=np.int64)
        if number:
            above = found[-1].geocodes
            width = above.dtype.itemsize
            if width >= codes.dtype.itemsize:
                raise FormatError(
                    f"{level.folder}.parquet: geocodes are not longer than those of "
                    f"{levels[number - 1].folder}.parquet."
                )
            if len(above) > 1:
                prefix = codes.astype(f"S{width}")
                parent = np.minimum(np.searchsorted(above, prefix), len(above) - 1)
                lost = above[parent] != prefix
                if lost.any():
                    raise FormatError(
                        f"{level.folder}.parquet: geocode {codes[lost][0].decode()} is below no geounit of "
                        f"{levels[number - 1].folder}.parquet."
                    )
            childless = np.setdiff1d(np.arange(len(above)), parent)
            if len(childless):
                raise FormatError(
                    f"{levels[number - 1].folder}.parquet: geocode {above[childless[0]].decode()} has no "
                    f"geounit below it in {level.folder}.parquet."
                )
        found.append(SpineLevel(level.geolevel, codes, parent.astype(np.int64), official=False))
    leaves = np.arange(len(levels[-1].geocodes), dtype=np.int64)
    return Spine(tuple(found), leaves, (None,) * len(found))


def _frame(spine: Spine) -> tuple[Frame, Spine]:
    """Derive the official codes of the leaves, and with them the order of the frame."""
    codes = spine.leaf.geocodes
    width = codes.dtype.itemsize
    if width < _GEOCODE:
        raise FormatError(f"Block.parquet: geocodes of {width} characters, expected at least {_GEOCODE}.")
    tail = np.array([code[-_GEOCODE:] for code in codes.tolist()], dtype=f"S{_GEOCODE}")
    # A block's own code repeats the digit of its block group.
    geoid = np.array([code[:11] + code[12:] for code in tail.tolist()], dtype="S15")
    order = np.argsort(geoid, kind="stable")
    if len(np.unique(geoid)) != len(geoid):
        twice = geoid[order][1:][geoid[order][1:] == geoid[order][:-1]][0]
        raise FormatError(f"Block.parquet: block {twice.decode()} is there twice.")
    leaf_order = np.empty(len(order), dtype=np.int64)
    leaf_order[order] = np.arange(len(order))
    states = len(np.unique(geoid.astype("S2")))
    frame = Frame(geoid[order], official_codes(geoid[order], "us" if states > 1 else "state"), "block")
    levels = tuple(
        dataclasses.replace(level, official=_is_official(spine, number, leaf_order, frame))
        for number, level in enumerate(spine.levels)
    )
    return frame, Spine(levels, leaf_order, spine.shares)


def _is_official(spine: Spine, level: int, leaf_order: Ints, frame: Frame) -> bool:
    """Return whether the geounits of a level are those of the official geolevel of that name."""
    name = spine.names[level]
    if name not in frame.geolevels:
        return False
    codes, own = np.unique(frame.codes(name)[leaf_order], return_inverse=True)
    starts = spine.leaf_starts(level)
    unit = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    pairs = np.unique(np.column_stack([unit, own.ravel()]), axis=0)
    return len(pairs) == len(codes) == len(starts) - 1


def _constraints(
    product: Product, spine: Spine, levels: Sequence[BureauLevel]
) -> tuple[ConstraintTable, Product]:
    """Read bounds and exact totals; returns the product with the invariants that the file holds."""
    totals: dict[int, Ints] = {}
    bounds = []
    for number, level in enumerate(levels):
        bounds.append(_bounds(product, level))
        total = _values(level, "total_con", 1)
        if total is not None and not np.any(total < 0):
            totals[number] = total
        _warn_unknown(level)
    lowest = max(totals, default=None)
    held: list[tuple[InvariantAnswers, ...]] = [() for _ in levels]
    invariants: tuple[Invariant, ...] = ()
    if lowest is not None:
        answers = totals[lowest]
        invariants = (Invariant("total", spine.names[lowest]),)
        for number in range(lowest, -1, -1):
            if number in totals and not np.array_equal(totals[number], answers):
                raise FormatError(
                    f"{levels[number].folder}.parquet: exact totals are not the sums of those of "
                    f"{levels[lowest].folder}.parquet."
                )
            name = f"total@{spine.names[lowest]}"
            held[number] = (InvariantAnswers(name, product.workload.group("total"), answers),)
            if number:
                answers = np.add.reduceat(answers, spine.child_starts(number - 1)[:-1], axis=0)
    table = ConstraintTable(
        tuple(bound.name for bound in product.bounds),
        bound_cells(product),
        product.possible,
        tuple(LevelConstraints(*pair, exact) for pair, exact in zip(bounds, held, strict=True)),
    )
    return table, dataclasses.replace(product, invariants=invariants)


def _bounds(product: Product, level: BureauLevel) -> tuple[Ints, Ints]:
    shape = (len(level.geocodes), len(product.bounds))
    lower, upper = np.zeros(shape, dtype=np.int64), np.full(shape, UNBOUNDED, dtype=np.int64)
    if product.bounds:
        found = [_values(level, f"hhgq_total_{side}_con", shape[1]) for side in ("lb", "ub")]
        if found[0] is not None:
            lower = np.maximum(found[0], 0)
        if found[1] is not None:
            upper = np.where(found[1] < 0, UNBOUNDED, found[1])
    if bool(np.any(lower > upper)):
        raise FormatError(f"{level.folder}.parquet: a lower bound above its upper bound.")
    return lower, upper


def _values(level: BureauLevel, name: str, size: int) -> Ints | None:
    """Return a constraint's values, int64 (g, size), -1 where a geounit has none; None where none has any."""
    rows = level.constraints
    if name not in rows.names:
        return None
    chosen = np.flatnonzero(rows.name == rows.names.index(name))
    position = np.searchsorted(level.geocodes, rows.geocode[chosen])
    if len(np.unique(position)) != len(position):
        raise FormatError(f"{level.folder}.parquet: a geocode is there twice with constraint {name!r}.")
    found = np.full((len(level.geocodes), size), -1, dtype=np.int64)
    found[position] = read_values(rows, chosen, size, level.folder, name)
    return found


def _warn_unknown(level: BureauLevel) -> None:
    known = {"total_con", "nurse_nva_0_con", "hhgq_total_lb_con", "hhgq_total_ub_con"}
    others = sorted(set(level.constraints.names) - known)
    if others:
        log.warning("%s: constraints %s are not used.", level.folder, ", ".join(others))
