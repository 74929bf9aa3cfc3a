"""Estimation where parts of a divided region hold its total together, as roots and below a parent."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import clarabel
import numpy as np
import pytest
import scipy.sparse as sp
import support.assembled as assembled
from support.mini import from_dense, mini_frame, mini_histogram, mini_product, to_dense
from support.used import used_answers

from opendas.constraints.table import JointTotal, LevelConstraints
from opendas.engines.drive import estimate_spine
from opendas.engines.subtree import Part, PartLevel, estimate_part
from opendas.engines.tasks import cut_leaves, cut_spine, make_part
from opendas.errors import EstimationError, InfeasibleFamily
from opendas.geography.partitions import standard_spine
from opendas.geography.spine import Spine, SpineLevel
from opendas.topdown.checks import check_family
from opendas.topdown.constraint_groups import Groups
from opendas.topdown.failsafe import relax_parent
from opendas.topdown.family import _least_squares, estimate_family
from opendas.topdown.family_data import Progress
from opendas.topdown.model import Family


def divided(frame, *, us: bool) -> Spine:
    """The standard spine with the first region in three parts, others in two, the last undivided.

    Perhaps below a top of its own.
    """
    plain = standard_spine(frame)
    region, town, *rest = plain.levels
    place = np.arange(len(town)) - np.searchsorted(town.parent, town.parent)
    part = (
        (place == 0) | ((place == 1) & (town.parent < len(region) - 1)) | ((place == 2) & (town.parent == 0))
    )
    number = np.cumsum(part) - 1
    whole = town.parent[part]
    mark = np.array([b"0", b"1", b"2"])[place[part]]
    codes = np.char.add(mark, region.geocodes[whole])
    levels = [
        SpineLevel("region", codes, np.zeros(len(codes), np.int64), official=False, whole=whole),
        SpineLevel("town", town.geocodes, number),
        *rest,
    ]
    if us:
        levels.insert(0, SpineLevel("us", np.array([b"1"]), np.zeros(1, np.int64)))
    return Spine(tuple(levels), plain.leaf_order, (None,) * len(levels))


def made(monkeypatch, *, us=False, regions=3, seed=0, **options):
    frame = mini_frame(regions=regions, seed=seed)
    monkeypatch.setattr(assembled, "standard_spine", lambda frame: divided(frame, us=us))
    return assembled.assemble(mini_product(), frame, mini_histogram(frame, seed=seed), **options)


def run(it, workers=1):
    return estimate_spine(
        it.spine, it.constraints, it.worker(), histogram=it.counts, estimator="topdown", workers=workers
    )


def region_totals(it, leaves):
    """Records of every whole region, from leaves in spine order."""
    level = it.spine.levels[it.spine.index("region")]
    totals = leaves.aggregate(it.spine.leaf_starts(it.spine.index("region"))).row_totals()
    return np.bincount(level.whole, totals).astype(np.int64), totals


@pytest.mark.parametrize("us", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_only_the_sum_of_the_parts_is_exact(monkeypatch, seed, us):
    it = made(monkeypatch, us=us, seed=seed, rho=Fraction(1, 2))
    found = run(it)
    totals, parts = region_totals(it, found.leaves)
    truth, true_parts = region_totals(it, it.counts)
    np.testing.assert_array_equal(totals, truth)
    assert not np.array_equal(parts, true_parts)
    dense = to_dense(found.leaves).reshape(-1, 3, 3)
    units = np.stack([it.frame.units[c] for c in ("homes", "schools", "prisons")], axis=1)
    assert dense.min() >= 0
    assert np.all(dense.sum(2) >= units * [0, 1, 1])
    assert {record.fallback for record in found.records} == {False}
    top = [record for record in found.records if record.geolevel == "region"]
    assert [record.children for record in top] == ([6] if us else [3, 2, 1])
    assert [record.label for record in top] == (["1"] if us else ["00", "01", "002"])


def test_two_roots_that_share_a_total_are_estimated_in_one_part(monkeypatch):
    it = made(monkeypatch)
    source = it.measurements()
    level = it.spine.levels[0]
    part = Part(
        (PartLevel(0, 3, level.geocodes[3:5], None, it.constraints.levels[0].slice(3, 5)),),
        None,
    )
    result = estimate_part(part, it.rules, source)
    assert len(result.records) == 1
    assert result.estimates.rows == 2
    truth = it.counts.aggregate(it.spine.leaf_starts(0))
    assert result.estimates.row_totals().sum() == truth.row_totals()[3:5].sum()
    assert {(used.first, used.children) for used in used_answers(result.used)} == {(3, 2)}


def slow_family(family, rules, measurement):
    """Equation (7.2) for roots with a joint total, written out, by a general interior-point solver."""
    children, cells = len(family.tie_keys), len(family.support)
    size = children * cells
    rows, target = [], []
    for query in measurement.queries:
        for c in range(children):
            for r in range(len(query.rows)):
                row = np.zeros(size)
                row[c * cells + np.flatnonzero(query.compact == r)] = 1 / np.sqrt(query.variance)
                rows.append(row)
                target.append(query.values[c, r] / np.sqrt(query.variance))
    A, b = np.array(rows), np.array(target)
    joint = family.constraints.joint
    equal = [np.repeat(joint.group == s, cells).astype(float) for s in range(len(joint.totals))]
    equal_to = [float(total) for total in joint.totals]
    less, less_than = list(-np.eye(size)), [0.0] * size
    for c in range(children):
        for k in range(len(rules.bound_names)):
            row = np.zeros(size)
            row[c * cells : (c + 1) * cells] = rules.bound_cells[k, family.support]
            less += [row, -row]
            less_than += [float(family.constraints.upper[c, k]), -float(family.constraints.lower[c, k])]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    solution = clarabel.DefaultSolver(
        sp.csc_matrix(2 * A.T @ A), -2 * A.T @ b, sp.csc_matrix(np.vstack([equal, less])),
        np.array(equal_to + less_than),
        [clarabel.ZeroConeT(len(equal)), clarabel.NonnegativeConeT(len(less))], settings,
    ).solve()  # fmt: skip
    return np.array(solution.x).reshape(children, cells)


@pytest.mark.parametrize("seed", range(3))
def test_estimate_of_roots_is_next_to_a_general_solver(monkeypatch, seed):
    it = made(monkeypatch, seed=seed)
    rules = it.rules[0]
    family = roots(it)
    measurement = it.measurements().family(0, 0, 3, family.support)
    slow = slow_family(family, rules, measurement)
    groups = Groups.build(family.support, None, family.constraints, rules, family.label)
    fast = _least_squares(family, rules, measurement, groups, Progress())
    assert np.abs(fast - slow).max() < 1e-2
    assert abs(fast.sum() - family.constraints.joint.totals[0]) < 1e-6
    counts = estimate_family(family, rules, measurement).counts
    # A controlled rounding stays within one of the least squares, cell by cell.
    assert np.abs(counts - slow).max() < 1.0 + 1e-3
    assert counts.sum() == family.constraints.joint.totals[0]


def roots(it):
    support = np.flatnonzero(it.constraints.possible).astype(np.int32)
    keys = np.arange(3, dtype=np.uint64)
    return Family("00", support, None, it.constraints.levels[0].slice(0, 3), keys)


def children(totals, parent, group, lower=None):
    """A family below a parent of two cells, in which children hold totals together."""
    C = len(group)
    low = np.zeros((C, 3), np.int64) if lower is None else np.array(lower)
    joint = JointTotal("total@region", np.array(group, np.int32), np.array(totals))
    constraints = LevelConstraints(low, np.full((C, 3), 99), (), joint)
    return Family(
        "1", np.array([0, 3], np.int32), np.array(parent), constraints, np.arange(C, dtype=np.uint64)
    )


def test_totals_that_do_not_add_up_to_the_parent_are_named(monkeypatch):
    it = made(monkeypatch)
    family = children([7, 3], [5, 6], [0, 0, 1])
    with pytest.raises(InfeasibleFamily, match="total@region"):
        Groups.build(family.support, family.parent, family.constraints, it.rules[0], family.label)


def test_a_total_below_what_its_parts_need_is_named(monkeypatch):
    it = made(monkeypatch)
    family = children([3, 8], [5, 6], [0, 0, 1], [[0, 2, 0], [0, 2, 0], [0, 0, 0]])
    measurement = it.measurements().family(0, 0, 3, family.support)
    with pytest.raises(InfeasibleFamily) as caught:
        estimate_family(family, it.rules[0], measurement)
    assert set(caught.value.constraints) == {
        "child 1, child 2 together: invariant total@region = 3",
        "child 1: lower bound of kind=school by schools >= 2",
        "child 2: lower bound of kind=school by schools >= 2",
    }


def test_the_failsafe_keeps_joint_totals(monkeypatch):
    it = made(monkeypatch)
    family = children([7, 3], [5, 6], [0, 0, 1])
    relaxed, note = relax_parent(family, it.rules[0], InfeasibleFamily("1", "test"))
    assert relaxed.parent.sum() == 10
    assert "by 1 in L1, its total included" in note
    measurement = it.measurements().family(0, 0, 3, relaxed.support)
    counts = estimate_family(relaxed, it.rules[0], measurement).counts
    np.testing.assert_array_equal(counts.sum(axis=1)[[0, 1]].sum(), 7)
    np.testing.assert_array_equal(counts.sum(axis=0), relaxed.parent)


def test_the_exact_check_sees_a_missed_joint_total(monkeypatch):
    it = made(monkeypatch)
    family = children([7, 4], [5, 6], [0, 0, 1])
    right = np.array([[2, 3], [1, 1], [2, 2]])
    check_family(family, it.rules[0], right)
    with pytest.raises(EstimationError, match="total@region"):
        check_family(family, it.rules[0], right + np.array([[0, -1], [0, 0], [0, 1]]))


@pytest.mark.parametrize("us", [False, True])
def test_workers_and_cuts_change_nothing(monkeypatch, us):
    it = made(monkeypatch, us=us, regions=6)
    expected = run(it)
    monkeypatch.setattr("opendas.engines.tasks.TASKS_PER_STAGE", 50)
    monkeypatch.setattr("opendas.engines.tasks.MANY_SUBTREES", 2)
    found = run(it)
    assert np.array_equal(to_dense(expected.leaves), to_dense(found.leaves))
    assert np.array_equal(to_dense(expected.leaves), to_dense(run(it, workers=2).leaves))


def test_no_cut_parts_a_joint_total(monkeypatch):
    for tasks in (1, 2, 3, 5, 64):
        monkeypatch.setattr("opendas.engines.tasks.TASKS_PER_STAGE", tasks)
        for regions in (1, 2, 5, 9):
            it = made(monkeypatch, regions=regions)
            joint = it.constraints.levels[0].joint
            for stage in (cut_spine(it.spine, joint), cut_leaves(it.spine)):
                for one in stage:
                    assert one.cuts[0] == 0
                    assert one.cuts[-1] == len(it.spine.levels[one.top])
                    assert all(a < b for a, b in pairwise(one.cuts))
            inner = np.array(cut_spine(it.spine, joint)[0].cuts[1:-1], dtype=int)
            assert np.all(joint.group[inner] != joint.group[inner - 1])
    assert len(cut_spine(it.spine, joint)[0].cuts) == 10


def test_estimated_parts_may_be_cut_apart(monkeypatch):
    """Below parts that are estimated already, families are independent again."""
    it = made(monkeypatch, us=True)
    stage = cut_spine(it.spine)[1]
    assert it.spine.levels[stage.top].name == "region"
    starts = [it.spine.child_starts(level) for level in range(len(it.spine.levels) - 1)]
    parents = it.counts.aggregate(it.spine.leaf_starts(stage.top))
    part, low, high = make_part(it.spine, starts, it.constraints, stage, 0, 1, parents)
    assert part.levels[0].constraints.joint is None
    result = estimate_part(part, it.rules, it.measurements())
    assert result.estimates.row_totals().sum() == parents.row_totals()[0]
    assert high - low == result.estimates.rows


def test_a_part_without_people_beside_one_with_all_of_them(monkeypatch):
    frame = mini_frame(regions=2)
    dense = to_dense(mini_histogram(frame))
    frame.units["schools"][:] = 0
    frame.units["prisons"][:] = 0
    dense[:, 3:] = 0
    dense[:4] = 0
    monkeypatch.setattr(assembled, "standard_spine", lambda frame: divided(frame, us=False))
    it = assembled.assemble(mini_product(), frame, from_dense(dense), rho=Fraction(10**6))
    found = run(it)
    assert np.array_equal(to_dense(found.leaves), to_dense(it.counts))
