"""Tables of areas that someone drew: the districts of a plan, or of many plans.

Axes: ``a`` areas, ``t`` columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from opendas.arrays import Floats, Ints
from opendas.errors import ConfigError
from opendas.files.area_files import AreaWeights, Blocks, read_area_file, read_plans
from opendas.files.release_folder import ReleasedProduct, ReleaseFolder
from opendas.files.storage.parquet import write_batches
from opendas.tables.cells import Table, check_held, find_table, product_table
from opendas.tables.counting import count_table
from opendas.tables.interval_tables import DEFAULT_CONFIDENCE
from opendas.tables.replicate_margins import Replicated, number_of_replicates, table_margins
from opendas.tables.tabulate import stamped, variables_of, write_cells


def write_plans(
    path: Path,
    tables: Sequence[str],
    blocks: Path,
    *,
    many: bool = False,
    fmt: str = "parquet",
    allow_derived: bool = False,
    to: Path,
) -> Path:
    """Write counts of the areas of a plan, or of many, into one file in long form, and return its path.

    Columns are ``plan`` (with many), ``geocode`` (the area), ``variable``, ``label``, ``value`` and
    ``margin``: that of the count, where the release has replicates and there is one plan. A value is a whole
    number unless blocks count in part.

    - `path`: output folder, or ``release/`` in it.
    - `blocks`: as for :func:`~opendas.files.area_files.read_area_file`; with `many`, as for
      :func:`~opendas.files.area_files.read_plans`.
    - `fmt`, ``"parquet"`` or ``"csv"``.
    - `allow_derived`: as in :func:`~opendas.tables.tabulate.table_request`.
    - `to`: folder outside of the release: a plan is no part of it.

    Raises `ConfigError` if a table is unknown or needs what the input lacks; `DataError` if the file of
    blocks is refused.
    """
    if fmt not in ("parquet", "csv"):
        raise ConfigError(f"unknown format {fmt!r} of a table of areas; the choices are parquet and csv.")
    release = ReleaseFolder(path)
    asked: list[tuple[ReleasedProduct, Table]] = []
    for name in tables:
        released, query, _ = find_table(release, name)
        table = product_table(released.product, query)
        if not allow_derived:
            check_held(released.reader, released.product, table)
        asked.append((released, table))
    if len({released.frame.geocodes.tobytes() for released, _ in asked}) > 1:
        raise ConfigError(
            f"{', '.join(tables)} are of products with different frames; write them one at a time."
        )
    first = asked[0][0]
    known = Blocks(first.frame, first.official)
    plans = read_plans(blocks, known) if many else [("", read_area_file(blocks, known))]
    stamps = tuple(dict.fromkeys(stamp for released, _ in asked for stamp in released.stamps))
    batches = (stamped(batch, stamps if fmt == "csv" else ()) for batch in _batches(asked, plans, many=many))
    file = to / f"{blocks.stem}.{fmt}"
    if fmt == "csv":
        write_cells(file, batches)
    else:
        metadata = {"format": "opendas table of areas 1", "stamps": list(stamps)}
        write_batches(file, batches, metadata=metadata)
    return file


def _batches(
    asked: Sequence[tuple[ReleasedProduct, Table]], plans: Iterable[tuple[str, AreaWeights]], *, many: bool
) -> Iterator[pa.Table]:
    """Yield a batch for each plan; counts of the leaves are made once for all of them."""
    leaves = [
        count_table(released.estimate, table, released.frame.grouping(released.frame.leaf))
        for released, table in asked
    ]
    for plan, areas in plans:
        whole = bool(np.all(areas.weight == np.round(areas.weight)))
        if many and not whole:
            raise ConfigError(f"plan {plan}: a block counts in part, and a plan must have whole blocks.")
        parts = []
        for (released, table), counts in zip(asked, leaves, strict=True):
            values: Floats | Ints = _summed(counts, areas)
            values = values.astype(np.int64) if whole else values
            margin = None
            if not many and number_of_replicates(released):
                found = table_margins(Replicated.of(released), table, areas, DEFAULT_CONFIDENCE)
                margin = found.margin
            parts.append(_long_table(plan if many else None, areas.names, released, table, values, margin))
        yield pa.concat_tables(parts)


def _summed(counts: Ints, areas: AreaWeights) -> Floats:
    """Return the weighted sums of the leaves of each area, float64 (a, t)."""
    columns = [
        np.bincount(areas.which, areas.weight * counts[areas.leaf, column], len(areas.names))
        for column in range(counts.shape[1])
    ]
    return np.stack(columns, axis=1)


def _long_table(
    plan: str | None,
    names: Sequence[str],
    released: ReleasedProduct,
    table: Table,
    values: Floats | Ints,
    margin: Floats | None,
) -> pa.Table:
    a, t = values.shape
    area, cell = pa.array(np.repeat(np.arange(a), t)), pa.array(np.tile(np.arange(t), a))
    columns = {
        "geocode": pa.array(names, pa.string()).take(area),
        "variable": pa.array(variables_of(released, table), pa.string()).take(cell),
        "label": pa.array(table.labels, pa.string()).take(cell),
        "value": pa.array(values.ravel()),
        "margin": pa.nulls(a * t, pa.float64()) if margin is None else pa.array(margin.ravel()),
    }
    if plan is not None:
        columns = {"plan": pa.array([plan] * (a * t), pa.string())} | columns
    return pa.table(columns)
