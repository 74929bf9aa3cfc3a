"""The page of household tables: its plans, and the words and tables of what they buy and cost."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from markupsafe import Markup

from opendas.errors import ConfigError
from opendas.explore.fields import Problems, Typed
from opendas.explore.households import (
    BOUNDS,
    MODES,
    RULES,
    TICKS,
    HouseholdAnswers,
    HouseholdRow,
    answer_households,
    config_json,
    convert_mode,
    production,
    read_households,
)
from opendas.explore.page import PREFIXES, Answer, Page, State
from opendas.phsafe.inputs.levels import LEVELS, Geography, Iteration, find_level
from opendas.phsafe.tables import TABLES
from opendas.phsafe.tables.sensitivity import Sensitivity
from opendas.privacy.exact import decimal_text
from opendas.privacy.relations import Neighbours
from opendas.report.views import decimal, plural

_STARTS: Final = {
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

_TABLES: Final = {
    "PH1_num": "persons in households by age",
    "PH1_denom": "households",
    "PH2": "persons by type of household and couple",
    "PH3": "persons below 18 by relationship",
    "PH4": "persons in families by age",
    "PH5_num": "persons in families by age, from PH4",
    "PH5_denom": "families",
    "PH6": "own children by household type and age",
    "PH7": "persons in households by tenure",
    "PH8_num": "persons in households by tenure, from PH7",
    "PH8_denom": "households by tenure",
}
_FORM: Final = {
    "title": "Household tables (PHSafe)",
    "tables": TABLES,
    "levels": LEVELS,
    "number_of": {level.name: number for number, level in enumerate(LEVELS)},
    "definitions": (("zcdp", "zCDP, discrete Gaussian"), ("puredp", "pure, discrete Laplace")),
    "sensitivities": (
        (Sensitivity.PAPER.value, "paper: as published"),
        (Sensitivity.TIGHT.value, "tight: as proved here"),
    ),
    "rules": tuple(
        zip(
            RULES, ("least budget whose exact margin meets it", "the paper's formula, z = 1.645"), strict=True
        )
    ),
    "readers": (("csv", "csv"), ("cef", "cef")),
}


def table_words(name: str) -> str:
    """Say what a table counts; empty for a table of the agency's own."""
    return _TABLES.get(name, "")


def level_words(name: str) -> str:
    """Write a population group level in words, for instance ``state_A-G`` as "state, groups A-G"."""
    level = find_level(name)
    if level is None:
        return name
    geographies = {Geography.USA: "nation", Geography.STATE: "state"}
    groups = f"groups {level.iteration.value.replace(',', ', ')}"
    who = "everybody" if level.iteration is Iteration.ALL else groups
    return f"{geographies.get(level.geography, level.geography.value)}, {who}"


def bound_words(bound: tuple[Sensitivity, Neighbours]) -> str:
    """Write a bound and a relation in words."""
    return f"{bound[0].value}, {bound[1].value}"


def household_state(*plans: Typed) -> State:
    """Return the state of one plan of household tables, or of two."""
    return State("phsafe", {}, plans)


class HouseholdPage(Page[HouseholdAnswers]):
    """The page of household tables."""

    key = "phsafe"
    file = ("config.json", "application/json")
    ticks = TICKS

    @property
    def starts(self) -> list[tuple[str, str]]:
        """What a plan can start from: name and title."""
        return [(name, title) for name, (title, _, _) in _STARTS.items()]

    def started(self, name: str = "budgets") -> State:
        """Return the state that a start begins with."""
        if name not in _STARTS:
            raise ConfigError(f"There is nothing to start from under the name {name[:40]!r}.")
        _, mode, rule = _STARTS[name]
        return household_state(production(mode, rule))

    def start_of_form(self, form: Typed) -> State:
        """Return the state whose fields a form fills in: that of production."""
        return household_state(production())

    def from_document(self, document: Mapping[str, Any]) -> State:
        """Return the state of a document of this page."""
        state = State.of_document(document)
        if state.page != self.key or state.about or any(set(p) != set(production()) for p in state.plans):
            raise ConfigError("The state of household tables is damaged. Keep it again.")
        return state

    def edited(self, plan: Typed, kind: str, where: str) -> Typed:
        """Turn budgets into targets, or targets into budgets."""
        return convert_mode(plan, kind) if kind in MODES and not where else plan

    def evaluate(
        self, state: State, plan: Typed, prefix: str, problems: Problems
    ) -> tuple[HouseholdAnswers | None, Mapping[str, Fraction | None]]:
        """Understand a plan, and return what it buys and costs."""
        found = read_households(plan, prefix, problems)
        return None if found is None else answer_households(found), {}

    def plan_summary(self, found: HouseholdAnswers) -> str:
        """Say the losses of all tables, and how many targets are missed."""
        loss = "rho" if found.is_gaussian else "epsilon"
        kind = found.plan.sensitivity
        unbounded, bounded = (decimal(found.spent[bound]) for bound in BOUNDS if bound[0] is kind)
        missed = sum(row.misses for row in found.rows)
        beside = f" {plural('exact margin', missed)} above the target." if missed else ""
        return f"{loss} {unbounded} unbounded, {bounded} bounded ({kind.value} bound).{beside}"

    def form_context(self, answer: Answer[HouseholdAnswers]) -> dict[str, Any]:
        """Return what the template of the form shows."""
        errors = answer.problems.by_field
        starts = {
            (prefix, table.name): (f"{prefix}.tau.{table.name}", f"{prefix}.v.{table.name}.")
            for prefix in PREFIXES
            for table in TABLES
        }
        wrong = {key for key, begins in starts.items() if any(name.startswith(begins) for name in errors)}
        return {**_FORM, "errors_at": wrong}

    def context(self, answer: Answer[HouseholdAnswers]) -> dict[str, Any]:
        """Return what the template of the answers shows."""
        plans = [found for _, found in answer.plans]
        by_key = [{(row.noise.table, row.noise.level): row for row in found.rows} for found in plans]
        lines = []
        for table in TABLES:
            for level in table.levels:
                rows = [rows.get((table.name, level.name)) for rows in by_key]
                if any(row is not None for row in rows):
                    columns = zip(*(_columns(row) for row in rows), strict=True)
                    lines.append((table.name, level.name, [answer.per_plan(texts) for texts in columns]))
        sums = []
        for name in (*(table.name for table in TABLES), "all"):
            losses = [found.sums.get(name) for found in plans]
            if any(loss is not None for loss in losses):
                sums.append(
                    (name, [answer.per_plan(_loss(loss, bound) for loss in losses) for bound in BOUNDS])
                )
        return {
            "bounds": BOUNDS,
            "lines": lines,
            "sums": sums,
            "states_of": _states,
            "delta_of": lambda found: f"{float(found.plan.delta):.3g}",
        }

    def saved(self, state: State, found: HouseholdAnswers) -> str:
        """Write a plan as a configuration of PHSafe."""
        return config_json(found.plan.config)


def _states(found: HouseholdAnswers) -> str:
    codes = found.plan.config.state_filter
    return ", ".join(codes) if len(codes) < 51 else "all, and the District of Columbia"


def _columns(row: HouseholdRow | None) -> list[str]:
    """Write a row: tau, budget, exact margin, margin by formula, of the widest total, losses."""
    if row is None:
        return ["\u2013"] * (5 + len(BOUNDS))
    beside = ""
    if row.target is not None:
        beside = f" {'above' if row.misses else 'meets'} {row.target:,}"
    budget = row.noise.budget
    assert isinstance(budget, Fraction)
    return [
        "\u2013" if row.noise.tau is None else f"{row.noise.tau:,}",
        decimal_text(budget, 8) or rounded_up(budget, 8),
        f"\u00b1{row.margin:,}{beside}",
        "\u2013" if row.formula is None else f"\u00b1{row.formula:,}",
        f"\u00b1{row.widest:,}" + (f" of {row.summed}" if row.summed > 1 else ""),
        *(_loss(row.noise.losses, bound) for bound in BOUNDS),
    ]


def _loss(losses: Mapping[Any, Any] | None, bound: object) -> Markup | str:
    return "\u2013" if losses is None else rounded_up(losses[bound])


def rounded_up(loss: Fraction, digits: int = 6) -> str:
    """Write a loss as a decimal, rounded up: what is printed is still an upper bound."""
    scaled = loss * 10**digits
    whole, rest = divmod(-(-scaled.numerator // scaled.denominator), 10**digits)
    return f"{whole:,}.{rest:0{digits}d}"
