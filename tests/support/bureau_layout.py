"""Writes noisy measurement files in the Bureau's public layout, from measurements read in ours.

Only formats are theirs: the geocodes are made of a leading digit and the official ones, so that each begins
with its parent's and a block's ends with its sixteen characters.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from opendas.intervals.noisy_tree import NoisyTree

FOLDERS = {
    "us": "US",
    "state": "State",
    "county": "County",
    "tract": "Tract",
    "block_group": "Block_Group",
    "block": "Block",
}


def bureau_geocode(code: bytes, geolevel: str) -> str:
    """Return the code of an official geounit in a hierarchy of codes."""
    text = code.decode()
    if geolevel == "us":
        return "0"
    return "0" + (text[:12] + text[11:] if geolevel == "block" else text)


def query_shape(tree: NoisyTree, query) -> list[int]:
    positions = tree.product.workload.positions
    shape = [1] * len(tree.product.schema.shape)
    for factor, size in zip(query.factors, query.shape, strict=True):
        shape[positions[factor]] = size
    return shape


def measurement_rows(tree: NoisyTree, level: int) -> dict[str, list]:
    noisy, here = tree.levels[level], tree.spine.levels[level]
    rows = {"geocode": [], "query_name": [], "query_shape": [], "value": [], "variance": []}
    answers = tree.full(level, 0, len(here))
    for i, code in enumerate(here.geocodes):
        for k, query in enumerate(noisy.queries):
            law = noisy.laws[int(noisy.which[i])][k]
            if law is None:
                continue
            rows["geocode"].append(bureau_geocode(bytes(code), here.name))
            rows["query_name"].append(f"{query.name}_dpq")
            rows["query_shape"].append(query_shape(tree, query))
            rows["value"].append(answers[k][i].tolist())
            rows["variance"].append(float(law.variance))
    return rows


def constraint_rows(tree: NoisyTree, level: int) -> dict[str, list]:
    here, table = tree.spine.levels[level], tree.constraints.levels[level]
    rows = {"geocode": [], "query_name": [], "sign": [], "query_shape": [], "value": []}
    one = [1] * len(tree.product.schema.shape)

    def add(code: bytes, name: str, sign: str, shape: list[int], values: list[int]) -> None:
        rows["geocode"].append(bureau_geocode(code, here.name))
        rows["query_name"].append(name)
        rows["sign"].append(sign)
        rows["query_shape"].append(shape)
        rows["value"].append(values)

    for i, code in enumerate(here.geocodes):
        for held in table.invariants:
            add(bytes(code), "total_con", "=", one, held.answers[i].tolist())
        if tree.product.bounds:
            eight = [8, *one[1:]]
            add(bytes(code), "hhgq_total_lb_con", ">=", eight, table.lower[i].tolist())
            add(bytes(code), "hhgq_total_ub_con", "<=", eight, np.minimum(table.upper[i], 1 << 40).tolist())
            add(bytes(code), "nurse_nva_0_con", "=", one, [0])
    return rows


def write_rows(folder: Path, rows: dict[str, list], *, row_group: int = 7) -> None:
    """Write one file a state, in no particular order, as a cluster would."""
    schema = {"query_shape": pa.list_(pa.int32()), "value": pa.list_(pa.int64())}
    table = pa.table(
        {name: pa.array(values, type=schema.get(name)) for name, values in rows.items()}
        | ({"variance": pa.array(rows["variance"], pa.float32())} if "variance" in rows else {})
    )
    table = table.take(np.random.default_rng(1).permutation(len(table)))
    state = "State=" + (rows["geocode"][0][:3] if rows["geocode"] else "none")
    (folder / state).mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / state / "part-00000-made.snappy.parquet", row_group_size=row_group)


def write_bureau(folder: Path, tree: NoisyTree) -> Path:
    """Write every geolevel of a tree on the standard spine; returns the folder."""
    for number, level in enumerate(tree.spine.levels):
        base = folder / f"{FOLDERS[level.name]}.parquet"
        if tree.levels[number].queries:
            write_rows(base / "DPQuery", measurement_rows(tree, number))
        write_rows(base / "Constraint", constraint_rows(tree, number))
    return folder
