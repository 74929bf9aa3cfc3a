"""Tuning: from targets and public stand-in data to a plan, with the path that led to it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

from opendas.budget.allocation import shares_json
from opendas.custody.account import TUNE
from opendas.errors import ConfigError, EstimationError, nearest
from opendas.metrics.errors import levels_of
from opendas.privacy.exact import format_fraction
from opendas.report.views import plural
from opendas.runs.config.released import move_paths, toml_document
from opendas.runs.config.words import checked_line
from opendas.runs.context.account import note_reading, tagger_of
from opendas.runs.context.run import Run
from opendas.runs.simulated.finished import FinishedRuns, belongs_to
from opendas.runs.simulated.simulation import check_repeatable
from opendas.tuning.candidate import Candidate, Strategy, bureau_strategies, rounded_loss
from opendas.tuning.judge import Judge, Step, read_tallies
from opendas.tuning.search import level_by_level, search, search_on
from opendas.tuning.simulate import Simulator
from opendas.tuning.targets import Tally, Target, load_targets

METHODS = ("search", "level-by-level")
"""Ways to find a plan: our own, and the one of the TopDown paper, section 8.1."""

ROUNDS = 12
"""Times that an allocation which is not confirmed is improved."""

AGAIN = 2
"""Times that the search goes on with three times the runs; what then fails, fails by little."""

CONFIRMING = 10_000
"""First seed of the runs that confirm, times the attempt: none of them has judged."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to tune."""

    source: str  # what the stand-in data are and why they are public; goes into the plan and its certificate
    method: str = "search"  # one of :data:`METHODS`
    # Runs that judge an allocation together. A single one, as the Bureau had, flatters allocations whose
    # noise at the few geounits at the top happens to be small.
    runs: int = 4
    confirm: int = 25  # independent runs that confirm the result; the Bureau made 25
    tolerance: float = 0.1  # relative step at which a loss counts as found
    queries: bool = True  # also save on single query groups (method ``search``)
    most: int = 2_000  # runs before giving up, confirmation apart
    memory: Path | None = None  # file of finished runs, with which a stopped search goes on
    workers: int = 1
    tell: Callable[[Step], None] | None = None
    # A book, in which the reading of the data is noted; else in one that knows them.
    ledger: Path | None = None

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise ConfigError(
                "tuning needs a source: say which public data these are. Tuned on confidential data, a plan "
                "reveals something about them, and no budget would account for it."
            )
        checked_line(self.source, "source")
        if self.method not in METHODS:
            raise ConfigError(f"no method {self.method!r}; {nearest(self.method, METHODS)}")
        if self.runs < 1 or self.confirm < 0 or self.most < 1:
            raise ConfigError("runs and most are at least 1, confirm at least 0.")
        if not 0.001 <= self.tolerance <= 1:
            raise ConfigError(f"tolerance is {self.tolerance:g}; it lies between 0.001 and 1.")


@dataclass(frozen=True, slots=True)
class Confirmation:
    """How one target did in independent runs."""

    target: Target
    runs: int
    together: float | None  # over the areas of all runs
    lowest: float | None  # of single runs, as `highest`
    highest: float | None
    runs_met: int  # runs in which the target is met by itself
    met: bool  # over the areas of all runs

    def to_dict(self) -> dict[str, object]:
        """Return plain values for JSON."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return values | {"target": str(self.target)}


@dataclass(frozen=True, slots=True)
class Tuning:
    """The result.

    Parameters
    ----------
    run : Run
        Whose product, geography and estimator were tuned.
    made : int
        Runs made in this call.
    """

    run: Run
    settings: Settings
    targets: tuple[Target, ...]
    candidate: Candidate
    confirmations: tuple[Confirmation, ...]
    path: tuple[Step, ...]
    made: int

    def __repr__(self) -> str:
        loss = f"{self.run.resolved.mechanism.loss_name} {float(self.candidate.total):.6g}"
        return f"Tuning({self.run.product.name}: {loss}, {len(self.targets)} targets, {self.made} runs)"

    @property
    def budget(self) -> dict[str, Any]:
        """The parts of ``[budget]``, exact."""
        return self.candidate.budget(self.run.resolved.mechanism)

    def to_dict(self) -> dict[str, object]:
        """Return plain values for JSON: fractions as text, the path from the first step."""
        return {
            self.run.resolved.mechanism.loss_name: format_fraction(self.candidate.total),
            **shares_json(self.budget["geolevels"], self.budget["queries"]),
            "strategy": self.candidate.strategy.name,
            "method": self.settings.method,
            "source": self.settings.source,
            "confirmations": [confirmation.to_dict() for confirmation in self.confirmations],
            "runs_made": self.made,
            "path": [
                {
                    "stage": step.stage,
                    "losses": {level: float(loss) for level, loss in step.candidate.levels.items()},
                    "total": float(step.candidate.total),
                    "runs": step.seeds,
                    "values": list(step.values),
                    "passed": step.passed,
                }
                for step in self.path
            ],
        }


def tune(run: Run, targets: Path | Sequence[Target], settings: Settings) -> Tuning:
    """Find the least loss, and its allocation, that meets accuracy targets on stand-in data.

    `run`: its input is the stand-in data. Its own budget is one of the starts of the search.

    Raises `ConfigError` if the file of targets is wrong or another search's memory is given;
    `EstimationError` if no budget meets the targets, or the most runs are made.

    Notes
    -----
    Abowd et al. (2022), sections 6.3 and 8.1. The plan is a function of the stand-in data and of public
    geography: where those are public, using it spends nothing.
    """
    check_repeatable(run)
    if isinstance(targets, Path):
        targets = load_targets(targets, run.product, levels_of(run.frame, entities=True))
    note_reading(TUNE, tagger_of(run), product=run.product.name, ledger=settings.ledger)
    simulator = Simulator(run, targets, workers=settings.workers)
    asked = (run.estimation_digest(), *map(str, targets))
    belongs = "" if settings.memory is None else belongs_to(run, *asked)
    memory = FinishedRuns(read_tallies, settings.memory, belongs)
    judge = Judge(simulator, range(settings.runs), memory, settings.most, settings.tell)
    levels = simulator.levels
    if settings.method == "level-by-level":
        strategies = bureau_strategies(run.product, levels)
        candidate = level_by_level(judge, strategies, levels, settings.tolerance)
    else:
        starts = _starts(run, levels)
        candidate = search(judge, starts, settings.tolerance, queries=settings.queries)
    candidate, confirmations = _confirmed(judge, candidate, settings)
    return Tuning(run, settings, tuple(targets), candidate, confirmations, tuple(judge.path), judge.made)


def _starts(run: Run, levels: Sequence[str]) -> list[tuple[Strategy, dict[str, Fraction]]]:
    """Return the allocations to begin with: the run's own, and those of public counts of cells."""
    starts: list[tuple[Strategy, dict[str, Fraction]]] = []
    budget = run.budget
    own = {level: dict(budget.query_shares(level)) for level in levels if budget.geolevels[level]}
    if set(own) == set(levels):
        losses = {level: rounded_loss(budget.total * budget.geolevels[level]) for level in levels}
        starts.append((Strategy("the run file's shares", own), losses))
    geounits = {name: len(level) for name, level in zip(levels, run.spine.levels, strict=True)}
    for strategy in bureau_strategies(run.product, levels):
        if "even" in strategy.name:
            roots = {level: Fraction(f"{geounits[level] ** 0.5:.3g}") for level in levels}
            scale = budget.total / sum(roots.values(), Fraction(0))
            starts.append((strategy, {level: rounded_loss(root * scale) for level, root in roots.items()}))
            even = rounded_loss(budget.total / len(levels))
            named = replace(strategy, name=strategy.name + ", even geolevels")
            starts.append((named, dict.fromkeys(levels, even)))
    return starts


def _confirmed(
    judge: Judge, candidate: Candidate, settings: Settings
) -> tuple[Candidate, tuple[Confirmation, ...]]:
    """Confirm by runs with other seeds; while that fails, judge by more runs, then raise all."""
    if settings.confirm == 0:
        return candidate, ()
    for attempt in range(ROUNDS + 1):
        first = CONFIRMING * (attempt + 1)
        found = _confirm(judge, candidate, range(first, first + settings.confirm))
        if all(confirmation.met for confirmation in found):
            return candidate, found
        if settings.method == "search" and attempt < AGAIN:
            judge.seeds = range(3 * len(judge.seeds))
            candidate = search_on(judge, candidate, settings.tolerance, queries=settings.queries)
        else:
            candidate = candidate.scaled(Fraction(f"{1 + settings.tolerance:.4g}"))
    raise EstimationError(
        f"the plan met the targets in the runs that judged it. In {settings.confirm} other runs it missed "
        f"them, and so did {ROUNDS} later plans. Judge by more runs from the start (--runs)."
    )


def _confirm(judge: Judge, candidate: Candidate, seeds: Sequence[int]) -> tuple[Confirmation, ...]:
    rows = [judge.tallies(candidate, seed) for seed in seeds]
    found = []
    for number, target in enumerate(judge.trials.targets):
        single = [row[number] for row in rows]
        together = sum(single, Tally())
        alone = [value for value in map(target.value, single) if value is not None]
        found.append(
            Confirmation(
                target,
                len(rows),
                target.value(together),
                min(alone, default=None),
                max(alone, default=None),
                sum(map(target.passes, single)),
                target.passes(together),
            )
        )
    values = tuple(confirmation.together for confirmation in found)
    judge.note(Step("confirmation", candidate, len(rows), values, all(c.met for c in found)))
    return tuple(found)


def plan_toml(tuning: Tuning, to: Path) -> str:
    """Write a tuned plan as a run file: that of the tuning, with another budget.

    - `tuning`: of a run that was loaded from a file.
    - `to`: where the file will lie; its paths are relative to that.
    - Returns: TOML. ``[input]`` is that of the stand-in data: to be replaced before the real run.
    """
    run = tuning.run
    one_pass = tuning.candidate.strategy.one_pass and run.resolved.estimator == "topdown"
    passes = {"least_squares": {"*": [["rest"]]}} if one_pass else {}  # others have one pass
    return run_file_text(run, to, _preamble(tuning), tuning.settings.source, tuning.budget, passes)


def run_file_text(
    run: Run,
    to: Path,
    preamble: Sequence[str],
    source: str,
    budget: Mapping[str, Any],
    passes: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Return the run file of a run with another budget.

    - `run`: loaded from a file.
    - `to`: where the file will lie; its paths are relative to that.
    - `preamble`: comments.
    - `passes`: what changes of ``[passes]``.
    """
    document: dict[str, Any] = tomllib.loads(run.path.read_text(encoding="utf-8"))
    move_paths(document, run.path.resolve().parent, to.resolve().parent)
    delta = document.get("budget", {}).get("delta")
    document["budget"] = {"source": source, **({} if delta is None else {"delta": delta}), **budget}
    if passes:
        document.setdefault("passes", {}).update(passes)
    return "\n".join(preamble) + "\n" + toml_document(document)


def _preamble(tuning: Tuning) -> list[str]:
    words = [
        "# A plan found by opendas tune. [input] holds the stand-in data: put the real one there.",
        f"# Method {tuning.settings.method}, {plural('allocation', len(tuning.path))} judged; strategy: "
        f"{tuning.candidate.strategy.name}.",
    ]
    for found in tuning.confirmations:
        value = "no areas" if found.together is None else f"{found.together:.4g}"
        words.append(f"# {found.target}: {value} over {plural('independent run', found.runs)}.")
    return words
