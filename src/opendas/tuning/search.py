"""A search of our own: from an allocation that passes, downhill until nothing can be saved alone.

The Bureau's search only ever raises, in proportion, and never looks back: what the lower geolevels give the
upper ones is paid for twice. This one starts from several whole allocations, takes the cheapest that passes,
and then saves: on one geolevel at a time, on one query group at a time, and by raising one geolevel so that
all others can be lowered further than it costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from opendas.tuning.candidate import Candidate, Strategy
from opendas.tuning.judge import Judge, least_factor

__all__ = ["again", "descend", "search"]

RAISE = Fraction(3, 2)
"""Factor by which an exchange raises a geolevel."""

WORTH = Fraction(99, 100)
"""An exchange has to leave at most this part of the loss."""

LITTLE = Fraction(1, 200)
"""Geolevels and query groups with less than this part of the loss are not worth a run of their own."""


def search(
    judge: Judge,
    starts: Sequence[tuple[Strategy, dict[str, Fraction]]],
    tolerance: float,
    *,
    queries: bool = True,
) -> Candidate:
    """Return an allocation that passes and from which no single part can be cut by more than the tolerance.

    Parameters
    ----------
    judge : Judge
    starts : sequence of (Strategy, losses)
        Allocations to begin with: the strategy and the relative loss of each geolevel. Only their cheapest
        multiple that passes counts.
    tolerance : float
        Relative.
    queries : bool
        Also save on single query groups.

    Notes
    -----
    The answer is a local minimum: cutting any geolevel, or with `queries` dropping or halving any query group
    with more than 0.5 % of the loss, fails a target in the runs that judged it.
    """
    best: Candidate | None = None
    for strategy, losses in starts:
        begin = Candidate.of_levels(strategy, dict(losses))
        factor = _least(judge, begin, f"{strategy.name}: all together", max(tolerance, 0.2), best)
        if factor is not None:
            best = begin.scaled(factor)
    if best is None:
        raise ValueError("a search needs a start")
    return descend(judge, best, tolerance, queries=queries)


def again(judge: Judge, candidate: Candidate, tolerance: float, *, queries: bool = True) -> Candidate:
    """Search on from an allocation that more runs no longer let pass."""

    def passes(factor: Fraction) -> bool:
        return judge.passes(candidate.scaled(factor), "with more runs")

    factor = least_factor(passes, tolerance, lowest=1.0)
    return descend(judge, candidate.scaled(factor), tolerance, queries=queries)


def _least(
    judge: Judge, begin: Candidate, stage: str, tolerance: float, best: Candidate | None
) -> Fraction | None:
    """Return the least multiple that passes, or None if none below the best so far does."""
    start = 1.0
    if best is not None:
        ceiling = best.total / begin.total
        if not judge.passes(begin.scaled(ceiling), stage):
            return None
        start = float(ceiling)
    return least_factor(lambda f: judge.passes(begin.scaled(f), stage), tolerance, start=start)


def descend(judge: Judge, candidate: Candidate, tolerance: float, *, queries: bool = True) -> Candidate:
    """Save on an allocation that passes until nothing more can be saved; see :func:`search`."""
    while True:
        before = candidate.total
        candidate = _cut_levels(judge, candidate, tolerance)
        if queries:
            candidate = _cut_queries(judge, candidate)
        candidate = _exchange(judge, candidate, tolerance)
        if candidate.total > before * (1 - Fraction(tolerance)):
            return candidate


def _cut_levels(judge: Judge, candidate: Candidate, tolerance: float) -> Candidate:
    for level in sorted(candidate.levels, key=lambda name: -candidate.levels[name]):
        now = candidate
        least = LITTLE / 2 * now.total
        if now.levels[level] <= 2 * least:
            continue  # also the end for a geolevel of which no target speaks

        def passes(factor: Fraction, now: Candidate = now, level: str = level) -> bool:
            return factor >= 1 or judge.passes(now.scaled(factor, [level]), f"less at {level}")

        factor = least_factor(passes, tolerance, lowest=float(least / now.levels[level]))
        if factor < 1:
            candidate = now.scaled(factor, [level])
    return candidate


def _cut_queries(judge: Judge, candidate: Candidate) -> Candidate:
    parts = [
        (loss, level, name)
        for level, losses in candidate.losses.items()
        for name, loss in (losses or {}).items()
        if loss
    ]
    for loss, level, name in sorted(parts, key=lambda part: -part[0]):
        if loss < LITTLE * candidate.total:
            break
        for part in (Fraction(0), Fraction(1, 2)):
            trial = candidate.with_loss(level, name, loss * part)
            if trial.levels[level] and judge.passes(trial, f"less for {name} at {level}"):
                candidate = trial
                break
    return candidate


def _exchange(judge: Judge, candidate: Candidate, tolerance: float) -> Candidate:
    for level in candidate.losses:
        raised = candidate.scaled(RAISE, [level])
        spare = candidate.total * WORTH - raised.levels[level]
        rest = raised.total - raised.levels[level]
        if not rest or spare <= 0:
            continue
        found = _lower_the_rest(judge, raised, level, spare / rest, tolerance)
        if found is not None and found.total < candidate.total:
            candidate = found
    return candidate


def _lower_the_rest(
    judge: Judge, raised: Candidate, level: str, ceiling: Fraction, tolerance: float
) -> Candidate | None:
    """Return the least multiple of all geolevels but one that passes; None if that at the ceiling fails."""
    others = [name for name in raised.losses if name != level]

    def passes(factor: Fraction) -> bool:
        return judge.passes(raised.scaled(factor, others), f"more at {level}, less elsewhere")

    if not passes(ceiling):
        return None
    factor = least_factor(passes, tolerance, start=float(ceiling), lowest=1 / 4096)
    return raised.scaled(factor, others)
