"""Writing noisy measurement files in the Census Bureau's public layout, column by column as published.

``<folder>/<Level>.parquet/DPQuery/State=044/part-00000.parquet`` and ``.../Constraint/...``: one file for
each state, or part of a state with American Indian areas, as programs that read these files expect. Geocodes
are spelled again, so that each begins with its parent's, all of a level have one length, and a block's ends
with state, county, tract, block group and block.

Axes: ``g`` geounits of a geolevel in spine order, ``q`` query groups, ``m`` rows of one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from opendas.arrays import Codes, Ints
from opendas.constraints.table import PublicCounts
from opendas.errors import ConfigError
from opendas.files.mdf.layout import PRODUCTION_LAYOUTS
from opendas.files.storage.parquet import bytes_column, text_column, write_batches
from opendas.geography.spine import Spine
from opendas.intervals.noisy_tree import NoisyTree
from opendas.sampling.laws import DiscreteGaussian
from opendas.schema.product import Product
from opendas.schema.query_groups import QueryGroup

FOLDERS = {
    "us": "US",
    "state": "State",
    "county": "County",
    "tract_group": "Tract_Group",
    "tract": "Tract",
    "prim": "Prim",
    "tract_subset_group": "Tract_Subset_Group",
    "tract_subset": "Tract_Subset",
    "block_group": "Block_Group",
    "block": "Block",
}
"""Names of geolevels there."""

_COLUMN = {"occupancy": "h1"}
"""Attributes that have another name there."""

_PLAIN = ("query_shape.list.element", "value.list.element")
"""R's nanoparquet (0.5.1.9000) reads other numbers where lists have dictionaries, or 64 bits."""
_BOUNDS = ("geocode", "query_name")
_VALUES_AT_ONCE = 1 << 20
_MOST = (1 << 31) - 1
"""An upper bound: more people than there are. Published bounds are a number for each facility."""
_WIDEST = 1e14
"""Variance of noise up to which answers about a nation have 32 bits."""


def bureau_geocodes(tree: NoisyTree) -> list[Codes]:
    """Return the codes of every geolevel as they are spelled in published files, bytes (g,) each.

    The nation's is empty. A state's is 0, or 1 for its American Indian areas, and two digits; a county's adds
    10 and three digits, if counties are as published; a block's ends with sixteen official digits. All others
    are numbered below their parents.
    """
    spine, frame = tree.spine, tree.frame
    official = frame.geocodes[spine.leaf_order]
    found: list[Codes] = []
    for number, level in enumerate(spine.levels):
        if level.name == "us":
            found.append(np.full(len(level), b"", dtype="S1"))
            continue
        first = official[spine.leaf_starts(number)[:-1]]
        above = found[-1][level.parent] if found else np.full(len(level), b"", dtype="S1")
        rank = np.arange(len(level)) - np.searchsorted(level.parent, level.parent) + 1
        if level.name == "state":
            mark = np.array([code[:1] if len(code) == 3 else b"0" for code in level.geocodes.tolist()])
            own = np.char.add(mark, first.astype("S2"))
        elif level.name == "block":
            own = np.array([code[:11] + code[11:12] + code[11:] for code in official.tolist()])
        else:
            width = len(str(int(rank.max(initial=1))))
            own = np.array([str(one).zfill(width).encode() for one in rank.tolist()])
            if level.name == "county":
                codes = np.array([b"10" + code[2:5] for code in first.tolist()])
                own = codes if _tell_apart(codes, level.parent) else np.char.add(codes, own)
        if not found and level.name != "state":
            own = np.char.add(np.char.add(b"0", first.astype("S2")), own)
        found.append(np.array(np.char.add(above, own).tolist()))  # as wide as they are long
    return found


def _tell_apart(codes: Codes, parent: Ints) -> bool:
    return len(np.unique(np.char.add(np.char.add(parent.astype("S10"), b" "), codes))) == len(codes)


def write_bureau_file(tree: NoisyTree, folder: Path, companion: NoisyTree | None = None) -> list[Path]:
    """Write measurements and constraints of every geolevel; returns the files.

    Parameters
    ----------
    tree : NoisyTree
        Of a redistricting product, of DHC persons or of households of the DHC, whatever its hierarchy.
    folder : Path
        Of the file: ``State.parquet`` and so on come to stand in it.
    companion : NoisyTree, optional
        Of all units, on the same hierarchy: they stand in the file of households.

    Raises
    ------
    ConfigError
        If the product, or a geolevel, has no name in the published layout; or the noise is not Gaussian, or
        so little that the layout has no variance for it.
    """
    product, trees = tree.product, (tree,) if companion is None else (tree, companion)
    measured = [level for each in trees for level in each.levels]
    laws = {type(law) for level in measured for kind in level.laws for law in kind if law is not None}
    if laws - {DiscreteGaussian}:
        raise ConfigError(
            "the published layout states no more of the noise than its variance, and readers take it for "
            "Gaussian; this release has discrete Laplace noise. opendas export --format long takes it."
        )
    if any(np.float32(level.variances.min(initial=1.0)) == 0 for level in measured):
        raise ConfigError(
            "the published layout states variances in single precision, in which the smallest of this "
            "release is zero, as if counts were exact. opendas export --format long keeps double precision."
        )
    if product.layout not in PRODUCTION_LAYOUTS:
        raise ConfigError(
            f"{product.name} has no published layout of measurements; pl94-persons, pl94-units, dhc-persons "
            "and dhc-units have one."
        )
    if (product.companion is None) != (companion is None):
        raise ConfigError(f"{product.name}: give its second histogram if it has one, and only then.")
    if companion is not None:
        other = {query.name for level in companion.levels for query in level.queries} - {"detailed"}
        if other:
            raise ConfigError(
                f"{companion.product.name}: query {min(other)!r} has no name in the published layout, whose "
                "only query of all units is tenvacgq."
            )
    levels = [i for i, level in enumerate(tree.spine.levels) if level.name != "root"]
    unknown = [name for name in (tree.spine.names[i] for i in levels) if name not in FOLDERS]
    if unknown:
        raise ConfigError(
            f"geolevel {unknown[0]!r} is not in the published layout, which has {', '.join(FOLDERS)}."
        )
    codes = bureau_geocodes(tree)
    written: list[Path] = []
    for number in levels:
        base = folder / f"{FOLDERS[tree.spine.names[number]]}.parquet"
        for part, start, stop in _parts(tree.spine, number, codes):
            for kind, of, sign in (("DPQuery", _measured, False), ("Constraint", _constraints, True)):
                path, schema = base / kind / part / "part-00000.parquet", _schema(trees, sign=sign)
                tables = itertools.chain.from_iterable(of(each, number, start, stop, codes) for each in trees)
                if write_batches(path, map(partial(_widened, schema), tables), plain=_PLAIN, bounds=_BOUNDS):
                    written.append(path)
    return written


def _widened(schema: pa.Schema, table: pa.Table) -> pa.Table:
    """Return rows of one histogram with the columns of all: what is another's divides nothing."""
    stars = pa.repeat(pa.scalar("*"), len(table))
    columns = [table[name] if name in table.column_names else stars for name in schema.names]
    return pa.table(columns, names=schema.names).cast(schema)


def _parts(spine: Spine, number: int, codes: Sequence[Codes]) -> Iterator[tuple[str, int, int]]:
    """Yield folder, first geounit and the one after the last, of each file of a geolevel."""
    if spine.names[number] == "us":
        yield "", 0, len(codes[number])
        return
    states = codes[number].astype("S3")
    cuts = [0, *(np.flatnonzero(states[1:] != states[:-1]) + 1).tolist(), len(states)]
    for start, stop in itertools.pairwise(cuts):
        yield f"State={states[start].decode()}", start, stop


def _schema(trees: Sequence[NoisyTree], *, sign: bool) -> pa.Schema:
    """Return the columns; integers have the same width in all parts."""
    widest = max(
        float(level.variances[np.isfinite(level.variances)].max(initial=0.0))
        for tree in trees
        for level in tree.levels
    )
    lists = pa.list_(pa.int32() if widest <= _WIDEST else pa.int64())
    axes = [_COLUMN.get(name, name) for tree in trees for name in tree.product.schema.names]
    texts = ["geocode", "query_name", *(["sign"] if sign else []), *axes]
    return pa.schema(
        [(name, pa.string()) for name in texts]
        + [("query_shape", lists), ("value", lists), ("variance", pa.float32())]
    )


def _measured(
    tree: NoisyTree, number: int, start: int, stop: int, codes: Sequence[Codes]
) -> Iterator[pa.Table]:
    """Yield the answers of consecutive geounits, geounit by geounit; none of what was not asked."""
    noisy = tree.levels[number]
    if not noisy.queries:
        return
    sizes = [query.size for query in noisy.queries]
    step = max(1, _VALUES_AT_ONCE // sum(sizes))
    variances = noisy.variances
    texts = [_texts(tree.product, query) for query in noisy.queries]
    for first in range(start, stop, step):
        last = min(first + step, stop)
        variance = variances[noisy.which[first:last]]
        row, column = np.nonzero(np.isfinite(variance))
        if len(row) == 0:
            continue
        answers = np.concatenate(tree.full(number, first, last - first), axis=1)
        offset = np.concatenate([[0], np.cumsum(sizes)])
        asked = np.repeat(np.isfinite(variance), sizes, axis=1)
        lengths = np.diff(offset)[column]
        yield _table(
            _schema((tree,), sign=False),
            codes[number][first:last][row],
            column,
            texts,
            answers[asked],
            lengths,
            variance[row, column],
        )


def _table(
    schema: pa.Schema,
    geocodes: Codes,
    kind: Any,
    texts: Sequence[Sequence[Any]],
    values: Ints,
    lengths: Any,
    variance: Any,
) -> pa.Table:
    """Put rows together; each is of a kind, which says its texts and, last, its shape."""
    names = [name for name in schema.names if name not in ("geocode", "query_shape", "value", "variance")]
    kind = kind.astype(np.int32)
    columns = [bytes_column(geocodes)]
    for place in range(len(names)):
        values_of_kind = [text[place] for text in texts]
        columns.append(text_column(kind, values_of_kind).cast(pa.string()))
    lists = schema.field("value").type
    columns.append(pa.array([list(text[-1]) for text in texts], lists).take(pa.array(kind)))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    columns.append(pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, lists.value_type)))
    columns.append(pa.array(variance.astype(np.float32)))
    return pa.Table.from_arrays(columns, schema=schema)


def _texts(product: Product, query: QueryGroup) -> list[Any]:
    """Return the name, the text of each axis, and the shape of a query group's rows."""
    positions = product.workload.positions
    axes, shape = ["*"] * len(product.schema.names), [1] * len(product.schema.names)
    for factor, size in zip(query.factors, query.shape, strict=True):
        axes[positions[factor]], shape[positions[factor]] = _COLUMN.get(factor, factor), size
    if query.name == "detailed" and product.layout == "tenvacgq":
        return ["tenvacgq_dpq", "tenvacgq", [query.size]]
    if query.name == "detailed":
        axes = ["detailed"] * len(axes)
    return [f"{query.name}_dpq", *axes, shape]


def _constraints(
    tree: NoisyTree, number: int, start: int, stop: int, codes: Sequence[Codes]
) -> Iterator[pa.Table]:
    """Yield what is exact about consecutive geounits: totals, tied counts, bounds and the structural zero."""
    product, table = tree.product, tree.constraints.levels[number]
    one, axes = [1] * len(product.schema.names), ["*"] * len(product.schema.names)
    texts: list[list[Any]] = []
    blocks: list[Callable[[int, int], Ints]] = []
    for held in table.invariants:
        if held.query.name == "total":
            texts.append(["total_con", "=", *axes, one])
            blocks.append(partial(_rows, held.answers))
        if held.query.name == "hhgq_vector":
            texts.append(["gq_vect_con", "=", held.query.name, [held.query.size]])
            blocks.append(partial(_rows, held.answers))
    if table.joint is not None and len(np.unique(table.joint.group)) == len(table.joint.group):
        texts.append(["total_con", "=", *axes, one])  # of one part each, so that it is that part's
        blocks.append(partial(_rows, table.joint.totals[table.joint.group][:, None]))
    if table.tied is not None and product.layout == "dhc-persons":
        texts.append(["pl94_con", "=", *_texts(product, table.tied.query)[1:]])
        blocks.append(partial(_tied_rows, table.tied))
    if table.tied is not None and product.layout == "tenvacgq":
        units = product.workload.group("hhgq_vector")
        texts.append(["h1_toth1vacant_con", "=", "vacant", [1]])
        blocks.append(partial(_vacant, table.tied))
        if all(held.query.name != units.name for held in table.invariants):
            texts.append(["gq_vect_con", "=", units.name, [units.size]])
            blocks.append(partial(_units, table.tied))
    if product.layout == "persons":
        hhgq = ["hhgq", *axes[1:], [len(product.schema.attributes[0].levels), *one[1:]]]
        if product.bounds:
            most = np.minimum(table.upper, _MOST)
            texts += [["hhgq_total_lb_con", ">=", *hhgq], ["hhgq_total_ub_con", "<=", *hhgq]]
            blocks += [partial(_rows, table.lower), partial(_rows, most)]
        if product.structural_zeros:
            texts.append(["nurse_nva_0_con", "=", "gqNursingTotal", "nonvoting", *axes[2:], one])
            blocks.append(lambda first, last: np.zeros((last - first, 1), dtype=np.int64))
    if not texts:
        return
    widths = [int(np.prod(text[-1])) for text in texts]
    step = max(1, _VALUES_AT_ONCE // sum(widths))
    for first in range(start, stop, step):
        last = min(first + step, stop)
        kind = np.tile(np.arange(len(texts)), last - first)
        yield _table(
            _schema((tree,), sign=True),
            np.repeat(codes[number][first:last], len(texts)),
            kind,
            texts,
            np.concatenate([block(first, last) for block in blocks], axis=1).ravel(),
            np.tile(widths, last - first),
            np.zeros(len(kind)),
        )


def _rows(values: Ints, first: int, last: int) -> Ints:
    return values[first:last]


def _vacant(tied: PublicCounts, first: int, last: int) -> Ints:
    return _tied_rows(tied, first, last)[:, :1]


def _units(tied: PublicCounts, first: int, last: int) -> Ints:
    """Return all housing units, and the group quarters of each type."""
    vacant, occupied, quarters = np.split(_tied_rows(tied, first, last), (1, 2), axis=1)
    return np.concatenate([vacant + occupied, quarters], axis=1)


def _tied_rows(tied: PublicCounts, first: int, last: int) -> Ints:
    return tied.slice(first, last).on(np.arange(tied.query.size, dtype=np.int32))
