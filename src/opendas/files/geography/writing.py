"""Writing the public geography of a release: frame, spine and constraints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opendas.constraints.table import ConstraintTable, JointTotal, LevelConstraints
from opendas.errors import ConfigError
from opendas.files.parquet import bytes_column, parquet_sink, text_column, write_parquet
from opendas.files.product_json import product_to_json
from opendas.geography.frame import Frame
from opendas.geography.spine import Spine
from opendas.schema.product import Product

__all__ = ["write_constraints", "write_frame", "write_spine"]

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


def write_frame(path: Path, frame: Frame, product: Product) -> None:
    """Write the leaves of a run, with official codes, entity codes and public unit counts.

    The product's declaration goes into the metadata, so that a release can be tabulated without its run
    file.

    Parameters
    ----------
    path : Path
        ``geography/<product>.parquet``.
    frame : Frame
    product : Product
    """
    columns = {"geocode": bytes_column(frame.geocodes)}
    columns |= {f"level:{name}": bytes_column(codes) for name, codes in frame.levels.items()}
    columns |= {f"entity:{name}": bytes_column(codes) for name, codes in frame.entities.items()}
    columns |= {f"units:{name}": pa.array(counts) for name, counts in frame.units.items()}
    metadata = {
        "format": "opendas frame 1",
        "leaf": frame.leaf,
        "levels": list(frame.levels),
        "entities": list(frame.entities),
        "units": list(frame.units),
        "names": {kind: dict(names) for kind, names in frame.names.items()},
        "product": product_to_json(product),
    }
    write_parquet(path, pa.table(columns), metadata=metadata)


def write_spine(path: Path, spine: Spine) -> None:
    """Write the hierarchy that was measured, level by level from the top.

    Parameters
    ----------
    path : Path
        ``measurements/<product>/spine.parquet``.
    spine : Spine
        ``whole`` numbers the official geounits that parts belong to, where the spine divides them.
    """
    metadata = {
        "format": "opendas spine 1",
        "levels": list(spine.names),
        "widths": [level.geocodes.dtype.itemsize for level in spine.levels],
        "official": [level.official for level in spine.levels],
        "digest": spine.digest(),
    }
    with parquet_sink(path, SPINE_SCHEMA, metadata=metadata) as sink:
        for number, level in enumerate(spine.levels):
            parents = np.full(len(level), b"", dtype="S1")
            if number:
                parents = spine.levels[number - 1].geocodes[level.parent]
            shares = spine.shares[number]
            distinct = ["1"] if shares is None else [str(multiple) for multiple in shares.multiples]
            which = np.zeros(len(level), dtype=np.int64) if shares is None else shares.which
            sink.write(
                pa.Table.from_arrays(
                    [
                        text_column(np.zeros(len(level), dtype=np.int32), [level.name]),
                        bytes_column(level.geocodes),
                        bytes_column(parents),
                        text_column(which.astype(np.int32), distinct),
                        pa.nulls(len(level), pa.int64()) if level.whole is None else pa.array(level.whole),
                    ],
                    schema=SPINE_SCHEMA,
                )
            )


def write_constraints(path: Path, product: Product, spine: Spine, table: ConstraintTable) -> None:
    """Write the bounds and invariant answers of every geounit.

    A total that parts of a geounit hold together has the kind ``joint``, and stands at each of the parts.

    Parameters
    ----------
    path : Path
        ``measurements/<product>/constraints.parquet``.
    product : Product
        As estimated: without dropped invariants.
    spine : Spine
    table : ConstraintTable
    """
    if table.bound_names != tuple(bound.name for bound in product.bounds):
        raise ConfigError("the constraints are not those of the product.")
    metadata = {
        "format": "opendas constraints 1",
        "bounds": list(table.bound_names),
        "invariants": [[i.query, i.geolevel] for i in product.invariants],
        "levels": list(spine.names),
    }
    with parquet_sink(path, CONSTRAINT_SCHEMA, metadata=metadata) as sink:
        for level, constraints in zip(spine.levels, table.levels, strict=True):
            for start in range(0, len(level), GEOUNITS_PER_BATCH):
                stop = min(start + GEOUNITS_PER_BATCH, len(level))
                part = replace(constraints, joint=None).slice(start, stop)
                if len(product.bounds) + len(part.invariants):
                    sink.write(_constraint_rows(product, level.name, level.geocodes[start:stop], part))
            if constraints.joint is not None:
                sink.write(_joint_rows(level.name, level.geocodes, constraints.joint))


def _joint_rows(geolevel: str, geocodes: npt.NDArray[np.bytes_], joint: JointTotal) -> pa.Table:
    """Return one row per part: the total that it holds together with the other parts of its geounit."""
    g = len(geocodes)
    query = joint.name.partition("@")[0]
    totals = joint.totals[joint.group].astype(np.int64)
    offsets = pa.array(np.arange(g + 1, dtype=np.int32))
    none = np.zeros(g, dtype=np.int32)
    return pa.Table.from_arrays(
        [
            text_column(none, [geolevel]),
            bytes_column(geocodes),
            text_column(none, [joint.name]),
            text_column(none, [query]),
            pa.array(np.full(g, -1, dtype=np.int32)),
            pa.ListArray.from_arrays(offsets, pa.array(totals)),
            pa.ListArray.from_arrays(offsets, pa.array(totals)),
            text_column(none, ["joint"]),
        ],
        schema=CONSTRAINT_SCHEMA,
    )


def _constraint_rows(
    product: Product, geolevel: str, geocodes: npt.NDArray[np.bytes_], part: LevelConstraints
) -> pa.Table:
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
