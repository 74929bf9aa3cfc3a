"""The page of household tables: from a form to answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from markupsafe import Markup

from opendas.custody.ledger_entries import Loss
from opendas.errors import ConfigError
from opendas.explore.budget_page import two_lines
from opendas.explore.household_answers import BOUNDS, HouseholdAnswers, HouseholdRow, answer_households
from opendas.explore.household_drafts import (
    DEFINITIONS,
    MODES,
    RULES,
    HouseholdDraft,
    converted,
    of_config,
    production,
    read_households,
)
from opendas.explore.problems import Problems, decimal_text
from opendas.explore.states import FORMAT, read_text, read_texts
from opendas.phsafe.config import Mode, parse_config
from opendas.phsafe.model import LEVELS
from opendas.phsafe.sensitivity import Sensitivity
from opendas.phsafe.tables import TABLES
from opendas.report.views import decimal

__all__ = [
    "STARTS",
    "HouseholdAnswer",
    "HouseholdState",
    "acted",
    "answered",
    "config_document",
    "config_json",
    "from_form",
    "started",
]

PREFIXES = ("a", "b")

STARTS: Mapping[str, tuple[str, str, str]] = {
    "budgets": ("Production 2020 (Table 10): its budgets", "budget", "published"),
    "targets": (
        "Production 2020 (Table 10): its margin targets, by the paper's formula",
        "target",
        "published",
    ),
    "least": (
        "Production 2020 (Table 10): its margin targets, by the least exact budgets",
        "target",
        "exact",
    ),
}
"""What a plan can start from: name -> title, mode, rule."""

_BROKEN = "The state of household tables is damaged. Keep it again."


@dataclass(frozen=True, slots=True)
class HouseholdState:
    """What the page of household tables shows: plan A, and plan B where two are compared."""

    plans: tuple[HouseholdDraft, ...]

    def to_document(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "opendas-explore": FORMAT,
            "page": "phsafe",
            "plans": [plan.to_document() for plan in self.plans],
        }

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> HouseholdState:
        """Read plain data.

        Raises
        ------
        ConfigError
            If it is no state of this page.
        """
        given = document.get("plans")
        if document.get("page") != "phsafe" or not isinstance(given, list) or not 1 <= len(given) <= 2:
            raise ConfigError(_BROKEN)
        return cls(tuple(_draft(plan) for plan in given))


def _draft(plan: object) -> HouseholdDraft:
    if not isinstance(plan, dict):
        raise ConfigError(_BROKEN)
    tau, values = plan.get("tau"), plan.get("values")
    start = production()
    if not isinstance(tau, dict) or not isinstance(values, dict) or set(tau) != set(start.tau):
        raise ConfigError(_BROKEN)
    names = ("definition", "sensitivity", "mode", "rule", "delta", "states", "reader")
    read = {
        (table.name, level.name): text
        for table in TABLES
        for level, text in zip(
            table.levels, read_texts(values.get(table.name), len(table.levels)), strict=True
        )
    }
    return HouseholdDraft(
        **{name: read_text(plan.get(name)) for name in names},
        tau={name: read_text(tau[name]) for name in start.tau},
        on=frozenset(read_texts(plan.get("on"))) & {level.name for level in LEVELS},
        values=read,
    )


@dataclass(frozen=True, slots=True)
class HouseholdAnswer:
    """What is said about a state.

    Parameters
    ----------
    state : HouseholdState
    plans : tuple of (name, HouseholdAnswers)
        Those that could be used: ``A``, ``B``.
    problems : Problems
    """

    state: HouseholdState
    plans: tuple[tuple[str, HouseholdAnswers], ...]
    problems: Problems

    @property
    def is_complete(self) -> bool:
        """Whether every entry could be used."""
        return not self.problems

    @property
    def status(self) -> str:
        """One sentence, for everyone and for screen readers."""
        if self.problems:
            return self.problems.sentence
        return " ".join(_sentence(name, found, len(self.plans) > 1) for name, found in self.plans)

    def context(self) -> dict[str, Any]:
        """Return what the template of the answers shows."""
        plans = self.plans if self.is_complete else ()
        return {
            "plans": plans,
            "problems": list(self.problems.by_field.items()),
            "bounds": BOUNDS,
            "lines": _lines(plans),
            "sums": _sum_lines(plans),
            "states_of": _states,
            "delta_of": lambda found: f"{float(found.planned.delta):.3g}",
        }


def _sentence(name: str, found: HouseholdAnswers, two: bool) -> str:
    start = f"Plan {name}: " if two else ""
    loss = "rho" if found.is_gaussian else "epsilon"
    kind = found.planned.sensitivity
    unbounded, bounded = (decimal(found.spent[bound]) for bound in BOUNDS if bound[0] is kind)
    missed = sum(row.misses for row in found.rows)
    beside = f" {missed} exact margins are above their target." if missed else ""
    return f"{start}{loss} {unbounded} unbounded, {bounded} bounded ({kind.value} bound).{beside}"


def _states(found: HouseholdAnswers) -> str:
    codes = found.planned.config.state_filter
    return ", ".join(codes) if len(codes) < 51 else "all, and the District of Columbia"


Plans = tuple[tuple[str, HouseholdAnswers], ...]


def _lines(plans: Plans) -> list[tuple[str, str, list[Markup]]]:
    """Return table, level and cells; a plan that leaves the level out has dashes."""
    by_key = [{(row.noise.table, row.noise.level): row for row in found.rows} for _, found in plans]
    found = []
    for table in TABLES:
        for level in table.levels:
            rows = [rows.get((table.name, level.name)) for rows in by_key]
            if any(row is not None for row in rows):
                columns = zip(*(_columns(row) for row in rows), strict=True)
                found.append((table.name, level.name, [_cell(plans, texts) for texts in columns]))
    return found


def _columns(row: HouseholdRow | None) -> list[str]:
    """Write a row: tau, budget, exact margin, margin by formula, of the widest total, losses."""
    if row is None:
        return ["\u2013"] * (5 + len(BOUNDS))
    beside = ""
    if row.target is not None:
        beside = f" {'above' if row.misses else 'meets'} {row.target:,}"
    assert isinstance(row.noise.budget, Fraction)
    return [
        "\u2013" if row.noise.tau is None else f"{row.noise.tau:,}",
        decimal_text(row.noise.budget, 8) or loss_text(row.noise.budget, 8),
        f"\u00b1{row.margin:,}{beside}",
        "\u2013" if row.formula is None else f"\u00b1{row.formula:,}",
        f"\u00b1{row.widest:,}" + (f" of {row.summed}" if row.summed > 1 else ""),
        *(loss_text(row.noise.losses[bound]) for bound in BOUNDS),
    ]


def _cell(plans: Plans, texts: Sequence[str]) -> Markup:
    two = len(plans) > 1
    return Markup("").join(two_lines(name, two, text) for (name, _), text in zip(plans, texts, strict=True))


def _sum_lines(plans: Plans) -> list[tuple[str, list[Markup]]]:
    by_name = [{one.name: one.losses for one in found.sums} for _, found in plans]
    names = [*(table.name for table in TABLES), "all"]
    return [
        (
            name,
            [
                _cell(plans, [loss_text(sums[name][bound]) if name in sums else "\u2013" for sums in by_name])
                for bound in BOUNDS
            ],
        )
        for name in names
        if any(name in sums for sums in by_name)
    ]


def loss_text(loss: Loss, digits: int = 6) -> str:
    """Write a loss as a decimal, rounded up: what is printed is still an upper bound."""
    assert isinstance(loss, Fraction)
    scaled = loss * 10**digits
    whole, rest = divmod(-(-scaled.numerator // scaled.denominator), 10**digits)
    return f"{whole:,}.{rest:0{digits}d}"


def started(name: str) -> HouseholdState:
    """Return the state that a start begins with.

    Raises
    ------
    ConfigError
        If there is no such start.
    """
    if name not in STARTS:
        raise ConfigError(f"There is nothing to start from under the name {name[:40]!r}.")
    _, mode, rule = STARTS[name]
    return HouseholdState((production(mode, rule),))


def from_form(form: Mapping[str, str]) -> HouseholdState:
    """Return the state that a form holds; fields it lacks are those of production."""
    count = 2 if form.get("plans") == "2" else 1
    return HouseholdState(tuple(production().taken(prefix, form) for prefix in PREFIXES[:count]))


def acted(state: HouseholdState, action: str) -> HouseholdState:
    """Return the state after a button was pressed; an unknown action changes nothing."""
    plans = list(state.plans)
    kind, _, where = action.partition(":")
    if kind == "compare" and len(plans) == 1:
        plans.append(plans[0])
    elif kind == "single":
        plans = plans[:1]
    elif kind == "swap":
        plans.reverse()
    elif kind in MODES and where in PREFIXES[: len(plans)]:
        number = PREFIXES.index(where)
        plans[number] = converted(plans[number], kind)
    return replace(state, plans=tuple(plans))


def answered(state: HouseholdState) -> HouseholdAnswer:
    """Answer a state."""
    problems = Problems()
    plans = []
    for prefix, draft in zip(PREFIXES, state.plans, strict=False):
        planned = read_households(draft, prefix, problems)
        if planned is not None:
            plans.append((prefix.upper(), answer_households(planned)))
    return HouseholdAnswer(state, tuple(plans), problems)


def config_json(found: HouseholdAnswers) -> str:
    """Write a plan as the configuration that ``opendas phsafe`` reads, numbers exact."""
    config = found.planned.config
    budgets = []
    for table in TABLES:
        given = config.budgets.get(table.name, {})
        levels = ", ".join(f"{json.dumps(lv.name)}: {_number(given.get(lv, 0))}" for lv in table.levels)
        budgets.append(f"    {json.dumps(table.name)}: {{{levels}}}")
    definition = next(name for name, mechanism in DEFINITIONS.items() if mechanism is config.mechanism)
    lines = [
        "{",
        f'  "state_filter": {json.dumps(list(config.state_filter))},',
        f'  "reader": {json.dumps(config.reader)},',
        f'  "privacy_defn": {json.dumps(definition)},',
        '  "privacy_budget": {',
        ",\n".join(budgets),
        "  },",
        f'  "tau": {json.dumps(dict(config.tau))}',
        "}",
    ]
    return "\n".join(lines) + "\n"


def _number(budget: object) -> str:
    assert isinstance(budget, Fraction | int)
    text = decimal_text(Fraction(budget), 40)
    assert text is not None  # budgets are read as decimals only
    return text


def config_document(text: str) -> dict[str, Any]:
    """Return the state of a PHSafe configuration.

    Raises
    ------
    ConfigError
        With everything that is wrong with it.
    """
    return HouseholdState((of_config(parse_config(text, Mode.PRIVATE)),)).to_document()


SENSITIVITIES = (
    (Sensitivity.PAPER.value, "paper: as published"),
    (Sensitivity.TIGHT.value, "tight: as proved here"),
)
DEFINITION_WORDS = (("zcdp", "zCDP, discrete Gaussian"), ("puredp", "pure, discrete Laplace"))
RULE_WORDS = tuple(
    zip(RULES, ("least budget whose exact margin meets it", "the paper's formula, z = 1.645"), strict=True)
)
