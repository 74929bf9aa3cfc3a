"""Declare the terms of a book in its first line, and refuse acts beyond its limit.

A book is a ledger that begins with terms, the account of one data set. Argument: docs/proofs/ledger.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Final, Self

from opendas.custody.ledger_entries import ELSEWHERE, LedgerEntry, sum_of
from opendas.custody.protected_units import Change, change_of, unit_id
from opendas.errors import ConfigError, PrivacyError
from opendas.privacy.exact import format_fraction, parse_fraction
from opendas.privacy.relations import Neighbours
from opendas.privacy.zcdp import checked_delta, epsilon_cks

_GRID: Final = 10**9
"""Grid of nine decimals, to which the rho of a limit in epsilon is rounded down."""


def rho_within(epsilon: Fraction, delta: Fraction) -> Fraction:
    """Return the largest rho of nine decimals whose epsilon at delta is at most the one given.

    The conversion is that of :func:`opendas.privacy.zcdp.epsilon_cks`, which rounds up: the rho is safe.
    """

    def within(steps: int) -> bool:
        return Fraction(epsilon_cks(Fraction(steps, _GRID), delta)) <= epsilon

    high = 1
    while within(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if within(middle) else (low, middle)
    if low == 0:
        raise ConfigError(
            f"an epsilon of {format_fraction(epsilon)} at delta {float(delta):g} allows nothing: even "
            "rho = 1e-9, the smallest that a limit can be, has a larger epsilon. Give a larger epsilon, or a "
            "larger delta."
        )
    return Fraction(low, _GRID)


@dataclass(frozen=True, slots=True)
class BookTerms:
    """The first line of a book."""

    run_id: ClassVar[str] = ""

    unit: str  # identifier of the protected unit
    relation: Neighbours  # change that the limit covers: one unit replaced, or one added or removed
    rho: Fraction  # the limit
    # The limit as declared, with `delta`, if it was declared in epsilon; `rho` enforces it.
    epsilon: Fraction | None
    delta: Fraction | None
    key_commitment: str  # commitment to the key that tags inputs; each book has its own
    version: str

    def __post_init__(self) -> None:
        if not isinstance(self.key_commitment, str) or not self.key_commitment:
            raise PrivacyError("Book: a field has the wrong type.")
        if not isinstance(self.unit, str) or self.unit != unit_id(self.unit) or self.rho <= 0:
            raise PrivacyError("Book: the unit must be an identifier and the limit positive.")
        object.__setattr__(self, "relation", Neighbours(self.relation))

    @classmethod
    def declare(
        cls,
        unit: str,
        *,
        rho: Fraction | str | int | None = None,
        epsilon: Fraction | str | int | None = None,
        delta: Fraction | str | int | None = None,
        relation: Neighbours | str = Neighbours.BOUNDED,
        key_commitment: str,
        version: str,
    ) -> Self:
        """Return the terms of a new book.

        - `unit`: identifier of the protected unit, such as ``person`` or ``housing-unit``.
        - `rho`: the limit; alternatively, `epsilon` with `delta`.
        """
        if unit != unit_id(unit):
            raise ConfigError(f"--unit {unit}: write the protected unit as {unit_id(unit)!r}.")
        by_epsilon = epsilon is not None and delta is not None and rho is None
        if not by_epsilon and (rho is None or epsilon is not None or delta is not None):
            raise ConfigError("give the limit as a rho, or as an epsilon with its delta.")
        if by_epsilon:
            exact, at = parse_fraction(epsilon, "epsilon"), checked_delta(delta)  # type: ignore[arg-type]
            limit = rho_within(exact, at)
        else:
            exact, at, limit = None, None, parse_fraction(rho, "rho")
        if limit <= 0:
            raise ConfigError(f"the limit is {format_fraction(limit)}; it must be positive.")
        known = Neighbours(relation)
        return cls(unit, known, limit, exact, at, key_commitment, version)

    @property
    def change(self) -> Change:
        """The change accounted for, with the changes it induces in records of other products."""
        return change_of(self.unit)

    def cost(self, entry: LedgerEntry) -> Fraction:
        """Return the loss of an act for one protected unit, in rho."""
        if not self.change.factors.get(entry.unit):
            raise PrivacyError(
                f"the protected unit of the book is {self.unit!r}, and that of {entry.product} is "
                f"{entry.unit!r}. No known factor converts the loss of one into that of the other. If a "
                f'record of {entry.product} is one {self.unit}, declare protected_unit = "{self.unit}" in '
                "its product file. Otherwise create another book for these data."
            )
        cost = entry.cost(self.relation, self.change)
        if cost is None:
            why = f"one {self.unit} may change several of its records, and its loss is known for one only"
            if entry.loss_under(self.relation) is None:
                why = f"the book is one of {self.relation} neighbours, and it has no loss under that relation"
            raise PrivacyError(f"{entry.product}: {why}. Nothing was drawn.")
        if isinstance(cost[0], str):
            raise PrivacyError(
                f"the noise of {entry.product} comes from a seed, or its budget is infinite: such losses "
                "exceed every limit, and this data set has a book. Use seeds and infinite budgets for "
                "synthetic or public data. Nothing was drawn."
            )
        return cost[0]

    def spent(self, entries: Iterable[LedgerEntry]) -> Fraction:
        """Return the total rho of all acts."""
        total = sum_of([self.cost(entry) for entry in entries])
        if isinstance(total, str):
            raise AssertionError("costs are finite")
        return total

    def admit(self, earlier: Iterable[LedgerEntry], entry: LedgerEntry) -> None:
        """Refuse an act that would exceed the limit.

        Notes
        -----
        Feldman and Zrnic (2021), Theorem 4.3, at every order: acts chosen adaptively stay within the limit
        together if the sum of their losses never exceeds it.
        """
        acts = (*earlier, entry)
        spent, cost = self.spent(acts[:-1]), self.cost(entry)
        limit = self._within(sum((act.delta for act in acts), Fraction(0)))
        if spent + cost > limit:
            left = max(limit - spent, Fraction(0))
            todo = "Nothing was drawn. Plan with a smaller budget"
            if entry.input_tag == ELSEWHERE:
                todo = (
                    "Nothing was recorded. The limit of this book is too small for what was released "
                    "elsewhere"
                )
            raise PrivacyError(
                f"this act costs rho = {format_fraction(cost)} for one {self.unit}. Of this book, "
                f"{format_fraction(spent)} of the limit {format_fraction(limit)} is spent, and "
                f"{format_fraction(left)} is left. {todo} (opendas ledger BOOK shows every act)."
            )

    def _within(self, deltas: Fraction) -> Fraction:
        """Return the rho allowed to acts whose deltas sum to `deltas`, which add to the limit's delta."""
        if self.epsilon is None or self.delta is None or deltas == 0:
            return self.rho
        return rho_within(self.epsilon, self.delta - deltas) if deltas < self.delta else Fraction(0)

    def limit_json(self) -> dict[str, str]:
        """Return the limit as exact texts."""
        limit = {"rho": self.rho, "epsilon": self.epsilon, "delta": self.delta}
        return {name: format_fraction(value) for name, value in limit.items() if value is not None}

    def loss_json(self, rho: Fraction) -> dict[str, str]:
        """Return a rho as exact text, with its epsilon (rounded up) if the limit is in epsilon."""
        found = {"rho": format_fraction(rho)}
        if self.delta is not None:
            found["epsilon"] = str(epsilon_cks(rho, self.delta))
        return found

    def as_json(self) -> dict[str, object]:
        """Return plain data for one line."""
        return {
            "unit": self.unit,
            "relation": self.relation.value,
            "limit": self.limit_json(),
            "key_commitment": self.key_commitment,
            "version": self.version,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, object]) -> Self:
        """Read the output of :meth:`as_json`, which has exactly these fields."""
        values = dict(record)
        limit = values.pop("limit")
        if not isinstance(limit, dict):
            raise PrivacyError("Book: a field has the wrong type.")
        numbers = {name: parse_fraction(value, name) for name, value in limit.items()}
        return cls(**({"epsilon": None, "delta": None} | numbers | values))  # type: ignore[arg-type]
