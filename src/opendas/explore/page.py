"""The page model: plans as typed, the state of a page as a link or file, and what every page does with them.

A page shows one plan, or two beside each other. A plan as typed is a mapping of field name to text; in the
form the fields of the first plan begin with ``a.``, those of the second with ``b.``.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, ClassVar, Final, Generic, TypeVar

from markupsafe import Markup, escape

from opendas.errors import ConfigError
from opendas.explore.fields import Problems, Typed, sum_sentence

PREFIXES: Final = ("a", "b")
"""Of the fields of the first and the second plan."""

FORMAT: Final = 2
_LONGEST_LINK: Final = 60_000
_LONGEST_STATE: Final = 1_000_000
_LONGEST_FIELD: Final = 200
_MOST_FIELDS: Final = 2_000
_BROKEN: Final = "The link or kept state is damaged: it was cut off or changed. Copy it again, all of it."

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class State:
    """What a page shows."""

    page: str  # ``budget`` or ``phsafe``
    about: Mapping[str, Any]  # what the plans are of; empty for household tables
    plans: tuple[Typed, ...]  # plan A, and plan B where two are compared

    def to_document(self) -> dict[str, Any]:
        """Return plain data."""
        about = {name: value if isinstance(value, str) else list(value) for name, value in self.about.items()}
        plans = [dict(plan) for plan in self.plans]
        return {"opendas-explore": FORMAT, "page": self.page, **about, "plans": plans}

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> State:
        """Read plain data; whether the fields are those of its page, :meth:`Page.from_document` checks."""
        plans = document.get("plans")
        if not isinstance(plans, list) or not 1 <= len(plans) <= 2:
            raise ConfigError(_BROKEN)
        names = [name for name in document if name not in ("opendas-explore", "page", "plans")]
        about = {name: _checked_about(document[name]) for name in names}
        return cls(_checked_text(document.get("page")), about, tuple(_checked_plan(plan) for plan in plans))

    def fields(self) -> dict[str, str]:
        """Return every field by its name in the form."""
        plans = zip(PREFIXES, self.plans, strict=False)
        return {f"{prefix}.{name}": text for prefix, plan in plans for name, text in plan.items()}


def _checked_text(value: object) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_FIELD:
        raise ConfigError(_BROKEN)
    return value


def _checked_about(value: object) -> str | tuple[str, ...]:
    if not isinstance(value, list):
        return _checked_text(value)
    if len(value) > _MOST_FIELDS:
        raise ConfigError(_BROKEN)
    return tuple(_checked_text(item) for item in value)


def _checked_plan(plan: object) -> dict[str, str]:
    if not isinstance(plan, dict) or len(plan) > _MOST_FIELDS:
        raise ConfigError(_BROKEN)
    return {name: _checked_text(text) for name, text in plan.items()}


def write_link(document: Mapping[str, Any]) -> str:
    """Write a state as the value of a link's ``s``: compressed, with a check sum.

    Examples
    --------
    >>> read_link(write_link({"opendas-explore": 2, "page": "budget"}))["page"]
    'budget'
    """
    plain = json.dumps(document, separators=(",", ":"), sort_keys=True, ensure_ascii=True)
    return base64.urlsafe_b64encode(zlib.compress(plain.encode("ascii"), 9)).decode("ascii").rstrip("=")


def read_link(text: str) -> dict[str, Any]:
    """Read what :func:`write_link` wrote."""
    if not text or len(text) > _LONGEST_LINK:
        raise ConfigError(_BROKEN)
    try:
        packed = base64.b64decode(
            text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True
        )
        reader = zlib.decompressobj()
        plain = reader.decompress(packed, _LONGEST_STATE)
        if not reader.eof or reader.unused_data:
            raise ConfigError(_BROKEN)
        document = json.loads(plain)
    except (ValueError, binascii.Error, zlib.error, RecursionError):
        raise ConfigError(_BROKEN) from None
    return state_document(document)


def state_document(document: object) -> dict[str, Any]:
    """Check that plain data are a state of this version."""
    if not isinstance(document, dict) or "opendas-explore" not in document:
        raise ConfigError("This is not a state that opendas explore wrote.")
    if document["opendas-explore"] != FORMAT:
        raise ConfigError(
            "Another version of opendas explore wrote this state. Open it with that version, or start again."
        )
    return document


@dataclass(frozen=True, slots=True)
class Answer(Generic[Found]):
    """What is said about a state."""

    state: State
    plans: tuple[tuple[str, Found], ...]  # name, ``A`` or ``B``, and answer of each plan that could be used
    problems: Problems
    sums: Mapping[str, Fraction | None] = field(default_factory=dict)  # what groups of shares sum to
    more: Mapping[str, Any] = field(default_factory=dict)  # what was worked out on request only

    @property
    def is_complete(self) -> bool:
        """Whether every entry could be used."""
        return not self.problems

    def plan(self, action: str) -> Found | None:
        """Return what was found of the plan that an action such as ``save:a`` names."""
        wanted = action.partition(":")[2].upper()
        return next((found for name, found in self.plans if name == wanted), None)

    def per_plan(self, texts: Iterable[object]) -> Markup:
        """Write a value per plan; of two, a line each, told apart by letter and not by colour only."""
        if len(self.plans) == 1:
            return escape(next(iter(texts)))
        line = Markup('<span class="v{}"><span class="tag">{}</span> {}</span>')
        plans = zip(self.plans, texts, strict=True)
        return Markup("").join(line.format(name.lower(), name, text) for (name, _), text in plans)


class Page(ABC, Generic[Found]):
    """What a page does with plans: start them, change them, answer them, show and save the answers."""

    key: ClassVar[str]
    file: ClassVar[tuple[str, str]]  # name and type of the file that a plan is saved as

    # Fields that are boxes to tick: no browser sends those that are not ticked.
    ticks: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def starts(self) -> list[tuple[str, str]]:
        """What a plan can start from: name and title."""

    @abstractmethod
    def started(self, name: str = "") -> State:
        """Return the state that a start begins with; a ConfigError if there is no such start."""

    @abstractmethod
    def start_of_form(self, form: Typed) -> State:
        """Return the state whose fields a form fills in; a ConfigError if it is of another subject."""

    @abstractmethod
    def from_document(self, document: Mapping[str, Any]) -> State:
        """Return the state of a document; a ConfigError if it is not one of this page."""

    @abstractmethod
    def edited(self, plan: Typed, kind: str, where: str) -> Typed:
        """Return a plan after a button of its own was pressed or a slider moved."""

    @abstractmethod
    def evaluate(
        self, state: State, plan: Typed, prefix: str, problems: Problems
    ) -> tuple[Found | None, Mapping[str, Fraction | None]]:
        """Understand a plan, and return what it buys and costs, and the sums of its groups of shares."""

    @abstractmethod
    def plan_summary(self, found: Found) -> str:
        """Say the most important of an answer in one sentence."""

    @abstractmethod
    def context(self, answer: Answer[Found]) -> dict[str, Any]:
        """Return what the template of the answers shows, beside plans and problems."""

    @abstractmethod
    def form_context(self, answer: Answer[Found]) -> dict[str, Any]:
        """Return what the template of the form shows, beside the state and what is wrong with it."""

    @abstractmethod
    def saved(self, state: State, found: Found) -> str:
        """Write a plan as the file that a run reads."""

    def add_on_request(self, answer: Answer[Found], action: str) -> Answer[Found]:
        """Add to a complete answer what takes a second or more, where it was asked for."""
        return answer

    def from_form(self, form: Typed) -> State:
        """Return the state that a form holds; fields it lacks are those of the start."""
        state = self.start_of_form(form)
        start = state.plans[0]
        count = 2 if form.get("plans") == "2" else 1
        plans = []
        for prefix in PREFIXES[:count]:
            plan = {name: form.get(f"{prefix}.{name}", text) for name, text in start.items()}
            if any(f"{prefix}.{name}" in form for name in start if name not in self.ticks):
                plan |= {name: "1" if form.get(f"{prefix}.{name}") else "" for name in self.ticks}
            plans.append(plan)
        return replace(state, plans=tuple(plans))

    def after_action(self, state: State, action: str) -> State:
        """Return the state after a button was pressed or a slider moved; others change nothing."""
        plans = list(state.plans)
        kind, _, where = action.partition(":")
        prefix, _, where = where.partition(".")
        if kind == "compare" and len(plans) == 1:
            plans.append(plans[0])
        elif kind == "single":
            plans = plans[:1]
        elif kind == "swap":
            plans.reverse()
        elif prefix in PREFIXES[: len(plans)]:
            number = PREFIXES.index(prefix)
            plans[number] = self.edited(plans[number], kind, where)
        return replace(state, plans=tuple(plans))

    def requested_state(self, form: Typed) -> State:
        """Return what a form, a link or a start asks for.

        Raises `ConfigError` if a link is damaged, or of another page or plan.
        """
        if "s" in form:
            state = self.from_document(read_link(form["s"]))
        else:
            state = self.started(form["start"]) if "start" in form else self.from_form(form)
        return self.after_action(state, form.get("action", ""))

    def answer(self, state: State, action: str = "") -> Answer[Found]:
        """Answer a state, and what an action asks for beside."""
        problems = Problems()
        sums: dict[str, Fraction | None] = {}
        plans = []
        for prefix, plan in zip(PREFIXES, state.plans, strict=False):
            found, totals = self.evaluate(state, plan, prefix, problems)
            sums |= totals
            if found is not None:
                plans.append((prefix.upper(), found))
        answer = Answer(state, tuple(plans), problems, sums)
        return self.add_on_request(answer, action) if answer.is_complete else answer

    def summary(self, answer: Answer[Found]) -> str:
        """Say what the answer is in short, for everyone and for screen readers."""
        if not answer.is_complete:
            return answer.problems.sentence
        start = "Plan {}: " if len(answer.plans) > 1 else ""
        return " ".join(start.format(name) + self.plan_summary(found) for name, found in answer.plans)

    def answer_context(self, answer: Answer[Found]) -> dict[str, Any]:
        """Return what the template of the answers shows."""
        errors = answer.problems.by_field
        return {
            "plans": answer.plans if answer.is_complete else (),
            "problems": [
                (f"{name}-sum" if name in answer.sums else name, text) for name, text in errors.items()
            ],
            **(self.context(answer) if answer.is_complete else {}),
        }

    @staticmethod
    def updates(before: State, answer: Answer[Found]) -> dict[str, Any]:
        """Return what the form shows again beside the answers: messages, sums, fields that changed."""
        had = before.fields()
        fields = answer.state.fields().items()
        sums = {group: {"text": sum_sentence(s), "off": s != 1} for group, s in answer.sums.items()}
        changed = {name: text for name, text in fields if name in had and text != had[name]}
        return {"errors": answer.problems.by_field, "sums": sums, "fields": changed}
