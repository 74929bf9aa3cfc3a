"""Intervals of counts picked for being large: plain ones miss too often, those for picked counts do not."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from opendas.intervals.answers import Intervals, selected_intervals

TRIALS, COUNTS = 400, 300


def asked(estimate: np.ndarray, deviation: float):
    """Intervals around independent normal estimates, cut off at zero."""

    def ask(confidence: float) -> Intervals:
        margin = np.full(estimate.shape, norm.ppf(0.5 + 0.5 * confidence) * deviation)
        lower, upper = np.maximum(estimate - margin, 0.0), np.maximum(estimate + margin, 0.0)
        law = np.ones(estimate.shape, dtype=np.int8)
        return Intervals(
            confidence, estimate, np.full(estimate.shape, deviation**2), lower, upper, margin, law
        )

    return ask


@pytest.mark.parametrize("share", [0.02, 0.3])
@pytest.mark.parametrize("confidence", [0.9, 0.8])
def test_of_picked_counts_few_enough_are_missed(share: float, confidence: float) -> None:
    rng = np.random.default_rng(3)
    plain, allowed = [], []
    for _ in range(TRIALS):
        truth = np.where(rng.random((COUNTS, 1)) < share, rng.uniform(5, 80, (COUNTS, 1)), 0.0)
        ask = asked(truth + rng.normal(0, 10, truth.shape), 10.0)
        found, picked = selected_intervals(ask, confidence)
        for kept, intervals in ((plain, ask(confidence)), (allowed, found)):
            missed = (truth < intervals.lower) | (truth > intervals.upper)
            kept.append(missed[picked].sum() / max(1, picked.sum()))
    assert np.mean(allowed) <= 1 - confidence + 3 * np.std(allowed) / np.sqrt(TRIALS)
    assert np.mean(plain) > 1.5 * (1 - confidence)


def test_exact_and_unknown_counts_are_not_picked_nor_counted() -> None:
    estimate = np.array([[50.0], [40.0], [30.0], [1.0]])
    ask = asked(estimate, 5.0)

    def with_exact(confidence: float) -> Intervals:
        found = ask(confidence)
        found.variance[0], found.variance[1] = 0.0, np.inf
        return found

    found, picked = selected_intervals(with_exact, 0.9)
    assert picked.ravel().tolist() == [False, False, True, False]
    assert found.confidence == pytest.approx(1 - 0.1 / 2)


def test_where_all_are_picked_nothing_widens() -> None:
    found, picked = selected_intervals(asked(np.array([[50.0], [40.0]]), 5.0), 0.9)
    assert picked.all()
    assert found.confidence == 0.9
