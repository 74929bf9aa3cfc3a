"""Whether an allocation meets the targets, with as few runs as that takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

from opendas.errors import BudgetError, ConfigError, EstimationError, SolverFailure
from opendas.runs.simulated.finished import FinishedRuns
from opendas.tuning.candidate import Candidate
from opendas.tuning.targets import Tally, Target

WIDEST = 2.0**24
"""Factors beyond this, up or down, are not tried."""


class NotMet(EstimationError):
    """No multiple of an allocation meets the targets."""


class Trials(Protocol):
    """Anything that can run a candidate with a seed."""

    targets: tuple[Target, ...]

    def trial(self, candidate: Candidate, seed: int) -> tuple[Tally, ...]:
        """Return one tally per target."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """One allocation that was judged."""

    stage: str  # what the search was doing
    candidate: Candidate
    seeds: int  # runs looked at; fewer than asked for where the verdict was certain
    values: tuple[float | None, ...]  # of each target
    passed: bool


Tallies = tuple[Tally, ...]


def read_tallies(rows: Sequence[Sequence[Any]]) -> Tallies:
    """Return the tallies of a run from their JSON values."""
    return tuple(Tally(*row) for row in rows)


@dataclass(slots=True)
class Judge:
    """Runs candidates and keeps the path."""

    trials: Trials
    # A target is judged over the areas of all these runs together, as section 8.1 of the TopDown paper judges
    # it over the areas of one.
    seeds: Sequence[int]
    memory: FinishedRuns[Tallies]
    most: int  # runs after which the search stops with an error rather than go on for ever
    tell: Callable[[Step], None] | None = None  # called with every step
    made: int = 0
    path: list[Step] = field(default_factory=list)

    def tallies(self, candidate: Candidate, seed: int) -> tuple[Tally, ...]:
        """Return the tallies of one run, made or remembered."""
        if self.made >= self.most:
            raise EstimationError(
                f"tuning has made {self.made} runs and has not finished. Allow more with --most-runs, or a "
                "coarser --tolerance; with --memory nothing is run twice."
            )
        found = self.memory.get(candidate.key, seed)
        if found is None:
            found = self.trials.trial(candidate, seed)
            self.memory.put(candidate.key, seed, found)
            self.made += 1
        return found

    def passes(self, candidate: Candidate, stage: str) -> bool:
        """Judge a candidate; stops at the first run that settles the verdict.

        One whose noise would be too wide to be drawn exactly, or whose weights spread so far that a family is
        not certified, meets nothing.
        """
        targets = self.trials.targets
        sums = [Tally() for _ in targets]
        done = 0
        passed = True
        for seed in self.seeds:
            try:
                found = self.tallies(candidate, seed)
            except (BudgetError, SolverFailure):
                self.note(Step(stage, candidate, 0, (None,) * len(targets), False))
                return False
            if not any(tally.units for tally in found):
                raise ConfigError(
                    "targets: at the geolevels that they name, no area has a population in their range. "
                    "Check geolevel and population of each."
                )
            sums = [total + tally for total, tally in zip(sums, found, strict=True)]
            done += 1
            left = len(self.seeds) - done
            if any(t.lost(s, left * f.units) for t, s, f in zip(targets, sums, found, strict=True)):
                passed = False
                break
        else:
            passed = all(t.passes(s) for t, s in zip(targets, sums, strict=True))
        values = tuple(target.value(total) for target, total in zip(targets, sums, strict=True))
        self.note(Step(stage, candidate, done, values, passed))
        return passed

    def note(self, step: Step) -> None:
        """Add a step to the path."""
        self.path.append(step)
        if self.tell is not None:
            self.tell(step)


def least_factor(
    passes: Callable[[Fraction], bool],
    tolerance: float,
    *,
    lowest: float = 1 / WIDEST,
    highest: float = WIDEST,
    start: float = 1.0,
) -> Fraction:
    """Find the least factor that passes, by doubling and halving and then by bisection of the logarithm.

    - `passes`, callable(Fraction) -> bool: taken to be monotone; with the noise of one seed at all factors it
      nearly is.
    - `tolerance`: the answer is at most so much, relatively, above a factor that fails.
    - `lowest`: where the answer may stop without a failure below it.
    - `highest`: where to give up.
    """
    low, high = lowest, start
    if passes(_factor(high)):
        while high > lowest:
            low = max(lowest, high / 2)
            if low < high and not passes(_factor(low)):
                break
            high = low
        else:
            return _factor(lowest)
    else:
        low = high
        while True:
            high = 2 * low
            if high > highest:
                raise NotMet(
                    f"the targets are not met with {low:.6g} times the loss that the search began with, nor "
                    "with any smaller multiple tried. Loosen the targets, or change the query groups."
                )
            if passes(_factor(high)):
                break
            low = high
    while high / low > 1 + tolerance:
        middle = (low * high) ** 0.5
        if passes(_factor(middle)):
            high = middle
        else:
            low = middle
    return _factor(high)


def _factor(value: float) -> Fraction:
    return Fraction(f"{value:.4g}")
