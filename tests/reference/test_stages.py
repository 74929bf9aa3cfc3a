"""Stages of estimation against slow twins: every cell in every stage, and dense groups for what is fixed."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from support.assembled import assemble, same
from support.mini import from_dense, mini_frame, mini_histogram, mini_product, to_dense

from opendas.constraints.table import JointTotal
from opendas.engines.drive import estimate_spine
from opendas.errors import ConfigError, DataError, EstimationError
from opendas.schema.attributes import Attribute, Recode, Schema
from opendas.schema.declarations import StructuralZero
from opendas.schema.histogram import Histogram
from opendas.schema.product import PassPlan, Product
from opendas.topdown.checks import check_family, check_roots
from opendas.topdown.constraint_groups import Groups
from opendas.topdown.family import Progress, _least_squares, estimate_family
from opendas.topdown.model import Family
from opendas.topdown.rounding import check_rounder_passes, round_estimate
from opendas.topdown.stages import check_stages

ATTRIBUTES = {"relgq": 4, "sex": 2, "age": 6, "hispanic": 2, "cenrace": 2}
RECODES = (
    Recode("major", "relgq", (("home", ("0", "1")), ("quarters", ("2", "3")))),
    Recode("adult", "age", (("minor", ("0", "1", "2")), ("adult", ("3", "4", "5")))),
    Recode("ages", "age", (("a", ("0",)), ("b", ("1", "2")), ("c", ("3",)), ("d", ("4", "5")))),
)
FINEST = "relgq * sex * ages * hispanic * cenrace"
COARSE = ("total", "sex * adult", "major * ages", "sex * ages * hispanic", FINEST)
MEASURED = {name: Fraction(1, 6) for name in (*COARSE, "detailed")}
EARLIER = PassPlan(
    {"*": (("rest",),)},
    {"*": (("major * adult * hispanic * cenrace",), ("major * sex * ages * hispanic * cenrace", FINEST))},
)


def shrunk() -> Product:
    """All attributes of the persons product, with few levels each."""
    levels = {name: tuple(str(i) for i in range(size)) for name, size in ATTRIBUTES.items()}
    return Product(
        name="shrunk",
        schema=Schema(tuple(Attribute(name, values) for name, values in levels.items())),
        recodes=RECODES,
        query_names=tuple(MEASURED),
        invariants=(),
        bounds=(),
        structural_zeros=(StructuralZero({"relgq": ("0",), "age": ("0",)}),),
        protected_unit="person",
        layout="shrunk",
        passes=PassPlan({"*": (("detailed",),)}, {"*": (("detailed",),)}, (EARLIER,)),
    )


def people(product: Product, rows: int, seed: int, mean: float = 0.4) -> Histogram:
    rng = np.random.default_rng(seed)
    dense = rng.poisson(mean, (rows, product.schema.size)) * product.possible
    row, cell = np.nonzero(dense)
    return Histogram.from_entries(row, cell, dense[row, cell], shape=dense.shape)


def families(run, levels=(1, 2)):
    """Yield (family, rules, measurement) of roots, and of children below the true parents."""
    source = run.measurements()
    for i in range(len(run.spine.levels[0].geocodes) if 0 in levels else 0):
        support = np.flatnonzero(run.product.possible).astype(np.int32)
        rules, constraints = run.rules[0], run.constraints.levels[0].slice(i, i + 1)
        label = run.spine.levels[0].geocodes[i].decode()
        family = Family(label, support, None, constraints, np.arange(1, dtype=np.uint64))
        yield family, rules, source.family(0, i, 1, support)
    for level in (level for level in levels if level):
        starts = run.spine.child_starts(level - 1)
        parents = to_dense(run.counts.aggregate(run.spine.leaf_starts(level - 1)))
        for i, (a, b) in enumerate(pairwise(starts)):
            support = np.flatnonzero(parents[i]).astype(np.int32)
            family = Family(
                run.spine.levels[level - 1].geocodes[i].decode(),
                support,
                parents[i][support],
                run.constraints.levels[level].slice(a, b),
                np.arange(b - a, dtype=np.uint64),
            )
            yield family, run.rules[level], source.family(level, int(a), int(b - a), support)


def dense_groups(rows, counts) -> Groups:
    """Every fixed row as a group of cells."""
    size = counts.shape[1]
    cells = rows[None, :] == np.arange(size)[:, None]
    held = counts.astype(np.float64)
    return Groups(("fixed",) * size, cells, held, held, counts[:, rows] > 0, counts, counts)


def first_groups(family, rules) -> Groups:
    """The declared constraints, and a tie as groups of cells."""
    tied = family.constraints.tied
    if tied is None:
        return Groups.build(family.support, family.parent, family.constraints, rules, family.label)
    rows, inverse = np.unique(tied.query.row_of_cell[family.support], return_inverse=True)
    return dense_groups(inverse, tied.on(rows))


def slow_stages(family, rules, measurement):
    """The dense way: every cell in both stages, and every fixed row a group of cells."""
    first = rules.earlier[0]
    finest = first.rounder[-1][-1][1][family.support]
    rows, inverse = np.unique(finest, return_inverse=True)
    groups = first_groups(family, rules)
    step = replace(rules, least_squares=first.least_squares, rounder=first.rounder, earlier=())
    estimate = _least_squares(family, step, measurement, groups, Progress())
    sums = np.zeros((len(estimate), len(rows)))
    np.add.at(sums.T, inverse, estimate.T)
    # The rounder of the first stage sees rows, in the order of their first cells.
    at = np.array([np.flatnonzero(inverse == r)[0] for r in range(len(rows))])
    order = np.argsort(at)
    parent = None
    if family.parent is not None:
        parent = np.zeros(len(rows), np.int64)
        np.add.at(parent, inverse, family.parent)
        parent = parent[order]
    small = replace(family, support=family.support[at[order]], parent=parent)
    small_groups = first_groups(small, rules)
    rounded = np.zeros((len(estimate), len(rows)), np.int64)
    rounded[:, order] = round_estimate(small, step, small_groups, sums[:, order])
    held = dense_groups(inverse, rounded)
    last = replace(rules, earlier=())
    estimate = _least_squares(family, last, measurement, held, Progress())
    return round_estimate(family, last, held, estimate), rounded, inverse


@pytest.mark.parametrize("seed", range(6))
def test_stages_equal_the_dense_way_family_by_family(seed: int) -> None:
    product = shrunk()
    frame = mini_frame(regions=1, towns=2, blocks=3, seed=seed)
    run = assemble(product, frame, people(product, len(frame), seed, 0.5), queries=MEASURED)
    for family, rules, measurement in families(run):
        found = estimate_family(family, rules, measurement).counts
        slow, rounded, inverse = slow_stages(family, rules, measurement)
        sums = np.zeros_like(rounded)
        np.add.at(sums.T, inverse, found.T)
        assert np.array_equal(sums, rounded)
        assert np.array_equal(found.sum(axis=0), family.parent)
        assert np.array_equal(found, slow)


HOUSEHOLDS = {"sex": 2, "hhage": 3, "hisp": 2, "race": 2, "elderly": 2, "tenure": 3, "hhtype": 6}
BY_TYPE = "sex * hisp * race * tenure * coarse_type"
AGE_AND_TYPE = "hhage * tenure * coarse_type"
BY_AGE = "sex * hhage * hisp * race * tenure * coarse_type"
SMALL = ("hisp * owned", "hisp * race * owned", "sex * owned * couple")
MEASURED_HOUSEHOLDS = {name: Fraction(1, 7) for name in (*SMALL, BY_TYPE, BY_AGE, AGE_AND_TYPE, "detailed")}


def shrunk_units() -> Product:
    """All attributes of the households of the units product and its stages, with few levels each."""
    levels = {name: tuple(str(i) for i in range(size)) for name, size in HOUSEHOLDS.items()}
    types = (("a", ("0", "1")), ("b", ("2",)), ("c", ("3", "4", "5")))
    return replace(
        shrunk(),
        schema=Schema(tuple(Attribute(name, values) for name, values in levels.items())),
        recodes=(
            Recode("owned", "tenure", (("owned", ("0", "1")), ("rented", ("2",)))),
            Recode("coarse_type", "hhtype", types),
            Recode("couple", "hhtype", (("couple", ("0", "1", "2")), ("none", ("3", "4", "5")))),
        ),
        query_names=tuple(MEASURED_HOUSEHOLDS),
        structural_zeros=(StructuralZero({"hhage": ("0",), "elderly": ("1",)}),),
        protected_unit="housing unit",
        passes=PassPlan(
            {"*": ((BY_AGE, AGE_AND_TYPE, "detailed"),)},
            {"*": (("detailed",),)},
            (PassPlan({"*": ((*SMALL, BY_TYPE),)}, {"*": (("tenure * coarse_type", BY_TYPE),)}),),
        ),
    )


@pytest.mark.parametrize("seed", range(4))
def test_stages_of_households_equal_the_dense_way_tied_to_their_tenure(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries of the last stage cross its fixed rows, within blocks of tenure and coarse type."""
    monkeypatch.setattr("opendas.solvers.least_squares.solve.FIXED", 2)
    monkeypatch.setattr("opendas.solvers.least_squares.solve.COSTLY", 0)
    product = shrunk_units()
    frame = mini_frame(regions=1, towns=2, blocks=3, seed=seed)
    run = assemble(product, frame, people(product, len(frame), seed, 0.3), queries=MEASURED_HOUSEHOLDS)
    group = product.workload.group("tenure")
    answers = group.answers(to_dense(run.counts))
    row, cell = np.nonzero(answers)
    tied = Histogram.from_entries(row, cell, answers[row, cell], shape=answers.shape)
    run = replace(run, constraints=run.constraints.tied_to("units", group, tied, run.spine))
    methods = set()
    for family, rules, measurement in families(run, levels=(0, 1, 2)):
        check_stages(rules, family.constraints, product.workload)
        check_rounder_passes(rules, family.constraints)
        answer = estimate_family(family, rules, measurement)
        slow, rounded, inverse = slow_stages(family, rules, measurement)
        sums = np.zeros_like(rounded)
        np.add.at(sums.T, inverse, answer.counts.T)
        assert np.array_equal(sums, rounded)
        assert np.array_equal(answer.counts, slow)
        methods.update(answer.record.methods)
    assert "structured" in methods


def test_whole_runs_by_stages_keep_zeros_and_sums() -> None:
    product = shrunk()
    frame = mini_frame(regions=2, towns=2, blocks=2)
    run = assemble(product, frame, people(product, len(frame), 3, 0.1), queries=MEASURED)
    for rules, level in zip(run.rules, run.constraints.levels, strict=True):
        check_stages(rules, level, product.workload)
        check_rounder_passes(rules, level)
    found = estimate_spine(
        run.spine, run.constraints, run.worker(), histogram=run.counts, estimator="topdown", workers=1
    ).leaves
    assert to_dense(found)[:, ~product.possible].sum() == 0
    exact = assemble(
        product, frame, people(product, len(frame), 3, 0.1), queries=MEASURED, rho=Fraction(10**6)
    )
    again = estimate_spine(
        exact.spine, exact.constraints, exact.worker(), histogram=exact.counts, estimator="topdown", workers=1
    ).leaves
    assert same(again, exact.counts)


def test_constraints_that_tell_merged_cells_apart_are_refused() -> None:
    product = replace(
        shrunk(),
        passes=PassPlan(
            {"*": (("detailed",),)},
            {"*": (("detailed",),)},
            (PassPlan({"*": (("rest",),)}, {"*": (("major * adult",),)}),),
        ),
    )
    run = assemble(product, mini_frame(), people(product, len(mini_frame()), 1, 0.1), queries=MEASURED)
    with pytest.raises(ConfigError, match="tells cells apart that share a row of 'major \\* adult'"):
        check_stages(run.rules[0], run.constraints.levels[0], product.workload)


def test_rest_leaves_later_stages_what_they_name() -> None:
    plan = shrunk().passes
    (first, rounder), (last, cells) = plan.for_geolevel(
        "town", (*COARSE, "detailed"), is_root=False, is_leaf=False
    )
    assert first == (COARSE,)
    assert last == (("detailed",),)
    assert rounder[-1][-1] == FINEST
    assert cells == (("detailed",),)
    only = replace(plan, earlier=(PassPlan({}, {"root": (("sex",),)}),), least_squares={})
    stages = only.for_geolevel("town", ("total", "detailed"), is_root=False, is_leaf=False)
    assert stages == (((("total", "detailed"),), (("detailed",),)),)


TIE = "major * adult * hispanic * cenrace"


def tied_run(seed: int, *, earlier: tuple[PassPlan, ...] = (EARLIER,), own: bool = False):
    """A run tied to counts of other people, in other numbers, or to its own."""
    last = {"*": (("detailed",) if earlier else ("rest",),)}
    product = replace(shrunk(), passes=PassPlan(last, {"*": (("detailed",),)}, earlier))
    frame = mini_frame(regions=2, towns=2, blocks=3, seed=seed)
    run = assemble(product, frame, people(product, len(frame), seed, 0.3), queries=MEASURED)
    others = to_dense(run.counts if own else people(product, len(frame), seed + 100, 0.3))
    group = product.workload.group(TIE)
    answers = group.answers(others)
    row, cell = np.nonzero(answers)
    tied = Histogram.from_entries(row, cell, answers[row, cell], shape=answers.shape)
    table = run.constraints.tied_to("pl94-persons", group, tied, run.spine)
    return replace(run, constraints=table), group, answers


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("earlier", [(EARLIER,), ()])
def test_a_tied_run_agrees_in_every_geounit_with_the_release_before(
    seed: int, earlier: tuple[PassPlan, ...]
) -> None:
    run, group, answers = tied_run(seed, earlier=earlier)
    for rules, level in zip(run.rules, run.constraints.levels, strict=True):
        check_stages(rules, level, run.product.workload)
        check_rounder_passes(rules, level)
    found = estimate_spine(
        run.spine, run.constraints, run.worker(), histogram=run.counts, estimator="topdown", workers=1
    ).leaves
    dense = to_dense(found)
    assert np.array_equal(group.answers(dense), answers)
    assert dense[:, ~run.product.possible].sum() == 0


def test_a_tie_beside_bounds_and_invariants_holds_with_them() -> None:
    product = replace(mini_product(), passes=replace(mini_product().passes))
    frame = mini_frame()
    truth = mini_histogram(frame)
    run = assemble(product, frame, truth)
    group = product.workload.group("kind * minor")
    answers = group.answers(to_dense(run.counts))
    row, cell = np.nonzero(answers)
    tied = Histogram.from_entries(row, cell, answers[row, cell], shape=answers.shape)
    run = replace(run, constraints=run.constraints.tied_to("other", group, tied, run.spine))
    found = estimate_spine(
        run.spine, run.constraints, run.worker(), histogram=run.counts, estimator="topdown", workers=1
    ).leaves
    assert np.array_equal(group.answers(to_dense(found)), answers)
    assert not same(found, run.counts)


def test_a_tie_that_contradicts_invariants_or_zeros_is_refused() -> None:
    frame = mini_frame()
    run = assemble(mini_product(), frame, mini_histogram(frame))
    group = run.product.workload.group("kind * minor")
    answers = group.answers(to_dense(run.counts))
    answers[0, 0] += 1
    with pytest.raises(DataError, match=r"other counts than the invariant total@region .* '00'"):
        run.constraints.tied_to("other", group, from_dense(answers), run.spine)
    answers[0, 0] -= 1
    answers[0, 4] += 1
    with pytest.raises(DataError, match=r"prison \* minor, which structural zeros"):
        run.constraints.tied_to("other", group, from_dense(answers), run.spine)


def test_a_rounder_that_crosses_the_tie_is_refused() -> None:
    run, _, _ = tied_run(1)
    crossing = replace(
        run.rules[0], earlier=(), rounder=((("sex", run.product.workload.group("sex").row_of_cell),),)
    )
    with pytest.raises(ConfigError, match="'sex' cross rows of 'the tie to pl94-persons'"):
        check_stages(crossing, run.constraints.levels[0], run.product.workload)


def test_integers_that_break_the_tie_are_found() -> None:
    run, _, _ = tied_run(2, own=True)
    family, rules, _ = next(families(run))
    truth = to_dense(run.counts.aggregate(run.spine.leaf_starts(1)))[: len(family.tie_keys), family.support]
    check_family(family, rules, truth)
    moved = truth.copy()
    moved[0], moved[1] = truth[0] + truth[1], 0
    with pytest.raises(EstimationError, match="the tie to pl94-persons"):
        check_family(family, rules, moved)


def test_large_roots_that_hold_a_total_together_need_a_tie(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tie gives every part its own total, so that none of the matrices is written."""
    run, _, _ = tied_run(0)
    rules, tied = run.rules[0], run.constraints.levels[0]
    parts = np.zeros(len(tied.lower), dtype=np.int32)
    joint = JointTotal("total@region", parts, np.array([int(tied.tied.counts.sum())]))
    monkeypatch.setattr("opendas.topdown.checks.LARGEST_WRITTEN", 10)
    workload = shrunk().workload
    check_roots(workload, rules, replace(tied, joint=joint))
    with pytest.raises(ConfigError, match="roots hold a total together"):
        check_roots(workload, rules, replace(tied, joint=joint, tied=None))


@pytest.mark.parametrize("smallest", [0, 10**9])
def test_a_family_solved_by_its_structure_is_no_fallback(
    smallest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record says which method solved a family, and calls only general solvers a fallback."""
    monkeypatch.setattr("opendas.solvers.least_squares.solve.FIXED", smallest)
    monkeypatch.setattr("opendas.solvers.least_squares.solve.COSTLY", smallest)
    run, _, _ = tied_run(0, own=True)
    records = [estimate_family(*of_family).record for of_family in families(run)]
    methods = {method for record in records for method in record.methods}
    assert ("structured" in methods) == (smallest == 0)
    for record in records:
        assert record.fallback == any(method.startswith("clarabel") for method in record.methods)
