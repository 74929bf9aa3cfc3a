"""The look before the draw against brute force: every table of small counts, every set of constraints."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.seeds import seeds

from opendas.constraints import feasible
from opendas.constraints.feasible import check_feasible
from opendas.constraints.table import bound_table
from opendas.constraints.tiers import Tiers
from opendas.errors import InfeasibleFamily
from opendas.geography.frame import Frame
from opendas.geography.partitions import standard_spine
from opendas.schema.attributes import Attribute, Recode, Schema
from opendas.schema.declarations import Bound, Invariant, StructuralZero
from opendas.schema.product import PassPlan, Product

CODES = ["aab", "aac", "adb"]
"""One region, two towns, three blocks."""
MOST = 2
"""Records of a block."""
EVERY = np.array([row for row in itertools.product(range(MOST + 1), repeat=4) if sum(row) <= MOST])
"""All rows of a block: two attributes of two levels, int64 (rows, 4)."""


def made(seed: int) -> tuple[Product, Frame, dict[str, np.ndarray]]:
    """A product with invariants at several geolevels and answers that may contradict each other."""
    rng = np.random.default_rng(seed)
    queries = ["total", "x", "y", "detailed", "low"]
    chosen = rng.choice(queries, int(rng.integers(1, 4)), replace=False).tolist()
    where = {query: ("region", "town", "block")[int(rng.integers(3))] for query in chosen}
    product = Product(
        name="made",
        schema=Schema((Attribute("x", ("x0", "x1")), Attribute("y", ("y0", "y1")))),
        recodes=(Recode("low", "y", (("lower", ("y0",)), ("higher", ("y1",)))),),
        query_names=("total", "x", "y", "detailed"),
        invariants=tuple(Invariant(query, level) for query, level in where.items()),
        bounds=(
            Bound("total", "total", "room", upper=1),
            *((Bound("x", "x1", "first", lower=1, upper=2),) if rng.random() < 0.6 else ()),
            *((Bound("y", "y1", "second", lower=1, upper=2),) if rng.random() < 0.4 else ()),
        ),
        structural_zeros=(StructuralZero({"x": ("x0",), "y": ("y0",)}),) if rng.random() < 0.3 else (),
        protected_unit="record",
        layout="made",
        passes=PassPlan({}, {}),
    )
    codes = np.array(CODES, dtype="S3")
    frame = Frame(
        codes,
        {"region": codes.astype("S1"), "town": codes.astype("S2")},
        "block",
        {
            "room": np.full(3, MOST),
            "first": (rng.random(3) < 0.4).astype(np.int64),
            "second": (rng.random(3) < 0.3).astype(np.int64),
        },
    )
    truth = EVERY[rng.integers(len(EVERY), size=3)]
    answers = {}
    for query, level in where.items():
        group = product.workload.group(query)
        sums = grouped(group.answers(truth), level)
        if rng.random() < 0.5:  # one answer is off
            place = tuple(int(rng.integers(side)) for side in sums.shape)
            sums[place] = max(0, sums[place] + int(rng.integers(-1, 2)))
        answers[query] = sums
    return product, frame, answers


def grouped(leaves: np.ndarray, level: str) -> np.ndarray:
    """Sums of the blocks' answers."""
    cut = {"region": [[0, 1, 2]], "town": [[0, 1], [2]], "block": [[0], [1], [2]]}[level]
    return np.array([leaves[inside].sum(axis=0) for inside in cut])


def some_table_exists(product: Product, frame: Frame, answers: dict[str, np.ndarray]) -> bool:
    """Look at every table of counts."""
    rows = []
    for leaf in range(3):
        good = ~EVERY[:, ~product.possible].any(axis=1)
        for bound in product.bounds:
            inside = product.workload.group(bound.query).row_of_cell == product.bound_row(bound)
            units = int(frame.units[bound.column][leaf])
            sums = EVERY[:, inside].sum(axis=1)
            good &= (sums >= bound.lower * units) & (sums <= bound.upper * units)
        rows.append(EVERY[good])
    level_of = {invariant.query: invariant.geolevel for invariant in product.invariants}
    groups = {query: product.workload.group(query) for query in level_of}
    for table in itertools.product(*rows):
        leaves = np.array(table)
        if all(
            np.array_equal(grouped(groups[q].answers(leaves), level), answers[q])
            for q, level in level_of.items()
        ):
            return True
    return False


@pytest.mark.parametrize("seed", seeds(150))
def test_what_is_refused_is_what_no_table_keeps(seed: int) -> None:
    product, frame, answers = made(seed)
    spine = standard_spine(frame)
    table = bound_table(product, frame, spine, answers)
    if some_table_exists(product, frame, answers):
        check_feasible(product, spine, table)
        return
    with pytest.raises(InfeasibleFamily) as caught:
        check_feasible(product, spine, table)
    assert caught.value.conflict is not None
    assert caught.value.conflict.irreducible


def test_both_happen_and_geounits_must_be_looked_at_together() -> None:
    """Some contradictions are seen in one geounit, others only in several."""
    outcomes = set()
    for seed in range(150):
        product, frame, answers = made(seed)
        spine = standard_spine(frame)
        tiers = Tiers.of(product, spine, bound_table(product, frame, spine, answers))
        laminar = feasible.is_laminar(tiers.sets)
        alone = any(
            len(feasible._contradicting_themselves(tiers, number, laminar=laminar))
            for number in range(len(tiers.tiers))
        )
        outcomes.add((alone, some_table_exists(product, frame, answers)))
    assert outcomes == {(True, False), (False, False), (False, True)}
