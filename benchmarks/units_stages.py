"""Time whole families of the households of the DHC: both stages, least squares and rounding, and all checks.

    python benchmarks/units_stages.py --shapes root state-county county-prim ts-bg bg-block

Schema, zeros, recodes and stages are those of the product; households are made, with skewed margins and pairs
of attributes that go together; noise is that of the geolevel of the children. Parents are the sums of their
children. Times are processor times of one thread, compilation excluded.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from opendas.constraints.table import LevelConstraints, PublicCounts
from opendas.measurement.family import FamilyMeasurement, QueryAnswers
from opendas.schema.dhc_units import dhc_units
from opendas.schema.product import Passes
from opendas.topdown.family import estimate_family
from opendas.topdown.family_data import LevelRules
from opendas.topdown.model import Family, StageRules

PRODUCT = dhc_units()
TENURE = PRODUCT.workload.group("hhtenshort_3lev")
SHAPES = {
    "root": (462_000, 1, (0.0792, 0.0212, 0.0212, 0.0792, 0.0792, 0.0257, 0.0257, 0.0212, 0.1049)),
    "state": (462_000, 1, (0.0714, 0.0193, 0.0191, 0.1428, 0.0714, 0.3216, 0.3216, 0.0193, 0.3931)),
    "state-county": (462_000, 5, (0.0986, 0.0266, 0.1500, 0.1972, 0.3944, 0.1380, 0.1380, 0.0266, 0.1380)),
    "county-prim": (200_000, 8, (0.0973, 0.0214, 0.1500, 0.1946, 0.0973, 0.0973, 0.0973, 0.0214, 0.0973)),
    "tsg-ts": (12_000, 6, (0.1150, 0.0310, 0.1750, 0.2300, 0.4601, 0.1610, 0.1610, 0.0310, 0.1610)),
    "ts-bg": (4_000, 4, (0.0291, 0.0078, 0.0442, 0.0581, 0.1162, 0.0407, 0.0407, 0.0078, 0.0407)),
    "bg-block": (400, 18, (0.0011, 0.0003, 0.0017, 0.0022, 0.0044, 0.0015, 0.0015, 0.0003, 0.0015)),
}
"""Households, children, and rho of each measured query group at the geolevel of the children, in the order of
the stages."""


def rules() -> LevelRules:
    """Return the stages of the product."""

    def rounder(passes: Passes) -> tuple[tuple[tuple[str, np.ndarray], ...], ...]:
        group = PRODUCT.workload.group
        return tuple(tuple((name, group(name).row_of_cell) for name in names) for names in passes)

    plans = [*PRODUCT.passes.earlier, PRODUCT.passes]
    *earlier, last = [StageRules(plan.least_squares["*"], rounder(plan.rounder["*"])) for plan in plans]
    bounds = np.zeros((0, PRODUCT.schema.size), bool)
    return LevelRules(
        "made", (), bounds, PRODUCT.possible, last.least_squares, last.rounder, earlier=tuple(earlier)
    )


def households(people: int, children: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Make the cells with households, int32 (s,), and their counts in each child, int64 (C, s)."""
    rng = np.random.default_rng(seed)
    cells = np.flatnonzero(PRODUCT.possible)
    sizes = PRODUCT.schema.shape
    level = np.unravel_index(cells, sizes)
    price = sum(0.6 * rng.gumbel(size=sizes[a])[level[a]] for a in range(len(sizes)))
    for one, other in ((1, 4), (4, 6), (2, 3)):
        price = price + 0.6 * rng.gumbel(size=(sizes[one], sizes[other]))[level[one], level[other]]
    share = np.exp(price - price.max())
    whole = rng.multinomial(people, share / share.sum())
    table = np.zeros((children, len(whole)), np.int64)
    portions = rng.dirichlet(np.full(children, 2.0))
    for c in range(children):
        table[c] = rng.binomial(whole, min(1.0, portions[c] / max(1e-12, portions[c:].sum())))
        whole = whole - table[c]
    table[-1] += whole
    kept = table.any(axis=0) if children > 1 else np.ones(len(cells), bool)
    return cells[kept].astype(np.int32), table[:, kept]


def made_family(
    people: int, children: int, rho: tuple[float, ...], seed: int = 0
) -> tuple[Family, FamilyMeasurement]:
    """Make a family tied to the tenure of its units, and its noisy answers."""
    rng = np.random.default_rng(seed + 1)
    support, table = households(people, children, seed)
    tenure = TENURE.row_of_cell[support]
    tied = np.stack([np.bincount(tenure, one, TENURE.size) for one in table]).astype(np.int64)
    c, row = np.nonzero(tied)
    counts = PublicCounts(
        "units", TENURE, np.searchsorted(c, np.arange(children + 1)), row.astype(np.int32), tied[c, row]
    )
    none = np.zeros((children, 0), np.int64)
    family = Family(
        "made", support, table.sum(axis=0) if children > 1 else None,
        LevelConstraints(none, none, (), tied=counts), np.arange(children, dtype=np.uint64),
    )  # fmt: skip
    queries = []
    names = [name for stage in rules().stages for names in stage.least_squares for name in names]
    for name, one in zip(names, rho, strict=True):
        rows, compact = np.unique(PRODUCT.workload.group(name).row_of_cell[support], return_inverse=True)
        exact = np.stack([np.bincount(compact, t, len(rows)) for t in table])
        values = np.rint(exact + rng.normal(0.0, one**-0.5, exact.shape)).astype(np.int64)
        queries.append(QueryAnswers(name, rows.astype(np.int32), compact.astype(np.int32), values, 1.0 / one))
    return family, FamilyMeasurement(tuple(queries), np.ones(children))


def main() -> None:
    """Print a line for each shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    stages = rules()
    for children in (1, 3):  # compiles
        family, answers = made_family(2_000, children, SHAPES["ts-bg"][2])
        estimate_family(family, stages, answers)
    print("shape households children cells | methods residual cpu_s peak_mib")
    for name in options.shapes:
        people, children, rho = SHAPES[name]
        family, answers = made_family(people, children, rho, options.seed)
        start = time.process_time()
        found = estimate_family(family, stages, answers).record
        seconds = time.process_time() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            name, people, children, found.cells,
            f"| {' '.join(found.methods)} {found.residual:.1e} {seconds:.2f} {peak:.0f}", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
