"""Plans of the same loss: what errs less, what errs more, and which of them nothing else beats.

A plan is judged by runs with common seeds beside runs of the plan that it starts from. Of the errors of a row
in each seed only the differences count, so that few seeds tell plans apart. Expected errors
(:mod:`opendas.tuning.populated`), corrected by what the last plan was seen to do, say which shares to try
next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

import numpy as np
from scipy import stats

from opendas.arrays import Floats
from opendas.tuning.candidate import Candidate, Strategy
from opendas.tuning.populated import Populated
from opendas.tuning.shares import LEAST, Wish, best_losses, exact_shares, weights

SURE = 0.975
"""Probability, by Student's law, that a row that got no worse is not taken for worse."""

FAMILY = 0.95
"""The same probability for all rows that may not grow together, where a plan is confirmed."""

NOTABLE = 0.01
"""Part by which an error has to grow to be worse, however sure that is."""

KEPT, FREE = "geolevels kept", "geolevels free"
"""Kinds of plans. With the first no loss of moving within a geounit changes."""

_EXPLAINED = float(np.log(1.5))  # logarithms of errors this close to expected ones are explained by them
_HALVES = 2  # plans between one that is allowed and one that is not


@dataclass(frozen=True, slots=True)
class Row:
    """An error: of one query group, its mean over the geounits of a geolevel or the areas of a category."""

    geolevel: str
    query: str

    def __str__(self) -> str:
        return f"{self.geolevel}/{self.query}"


@dataclass(frozen=True, slots=True)
class Rows:
    """Which errors are looked at."""

    rows: tuple[Row, ...]
    areas: tuple[int, ...]  # geounits or areas of each row
    aims: frozenset[Row]  # errors to lower
    held: frozenset[Row]  # errors that may not grow


@dataclass(frozen=True, slots=True)
class Change:
    """What a plan does to one row."""

    row: Row
    before: float  # mean absolute error, in counts
    after: float
    noise: float  # half of the interval around ``after - before``, as wide as :func:`compare` says

    @property
    def part(self) -> float:
        """Relative change; that of an exact row is 0, or infinite if it errs now."""
        if self.before:
            return self.after / self.before - 1
        return float("inf") if self.after else 0.0

    @property
    def at_most(self) -> float:
        """Relative change at the upper end of the interval."""
        return (self.after + self.noise) / self.before - 1 if self.before else self.part

    @property
    def worse(self) -> bool:
        """Whether it grew beyond noise, and notably."""
        return self.after - self.before > max(self.noise, NOTABLE * self.before)

    @property
    def better(self) -> bool:
        """Whether it fell beyond noise, and notably."""
        return self.before - self.after > max(self.noise, NOTABLE * self.before)

    @property
    def verdict(self) -> str:
        """``worse``, ``better`` or ``no worse``."""
        return "worse" if self.worse else "better" if self.better else "no worse"

    def __str__(self) -> str:
        return f"{self.row}, {self.before:.4g} to {self.after:.4g} ({self.part:+.0%})"


@dataclass(frozen=True, slots=True)
class Judged:
    """A plan that was simulated."""

    name: str
    kind: str
    candidate: Candidate
    changes: tuple[Change, ...]  # of every row
    aim: float  # mean relative change of the errors to lower
    worst: float  # largest relative change of an error that may not grow
    worse: tuple[Row, ...]  # errors that may not grow, and did
    within: float  # epsilon of moving within a geounit of the level above the leaves


class Trials(Protocol):
    """Anything that simulates a plan."""

    rows: Rows

    def before(self, seed: int) -> tuple[int, ...]:
        """Return the sums of absolute errors of what plans are compared with, one for each row."""
        ...

    def after(self, candidate: Candidate, seed: int) -> tuple[int, ...]:
        """Return the sums of absolute errors of a plan, one for each row."""
        ...

    def within(self, candidate: Candidate) -> float:
        """Return epsilon of moving within a geounit of the level above the leaves."""
        ...


@dataclass(slots=True)
class Comparison:
    """Simulates plans, and keeps what it found."""

    trials: Trials
    seeds: Sequence[int]
    tell: Callable[[Judged], None] | None = None
    found: list[Judged] = field(default_factory=list)

    def judge(self, name: str, kind: str, candidate: Candidate) -> Judged:
        """Simulate a plan with every seed, beside what it is compared with; none is simulated twice."""
        for known in self.found:
            if known.candidate.key == candidate.key:
                return known
        judged = compare(self.trials, name, kind, candidate, self.seeds)
        self.found.append(judged)
        if self.tell is not None:
            self.tell(judged)
        return judged


def compare(
    trials: Trials,
    name: str,
    kind: str,
    candidate: Candidate,
    seeds: Sequence[int],
    *,
    together: bool = False,
) -> Judged:
    """Simulate a plan beside what it is compared with, seed by seed.

    `together`: an unchanged plan has with :data:`FAMILY` no worse error at all, of those that may not grow
    (Bonferroni); else each single one is not taken for worse with :data:`SURE`.
    """
    rows = trials.rows
    areas = np.maximum(np.array(rows.areas, dtype=np.float64), 1.0)
    before = np.array([trials.before(seed) for seed in seeds]) / areas
    after = np.array([trials.after(candidate, seed) for seed in seeds]) / areas
    many = len(seeds)
    spread = (after - before).std(axis=0, ddof=1) / many**0.5 if many > 1 else np.zeros(len(areas))
    sure = 1 - (1 - FAMILY) / max(1, len(rows.held)) if together else SURE
    noise = spread * (stats.t.ppf(sure, many - 1) if many > 1 else 0.0)
    means = before.mean(axis=0), after.mean(axis=0), noise
    changes = tuple(Change(row, *map(float, each)) for row, *each in zip(rows.rows, *means, strict=True))
    held = [change for change in changes if change.row in rows.held]
    aims = [change.part for change in changes if change.row in rows.aims and change.before]
    return Judged(
        name,
        kind,
        candidate,
        changes,
        float(np.mean(aims)) if aims else 0.0,
        max((change.part for change in held), default=0.0),
        tuple(change.row for change in held if change.worse),
        trials.within(candidate),
    )


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return which points no other one beats: is as low in both, and lower in one. Of equals the first.

    Examples
    --------
    >>> front([(1.0, 3.0), (2.0, 2.0), (2.0, 3.0), (2.0, 2.0), (3.0, 1.0)])
    [0, 1, 4]
    """
    found: list[int] = []
    lowest = float("inf")
    for number in sorted(range(len(points)), key=lambda i: (points[i], i)):
        if points[number][1] < lowest:
            lowest = points[number][1]
            found.append(number)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """Where plans are looked for."""

    start: Candidate
    tree: Populated  # its query groups are those that plans may measure
    precision: Floats  # (l, q), as in :class:`Wish`
    power: int

    @property
    def losses(self) -> Floats:
        """Losses of the start, float64 (l, q)."""
        return self.array(self.start)

    def array(self, candidate: Candidate) -> Floats:
        """Return the losses of a plan, float64 (l, q)."""
        return np.array(
            [[float((q or {}).get(name, 0)) for name in self.tree.queries] for q in candidate.losses.values()]
        )

    def candidate(self, name: str, losses: Floats, *, moves: bool) -> Candidate:
        """Return losses as a plan with exactly the sum of the start; geolevels keep theirs unless moved."""
        total, levels = self.start.total, self.start.levels
        if moves:
            shares = exact_shares(losses.sum(axis=1))
            levels = {level: total * share for level, share in zip(levels, shares, strict=True)}
        found = {}
        for (level, loss), own in zip(levels.items(), losses, strict=True):
            parts = exact_shares(own, LEAST) if loss else [Fraction(0)] * len(own)
            found[level] = {q: loss * part for q, part in zip(self.tree.queries, parts, strict=True) if part}
        return Candidate(Strategy(name, {}), found)


def search(comparison: Comparison, space: Space, *, rounds: int, steps: int) -> list[Judged]:
    """Look for plans, and return all that were simulated, the start first.

    - `rounds`: plans of each kind, each corrected by what the last one was seen to do. Where an error grew
      that may not, and by much more than was expected, its query group keeps there and above the loss that
      it has at the start, or twice that, ...
    - `steps`: kinds of which the lowest geolevel gets what lies evenly between its loss at the start and what
      it gets where geolevels are free.

    Notes
    -----
    Between the best plan of a kind in which no error grew that may not, or the start, and one that does
    better with the fewest that did, plans halfway are tried: errors of least squares are convex in losses.
    """
    start = comparison.judge("start", KEPT, space.start)
    floor = np.zeros_like(space.losses)
    last = _of_kind(comparison, space, start, floor, KEPT, rounds, None)
    if len(space.start.levels) > 1:
        last = _of_kind(comparison, space, last, floor, FREE, rounds, None)
        own, most = (_leaf_share(candidate) for candidate in (space.start, last.candidate))
        for step in range(steps, 0, -1):
            share = own + (most - own) * step / (steps + 1)
            last = _of_kind(comparison, space, last, floor, FREE, rounds, share)
    return comparison.found


def _leaf_share(candidate: Candidate) -> float:
    return float(list(candidate.levels.values())[-1] / candidate.total)


def _of_kind(
    comparison: Comparison,
    space: Space,
    judged: Judged,
    floor: Floats,
    kind: str,
    rounds: int,
    leaf_share: float | None,
) -> Judged:
    """Try plans of a kind, and return the last; `floor` grows by what is seen."""
    rows, tree = comparison.trials.rows, space.tree
    levels = list(space.start.levels)
    words = kind if leaf_share is None else f"{levels[-1]} {leaf_share:.3f} of the loss"
    named = [[Row(level, query) for query in tree.queries] for level in levels]

    def table(values: Mapping[Row, float]) -> Floats:
        return np.array([[values.get(row, 0.0) for row in each] for each in named])

    known = table({change.row: change.before for change in judged.changes})
    aims, held = (table(dict.fromkeys(of, 1.0)) * (known > 0) for of in (rows.aims, rows.held))
    weight = weights(aims, known > 0)
    ceiling = np.where(held > 0, np.log(np.maximum(known, 1e-12)), np.inf)

    def correction(plan: Judged) -> Floats:
        """Return the logarithm of errors by simulation over expected ones, 0 where there are none."""
        seen = table({change.row: change.after for change in plan.changes})
        expected = tree.errors((space.precision * space.array(plan.candidate)) ** space.power)
        both = (seen > 0) & (expected > 0)
        return np.log(np.where(both, seen, 1.0) / np.where(both, expected, 1.0))

    at_start = correction(comparison.found[0])
    corrected, ever = at_start, np.zeros_like(floor)
    found: list[Judged] = []
    for number in range(rounds):
        last = correction(judged)
        explained = abs(last - at_start) <= _EXPLAINED
        worse = table(dict.fromkeys(judged.worse, 1.0))
        kept = np.maximum.accumulate((worse * ~explained)[::-1])[::-1] > 0  # estimates follow those above
        floor[:] = np.where(kept, np.maximum(space.losses, 2 * floor), floor)
        last = np.where(explained, last, at_start)
        ever = np.maximum(ever, worse)  # for these the worst that was seen counts, or plans would swing
        corrected = np.where(ever > 0, np.maximum(corrected, last), last)
        wish = Wish(weight, ceiling, corrected, floor, space.precision, space.power)
        begin = space.array(judged.candidate)
        losses = best_losses(tree, wish, begin, moves=kind == FREE, leaf_share=leaf_share)
        name = f"{words}, {number + 1}"
        judged = comparison.judge(name, kind, space.candidate(name, losses, moves=kind == FREE))
        if judged in found:
            break
        found.append(judged)
    good = best([comparison.found[0], *found])[0]
    refused = [each for each in found if each.worse and each.aim < good.aim]
    if refused:
        bad = min(refused, key=_number_worse)
        for number in range(_HALVES):
            name = f"{words}, between {number + 1}"
            half = comparison.judge(name, kind, blend(good.candidate, bad.candidate, Fraction(1, 2), name))
            good, bad = (good, half) if half.worse else (half, bad)
    return judged


def _number_worse(plan: Judged) -> tuple[int, float]:
    return len(plan.worse), plan.aim


def blend(one: Candidate, other: Candidate, part: Fraction, name: str) -> Candidate:
    """Return the plan that gives a part of each loss as another one does, and the rest as one."""
    found: dict[str, Mapping[str, Fraction]] = {}
    for level, losses in one.losses.items():
        theirs, ours = other.losses[level] or {}, losses or {}
        names = dict.fromkeys((*ours, *theirs))
        found[level] = {
            q: (1 - part) * ours.get(q, Fraction(0)) + part * theirs.get(q, Fraction(0)) for q in names
        }
    return Candidate(Strategy(name, {}), found)


def best(found: Iterable[Judged]) -> list[Judged]:
    """Return the plans in which no error grew that may not, the best first."""
    return sorted((each for each in found if not each.worse), key=lambda each: (each.aim, each.within))
