"""Time both stages of the households of the DHC on made families: least squares and rounding of each.

    python benchmarks/units_stages.py --shapes root county-prim ts-bg bg-block

The attributes have the sizes of the DHC and its recodes are made, with as many levels; so are the households.
Noise is that of the geolevel. Times are processor times of one thread, compilation excluded.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from opendas.solvers.least_squares.solve import solve
from opendas.solvers.problem.problem import FamilyProblem
from opendas.solvers.rounding.rounding import round_family

SIZES = {"sex": 2, "hhage": 9, "hisp": 2, "race": 7, "elderly": 4, "ten3": 3, "hhtype": 522}
RECODES = {
    "ten2": ("ten3", 2),
    "dct": ("hhtype", 183),
    "partner": ("dct", 12),
    "couple": ("dct", 5),
    "multig": ("dct", 2),
}
FIRST = {
    "multig hisp ten2": 0, "hisp ten2": 1, "hisp ten2 race": 1, "partner sex ten2": 0, "couple hisp ten2": 0,
    "sex hisp ten3 race dct": 2,
}  # fmt: skip
SECOND = {"sex hisp ten3 race hhage dct": 2, "ten3 hhage dct": 1, "detailed": 3}
SHAPES = {
    "root": (462_000, 1, (0.0792, 0.0212, 0.0257, 0.1049)),
    "state-county": (462_000, 5, (0.1972, 0.0266, 0.1380, 0.1380)),
    "county-prim": (200_000, 8, (0.0973, 0.0214, 0.0973, 0.0973)),
    "ts-bg": (4_000, 4, (0.0581, 0.0078, 0.0407, 0.0407)),
    "bg-block": (400, 18, (0.0022, 0.0003, 0.0015, 0.0015)),
}  # fmt: skip
"""Households, children, and the rho of four kinds of query groups at the geolevel of the children."""


def codes(seed: int) -> dict[str, np.ndarray]:
    """Level of every possible cell in each attribute and recode; three cells in ten are not possible."""
    place = np.indices(tuple(SIZES.values()), np.int16).reshape(len(SIZES), -1)
    level = dict(zip(SIZES, place, strict=True))
    rng = np.random.default_rng(seed)
    possible = rng.uniform(size=(9, 4, 522)) < 0.7
    keep = possible[level["hhage"], level["elderly"], level["hhtype"]]
    level = {name: values[keep].astype(np.int32) for name, values in level.items()}
    for name, (base, count) in RECODES.items():
        size = SIZES.get(base) or RECODES[base][1]
        level[name] = level[base] * count // size
    return level


def rows(level: dict[str, np.ndarray], name: str, cells: np.ndarray) -> np.ndarray:
    """Row of each cell in the query group of some attributes, without gaps."""
    if name == "detailed":
        return np.arange(len(cells), dtype=np.int32)
    key = np.zeros(len(cells), np.int64)
    for part in name.split():
        key = key * 600 + level[part][cells]
    return np.unique(key, return_inverse=True)[1].astype(np.int32)


def households(level: dict[str, np.ndarray], people: int, children: int, seed: int) -> np.ndarray:
    """Counts of the children, int64 (C, n): skewed margins, and pairs of attributes that go together."""
    rng = np.random.default_rng(seed)
    price = sum(rng.gumbel(size=int(level[name].max()) + 1)[level[name]] * 0.6 for name in SIZES)
    for one, other in (("hhage", "elderly"), ("elderly", "hhtype"), ("hisp", "race")):
        pair = rng.gumbel(size=(int(level[one].max()) + 1, int(level[other].max()) + 1))
        price = price + 0.6 * pair[level[one], level[other]]
    share = np.exp(price - price.max())
    whole = rng.multinomial(people, share / share.sum())
    table = np.zeros((children, len(whole)), np.int64)
    portions = rng.dirichlet(np.full(children, 2.0))
    for c in range(children):
        table[c] = rng.binomial(whole, min(1.0, portions[c] / max(1e-12, portions[c:].sum())))
        whole = whole - table[c]
    table[-1] += whole
    return table


def problem(queries, rho, level, cells, truth, parent, fixed_rows, fixed, rng) -> FamilyProblem:
    """State the least squares of a stage, with rounded noise."""
    terms, linear = [], np.zeros(truth.shape)
    for name, kind in queries.items():
        row = rows(level, name, cells)
        terms.append((rho[kind], row))
        for c in range(len(truth)):
            counts = np.bincount(row, truth[c])
            linear[c] += rho[kind] * (counts + np.round(rng.normal(0.0, rho[kind] ** -0.5, len(counts))))[row]
    return FamilyProblem(tuple(terms), linear, parent=parent, fixed_rows=fixed_rows, fixed=fixed)


def sums(row: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Add a table over the cells of each row."""
    return np.stack([np.bincount(row, one, int(row.max()) + 1) for one in table]).astype(np.int64)


class Clock:
    """Processor seconds since the last look."""

    def __init__(self) -> None:
        self.last = time.process_time()

    def __call__(self) -> str:
        now = time.process_time()
        text, self.last = f"{now - self.last:.2f}", now
        return text


def stages(people: int, children: int, rho: tuple[float, ...], seed: int = 0) -> list[str]:
    """Run both stages of a made family; returns what each took."""
    rng = np.random.default_rng(seed)
    level = codes(seed)
    table = households(level, people, children, seed)
    whole = table.sum(axis=0)
    support = np.arange(len(whole)) if children == 1 else np.flatnonzero(whole)
    table, whole = table[:, support], whole[support]
    key = rows(level, "sex hisp ten3 race dct", support)
    first = np.unique(key, return_index=True)[1]
    merged, sizes = support[first], sums(key, table)
    ten3 = rows(level, "ten3", merged)
    keys = np.arange(children, dtype=np.uint64)
    parent = None if children == 1 else sums(key, whole[None])[0]
    shown = []
    fixed = sums(ten3, sizes)
    one = problem(FIRST, rho, level, merged, sizes, parent, ten3, fixed, rng)
    clock = Clock()
    found = solve(one)
    shown.append(f"1: {one.cells} cells, {found.method} {found.iterations} {found.residual:.0e} {clock()} s")
    passes = ((rows(level, "ten3 dct", merged),), (rows(level, "detailed", merged),))
    x = found.x if parent is None else found.x * (parent / found.x.sum(axis=0))
    counts = round_family(
        x, parent, one.mask, passes, None, None, None, keys, cell_keys=merged.astype(np.uint64),
        fixed_rows=ten3, fixed=fixed,
    ).values  # fmt: skip
    shown.append(f"rounded {clock()} s")
    shared = np.bincount(key)[key] > 1 if children > 1 else (np.bincount(key) > 1)[key] & (counts[0] > 0)[key]
    held, left = np.unique(key[shared], return_inverse=True)
    left = left.astype(np.int32)
    parent = None if children == 1 else whole[shared]
    two = problem(SECOND, rho, level, support[shared], table[:, shared], parent, left, counts[:, held], rng)
    clock()
    found = solve(two)
    shown.append(
        f"2: {two.cells} cells, {len(held)} rows, {found.method} {found.iterations} {found.residual:.0e} {clock()} s"
    )
    x = found.x if parent is None else found.x * (parent / found.x.sum(axis=0))
    each = np.arange(two.cells, dtype=np.int32)
    round_family(
        x, parent, two.mask, ((each,),), None, None, None, keys, cell_keys=support[shared].astype(np.uint64),
        fixed_rows=left, fixed=counts[:, held],
    )  # fmt: skip
    shown.append(f"rounded {clock()} s")
    return shown


def main() -> None:
    """Print a line for each shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    options = parser.parse_args()
    stages(100, 2, SHAPES["bg-block"][2])
    stages(100, 1, SHAPES["bg-block"][2])
    for name in options.shapes:
        people, children, rho = SHAPES[name]
        print(f"{name}: {people} x {children};", "; ".join(stages(people, children, rho)), flush=True)
        print(f"  peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
