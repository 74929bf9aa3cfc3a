"""Compute the privacy loss of a measurement plan: by formula and exactly, in parts and as a whole.

A plan's rho (or pure epsilon) implies an epsilon by formula. The noise itself implies a smaller one for the
same release, which takes some seconds to compute.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import scipy  # scipy.optimize is loaded on first use

from opendas.errors import ConfigError
from opendas.geography.frame import Frame
from opendas.measurement.loss import (
    attribute_loss,
    attribute_losses,
    change_loss,
    plan_loss,
    within_loss,
    within_losses,
)
from opendas.measurement.official_losses import AreaLoss, Areas, official_losses
from opendas.measurement.plan import MeasurementPlan
from opendas.measurement.protected import Protection, protection_of
from opendas.measurement.protection import ProtectionMap
from opendas.privacy.attacker import FACTORS, LEVELS, Attacker, pure_power_bound, zcdp_power_bound
from opendas.privacy.composition import Bounds, ChangedAnswers, WorstLoss
from opendas.privacy.exact import format_fraction, parse_fraction
from opendas.privacy.relations import Mechanism
from opendas.privacy.zcdp import FORMULAS, SEVERAL, Account, PureAccount, checked_delta, group_loss

EXACT = "exact"
"""Formula name: exact composition of the plan's noise, between any two neighbours."""

HELD = "exact-invariants"
"""Formula name: exact composition between neighbours that agree on the invariants, as in the guarantee."""

PROOF = "docs/proofs/exact-accounting.md"

_FACTOR_DIGITS = 6
_RETREATS = 12
_PRIORS = (0.01, 0.1, 0.5)


@dataclass(frozen=True, slots=True)
class PartLoss:
    """Loss of a change to part of a record."""

    loss: Fraction  # rho or pure epsilon, as certificates state it
    epsilon: Mapping[str, float]  # by formula, and ``"exact"`` if it was asked for


@dataclass(frozen=True, slots=True)
class Spare:
    """How far the noise could be reduced."""

    # Allowed factor on the budget, that is on ``1 / sigma2`` of every answer (discrete Gaussian) or ``1 /
    # scale`` (discrete Laplace). Rounded down to six digits.
    factor: Fraction
    epsilon: Bounds  # of the release with that noise, at the delta asked

    @property
    def saved(self) -> Fraction:
        """Share of every noise parameter (``sigma2``, or the Laplace scale) that is not needed.

        Negative if the target needs more noise than the plan has.
        """
        return 1 - 1 / self.factor


def spare_noise(worst: WorstLoss, epsilon: Fraction | int | str, delta: Fraction | int | str) -> Spare:
    """Find the largest factor on the budget of a release that still meets a pair (epsilon, delta)."""
    target = parse_fraction(epsilon, "epsilon")
    if target <= 0:
        raise ConfigError(f"epsilon is {format_fraction(target)}; a target must be positive.")
    if not any(worst.changes):
        raise ConfigError("no answer differs between neighbours: any noise meets any target.")
    # The search follows the currently worst change, and proves nothing by itself.
    epsilons = [worst.loss(k, worst.points >> 3).epsilon(delta).upper for k in range(len(worst.changes))]
    alone = WorstLoss([worst.changes[epsilons.index(max(epsilons))]], worst.points)

    def excess(log_factor: float) -> float:
        factor = Fraction(math.exp(log_factor)).limit_denominator(10**12)
        return math.log(max(1e-300, alone.scaled(factor).epsilon(delta).upper) / target)

    low = high = 0.0
    while excess(low) > 0.0:
        low -= 2.0
    while excess(high) <= 0.0:
        high += 2.0
    start = math.exp(scipy.optimize.brentq(excess, low, high, xtol=1e-6))
    below = 0.0
    for _ in range(_RETREATS):
        factor = _rounded_down(start * (1.0 - below))
        found = worst.scaled(factor).epsilon(delta)
        if Fraction(found.upper) <= target:
            return Spare(factor, found)
        below = max(1e-6, 4.0 * below)
    raise ConfigError(
        f"no amount of noise was found that meets epsilon {format_fraction(target)} at this delta."
    )


def _rounded_down(value: float) -> Fraction:
    """Round a factor down to six significant digits."""
    unit = Fraction(10) ** (math.floor(math.log10(value)) - _FACTOR_DIGITS + 1)
    return math.floor(Fraction(value) / unit) * unit


@dataclass(frozen=True)
class PlanAccount:
    """Privacy losses of a plan at one delta.

    Raises `ConfigError` if delta is a float or out of range, `PrivacyError` if the exact facts leave nothing
    to protect.
    """

    plan: MeasurementPlan
    delta: Fraction  # in (0, 1): where epsilon is quoted
    frame: Frame | None = None  # of the plan's spine, public; needed for losses within official areas
    # The exact facts, which determine the neighbours for partial losses and attackers; by default, those of
    # the plan and the frame.
    held: ProtectionMap = None  # type: ignore[assignment]  # made from the plan
    _worst: dict[bool, WorstLoss] = field(default_factory=dict, repr=False, compare=False)
    _exact: dict[frozenset[Any], float] = field(default_factory=dict, repr=False, compare=False, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", checked_delta(self.delta))
        if self.held is None:
            object.__setattr__(self, "held", ProtectionMap.of(self.plan, self.frame))
        self.held.check()

    def __repr__(self) -> str:
        loss = f"{self.plan.budget.mechanism.loss_name} {format_fraction(self.loss)}"
        return f"PlanAccount({self.plan.product.name}: {loss}, epsilon {self.epsilon():.4g})"

    @property
    def pure(self) -> bool:
        """Whether the plan spends a pure epsilon rather than rho."""
        return self.plan.budget.mechanism is Mechanism.DISCRETE_LAPLACE

    @property
    def loss(self) -> Fraction:
        """Total loss of the plan: rho, or a pure epsilon."""
        return self.plan.budget.total

    @property
    def rho(self) -> Fraction | None:
        """Total rho of the plan; None for a pure epsilon."""
        return None if self.pure else self.loss

    def epsilon(self, formula: str | None = None) -> float:
        """Return a valid epsilon at ``delta``.

        `formula`: ``"cks"`` (default) or ``"bun-steinke"`` from rho, ``"pure"`` (default for discrete Laplace
        noise), ``"exact"`` from the noise itself, ``"exact-invariants"`` the same between neighbours that
        agree on everything that is published exactly.

        Raises `ConfigError` if the formula is unknown or does not fit the plan.
        """
        if formula in (EXACT, HELD):
            return self.exact(hold_invariants=formula == HELD).upper
        return _by_formula(self.loss, self.delta, pure=self.pure, formula=formula)

    def worst(self, *, hold_invariants: bool = False) -> WorstLoss:
        """Return the exact loss of the worst neighbours, computed once."""
        if hold_invariants not in self._worst:
            self._worst[hold_invariants] = plan_loss(self.plan, self.held if hold_invariants else None)
        return self._worst[hold_invariants]

    def exact(self, delta: Fraction | int | str | None = None, *, hold_invariants: bool = False) -> Bounds:
        """Bound the least valid epsilon: ``upper`` is valid, and no epsilon below ``lower`` is.

        - `delta`: by default, the account's.
        - `hold_invariants`: compare only inputs that agree on all exact facts.
        """
        return self.worst(hold_invariants=hold_invariants).epsilon(self.delta if delta is None else delta)

    def curve(
        self, deltas: Iterable[Fraction | int | str], *, exact: bool = False
    ) -> tuple[dict[str, Any], ...]:
        """Return a row per delta: delta, an epsilon per formula, and the exact bounds."""
        rows = []
        for delta in deltas:
            at = replace(self, delta=parse_fraction(delta, "delta"))
            row: dict[str, Any] = {"delta": float(at.delta), **at._formulas()}
            if exact:
                bounds = self.exact(at.delta)
                row |= {EXACT: bounds.upper, "exact_at_least": bounds.lower}
            rows.append(row)
        return tuple(rows)

    def spare(self, epsilon: Fraction | int | str, *, hold_invariants: bool = False) -> Spare:
        """Find the largest factor on the budget that still meets an epsilon at ``delta``.

        - `epsilon`, > 0.
        - `hold_invariants`: as for :meth:`exact`.
        - Returns: a ``factor`` below one means that the plan needs more noise to meet the epsilon.

        Raises `ConfigError` if epsilon is not positive, or nothing changes between neighbours.
        """
        return spare_noise(self.worst(hold_invariants=hold_invariants), epsilon, self.delta)

    def spare_json(self, epsilon: Fraction | int | str) -> dict[str, Any]:
        """Return the JSON values of ``--target-epsilon``."""
        target = parse_fraction(epsilon, "epsilon")
        found = self.spare(target)
        return {
            "epsilon": format_fraction(target),
            "budget_factor": format_fraction(found.factor),
            "scale_saved" if self.pure else "variance_saved": float(found.saved),
            "reached": {"lower": found.epsilon.lower, "upper": found.epsilon.upper},
        }

    def attacker(self) -> Attacker:
        """Return the attacker's bounds for two places of a record that the exact facts leave open."""
        return Attacker(self.worst(hold_invariants=True))

    @cached_property
    def protection(self) -> Protection:
        """What remains protected given the exact facts, by attribute."""
        return protection_of(self.held)

    @cached_property
    def attributes(self) -> Mapping[str, Fraction]:
        """Largest loss when one record changes in one attribute and keeps its leaf."""
        return attribute_losses(self.plan, self.held)

    @cached_property
    def within(self) -> Mapping[str, Fraction]:
        """Loss when one record moves inside one geounit of the spine at a geolevel, top first."""
        return within_losses(self.plan, self.held)

    @cached_property
    def within_official(self) -> tuple[AreaLoss, ...]:
        """Losses when one record moves inside one official geounit or area; empty without a frame."""
        return () if self.frame is None else official_losses(self.plan, self.frame, self.held, self.within)

    def parts(self, *, exact: bool = False) -> tuple[Mapping[str, PartLoss], Mapping[str, PartLoss]]:
        """Return the losses per attribute and within geolevels, with epsilons.

        On a spine with bypassed geounits, the exact figure uses each path's shares.
        """
        attributes, within = {}, {}
        for name, loss in self.attributes.items():
            found = self.upper(attribute_loss(self.plan, name, self.held)) if exact else None
            attributes[name] = self._part(loss, found)
        for level, loss in self.within.items():
            found = self.upper(within_loss(self.plan, level, self.held)) if exact else None
            within[level] = self._part(loss, found)
        return attributes, within

    def official_parts(self, *, exact: bool = False) -> Mapping[str, tuple[PartLoss, PartLoss]]:
        """Return the largest and the median loss within the official areas of each kind, with epsilons.

        The exact figures are upper bounds for all areas, and for all whose loss is at most the median.
        """
        found = {}
        for row in self.within_official:
            assert self.frame is not None
            areas = Areas.of(self.plan, self.frame.codes(row.kind), self.held) if exact else None
            largest, median = (
                self._part(loss, None if areas is None else self.upper(areas.worst(self.plan, loss)))
                for loss in (row.largest, row.median)
            )
            found[row.kind] = largest, median
        return found

    def upper(self, worst: WorstLoss) -> float:
        """Return the upper end of an exact epsilon at ``delta``.

        Shared changes are composed once, and skipped if the formula shows that they are not the worst.
        """
        largest = 0.0
        for change in sorted(worst.changes, key=self._formula_of, reverse=True):
            if self._formula_of(change) <= largest:
                break  # the formula bounds this change and all later ones
            key = frozenset(change.items())
            if key not in self._exact:
                self._exact[key] = WorstLoss([change], worst.points).epsilon(self.delta).upper
            largest = max(largest, self._exact[key])
        return largest

    def _formula_of(self, change: ChangedAnswers) -> float:
        """Return the epsilon of a change by formula, from the losses of its answers."""
        return _by_formula(change_loss(change), self.delta, pure=self.pure, formula=None)

    def _part(self, loss: Fraction, exact: float | None) -> PartLoss:
        epsilon = self._formulas(loss)
        return PartLoss(loss, epsilon if exact is None else {**epsilon, EXACT: exact})

    def _formulas(self, loss: Fraction | None = None) -> dict[str, float]:
        names = ("pure",) if self.pure else tuple(FORMULAS)
        value = self.loss if loss is None else loss
        return {name: _by_formula(value, self.delta, pure=self.pure, formula=name) for name in names}

    def as_json(self, *, exact: bool = False) -> dict[str, Any]:
        """Return the answer of ``opendas account RUN.toml --json``: losses as text, epsilons as floats."""
        attributes, within = self.parts(exact=exact)
        bound = self.plan.budget.contribution.bound
        answer: dict[str, Any] = {
            "product": self.plan.product.name,
            "mechanism": self.plan.budget.mechanism.value,
            "neighbours": self.plan.budget.neighbours.value,
            "rho": None if self.rho is None else format_fraction(self.rho),
            "delta": float(self.delta),
            "epsilon": self._formulas(),
            "contribution": None if bound is None else bound.to_dict(),
            "several": {str(n): self._part_json(self._several(n)) for n in SEVERAL},
            "attributes": {name: self._part_json(part) for name, part in attributes.items()},
            "within": {level: self._part_json(part) for level, part in within.items()},
            "within_official": self._official_json(exact=exact),
            "protection": self.protection.to_dict(),
        }
        if self.pure:
            answer |= {"pure_epsilon": format_fraction(self.loss)}
            answer |= {"implied_rho": format_fraction(PureAccount(self.loss).implied_rho)}
        if exact:
            found = self.exact()
            answer["epsilon"][EXACT] = found.upper
            answer[EXACT] = {"upper": found.upper, "lower": found.lower, "proof": PROOF}
            held = self._held()
            if held is not None:
                answer["epsilon"][HELD] = held.upper
                answer[HELD] = {"upper": held.upper, "lower": held.lower, "proof": PROOF}
        return answer

    def _several(self, units: int) -> PartLoss:
        return self._part(group_loss(self.loss, units, pure=self.pure), None)

    def power_bound(self, level: float) -> float:
        """Bound the power of any test at a false-positive rate, for any noise with this loss.

        `level`, in (0, 1).
        """
        if self.rho is not None:
            return zcdp_power_bound(self.rho, level)
        return pure_power_bound(self.loss, level)

    def attacker_json(self, *, exact: bool = False) -> dict[str, Any]:
        """Return upper bounds for an attacker who knows all other records.

        The bounds concern two places of a record that the exact facts leave open; the facts themselves reveal
        more.

        `exact`: also bound from the noise itself; otherwise from rho alone.
        """
        by_noise = self.attacker() if exact else None
        power = []
        for level in LEVELS:
            row = {"wrongly": level, "by_epsilon" if self.pure else "by_rho": self.power_bound(level)}
            if by_noise is not None:
                row[EXACT] = by_noise.power(level)
            power.append(row)
        answer: dict[str, Any] = {"power": power}
        if by_noise is not None:
            answer["guess"] = by_noise.guess()
            answer["belief"] = [{"before": prior, "after": by_noise.belief(prior)} for prior in _PRIORS]
            answer["odds"] = [{"factor": factor, "chance": by_noise.odds(factor)} for factor in FACTORS]
        return answer

    def _held(self) -> Bounds | None:
        """Return the exact bounds for inputs that agree on the exact facts; None if these change nothing."""
        held = self.worst(hold_invariants=True)
        return None if held.changes == self.worst().changes else held.epsilon(self.delta)

    def _official_json(self, *, exact: bool) -> dict[str, Any] | None:
        if self.frame is None:
            return None
        parts = self.official_parts(exact=exact)
        return {
            row.kind: {
                "areas": row.areas,
                "above_spine": row.above_spine,
                "largest": self._part_json(parts[row.kind][0]),
                "median": self._part_json(parts[row.kind][1]),
            }
            for row in self.within_official
        }

    def _part_json(self, part: PartLoss) -> dict[str, Any]:
        return {
            "pure_epsilon" if self.pure else "rho": format_fraction(part.loss),
            "epsilon": dict(part.epsilon),
        }


def _by_formula(loss: Fraction, delta: Fraction, *, pure: bool, formula: str | None) -> float:
    if pure:
        return PureAccount(loss).epsilon(formula or "pure")
    return Account(loss, delta).epsilon(formula or "cks")
