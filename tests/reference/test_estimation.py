"""Families against slow twins: a general solver for least squares, enumeration for rounding."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import clarabel
import numpy as np
import pytest
import scipy.sparse as sp
from support.assembled import assemble
from support.mini import mini_frame, mini_histogram, mini_product, to_dense

from opendas.constraints.table import InvariantAnswers, LevelConstraints
from opendas.engines.drive import estimate_spine
from opendas.errors import InfeasibleFamily
from opendas.privacy.relations import Mechanism
from opendas.topdown.constraint_groups import Groups
from opendas.topdown.failsafe import relax_parent
from opendas.topdown.family import Progress, _least_squares, estimate_family
from opendas.topdown.model import Family


def slow_least_squares(family, rules, measurement, names, held):
    """Equation (7.5) written out: every query row, every constraint, a general interior-point solver."""
    children, cells = len(family.tie_keys), len(family.support)
    size = children * cells
    rows, target = [], []
    for query in measurement.queries:
        if query.name not in names:
            continue
        for c in range(children):
            for r in range(len(query.rows)):
                row = np.zeros(size)
                row[c * cells + np.flatnonzero(query.compact == r)] = 1 / np.sqrt(query.variance)
                rows.append(row)
                target.append(query.values[c, r] / np.sqrt(query.variance))
    A = np.array(rows)
    b = np.array(target)
    equal, equal_to, less, less_than = [], [], [], []
    for j in range(cells if family.parent is not None else 0):
        row = np.zeros(size)
        row[j::cells] = 1
        equal.append(row)
        equal_to.append(float(family.parent[j]))
    for c in range(children):
        groups = [
            (
                rules.bound_cells[k, family.support],
                family.constraints.lower[c, k],
                family.constraints.upper[c, k],
            )
            for k in range(len(rules.bound_names))
        ]
        groups += [
            (np.ones(cells, bool), invariant.answers[c, 0], invariant.answers[c, 0])
            for invariant in family.constraints.invariants
        ]
        for inside, low, high in groups:
            row = np.zeros(size)
            row[c * cells + np.flatnonzero(inside)] = 1
            less += [row, -row]
            less_than += [float(high), -float(low)]
    for query, kept in held:
        for c in range(children):
            for r in range(len(query.rows)):
                row = np.zeros(size)
                row[c * cells + np.flatnonzero(query.compact == r)] = 1
                equal.append(row)
                equal_to.append(kept[c, r])
    less += list(-np.eye(size))
    less_than += [0.0] * size
    blocks = [np.array(equal).reshape(-1, size), np.array(less)]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    solution = clarabel.DefaultSolver(
        sp.csc_matrix(2 * A.T @ A),
        -2 * A.T @ b,
        sp.csc_matrix(np.vstack(blocks)),
        np.concatenate([equal_to, less_than]),
        [clarabel.ZeroConeT(len(equal)), clarabel.NonnegativeConeT(len(less))],
        settings,
    ).solve()
    x = np.array(solution.x)
    return x.reshape(children, cells), float(((A @ x - b) ** 2).sum()), A, b


def town_families(run):
    """Yield (family, rules, measurement) of towns below the true regions, and blocks below the true towns."""
    source = run.measurements()
    for level in (1, 2):
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


@pytest.mark.parametrize("seed", range(4))
def test_least_squares_passes_equal_a_general_solver(seed: int) -> None:
    frame = mini_frame(seed=seed)
    run = assemble(mini_product(), frame, mini_histogram(frame, seed=seed))
    for family, rules, measurement in town_families(run):
        groups = Groups.build(family.support, family.parent, family.constraints, rules, family.label)
        fast = _least_squares(family, rules, measurement, groups, Progress())
        held = []
        for names in rules.least_squares:
            slow, objective, A, b = slow_least_squares(family, rules, measurement, names, held)
            for query in measurement.queries:
                if query.name in names:
                    kept = np.zeros((len(slow), len(query.rows)))
                    np.add.at(kept.T, query.compact, slow.T)
                    held.append((query, kept))
        ours = float(((A @ fast.ravel() - b) ** 2).sum())
        assert ours == pytest.approx(objective, rel=1e-5, abs=1e-5)
        assert np.abs(fast - slow).max() < 1e-2


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mechanism", list(Mechanism))
def test_every_constraint_holds_in_the_release(seed: int, mechanism: Mechanism) -> None:
    frame = mini_frame(seed=seed, towns=4, blocks=6)
    truth = mini_histogram(frame, seed=seed)
    run = assemble(mini_product(), frame, truth, mechanism=mechanism, rho=Fraction(1, 2))
    found = estimate_spine(
        run.spine, run.constraints, run.worker(), histogram=run.counts, estimator="topdown", workers=1
    )
    dense = to_dense(found.leaves).reshape(-1, 3, 3)
    kinds = dense.sum(2)
    units = np.stack([frame.units[c] for c in ("homes", "schools", "prisons")], axis=1)
    assert dense.min() >= 0
    assert np.all(kinds >= units * [0, 1, 1])
    assert np.all(kinds <= units * 99999)
    assert dense[:, 2, 0].sum() == 0
    regions = run.spine.leaf_starts(0)
    assert np.array_equal(found.leaves.aggregate(regions).row_totals(), truth.aggregate(regions).row_totals())
    assert not np.array_equal(dense, to_dense(truth).reshape(-1, 3, 3))


def test_more_budget_gives_the_truth_back() -> None:
    frame = mini_frame()
    run = assemble(mini_product(), frame, mini_histogram(frame), rho=Fraction(10**6))
    found = estimate_spine(
        run.spine, run.constraints, run.worker(), histogram=run.counts, estimator="topdown", workers=1
    )
    assert np.array_equal(to_dense(found.leaves), to_dense(run.counts))


def test_block_by_block_obeys_the_leaf_constraints() -> None:
    frame = mini_frame()
    run = assemble(mini_product(invariant=False), frame, mini_histogram(frame))
    found = estimate_spine(
        run.spine, run.constraints, run.worker(), histogram=run.counts, estimator="block-by-block", workers=1
    )
    kinds = to_dense(found.leaves).reshape(-1, 3, 3).sum(2)
    units = np.stack([frame.units[c] for c in ("homes", "schools", "prisons")], axis=1)
    assert np.all(kinds >= units * [0, 1, 1])
    assert np.all((kinds == 0) | (units > 0))


def infeasible_family(run):
    """Two children that need three people in schools below a parent with one."""
    support = np.array([0, 3], dtype=np.int32)
    constraints = LevelConstraints(np.array([[0, 2, 0], [0, 1, 0]]), np.array([[99, 99, 0], [99, 99, 0]]), ())
    return Family("R1", support, np.array([5, 1]), constraints, np.arange(2, dtype=np.uint64))


def test_an_infeasible_family_names_family_and_constraint() -> None:
    frame = mini_frame()
    run = assemble(mini_product(), frame, mini_histogram(frame))
    family = infeasible_family(run)
    measurement = run.measurements().family(1, 0, 2, family.support)
    with pytest.raises(InfeasibleFamily) as caught:
        estimate_family(family, run.rules[1], measurement)
    assert caught.value.family == "R1"
    assert "school" in " ".join(caught.value.constraints)


def test_the_failsafe_relaxes_the_parent_as_little_as_possible() -> None:
    frame = mini_frame()
    run = assemble(mini_product(), frame, mini_histogram(frame))
    family = infeasible_family(run)
    relaxed, note = relax_parent(family, run.rules[1], InfeasibleFamily("R1", "test", ("school",)))
    new = np.zeros(9, np.int64)
    new[relaxed.support] = relaxed.parent
    # Three in schools are needed where one is: two move over from homes, the total stays.
    assert new.reshape(3, 3)[1].sum() == 3
    assert new.sum() == 6
    assert "by 4 in L1" in note
    measurement = run.measurements().family(1, 0, 2, relaxed.support)
    counts = estimate_family(relaxed, run.rules[1], measurement).counts
    assert np.array_equal(counts.sum(axis=0), relaxed.parent)


def test_invariant_answers_that_the_support_cannot_hold_are_infeasible() -> None:
    frame = mini_frame()
    run = assemble(mini_product(), frame, mini_histogram(frame))
    group = run.product.workload.group("kind")
    constraints = LevelConstraints(
        np.zeros((2, 3), np.int64),
        np.full((2, 3), 99),
        (InvariantAnswers("kind@town", group, np.array([[1, 1, 0], [1, 0, 0]])),),
    )
    family = Family("R", np.array([0], np.int32), np.array([2]), constraints, np.arange(2, dtype=np.uint64))
    with pytest.raises(InfeasibleFamily, match="kind@town"):
        estimate_family(family, run.rules[1], run.measurements().family(1, 0, 2, family.support))
