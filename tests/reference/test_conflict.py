"""Smallest conflicts of constraints against brute force over all subsets and all small counts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import sparse
from support.seeds import seeds

from opendas.solvers.problem import conflict as conflict_module
from opendas.solvers.problem.conflict import NO_LIMIT, RangeSystem, can_hold, find_conflict

TOP = 5


def every_point(variables: int) -> np.ndarray:
    """All integer points that can matter: no right-hand side is above `TOP` minus one."""
    return np.array(list(itertools.product(range(TOP), repeat=variables)), dtype=np.int64)


def held(system: RangeSystem, points: np.ndarray) -> np.ndarray:
    """Which point keeps which constraint, bool (points, m), by the definition."""
    sums = points @ system.matrix.toarray().T
    return (sums >= system.lower) & (sums <= system.upper)


def brute_force(system: RangeSystem) -> int | None:
    """Size of a smallest set of constraints that no point keeps."""
    keeps = held(system, every_point(system.matrix.shape[1]))
    for size in range(1, len(system) + 1):
        for rows in itertools.combinations(range(len(system)), size):
            if not keeps[:, rows].all(axis=1).any():
                return size
    return None


def random_system(seed: int) -> RangeSystem:
    rng = np.random.default_rng(seed)
    variables, rows = int(rng.integers(2, 5)), int(rng.integers(3, 8))
    matrix = (rng.random((rows, variables)) < 0.5).astype(np.int64)
    lower = rng.integers(0, TOP - 1, rows) * (rng.random(rows) < 0.6)
    upper = np.where(rng.random(rows) < 0.4, NO_LIMIT, np.maximum(lower, rng.integers(0, TOP - 1, rows)))
    return RangeSystem(sparse.csr_array(matrix), lower.astype(np.int64), upper.astype(np.int64))


@pytest.mark.parametrize("seed", seeds(120))
def test_the_smallest_conflict_is_that_of_brute_force(seed: int) -> None:
    system = random_system(seed)
    expected = brute_force(system)
    found = find_conflict(system)
    assert can_hold(system) == (expected is None)
    if expected is None:
        assert found is None
        return
    assert found is not None
    assert found.smallest
    assert found.irreducible
    assert len(found.rows) == expected
    keeps = held(system, every_point(system.matrix.shape[1]))
    assert not keeps[:, found.rows].all(axis=1).any()
    if found.least is not None:
        assert found.least > found.most


def test_brute_force_meets_conflicts_of_several_sizes_and_none() -> None:
    sizes = {brute_force(random_system(seed)) for seed in range(120)}
    assert {None, 1, 2, 3} <= sizes


@pytest.mark.parametrize("seed", seeds(40))
def test_without_the_search_a_conflict_is_still_irreducible(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = random_system(seed)
    monkeypatch.setattr(conflict_module, "MOST_STEPS", 0)
    found = find_conflict(system)
    if found is None:
        assert brute_force(system) is None
        return
    keeps = held(system, every_point(system.matrix.shape[1]))
    assert found.irreducible
    for row in found.rows:
        rest = [other for other in found.rows if other != row]
        assert keeps[:, rest].all(axis=1).any()


def ranges(rows: list[tuple[list[int], int, int]], variables: int) -> RangeSystem:
    matrix = np.zeros((len(rows), variables), np.int64)
    for i, (cells, _, _) in enumerate(rows):
        matrix[i, cells] = 1
    return RangeSystem(
        sparse.csr_array(matrix),
        np.array([row[1] for row in rows]),
        np.array([row[2] for row in rows]),
    )


def test_what_is_asked_for_and_what_is_left_are_told() -> None:
    """Two lower bounds of three and four, a total of six."""
    found = find_conflict(ranges([([0], 3, NO_LIMIT), ([1], 4, NO_LIMIT), ([0, 1, 2], 6, 6)], 3))
    assert found is not None
    assert (found.rows, found.least, found.most) == ((0, 1, 2), 7, 6)


def test_an_earlier_constraint_is_preferred() -> None:
    total = ([0, 1], 5, 5)
    found = find_conflict(ranges([([0, 1], 0, 4), ([0, 1], 0, 3), total, ([0, 1], 0, 2)], 2))
    assert found is not None
    assert len(found.rows) == 2
    assert 2 in found.rows


def test_a_conflict_of_whole_numbers_only_is_found() -> None:
    """Three pairs of cells with one record each: halves would do."""
    found = find_conflict(ranges([([0, 1], 1, 1), ([1, 2], 1, 1), ([0, 2], 1, 1)], 3))
    assert found is not None
    assert found.rows == (0, 1, 2)
    assert found.least is None


@pytest.mark.parametrize("size", [1 << 31, 1 << 38, (1 << 39) - 1])
def test_counts_up_to_the_limit_are_compared_exactly(size: int) -> None:
    """One record too many among half a million million."""
    parts = [([i], size // 4, size // 4) for i in range(4)]
    total = 4 * (size // 4)
    assert find_conflict(ranges([*parts, ([0, 1, 2, 3], total, total)], 4)) is None
    found = find_conflict(ranges([*parts, ([0, 1, 2, 3], total + 1, total + 1)], 4))
    assert found is not None
    assert found.rows == (0, 1, 2, 3, 4)
    assert found.least is not None
    assert found.least - found.most == 1


def test_constraints_without_variables() -> None:
    assert find_conflict(ranges([([], 0, 3)], 0)) is None
    found = find_conflict(ranges([([], 0, 3), ([], 1, 1)], 0))
    assert found is not None
    assert found.rows == (1,)


def test_many_constraints_give_a_conflict_that_is_not_called_smallest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand lower bounds of one against a total of 999."""
    rows = [([i], 1, NO_LIMIT) for i in range(1000)] + [(list(range(1000)), 999, 999)]
    monkeypatch.setattr(conflict_module, "MOST_ROWS", 500)
    found = find_conflict(ranges(rows, 1000))
    assert found is not None
    assert not found.smallest
    assert len(found.rows) == 1001
    assert (found.least, found.most) == (1000, 999)
