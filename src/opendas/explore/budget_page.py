"""The budget page: from a form to answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup, escape

from opendas.errors import ConfigError, OpendasError
from opendas.explore.answers import CURVE_EXPONENTS, Answers, Cell, Loss, answer
from opendas.explore.drafts import Draft, Sum, draft_of, moved, read_draft, rescaled
from opendas.explore.pictures import curve_picture, error_picture
from opendas.explore.problems import Problems
from opendas.explore.states import BudgetState, differences
from opendas.explore.subjects import Subject
from opendas.gls.expected_error import ExpectedRow
from opendas.privacy.composed import Bounds
from opendas.privacy.zcdp import FORMULAS
from opendas.report.pictures import share_bar
from opendas.report.views import decimal, words

__all__ = [
    "PREFIXES",
    "BudgetAnswer",
    "acted",
    "answered",
    "error_of",
    "from_form",
    "margin_of",
    "start_state",
]

PREFIXES = ("a", "b")
"""Of the fields of the first and the second plan."""


@dataclass(frozen=True, slots=True)
class BudgetAnswer:
    """What is said about a state.

    Parameters
    ----------
    state : BudgetState
    plans : tuple of (name, Answers)
        Those that could be used: ``A``, ``B``.
    problems : Problems
    sums : mapping of group to Sum
    exact : tuple of (name, Bounds)
        Epsilon of the composed noise itself, where it was asked for.
    areas : tuple of tuple of ExpectedRow
        Expected errors of areas off the spine, per plan, where they were asked for.
    """

    state: BudgetState
    plans: tuple[tuple[str, Answers], ...]
    problems: Problems
    sums: Mapping[str, Sum]
    exact: tuple[tuple[str, Bounds], ...] = ()
    areas: tuple[tuple[ExpectedRow, ...], ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every number could be used."""
        return not self.problems

    @property
    def status(self) -> str:
        """One sentence, for everyone and for screen readers."""
        if self.problems:
            return self.problems.sentence
        return " ".join(_sentence(name, found, len(self.plans) > 1) for name, found in self.plans)

    def context(self, subject: Subject) -> dict[str, Any]:
        """Return what the template of the answers shows."""
        return {
            "subject": subject,
            "plans": self.plans if self.is_complete else (),
            "problems": [(_anchor(name), text) for name, text in self.problems.by_field.items()],
            "exponents": list(CURVE_EXPONENTS),
            "two_lines": two_lines,
            **(self._pictures(subject) if self.plans and self.is_complete else {}),
        }

    def _pictures(self, subject: Subject) -> dict[str, Any]:
        open_totals = [
            found.cells[level, "total"].expected > 0 for _, found in self.plans for level in subject.levels
        ]
        query = "total" if any(open_totals) else "detailed"
        return {
            "picture_query": query,
            "error_picture": error_picture(self.plans, query),
            "curve_picture": curve_picture(self.plans),
            "gaussian": any(found.is_gaussian for _, found in self.plans),
            "loss_name": " or ".join(
                dict.fromkeys(found.budget.mechanism.loss_name for _, found in self.plans)
            ),
            "share_bars": [share_bar(_spent(found)) for _, found in self.plans],
            "exact": [
                (
                    name,
                    f"{math.floor(bounds.lower * 100) / 100:.2f}",
                    f"{math.ceil(bounds.upper * 100) / 100:.2f}",
                )
                for name, bounds in self.exact
            ],
            "losses": [
                (
                    "Loss when one attribute of a record changes and all else stays",
                    "Attribute",
                    self._loss_lines([found.attributes for _, found in self.plans]),
                ),
                (
                    "Loss when a record moves within one geounit and all else stays",
                    "Within one",
                    self._loss_lines([found.within for _, found in self.plans]),
                ),
            ],
            "power": self._power_lines(),
            "areas": self._area_lines(),
        }

    def _open_total(self, subject: Subject) -> list[bool]:
        return [
            found.cells[level, "total"].expected > 0 for _, found in self.plans for level in subject.levels
        ]

    def _together(self, texts: Iterable[str]) -> Markup:
        """Write one value per plan, under each other."""
        two = len(self.plans) > 1
        values = zip(self.plans, texts, strict=True)
        return Markup("").join(two_lines(name, two, text) for (name, _), text in values)

    def _loss_lines(self, columns: list[tuple[Loss, ...]]) -> list[tuple[str, list[Markup]]]:
        """Return a name and cells per loss: the loss and its epsilons."""
        formulas = FORMULAS if any(found.is_gaussian for _, found in self.plans) else ()
        lines = []
        for losses in zip(*columns, strict=True):
            cells = [self._together(decimal(loss.loss) for loss in losses)]
            cells += [
                self._together([_two_digits(loss.epsilon.get(name)) for loss in losses]) for name in formulas
            ]
            lines.append((losses[0].name, cells))
        return lines

    def _area_lines(self) -> list[tuple[str, int, list[Markup]]]:
        """Return kind, number, and mean and largest standard error of areas off the spine."""
        return [
            (
                rows[0].name,
                rows[0].areas,
                [
                    self._together(_error_text(row.mean_sd) for row in rows),
                    self._together(_error_text(row.max_sd) for row in rows),
                ],
            )
            for rows in zip(*self.areas, strict=True)
        ]

    def _power_lines(self) -> list[tuple[str, Markup]]:
        """Return rates of false alarms, and how often a true claim is recognised at most."""
        return [
            (
                f"{bounds[0][0] * 100:g} %",
                self._together(f"{min(power, 1.0) * 100:.1f} %" for _, power in bounds),
            )
            for bounds in zip(*(found.power for _, found in self.plans), strict=True)
        ]


def _two_digits(value: float | None) -> str:
    return "\u2013" if value is None else f"{value:.2f}"


def _spent(found: Answers) -> dict[str, Any]:
    return {level: share for level, share in found.budget.geolevels.items() if share}


def _anchor(name: str) -> str:
    """Return the id to jump to: a group's message stands at its sum."""
    is_group = name.partition(".")[2] == "l" or (name.count(".") == 1 and ".q" in name)
    return f"{name}-sum" if is_group else name


def _sentence(name: str, found: Answers, two: bool) -> str:
    start = f"Plan {name}: " if two else ""
    loss = decimal(found.budget.total)
    if found.is_gaussian:
        cost = f"rho {loss}, epsilon {found.whole.epsilon['cks']:.2f} (cks)"
    else:
        cost = f"epsilon {loss}"
    leaf = list(found.budget.geolevels)[-1]
    margins = [
        f"{words(level)} \u00b1{cell.most:,}"
        for level in found.budget.geolevels
        if (cell := found.cells[level, "detailed"]).most is not None and level != leaf
    ]
    return f"{start}{cost}. 90 % margin of one detailed count: {', '.join(margins[-3:]) or 'none measured'}."


def two_lines(name: str, two: bool, text: str) -> Markup:
    """Write a value of a cell; with two plans, one line each, told apart by letter and not by colour only."""
    if not two:
        return escape(text)
    return Markup('<span class="v{}"><span class="tag">{}</span> {}</span>').format(name.lower(), name, text)


def margin_of(cell: Cell) -> str:
    """Write the margin of a measured answer."""
    if cell.least is None or cell.most is None:
        return "exact" if cell.is_exact else "\u2013"
    if cell.least == cell.most:
        return f"\u00b1{cell.least:,}"
    return f"\u00b1{cell.least:,} to \u00b1{cell.most:,}"


def error_of(cell: Cell) -> str:
    """Write an expected standard error."""
    return _error_text(cell.expected)


def _error_text(error: float) -> str:
    if error == 0:
        return "exact"
    return "unbounded" if math.isinf(error) else decimal(error, 3)


def start_state(subject: Subject, drafts: tuple[Draft, ...] | None = None) -> BudgetState:
    """Return the state that a subject starts with."""
    plans = drafts or (draft_of(subject.start(), subject),)
    return BudgetState(subject.key, subject.product.name, subject.levels, subject.queries, plans)


def from_form(form: Mapping[str, str], subject: Subject) -> BudgetState:
    """Return the state that a form holds; fields it lacks are those of the start."""
    state = start_state(subject)
    count = 2 if form.get("plans") == "2" else 1
    plans = tuple(state.plans[0].taken(prefix, form) for prefix in PREFIXES[:count])
    return replace(state, plans=plans)


def acted(state: BudgetState, action: str) -> BudgetState:
    """Return the state after a button was pressed or a slider moved; an unknown action changes nothing."""
    plans = list(state.plans)
    kind, _, where = action.partition(":")
    if kind == "compare" and len(plans) == 1:
        plans.append(plans[0])
    elif kind == "single":
        plans = plans[:1]
    elif kind == "swap":
        plans.reverse()
    elif kind in ("rescale", "move"):
        prefix, _, group = where.partition(".")
        if prefix not in PREFIXES[: len(plans)]:
            return state
        number = PREFIXES.index(prefix)
        plans[number] = _changed(plans[number], kind, group)
    return replace(state, plans=tuple(plans))


def _changed(draft: Draft, kind: str, group: str) -> Draft:
    """Rescale a group, or let it give way around one share; what names no group changes nothing."""
    head, _, place = group.partition(".")
    if kind == "rescale" and (group == "l" or _is_number(group.removeprefix("q"), len(draft.queries))):
        return rescaled(draft, group)
    if kind == "move" and not place and _is_number(head.removeprefix("l"), len(draft.levels)):
        return moved(draft, "l", int(head.removeprefix("l")))
    here = _is_number(head.removeprefix("q"), len(draft.queries))
    if kind == "move" and here and _is_number(place, len(draft.queries[0])):
        return moved(draft, head, int(place))
    return draft


def _is_number(text: str, below: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 5 and int(text) < below


def answered(state: BudgetState, subject: Subject, *, more: str = "") -> BudgetAnswer:
    """Answer a state.

    Parameters
    ----------
    state : BudgetState
    subject : Subject
    more : str
        What takes a second or more, and is worked out on request only: ``exact``, the epsilon of the composed
        noise itself; ``areas``, expected errors of areas off the spine.

    Raises
    ------
    ConfigError
        If the state belongs to another subject.
    """
    why = differences(state, subject.product.name, subject.levels, subject.queries)
    if why:
        raise ConfigError(why)
    problems = Problems()
    sums: dict[str, Sum] = {}
    plans: list[tuple[str, Answers]] = []
    for prefix, draft in zip(PREFIXES, state.plans, strict=False):
        budget, found = read_draft(draft, prefix, subject, problems)
        sums |= found
        if budget is None:
            continue
        try:
            plans.append((prefix.upper(), answer(subject, budget)))
        except OpendasError as error:
            problems.add(f"{prefix}.total", str(error))
    known = BudgetAnswer(state, tuple(plans), problems, sums)
    if not known.is_complete:
        return known
    if more == "areas":
        return replace(known, areas=tuple(subject.areas(answers.budget) for _, answers in plans))
    if more != "exact":
        return known
    bounds = []
    for name, answers in plans:
        try:
            if answers.is_gaussian:
                loss = subject.exact_loss(answers.budget)
                bounds.append((name, loss.epsilon(answers.budget.delta)))
        except OpendasError as error:
            problems.add(f"{name.lower()}.delta", str(error))
    return replace(known, exact=tuple(bounds))
