"""Budget moves worth knowing of, with what they give, what they cost, and their price in privacy.

Two kinds. *Within a geolevel*: other shares of its query groups at the same loss. With plain TopDown a
geolevel's answers do not touch the estimates above it, and with the informed estimator hardly, so such a move
costs nothing there. *Between geolevels*: a part of one geolevel's loss goes to the next one below; the loss
of moving within a geounit of the spine rises by as much.

Moves are found by expected errors of the noise alone (docs/explanation/choosing-a-budget.md), which
promise too much where counts are small; what a move does to released counts is tried on made ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from opendas.budget.allocation import Budget, shares_json
from opendas.errors import ConfigError
from opendas.gls.expected_error import ExpectedError
from opendas.gls.expected_topdown import GainRow, gain_rows, mean_coefficients
from opendas.measurement.loss import attribute_losses, within_losses
from opendas.measurement.plan import MeasurementPlan
from opendas.measurement.protection import ProtectionMap
from opendas.privacy.zcdp import epsilon_cks
from opendas.runs.context.run import Run
from opendas.runs.simulated.trial import Trial
from opendas.topdown.model import WHOLE_TREE

TRIED = tuple(Fraction(part, 100) for part in (5, 10, 25, 50))
"""Shares that a query group is raised to."""

STEPS = 3
"""Query groups raised in one move."""

WORSE = 0.2
"""A move within a geolevel may raise no expected error, there or below, by more than this part ..."""

ABOVE = 0.01
"""... and none above by more than this ..."""

BETTER = 0.05
"""... and has to lower their mean, as a product, by at least this."""

SEEN = 0.03
"""Part by which a tried error has to change to be told from chance."""

MOVED = Fraction(1, 20)
"""Part of the total loss that moves between geolevels; at most half of what the giving one has."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Error of one query group at one geolevel, before and after a move."""

    geolevel: str
    query: str
    before: float
    after: float

    @property
    def change(self) -> float:
        """Relative change."""
        return self.after / self.before - 1.0 if self.before else 0.0

    def to_dict(self) -> dict[str, object]:
        """Return plain values for JSON."""
        return {**asdict(self), "change": self.change}


@dataclass(frozen=True, slots=True)
class Price:
    """What a move does to a person's protection: losses as the certificate states them, given what is exact.

    Parameters
    ----------
    what : str
        For instance ``"moving within a block_group of the spine"`` or ``"changing cenrace"``.
    before, after : float
        Epsilon at the plan's delta, by the formula ``cks``; the pure epsilon with the discrete Laplace.
    """

    what: str
    before: float
    after: float

    def to_dict(self) -> dict[str, object]:
        """Return plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Move:
    """A budget move.

    Parameters
    ----------
    kind : str
        ``"within"`` a geolevel or ``"between"`` two.
    text : str
    geolevels : mapping of str to Fraction
        Shares after the move.
    queries : mapping of str to mapping of str to Fraction
        Of the geolevel of a move within; empty otherwise.
    effects : tuple of Effect
        Wherever an expected error changes by more than half a per cent.
    tried : tuple of Effect
        Mean absolute errors of released counts, before and after, on synthetic counts of a part of the frame:
        wherever they change by more than :data:`SEEN`. Empty where no run can be tried.
    prices : tuple of Price
        Losses that change.
    """

    kind: str
    text: str
    geolevels: Mapping[str, Fraction]
    queries: Mapping[str, Mapping[str, Fraction]]
    effects: tuple[Effect, ...]
    tried: tuple[Effect, ...]
    prices: tuple[Price, ...]

    def __repr__(self) -> str:
        return f"Move({self.text})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; shares as exact text."""
        return {
            "kind": self.kind,
            "text": self.text,
            **shares_json(self.geolevels, self.queries),
            "effects": [effect.to_dict() for effect in self.effects],
            "tried": [effect.to_dict() for effect in self.tried],
            "prices": [price.to_dict() for price in self.prices],
        }


def advise(run: Run) -> tuple[Move, ...]:
    """Look for budget moves on a run's own spine, from public things only.

    Returns for each measured geolevel, from the leaves up, the best move within it if there is one; then for
    each pair of neighbouring geolevels, from the leaves up, the move of five hundredths of the loss
    downwards.
    """
    if run.resolved.estimator == "block-by-block":
        raise ConfigError(
            "estimator block-by-block spends everything at the leaves: there is nothing to move."
        )
    adviser = _Adviser(run)
    levels = [level for level in reversed(run.plan.levels) if level.queries]
    found = [move for level in levels if (move := adviser.within(level.geolevel)) is not None]
    for above, below in zip(levels[1:], levels, strict=False):
        found.append(adviser.between(above.geolevel, below.geolevel))
    return tuple(found)


class _Adviser:
    """The plan of a run and its expected errors, beside which moves are held."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.plan = run.plan
        self.expected = ExpectedError.build(self.plan)
        self.names = run.product.query_names
        self.before = self._errors(self.expected)
        self.coefficients = mean_coefficients(self.expected)
        self.trial = Trial.of(run)
        self.tried = () if self.trial is None else self.trial.errors()

    def _errors(self, expected: ExpectedError) -> dict[tuple[str, str], float]:
        def error(row: GainRow) -> float:
            return row.informed if self.run.resolved.estimator in WHOLE_TREE else row.topdown

        return {(row.geolevel, row.query): error(row) for row in gain_rows(expected, self.names)}

    def within(self, geolevel: str) -> Move | None:
        """Return the best move within a geolevel, or None if none is free of cost."""
        budget = self.plan.budget
        shares = {name: share for name, share in budget.query_shares(geolevel).items() if share}
        number = self.plan.spine.index(geolevel)
        own = {
            number: self._own(level.geolevel)
            for number, level in enumerate(self.plan.levels)
            if level.queries
        }
        if not all(np.isfinite(list(errors.values())).all() for errors in own.values()):
            return None  # what is not determined cannot be compared
        base = self._mean_square(own)
        best, found = dict(shares), base
        for _ in range(STEPS):
            trials = [_raised(best, name, share) for name in best for share in TRIED if best[name] < share]
            scored = []
            for trial in trials:
                errors = self._mean_square({**own, number: self._own(geolevel, trial)})
                if np.all(errors <= base * (1 + WORSE) ** 2):
                    scored.append((float(np.log(errors[number:] / base[number:]).sum()), trial, errors))
            score = float(np.log(found[number:] / base[number:]).sum())
            better = [one for one in scored if one[0] < score - 0.02]
            if not better:
                break
            _, best, found = min(better, key=lambda one: one[0])
        gain = float(np.log(found[number:] / base[number:]).mean()) / 2
        if gain > np.log(1 - BETTER):
            return None
        moved = self._with_shares(geolevel, best)
        raised = [name for name in best if best[name] > shares[name]]
        words = ", ".join(f"{name} {float(shares[name]):.3g} -> {float(best[name]):.3g}" for name in raised)
        text = f"within {geolevel}: {words}, the others scaled down"
        plan = MeasurementPlan(self.plan.product, self.plan.spine, moved)
        move = self._move("within", text, plan, self.run.protection, {geolevel: best})
        above = {level.geolevel for level in self.plan.levels[:number]}
        free = all(effect.change <= ABOVE for effect in move.effects if effect.geolevel in above)
        return move if free else None

    def between(self, above: str, below: str) -> Move:
        """Return the move of a part of the loss from a geolevel to the one below."""
        budget = self.plan.budget
        part = min(MOVED, budget.geolevels[above] / 2)
        shares = dict(budget.geolevels)
        shares[above] -= part
        shares[below] += part
        spec = self.run.resolved.budget.stating(budget.total, shares, budget.queries)
        run = self.run.changed(budget=spec)
        text = f"{float(part):.3g} of the loss from {above} to {below}"
        return self._move("between", text, run.plan, run.protection, {})

    def _move(
        self,
        kind: str,
        text: str,
        plan: MeasurementPlan,
        held: ProtectionMap,
        queries: Mapping[str, Mapping[str, Fraction]],
    ) -> Move:
        budget = plan.budget
        after = self._errors(ExpectedError.build(plan))
        effects = tuple(
            Effect(geolevel, query, before, after[geolevel, query])
            for (geolevel, query), before in self.before.items()
            if (geolevel, query) in after and np.isfinite([before, after[geolevel, query]]).all()
        )
        notable = tuple(effect for effect in effects if abs(effect.change) > 0.005)
        return Move(
            kind,
            text,
            dict(budget.geolevels),
            queries,
            notable,
            self._tried(budget),
            self._prices(plan, held),
        )

    def _tried(self, budget: Budget) -> tuple[Effect, ...]:
        if self.trial is None:
            return ()
        pairs = zip(self.tried, self.trial.errors(budget), strict=True)
        effects = (
            Effect(row.geolevel, row.query, row.mean_abs_error, other.mean_abs_error) for row, other in pairs
        )
        return tuple(effect for effect in effects if abs(effect.change) > SEEN)

    def _with_shares(self, geolevel: str, shares: Mapping[str, Fraction]) -> Budget:
        """Return the budget with other query shares at one geolevel."""
        return replace(self.plan.budget, queries={**self.plan.budget.queries, geolevel: shares})

    def _prices(self, plan: MeasurementPlan, held: ProtectionMap) -> tuple[Price, ...]:
        found = []
        for words, losses in (
            ("moving within a {} of the spine", within_losses),
            ("changing {}", attribute_losses),
        ):
            before, after = losses(self.plan, self.run.protection), losses(plan, held)
            for name in before:
                if before[name] != after.get(name) and name in after:
                    pair = (self._epsilon(before[name]), self._epsilon(after[name]))
                    found.append(Price(words.format(name), *pair))
        return tuple(found)

    def _epsilon(self, loss: Fraction) -> float:
        budget = self.plan.budget
        if not budget.mechanism.is_zcdp:
            return float(loss)
        return epsilon_cks(loss, budget.delta) if loss else 0.0

    def _own(self, geolevel: str, shares: Mapping[str, Fraction] | None = None) -> dict[str, float]:
        """Return the mean variance of a row of each query group by a geounit's own answers alone."""
        plan, algebra = self.plan, self.expected.algebra
        budget = plan.budget if shares is None else self._with_shares(geolevel, shares)
        weights = np.zeros((1, len(algebra.queries)))
        for name, share in budget.query_shares(geolevel).items():
            if share:
                noise = budget.distribution(geolevel, name)
                weights[0, algebra.queries.index(plan.product.workload.canonical(name))] = 1 / noise.variance
        covariance = algebra.information(weights).dual()
        found = {}
        for name in self.names:
            rows = self.expected.rows(name)
            number = np.bincount(rows.of_row, minlength=len(rows))
            found[name] = float(rows.variances(covariance)[0] @ number / number.sum())
        return found

    def _mean_square(self, own: Mapping[int, Mapping[str, float]]) -> npt.NDArray[np.float64]:
        """Return the mean square of the expected error, float64 (levels, queries), of plain TopDown."""
        table = np.zeros((len(self.plan.levels), len(self.names)))
        for number, errors in own.items():
            table[number] = [errors[name] for name in self.names]
        found: npt.NDArray[np.float64] = self.coefficients @ table
        return found


def _raised(shares: Mapping[str, Fraction], name: str, share: Fraction) -> dict[str, Fraction]:
    """Return shares with one at a new value and the others scaled to what is left."""
    rest = (1 - share) / (1 - shares[name])
    return {other: share if other == name else value * rest for other, value in shares.items()}
