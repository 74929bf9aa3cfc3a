"""Small plans on spines made by recipes, and what the brute-force accountant reads of them."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np

from opendas.budget.allocation import Budget
from opendas.geography.bypass import bypass_general, bypass_only_children
from opendas.geography.frame import Frame, official_codes
from opendas.geography.recipe import NAMED_SPINES, Recipe, SpineStep, build_spine
from opendas.geography.spine import Spine
from opendas.measurement.plan import MeasurementPlan
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace
from opendas.schema.attributes import Attribute, Schema
from opendas.schema.product import PassPlan, Product
from support import scripts
from support.spine_shares import multiple

F = Fraction
GAUSSIAN, LAPLACE = Mechanism.DISCRETE_GAUSSIAN, Mechanism.DISCRETE_LAPLACE
CELLS = 4
PRODUCT = Product(
    name="tiny",
    schema=Schema((Attribute("home", ("house", "hall")), Attribute("adult", ("no", "yes")))),
    recodes=(),
    query_names=("total", "home", "adult", "detailed"),
    invariants=(),
    bounds=(),
    structural_zeros=(),
    protected_unit="person",
    layout="tiny",
    passes=PassPlan({}, {}),
)
QUERIES = {
    "us": {"home": F(1, 3), "detailed": F(2, 3)},
    "state": {"home": F(1, 4), "adult": F(1, 4), "detailed": F(1, 2)},
    "*": {"total": F(1, 5), "adult": F(1, 5), "detailed": F(3, 5)},
}
RECIPES: dict[str, tuple[SpineStep, ...]] = {
    **NAMED_SPINES,
    "bypassed": (SpineStep("bypass"),),
    "groups": (SpineStep("block_groups", fanout_cutoff=1, entities=("place",)), SpineStep("bypass")),
    "zones": (
        SpineStep("aian"),
        SpineStep("intersect", level="tract", name="zone", entities=("place",)),
        SpineStep("block_groups", fanout_cutoff=1, entities=("place", "block_group")),
        SpineStep("bypass"),
    ),
}


accountant = scripts.accountant()


def small_frame(seed: int, root: str) -> Frame:
    """Two states, four to eight blocks; places, AIAN areas and facilities at random."""
    rng = np.random.default_rng(seed)
    codes = [
        f"{state}{county:03d}{tract:06d}1{block:03d}"
        for state in ("01", "44")
        for county, tract in [(1, 1), *([(1, 2)] if rng.random() < 0.5 else [(3, 1)])]
        for block in range(int(rng.integers(1, 3)))
    ]
    geocodes = np.array(codes, dtype="S15")
    n = len(geocodes)

    def area(*some: str) -> np.ndarray:
        return np.array(some, dtype="S5")[rng.integers(0, len(some), n)]

    units = {f"gq{k}": (rng.random(n) < 0.3).astype(np.int64) for k in range(1, 8)}
    entities = {"cousub": area("1", "2"), "place": area("", "1", "2"), "aianhh": area("", "0010", "9500")}
    entities["sduni"] = area("00010", "00020")
    return Frame(geocodes, official_codes(geocodes, root), "block", units, entities)


def planned(
    name: str, root: str, seed: int, mechanism: Mechanism, neighbours: Neighbours
) -> tuple[MeasurementPlan, Frame]:
    """Return a plan on a spine made from a frame by a recipe, with random level shares."""
    frame = small_frame(seed, root)
    rng = np.random.default_rng(seed + 99)

    def shares_of(spine: Spine) -> dict[str, Fraction]:
        weights = rng.integers(1, 6, len(spine.levels)).tolist()
        return {level: F(w, sum(weights)) for level, w in zip(spine.names, weights, strict=True)}

    kept: dict[str, Fraction] = {}

    def finish(spine: Spine) -> Spine:
        kept.update(shares_of(spine))
        shares = list(kept.values())
        return bypass_only_children(spine, shares) if mechanism is GAUSSIAN else bypass_general(spine, shares)

    spine = build_spine(frame, Recipe(RECIPES[name]), finish)
    shares = kept or shares_of(spine)
    budget = Budget(mechanism, neighbours, F(7, 3), shares, {k: q for k, q in QUERIES.items() if k != "us"})
    if root == "us":
        budget = Budget(mechanism, neighbours, F(7, 3), shares, QUERIES)
    return MeasurementPlan(PRODUCT, spine, budget), frame


def release_of(plan: MeasurementPlan) -> object:
    """Write a plan as plain data: parents, rows, and the noise of each geounit's queries."""
    spine = plan.spine
    noise, rows = [], []
    for number, level in enumerate(plan.levels):
        rows.append({q.query.name: [int(r) for r in q.query.row_of_cell] for q in level.queries})
        units = []
        for unit in range(len(spine.levels[number])):
            own = multiple(spine, number, unit)
            given = {}
            for query in level.queries if own else ():
                law = plan.distribution(number, query, own)
                given[query.query.name] = law.sigma2 if isinstance(law, DiscreteGaussian) else law.scale
            units.append(given)
        noise.append(units)
    parents = [level.parent.tolist() for level in spine.levels]
    return accountant.Release(parents=parents, rows=rows, noise=noise, cells=CELLS)


def changed(plan: MeasurementPlan, release: object, old: object, new: object) -> Counter[object]:
    """Count the answers that differ between two data sets, by their noise."""
    law = DiscreteGaussian if plan.budget.mechanism is GAUSSIAN else DiscreteLaplace
    left, right = accountant.answers(release, old), accountant.answers(release, new)
    found: Counter[object] = Counter()
    for key in left.keys() | right.keys():
        level, geounit, query, _ = key
        difference = abs(left.get(key, 0) - right.get(key, 0))
        if difference:
            found[law(release.noise[level][geounit][query]), difference] += 1  # type: ignore[attr-defined]
    return found
