"""Summarise an account for a certificate: position of a release, losses of the data set, readings.

Computed from a ledger, in public numbers and names; docs/proofs/ledger.md justifies each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Self

from opendas.custody.book_terms import BookTerms
from opendas.custody.ledger_entries import ELSEWHERE, LedgerEntry, Spent, loss_text, total_spent
from opendas.custody.ledger_lines import LedgerAct, LedgerLine, head_of
from opendas.custody.protected_units import CENSUS_CHANGES
from opendas.errors import FormatError, PrivacyError
from opendas.privacy.exact import format_fraction, parse_fraction

EVALUATE, EXACT, TUNE, ALLOCATE, PUBLISH = "evaluate", "exact", "tune", "allocate", "publish"
PLAN, EXPERIMENT = "plan", "experiment"

READINGS: Mapping[str, str] = MappingProxyType(
    {
        EVALUATE: "a release was compared with the data",
        EXACT: "exact tables were made of the data",
        TUNE: "a plan was tuned on the data",
        ALLOCATE: "a budget was allocated from the data",
        EXPERIMENT: "runs were simulated on the data and compared with them",
        PLAN: "a frame was read from the data to plan",
    }
)
"""Descriptions of acts that read the truth without noise."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Counts of acts through which a release may have been chosen with the truth in sight."""

    plans: int  # readings for planning, before the release was measured
    # Comparisons of the data with releases of the same protected unit or outside the account, and exact
    # tables, with which any release can be compared.
    evaluations: int
    candidates: int  # other releases of the same protected unit, measured but not published

    @property
    def possible(self) -> bool:
        """Whether the release may have been chosen by the truth; no rho covers such a choice."""
        return self.plans > 0 or (self.evaluations > 0 and self.candidates > 0)


@dataclass(frozen=True, slots=True)
class AccountFacts:
    """Facts of a certificate about the account."""

    book: bool  # whether the data set has a book; otherwise, the account is the output folder's own
    acts: int  # number of measurements in the account
    places: Mapping[str, int]  # product of this release -> its position among these acts
    readings: int  # number of readings of the truth without noise: evaluations, tuning, allocation
    head: str | None = None  # the blinded head of the book
    unit: str | None = None  # protected unit of the book
    relation: str | None = None
    change: str | None = None  # the change that the limit of the book covers
    # Exact texts: ``rho``, and ``epsilon`` with ``delta`` if declared so.
    limit: Mapping[str, str] = field(default_factory=dict)
    spent: Fraction | None = None  # total rho of the book's acts
    delta: Fraction = Fraction(0)  # sum of the deltas of the book's acts that are approximate rho-zCDP

    def to_dict(self) -> dict[str, object]:
        """Return plain values for JSON."""
        values: dict[str, object] = {name: getattr(self, name) for name in self.__slots__}
        spent = None if self.spent is None else format_fraction(self.spent)
        exact = {"spent": spent, "delta": format_fraction(self.delta)}
        return values | {"places": dict(self.places), "limit": dict(self.limit)} | exact

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote."""
        try:
            spent = record["spent"]
            exact = None if spent is None else parse_fraction(spent, "spent")
            delta = parse_fraction(record.get("delta", "0"), "delta")
            return cls(**{**record, "spent": exact, "delta": delta})
        except (KeyError, TypeError) as error:
            raise FormatError(
                "certificate.json: its account section is incomplete or was changed."
            ) from error


def account_of(
    lines: Sequence[LedgerLine],
    run_ids: Mapping[str, str],
    blind: Callable[[str], str] | None = None,
) -> AccountFacts:
    """Return the facts of an account for a certificate.

    - `lines`: lines of the book, or of the output folder's own ledger.
    - `run_ids`, product -> run: the runs of the release.
    - `blind` (head): blinds the head of a book; a release does not state the head of a folder's own ledger.
    """
    entries = [line.entry for line in lines if line.entry is not None]
    order = {entry.run_id: number for number, entry in enumerate(entries, start=1)}
    facts = {
        "acts": len(entries),
        "places": {name: order[run_id] for name, run_id in run_ids.items() if run_id in order},
        "readings": sum(isinstance(line.said, LedgerAct) and line.said.act in READINGS for line in lines),
    }
    terms = lines[0].said if lines else None
    if not isinstance(terms, BookTerms):
        return AccountFacts(book=False, **facts)  # type: ignore[arg-type]
    return AccountFacts(
        book=True,
        **facts,  # type: ignore[arg-type]
        head=None if blind is None else blind(head_of(lines)),
        unit=terms.unit,
        relation=terms.relation.value,
        change=terms.change.name,
        limit=terms.limit_json(),
        spent=terms.spent(entries),
        delta=sum((entry.delta for entry in entries), Fraction(0)),
    )


def _book_totals(terms: BookTerms, entries: Sequence[LedgerEntry]) -> tuple[Spent, ...]:
    """Return the totals of each change that a book's acts touch, beginning with its limit's change."""
    others = [change for change in CENSUS_CHANGES if change != terms.change]
    found = total_spent(entries, [terms.change, *others])
    by_change = {(spent.relation, spent.change): spent for spent in found}
    first = by_change.pop((terms.relation, terms.change.name), None)
    return tuple([] if first is None else [first]) + tuple(by_change.values())


def selection_of(lines: Sequence[LedgerLine], run_ids: Collection[str]) -> Selection:
    """Count the acts through which a release may have been chosen with the truth in sight."""
    entries = {line.run_id: line.entry for line in lines if line.entry is not None}
    acts = [(number, line.said) for number, line in enumerate(lines) if isinstance(line.said, LedgerAct)]
    own = {run_id for run_id in run_ids if run_id in entries}
    if not own:
        raise PrivacyError(
            "this ledger is not the account of this release: it holds none of its runs. Give the ledger of "
            "this release."
        )
    units = {entries[run_id].unit for run_id in own}
    alike = {run_id for run_id, entry in entries.items() if entry.unit in units}
    others = entries.keys() - alike
    published = {act.run_id for _, act in acts if act.act == PUBLISH}
    # A discovery is no release, and what was spent elsewhere was released there.
    no_release = {run_id for run_id, entry in entries.items() if entry.delta or entry.input_tag == ELSEWHERE}
    last = max(number for number, line in enumerate(lines) if line.entry and line.run_id in own)
    return Selection(
        plans=sum(act.act in (TUNE, ALLOCATE, EXPERIMENT) for number, act in acts if number < last),
        evaluations=sum(act.act in (EVALUATE, EXACT) and act.run_id not in others for _, act in acts),
        candidates=len(alike - own - published - no_release),
    )


def book_answer(lines: Sequence[LedgerLine]) -> dict[str, Any]:
    """Return the content of ``opendas ledger BOOK --json``: limit, spent, totals, acts. It names runs."""
    terms = lines[0].said
    if not isinstance(terms, BookTerms):
        raise AssertionError("a book begins with its terms")
    entries = [line.entry for line in lines if line.entry is not None]
    spent = terms.spent(entries)
    return {
        "unit": terms.unit,
        "neighbours": terms.relation.value,
        "change": terms.change.name,
        "limit": terms.limit_json(),
        "spent": terms.loss_json(spent),
        "left": {"rho": format_fraction(terms.rho - spent)},
        "totals": [_total(total) for total in _book_totals(terms, entries)],
        "acts": [act for line in lines if (act := _act(line, terms)) is not None],
        "head": head_of(lines),
    }


def _total(total: Spent) -> dict[str, object]:
    return {
        "change": total.change,
        "neighbours": total.relation.value,
        "rho": loss_text(total.rho),
        "epsilon": None if total.epsilon is None else loss_text(total.epsilon),
        "acts": total.acts,
        "uncovered": total.uncovered,
        **({"delta": format_fraction(total.delta)} if total.delta else {}),
    }


def _act(line: LedgerLine, terms: BookTerms) -> dict[str, object] | None:
    """Return an act in words; None for lines that are not acts."""
    if line.entry is not None:
        return {
            "act": "discover" if line.entry.delta else "measure",
            "run": line.run_id,
            "product": line.entry.product,
            "unit": line.entry.unit,
            "rho": format_fraction(terms.cost(line.entry)),
            **({"delta": format_fraction(line.entry.delta)} if line.entry.delta else {}),
            "exact": list(line.entry.exact),
        }
    if isinstance(line.said, LedgerAct):
        return {"act": line.said.act, "run": line.said.run_id, **line.said.details}
    return None
