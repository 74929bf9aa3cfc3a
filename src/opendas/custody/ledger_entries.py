"""Privacy acts, and the exact totals over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from types import MappingProxyType
from typing import Final, Literal, Self

from opendas.errors import ConfigError, PrivacyError
from opendas.privacy.exact import format_fraction, parse_fraction
from opendas.privacy.relations import Mechanism, Neighbours

__all__ = [
    "ADDRESS",
    "CENSUS_CHANGES",
    "INFINITE",
    "Change",
    "LedgerEntry",
    "Loss",
    "Spent",
    "total_spent",
]

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


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One privacy act: a full measurement of one product of one input under one plan.

    Parameters
    ----------
    run_id : str
        Names the act. Random, never derived from data.
    product : str
    key_commitment, input_tag, plan_digest : str
        What the draws are a function of. The first two stay out of every release.
    mechanism : Mechanism
        Decides what ``loss`` is: rho (discrete Gaussian) or epsilon (discrete Laplace).
    loss : Fraction or "infinity"
        Loss under ``relation``. Fractions may be given as text. Infinite for a seeded run.
    relation : Neighbours
    protected_unit : str
        What one record is, in words.
    version : str
        Version of the program.
    seeded : bool
    other_relations : mapping of Neighbours to Loss
        Losses of the same act under other relations, each derived directly.

    Raises
    ------
    PrivacyError
        If a text is empty, a loss is not positive, or a seeded run claims a finite loss.
    """

    run_id: str
    product: str
    key_commitment: str
    input_tag: str
    plan_digest: str
    mechanism: Mechanism
    loss: Loss
    relation: Neighbours
    protected_unit: str
    version: str
    seeded: bool = False
    other_relations: Mapping[Neighbours, Loss] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in _TEXT_FIELDS:
            value = getattr(self, name)
            if not isinstance(value, str) or not value or len(value) > 1000:
                raise PrivacyError(f"Ledger entry: {name} must be a text of 1 to 1000 characters.")
        object.__setattr__(self, "mechanism", Mechanism(self.mechanism))
        object.__setattr__(self, "relation", Neighbours(self.relation))
        object.__setattr__(self, "loss", _checked_loss(self.loss))
        others = {Neighbours(key): _checked_loss(value) for key, value in self.other_relations.items()}
        if self.relation in others:
            raise PrivacyError(f"Ledger entry: two losses under the relation {self.relation}.")
        object.__setattr__(self, "other_relations", MappingProxyType(others))
        if self.seeded and any(loss != INFINITE for loss in (self.loss, *others.values())):
            raise PrivacyError(
                "Ledger entry: the noise of a seeded run can be computed by anyone, so its loss is infinite."
            )

    def __reduce__(self) -> tuple[object, ...]:
        # A mapping proxy cannot be pickled; engines send values to other processes.
        values = [getattr(self, spec.name) for spec in fields(self)]
        return type(self), (*values[:-1], dict(self.other_relations))

    def loss_under(self, relation: Neighbours) -> Loss | None:
        """Return the loss under a relation, None where it was not derived."""
        return self.loss if relation is self.relation else self.other_relations.get(relation)

    def differing_fields(self, other: LedgerEntry) -> tuple[str, ...]:
        """Name the fields in which two entries differ."""
        return tuple(
            spec.name.replace("_", " ")
            for spec in fields(self)
            if getattr(self, spec.name) != getattr(other, spec.name)
        )

    def as_json(self) -> dict[str, object]:
        """Return plain data for one line: exact text, the loss under the name of its parameter."""
        record: dict[str, object] = {name: getattr(self, name) for name in _TEXT_FIELDS}
        record["mechanism"] = self.mechanism.value
        record["relation"] = self.relation.value
        record["seeded"] = self.seeded
        record[self.mechanism.loss_name] = _loss_text(self.loss)
        if self.other_relations:
            record["other_relations"] = {
                key.value: _loss_text(value) for key, value in self.other_relations.items()
            }
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, object]) -> Self:
        """Read what :meth:`as_json` wrote; every field must be there and no other."""
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
            f"Ledger entry: the loss is {format_fraction(exact)}; an act without loss is no act. "
            'Give a positive rho or epsilon, or "infinity".'
        )
    return exact


def _loss_text(value: Loss) -> str:
    return INFINITE if isinstance(value, str) else format_fraction(value)


@dataclass(frozen=True, slots=True)
class Change:
    """A change between neighbours that touches records of several protected units at once.

    Parameters
    ----------
    name : str
        In words: one record of this, with the records of that which change along with it.
    factors : mapping of str to int
        Protected unit -> how often its loss is counted. Each factor needs an argument, since changes
        of several records do not cost the multiple in general; ``docs/proofs/composition.md``.
    """

    name: str
    factors: Mapping[str, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", MappingProxyType(dict(self.factors)))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.name, dict(self.factors))


ADDRESS: Final = "address"
"""Protected unit of the household tables: the persons and the unit row of one address."""

CENSUS_CHANGES: Final = (
    Change("one person with the unit changes it induces", {"person": 1, "housing unit": 2, ADDRESS: 1}),
)
"""Changes that touch records of more than one product of a census.

A replaced person record may empty one unit and fill another: two unit records flip, in opposite directions,
which costs twice the loss of one (docs/proofs/composition.md, section 5).
"""


@dataclass(frozen=True, slots=True)
class Spent:
    """Total loss of one change under one relation.

    Parameters
    ----------
    relation : Neighbours
    change : str
    rho : Fraction or "infinity"
        Sum of the rho of the acts; a pure act of epsilon enters as ``epsilon^2 / 2``.
    epsilon : Fraction or "infinity" or None
        Sum of the epsilons if all acts are pure, else None.
    acts : int
        Number of acts summed.
    uncovered : int
        Number of acts on the same protected units whose loss under this relation is unknown, and which
        the sums leave out. The totals speak for the whole ledger only where this is 0.
    """

    relation: Neighbours
    change: str
    rho: Loss
    epsilon: Loss | None
    acts: int
    uncovered: int


def total_spent(entries: Iterable[LedgerEntry], changes: Iterable[Change] = ()) -> tuple[Spent, ...]:
    """Sum acts exactly, under each relation by itself.

    Parameters
    ----------
    entries : iterable of LedgerEntry
    changes : iterable of Change
        Combined changes to total beside the change of one record of each protected unit.

    Returns
    -------
    tuple of Spent
        For each relation under which there is an act: one total per protected unit, in the order in
        which they first appear, then one per change that touches a protected unit of the ledger.
    """
    acts = tuple(entries)
    units = dict.fromkeys(entry.protected_unit for entry in acts)
    asked = [Change(f"one {unit}", {unit: 1}) for unit in units] + list(changes)
    totals = (_total(acts, relation, change) for relation in Neighbours for change in asked)
    return tuple(total for total in totals if total is not None)


def _total(acts: Sequence[LedgerEntry], relation: Neighbours, change: Change) -> Spent | None:
    touched = [entry for entry in acts if change.factors.get(entry.protected_unit, 0) > 0]
    rho: list[Loss] = []
    epsilon: list[Loss] = []
    for entry in touched:
        loss = entry.loss_under(relation)
        if loss is None:
            continue
        pure = entry.mechanism is Mechanism.DISCRETE_LAPLACE
        factor = change.factors[entry.protected_unit]
        if isinstance(loss, str):
            rho.append(INFINITE)
        else:
            rho.append((factor * loss) ** 2 / 2 if pure else factor * loss)
        if pure:
            epsilon.append(loss if isinstance(loss, str) else factor * loss)
    if not rho:
        return None
    return Spent(
        relation=relation,
        change=change.name,
        rho=_sum(rho),
        epsilon=_sum(epsilon) if len(epsilon) == len(rho) else None,
        acts=len(rho),
        uncovered=len(touched) - len(rho),
    )


def _sum(losses: Sequence[Loss]) -> Loss:
    exact = [loss for loss in losses if not isinstance(loss, str)]
    return sum(exact, Fraction(0)) if len(exact) == len(losses) else INFINITE
