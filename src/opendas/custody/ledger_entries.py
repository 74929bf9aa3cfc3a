"""Privacy acts and their exact totals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from types import MappingProxyType
from typing import Final, Literal, Self

from opendas.custody.protected_units import Change, change_of_any, one_record, unit_id
from opendas.errors import ConfigError, PrivacyError
from opendas.privacy.exact import format_fraction, parse_fraction
from opendas.privacy.relations import Mechanism, Neighbours

INFINITE: Final = "infinity"
Loss = Fraction | Literal["infinity"]
"""An exact rho or epsilon, or ``"infinity"`` where nothing is guaranteed (a seeded run)."""

_TEXT_FIELDS: Final = (
    "run_id",
    "product",
    "key_commitment",
    "input_tag",
    "plan_digest",
    "protected_unit",
    "version",
)


ELSEWHERE: Final = "-"
"""Input tag of an act that another program did, or that was done before its book existed."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One privacy act: a full measurement of one product of one input under one plan."""

    run_id: str  # random identifier of the act, never derived from data
    product: str
    # With `input_tag` and `plan_digest` it determines the draws; it never enters a release.
    key_commitment: str
    input_tag: str  # never enters a release
    plan_digest: str
    mechanism: Mechanism  # unit of ``loss``: rho (discrete Gaussian) or epsilon (discrete Laplace)
    loss: Loss  # loss under ``relation``. Fractions may be given as text. Infinite for a seeded run.
    relation: Neighbours
    protected_unit: str  # what one record is, in words
    version: str  # version of the program
    seeded: bool = False
    # Delta of a delta-approximate rho-zCDP act, in [0, 1), under every relation; 0 for rho-zCDP.
    delta: Fraction = Fraction(0)
    # Losses of the same act under other relations, each derived directly.
    other_relations: Mapping[Neighbours, Loss] = field(default_factory=dict)
    # Factor from the losses above, which are of one record, to those of one protected unit.
    unit_factor: Fraction = Fraction(1)
    # Names of exactly published facts: invariants, pinned bounds, facts declared by the frame.
    exact: tuple[str, ...] = ()
    frame_digest: str = ""  # digest of the public frame of leaves
    # Tags of the input under the account's key, by which other folders recognise it.
    inputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in _TEXT_FIELDS:
            value = getattr(self, name)
            if not isinstance(value, str) or not value or len(value) > 1000:
                raise PrivacyError(f"Ledger entry: {name} must be a text of 1 to 1000 characters.")
        object.__setattr__(self, "mechanism", Mechanism(self.mechanism))
        object.__setattr__(self, "relation", Neighbours(self.relation))
        object.__setattr__(self, "loss", _checked_loss(self.loss))
        object.__setattr__(self, "delta", _checked_delta(self.delta))
        others = {Neighbours(key): _checked_loss(value) for key, value in self.other_relations.items()}
        if self.relation in others:
            raise PrivacyError(f"Ledger entry: the relation {self.relation} has two losses.")
        object.__setattr__(self, "other_relations", MappingProxyType(others))
        self._check_extras()
        if self.seeded and any(loss != INFINITE for loss in (self.loss, *others.values())):
            raise PrivacyError(
                "Ledger entry: the noise of a seeded run can be computed by anyone, so its loss is infinite."
            )

    def _check_extras(self) -> None:
        """Check the fields that an account needs besides the loss."""
        factor = _checked_loss(self.unit_factor)
        if isinstance(factor, str) or factor < 1:
            raise PrivacyError("Ledger entry: unit_factor must be at least 1.")
        object.__setattr__(self, "unit_factor", factor)
        for name in ("exact", "inputs"):
            texts = getattr(self, name)
            if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
                raise PrivacyError(f"Ledger entry: {name} must be a list of texts.")
            object.__setattr__(self, name, tuple(texts))
        if not isinstance(self.frame_digest, str):
            raise PrivacyError("Ledger entry: frame_digest must be a text.")
        try:
            unit_id(self.protected_unit)
        except ConfigError as error:
            raise PrivacyError(f"Ledger entry: {error}") from error

    def __reduce__(self) -> tuple[object, ...]:
        # A mapping proxy cannot be pickled; engines send values to other processes.
        values = [getattr(self, spec.name) for spec in fields(self)]
        return type(self), tuple(dict(v) if isinstance(v, MappingProxyType) else v for v in values)

    def loss_under(self, relation: Neighbours) -> Loss | None:
        """Return the loss of one record under a relation; None if it was not derived."""
        return self.loss if relation is self.relation else self.other_relations.get(relation)

    def cost(self, relation: Neighbours, change: Change) -> tuple[Loss, Loss | None] | None:
        """Return the loss of one change in rho, and in epsilon if the act is pure.

        A pure act of epsilon enters rho as ``epsilon^2 / 2`` (Bun and Steinke 2016, Proposition 1.4).

        Returns `rho, epsilon`: None if the loss under the relation was not derived, the change does not touch
        the unit, or it touches several records of an act with a delta (no bound was derived).
        """
        loss = self.loss_under(relation)
        times = change.factors.get(self.unit, 0) * self.unit_factor
        if loss is None or times == 0 or (self.delta and times != 1):
            return None
        pure = not self.mechanism.is_zcdp
        if isinstance(loss, str):
            return INFINITE, INFINITE if pure else None
        return ((times * loss) ** 2 / 2, times * loss) if pure else (times * loss, None)

    @property
    def unit(self) -> str:
        """Identifier of the protected unit."""
        return unit_id(self.protected_unit)

    def differing_fields(self, other: LedgerEntry) -> tuple[str, ...]:
        """Name the fields in which two entries differ, except `inputs`, which only locate the input."""
        return tuple(
            spec.name.replace("_", " ")
            for spec in fields(self)
            if spec.name != "inputs" and getattr(self, spec.name) != getattr(other, spec.name)
        )

    def as_json(self) -> dict[str, object]:
        """Return plain data for one line, with losses as exact text under the parameter's name."""
        record: dict[str, object] = {name: getattr(self, name) for name in _TEXT_FIELDS}
        record["mechanism"] = self.mechanism.value
        record["relation"] = self.relation.value
        record["seeded"] = self.seeded
        record[self.mechanism.loss_name] = loss_text(self.loss)
        if self.delta:
            record["delta"] = format_fraction(self.delta)
        if self.other_relations:
            record["other_relations"] = {
                key.value: loss_text(value) for key, value in self.other_relations.items()
            }
        record["unit_factor"] = format_fraction(self.unit_factor)
        return record | {
            "exact": list(self.exact),
            "frame_digest": self.frame_digest,
            "inputs": list(self.inputs),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, object]) -> Self:
        """Read the output of :meth:`as_json`; the first format had fewer fields."""
        values = dict(record)
        mechanism = Mechanism(str(values.pop("mechanism")))
        others = values.pop("other_relations", {})
        loss = values.pop(mechanism.loss_name)
        if not isinstance(others, dict) or not isinstance(values.get("seeded"), bool):
            raise PrivacyError("Ledger entry: a field has the wrong type.")
        return cls(mechanism=mechanism, loss=loss, other_relations=others, **values)  # type: ignore[arg-type]


def _checked_loss(value: Loss | str) -> Loss:
    if value == INFINITE:
        return INFINITE
    try:
        exact = parse_fraction(value, "loss")
    except ConfigError as error:
        raise PrivacyError(f"Ledger entry: {error}") from error
    if exact <= 0:
        raise PrivacyError(
            f"Ledger entry: the loss is {format_fraction(exact)}, and a ledger records only acts with a "
            "loss. "
            'Give a positive rho or epsilon, or "infinity".'
        )
    return exact


def _checked_delta(value: Fraction | str) -> Fraction:
    try:
        exact = parse_fraction(value, "delta")
    except ConfigError as error:
        raise PrivacyError(f"Ledger entry: {error}") from error
    if not 0 <= exact < 1:
        raise PrivacyError("Ledger entry: delta must be a probability below 1.")
    return exact


def loss_text(value: Loss) -> str:
    """Return a loss as exact text."""
    return INFINITE if isinstance(value, str) else format_fraction(value)


@dataclass(frozen=True, slots=True)
class Spent:
    """Total loss of one change under one relation."""

    relation: Neighbours
    change: str
    rho: Loss  # sum of the rho of the acts; a pure act of epsilon enters as ``epsilon^2 / 2``
    epsilon: Loss | None  # sum of the epsilons if all acts are pure, else None
    acts: int  # number of acts summed
    # Number of acts on the same protected units that the sums omit because their loss under this relation is
    # unknown. The totals cover the whole ledger only if this is 0.
    uncovered: int
    approximate: int = 0  # number of summed acts with a delta
    delta: Fraction = Fraction(0)  # sum of their deltas, which adds to the delta of any conversion


def total_spent(entries: Iterable[LedgerEntry], changes: Iterable[Change] = ()) -> tuple[Spent, ...]:
    """Sum acts exactly, separately for each relation.

    - `changes`: combined changes to total besides the change of one record of each protected unit.
    - Returns: for each relation with an act: one total per protected unit, in order of first appearance, then
      one per change that touches a protected unit of the ledger; last, that of one record by any name, if
      :func:`~opendas.custody.protected_units.change_of_any` has one.
    """
    acts = tuple(entries)
    units = {entry.unit: entry.protected_unit for entry in reversed(acts)}
    names = dict.fromkeys(entry.unit for entry in acts)
    any_record = change_of_any(names)
    asked = [one_record(units[name]) for name in names] + list(changes)
    asked += [] if any_record is None else [any_record]
    totals = (_total(acts, relation, change) for relation in Neighbours for change in asked)
    return tuple(total for total in totals if total is not None)


def _total(acts: Sequence[LedgerEntry], relation: Neighbours, change: Change) -> Spent | None:
    touched = [entry for entry in acts if change.factors.get(entry.unit, 0) > 0]
    costs = [cost for entry in touched if (cost := entry.cost(relation, change)) is not None]
    if not costs:
        return None
    epsilons = [epsilon for _, epsilon in costs if epsilon is not None]
    deltas = [entry.delta for entry in touched if entry.delta and entry.cost(relation, change) is not None]
    return Spent(
        relation=relation,
        change=change.name,
        rho=sum_of([rho for rho, _ in costs]),
        epsilon=sum_of(epsilons) if len(epsilons) == len(costs) else None,
        acts=len(costs),
        uncovered=len(touched) - len(costs),
        approximate=len(deltas),
        delta=sum(deltas, Fraction(0)),
    )


def sum_of(losses: Sequence[Loss]) -> Loss:
    """Add losses exactly; the sum is infinite if any is."""
    exact = [loss for loss in losses if not isinstance(loss, str)]
    return sum(exact, Fraction(0)) if len(exact) == len(losses) else INFINITE
