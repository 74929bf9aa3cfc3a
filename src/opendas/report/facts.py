"""Facts of a certificate about one run, as plain values.

Nothing here is confidential: losses, noise parameters, counts of the release, names of invariants. No field
can hold a true count, a key, a path or a clock reading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Self, TypeVar

from opendas.budget.allocation import shares_json
from opendas.budget.noise import NoiseRow
from opendas.custody.stamps import NOT_FOR_RELEASE
from opendas.errors import FormatError, OpendasError
from opendas.geography.summary import SpineSummary
from opendas.measurement.official_losses import AreaLoss
from opendas.measurement.protected import Protection
from opendas.parts import ESTIMATORS, MECHANISMS, WORKLOADS, Origin
from opendas.privacy.exact import format_fraction, parse_fraction
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.privacy.zcdp import SEVERAL, Account, PureAccount, group_loss
from opendas.report.pyramids import Pyramid
from opendas.schema.declarations import ContributionBound, EarlierAct, PublishedFile
from opendas.schema.provenance import Domain

_T = TypeVar("_T")

_PLAIN = (
    *("product", "protected_unit", "mechanism", "neighbours", "estimator", "records"),
    *("plan_digest", "spine_digest", "families", "fallbacks", "measurements", "key"),
)
_LISTS = ("stamps", "invariants", "dropped_invariants", "declared")
"""Lists in :class:`RunFacts` that the certificate holds under their own names."""


@lru_cache(maxsize=256)
def _converted(loss: Fraction, delta: Fraction) -> Mapping[str, Any]:
    """Convert a loss once: 60-digit arithmetic is slow, and PDF, HTML and JSON need the same values."""
    return MappingProxyType(Account(loss, delta).as_json())


def loss_json(loss: Fraction | None, delta: Fraction, *, pure: bool) -> dict[str, object]:
    """Return a loss as JSON values.

    - `loss`: rho, or epsilon if `pure`; None for an unbounded loss.
    - Returns: ``rho`` (exact text or None), ``epsilon`` (formula -> float), ``delta`` and ``unbounded``; for
      a pure loss also ``pure_epsilon`` (exact) and ``implied_rho``.
    """
    if loss is None:
        return {"rho": None, "epsilon": {}, "delta": float(delta), "unbounded": True}
    if pure:
        exact = {"pure_epsilon": format_fraction(loss)}
        return {**PureAccount(loss).as_json(), **exact, "unbounded": False}
    converted = _converted(loss, delta)
    return {**converted, "epsilon": dict(converted["epsilon"]), "unbounded": False}


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts that a certificate states about one run."""

    product: str
    protected_unit: str  # what one record is: ``"person"``, ``"housing unit"``
    mechanism: str
    neighbours: str
    loss: Fraction  # rho (discrete Gaussian) or epsilon (discrete Laplace) of the plan
    delta: Fraction  # where epsilon is quoted
    stamps: tuple[str, ...]  # ``"NOT FOR RELEASE"``, ``"DEMONSTRATION FRAME"``
    estimator: str
    # Names such as ``"total@state"``. A frame taken from the records adds
    # :data:`opendas.custody.stamps.POPULATED_LEAVES`.
    invariants: tuple[str, ...]
    dropped_invariants: tuple[str, ...]  # those of the product that do not hold in this run
    declared: tuple[str, ...]  # public constraints: bounds from unit counts, structural zeros
    records: int  # records released
    geounits: Mapping[str, int]  # by geolevel: number of geounits on the run's spine, top first
    geolevel_shares: Mapping[str, Fraction]  # by geolevel, top first
    query_shares: Mapping[str, Mapping[str, Fraction]]  # by geolevel and query
    rows: tuple[NoiseRow, ...]
    # By attribute: loss when a record changes in this attribute only; in schema order.
    attributes: Mapping[str, Fraction]
    # By geolevel: loss when a record moves inside one geounit of the spine at the geolevel, top first.
    within: Mapping[str, Fraction]
    plan_digest: str  # digest of public information, as `spine_digest`
    spine_digest: str
    families: int  # number of families estimated
    fallbacks: int  # number of those that needed the fallback solver
    failsafe: tuple[Mapping[str, Any], ...] = ()  # families whose parent was relaxed, as plain JSON values
    measurements: str = "used"  # ``"used"`` or ``"full"``: the part of the measurement that is released
    # Summary of the spine; None in certificates of versions that did not describe it.
    spine: SpineSummary | None = None
    # Source of the budget shares, as the run file states it; None for presets and where it is not stated.
    source: str | None = None
    # Losses when a record moves inside one official geounit, or one area of an entity category; empty in
    # certificates of versions that did not state them.
    within_official: tuple[AreaLoss, ...] = ()
    # Provenance of labels, levels, frame and units; None in certificates of versions without it.
    domain: Domain | None = None
    # Location of the run key when the release was complete (:class:`opendas.custody.stamps.KeyCustody`); None
    # until then.
    key: str | None = None
    # Bound on the records counted of one protected unit; None where a unit is one record.
    contribution: ContributionBound | None = None
    # Loss when one record of a unit changes and the others stay; None where a unit is one record.
    record_loss: Fraction | None = None
    # What remains protected given the exact facts; None in certificates of versions without it.
    protection: Protection | None = None
    tied: tuple[EarlierAct, ...] = ()  # losses of the earlier releases that this one agrees with
    # Product that counts every protected unit, if a unit may have no record in this one.
    companion: str | None = None
    parts: tuple[Origin, ...] = ()  # parts of other packages
    # Whose measurements these are, where others took them; the loss is then theirs.
    published: PublishedFile | None = None
    # Released people by sex and age; empty where the product has no single years of age.
    pyramids: tuple[Pyramid, ...] = ()
    # Records whose type has no unit in their leaf, or is needed by another there, and that got another type;
    # None where types are not compared with units.
    moved: int | None = None

    def __post_init__(self) -> None:
        try:
            Mechanism(self.mechanism), Neighbours(self.neighbours)
        except ValueError:
            raise FormatError(
                f"certificate: unknown mechanism {self.mechanism!r} or relation {self.neighbours!r}."
            ) from None
        for name in ("geounits", "geolevel_shares", "attributes", "within"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        shares = {level: MappingProxyType(dict(queries)) for level, queries in self.query_shares.items()}
        object.__setattr__(self, "query_shares", MappingProxyType(shares))

    @property
    def pure(self) -> bool:
        """Whether the loss is a pure epsilon."""
        return self.mechanism == Mechanism.DISCRETE_LAPLACE

    @property
    def guaranteed(self) -> bool:
        """Whether the guarantee holds: the noise is secret."""
        return NOT_FOR_RELEASE not in self.stamps

    @property
    def estimated(self) -> bool:
        """Whether counts were estimated; False if only measurements were released."""
        return self.families > 0

    @property
    def estimator_words(self) -> str:
        """Name of the estimator, with its package if it is not built in."""
        return self._words(ESTIMATORS, self.estimator)

    @property
    def mechanism_words(self) -> str:
        """Name of the mechanism, with its package if it is not built in."""
        return self._words(MECHANISMS, self.mechanism)

    @property
    def workload_words(self) -> str:
        """Names of workloads of other packages, each with its package; empty without."""
        return "; ".join(str(part) for part in self.parts if part.kind == WORKLOADS)

    def _words(self, group: str, own: str) -> str:
        return next((str(part) for part in self.parts if part.kind == group), own)

    @property
    def draws(self) -> int:
        """Number of noise values of the full measurement."""
        return sum(row.geounits * row.cells for row in self.rows)

    @property
    def query_groups(self) -> tuple[str, ...]:
        """Measured query groups, in the order of the geolevel that measures most of them."""
        longest_first = sorted(self.query_shares.values(), key=len, reverse=True)
        return tuple(dict.fromkeys(query for queries in longest_first for query in queries))

    def losses(self, losses: Mapping[str, Fraction]) -> dict[str, dict[str, object]]:
        """Return partial losses, by attribute or geolevel, as JSON values."""
        keys = ("rho", "epsilon", "pure_epsilon")
        found = {name: loss_json(loss, self.delta, pure=self.pure) for name, loss in losses.items()}
        return {name: {key: loss[key] for key in keys if key in loss} for name, loss in found.items()}

    def to_dict(self) -> dict[str, object]:
        """Return the run object of ``certificate.json`` without its guarantee; losses are exact.

        Objects are written with sorted keys, so the lists ``geolevels``, ``query_groups`` and
        ``attribute_names`` keep the order.
        """
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            **{name: list(getattr(self, name)) for name in _LISTS},
            **loss_json(self.loss, self.delta, pure=self.pure),
            "delta": float(self.delta),
            "delta_exact": format_fraction(self.delta),
            "guaranteed": self.guaranteed,
            "geolevels": list(self.geounits),
            "query_groups": list(self.query_groups),
            "attribute_names": list(self.attributes),
            "geounits": dict(self.geounits),
            "budget": {
                **shares_json(self.geolevel_shares, self.query_shares),
                "source": self.source,
            },
            "rows": [row.to_dict() for row in self.rows],
            "attributes": self.losses(self.attributes),
            "within": self.losses(self.within),
            "official_kinds": [row.kind for row in self.within_official],
            "within_official": self._official(),
            "failsafe": [dict(record) for record in self.failsafe],
            "spine": None if self.spine is None else self.spine.to_dict(),
            "domain": None if self.domain is None else self.domain.to_dict(),
            "contribution": self._contribution(),
            "several": {str(n): self.losses({"": loss})[""] for n, loss in self.several.items()},
            "protection": None if self.protection is None else self.protection.to_dict(),
            **({"tied": [act.to_dict() for act in self.tied]} if self.tied else {}),
            **({} if self.companion is None else {"companion": self.companion}),
            **({"parts": [part.to_dict() for part in self.parts]} if self.parts else {}),
            **({} if self.published is None else {"published": self.published.to_dict()}),
            **({} if self.moved is None else {"moved": self.moved}),
            **({"pyramids": [one.to_dict() for one in self.pyramids]} if self.pyramids else {}),
        }

    def _official(self) -> dict[str, dict[str, object]]:
        largest = self.losses({row.kind: row.largest for row in self.within_official})
        median = self.losses({row.kind: row.median for row in self.within_official})
        return {
            row.kind: {
                "areas": row.areas,
                "above_spine": row.above_spine,
                "largest": largest[row.kind],
                "median": median[row.kind],
            }
            for row in self.within_official
        }

    @property
    def several(self) -> Mapping[int, Fraction]:
        """Loss when several protected units change together, by number: a household of 2, of 4."""
        return {n: group_loss(self.loss, n, pure=self.pure) for n in SEVERAL}

    def loss_words(self, loss: Fraction) -> str:
        """Return a loss of this run in words: exact, with its epsilon at delta if it is a rho."""
        exact = format_fraction(loss)
        if self.pure:
            return f"epsilon = {exact}"
        epsilon = _converted(loss, self.delta)["epsilon"]["cks"]
        return f"rho = {exact} (epsilon about {epsilon:.2f} at delta = {float(self.delta):g})"

    def _contribution(self) -> dict[str, object] | None:
        if self.contribution is None or self.record_loss is None:
            return None
        return {**self.contribution.to_dict(), "one_record": self.losses({"": self.record_loss})[""]}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote."""
        try:
            return cls._read(record)
        except (KeyError, TypeError, ValueError, OpendasError) as error:
            raise FormatError(
                "certificate.json: a run is incomplete or was changed. Restore the file from a copy of the "
                "release."
            ) from error

    @classmethod
    def _read(cls, record: Mapping[str, Any]) -> Self:
        pure = record["mechanism"] == Mechanism.DISCRETE_LAPLACE
        loss_key = "pure_epsilon" if pure else "rho"
        levels: Sequence[str] = record["geolevels"]
        budget = record["budget"]
        queries = budget["queries"]
        named: dict[str, Any] = {name: record[name] for name in _PLAIN}
        named |= {name: tuple(record[name]) for name in _LISTS}
        return cls(
            **named,
            loss=parse_fraction(record[loss_key], loss_key),
            delta=parse_fraction(record["delta_exact"], "delta"),
            geounits=_ordered(record["geounits"], levels),
            geolevel_shares=_exact(_ordered(budget["geolevels"], levels)),
            query_shares={
                level: _exact(_ordered(shares, record["query_groups"]))
                for level, shares in _ordered(queries, levels).items()
            },
            rows=tuple(NoiseRow.from_dict(row) for row in record["rows"]),
            attributes=_exact(_ordered(record["attributes"], record["attribute_names"]), loss_key),
            within=_exact(_ordered(record["within"], levels), loss_key),
            failsafe=tuple(record["failsafe"]),
            spine=_optional(record, "spine", SpineSummary.from_dict),
            source=_optional(budget, "source", str),
            within_official=tuple(
                AreaLoss.from_dict(kind, row)
                for kind, row in _ordered(
                    record.get("within_official", {}), record.get("official_kinds", ())
                ).items()
            ),
            domain=_optional(record, "domain", Domain.from_dict),
            **_read_contribution(record.get("contribution"), loss_key),
            protection=_optional(record, "protection", Protection.from_dict),
            tied=tuple(EarlierAct.from_dict(act) for act in record.get("tied", ())),
            companion=_optional(record, "companion", str),
            parts=tuple(Origin.from_dict(part) for part in record.get("parts", ())),
            published=_optional(record, "published", PublishedFile.from_dict),
            moved=_optional(record, "moved", int),
            pyramids=tuple(Pyramid.from_dict(one) for one in record.get("pyramids", ())),
        )


def _optional(record: Mapping[str, Any], name: str, read: Callable[[Any], _T]) -> _T | None:
    """Return what a certificate may lack: other runs, and earlier versions, state less."""
    return None if record.get(name) is None else read(record[name])


def _read_contribution(record: Mapping[str, Any] | None, loss_key: str) -> dict[str, Any]:
    if record is None:
        return {}
    loss = parse_fraction(record["one_record"][loss_key], loss_key)
    return {"contribution": ContributionBound.from_dict(record), "record_loss": loss}


def _exact(values: Mapping[str, Any], key: str | None = None) -> dict[str, Fraction]:
    """Parse exact numbers; with a key, from records that hold them under it."""
    return {name: parse_fraction(value if key is None else value[key]) for name, value in values.items()}


def _ordered(values: Mapping[str, Any], order: Sequence[str]) -> dict[str, Any]:
    """Return a mapping in a given order of keys, which must list every key."""
    if not set(values) <= set(order):
        raise FormatError("certificate: a list of names is incomplete.")
    return {name: values[name] for name in order if name in values}
