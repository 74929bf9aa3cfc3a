"""Better shares of the same loss in seconds: what ``opendas plan --advise`` names.

Found by expected errors on the cells that synthetic records have (:mod:`opendas.tuning.populated`), and tried
by a few runs on synthetic counts. ``opendas tune --same-loss`` goes on from what runs show, for minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import repeat
from typing import Any

import numpy as np

from opendas.arrays import Floats
from opendas.budget.allocation import shares_json
from opendas.errors import ConfigError
from opendas.measurement.loss import attribute_losses, within_losses
from opendas.runs.context.run import Run
from opendas.runs.simulated.trial import Trial, TriedRow
from opendas.tuning.improve import space_of
from opendas.tuning.same_loss import FREE, KEPT, Space
from opendas.tuning.shares import Wish, best_losses, weights
from opendas.tuning.simulate import NOT_TRIED, Simulator

BETTER = 0.05
"""Part by which expected errors of the leaves have to fall, on average, for a plan to be named."""

NOTABLE, SEEN = 0.005, 0.03
"""Parts by which an expected error, and a tried one, has to change to be listed."""

_EXACT = 1e-6  # an expected error below this is that of an exact answer


@dataclass(frozen=True, slots=True)
class Effect:
    """Error of one query group at one geolevel: absolute, summed over rows, averaged over geounits."""

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
    """What a plan does to a person's protection: losses as the certificate states them, given what is exact.

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


@dataclass(frozen=True, slots=True)
class Advice:
    """A plan of exactly the same loss that is expected to err less at the leaves.

    Parameters
    ----------
    kind : str
        ``"geolevels kept"``: only query groups within a geolevel get other shares. ``"geolevels free"``: loss
        moves between geolevels, too.
    geolevels : mapping of str to Fraction
    queries : mapping of str to mapping of str to Fraction
        Of every measured geolevel.
    improved : float
        Mean relative change of the expected errors at the leaves.
    effects : tuple of Effect
        Expected errors that change, by least squares on the cells that synthetic records have.
    tried : tuple of Effect
        Errors of released counts that change, as tried on synthetic counts of a part of the frame.
    prices : tuple of Price
        Losses that change.
    """

    kind: str
    geolevels: Mapping[str, Fraction]
    queries: Mapping[str, Mapping[str, Fraction]]
    improved: float
    effects: tuple[Effect, ...]
    tried: tuple[Effect, ...]
    prices: tuple[Price, ...]

    def __repr__(self) -> str:
        return f"Advice({self.kind}: {self.improved:+.1%})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; shares as exact text."""
        return {
            "kind": self.kind,
            "improved": self.improved,
            **shares_json(self.geolevels, self.queries),
            "effects": [effect.to_dict() for effect in self.effects],
            "tried": [effect.to_dict() for effect in self.tried],
            "prices": [asdict(price) for price in self.prices],
        }


def advise(run: Run, *, records: float | None = None) -> tuple[Advice, ...]:
    """Look for better shares of the same loss on a run's own spine, from public things only.

    Parameters
    ----------
    run : Run
    records : float, optional
        Approximate number of records, for synthetic ones, as for :func:`opendas.plan`.

    Returns
    -------
    tuple of Advice
        With geolevels' shares kept, then with free ones; only plans that lower the expected errors of the
        leaves by :data:`BETTER` on average. Other expected errors are held where they are, nearly: `effects`
        says which grow.

    Raises
    ------
    ConfigError
        If everything is spent at the leaves, or no synthetic counts can be made of the product.
    """
    if run.resolved.estimator == "block-by-block":
        raise ConfigError(
            "estimator block-by-block spends everything at the leaves: there is nothing to move."
        )
    part, spread = Trial.of(run, records), Trial.of(run, records, spread=True)
    if part is None or spread is None:
        raise ConfigError(f"{run.product.name} {NOT_TRIED}: nothing is advised.")
    made = spread.simulation.run.frame, spread.counts
    space = space_of(run, Simulator(run, made=made), run.spine)
    before, tried = _expected(space, space.losses), part.errors()
    wish, known = _lower_leaf_errors(space, before), before[-1] > _EXACT
    found = []
    for kind in (KEPT, FREE) if len(space.start.levels) > 1 else (KEPT,):
        losses = best_losses(space.tree, wish, space.losses, moves=kind == FREE)
        plan = space.candidate(kind, losses, moves=kind == FREE)
        after = _expected(space, space.array(plan))
        changes = after[-1, known] / before[-1, known] - 1
        improved = float(changes.mean()) if known.any() else 0.0
        if improved > -BETTER:
            continue
        other = run.changed(budget=plan.spec(run.resolved.budget))
        found.append(
            Advice(
                kind,
                other.budget.geolevels,
                other.budget.queries,
                improved,
                tuple(_effects(space, before, after)),
                tuple(_tried_effects(tried, part.errors(other.budget))),
                tuple(_prices(run, other)),
            )
        )
    return tuple(found)


def _expected(space: Space, losses: Floats) -> Floats:
    return space.tree.errors((space.precision * losses) ** space.power)


def _lower_leaf_errors(space: Space, before: Floats) -> Wish:
    """Lower the errors of the leaves; hold the others."""
    known, none = before > _EXACT, np.zeros_like(before)
    aims = none.copy()
    aims[-1] = known[-1]
    ceiling = np.where(known, np.log(np.maximum(before, _EXACT)), np.inf)
    return Wish(weights(aims, known), ceiling, none, none, space.precision, space.power)


def _effects(space: Space, before: Floats, after: Floats) -> Iterator[Effect]:
    for level, *errors in zip(space.start.losses, before.tolist(), after.tolist(), strict=True):
        for effect in map(Effect, repeat(level), space.tree.queries, *errors):
            if effect.before > _EXACT and abs(effect.change) > NOTABLE:
                yield effect


def _tried_effects(before: Sequence[TriedRow], after: Sequence[TriedRow]) -> Iterator[Effect]:
    for row, other in zip(before, after, strict=True):
        effect = Effect(row.geolevel, row.query, row.mean_abs_error, other.mean_abs_error)
        if abs(effect.change) > SEEN:
            yield effect


def _prices(run: Run, other: Run) -> Iterator[Price]:
    for words, losses in (
        ("moving within a {} of the spine", within_losses),
        ("changing {}", attribute_losses),
    ):
        before, after = losses(run.plan, run.protection), losses(other.plan, other.protection)
        for name in before:
            if before[name] != after.get(name) and name in after:
                yield Price(words.format(name), *map(run.budget.epsilon, (before[name], after[name])))
