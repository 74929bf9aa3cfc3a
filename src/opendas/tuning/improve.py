"""Better plans of the same loss: from a run file to a plan, under what may not get worse.

Plans are judged by runs in memory on synthetic counts of the frame's public sizes, or on public stand-in
data.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from opendas.budget.allocation import Budget, shares_json
from opendas.custody.account import TUNE
from opendas.errors import ConfigError, EstimationError, nearest
from opendas.geography.frame import Frame, Grouping
from opendas.geography.spine import Spine
from opendas.measurement.loss import within_losses
from opendas.metrics.errors import levels_of
from opendas.privacy.exact import format_fraction
from opendas.privacy.relations import noise_distribution
from opendas.report.views import plural
from opendas.runs.allocate import demonstration
from opendas.runs.config.words import checked_line
from opendas.runs.context.account import note_reading, tagger_of
from opendas.runs.context.run import Run
from opendas.runs.simulated.finished import FinishedRuns, belongs_to
from opendas.runs.simulated.simulation import check_repeatable
from opendas.schema.product import Product
from opendas.tuning.candidate import Candidate, Strategy
from opendas.tuning.same_loss import (
    Change,
    Comparison,
    Judged,
    Row,
    Rows,
    Space,
    best,
    compare,
    front,
    search,
)
from opendas.tuning.simulate import Simulator, synthetic
from opendas.tuning.tune import run_file_text

CONFIRMING = 10_000
"""First seed of the runs that confirm; none of them has judged."""

_SMALL = Fraction(1, 100)  # part of the loss at which precisions are compared with losses

Sums = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a plan is to be good for, and how it is looked for.

    Errors are named ``geolevel``, for all its query groups, or ``geolevel/query``.
    """

    improve: tuple[str, ...] = ()  # errors to lower; by default those of the lowest geolevel
    may_worsen: tuple[str, ...] = ()  # errors that may grow; no other may
    # Also errors of these areas may not grow: an entity category, or some of it as ``place:4459000,4454640``.
    areas: tuple[str, ...] = ()
    against: str | None = None  # estimator of the runs that plans are compared with; by default the run's
    source: str | None = None  # the run's input is public, and this is what it is; else counts are synthetic
    records: float | None = None  # about how many records there are, for synthetic counts
    runs: int = 4  # that judge a plan
    confirm: int = 10  # other runs that confirm the plan
    rounds: int = 3  # plans of each kind
    steps: int = 2  # kinds between those that keep geolevels' losses and those that do not
    memory: Path | None = None  # file of finished runs, with which a stopped search goes on
    workers: int = 1
    tell: Callable[[Judged], None] | None = None
    ledger: Path | None = None  # a book, in which the reading of stand-in data is noted

    def __post_init__(self) -> None:
        if self.runs < 2 or self.confirm < 2:
            raise ConfigError("runs and confirm are at least 2: noise is told from their differences.")
        if self.rounds < 1 or self.steps < 0:
            raise ConfigError("rounds is at least 1, steps at least 0.")
        if self.source is not None:
            checked_line(self.source, "source")


@dataclass(frozen=True, slots=True, eq=False)
class Improvement:
    """A plan of the same loss, and the plans that it was chosen from."""

    run: Run
    wishes: Wishes
    rows: Rows
    leaves: int  # on which plans were simulated
    chosen: Judged  # by the runs that judged
    confirmed: Judged  # the same plan, by the runs that confirm
    found: tuple[Judged, ...]  # all plans, the start first
    made: int  # runs made in this call

    def __repr__(self) -> str:
        return f"Improvement({self.run.product.name}: {self.chosen.name}, {self.confirmed.aim:+.1%})"

    @property
    def budget(self) -> dict[str, Any]:
        """The parts of ``[budget]``, exact."""
        return self.chosen.candidate.budget(self.run.resolved.mechanism)

    @property
    def trades(self) -> tuple[Change, ...]:
        """Errors that grew beyond noise in the runs that confirm."""
        return tuple(change for change in self.confirmed.changes if change.worse)

    @property
    def error_front(self) -> tuple[Judged, ...]:
        """Plans that no other beats in both the errors to lower and the worst of those that may not grow."""
        return tuple(self.found[i] for i in front([(each.aim, each.worst) for each in self.found]))

    @property
    def loss_front(self) -> tuple[Judged, ...]:
        """Plans without a worse error that no other beats in both the errors to lower and the loss within."""
        allowed = [each for each in self.found if not each.worse]
        return tuple(allowed[i] for i in front([(each.aim, each.within) for each in allowed]))

    @property
    def source(self) -> str:
        """Where the shares come from, for plan and certificate."""
        data = self.wishes.source or f"synthetic counts of the frame's public sizes{demonstration(self.run)}"
        return f"opendas tune --same-loss, by runs on {data}"

    def to_dict(self) -> dict[str, object]:
        """Return plain values for JSON: fractions as text."""
        return {
            self.run.resolved.mechanism.loss_name: format_fraction(self.chosen.candidate.total),
            **shares_json(self.budget["geolevels"], self.budget["queries"]),
            "chosen": self.chosen.name,
            "source": self.source,
            "leaves": self.leaves,
            "improved": self.confirmed.aim,
            "rows": [_change(change) for change in self.confirmed.changes],
            "plans": list(self._lines()),
            "runs_made": self.made,
        }

    def csv(self) -> str:
        """Return all plans as CSV: a line for each, with the change of every error."""
        out = io.StringIO()
        lines = list(self._lines())
        rows = [str(row) for row in self.rows.rows]
        writer = csv.DictWriter(
            out, [*(key for key in lines[0] if key != "changes"), *rows], lineterminator="\n"
        )
        writer.writeheader()
        for line in lines:
            changes = line.pop("changes")
            writer.writerow(line | changes)
        return out.getvalue()

    def _lines(self) -> Iterator[dict[str, Any]]:
        errors, loss = self.error_front, self.loss_front
        for each in self.found:
            yield {
                "plan": each.name,
                "kind": each.kind,
                "improved": each.aim,
                "worst": each.worst,
                "epsilon_within": each.within,
                "worse": " ".join(str(row).replace(" ", "") for row in each.worse),
                "front_of_errors": each in errors,
                "front_of_loss": each in loss,
                "chosen": each is self.chosen,
                "shares": " ".join(
                    f"{level}/{query.replace(' ', '')}={format_fraction(loss / each.candidate.total)}"
                    for level, losses in each.candidate.losses.items()
                    for query, loss in (losses or {}).items()
                ),
                "changes": {str(change.row): change.part for change in each.changes},
            }

    def toml(self, to: Path) -> str:
        """Return the run file with the plan; its paths are relative to where `to` lies."""
        words = [
            "# A plan found by opendas tune --same-loss: " + self.chosen.name + ".",
            f"# {len(self.found)} plans were simulated on {plural('leaf', self.leaves)}. In "
            f"{self.wishes.confirm} other runs the errors to lower changed by {self.confirmed.aim:+.1%}.",
            *(f"# Worse: {change}." for change in self.trades),
        ]
        return run_file_text(self.run, to, words, self.source, self.budget)


def _change(change: Change) -> dict[str, object]:
    return {
        "geolevel": change.row.geolevel,
        "query": change.row.query,
        "before": change.before,
        "after": change.after,
        "noise": change.noise,
        "at_most": change.at_most,
        "verdict": change.verdict,
    }


def improve(run: Run, **wishes: Any) -> Improvement:
    """Find a plan of the same loss that errs less where it is wished, and nowhere more that may not be.

    Parameters
    ----------
    run : Run
        Its plan is the start. Its input is opened only where a ``source`` says that it is public.
    **wishes
        Fields of :class:`Wishes`: ``improve``, ``may_worsen``, ``areas``, ``against``, ...

    Raises
    ------
    ConfigError
        If names are wrong, or another search's memory is given.
    EstimationError
        If no plan is found that is better and confirmed.
    """
    return _improve(run, Wishes(**wishes))


def _improve(run: Run, wishes: Wishes) -> Improvement:
    check_repeatable(run)
    run.check_alone("tune")
    run = run.changed(product=replace(run.product, prior=None))  # synthetic records have no earlier census
    if wishes.source is None:
        made = synthetic(run, wishes.records)
    else:
        note_reading(TUNE, tagger_of(run), product=run.product.name, ledger=wishes.ledger)
        data = run.read()
        made = data.frame, data.histogram
    trials = _Runs(run, made, wishes)
    space = space_of(run, trials.simulator)
    comparison = Comparison(trials, range(wishes.runs), wishes.tell)
    found = search(comparison, space, rounds=wishes.rounds, steps=wishes.steps)
    seeds = range(CONFIRMING, CONFIRMING + wishes.confirm)
    refused: list[Judged] = []
    for each in best(found):
        if each.aim >= 0:
            break
        confirmed = compare(trials, each.name, each.kind, each.candidate, seeds, together=True)
        refused.append(confirmed)
        if not confirmed.worse and confirmed.aim < 0:
            return Improvement(
                run, wishes, trials.rows, len(made[0]), each, confirmed, tuple(found), trials.made
            )
    if not (tried := refused or found[1:]):
        raise EstimationError("no plan of the same loss is expected to do better than the run file's own.")
    closest = min(tried, key=lambda plan: (len(plan.worse), plan.aim))
    grew = ", ".join(map(str, closest.worse)) or "nothing, but the errors to lower did not fall on average"
    runs = "confirming" if refused else "judging"
    raise EstimationError(
        f"{len(found) - 1} plans were tried, and none is known to lower the chosen errors without raising "
        f"one that may not grow. The closest is {closest.name}, which changes the chosen errors by "
        f"{closest.aim:+.1%}. In its {runs} runs these grew: {grew}. Say which errors may grow "
        "(--may-worsen), or try more plans (--rounds)."
    )


class _Runs:
    """Simulated runs of plans and of what they are compared with."""

    def __init__(self, run: Run, made: tuple[Frame, Any], wishes: Wishes) -> None:
        self.run, self.made = run, 0
        self.simulator = Simulator(run, made=made, workers=wishes.workers)
        self._other = None
        if wishes.against not in (None, run.resolved.estimator):
            other = run.with_(estimator=wishes.against).changed(product=run.product)
            self._other = Simulator(other, made=made, workers=wishes.workers)
        frame = made[0]
        named: list[str] = list(levels_of(frame))
        self._groupings: list[str | Grouping] = [*named, *(_areas(frame, words) for words in wishes.areas)]
        self.rows = _rows(run.product, [*named, *wishes.areas], frame, self._groupings, wishes)
        self._start = start_of(run)
        belongs = ""
        if wishes.memory is not None:
            words = (wishes.source or f"synthetic {wishes.records}", *wishes.areas, str(wishes.against))
            belongs = belongs_to(run, run.estimation_digest(), *words)
        self._memory: FinishedRuns[Sums] = FinishedRuns(tuple, wishes.memory, belongs)

    def before(self, seed: int) -> Sums:
        """Return the errors of the plan that plans are compared with."""
        if self._other is None:
            return self.after(self._start, seed)
        return self._sums(self._other, "before", self._start, seed)

    def after(self, candidate: Candidate, seed: int) -> Sums:
        """Return the errors of a plan."""
        return self._sums(self.simulator, candidate.key, candidate, seed)

    def within(self, candidate: Candidate) -> float:
        """Return epsilon of moving within a geounit of the level above the leaves."""
        run = self.run.changed(budget=candidate.spec(self.run.resolved.budget))
        losses = list(within_losses(run.plan, run.protection).values())
        return run.budget.epsilon(losses[-2 if len(losses) > 1 else -1])

    def _sums(self, simulator: Simulator, name: str, candidate: Candidate, seed: int) -> Sums:
        found = self._memory.get(name, seed)
        if found is None:
            found = simulator.absolute_errors(candidate, seed, self._groupings)
            self._memory.put(name, seed, found)
            self.made += 1
        return found


def start_of(run: Run) -> Candidate:
    """Return the plan of a run."""
    budget = run.budget
    losses = {
        level: {
            name: budget.total * share * part
            for name, part in (budget.query_shares(level).items() if share else ())
            if part
        }
        for level, share in budget.geolevels.items()
    }
    return Candidate(Strategy("start", {}), losses)


def space_of(run: Run, simulator: Simulator, part_of: Spine | None = None) -> Space:
    """Return where plans of a run's loss are looked for, with the counts of a simulator.

    `part_of`: the spine that these are a part of.
    """
    start, budget = start_of(run), run.budget
    measured = (name for losses in start.losses.values() for name in losses or {})
    queries = tuple(dict.fromkeys((*run.product.query_names, *measured)))
    power = 1 if budget.mechanism.is_zcdp else 2
    precision = np.array(
        [[_precision(budget, level, q) ** (1 / power) for q in queries] for level in start.losses]
    )
    return Space(
        start, simulator.populated(queries, part_of), precision / float(budget.total * _SMALL), power
    )


def _precision(budget: Budget, level: str, query: str) -> float:
    """Return the inverse variance of an answer with a small part of the loss."""
    contribution = budget.contribution
    noise = noise_distribution(
        budget.mechanism,
        budget.neighbours,
        _SMALL,
        budget.total,
        records=contribution.records,
        together=contribution.together(level, query),
    )
    return 1 / noise.variance


def _areas(frame: Frame, words: str) -> Grouping:
    """Return the areas of a category, or those of it that are listed after a colon."""
    category, _, codes = words.partition(":")
    if category not in frame.categories:
        raise ConfigError(f"the frame has no areas of {category!r}; {nearest(category, frame.categories)}")
    grouping = frame.grouping(category)
    if not codes:
        return grouping
    listed = np.array([code.strip().encode() for code in codes.split(",")])
    unknown = [code.decode() for code in listed if code not in grouping.geocodes]
    if unknown:
        raise ConfigError(f"the frame has no {category} {', '.join(unknown)}.")
    inside = np.flatnonzero(np.isin(grouping.geocodes, listed))
    place = np.full(len(grouping.geocodes) + 1, -1)
    place[inside] = np.arange(len(inside))
    return Grouping(words, grouping.geocodes[inside], place[grouping.of_leaf])


def _rows(
    product: Product, names: Sequence[str], frame: Frame, groupings: Sequence[str | Grouping], wishes: Wishes
) -> Rows:
    sizes = [len(each if isinstance(each, Grouping) else frame.grouping(each)) for each in groupings]
    rows = tuple(Row(name, query) for name in names for query in product.query_names)
    aims = _named(wishes.improve or (frame.geolevels[-1],), rows, names, product)
    free = _named(wishes.may_worsen, rows, names, product)
    areas = tuple(size for size in sizes for _ in product.query_names)
    return Rows(rows, areas, aims, frozenset(rows) - free)


def _named(
    given: Sequence[str], rows: Sequence[Row], names: Sequence[str], product: Product
) -> frozenset[Row]:
    """Return the rows that are named by a geolevel, or by geolevel and query group."""
    found: set[Row] = set()
    for words in given:
        geolevel, _, query = words.partition("/")
        if geolevel not in names:
            raise ConfigError(f"{words}: there is no {geolevel!r}; {nearest(geolevel, names)}")
        wanted = product.workload.canonical(query) if query else None
        chosen = {row for row in rows if row.geolevel == geolevel and wanted in (None, row.query)}
        if not chosen:
            raise ConfigError(f"{words}: {query} is no query group of {product.name}.")
        found |= chosen
    return frozenset(found)
