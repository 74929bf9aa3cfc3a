"""The public geography of a release: frame, spine and constraints, written and read back.

Axes: ``g`` geounits of a geolevel in spine order, ``m`` rows of a query group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opendas.arrays import Codes, Ints, Lookup
from opendas.constraints.table import (
    ConstraintTable,
    InvariantAnswers,
    JointTotal,
    LevelConstraints,
    LinearSums,
    PublicCounts,
    bound_cells,
)
from opendas.errors import ConfigError, FormatError, GeographyError
from opendas.files.nmf.product_json import product_from_json, product_to_json
from opendas.files.storage.parquet import (
    bytes_column,
    open_parquet,
    parquet_sink,
    read_metadata,
    reads_file,
    text_column,
    to_bytes,
    write_parquet,
)
from opendas.geography.frame import Frame
from opendas.geography.spine import Shares, Spine, SpineLevel
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product
from opendas.schema.query_groups import QueryGroup

_ROWS_AT_ONCE = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class ConstraintRows:
    """One constraint at one geolevel."""

    geolevel: str
    name: str
    query: str
    kind: str  # "bound", "invariant" or "joint"
    row: int  # row of the query group, -1 for all of them
    geocodes: Codes  # (g,)
    lower: Ints  # (g, 1), (g, m)
    upper: Ints  # (g, 1), (g, m)


def _metadata(path: Path, form: str) -> dict[str, Any]:
    metadata = read_metadata(path)
    if metadata.get("format") != form:
        raise FormatError(f"{path.name}: format {metadata.get('format')!r}, expected {form!r}.")
    return metadata


@reads_file
def read_product(path: Path) -> Product:
    """Return the product whose frame is in `path`."""
    return product_from_json(_metadata(path, "opendas frame 1")["product"])


@reads_file
def read_frame(path: Path) -> Frame:
    """Read ``geography/<product>.parquet``."""
    metadata = _metadata(path, "opendas frame 1")
    table = open_parquet(path).read()
    wanted = [f"level:{name}" for name in metadata["levels"]]
    wanted += [f"entity:{name}" for name in metadata["entities"]]
    wanted += [f"units:{name}" for name in metadata["units"]]
    if table.column_names != ["geocode", *wanted]:
        raise FormatError(
            f"{path.name}: columns {', '.join(table.column_names)}; expected geocode, {', '.join(wanted)}."
        )
    return Frame(
        to_bytes(table.column("geocode")),
        {name: to_bytes(table.column(f"level:{name}")) for name in metadata["levels"]},
        str(metadata["leaf"]),
        {name: np.array(table.column(f"units:{name}"), dtype=np.int64) for name in metadata["units"]},
        {name: to_bytes(table.column(f"entity:{name}")) for name in metadata["entities"]},
        metadata["names"],
        metadata.get("functional_status", {}),
    )


def _positions(codes: Codes, wanted: Codes, what: str, where: str) -> Ints:
    """Return the position in `codes` of each of `wanted`."""
    found = Lookup.of(codes).positions(wanted)
    if bool(np.any(found < 0)):
        raise GeographyError(f"{what} {wanted[found < 0][0].decode()} is not in {where}.")
    return found


@reads_file
def read_spine(path: Path, frame: Frame) -> Spine:
    """Read ``measurements/<product>/spine.parquet``."""
    metadata = _metadata(path, "opendas spine 1")
    file = open_parquet(path, dictionaries=["geolevel", "share"])
    table = file.read().combine_chunks()
    levels: list[SpineLevel] = []
    shares: list[Shares | None] = []
    for name, width, official in zip(
        metadata["levels"], metadata["widths"], metadata["official"], strict=True
    ):
        part = table.filter(pc.equal(table.column("geolevel"), name))
        codes = to_bytes(part.column("geocode")).astype(f"S{width}")
        parent = np.zeros(len(codes), dtype=np.int64)
        if levels:
            above = to_bytes(part.column("parent"))
            parent = _positions(
                levels[-1].geocodes, above, f"geolevel {name!r}: parent", f"geolevel {levels[-1].name!r}"
            )
        divided = part.column("whole").null_count == 0
        whole = np.array(part.column("whole"), dtype=np.int64) if divided else None
        levels.append(SpineLevel(name, codes, parent, official, whole))
        encoded = part.column("share").combine_chunks()
        texts = encoded.dictionary.to_pylist()
        which = np.array(encoded.indices, dtype=np.int64)
        shares.append(Shares.of([Fraction(text) for text in texts], which))
    leaf_order = _positions(frame.geocodes, levels[-1].geocodes, "leaf", "the frame")
    lost = len(frame) - len(np.unique(leaf_order))
    if lost:
        raise GeographyError(f"the spine lacks {lost:,} of the {len(frame):,} leaves of the frame.")
    return Spine(tuple(levels), leaf_order, tuple(shares))


@reads_file
def read_constraints(path: Path) -> tuple[ConstraintRows, ...]:
    """Read ``measurements/<product>/constraints.parquet``, one block per geolevel and constraint."""
    metadata = _metadata(path, "opendas constraints 1")
    file = open_parquet(path, dictionaries=["geolevel", "constraint", "query", "kind"])
    pieces: dict[str, dict[str, list[ConstraintRows]]] = {name: {} for name in metadata["levels"]}
    # A batch at a time: as Arrow has them, all rows of a nation would take several times what they become.
    for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE):
        table = pa.Table.from_batches([batch])
        for geolevel in table.column("geolevel").unique().to_pylist():
            level = table.filter(pc.equal(table.column("geolevel"), geolevel))
            for name in level.column("constraint").unique().to_pylist():
                part = level.filter(pc.equal(level.column("constraint"), name)).combine_chunks()
                pieces.setdefault(geolevel, {}).setdefault(name, []).append(
                    _piece(part, geolevel, name, path)
                )
    return tuple(
        _joined(parts, path) for geolevel in metadata["levels"] for parts in pieces[geolevel].values()
    )


def _piece(part: Any, geolevel: str, name: str, path: Path) -> ConstraintRows:
    where = f"{path.name}: constraint {name!r} at {geolevel!r}"
    return ConstraintRows(
        geolevel,
        name,
        _single(part, "query", where),
        _single(part, "kind", where),
        int(_single(part, "row", where)),
        to_bytes(part.column("geocode")),
        *(_matrix(part.column(side), where) for side in ("lower", "upper")),
    )


def _joined(parts: list[ConstraintRows], path: Path) -> ConstraintRows:
    first = parts[0]
    where = f"{path.name}: constraint {first.name!r} at {first.geolevel!r}"
    if any((part.query, part.kind, part.row) != (first.query, first.kind, first.row) for part in parts):
        raise FormatError(f"{where}: expected one query, kind and row.")
    if any(part.lower.shape[1:] != first.lower.shape[1:] for part in parts):
        raise FormatError(f"{where}: expected lists of one length.")
    return replace(
        first,
        geocodes=np.concatenate([part.geocodes for part in parts]),
        lower=np.concatenate([part.lower for part in parts]),
        upper=np.concatenate([part.upper for part in parts]),
    )


def _single(part: Any, column: str, where: str) -> Any:
    found = part.column(column).unique().to_pylist()
    if len(found) != 1:
        raise FormatError(f"{where}: expected one {column}.")
    return found[0]


def _matrix(column: Any, where: str) -> Ints:
    lengths = pc.list_value_length(column).unique().to_pylist()
    if len(lengths) != 1 or lengths[0] is None:
        raise FormatError(f"{where}: expected lists of one length.")
    flat = np.array(pc.list_flatten(column), dtype=np.int64)
    return flat.reshape(len(column), lengths[0])


def _joint(path: Path, level: SpineLevel, blocks: list[ConstraintRows]) -> JointTotal | None:
    if not blocks:
        return None
    if level.whole is None or len(blocks) > 1:
        raise FormatError(
            f"{path.name}: {level.name!r} may have one joint total, and only where geounits are divided."
        )
    totals = blocks[0].lower[np.flatnonzero(np.diff(level.whole, prepend=-1)), 0]
    if not np.array_equal(totals[level.whole], blocks[0].lower[:, 0]):
        raise FormatError(f"{path.name}: parts of one geounit have different joint totals.")
    return JointTotal(blocks[0].name, level.whole.astype(np.int32), totals)


@reads_file
def read_constraint_table(path: Path, product: Product, spine: Spine) -> ConstraintTable:
    """Read the constraints in the form that estimation takes."""
    blocks = {(block.geolevel, block.name): block for block in read_constraints(path)}
    names = tuple(bound.name for bound in product.bounds)
    levels = []
    for level in spine.levels:
        here = [block for block in blocks.values() if block.geolevel == level.name]
        if any(not np.array_equal(block.geocodes, level.geocodes) for block in here):
            raise FormatError(f"{path.name}: the geounits of {level.name!r} are not those of the spine.")
        for name in (*names, *(one.name for one in product.linear)):
            if (level.name, name) not in blocks:
                raise FormatError(f"{path.name}: constraint {name!r} is missing at {level.name!r}.")
        found = [blocks[level.name, name] for name in names]
        summed = [blocks[level.name, one.name] for one in product.linear]
        empty = np.zeros((len(level), 0), dtype=np.int64)
        levels.append(
            LevelConstraints(
                np.concatenate([empty, *(block.lower for block in found)], axis=1),
                np.concatenate([empty, *(block.upper for block in found)], axis=1),
                tuple(
                    InvariantAnswers(block.name, product.workload.group(block.query), block.lower)
                    for block in here
                    if block.kind == "invariant"
                ),
                _joint(path, level, [block for block in here if block.kind == "joint"]),
                linear=LinearSums(
                    tuple(one.name for one in product.linear),
                    np.array([product.coefficients(one) for one in product.linear]),
                    np.concatenate([block.upper for block in summed], axis=1),
                )
                if product.linear
                else None,
            )
        )
    table = ConstraintTable(names, bound_cells(product), product.possible, tuple(levels))
    if (prior := product.prior) is not None:
        query = product.workload.group(prior.query)
        counts = read_leaf_counts(path.with_name("prior.parquet"), query, spine, prior_metadata(product))
        table = table.with_prior(prior.name, query, counts)
    if (tie := product.tied) is None:
        return table
    return table.tied_to(
        tie.product,
        product.workload.group(tie.query),
        read_tie(path.with_name("tie.parquet"), product, spine),
        spine,
    )


def read_tie(path: Path, product: Product, spine: Spine) -> Histogram:
    """Read ``measurements/<product>/tie.parquet``: tied counts of every leaf, in the spine's order."""
    if product.tied is None:
        raise ValueError("the product is not tied")
    query = product.workload.group(product.tied.query)
    return read_leaf_counts(path, query, spine, tie_metadata(product))


@reads_file
def read_leaf_counts(
    path: Path, query: QueryGroup, spine: Spine, metadata: Mapping[str, object]
) -> Histogram:
    """Read public counts of every leaf, in the spine's order, over the rows of a query group."""
    if read_metadata(path) != metadata:
        raise FormatError(f"{path.name}: its metadata are not what the product declares.")
    table = open_parquet(path).read().combine_chunks()
    if not np.array_equal(to_bytes(table.column("geocode")), spine.leaf.geocodes):
        raise FormatError(f"{path.name}: the leaves are not those of the spine.")
    lengths = np.array(pc.list_value_length(table.column("row")), dtype=np.int64)
    rows, counts = (
        np.array(pc.list_flatten(table.column(name)), dtype=np.int64) for name in ("row", "count")
    )
    if len(rows) != len(counts) or (len(rows) and not 0 <= rows.min() <= rows.max() < query.size):
        raise FormatError(f"{path.name}: expected rows of {query.name!r}, each with a count.")
    geounits = np.repeat(np.arange(len(lengths)), lengths)
    return Histogram.from_entries(geounits, rows, counts, shape=(len(lengths), query.size))


_TEXT = pa.dictionary(pa.int32(), pa.string())
SPINE_SCHEMA = pa.schema(
    [
        ("geolevel", _TEXT),
        ("geocode", pa.string()),
        ("parent", pa.string()),
        ("share", _TEXT),
        ("whole", pa.int64()),
    ]
)
LEAF_COUNTS_SCHEMA = pa.schema(
    [("geocode", pa.string()), ("row", pa.list_(pa.int32())), ("count", pa.list_(pa.int64()))]
)
CONSTRAINT_SCHEMA = pa.schema(
    [
        ("geolevel", _TEXT),
        ("geocode", pa.string()),
        ("constraint", _TEXT),
        ("query", _TEXT),
        ("row", pa.int32()),
        ("lower", pa.list_(pa.int64())),
        ("upper", pa.list_(pa.int64())),
        ("kind", _TEXT),
    ]
)

GEOUNITS_PER_BATCH = 1 << 14


def frame_schema(frame: Frame) -> Any:
    """Return the Arrow schema of a frame's file."""
    codes = [f"level:{name}" for name in frame.levels] + [f"entity:{name}" for name in frame.entities]
    return pa.schema(
        [(name, pa.string()) for name in ("geocode", *codes)]
        + [(f"units:{name}", pa.int64()) for name in frame.units]
    )


def frame_metadata(frame: Frame, product: Product) -> dict[str, object]:
    """Return what a frame's file says of itself; functional statuses where the frame has them."""
    metadata: dict[str, object] = {
        "format": "opendas frame 1",
        "leaf": frame.leaf,
        "levels": list(frame.levels),
        "entities": list(frame.entities),
        "units": list(frame.units),
        "names": {kind: dict(names) for kind, names in frame.names.items()},
        "product": product_to_json(product),
    }
    if frame.functional_status:
        metadata["functional_status"] = {k: dict(codes) for k, codes in frame.functional_status.items()}
    return metadata


def write_frame(path: Path, frame: Frame, product: Product) -> None:
    """Write the leaves of a run, with official codes, entity codes and public unit counts.

    The product's declaration goes into the metadata, so that a release can be tabulated without its run
    file.

    `path`: ``geography/<product>.parquet``.
    """
    columns = {"geocode": bytes_column(frame.geocodes)}
    columns |= {f"level:{name}": bytes_column(codes) for name, codes in frame.levels.items()}
    columns |= {f"entity:{name}": bytes_column(codes) for name, codes in frame.entities.items()}
    columns |= {f"units:{name}": pa.array(counts) for name, counts in frame.units.items()}
    write_parquet(path, pa.table(columns), metadata=frame_metadata(frame, product))


def spine_metadata(spine: Spine) -> dict[str, object]:
    """Return what a spine's file says of itself."""
    return {
        "format": "opendas spine 1",
        "levels": list(spine.names),
        "widths": [level.geocodes.dtype.itemsize for level in spine.levels],
        "official": [level.official for level in spine.levels],
        "digest": spine.digest(),
    }


def write_spine(path: Path, spine: Spine) -> None:
    """Write the hierarchy that was measured, level by level from the top.

    - `path`: ``measurements/<product>/spine.parquet``.
    - `spine`: ``whole`` numbers the official geounits that parts belong to, where the spine divides them.
    """
    with parquet_sink(path, SPINE_SCHEMA, metadata=spine_metadata(spine)) as sink:
        for number, level in enumerate(spine.levels):
            parents = np.full(len(level), b"", dtype="S1")
            if number:
                parents = spine.levels[number - 1].geocodes[level.parent]
            multiples, which = spine.multiples(number)
            sink.write(
                pa.Table.from_arrays(
                    [
                        text_column(np.zeros(len(level), dtype=np.int32), [level.name]),
                        bytes_column(level.geocodes),
                        bytes_column(parents),
                        text_column(which.astype(np.int32), [str(multiple) for multiple in multiples]),
                        pa.nulls(len(level), pa.int64()) if level.whole is None else pa.array(level.whole),
                    ],
                    schema=SPINE_SCHEMA,
                )
            )


def constraint_metadata(product: Product, spine: Spine) -> dict[str, object]:
    """Return what a file of constraints says of itself."""
    return {
        "format": "opendas constraints 1",
        "bounds": [bound.name for bound in product.bounds],
        "invariants": [[i.query, i.geolevel] for i in product.invariants],
        "levels": list(spine.names),
        **({"constraints": [one.name for one in product.linear]} if product.linear else {}),
    }


def tie_metadata(product: Product) -> dict[str, object]:
    """Return what a file of tied counts says of itself."""
    return {"format": "opendas tie 1", **({} if product.tied is None else product.tied.to_dict())}


def prior_metadata(product: Product) -> dict[str, object]:
    """Return what a file of a prior table says of itself."""
    return {"format": "opendas prior 1", **({} if product.prior is None else product.prior.to_dict())}


def _write_leaf_counts(
    path: Path, spine: Spine, counts: PublicCounts, metadata: Mapping[str, object]
) -> None:
    """Write the public counts of every leaf; those of all other geounits are their sums."""
    starts = pa.array(counts.starts.astype(np.int32))
    columns = [
        bytes_column(spine.leaf.geocodes),
        pa.ListArray.from_arrays(starts, pa.array(counts.rows)),
        pa.ListArray.from_arrays(starts, pa.array(counts.counts)),
    ]
    write_parquet(path, pa.Table.from_arrays(columns, schema=LEAF_COUNTS_SCHEMA), metadata=metadata)


def write_constraints(path: Path, product: Product, spine: Spine, table: ConstraintTable) -> None:
    """Write the bounds and invariant answers of every geounit; beside them what is tied, and a prior table.

    A total that parts of a geounit hold together has the kind ``joint``, and stands at each of the parts. A
    linear constraint has the kind ``linear``, and no least value: its list is empty.

    - `path`: ``measurements/<product>/constraints.parquet``.
    - `product`: as estimated: without dropped invariants.
    """
    if table.bound_names != tuple(bound.name for bound in product.bounds):
        raise ConfigError("the constraints are not those of the product.")
    leaves = table.levels[-1]
    if leaves.tied is not None:
        _write_leaf_counts(path.with_name("tie.parquet"), spine, leaves.tied, tie_metadata(product))
    if leaves.prior is not None:
        _write_leaf_counts(path.with_name("prior.parquet"), spine, leaves.prior, prior_metadata(product))
    with parquet_sink(path, CONSTRAINT_SCHEMA, metadata=constraint_metadata(product, spine)) as sink:
        for level, constraints in zip(spine.levels, table.levels, strict=True):
            for start in range(0, len(level), GEOUNITS_PER_BATCH):
                stop = min(start + GEOUNITS_PER_BATCH, len(level))
                part = replace(constraints, joint=None).slice(start, stop)
                if len(product.bounds) + len(part.invariants):
                    sink.write(_rows_of_level(product, level.name, level.geocodes[start:stop], part))
            if (joint := constraints.joint) is not None:
                totals = joint.totals[joint.group].astype(np.int64)
                query = joint.name.partition("@")[0]
                names = (level.name, joint.name, query, "joint")
                sink.write(_rows_of_one(names, level.geocodes, totals, totals))
            linear = () if constraints.linear is None else constraints.linear.at_most.T
            for one, at_most in zip(product.linear, linear, strict=True):
                names = (level.name, one.name, one.query, "linear")
                sink.write(_rows_of_one(names, level.geocodes, None, at_most.copy()))


def _rows_of_one(
    names: tuple[str, str, str, str], geocodes: Codes, lower: Ints | None, upper: Ints
) -> pa.Table:
    """Return one row per geounit of one constraint.

    - `names`: geolevel, constraint, query and kind.
    - `lower` (g,): None for no least value.
    """
    geolevel, constraint, query, kind = names
    g = len(geocodes)
    each, none = np.arange(g + 1, dtype=np.int32), np.zeros(g, dtype=np.int32)
    least = pa.array(np.zeros(g + 1, dtype=np.int32)) if lower is None else pa.array(each)
    return pa.Table.from_arrays(
        [
            text_column(none, [geolevel]),
            bytes_column(geocodes),
            text_column(none, [constraint]),
            text_column(none, [query]),
            pa.array(np.full(g, -1, dtype=np.int32)),
            pa.ListArray.from_arrays(least, pa.array(np.zeros(0, np.int64) if lower is None else lower)),
            pa.ListArray.from_arrays(pa.array(each), pa.array(upper)),
            text_column(none, [kind]),
        ],
        schema=CONSTRAINT_SCHEMA,
    )


def _rows_of_level(product: Product, geolevel: str, geocodes: Codes, part: LevelConstraints) -> pa.Table:
    """Return one row per (geounit, constraint), geounit by geounit."""
    g, bounds = len(geocodes), len(product.bounds)
    width = bounds + len(part.invariants)
    names = [bound.name for bound in product.bounds] + [held.name for held in part.invariants]
    queries = [product.workload.canonical(bound.query) for bound in product.bounds]
    queries += [held.query.name for held in part.invariants]
    rows = [product.bound_row(bound) for bound in product.bounds] + [-1] * len(part.invariants)
    kinds = [0] * bounds + [1] * len(part.invariants)
    sizes = np.tile([1] * bounds + [held.query.size for held in part.invariants], g)
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
    answers = [held.answers for held in part.invariants]
    lower = np.concatenate([part.lower, *answers], axis=1).ravel()
    upper = np.concatenate([part.upper, *answers], axis=1).ravel()
    distinct = sorted(set(queries))
    return pa.Table.from_arrays(
        [
            text_column(np.zeros(g * width, dtype=np.int32), [geolevel]),
            bytes_column(np.repeat(geocodes, width)),
            text_column(np.tile(np.arange(width, dtype=np.int32), g), names),
            text_column(np.tile([distinct.index(query) for query in queries], g), distinct),
            pa.array(np.tile(np.array(rows, dtype=np.int32), g)),
            pa.ListArray.from_arrays(offsets, pa.array(lower.astype(np.int64))),
            pa.ListArray.from_arrays(offsets, pa.array(upper.astype(np.int64))),
            text_column(np.tile(kinds, g), ["bound", "invariant"]),
        ],
        schema=CONSTRAINT_SCHEMA,
    )
