"""Theorem 2 and the Gaussian rule by exact variances, and why the sum of squares was rejected."""

from __future__ import annotations

import importlib
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from support.each import each

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
from bypassing import SharedSpine, bypass_effect, least_sum_of_squares

PARENTS = (
    np.array([0]),
    np.array([0, 0]),
    np.array([0, 0, 1, 1, 1]),
    np.array([0, 0, 0, 1, 2, 2, 3, 3, 4]),
)


def covariance(spine: SharedSpine) -> np.ndarray:
    """The covariance matrix of all leaves, from the matrix written out."""
    areas = np.eye(len(spine.parents[-1]))
    information = np.zeros_like(areas)
    for number in reversed(range(len(spine.parents))):
        weight = spine.shares[number] ** (2 if spine.pure else 1)
        information += (areas.T * weight) @ areas
        gather = np.zeros((spine.parents[number].max() + 1, len(areas)))
        gather[spine.parents[number], np.arange(len(areas))] = 1.0
        areas = gather @ areas
    return np.linalg.inv(information)


def never_worse(before: SharedSpine, after: SharedSpine) -> bool:
    """Whether no linear function of the leaves has a larger variance: a positive semidefinite difference."""
    first, second = covariance(before), covariance(after)
    return bool(np.linalg.eigvalsh(first - second)[0] > -1e-11 * np.abs(first).max())


def family(children: int, parent_share: float, child_share: float, *, pure: bool) -> SharedSpine:
    """A root, the parent in question beside another, and children who have children themselves."""
    parents = (
        np.array([0]),
        np.array([0, 0]),
        np.array([0] * children + [1, 1]),
        np.repeat(np.arange(children + 2), 2),
    )
    shares = (
        np.array([0.1]),
        np.array([parent_share, 0.2]),
        np.array([child_share] * children + [0.3, 0.1]),
        np.linspace(0.1, 0.4, 2 * children + 4),
    )
    return SharedSpine(parents, shares, pure)


@pytest.mark.parametrize("pure", [True, False])
def test_variances_are_those_of_the_matrix(pure: bool) -> None:
    rng = np.random.default_rng(2)
    spine = SharedSpine(PARENTS, tuple(rng.uniform(0.05, 0.5, len(p)) for p in PARENTS), pure)
    expected = covariance(spine)
    found = spine.variances()
    assert np.allclose(found[-1], np.diag(expected), rtol=1e-12)
    assert np.isclose(found[0][0], expected.sum(), rtol=1e-12)


@each("children", [1, 2, 3, 4, 7])
@each("above", [1.0, 1.05, 2.0, 10.0])
def test_theorem_2_no_variance_grows_from_the_threshold_on(children: int, above: float) -> None:
    parent = 0.2
    child = max((children - 1) * parent / 2 * above, 0.01)
    spine = family(children, parent, child, pure=True)
    bypassed = spine.bypassed(1, 0)
    assert never_worse(spine, bypassed)
    effect = bypass_effect(spine, 1, 0)
    assert effect.grown == 0
    assert effect.sum_after < effect.sum_before


@pytest.mark.parametrize("children", [2, 3, 4, 7])
def test_below_the_threshold_some_variance_can_grow(children: int) -> None:
    """Remark 1: a parent and its children alone, and the parent's total."""
    for factor, grows in ((0.95, True), (1.0, False)):
        child = (children - 1) * 0.2 / 2 * factor
        spine = SharedSpine(
            (np.array([0]), np.zeros(children, dtype=np.int64)),
            (np.array([0.2]), np.full(children, child)),
            pure=True,
        )
        before, after = spine.variances()[0][0], spine.bypassed(0, 0).variances()[0][0]
        assert (after > before * (1 + 1e-9)) == grows
        assert np.isclose(before, children / (children * 0.2**2 + child**2))
        assert np.isclose(after, children / (child + 0.2) ** 2)


def test_children_with_different_shares_have_a_threshold_of_their_own() -> None:
    """Sum of parent / (2 child + parent) at most one: docs/proofs/bypass.md, proposition 1."""
    rng = np.random.default_rng(8)
    seen = set()
    for _ in range(60):
        spine = family(3, 0.2, 0.2, pure=True)
        spine.shares[2][:3] = rng.uniform(0.02, 0.6, 3)
        allowed = (0.2 / (2 * spine.shares[2][:3] + 0.2)).sum() <= 1
        seen.add(bool(allowed))
        if allowed:
            assert never_worse(spine, spine.bypassed(1, 0))
    assert seen == {True, False}


@pytest.mark.parametrize("children", [2, 3, 7])
@pytest.mark.parametrize("child", [0.01, 0.2, 5.0])
def test_gaussian_noise_makes_the_parent_worse_with_two_children_or_more(children: int, child: float) -> None:
    spine = family(children, 0.2, child, pure=False)
    bypassed = spine.bypassed(1, 0)
    assert bypassed.variances()[1][0] > spine.variances()[1][0] * (1 + 1e-9)
    assert not never_worse(spine, bypassed)
    assert bypass_effect(spine, 1, 0).grown >= 1


def test_gaussian_noise_leaves_all_unchanged_with_one_child() -> None:
    spine = family(1, 0.2, 0.3, pure=False)
    for before, after in zip(spine.variances(), spine.bypassed(1, 0).variances(), strict=True):
        assert np.allclose(before, after, rtol=1e-12)


def test_a_child_without_own_share_equals_its_parent() -> None:
    """The form that TopDown runs: the share moves up to the parent of the only child."""
    spine = family(1, 0.2, 0.3, pure=True)
    up = SharedSpine(spine.parents, tuple(s.copy() for s in spine.shares), pure=True)
    up.shares[1][0], up.shares[2][0] = 0.5, 0.0
    for down, moved in zip(spine.bypassed(1, 0).variances(), up.variances(), strict=True):
        assert np.allclose(down, moved, rtol=1e-12)


@pytest.mark.parametrize("pure", [True, False])
def test_the_sum_of_squares_bypasses_where_single_errors_grow(pure: bool) -> None:
    shares = tuple(np.full(len(p), 0.25) for p in PARENTS)
    spine = SharedSpine(PARENTS, shares, pure)
    found, chosen = least_sum_of_squares(spine)
    assert chosen
    sums = [sum(v.sum() for v in s.variances()) for s in (spine, found)]
    assert sums[1] < sums[0]
    worst = max((b / a).max() for a, b in zip(spine.variances(), found.variances(), strict=True))
    assert worst > 1.05
    paths = [s[-1] for s in (_path_sums(spine), _path_sums(found))]
    assert np.allclose(paths[0], paths[1])


def _path_sums(spine: SharedSpine) -> list[np.ndarray]:
    sums = [spine.shares[0]]
    for parent, shares in zip(spine.parents[1:], spine.shares[1:], strict=True):
        sums.append(sums[-1][parent] + shares)
    return sums


def test_the_experiment_shows_it() -> None:
    script = importlib.import_module("bypass_rules")
    found = {(o.mechanism, o.shares, o.rule): o for o in script.outcomes(blocks=250)}
    for (mechanism, shares, rule), outcome in found.items():
        if rule in ("only child", "Theorem 2"):
            assert outcome.grown == 0
            assert outcome.worst < 1 + 1e-9
        if rule == "sum of squares":
            chosen = found[mechanism, shares, "Theorem 2" if mechanism == "Laplace" else "only child"]
            assert sum(outcome.bypassed.values()) > 2 * sum(chosen.bypassed.values())
            assert outcome.root_mean_square < chosen.root_mean_square
            assert outcome.worst > 1.2


def test_integer_laplace_noise_meets_the_theorem_too() -> None:
    """One over the exact variance is cosh(1 / scale) - 1, and the inequality holds for it."""
    from opendas.sampling.laws import DiscreteLaplace

    for children in (1, 2, 3, 5):
        for epsilon in (Fraction(1, 10), Fraction(1), Fraction(4)):
            child = Fraction(children - 1, 2) * epsilon
            gain = 1 / DiscreteLaplace(1 / (epsilon + child)).variance
            gain -= 1 / DiscreteLaplace(1 / child).variance if child else 0.0
            assert gain >= children / DiscreteLaplace(1 / epsilon).variance * (1 - 1e-12)
            known = float(np.cosh(float(epsilon)) - 1)
            assert np.isclose(1 / DiscreteLaplace(1 / epsilon).variance, known, rtol=1e-9)
