"""What one changed record changes among the answers of a measurement plan, and the loss of it.

Only the answers of the geounits above the two leaves of a replaced record can differ, each by one. How many
do, and with what noise, depends on the two paths: on a spine with bypassed geounits paths have different
shares. The argument, and which pairs of neighbours are covered by which change, is in
``docs/proofs/exact-accounting.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from types import MappingProxyType

from opendas.budget.plan import UNITS_OF_SEVERAL
from opendas.constraints.table import invariant_geolevels
from opendas.errors import ConfigError
from opendas.measurement.plan import MeasurementPlan, PlannedQuery
from opendas.privacy.composition import ChangedAnswers, WorstLoss
from opendas.privacy.relations import Neighbours
from opendas.sampling.laws import Noise
from opendas.schema.product import Product
from opendas.schema.query_groups import QueryGroup

__all__ = [
    "attribute_loss",
    "attribute_losses",
    "move_loss",
    "path_kinds",
    "plan_loss",
    "record_loss",
    "told_apart",
    "within_loss",
]

Path = tuple[Fraction, ...]
"""Multiple of the level's share at each level, from the root to a leaf."""

Counted = Callable[[int, PlannedQuery], bool]


def path_kinds(plan: MeasurementPlan) -> tuple[Path, ...]:
    """Return the distinct share multiples of the paths from a root to a leaf.

    Returns
    -------
    tuple of tuple of Fraction
        One multiple per level, top first, zero at levels without budget.
    """
    spent = [bool(level.share) for level in plan.levels]
    paths = {
        tuple(own if asked else Fraction(0) for own, asked in zip(path, spent, strict=True))
        for path in plan.spine.path_kinds()
    }
    return tuple(sorted(paths, reverse=True))


def plan_loss(plan: MeasurementPlan, *, hold_invariants: bool = False) -> WorstLoss:
    """Return the exact loss of one changed record under a plan's own neighbour relation.

    Parameters
    ----------
    plan : MeasurementPlan
    hold_invariants : bool
        Compare only inputs that agree on the plan's invariants, as the guarantee of a release does. Answers
        that the invariants fix then never differ, whatever budget they got. False compares all neighbours.

    Raises
    ------
    ConfigError
        If the invariants leave no neighbours to compare.
    """
    fixed = _fixed(plan) if hold_invariants else {}
    if plan.budget.neighbours is Neighbours.UNBOUNDED:
        if any(plan.product.workload.group(query).size == 1 for query in fixed):
            raise ConfigError(
                "an invariant fixes the number of records, so that no input has a neighbour with one record "
                "more; compare all neighbours."
            )
        changes = [_along(plan, path, _asked(plan, fixed, shared=0)) for path in path_kinds(plan)]
        return WorstLoss(changes)
    counted = _asked(plan, fixed, shared=_shared_levels(plan, fixed))
    return WorstLoss(_pairs(plan, counted))


def attribute_loss(plan: MeasurementPlan, attribute: str) -> WorstLoss:
    """Return the exact loss when one record changes in one attribute and stays where it is.

    Raises
    ------
    ConfigError
        If the product has no such attribute.
    """
    product = plan.product
    if attribute not in product.schema.names:
        raise ConfigError(
            f"{product.name} has no attribute {attribute!r}; it has {', '.join(product.schema.names)}."
        )

    def counted(_level: int, planned: PlannedQuery) -> bool:
        return told_apart(product, attribute, planned.query)

    both = [_sum(one, one) for one in (_along(plan, path, counted) for path in path_kinds(plan))]
    return WorstLoss(both)


def attribute_losses(plan: MeasurementPlan) -> Mapping[str, Fraction]:
    """Return the loss when one record changes in one attribute only, on the path where it costs most.

    Returns
    -------
    mapping of str to Fraction
        Attribute -> rho or pure epsilon, in schema order; attributes that no measured query tells apart are
        left out. Without bypassed geounits the figures are those of :func:`~opendas.budget.attribute_rho`.
        A geounit that took over the share of geounits below it spends it by its own level's query shares,
        which may tell an attribute apart more often, or less.
    """
    budget = plan.budget
    # Noise for one added record is made for one row, and a changed record differs in two.
    of_a_change = Fraction(2, budget.neighbours.l2_squared) * budget.total
    paths = path_kinds(plan)
    losses = {}
    for attribute in plan.product.schema.names:
        parts = [
            level.share
            * sum(
                (q.share for q in level.queries if told_apart(plan.product, attribute, q.query)),
                start=Fraction(0),
            )
            for level in plan.levels
        ]
        loss = max(sum(part * own for part, own in zip(parts, path, strict=True)) for path in paths)
        if loss:
            losses[attribute] = of_a_change * loss
    return MappingProxyType(losses)


def record_loss(plan: MeasurementPlan) -> Fraction:
    """Return the loss when one record of a protected unit is replaced in the input, on the costliest path.

    That of the whole unit, by the relation of the plan, is the plan's total (``docs/proofs/units.md``).
    """
    budget = plan.budget
    gaussian, contribution = budget.mechanism.is_gaussian, budget.contribution
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


def told_apart(product: Product, attribute: str, query: QueryGroup) -> bool:
    """Whether a query group can give different answers for two records that differ in one attribute only."""
    recodes = {recode.name for recode in product.recodes if recode.attribute == attribute}
    return not (recodes | {attribute}).isdisjoint(query.factors)


def within_loss(plan: MeasurementPlan, geolevel: str) -> WorstLoss:
    """Return the exact loss when one record moves between leaves of one geounit of a geolevel.

    Raises
    ------
    GeographyError
        If the spine has no such geolevel.
    """
    top = plan.spine.index(geolevel)
    return WorstLoss(_pairs(plan, _below(top)))


def move_loss(plan: MeasurementPlan, moves: Iterable[tuple[Path, Path, int]]) -> WorstLoss:
    """Return the exact loss of the worst of some moves between leaves.

    Parameters
    ----------
    plan : MeasurementPlan
    moves : iterable of (Path, Path, int)
        The paths of both leaves, and the lowest level at which they have a geounit in common; -1 for none.
    """
    changes: set[frozenset[tuple[tuple[Noise, int], int]]] = set()
    for one, other, common in moves:
        below = _below(common)
        changes.add(frozenset(_sum(_along(plan, one, below), _along(plan, other, below)).items()))
    found = [dict(change) for change in changes]
    return WorstLoss([change for change in found if not any(_less(change, other) for other in found)] or [{}])


def _below(top: int) -> Counted:
    def counted(level: int, _planned: PlannedQuery) -> bool:
        return level > top

    return counted


def _less(change: ChangedAnswers, other: ChangedAnswers) -> bool:
    """Whether all answers of a change are answers of another, which therefore cannot be better."""
    return change != other and all(other.get(key, 0) >= number for key, number in change.items())


def _pairs(plan: MeasurementPlan, counted: Counted) -> Iterator[ChangedAnswers]:
    """Yield what differs for every two kinds of path, both counted in full."""
    along = [_along(plan, path, counted) for path in path_kinds(plan)]
    for number, one in enumerate(along):
        for other in along[number:]:
            yield _sum(one, other)


def _along(plan: MeasurementPlan, path: Path, counted: Counted) -> ChangedAnswers:
    """Return one answer of each counted query group along a path."""
    if plan.budget.contribution.records > 1:  # answers differ by more than one, in many ways
        raise ConfigError(UNITS_OF_SEVERAL)
    change: dict[tuple[Noise, int], int] = {}
    for number, (level, multiple) in enumerate(zip(plan.levels, path, strict=True)):
        for planned in level.queries:
            if level.share * multiple and counted(number, planned):
                noise = plan.budget.distribution(
                    level.geolevel, planned.query.name, geounit_share=level.share * multiple
                )
                change[noise, 1] = change.get((noise, 1), 0) + 1
    return change


def _sum(one: ChangedAnswers, other: ChangedAnswers) -> ChangedAnswers:
    return {key: one.get(key, 0) + other.get(key, 0) for key in one.keys() | other.keys()}


def _fixed(plan: MeasurementPlan) -> Mapping[str, int]:
    """Return the number of levels, from the top, at which the invariants fix each query group's answers."""
    found = {}
    for query, declared in invariant_geolevels(plan.product, plan.spine).items():
        # parts of a divided geounit hold its total together only: theirs may differ
        found[query] = declared + (plan.spine.levels[declared].whole is None)
    return found


def _shared_levels(plan: MeasurementPlan, fixed: Mapping[str, int]) -> int:
    """Return the number of levels, from the top, at which both leaves have the same geounit above them."""
    held = [levels for query, levels in fixed.items() if plan.product.workload.group(query).size == 1]
    single = 0
    while single < len(plan.levels) and len(plan.spine.levels[single]) == 1:
        single += 1
    return max([single, *held])


def _asked(plan: MeasurementPlan, fixed: Mapping[str, int], shared: int) -> Counted:
    def counted(level: int, planned: PlannedQuery) -> bool:
        # one row only: the number of records of a geounit, which a replacement inside it does not change
        constant = level < shared and planned.query.size == 1
        return not constant and level >= fixed.get(planned.query.name, 0)

    return counted
