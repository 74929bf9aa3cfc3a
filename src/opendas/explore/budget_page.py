"""The page of a release's budget: its plans, what they buy and cost; apart, as that of household tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

from markupsafe import Markup

from opendas.budget.presets import preset
from opendas.errors import ConfigError, OpendasError
from opendas.explore.budget import (
    CURVE_EXPONENTS,
    BudgetAnswers,
    Cell,
    Loss,
    answer_budget,
    budget_fields,
    read_budget,
)
from opendas.explore.fields import Problems, Typed, move_share, rescale_shares, share_text, sum_sentence
from opendas.explore.page import Answer, Page, State
from opendas.explore.price import can_be_priced, price_view, priced
from opendas.explore.run_file import run_file
from opendas.explore.subjects import STAND_INS, Subject, stand_in
from opendas.intervals.expected_margins import MOST_ROWS
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.privacy.zcdp import FORMULAS
from opendas.report.pictures import WIDTH, Curve, closed, curve_svg, line, opened, rect, share_bar, text
from opendas.report.views import decimal, plural, query_words, words
from opendas.runs.progress.clock import size_text
from opendas.schema.attributes import listed

BudgetAnswer = Answer[BudgetAnswers]
Row = tuple[str, Sequence[str]]

_MECHANISMS: Final = (
    (Mechanism.DISCRETE_GAUSSIAN.value, "discrete Gaussian (zCDP)"),
    (Mechanism.DISCRETE_LAPLACE.value, "discrete Laplace (pure)"),
)
_RELATIONS: Final = (
    (Neighbours.BOUNDED.value, "bounded: one replaced"),
    (Neighbours.UNBOUNDED.value, "unbounded: one added"),
)


def budget_state(subject: Subject, plan: Typed | None = None) -> State:
    """Return the state of a plan for a subject; without a plan, of the one that it starts with."""
    about = {
        "subject": subject.key,
        "product": subject.product.name,
        "geolevels": subject.levels,
        "queries": subject.queries,
    }
    return State("budget", about, (budget_fields(subject.start(), subject) if plan is None else plan,))


class BudgetPage(Page[BudgetAnswers]):
    """The page of a release's budget.

    `run`: the subject of a run file, which comes before the stand-ins.
    """

    key = "budget"
    file = ("plan.toml", "application/toml")

    def __init__(self, run: Subject | None = None) -> None:
        self.keys = (*(() if run is None else ("run",)), *STAND_INS)
        self._subjects: dict[str, Subject] = {} if run is None else {"run": run}

    @property
    def first(self) -> Subject:
        """The subject to begin with."""
        return self.subject(self.keys[0])

    def subject(self, key: str) -> Subject:
        """Return a subject by name."""
        if key not in self.keys:
            if key == "run":
                raise ConfigError(
                    "This is a plan for a run file: start opendas explore with it, and open it there."
                )
            raise ConfigError(f"There is nothing to explore under the name {key[:40]!r} here.")
        if key not in self._subjects:
            self._subjects[key] = stand_in(key)
        return self._subjects[key]

    @property
    def starts(self) -> list[tuple[str, str]]:
        """What a plan can start from: subject and preset."""
        found = []
        for key in self.keys:
            subject = self.subject(key)
            if key == "run":
                found.append(("run:", f"{subject.title}, as it is"))
            found += [(f"{key}:{name}", f"{subject.title}: {name}") for name in subject.presets]
        return found

    def started(self, name: str = "") -> State:
        """Return the state that a subject and a preset begin with."""
        key, _, chosen = name.partition(":")
        subject = self.subject(key) if name else self.first
        if not chosen:
            return budget_state(subject)
        if chosen not in subject.presets:
            preset(chosen)
            raise ConfigError(f"The preset {chosen} is of another product, or of other geolevels.")
        return budget_state(subject, budget_fields(subject.presets[chosen], subject))

    def start_of_form(self, form: Typed) -> State:
        """Return the state that the subject of a form starts with."""
        return budget_state(self.subject(form.get("subject", self.keys[0])))

    def from_document(self, document: Mapping[str, Any]) -> State:
        """Return the state of a document of one of the subjects."""
        state = State.of_document({"subject": "", **document})
        subject = self.subject(state.about["subject"])
        wanted = budget_state(subject)
        for name, mine in wanted.about.items():
            given = state.about.get(name, "")
            if given == mine or name == "subject":
                continue
            if name == "queries":
                product = subject.product.name
                raise ConfigError(
                    f"This is a plan for other query groups of {product} than this page explores."
                )
            kind = "of the product" if name == "product" else "for the geolevels"
            given, mine = (", ".join(value) if isinstance(value, tuple) else value for value in (given, mine))
            raise ConfigError(f"This is a plan {kind} {given}; this page explores {mine}.")
        if any(set(plan) != set(wanted.plans[0]) for plan in state.plans) or state.page != self.key:
            raise ConfigError("The state is damaged: fields are missing. Keep it again.")
        return state

    def edited(self, plan: Typed, kind: str, where: str) -> Typed:
        """Rescale a group of shares, or make room for one that was moved."""
        group = "l" if where[:1] == "l" else where.partition(".")[0] + "."
        names = [name for name in plan if name[0] in "lq" and name.startswith(group)]
        texts = [plan[name] for name in names]
        if kind == "rescale" and names and where == group.rstrip("."):
            return {**plan, **dict(zip(names, rescale_shares(texts), strict=True))}
        if kind == "move" and where in names:
            return {**plan, **dict(zip(names, move_share(texts, names.index(where)), strict=True))}
        return plan

    def evaluate(
        self, state: State, plan: Typed, prefix: str, problems: Problems
    ) -> tuple[BudgetAnswers | None, Mapping[str, Fraction | None]]:
        """Understand a plan, and return what it buys and costs, and the sums of its groups of shares."""
        subject = self.subject(state.about["subject"])
        budget, sums = read_budget(plan, prefix, subject, problems)
        try:
            return None if budget is None else answer_budget(subject, budget), sums
        except OpendasError as error:
            problems.add(f"{prefix}.total", str(error))
            return None, sums

    def add_on_request(self, answer: BudgetAnswer, action: str) -> BudgetAnswer:
        """Add ``exact``, the epsilon of the composed noise, or errors.

        ``errors`` are expected ones that take long; ``tried`` those of released counts, on synthetic records;
        ``areas`` those of areas off the spine; ``price`` those of the lowest geolevel with plans near this
        one.
        """
        subject = self.subject(answer.state.about["subject"])
        if action == "errors" and subject.later.queries:
            cells = [answer_budget(subject, found.budget, every=True).cells for _, found in answer.plans]
            plans = zip(answer.plans, cells, strict=True)
            full = tuple((name, replace(found, cells=each)) for (name, found), each in plans)
            return replace(answer, plans=full, more={"errors": True})
        if action == "tried":
            try:
                rows = [subject.tried(found.budget) for _, found in answer.plans]
            except OpendasError as error:
                answer.problems.add("a.total", str(error))
                return answer
            errors = [{(row.geolevel, row.query): row.mean_abs_error for row in each} for each in rows]
            return replace(answer, more={"tried": errors})
        if action == "price" and can_be_priced(subject, [found for _, found in answer.plans]):
            try:
                return replace(answer, more={"price": [priced(subject, a.budget) for _, a in answer.plans]})
            except OpendasError as error:
                answer.problems.add("a.total", str(error))
                return answer
        if action == "areas":
            areas = [subject.areas(found.budget) for _, found in answer.plans]
            return replace(answer, more={"areas": areas})
        if action != "exact" or subject.not_exact:
            return answer
        bounds = []
        for name, found in answer.plans:
            try:
                if found.is_gaussian:
                    epsilon = subject.exact_loss(found.budget).epsilon(found.budget.delta)
                    lower, upper = math.floor(epsilon.lower * 100) / 100, math.ceil(epsilon.upper * 100) / 100
                    bounds.append((name, f"{lower:.2f}", f"{upper:.2f}"))
            except OpendasError as error:
                answer.problems.add(f"{name.lower()}.delta", str(error))
        return replace(answer, more={"exact": bounds})

    def plan_summary(self, found: BudgetAnswers) -> str:
        """Say loss, epsilon and the expected errors of one detailed count above the leaves, if levels are.

        Not the noise of its one measurement, which is wider than the error of an estimate from all of them.
        Where there are too many cells, those of the total.
        """
        loss = decimal(found.budget.total)
        cost = f"epsilon {loss}"
        if found.is_gaussian:
            cost = f"rho {loss}, epsilon {found.whole.epsilon['cks']:.2f} (cks)"
        levels = list(found.budget.geolevels)
        known = found.cells[levels[0], "detailed"].expected is not None
        query, what = ("detailed", "one detailed count") if known else ("total", "the total")
        errors = [
            f"{words(level)} {error_text(found.cells[level, query].expected)}"
            for level in levels[:-1] or levels
        ]
        return f"{cost}. Expected standard error of {what}: {', '.join(errors[-3:])}."

    def form_context(self, answer: BudgetAnswer) -> dict[str, Any]:
        """Return what the template of the form shows."""
        subject = self.subject(answer.state.about["subject"])
        errors = answer.problems.by_field
        return {
            "title": subject.title,
            "subject": subject,
            "sums": {group: sum_sentence(total) for group, total in answer.sums.items()},
            "errors_groups": {name.rpartition(".")[0] for name in errors} | set(errors),
            "mechanisms": _MECHANISMS,
            "relations": _RELATIONS,
        }

    def context(self, answer: BudgetAnswer) -> dict[str, Any]:
        """Return what the template of the answers shows."""
        subject = self.subject(answer.state.about["subject"])
        found = [answers for _, answers in answer.plans]
        totals = [answers.cells[level, "total"].expected for answers in found for level in subject.levels]
        query = "total" if any(totals) or subject.many_cells else "detailed"
        spent = [{level: share for level, share in a.budget.geolevels.items() if share} for a in found]
        curves = [(name, answers.curve) for name, answers in answer.plans if answers.curve]
        formulas = list(FORMULAS) if curves else []
        attributes = [answers.attributes for answers in found]
        within = [answers.within for answers in found]

        def rows(cell: Callable[[BudgetAnswers, str, str], str]) -> list[Row]:
            return [
                (
                    query_words(q),
                    [answer.per_plan(cell(a, level, q) for a in found) for level in subject.levels],
                )
                for q in subject.queries
            ]

        geolevels = [answer.per_plan(_share(a.budget.geolevels[lv]) for a in found) for lv in subject.levels]
        return {
            "subject": subject,
            "later": _later(subject, len(found)),
            "asked": "errors" in answer.more,
            "most_rows": MOST_ROWS,
            "picture_query": query,
            "error_picture": error_picture(answer.plans, query),
            "margins": rows(lambda a, level, q: margin_of(a.cells[level, q])),
            "expected": rows(lambda a, level, q: error_text(a.cells[level, q].expected)),
            "tried": _tried_rows(answer, subject),
            "can_be_priced": can_be_priced(subject, found),
            "price": price_view(subject, [name for name, _ in answer.plans], answer.more.get("price", ())),
            "areas": _area_rows(answer),
            "curve_picture": curve_picture(answer.plans),
            "curve_head": [
                "delta",
                *(f"{name} {f}" if len(found) > 1 else f for name, _ in curves for f in formulas),
            ],
            "curve": [
                (f"1e-{k}", [f"{values[k][f]:.2f}" for _, values in curves for f in formulas])
                for k in CURVE_EXPONENTS
            ],
            "gaussian": bool(curves),
            "exact": answer.more.get("exact", ()),
            "formulas": [f"epsilon ({formula})" for formula in formulas],
            "loss_name": " or ".join(dict.fromkeys(a.budget.mechanism.loss_name for a in found)),
            "losses": [
                (
                    f"Loss when one attribute of a record changes and all else stays, {subject.compares}.",
                    "Attribute",
                    _loss_rows(answer, formulas, attributes),
                ),
                (
                    "Loss when a record moves within one geounit of the spine and all else stays, "
                    f"{subject.compares}.",
                    "Within one",
                    _loss_rows(answer, formulas, within),
                ),
            ],
            "power": [
                (f"{each[0][0] * 100:g} %", [answer.per_plan(f"{min(p, 1.0) * 100:.1f} %" for _, p in each)])
                for each in zip(*(answers.power for answers in found), strict=True)
            ],
            "share_bars": [share_bar(shares) for shares in spent],
            "shares": [
                ("the geolevel", geolevels),
                *rows(lambda a, level, q: _share(a.budget.queries.get(level, {}).get(q))),
            ],
        }

    def saved(self, state: State, found: BudgetAnswers) -> str:
        """Write a plan as a run file."""
        return run_file(self.subject(state.about["subject"]), found.budget)


def _loss_rows(
    answer: BudgetAnswer, formulas: Sequence[str], columns: Sequence[tuple[Loss, ...]]
) -> list[Row]:
    """Return a name and cells per loss: the loss and its epsilons."""
    rows: list[Row] = []
    for losses in zip(*columns, strict=True):
        cells = [answer.per_plan(decimal(loss.loss) for loss in losses)]
        for name in formulas:
            epsilons = [loss.epsilon.get(name) for loss in losses]
            cells.append(answer.per_plan("\u2013" if e is None else f"{e:.2f}" for e in epsilons))
        rows.append((words(losses[0].name), cells))
    return rows


def _tried_rows(answer: BudgetAnswer, subject: Subject) -> list[Row]:
    """Return the mean absolute errors of every query group that was tried, a cell per geolevel."""
    tried = answer.more.get("tried", ())
    if not tried:
        return []

    def cell(errors: Mapping[tuple[str, str], float], level: str, query: str) -> str:
        return error_text(errors[level, query]) if (level, query) in errors else "\u2013"

    return [
        (query_words(q), [answer.per_plan(cell(errors, lv, q) for errors in tried) for lv in subject.levels])
        for q in subject.queries
    ]


def _area_rows(answer: BudgetAnswer) -> list[Row]:
    """Return kind, number, and mean and largest standard error of areas off the spine."""
    return [
        (
            words(rows[0].name),
            [
                f"{rows[0].areas:,}",
                answer.per_plan(error_text(row.mean_sd) for row in rows),
                answer.per_plan(error_text(row.max_sd) for row in rows),
            ],
        )
        for rows in zip(*answer.more.get("areas", ()), strict=True)
    ]


def _later(subject: Subject, plans: int) -> str:
    """Say which expected errors come on request, and what they take; empty where all are there."""
    later = subject.later
    if not later.queries:
        return ""
    names = listed([query_words(query) for query in later.queries])
    seconds = max(1, round(later.seconds * plans))
    return f"{names}: about {plural('second', seconds)}, and {size_text(later.megabytes)} of memory."


def _share(share: Fraction | None) -> str:
    return share_text(share) if share else "\u2013"


def margin_of(cell: Cell) -> str:
    """Write the margin of a measured answer."""
    if cell.least is None or cell.most is None:
        return "exact" if cell.is_exact else "\u2013"
    if cell.least == cell.most:
        return f"\u00b1{cell.least:,}"
    return f"\u00b1{cell.least:,} to \u00b1{cell.most:,}"


def error_text(error: float | None) -> str:
    """Write an expected standard error."""
    if error is None:
        return "\u2013"
    if error == 0:
        return "exact"
    return "unbounded" if math.isinf(error) else decimal(error, 3)


def error_picture(plans: Sequence[tuple[str, BudgetAnswers]], query: str) -> Markup:
    """Draw the expected standard error of a query group at every geolevel, on a logarithmic scale.

    `plans`, sequence of (name, BudgetAnswers): ``A``, and ``B`` where two are compared.
    """
    levels = list(plans[0][1].budget.geolevels)
    values = [a.cells[level, query].expected for _, a in plans for level in levels]
    finite = [value for value in values if value is not None and 0 < value < math.inf]
    low = math.floor(math.log10(min(finite, default=1.0)))
    high = max(math.ceil(math.log10(max(finite, default=10.0))), low + 1)
    left, right = 132.0, WIDTH - 96.0
    row = 14 + 20 * len(plans)

    def x(value: float) -> float:
        return left + (right - left) * (math.log10(value) - low) / (high - low)

    height = row * len(levels) + 34
    parts = [
        opened(height, f"Expected standard error of {query_words(query)} at each geolevel; a table follows")
    ]
    for power in range(low, high + 1):
        parts.append(line(x(10.0**power), 2, x(10.0**power), height - 28, "grid"))
        parts.append(text(x(10.0**power), height - 10, f"{10.0**power:,g}", "middle", "muted"))
    for number, level in enumerate(levels):
        top = row * number + 4
        parts.append(text(left - 10, top + row / 2 + 1, words(level), "end"))
        for place, (name, answers) in enumerate(plans):
            value = answers.cells[level, query].expected
            y = top + 3 + 20 * place
            prefix = f"{name} " if len(plans) > 1 else ""
            if value is None or value == 0 or math.isinf(value):
                parts.append(text(left + 6, y + 13, prefix + error_text(value), style="muted"))
                continue
            parts.append(rect(left, y, max(x(value) - left, 2), 16, f"bar bar{place}"))
            parts.append(text(max(x(value), left + 2) + 6, y + 13, prefix + decimal(value, 3)))
    return closed(parts)


def curve_picture(plans: Sequence[tuple[str, BudgetAnswers]]) -> Markup:
    """Draw epsilon against delta by both named formulas, for one plan or two; empty without a curve."""
    curves = [
        Curve(
            f"{name} {formula}" if len(plans) > 1 else formula,
            f"plan{number} {formula}",
            {exponent: epsilons[formula] for exponent, epsilons in answers.curve.items()},
            ((-math.log10(float(answers.budget.delta)), answers.whole.epsilon[formula]),),
        )
        for number, (name, answers) in enumerate(plans)
        for formula in FORMULAS
        if answers.curve
    ]
    return curve_svg(curves) if curves else Markup("")
