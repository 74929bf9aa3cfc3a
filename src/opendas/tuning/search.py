"""Searches for the least loss, apart from their set-up: our own, and that of the Census Bureau.

The Bureau's search only ever raises, in proportion, and never looks back: what the lower geolevels give the
upper ones is paid for twice. Ours starts from several whole allocations, takes the cheapest that passes,
and then saves: on one geolevel at a time, on one query group at a time, and by raising one geolevel so that
all others can be lowered further than it costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from opendas.tuning.candidate import Candidate, Strategy, rounded_loss
from opendas.tuning.judge import Judge, NotMet, least_factor

RAISE = Fraction(3, 2)
"""Factor by which an exchange raises a geolevel."""

WORTH = Fraction(99, 100)
"""An exchange has to leave at most this part of the loss."""

LITTLE = Fraction(1, 200)
"""Geolevels and query groups with less than this part of the loss are not worth a run of their own."""

COMPETITIVE = 2
"""A strategy whose single-level losses sum to more than so many times the least sum is ruled out."""

FIRST = Fraction(1, 64)
"""Where the search for a geolevel's loss begins."""

FLOOR = 1 / 4096
"""Relative to :data:`FIRST`: a geolevel that needs less than this gets this, and a strategy that needs more
than its inverse is out."""


def search(
    judge: Judge,
    starts: Sequence[tuple[Strategy, dict[str, Fraction]]],
    tolerance: float,
    *,
    queries: bool = True,
) -> Candidate:
    """Return an allocation that passes and from which no single part can be cut by more than the tolerance.

    - `starts`, sequence of (Strategy, losses): allocations to begin with: the strategy and the relative loss
      of each geolevel. Only their cheapest multiple that passes counts.
    - `tolerance`: relative.
    - `queries`: also save on single query groups.

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


def search_on(judge: Judge, candidate: Candidate, tolerance: float, *, queries: bool = True) -> Candidate:
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


def level_by_level(
    judge: Judge, strategies: Sequence[Strategy], levels: Sequence[str], tolerance: float
) -> Candidate:
    """Return the best allocation that the Census Bureau's search finds over the strategies.

    For each strategy: find the loss that each geolevel needs while all others are known exactly; then, from
    the top, put the geolevels in one after the other at that loss, and raise those that are in, in
    proportion, until the targets are met.

    - `levels`: top first.
    - `tolerance`: of each fitted loss, relative.

    Notes
    -----
    Abowd et al. (2022), section 8.1.
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
