"""Errors of released counts before any are released: the run, tried on synthetic counts of its own frame.

Expected errors by the noise alone are far too large for small geounits, whose counts are not negative. Here
the run's own estimator and rounder answer, on a part of the frame with synthetic records: public sizes, few
cells that have most of them, and a mixture that differs from leaf to leaf.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from opendas.arrays import Ints
from opendas.budget.allocation import Budget
from opendas.constraints.table import bound_table
from opendas.demo.synthetic_counts import synthetic_counts
from opendas.errors import ConfigError, OpendasError
from opendas.geography.spine import Spine
from opendas.metrics.errors import LevelErrors, difference, level_errors, query_rows
from opendas.runs.config.model import BUILT_IN_PRODUCTS
from opendas.runs.context.run import Run
from opendas.runs.simulated.forecast import MANY_CELLS, RECORDS, expected_support, timed
from opendas.runs.simulated.simulation import Simulation
from opendas.schema.histogram import Histogram
from opendas.topdown.model import INFORMED, TOPDOWN, WHOLE_TREE

LEAVES = 2_000
"""Most leaves of a trial: the first of the frame."""
CHILD_CELLS = 500_000.0
"""Where there are many cells a trial has fewer leaves: about so many leaves times cells with records, which
take some seconds a draw."""
OTHER_CHILD_CELLS = 20_000.0
"""The same for a trial of the other estimator, whose time can grow by twice the power: a few seconds."""
DRAWS, ONE_DRAW = 3, 1 << 16
"""Draws of the noise over which errors are averaged; and cells above which one, that takes half a minute with
two million, is all."""
_GOLDEN = (5**0.5 - 1) / 2
FEWEST = 10
"""Geounits of the part that a geolevel needs to be spoken of."""


@dataclass(frozen=True, slots=True)
class TriedRow:
    """Mean error of one query group over the geounits of a geolevel of the trial."""

    geolevel: str
    query: str
    geounits: int  # in the part that was tried
    # As in ``evaluate``: the absolute error summed over the rows of the query group, averaged over geounits;
    # here over draws of the noise, too.
    mean_abs_error: float


@dataclass(frozen=True, slots=True)
class UsualRow:
    """What is usual at one geolevel of the trial."""

    geolevel: str
    geounits: int  # in the part that was tried
    records: float  # synthetic records of a geounit, on average
    # Totals of 9 in 10 geounits are off by so much at most, over all draws.
    within: int
    # Share of the records that are in another cell of their geounit than they should be: half of the absolute
    # errors of all cells, of all records.
    misplaced: float


@dataclass(frozen=True, slots=True)
class Tried:
    """What a trial found."""

    rows: tuple[TriedRow, ...]
    usual: tuple[UsualRow, ...]  # top first


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """A part of a run's frame with synthetic counts, on which budgets can be tried."""

    simulation: Simulation  # of the run on the part
    counts: Histogram  # synthetic records, a row for each leaf of the part, in the frame's order

    @classmethod
    def of(
        cls,
        run: Run,
        records: float | None = None,
        *,
        at_top: bool = False,
        child_cells: float = CHILD_CELLS,
        most: int = LEAVES,
        spread: bool = False,
    ) -> Trial | None:
        """Return the trial of a run; None where no small run can be made of its product.

        - `records`: about how many records the whole frame has; by default as :func:`synthetic_counts` says.
        - `at_top`: only the topmost table matters: where there are many cells, few leaves share all the
          records.
        - `child_cells`: where there are many cells, about how many leaves times cells with records it has.
        - `most`: leaves of the trial: the first of the frame.
        - `spread`: in their place whole geounits of two levels above, far apart from each other.
        """
        if not timed(run.product):
            return None
        whole = at_top and records is not None and run.product.schema.size > MANY_CELLS
        leaves = min(FEWEST, len(run.frame)) if whole else _leaves(run, records, child_cells, most)
        frame = run.frame.take(_far_apart(run.spine, leaves) if spread else np.arange(leaves))
        # Records of nobody have no earlier census.
        part = run.changed(product=replace(run.product, prior=None)).on_frame(frame)
        free = bound_table(replace(run.product, invariants=()), frame, part.spine, {})
        # A census has most people in few cells; of other tables nobody knows it.
        census = run.product.name in BUILT_IN_PRODUCTS
        here = records if records is None or whole else records * len(frame) / len(run.frame)
        counts = synthetic_counts(free, part.spine.place_of_leaf, frame, run.product, here, census=census)
        return cls(Simulation.of(part, counts), counts)

    def errors(self, budget: Budget | None = None) -> tuple[TriedRow, ...]:
        """Return the mean errors of every declared query group, with the run's budget or another."""
        return self.tried(budget).rows

    def misplaced_at_top(self) -> float:
        """Return the share of records in a wrong cell of the topmost table, in the first draw of the noise.

        Nothing below the top is estimated, unless the estimator needs it, or parts make up the topmost table.
        """
        run, counts = self.simulation.run, self.simulation.counts
        below = run.resolved.estimator in {*WHOLE_TREE, "block-by-block"}
        if below or run.spine.levels[0].whole is not None:
            return self.tried(draws=1).usual[0].misplaced
        truth = counts.aggregate(run.spine.leaf_starts(0))
        error = difference(truth, self.simulation.top(0, self._purpose))
        return float(abs(error).sum()) / (2 * max(truth.total(), 1))

    @property
    def _purpose(self) -> str:
        """Of the noise."""
        return "trial/" + self.simulation.run.product.name

    def tried(self, budget: Budget | None = None, draws: int | None = None) -> Tried:
        """Repeat the run on the synthetic counts, with its budget or another.

        Budgets are tried with the same draws: by default :data:`DRAWS`, or one of more than :data:`ONE_DRAW`
        cells. Where a budget bypasses other geounits the spine stays.
        """
        simulation = self.simulation
        if draws is None:
            draws = DRAWS if simulation.run.product.schema.size <= ONE_DRAW else 1
        run, frame = simulation.run, simulation.run.frame
        if budget is not None:
            simulation = simulation.with_plan(run.with_budget(budget))
        found: dict[tuple[str, str, int], list[float]] = {}
        usual: dict[str, list[LevelErrors]] = {}
        for draw in range(draws):
            estimate = simulation.estimate(draw, self._purpose)
            levels = level_errors(self.counts, estimate, frame, frame.geolevels)
            for level in levels:
                usual.setdefault(level.units.geolevel, []).append(level)
            for row in query_rows(levels, run.product):
                errors = row.errors
                if errors.geounits >= FEWEST and errors.mean_abs_error is not None:
                    key = (row.geolevel, row.query, errors.geounits)
                    found.setdefault(key, []).append(errors.mean_abs_error)
        return Tried(
            tuple(TriedRow(*key, float(np.mean(values))) for key, values in found.items()),
            tuple(_usual_errors(name, levels) for name, levels in usual.items()),
        )


def far_apart(number: int) -> Ints:
    """Return an order of so many things in which the first ones, however many, lie far apart."""
    return np.argsort(np.arange(number) * _GOLDEN % 1.0)


def _far_apart(spine: Spine, most: int) -> Ints:
    """Return which leaves of the frame lie in whole geounits far apart, ascending: at most so many."""
    starts = spine.leaf_starts(max(0, len(spine.levels) - 3))
    units = far_apart(len(starts) - 1)
    ends = np.cumsum(np.diff(starts)[units])
    chosen = [np.arange(starts[unit], starts[unit + 1]) for unit in units[ends <= most]]
    places = np.concatenate(chosen or [np.arange(min(most, starts[-1]))])
    return np.sort(spine.leaf_order[places])


def _leaves(run: Run, records: float | None, child_cells: float, most: int) -> int:
    """Return how many leaves a trial has: fewer where their families would have many cells with records."""
    most, cells = min(most, len(run.frame)), int(np.count_nonzero(run.product.possible))
    if cells <= MANY_CELLS:
        return most
    leaves = np.arange(1.0, most + 1)
    each = RECORDS if records is None else records / len(run.frame)
    work = leaves * expected_support(each * leaves, cells)
    return max(min(FEWEST, most), int(np.searchsorted(work, child_cells)))


@dataclass(frozen=True, slots=True)
class OtherEstimator:
    """What a run would have of the other estimator, as tried on synthetic counts."""

    estimator: str  # ``informed`` for a run with ``topdown``, and the other way round
    change: Mapping[str, float]  # by geolevel, the change of the records in a wrong cell: -0.14 is 14 % fewer
    times: float  # processor time of a draw, relative to the run's own estimator
    leaves: int  # on which both were tried


def estimator_beside(run: Run) -> str | None:
    """Return the other estimator that a run of the user's own product can be tried with; None without one."""
    if run.resolved.run_file is None or run.product.name in BUILT_IN_PRODUCTS:
        return None
    return {TOPDOWN: INFORMED, INFORMED: TOPDOWN}.get(run.resolved.estimator)


def other_estimator(run: Run, records: float | None = None) -> OtherEstimator | str | None:
    """Try a run of the user's own product with the other estimator.

    - `run`: products of the census have their estimator from production: None. A table of more than
      :data:`MANY_CELLS` cells is tried by one draw, on fewer leaves than the run's own trial has.
    - `records`: as for :meth:`Trial.of`.
    - Returns: also why it was not tried.
    """
    other = estimator_beside(run)
    if other is None:
        return None
    try:
        (ours, seconds, leaves), (theirs, longer, _) = (
            _timed_draws(each, records) for each in (run, run.with_(estimator=other))
        )
    except OpendasError as error:  # of either estimator, on these synthetic counts
        return f"{other} was not compared, since the trial ended with an error: {str(error).rstrip('.')}"
    change = {
        a.geolevel: b.misplaced / a.misplaced - 1
        for a, b in zip(ours.usual, theirs.usual, strict=True)
        if a.misplaced
    }
    return OtherEstimator(other, change, longer / seconds, leaves)


def _timed_draws(run: Run, records: float | None) -> tuple[Tried, float, int]:
    """Return what a trial finds, the processor time of its draws, and its leaves.

    A first draw, of few records where there are many cells, loads the compiled code.
    """
    many = run.product.schema.size > MANY_CELLS
    trial = Trial.of(run, records, child_cells=OTHER_CHILD_CELLS)
    first = Trial.of(run, FEWEST, child_cells=OTHER_CHILD_CELLS) if many else trial
    if trial is None or first is None:
        raise ConfigError("no small run can be made of this product.")
    first.tried(draws=1)
    began = time.process_time()
    tried = trial.tried(draws=1 if many else DRAWS)
    return tried, time.process_time() - began, len(trial.simulation.run.frame)


def _usual_errors(geolevel: str, draws: Sequence[LevelErrors]) -> UsualRow:
    totals = np.concatenate([np.abs(level.total_error) for level in draws])
    population = draws[0].population
    cells = float(np.mean([abs(level.error).sum() for level in draws]))
    return UsualRow(
        geolevel,
        len(population),
        float(population.mean()),
        int(np.quantile(totals, 0.9, method="higher")),
        cells / (2 * max(int(population.sum()), 1)),
    )
