"""Rounding with joint totals against enumeration and a literal mixed-integer program."""

from __future__ import annotations

import numpy as np
import pytest
from reference import slow_rounding as slow
from reference.test_rounding_twins import instance, quanta
from support.seeds import seeds

from opendas.errors import InfeasibleFamily
from opendas.solvers.rounding.rounding import RoundingNames, round_family


def joined(seed, children, n, *, root):
    """A synthetic family and what some of its children hold together: (case, joint, totals, pairs for the
    twin).

    Roots lose their fixed totals; their estimates are moved so that every joint total is a whole number.
    """
    x, parent, mask, passes, groups, lower, upper, child_keys, cell_keys = instance(
        seed, children, n, root=root
    )
    rng = np.random.default_rng(seed + 10_000)
    joint = np.sort(rng.integers(0, max(1, children - 1), children)).astype(np.int32)
    joint = np.unique(joint, return_inverse=True)[1].astype(np.int32)
    if rng.random() < 0.3 and joint.max() > 0:
        joint[joint == joint.max()] = -1
    if root:
        groups, lower, upper = groups[:-1], lower[:, :-1], upper[:, :-1]
    number = int(joint.max()) + 1
    fractional = np.array([x[joint == s].sum() for s in range(number)])
    totals = np.rint(fractional).astype(np.int64)
    if not root:  # shared out among the joint totals, with a whole sum where all children are in one
        totals = np.floor(fractional + 1e-9).astype(np.int64)
        if joint.min() >= 0:
            left = int(parent.sum() - totals.sum())
            totals[np.argsort(totals - fractional, kind="stable")[:left]] += 1
    pairs = [(np.flatnonzero(joint == s), int(totals[s])) for s in range(number)]
    return (x, parent, mask, passes, groups, lower, upper, child_keys, cell_keys), joint, totals, pairs


def fast(case, joint, totals, **options):
    *rest, cell_keys = case
    return round_family(*rest, cell_keys=cell_keys, joint=joint, joint_total=totals, **options)


def agrees(case, joint, totals, pairs, **options):
    expected, objectives = slow.enumerate_rounding(*case, joint=pairs)
    if expected is None:
        with pytest.raises(InfeasibleFamily):
            fast(case, joint, totals, **options)
        return False
    result = fast(case, joint, totals, **options)
    np.testing.assert_array_equal(result.values, expected)
    assert quanta(result) == objectives
    return True


@pytest.mark.parametrize("root", [False, True])
def test_enumeration_finds_the_same_table(root):
    solved = 0
    for seed in range(40):
        shape = [(2, 3), (3, 3), (2, 4), (4, 2)][seed % 4] if not root else [(2, 4), (3, 3), (2, 5)][seed % 3]
        solved += agrees(*joined(seed, *shape, root=root))
    assert solved > 25


@pytest.mark.parametrize("shift", [-1, 1])
def test_totals_that_few_tables_hold_agree_with_enumeration(shift):
    """Totals away from the estimate: some have a rounding, some have none, and both must be found."""
    outcomes = set()
    for seed in range(30):
        case, joint, totals, _ = joined(seed, *[(3, 3), (2, 4)][seed % 2], root=seed % 3 == 0)
        totals = totals.copy()
        totals[0] += shift
        pairs = [(np.flatnonzero(joint == s), int(totals[s])) for s in range(len(totals))]
        outcomes.add(agrees(case, joint, totals, pairs))
    assert outcomes == {False, True}


@pytest.mark.parametrize("seed", seeds(30))
def test_milp_reaches_the_same_objectives(seed):
    case, joint, totals, pairs = joined(3000 + seed, *[(4, 6), (3, 12), (6, 8)][seed % 3], root=seed % 4 == 0)
    passes = (tuple(rows for one in case[3] for rows in one),)
    case = (*case[:3], passes, *case[4:])
    expected, objectives = slow.solve_milp(*case, joint=pairs)
    if expected is None:
        with pytest.raises(InfeasibleFamily):
            fast(case, joint, totals)
        return
    assert abs(quanta(fast(case, joint, totals))[0] - objectives[0]) <= 1


@pytest.mark.parametrize("seed", seeds(15))
def test_crossing_rows_by_milp_agree_with_enumeration(seed):
    rng = np.random.default_rng(seed)
    children, n = 2, 4
    x = np.round(rng.random((children, n)) * 8) / 4
    total = int(np.rint(x.sum()))
    one, two = np.array([0, 0, 1, 1], np.int32), np.array([0, 1, 0, 1], np.int32)
    passes = ((one, two), (one, two, np.arange(n, dtype=np.int32)))
    groups, bounds = np.zeros((0, n), bool), np.zeros((children, 0), np.int64)
    keys = rng.integers(0, 2**63, children).astype(np.uint64), rng.integers(0, 2**63, n).astype(np.uint64)
    case = (x, None, np.ones(x.shape, bool), passes, groups, bounds, bounds, *keys)
    joint, totals = np.zeros(children, np.int32), np.array([total])
    assert agrees(case, joint, totals, [([0, 1], total)], milp=True)
    assert fast(case, joint, totals, milp=True).method == "milp"


def test_a_group_of_one_child_is_a_fixed_total():
    for seed in range(10):
        case = instance(seed, 1, 8, root=True)
        x, parent, mask, passes, groups, lower, upper, *keys = case
        shared = (x, parent, mask, passes, groups[:-1], lower[:, :-1], upper[:, :-1], *keys)
        expected = round_family(*case[:-1], cell_keys=case[-1]).values
        found = fast(shared, np.zeros(1, np.int32), lower[:, -1].copy())
        np.testing.assert_array_equal(found.values, expected)


def test_joint_totals_change_the_table_and_the_sum_is_exact():
    rng = np.random.default_rng(0)
    x = rng.random((3, 40)) * 3
    keys = np.arange(3, dtype=np.uint64)
    passes = ((np.zeros(40, np.int32),), (np.arange(40, dtype=np.int32),))
    common = (x, None, np.ones(x.shape, bool), passes, None, None, None, keys)
    joint = np.array([0, 0, 1], np.int32)
    totals = np.array([int(x[:2].sum()) + 3, int(x[2].sum()) - 2])
    found = round_family(*common, joint=joint, joint_total=totals).values
    assert found[:2].sum() == totals[0]
    assert found[2].sum() == totals[1]
    assert found.sum() != round_family(*common).values.sum()


def test_totals_in_conflict_are_named():
    x = np.array([[0.5, 0.5], [0.5, 0.5], [1.0, 1.0]])
    passes = ((np.zeros(2, np.int32),), (np.arange(2, dtype=np.int32),))
    names = RoundingNames("9", groups=("never", "gq"), joint=("total of A", "total of B"))
    groups = np.array([[True, True], [True, False]])
    with pytest.raises(InfeasibleFamily) as caught:
        round_family(
            x, np.array([2, 2]), np.ones((3, 2), bool), passes, groups,
            np.zeros((3, 2), np.int64), np.full((3, 2), 9), np.arange(3, dtype=np.uint64),
            joint=np.array([0, 0, 1], np.int32), joint_total=np.array([2, 1]), names=names,
        )  # fmt: skip
    assert caught.value.constraints == ("total of B",)


@pytest.mark.parametrize(("joint", "totals"), [([0], [3]), ([0, 1], [3]), ([-2, 0], [3]), ([0, 0], [[3]])])
def test_malformed_joint_totals_are_refused(joint, totals):
    passes = ((np.arange(2, dtype=np.int32),),)
    with pytest.raises(ValueError, match="joint totals"):
        round_family(
            np.ones((2, 2)), None, np.ones((2, 2), bool), passes, None, None, None,
            np.arange(2, dtype=np.uint64), joint=np.array(joint, np.int32), joint_total=np.array(totals),
        )  # fmt: skip


def test_children_in_another_order_give_the_same_table():
    for seed in range(20):
        case, joint, totals, _ = joined(seed, 4, 5, root=seed % 2 == 0)
        x, parent, mask, passes, groups, lower, upper, child_keys, cell_keys = case
        order = np.random.default_rng(seed).permutation(4)
        moved = (x[order], parent, mask[order], passes, groups, lower[order], upper[order], child_keys[order])
        try:
            expected = fast(case, joint, totals).values[order]
        except InfeasibleFamily:
            continue
        found = fast((*moved, cell_keys), joint[order], totals).values
        np.testing.assert_array_equal(found, expected)
