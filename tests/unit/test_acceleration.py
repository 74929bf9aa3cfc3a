"""Anderson's acceleration: a twin by plain least squares, affine iterations, blocks, steps taken back."""

from __future__ import annotations

import numpy as np
import pytest
from support.seeds import seeds

from opendas.arrays import Floats
from opendas.solvers.least_squares.acceleration import LEAP, MEMORY, RIDGE, accelerate, no_history


def contraction(seed: int, size: int) -> tuple[Floats, Floats]:
    """Matrix with eigenvalues in (0, 1), some near 1, and a constant."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(size, size)))[0]
    return turn @ np.diag(rng.uniform(0.2, 0.999, size)) @ turn.T, rng.normal(size=size)


def run(matrix: Floats, constant: Floats, steps: int) -> list[Floats]:
    size = len(constant)
    history, start, blocks = no_history(1, size, 1), np.array([0, size]), np.array([0])
    w, points = np.zeros((1, size)), []
    for _ in range(steps):
        before, w = w, w @ matrix.T + constant
        accelerate(history, start, blocks, before, w)
        points.append(w[0].copy())
    return points


@pytest.mark.parametrize("seed", seeds(10))
def test_affine_iterations_end_after_as_many_steps_as_dimensions(seed):
    matrix, constant = contraction(seed, 6)
    answer = np.linalg.solve(np.eye(6) - matrix, constant)
    plain = np.zeros(6)
    for _ in range(9):
        plain = matrix @ plain + constant
    found = run(matrix, constant, 9)[-1]
    assert np.abs(found - answer).max() < 1e-3 * np.abs(plain - answer).max()


@pytest.mark.parametrize("seed", seeds(10))
def test_a_combination_is_that_of_plain_least_squares(seed):
    size, steps = 30, 2 * MEMORY
    matrix, constant = contraction(seed, size)
    points = run(matrix, constant, steps)
    before = [np.zeros(size), *points[:-1]]
    after = [matrix @ w + constant for w in before]
    step = [t - w for t, w in zip(after, before, strict=True)]
    for k in range(1, steps):
        if step[k] @ step[k] > 4.0 * (step[k - 1] @ step[k - 1]):
            break  # taken back: what follows starts again
        first = max(0, k - MEMORY)
        differences = np.diff(step[first : k + 1], axis=0).T
        kept = differences.shape[1]
        ridge = np.sqrt(RIDGE * (differences**2).sum()) * np.eye(kept)
        gamma = np.linalg.lstsq(
            np.vstack([differences, ridge]), np.append(step[k], np.zeros(kept)), rcond=None
        )[0]
        leap = np.diff(after[first : k + 1], axis=0).T @ gamma
        expected = after[k] - (leap if leap @ leap <= LEAP * (step[k] @ step[k]) else 0.0)
        np.testing.assert_allclose(points[k], expected, rtol=1e-3, atol=1e-3 * np.abs(constant).max())


def test_blocks_are_combined_apart():
    one, two = contraction(1, 4), contraction(2, 3)
    both = np.zeros((7, 7))
    both[:4, :4], both[4:, 4:] = one[0], two[0]
    history, start = no_history(1, 7, 2), np.array([0, 4, 7])
    w = np.zeros((1, 7))
    for _ in range(5):
        before, w = w, w @ both.T + np.concatenate([one[1], two[1]])
        accelerate(history, start, np.array([0, 1]), before, w)
    np.testing.assert_array_equal(w[0, :4], run(*one, 5)[-1])
    np.testing.assert_array_equal(w[0, 4:], run(*two, 5)[-1])


def test_a_combination_that_made_the_step_much_longer_is_taken_back():
    history, start, blocks = no_history(1, 1, 1), np.array([0, 1]), np.array([0])
    for before, after in ((0.0, 1.0), (1.0, 1.5)):
        w = np.array([[after]])
        accelerate(history, start, blocks, np.array([[before]]), w)
    assert w[0, 0] == pytest.approx(2.0)  # the combination of two points of an affine iteration is its answer
    w = np.array([[12.0]])  # but a step of ten follows it
    accelerate(history, start, blocks, np.array([[2.0]]), w)
    assert w[0, 0] == 1.5
    assert history.counts[0] == -1


@pytest.mark.parametrize(("slope", "taken"), [(0.9, True), (0.9999, False)])
def test_a_leap_far_beyond_the_last_step_is_not_taken(slope, taken):
    points = run(np.array([[slope]]), np.ones(1), 2)
    assert points[-1] == pytest.approx([1.0 / (1.0 - slope) if taken else 1.0 + slope])
