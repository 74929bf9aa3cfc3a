"""Matrices that are infinite in some directions behave like the limits of ordinary ones."""

from __future__ import annotations

import numpy as np
import pytest

from opendas.gls.blocks import RowClasses
from opendas.gls.information import Extended


def random_pair(
    rng: np.random.Generator, d: int, finite: int, infinite: int
) -> tuple[np.ndarray, np.ndarray]:
    """A matrix of some rank, and directions orthogonal to it in which it is infinite."""
    q = np.linalg.qr(rng.normal(size=(d, d)))[0]
    a, b = q[:, :finite], q[:, finite : finite + infinite]
    return (a * rng.uniform(0.5, 3.0, finite)) @ a.T, (b * rng.uniform(1.0, 4.0, infinite)) @ b.T


def as_one(m: np.ndarray, k: np.ndarray) -> Extended:
    return Extended((m[None, None],), (k[None, None],))


@pytest.mark.parametrize(
    ("d", "finite", "infinite"), [(1, 1, 0), (1, 0, 1), (1, 0, 0), (4, 4, 0), (4, 2, 1), (4, 0, 2), (5, 3, 2)]
)
def test_the_dual_is_the_limit_of_inverses(d: int, finite: int, infinite: int) -> None:
    m, k = random_pair(np.random.default_rng(3), d, finite, infinite)
    dual = as_one(m, k).dual()
    small = 1e-4
    limit = np.linalg.inv(m + k / small + small * np.eye(d))
    found = dual.finite[0][0, 0] + (0.0 if dual.infinite is None else dual.infinite[0][0, 0] / small)
    np.testing.assert_allclose(found, limit, rtol=0, atol=2e-3)


@pytest.mark.parametrize(("finite", "infinite"), [(4, 0), (2, 1), (0, 2), (0, 0), (3, 1)])
def test_the_dual_of_the_dual_is_the_matrix(finite: int, infinite: int) -> None:
    m, k = random_pair(np.random.default_rng(4), 4, finite, infinite)
    again = as_one(m, k).dual().dual()
    np.testing.assert_allclose(again.finite[0][0, 0], m, atol=1e-12)
    if not infinite:
        assert again.infinite is None
        return
    assert np.linalg.matrix_rank(again.infinite[0][0, 0], tol=1e-9) == infinite
    np.testing.assert_allclose(again.infinite[0][0, 0] @ k, k, atol=1e-9)


def test_a_finite_part_in_infinite_directions_is_forgotten() -> None:
    m, k = random_pair(np.random.default_rng(5), 3, 2, 1)
    assert np.allclose(as_one(m + 7.0 * k, k).dual().finite[0], as_one(m, k).dual().finite[0])


def test_everything_exact_leaves_nothing() -> None:
    dual = as_one(np.diag([2.0, 5.0]), np.eye(2)).dual()
    assert not dual.finite[0].any()
    assert dual.infinite is None


def test_nothing_known_of_a_large_area_says_nothing_of_a_small_one() -> None:
    # Beside an area of two million leaves, one leaf of which nothing is known had no variance at all.
    rows = RowClasses(np.zeros(1, np.int64), (np.ones((1, 1, 1, 1)),))
    unknown = np.array([1.0, 2e6, 0.0]).reshape(3, 1, 1, 1)
    found = rows.variances(Extended((np.full((3, 1, 1, 1), 0.5),), (unknown,)))
    np.testing.assert_array_equal(found[:, 0], [np.inf, np.inf, 0.5])
