"""Compute the exact loss of one changed record under a measurement plan.

Only answers of geounits above the two leaves of a replaced record can differ, each by one. Their number and
noise depend on the two paths, whose shares differ on a spine with bypassed geounits. Only inputs that agree
on the exact facts of a protection map are compared: every figure is the largest over pairs of places inside a
class. ``docs/proofs/exact-accounting.md`` has the argument, and the neighbours that each change covers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType

from opendas.budget.noise import UNITS_OF_SEVERAL
from opendas.errors import ConfigError
from opendas.measurement.plan import MeasurementPlan
from opendas.measurement.protection import ProtectionMap
from opendas.measurement.replacements import Replacement, Replacements
from opendas.privacy.composition import ChangedAnswers, WorstLoss
from opendas.sampling.laws import DiscreteLaplace
from opendas.sampling.mechanisms import AnyNoise
from opendas.schema.product import Product
from opendas.schema.query_groups import QueryGroup

Path = tuple[Fraction, ...]
"""Multiple of the level's share at each level, from the root to a leaf."""


def path_kinds(plan: MeasurementPlan) -> tuple[Path, ...]:
    """Return the distinct share multiples of the paths from a root to a leaf.

    Returns: one multiple per level, top first, zero at levels without budget.
    """
    spent = [bool(level.share) for level in plan.levels]
    paths = {
        tuple(own if asked else Fraction(0) for own, asked in zip(path, spent, strict=True))
        for path in plan.spine.path_kinds()
    }
    return tuple(sorted(paths, reverse=True))


def plan_loss(plan: MeasurementPlan, held: ProtectionMap | None = None) -> WorstLoss:
    """Return the exact loss of one changed record under a plan's own neighbour relation.

    `held`: compare only inputs that agree on the exact facts, as the guarantee of a release does. Answers
    that the facts fix then never differ, whatever their budget. By default, all neighbours are compared.

    Raises `PrivacyError` if the facts leave no neighbours to compare.
    """
    if plan.budget.contribution.bound is not None:  # a unit may also disappear
        raise ConfigError(UNITS_OF_SEVERAL)
    held = ProtectionMap.without_facts(plan) if held is None else held
    held.check()
    found, paths = _found(plan, held), plan.spine.paths()[0]
    changes = [] if held.adds else list(_changes(plan, found.all()))
    if held.adds or held.appears:
        changes += [_path_changes(plan, paths[number], -1, frozenset()) for number in found.of_addition()]
    return WorstLoss(_largest(changes))


def attribute_loss(plan: MeasurementPlan, attribute: str, held: ProtectionMap | None = None) -> WorstLoss:
    """Return the exact loss when one record changes in one attribute and keeps its leaf.

    `held`: as for :func:`plan_loss`. If no record can change in this attribute alone, the loss is 0.
    """
    product = plan.product
    if attribute not in product.schema.names:
        raise ConfigError(
            f"{product.name} has no attribute {attribute!r}; it has {', '.join(product.schema.names)}."
        )
    held = ProtectionMap.without_facts(plan) if held is None else held
    return WorstLoss(_largest(_changes(plan, _found(plan, held).of_attribute(attribute))))


def attribute_losses(plan: MeasurementPlan, held: ProtectionMap | None = None) -> Mapping[str, Fraction]:
    """Return the largest loss when one record changes in a single attribute, for each attribute.

    Returns: attribute -> rho or pure epsilon, in schema order, without attributes that no measured query
    distinguishes or that cannot change alone. Without bypassed geounits and facts the figures are those of
    :func:`~opendas.budget.noise.attribute_rho`. A geounit that takes over the share of geounits below it
    spends it by its own level's query shares, which may distinguish an attribute more or less often.
    """
    found = _found(plan, _of_units(plan, held))
    losses = {
        attribute: _largest_loss(plan, found.of_attribute(attribute))
        for attribute in plan.product.schema.names
    }
    return MappingProxyType({attribute: loss for attribute, loss in losses.items() if loss})


def record_loss(plan: MeasurementPlan) -> Fraction:
    """Return the largest loss over paths when one record of a protected unit is replaced.

    The loss of the whole unit, under the plan's relation, is the plan's total (``docs/proofs/units.md``).
    """
    budget = plan.budget
    gaussian, contribution = budget.mechanism.is_zcdp, budget.contribution
    parts = [
        level.share
        * sum(
            (
                q.share * contribution.of_one_record(level.geolevel, q.query.name, gaussian=gaussian)
                for q in level.queries
            ),
            start=Fraction(0),
        )
        for level in plan.levels
    ]
    worst = max(sum(part * own for part, own in zip(parts, path, strict=True)) for path in path_kinds(plan))
    return Fraction(2, budget.neighbours.l2_squared) * budget.total * worst


def uses_attribute(product: Product, attribute: str, query: QueryGroup) -> bool:
    """Whether a query group can give different answers for two records that differ in one attribute only."""
    recodes = {recode.name for recode in product.recodes if recode.attribute == attribute}
    return not (recodes | {attribute}).isdisjoint(query.factors)


def within_loss(plan: MeasurementPlan, geolevel: str, held: ProtectionMap | None = None) -> WorstLoss:
    """Return the exact loss when one record moves between leaves of one geounit of a geolevel.

    Raises `GeographyError` if the spine has no such geolevel.
    """
    top = plan.spine.index(geolevel)
    held = ProtectionMap.without_facts(plan) if held is None else held
    return WorstLoss(_largest(_changes(plan, _found(plan, held).of_place(top))))


def move_loss(plan: MeasurementPlan, moves: Iterable[tuple[Path, Path, int]]) -> WorstLoss:
    """Return the exact loss of the worst of some moves between leaves.

    `moves`: paths of both leaves, and the lowest level at which they share a geounit; -1 for none.
    """
    changes = []
    for one, other, common in moves:
        paths = (_path_changes(plan, path, common, frozenset()) for path in (one, other))
        changes.append(_sum(*paths))
    return WorstLoss(_largest(changes))


def within_losses(plan: MeasurementPlan, held: ProtectionMap | None = None) -> Mapping[str, Fraction]:
    """Return the loss when one record moves inside one geounit of each geolevel of the spine, top first.

    Returns: geolevel -> rho or pure epsilon; 0 where nothing can move. At most
    :func:`~opendas.budget.noise.within_rho`, and equal to it on spines without bypassed geounits where some
    geounit has two children and no fact forbids the move.
    """
    found = _found(plan, _of_units(plan, held))
    return MappingProxyType(
        {
            geolevel: _largest_loss(plan, found.of_place(number))
            for number, geolevel in enumerate(plan.spine.names)
        }
    )


def change_loss(change: ChangedAnswers) -> Fraction:
    """Return the loss of a change by formula: rho under zCDP, epsilon of discrete Laplace noise."""
    return sum(
        (
            Fraction(abs(difference) * answers) / noise.parameter
            if isinstance(noise, DiscreteLaplace)
            else Fraction(difference**2 * answers) / (2 * noise.parameter)
            for (noise, difference), answers in change.items()
        ),
        start=Fraction(0),
    )


def _of_units(plan: MeasurementPlan, held: ProtectionMap | None) -> ProtectionMap:
    """Return the map for partial changes; records of one unit change together, each against the facts."""
    if held is None or plan.budget.contribution.bound is not None:
        return ProtectionMap.without_facts(plan)
    return held


def _found(plan: MeasurementPlan, held: ProtectionMap) -> Replacements:
    return _replacements(held, frozenset(p.query.name for level in plan.levels for p in level.queries))


@lru_cache(maxsize=2)
def _replacements(held: ProtectionMap, queries: frozenset[str]) -> Replacements:
    """Return the replacements, cached because a plan's losses, or two histograms', are computed by turns."""
    return Replacements(held, queries)


def _changes(plan: MeasurementPlan, replacements: Iterable[Replacement]) -> Iterator[ChangedAnswers]:
    """Yield the changed answers of two inputs that differ in a replaced record."""
    paths = plan.spine.paths()[0]
    for found in replacements:
        one, other = (
            _path_changes(plan, paths[path], found.shared, found.apart) for path in (found.one, found.other)
        )
        yield _sum(one, other)


def _path_changes(plan: MeasurementPlan, path: Path, shared: int, apart: frozenset[str]) -> ChangedAnswers:
    """Return the answers that change along a path: those below shared levels, and there those that differ."""
    if plan.budget.contribution.records > 1:  # answers can differ by more than one
        raise ConfigError(UNITS_OF_SEVERAL)
    change: dict[tuple[AnyNoise, int], int] = {}
    for number, (level, multiple) in enumerate(zip(plan.levels, path, strict=True)):
        for planned in level.queries:
            if level.share * multiple and (number > shared or planned.query.name in apart):
                noise = plan.distribution(number, planned, multiple)
                change[noise, 1] = change.get((noise, 1), 0) + 1
    return change


def _sum(one: ChangedAnswers, other: ChangedAnswers) -> ChangedAnswers:
    return {key: one.get(key, 0) + other.get(key, 0) for key in one.keys() | other.keys()}


def _largest_loss(plan: MeasurementPlan, replacements: Iterable[Replacement]) -> Fraction:
    """Return the largest loss by shares; of a whole unit, if it has several records."""
    budget, paths = plan.budget, plan.spine.paths()[0]
    largest = Fraction(0)
    for found in replacements:
        shares = sum(
            (
                level.share * planned.share * (paths[found.one][number] + paths[found.other][number])
                for number, level in enumerate(plan.levels)
                for planned in level.queries
                if number > found.shared or planned.query.name in found.apart
            ),
            start=Fraction(0),
        )
        largest = max(largest, shares)
    # noise for an added record covers one row, but a changed record differs in two
    return largest * budget.total / budget.neighbours.l2_squared


def _largest(changes: Iterable[ChangedAnswers]) -> list[ChangedAnswers]:
    """Drop changes contained in another one; an empty change remains if it is the only one."""
    found: list[ChangedAnswers] = []
    for change in sorted(changes, key=lambda one: -sum(one.values())):
        if not any(all(larger.get(key, 0) >= count for key, count in change.items()) for larger in found):
            found.append(change)
    return found or [{}]
