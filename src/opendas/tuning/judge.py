"""Whether an allocation meets the targets, with as few runs as that takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Protocol

from opendas.custody.folders import write_atomic
from opendas.errors import BudgetError, ConfigError, EstimationError, SolverFailure
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


class Memory:
    """Results of runs that are done, in memory and, with a path, in a file that a stopped search reads again.

    - `path`: lines of JSON; the first says what the runs belong to.
    - `belongs`: version, run file, input and targets, in words that change with them.
    """

    def __init__(self, path: Path | None = None, belongs: str = "") -> None:
        self._path = path
        self._known: dict[tuple[str, int], tuple[Tally, ...]] = {}
        if path is None:
            return
        if path.exists():
            self._read(path, belongs)
        else:
            write_atomic(path, f"{json.dumps({'belongs': belongs})}\n".encode())

    def _read(self, path: Path, belongs: str) -> None:
        try:
            complete = path.read_text(encoding="utf-8").rpartition("\n")[0]  # a torn last line is run again
            lines = complete.splitlines()
            if json.loads(lines[0])["belongs"] != belongs:
                raise ConfigError(
                    f"{path} holds the runs of another search: another version, run file, input or file of "
                    "targets. Remove it, or name another file with --memory."
                )
            for line in lines[1:]:
                row = json.loads(line)
                self._known[row["candidate"], row["seed"]] = tuple(Tally(*tally) for tally in row["tallies"])
        except (IndexError, KeyError, TypeError, ValueError, RecursionError):
            raise ConfigError(f"{path} is no file of finished runs; name another with --memory.") from None
        write_atomic(path, f"{complete}\n".encode())

    def __len__(self) -> int:
        return len(self._known)

    def get(
        self, candidate: str, seed: int, trial: Callable[[], tuple[Tally, ...]]
    ) -> tuple[tuple[Tally, ...], bool]:
        """Return the tallies of a run, and whether it had to be made."""
        found = self._known.get((candidate, seed))
        if found is not None:
            return found, False
        found = trial()
        self._known[candidate, seed] = found
        if self._path is not None:
            tallies = [[tally.units, tally.held, tally.error] for tally in found]
            row = {"candidate": candidate, "seed": seed, "tallies": tallies}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        return found, True


@dataclass(slots=True)
class Judge:
    """Runs candidates and keeps the path."""

    trials: Trials
    # A target is judged over the areas of all these runs together, as section 8.1 of the TopDown paper judges
    # it over the areas of one.
    seeds: Sequence[int]
    memory: Memory
    most: int  # runs after which the search stops with an error rather than go on for ever
    tell: Callable[[Step], None] | None = None  # called with every step
    made: int = 0
    path: list[Step] = field(default_factory=list)

    def tallies(self, candidate: Candidate, seed: int) -> tuple[Tally, ...]:
        """Return the tallies of one run, made or remembered."""
        if self.made >= self.most:
            raise EstimationError(
                f"tuning has made {self.made} runs and is not at its end. Give more with --most-runs, or a "
                "coarser --tolerance; with --memory nothing is run twice."
            )
        found, new = self.memory.get(candidate.key, seed, lambda: self.trials.trial(candidate, seed))
        self.made += new
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
                    "targets: the data have no area that any of them speaks of. See their population."
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
                    f"the targets are not met with {low:.0f} times the loss either: no budget meets them "
                    "with these query groups and this geography. Loosen the targets."
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
