"""What truncation leaves out: by household sizes, by table and cell, or released with a budget of its own.

Margins of error speak about the noise only. Persons beyond the first tau of their household are not counted
at all, and by how much that biases a table can be seen in three ways:

* :func:`dropped_share`: from any distribution of household sizes, for instance a published one;
* :func:`truncation_error`: from persons and units of an earlier census or a survey, per table and cell;
* :func:`plan_dropped` and :func:`release_dropped`: the number of persons dropped in each table, measured on
  the confidential data with declared noise, and charged like every other measurement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints
from opendas.errors import ConfigError
from opendas.phsafe.counting import count_cube, counted_rows, level_counts
from opendas.phsafe.linking import Linked
from opendas.phsafe.margins import Solution, solve
from opendas.phsafe.model import LEVELS, Geography, Iteration, Level
from opendas.phsafe.sensitivity import Answers, Law, Sensitivity, noise_for
from opendas.phsafe.tables import Joined, Kind, Table
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.sampling.inverse_cdf import SamplerTable
from opendas.sampling.noise import NoiseSource

__all__ = [
    "DroppedAnswer",
    "DroppedPlan",
    "Tradeoff",
    "TruncationError",
    "dropped_loss",
    "dropped_share",
    "plan_dropped",
    "release_dropped",
    "tradeoff",
    "truncation_error",
]

_DEFAULT_CAP = 10


def dropped_share(sizes: Mapping[int, int], tau: int) -> Fraction:
    """Return the share of persons that truncation leaves out of a distribution of household sizes.

    Parameters
    ----------
    sizes : mapping of int to int
        Number of persons that a table counts in a household -> number of such households. A class that is
        open above ("7 or more") has to be split by the caller, who alone can know how.
    tau : int, >= 1

    Returns
    -------
    Fraction
        In [0, 1); 0 where there are no persons.

    Examples
    --------
    >>> dropped_share({1: 50, 4: 20, 12: 1}, 10)
    Fraction(1, 71)
    """
    _check_tau(tau)
    if any(size < 0 or households < 0 for size, households in sizes.items()):
        raise ConfigError("A distribution of household sizes has no negative numbers.")
    persons = sum(size * households for size, households in sizes.items())
    dropped = sum(max(0, size - tau) * households for size, households in sizes.items())
    return Fraction(dropped, persons) if persons else Fraction(0)


@dataclass(frozen=True, slots=True)
class Tradeoff:
    """Noise and truncation at one tau.

    Parameters
    ----------
    solution : Solution
        Budget and margin at this tau, under one bound.
    share : Fraction
        Share of the persons dropped.
    """

    solution: Solution
    share: Fraction


def tradeoff(
    sizes: Mapping[int, int],
    *,
    target: int | None = None,
    budget: Fraction | None = None,
    sensitivity: Sensitivity | None = None,
    taus: Iterable[int] = range(1, 13),
) -> tuple[Tradeoff, ...]:
    """Return, for each tau, what the noise needs and what truncation drops.

    Parameters
    ----------
    sizes : mapping of int to int
        As for :func:`dropped_share`.
    target : int, optional
        Margin of error: the budget that meets it grows with tau.
    budget : Fraction, optional
        Unbounded loss: the margin grows with tau. Of the two, exactly one.
    sensitivity : Sensitivity, optional
        Without it, both.
    taus : iterable of int

    Returns
    -------
    tuple of Tradeoff
        By sensitivity, then by tau.

    Raises
    ------
    ConfigError
        If target and budget are both given, or neither.
    """
    if (target is None) == (budget is None):
        raise ConfigError("Give a target margin or a budget, and not both: tau is gone through.")
    solutions = solve(target=target, budget=budget, sensitivity=sensitivity, taus=taus)
    return tuple(Tradeoff(one, dropped_share(sizes, one.answers.rows)) for one in solutions)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TruncationError:
    """What truncation does to one table on given data. As confidential as the data.

    Parameters
    ----------
    table : str
    tau : int
    persons, dropped : int
        Persons that the table counts, and those beyond tau in their household.
    households, cut : int
        Households with such persons, and those above tau.
    counts : int64 (states, races, origins, cells)
        The table's cube (see :mod:`opendas.phsafe.counting`) without truncation.
    bias : float64, same shape
        Expected change of each count, <= 0.
    """

    table: str
    tau: int
    persons: int
    dropped: int
    households: int
    cut: int
    counts: Ints
    bias: npt.NDArray[np.float64]

    def __repr__(self) -> str:
        return f"TruncationError({self.table}, tau {self.tau})"

    @property
    def share(self) -> float:
        """Share of the persons that are left out."""
        return self.dropped / self.persons if self.persons else 0.0

    def level_counts(self, level: Level) -> Ints:
        """Return the answers of a level without truncation, (regions, groups, cells)."""
        return level_counts(self.counts, level)

    def level_bias(self, level: Level) -> npt.NDArray[np.float64]:
        """Return the expected change of each answer of a level, (regions, groups, cells)."""
        return np.asarray(level_counts(self.bias, level))  # type: ignore[arg-type]


def truncation_error(table: Table, linked: Linked, tau: int, states: int) -> TruncationError:
    """Return what truncation does to a table on given data, without noise.

    Parameters
    ----------
    table : Table
        A table of persons.
    linked : Linked
        Persons beside their units; of a public source or an earlier census, or the result is confidential.
    tau : int
    states : int
        Number of states in the grid.

    Returns
    -------
    TruncationError
        With the bias of the keyed order, under which every person of a household is equally likely to be
        kept: of a household with n > tau persons each counts tau / n in the mean.

    Raises
    ------
    ConfigError
        If the table counts units, or tau is not a positive integer.
    """
    _check_tau(tau)
    _check_persons(table)
    rows = counted_rows(table, linked)
    sizes = np.bincount(rows.unit_rows, minlength=len(rows.units))
    of_row = sizes[rows.unit_rows]
    counts = count_cube(table, rows, linked.state, states)
    bias = np.zeros(counts.shape)
    for size in np.unique(of_row[of_row > tau]).tolist():
        bias -= count_cube(table, _part(rows, of_row == size), linked.state, states) * ((size - tau) / size)
    large = sizes > tau
    return TruncationError(
        table=table.name,
        tau=tau,
        persons=len(rows),
        dropped=int((sizes[large] - tau).sum()),
        households=int(np.count_nonzero(sizes)),
        cut=int(np.count_nonzero(large)),
        counts=counts,
        bias=bias,
    )


def _part(rows: Joined, wanted: npt.NDArray[np.bool_]) -> Joined:
    assert rows.person_rows is not None
    return Joined(rows.persons, rows.units, rows.person_rows[wanted], rows.unit_rows[wanted])


@dataclass(frozen=True, slots=True)
class DroppedPlan:
    """The noise of one table's number of dropped persons, for the nation or for every state.

    Parameters
    ----------
    table : str
    level : Level
        ``usa_*`` or ``state_*``.
    tau, cap : int
        A household above tau counts with its persons beyond tau, at most `cap` of them.
    law : DiscreteGaussian or DiscreteLaplace
    """

    table: str
    level: Level
    tau: int
    cap: int
    law: Law

    def loss(self, relation: Neighbours) -> Fraction:
        """Return what the answer costs, under assumption N1: one address changes one count, by the cap."""
        return _dropped_answers(self.cap).loss(self.law, Sensitivity.TIGHT, relation)


@dataclass(frozen=True, slots=True)
class DroppedAnswer:
    """A noisy number of dropped persons. For release, once its loss is on the ledger.

    Parameters
    ----------
    table : str
    tau, cap : int
    region : str
        REGION_ID.
    dropped : int
        May be negative.
    margin : int
        90 % margin of error.
    """

    table: str
    tau: int
    cap: int
    region: str
    dropped: int
    margin: int


def plan_dropped(
    tau: Mapping[str, int],
    budget: Fraction,
    *,
    mechanism: Mechanism = Mechanism.DISCRETE_GAUSSIAN,
    geographies: Sequence[Geography] = (Geography.USA,),
    cap: int = _DEFAULT_CAP,
) -> tuple[DroppedPlan, ...]:
    """Share a budget equally among the numbers of dropped persons.

    Parameters
    ----------
    tau : mapping of str to int
        Tables and their thresholds.
    budget : Fraction, > 0
        Unbounded loss of all answers together.
    mechanism : Mechanism
    geographies : sequence of Geography
        The nation, the states, or both.
    cap : int, >= 1
        The larger, the less is missed of very large households, and the more noise there is.

    Returns
    -------
    tuple of DroppedPlan
        By table, then by geography. Their unbounded losses sum to exactly the budget.

    Raises
    ------
    ConfigError
        If nothing is asked for, or a number is out of range.

    Notes
    -----
    Under N1 one address changes one count per table and geography, by at most the cap, whatever its number
    of persons: squared L2 sensitivity cap^2, bounded (2 cap)^2.
    """
    asked = [(name, threshold, geography) for name, threshold in tau.items() for geography in geographies]
    if not asked:
        raise ConfigError("There is no table to release the number of dropped persons of.")
    share = Fraction(budget) / len(asked)
    plans = []
    for name, threshold, geography in asked:
        _check_tau(threshold)
        law = noise_for(_dropped_answers(cap), share, mechanism, Sensitivity.TIGHT)
        plans.append(DroppedPlan(name, Level(geography, Iteration.ALL), threshold, cap, law))
    return tuple(plans)


def dropped_loss(plans: Iterable[DroppedPlan], relation: Neighbours) -> Fraction:
    """Return the loss of all answers together under a relation."""
    return sum((plan.loss(relation) for plan in plans), Fraction(0))


def release_dropped(
    plans: Sequence[DroppedPlan],
    tables: Iterable[Table],
    linked: Linked,
    state_filter: Sequence[str],
    key: bytes,
) -> tuple[DroppedAnswer, ...]:
    """Count the dropped persons and add the planned noise.

    Parameters
    ----------
    plans : sequence of DroppedPlan
        Charged to the ledger by the caller, before this is called.
    tables : iterable of Table
        The tables that the plans name, among others.
    linked : Linked
        Confidential.
    state_filter : sequence of str
        Two-digit FIPS codes, sorted as for :func:`opendas.phsafe.linking.link`.
    key : bytes, 32 of them
        Derived for this purpose, this plan and this input: the key of no other noise.

    Returns
    -------
    tuple of DroppedAnswer
        By plan, then by region.
    """
    known = {table.name: table for table in tables}
    source = NoiseSource(key)
    answers = []
    for number, plan in enumerate(plans):
        if plan.table not in known:
            raise ConfigError(f"There is no table {plan.table}.")
        counts = _dropped_by_state(known[plan.table], linked, plan.tau, plan.cap, len(state_filter))
        regions = list(state_filter)
        if plan.level.geography is Geography.USA:
            counts, regions = counts.sum(keepdims=True), ["1"]
        sampler = SamplerTable.build(plan.law)
        noise = source.draw(
            sampler, LEVELS.index(plan.level), np.arange(len(counts)), number, np.zeros(1, dtype=np.int64)
        )[:, 0]
        margin = plan.law.margin(Fraction(9, 10))
        answers += [
            DroppedAnswer(plan.table, plan.tau, plan.cap, region, dropped, margin)
            for region, dropped in zip(regions, (counts + noise).tolist(), strict=True)
        ]
    return tuple(answers)


def _dropped_answers(cap: int) -> Answers:
    # One household is in one region: a single count of it, of at most `cap` persons.
    return Answers(cap, 1)


def _dropped_by_state(table: Table, linked: Linked, tau: int, cap: int, states: int) -> npt.NDArray[np.int64]:
    _check_persons(table)
    rows = counted_rows(table, linked)
    sizes = np.bincount(rows.unit_rows, minlength=len(rows.units))
    dropped = np.clip(sizes - tau, 0, cap)
    counts = np.zeros(states, dtype=np.int64)
    np.add.at(counts, linked.state, dropped)
    return counts


def _check_tau(tau: int) -> None:
    if isinstance(tau, bool) or not isinstance(tau, int) or tau < 1:
        raise ConfigError("tau must be a positive integer: the number of persons kept of a household.")


def _check_persons(table: Table) -> None:
    if table.kind is not Kind.PERSONS:
        raise ConfigError(f"{table.name} counts units, which are not truncated.")
