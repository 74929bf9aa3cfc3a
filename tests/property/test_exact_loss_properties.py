"""Properties of the exact curve that hold for every composition."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.delta_of import delta_of
from support.privacy_loss import Answer, slow_delta, slow_power
from support.seeds import examples

from opendas.measurement.account import spare_noise
from opendas.privacy.attacker import Attacker, loss_tail, zcdp_power_bound
from opendas.privacy.composition import ChangedAnswers, ComposedLoss, WorstLoss
from opendas.privacy.zcdp import epsilon_cks
from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace

POINTS = 1 << 12

# Few points: what is proved holds on any grid.
variances = st.fractions(min_value=Fraction(1, 5), max_value=80, max_denominator=40)
gaussians = st.dictionaries(
    st.tuples(variances.map(DiscreteGaussian), st.integers(1, 2)), st.integers(1, 4), min_size=1, max_size=5
)
laplaces = st.dictionaries(
    st.tuples(
        st.fractions(min_value=Fraction(1, 3), max_value=30, max_denominator=9).map(DiscreteLaplace),
        st.just(1),
    ),
    st.integers(1, 6),
    min_size=1,
    max_size=4,
)
deltas = st.sampled_from(["1e-15", "1e-10", "1e-6", "1e-3", "0.1"])


def rho_of(changes: ChangedAnswers) -> Fraction:
    return sum((n * Fraction(d * d) / (2 * noise.sigma2) for (noise, d), n in changes.items()), Fraction(0))  # type: ignore[union-attr]


@settings(max_examples=examples(15), deadline=None)
@given(gaussians, deltas)
def test_the_exact_epsilon_is_at_most_what_rho_gives(changes: ChangedAnswers, delta: str) -> None:
    bounds = ComposedLoss(changes, POINTS).epsilon(delta)
    assert 0 <= bounds.lower <= bounds.upper <= epsilon_cks(rho_of(changes), delta) * (1 + 1e-9) + 1e-9


@settings(max_examples=examples(10), deadline=None)
@given(st.one_of(gaussians, laplaces))
def test_bounds_are_ordered_and_fall(changes: ChangedAnswers) -> None:
    loss = ComposedLoss(changes, POINTS)
    found = [loss.epsilon(delta) for delta in ("1e-12", "1e-6", "1e-2")]
    assert all(bounds.lower <= bounds.upper for bounds in found)
    assert all(a.upper >= b.lower for a, b in pairwise(found))
    curve = [loss.delta(epsilon) for epsilon in (-2.0, -0.5, 0.0, 0.5, 2.0)]
    assert all(0 <= bounds.lower <= bounds.upper <= 1 for bounds in curve)
    assert all(a.upper >= b.lower for a, b in pairwise(curve))


@settings(max_examples=examples(10), deadline=None)
@given(laplaces)
def test_no_loss_of_laplace_noise_exceeds_the_sum(changes: ChangedAnswers) -> None:
    whole = sum((n / noise.scale for (noise, _), n in changes.items()), Fraction(0))  # type: ignore[union-attr]
    assert ComposedLoss(changes, POINTS).epsilon("1e-12").upper <= float(whole) * (1 + 1e-9)


@settings(max_examples=examples(10), deadline=None)
@given(gaussians, variances, deltas)
def test_one_answer_more_never_helps(changes: ChangedAnswers, sigma2: Fraction, delta: str) -> None:
    more = dict(changes)
    key = (DiscreteGaussian(sigma2), 1)
    more[key] = more.get(key, 0) + 1
    assert (
        ComposedLoss(more, POINTS).epsilon(delta).upper >= ComposedLoss(changes, POINTS).epsilon(delta).lower
    )


@settings(max_examples=examples(10), deadline=None)
@given(gaussians, deltas)
@example({(DiscreteGaussian(Fraction(53, 33)), 1): 2}, "1e-10")
def test_finer_grids_agree_with_coarser_ones(changes: ChangedAnswers, delta: str) -> None:
    coarse, fine = (ComposedLoss(changes, points).epsilon(delta) for points in (POINTS, POINTS << 3))
    assert coarse.lower <= fine.upper
    assert fine.lower <= coarse.upper
    # rounding of the transform, about 1e-7 of delta, is all the gap that a few answers have
    assert fine.gap <= coarse.gap + 1e-7


@settings(max_examples=examples(10), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.just("gaussian"),
            st.sampled_from([Fraction(1, 3), Fraction(1), Fraction(5, 2)]),
            st.integers(1, 2),
        ),
        min_size=1,
        max_size=2,
    ),
    st.floats(-1.0, 6.0),
)
def test_brute_force_lies_between(answers: list[Answer], epsilon: float) -> None:
    changes: dict[tuple[DiscreteGaussian, int], int] = {}
    for _, sigma2, shift in answers:
        key = (DiscreteGaussian(sigma2), shift)
        changes[key] = changes.get(key, 0) + 1
    bounds = ComposedLoss(changes, POINTS).delta(epsilon)  # type: ignore[arg-type]
    exact = slow_delta(answers, epsilon, 22)
    assert bounds.lower <= exact * (1 + 1e-12) + 1e-25
    assert exact <= bounds.upper * (1 + 1e-12) + 1e-25


def test_the_attacker_of_a_small_release_by_enumeration() -> None:
    answers: list[Answer] = [("gaussian", Fraction(2), 1), ("gaussian", Fraction(7, 2), 1)]
    attacker = Attacker(
        WorstLoss([{(DiscreteGaussian(Fraction(2)), 1): 1, (DiscreteGaussian(Fraction(7, 2)), 1): 1}])
    )
    for level in (1e-4, 0.01, 0.05, 0.3, 0.7, 0.99):
        exact = float(slow_power(answers, level, 26))
        assert exact <= attacker.power(level) + 1e-12
        assert attacker.power(level) == pytest.approx(exact, rel=2e-3)
    half = float(slow_delta(answers, 0.0, 26))
    assert attacker.guess() == pytest.approx(0.5 + half / 2, abs=1e-4)
    assert attacker.guess(0.9) == pytest.approx(attacker.guess(0.1), abs=1e-4)


def test_the_attacker_is_weaker_than_rho_allows() -> None:
    changes = {(DiscreteGaussian(Fraction(5)), 1): 4, (DiscreteGaussian(Fraction(40)), 1): 8}
    rho, attacker = rho_of(changes), Attacker(WorstLoss([changes]))
    levels = [0.001, 0.01, 0.05, 0.2, 0.5, 0.9]
    curve = [attacker.power(level) for level in levels]
    assert curve == sorted(curve)
    for level, power in zip(levels, curve, strict=True):
        assert level < power <= zcdp_power_bound(rho, level)
    for factor in (3.0, 10.0, 100.0):
        assert attacker.odds(factor) <= loss_tail(rho, factor)
    assert 0.5 < attacker.guess() < 1
    assert 0.1 < attacker.belief(0.1) < attacker.guess(0.9)
    assert attacker.belief(0.1) < attacker.belief(0.5)


def test_guesses_at_extreme_priors_are_hardly_better_than_the_prior() -> None:
    attacker = Attacker(WorstLoss([{(DiscreteGaussian(Fraction(8)), 1): 4}]))
    for prior in (1e-6, 1e-9, 1e-12):
        assert 1 - prior <= attacker.guess(prior) <= 1 - prior * (1 - 1e-3)
        assert attacker.guess(1 - prior) <= 1 - 0.98 * prior
        assert prior < attacker.belief(prior) < 1e3 * prior + 1e-6


def test_nothing_changed_tells_nothing() -> None:
    attacker = Attacker(WorstLoss([{}]))
    assert (attacker.power(0.05), attacker.guess(), attacker.belief(0.3), attacker.odds(2.0)) == (
        0.05,
        0.5,
        0.3,
        0.0,
    )


def test_the_worst_change_counts_at_each_delta() -> None:
    """One change has a heavy bounded loss, the other a light unbounded one: each is worst somewhere."""
    bounded = {(DiscreteLaplace(Fraction(1)), 1): 2}
    spread = {(DiscreteGaussian(Fraction(4)), 1): 4}
    worst = WorstLoss([bounded, spread, dict(bounded)])
    assert len(worst.changes) == 2
    alone = [[ComposedLoss(change).epsilon(d) for change in (bounded, spread)] for d in ("0.3", "1e-12")]
    assert alone[0][0].lower > alone[0][1].upper
    assert alone[1][0].upper < alone[1][1].lower
    for delta, (first, second) in zip(("0.3", "1e-12"), alone, strict=True):
        found = worst.epsilon(delta)
        assert found.upper == pytest.approx(max(first.upper, second.upper), abs=1e-9)
        assert found.lower == pytest.approx(max(first.lower, second.lower), abs=1e-9)


@pytest.mark.parametrize("target", ["0.5", "3", "9"])
def test_spare_noise_meets_the_target_and_no_more_would(target: str) -> None:
    changes = {(DiscreteGaussian(Fraction(6)), 1): 4, (DiscreteGaussian(Fraction(55)), 1): 6}
    worst = WorstLoss([changes], POINTS)
    spare = spare_noise(worst, target, "1e-8")
    assert spare.epsilon.upper <= float(target)
    assert worst.scaled(spare.factor * Fraction(1001, 1000)).epsilon("1e-8").upper > float(target)
    assert spare.saved == 1 - 1 / spare.factor


@settings(max_examples=examples(15), deadline=None)
@given(
    st.sampled_from([Fraction(1, 3), Fraction(1), Fraction(5, 2), Fraction(9)]),
    st.integers(1, 2),
    st.sampled_from([16, 32, 128, 512]),
    st.floats(0.0, 5.0),
)
def test_bounds_hold_on_grids_far_too_coarse(
    sigma2: Fraction, count: int, points: int, epsilon: float
) -> None:
    """With steps wider than the spacing of the losses everything rests on the bounds of spreading."""
    exact = slow_delta([("gaussian", sigma2, 1)] * count, epsilon, 40)
    bounds = ComposedLoss({(DiscreteGaussian(sigma2), 1): count}, points).delta(epsilon)
    assert bounds.lower <= exact * (1 + 1e-12) + 1e-25
    assert exact <= bounds.upper * (1 + 1e-12) + 1e-25


def test_small_deltas_of_rho_are_valid_for_the_noise() -> None:
    changes = {(DiscreteGaussian(Fraction(3)), 1): 2}
    loss = ComposedLoss(changes)
    for epsilon in (1, 4, 9):
        assert loss.delta(epsilon).upper <= delta_of(rho_of(changes), epsilon)
