"""The search of the Census Bureau, level by level (TopDown paper, section 8.1).

For each strategy: find the loss that each geolevel needs while all others are known exactly; then, from the
top, put the geolevels in one after the other at that loss, and raise those that are in, in proportion, until
the targets are met.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from opendas.tuning.candidate import Candidate, Strategy, rounded_loss
from opendas.tuning.judge import Judge, NotMet, least_factor

__all__ = ["level_by_level"]

COMPETITIVE = 2
"""A strategy whose single-level losses sum to more than so many times the least sum is ruled out."""

FIRST = Fraction(1, 64)
"""Where the search for a geolevel's loss begins."""

FLOOR = 1 / 4096
"""Relative to :data:`FIRST`: a geolevel that needs less than this gets this, and a strategy that needs more
than its inverse is out."""


def level_by_level(
    judge: Judge, strategies: Sequence[Strategy], levels: Sequence[str], tolerance: float
) -> Candidate:
    """Return the best allocation that this search finds over the strategies.

    Parameters
    ----------
    judge : Judge
    strategies : sequence of Strategy
    levels : sequence of str
        Top first.
    tolerance : float
        Of each fitted loss, relative.
    """
    singles: dict[str, dict[str, Fraction]] = {}
    hopeless: NotMet | None = None
    for strategy in strategies:
        try:
            losses = {level: _single(judge, strategy, level, levels, tolerance) for level in levels}
        except NotMet as error:
            hopeless = error
        else:
            singles[strategy.name] = losses
    if hopeless is not None and not singles:
        raise hopeless
    sums = {name: sum(losses.values(), Fraction(0)) for name, losses in singles.items()}
    least = min(sums.values())
    kept = [s for s in strategies if s.name in sums and sums[s.name] <= COMPETITIVE * least]
    found = [_from_the_top(judge, s, singles[s.name], levels, tolerance) for s in kept]
    return min(found, key=lambda candidate: candidate.total)


def _single(
    judge: Judge, strategy: Strategy, level: str, levels: Sequence[str], tolerance: float
) -> Fraction:
    def passes(factor: Fraction) -> bool:
        losses = {name: FIRST * factor if name == level else None for name in levels}
        return judge.passes(Candidate.of_levels(strategy, losses), f"{strategy.name}: {level} alone")

    return rounded_loss(FIRST * least_factor(passes, tolerance, lowest=FLOOR, highest=1 / FLOOR))


def _from_the_top(
    judge: Judge, strategy: Strategy, single: dict[str, Fraction], levels: Sequence[str], tolerance: float
) -> Candidate:
    losses: dict[str, Fraction | None] = dict.fromkeys(levels)
    candidate = Candidate.of_levels(strategy, losses)
    for number, level in enumerate(levels):
        losses[level] = single[level]
        if number == 0 and len(levels) > 1:
            continue  # the two top geolevels come together
        candidate = _raised(judge, strategy, losses, f"{strategy.name}: down to {level}", tolerance)
        losses = {**losses, **candidate.levels}
    return candidate


def _raised(
    judge: Judge, strategy: Strategy, losses: Mapping[str, Fraction | None], stage: str, tolerance: float
) -> Candidate:
    """Raise all losses in proportion, as far as the targets need."""

    def scaled(factor: Fraction) -> Candidate:
        raised = {level: None if loss is None else loss * factor for level, loss in losses.items()}
        return Candidate.of_levels(strategy, raised)

    def passes(factor: Fraction) -> bool:
        return judge.passes(scaled(factor), stage)

    return scaled(least_factor(passes, tolerance, lowest=1.0))
