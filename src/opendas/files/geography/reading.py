"""Reading the public geography of a release back: frame, spine and constraints.

Axes: ``g`` geounits of a geolevel in spine order, ``m`` rows of a query group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from opendas.constraints.table import ConstraintTable, InvariantAnswers, JointTotal, LevelConstraints
from opendas.errors import FormatError, GeographyError
from opendas.files.parquet import open_parquet, read_metadata, reading, to_bytes
from opendas.files.product_json import product_from_json
from opendas.geography.frame import Frame
from opendas.geography.spine import Shares, Spine, SpineLevel
from opendas.schema.product import Product

__all__ = [
    "ConstraintRows",
    "read_constraint_table",
    "read_constraints",
    "read_frame",
    "read_product",
    "read_spine",
]


_ROWS_AT_ONCE = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class ConstraintRows:
    """One constraint at one geolevel.

    Parameters
    ----------
    geolevel, name : str
    query : str
    kind : ``"bound"``, ``"invariant"`` or ``"joint"``
    row : int
        Row of the query group, -1 for all of them.
    geocodes : bytes array (g,)
    lower, upper : int64 (g, 1) or (g, m)
    """

    geolevel: str
    name: str
    query: str
    kind: str
    row: int
    geocodes: npt.NDArray[np.bytes_]
    lower: npt.NDArray[np.int64]
    upper: npt.NDArray[np.int64]


def _metadata(path: Path, form: str) -> dict[str, Any]:
    metadata = read_metadata(path)
    if metadata.get("format") != form:
        raise FormatError(f"{path.name}: format {metadata.get('format')!r}, expected {form!r}.")
    return metadata


def read_product(path: Path) -> Product:
    """Return the product whose frame is in `path`."""
    with reading(path):
        return product_from_json(_metadata(path, "opendas frame 1")["product"])


def read_frame(path: Path) -> Frame:
    """Read ``geography/<product>.parquet``.

    Raises
    ------
    FormatError
        If the file or a column is missing.
    GeographyError
        If its leaves are not in order.
    """
    with reading(path):
        return _frame(path)


def _frame(path: Path) -> Frame:
    metadata = _metadata(path, "opendas frame 1")
    table = open_parquet(path).read()
    wanted = [f"level:{name}" for name in metadata["levels"]]
    wanted += [f"entity:{name}" for name in metadata["entities"]]
    wanted += [f"units:{name}" for name in metadata["units"]]
    if table.column_names != ["geocode", *wanted]:
        raise FormatError(
            f"{path.name}: columns {', '.join(table.column_names)}; expected {', '.join(wanted)}."
        )
    return Frame(
        to_bytes(table.column("geocode")),
        {name: to_bytes(table.column(f"level:{name}")) for name in metadata["levels"]},
        str(metadata["leaf"]),
        {
            name: np.array(table.column(f"units:{name}").to_numpy(), dtype=np.int64)
            for name in metadata["units"]
        },
        {name: to_bytes(table.column(f"entity:{name}")) for name in metadata["entities"]},
        metadata["names"],
    )


def _positions(
    codes: npt.NDArray[np.bytes_], wanted: npt.NDArray[np.bytes_], what: str
) -> npt.NDArray[np.int64]:
    """Return the position in `codes` of each of `wanted`."""
    order = np.argsort(codes, kind="stable")
    place = np.minimum(np.searchsorted(codes, wanted, sorter=order), len(codes) - 1)
    found = order[place]
    if bool(np.any(codes[found] != wanted)):
        raise GeographyError(f"{what} is not in its list.")
    return found.astype(np.int64)


def read_spine(path: Path, frame: Frame) -> Spine:
    """Read ``measurements/<product>/spine.parquet``.

    Raises
    ------
    GeographyError
        If a parent is missing above, or the leaves are not those of `frame`.
    """
    with reading(path):
        return _spine(path, frame)


def _spine(path: Path, frame: Frame) -> Spine:
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
            parent = _positions(levels[-1].geocodes, above, f"geolevel {name!r}: the parent of a geounit")
        divided = part.column("whole").null_count == 0
        whole = np.array(part.column("whole"), dtype=np.int64) if divided else None
        levels.append(SpineLevel(name, codes, parent, official, whole))
        encoded = part.column("share").combine_chunks()
        texts = encoded.dictionary.to_pylist()
        which = np.array(encoded.indices, dtype=np.int64)
        shares.append(Shares.of([Fraction(text) for text in texts], which))
    leaf_order = _positions(frame.geocodes, levels[-1].geocodes, "a leaf of the spine")
    if len(np.unique(leaf_order)) != len(frame):
        raise GeographyError("the spine and the frame have different leaves.")
    return Spine(tuple(levels), leaf_order, tuple(shares))


def read_constraints(path: Path) -> tuple[ConstraintRows, ...]:
    """Read ``measurements/<product>/constraints.parquet``, one block per geolevel and constraint."""
    with reading(path):
        return _constraint_rows(path)


def _constraint_rows(path: Path) -> tuple[ConstraintRows, ...]:
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
    return ConstraintRows(
        geolevel,
        name,
        _single(part, "query", path),
        _single(part, "kind", path),
        int(_single(part, "row", path)),
        to_bytes(part.column("geocode")),
        *(_matrix(part.column(side), path) for side in ("lower", "upper")),
    )


def _joined(parts: list[ConstraintRows], path: Path) -> ConstraintRows:
    first = parts[0]
    if any((part.query, part.kind, part.row) != (first.query, first.kind, first.row) for part in parts):
        raise FormatError(f"{path.name}: constraint {first.name!r} is not one at {first.geolevel!r}.")
    if any(part.lower.shape[1:] != first.lower.shape[1:] for part in parts):
        raise FormatError(f"{path.name}: a constraint with lists of several lengths.")
    return replace(
        first,
        geocodes=np.concatenate([part.geocodes for part in parts]),
        lower=np.concatenate([part.lower for part in parts]),
        upper=np.concatenate([part.upper for part in parts]),
    )


def _single(part: Any, column: str, path: Path) -> Any:
    found = part.column(column).unique().to_pylist()
    if len(found) != 1:
        raise FormatError(f"{path.name}: one constraint with several entries in {column!r}.")
    return found[0]


def _matrix(column: Any, path: Path) -> npt.NDArray[np.int64]:
    lengths = pc.list_value_length(column).unique().to_pylist()
    if len(lengths) != 1 or lengths[0] is None:
        raise FormatError(f"{path.name}: a constraint with lists of several lengths.")
    flat = np.array(pc.list_flatten(column), dtype=np.int64)
    return flat.reshape(len(column), lengths[0])


def _joint(path: Path, level: SpineLevel, blocks: list[ConstraintRows]) -> JointTotal | None:
    if not blocks:
        return None
    if level.whole is None or len(blocks) > 1:
        raise FormatError(f"{path.name}: joint totals at {level.name!r}, whose geounits are not divided.")
    totals = blocks[0].lower[np.flatnonzero(np.diff(level.whole, prepend=-1)), 0]
    if not np.array_equal(totals[level.whole], blocks[0].lower[:, 0]):
        raise FormatError(f"{path.name}: parts of one geounit with other joint totals.")
    return JointTotal(blocks[0].name, level.whole.astype(np.int32), totals)


def read_constraint_table(path: Path, product: Product, spine: Spine) -> ConstraintTable:
    """Read the constraints in the form that estimation takes.

    Raises
    ------
    FormatError
        If a constraint of the product or a geounit of the spine is missing.
    """
    with reading(path):
        return _constraint_table(path, product, spine)


def _constraint_table(path: Path, product: Product, spine: Spine) -> ConstraintTable:
    blocks = {(block.geolevel, block.name): block for block in read_constraints(path)}
    names = tuple(bound.name for bound in product.bounds)
    cells = np.zeros((len(names), product.schema.size), dtype=bool)
    for k, bound in enumerate(product.bounds):
        cells[k] = product.workload.group(bound.query).row_of_cell == product.bound_row(bound)
    levels = []
    for level in spine.levels:
        here = [block for block in blocks.values() if block.geolevel == level.name]
        if any(not np.array_equal(block.geocodes, level.geocodes) for block in here):
            raise FormatError(f"{path.name}: the geounits of {level.name!r} are not those of the spine.")
        bounds = [blocks.get((level.name, name)) for name in names]
        found = [block for block in bounds if block is not None]
        if len(found) != len(names):
            raise FormatError(f"{path.name}: a bound is missing at geolevel {level.name!r}.")
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
            )
        )
    return ConstraintTable(names, cells, product.possible, tuple(levels))
