"""What stands in the fields of the page of household tables, and the configuration that it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

from opendas.errors import ConfigError
from opendas.explore.problems import Problems, decimal_text, read_number
from opendas.explore.quick import least_budget, margin
from opendas.phsafe.config import Config
from opendas.phsafe.margins import PRODUCTION_TAU, PUBLISHED_Z, formula_budget, published_row
from opendas.phsafe.model import LEVELS, PUERTO_RICO, STATE_CODES, Level
from opendas.phsafe.sensitivity import Answers, Sensitivity, noise_for
from opendas.phsafe.tables import TABLES, Table
from opendas.privacy.relations import Mechanism, Neighbours

__all__ = [
    "DEFINITIONS",
    "MODES",
    "RULES",
    "HouseholdDraft",
    "Planned",
    "converted",
    "of_config",
    "production",
    "read_households",
    "value_field",
]

DEFINITIONS: Final = {"zcdp": Mechanism.DISCRETE_GAUSSIAN, "puredp": Mechanism.DISCRETE_LAPLACE}
"""Privacy definitions of a configuration."""

MODES: Final = ("budget", "target")
"""What is typed for a level: its budget, or the margin it must meet."""

RULES: Final = ("exact", "published")
"""How a budget follows from a target: the least whose exact margin meets it, or the paper's formula."""

_MOST_TARGET: Final = 1_000_000
_MOST_TAU: Final = 999_999
_WIDEST: Final = Fraction(10**12)
_DECIMALS: Final = 30


@dataclass(frozen=True, slots=True)
class HouseholdDraft:
    """The fields of one plan of household tables, as typed.

    Parameters
    ----------
    definition, sensitivity, mode, rule, delta, states, reader : str
        `states` are two-digit codes, or ``all``.
    tau : mapping of table name to str
    on : frozenset of str
        Names of the population group levels that are tabulated.
    values : mapping of (table name, level name) to str
        Budgets or target margins; empty for a level that this table leaves out.
    """

    definition: str
    sensitivity: str
    mode: str
    rule: str
    delta: str
    states: str
    reader: str
    tau: Mapping[str, str]
    on: frozenset[str]
    values: Mapping[tuple[str, str], str]

    def fields(self, prefix: str) -> dict[str, str]:
        """Return every field by its name in the form; a level that is off has none."""
        names = ("definition", "sensitivity", "mode", "rule", "delta", "states", "reader")
        found = {f"{prefix}.{name}": str(getattr(self, name)) for name in names}
        found |= {f"{prefix}.tau.{table}": text for table, text in self.tau.items()}
        found |= {f"{prefix}.on.{i}": "1" for i, level in enumerate(LEVELS) if level.name in self.on}
        found |= {value_field(prefix, *key): text for key, text in self.values.items()}
        return found

    def taken(self, prefix: str, form: Mapping[str, str]) -> HouseholdDraft:
        """Return the draft with the fields that a form has; unticked boxes are sent by no browser."""
        names = ("definition", "sensitivity", "mode", "rule", "delta", "states", "reader")
        plain = {name: form.get(f"{prefix}.{name}", str(getattr(self, name))) for name in names}
        on = self.on
        if f"{prefix}.mode" in form:
            on = frozenset(level.name for i, level in enumerate(LEVELS) if form.get(f"{prefix}.on.{i}"))
        return HouseholdDraft(
            **plain,
            tau={name: form.get(f"{prefix}.tau.{name}", text) for name, text in self.tau.items()},
            on=on,
            values={key: form.get(value_field(prefix, *key), text) for key, text in self.values.items()},
        )

    def to_document(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "definition": self.definition,
            "sensitivity": self.sensitivity,
            "mode": self.mode,
            "rule": self.rule,
            "delta": self.delta,
            "states": self.states,
            "reader": self.reader,
            "tau": dict(self.tau),
            "on": [level.name for level in LEVELS if level.name in self.on],
            "values": {
                table.name: [self.values[table.name, level.name] for level in table.levels]
                for table in TABLES
            },
        }


def value_field(prefix: str, table: str, level: str) -> str:
    """Name the field of a table's level."""
    number = next(i for i, known in enumerate(LEVELS) if known.name == level)
    return f"{prefix}.v.{table}.{number}"


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan of household tables, understood.

    Parameters
    ----------
    config : Config
        Budgets are unbounded losses, as PHSafe reads them; levels that are off have none.
    sensitivity : Sensitivity
    delta : Fraction
    targets : mapping of (table name, level name) to int
        Margins that were asked for; empty where budgets were typed.
    """

    config: Config
    sensitivity: Sensitivity
    delta: Fraction
    targets: Mapping[tuple[str, str], int]


def production(mode: str = "budget", rule: str = "published") -> HouseholdDraft:
    """Return the production run of 2020 (Table 10 of the PHSafe paper), as budgets or as targets."""
    values = {}
    for table in TABLES:
        for level in table.levels:
            target, budget = published_row(table, level)
            text = str(target) if mode == "target" else _budget_text(budget)
            values[table.name, level.name] = text
    return HouseholdDraft(
        "zcdp",
        Sensitivity.PAPER.value,
        mode,
        rule,
        "1e-10",
        "all",
        "csv",
        {name: str(tau) for name, tau in PRODUCTION_TAU.items()},
        frozenset(level.name for level in LEVELS),
        values,
    )


def of_config(config: Config) -> HouseholdDraft:
    """Write a configuration into fields.

    Raises
    ------
    ConfigError
        If it has no budgets, or an infinite one.
    """
    if config.mechanism is None:
        raise ConfigError("The configuration holds no budget to explore.")
    if config.is_infinite:
        raise ConfigError("The configuration has an infinite budget, which has no margin and no loss.")
    values = {}
    for table in TABLES:
        given = config.budgets.get(table.name, {})
        for level in table.levels:
            budget = given.get(level)
            values[table.name, level.name] = _budget_text(budget) if isinstance(budget, Fraction) else ""
    used = {level for levels in config.budgets.values() for level in levels}
    every = config.state_filter == tuple(sorted(STATE_CODES - {PUERTO_RICO}))
    return HouseholdDraft(
        next(name for name, mechanism in DEFINITIONS.items() if mechanism is config.mechanism),
        Sensitivity.PAPER.value,
        "budget",
        "exact",
        "1e-10",
        "all" if every else " ".join(config.state_filter),
        config.reader,
        {name: str(config.tau[name]) for name in PRODUCTION_TAU},
        frozenset(level.name for level in LEVELS if level in used),
        values,
    )


def _budget_text(budget: Fraction) -> str:
    return decimal_text(budget, _DECIMALS) or str(budget)


def read_households(draft: HouseholdDraft, prefix: str, problems: Problems) -> Planned | None:
    """Understand the fields of a plan of household tables.

    Parameters
    ----------
    draft : HouseholdDraft
    prefix : str
        Of field names.
    problems : Problems
        What is wrong is added here, at the field where it was typed.

    Returns
    -------
    Planned or None
        None where something is wrong.
    """
    mechanism = _one_of(draft.definition, f"{prefix}.definition", DEFINITIONS, problems)
    sensitivity = _one_of(
        draft.sensitivity, f"{prefix}.sensitivity", {item.value: item for item in Sensitivity}, problems
    )
    _one_of(draft.mode, f"{prefix}.mode", {name: name for name in MODES}, problems)
    rule = _one_of(draft.rule, f"{prefix}.rule", {name: name for name in RULES}, problems)
    reader = _one_of(draft.reader, f"{prefix}.reader", {"csv": "csv", "cef": "cef"}, problems)
    if draft.mode == "target" and rule == "published" and mechanism is Mechanism.DISCRETE_LAPLACE:
        problems.add(f"{prefix}.rule", "The paper's formula is for the discrete Gaussian. Choose exact.")
    delta = read_number(draft.delta, f"{prefix}.delta", problems)
    if delta is not None and not Fraction(1, 10**300) <= delta < 1:
        problems.add(f"{prefix}.delta", "delta lies between 0 and 1 (at least 1e-300), for instance 1e-10.")
    states = _states(draft.states, f"{prefix}.states", problems)
    tau = _taus(draft, prefix, problems)
    if not mechanism or not sensitivity or problems.under(f"{prefix}."):
        return None
    budgets, targets = _values(draft, prefix, mechanism, sensitivity, tau, problems)
    if not budgets and not problems.under(f"{prefix}."):
        problems.add(f"{prefix}.levels", "No table has a level with a budget: there is nothing to tabulate.")
    if problems.under(f"{prefix}.") or delta is None or reader is None:
        return None
    return Planned(Config(states, reader, mechanism, budgets, tau), sensitivity, delta, targets)


def _one_of(text: str, name: str, known: Mapping[str, Any], problems: Problems) -> Any:
    if text not in known:
        problems.add(name, f"{text[:40]!r} is unknown. Choose {' or '.join(known)}.")
    return known.get(text)


def _states(text: str, name: str, problems: Problems) -> tuple[str, ...]:
    if text.strip().lower() == "all":
        return tuple(sorted(STATE_CODES - {PUERTO_RICO}))
    codes = text.replace(",", " ").split()
    unknown = [code[:12] for code in codes if code not in STATE_CODES]
    if not codes or unknown:
        problems.add(
            name, f"No state has the code {', '.join(unknown) or 'given'}. Write two-digit codes, or all."
        )
    if PUERTO_RICO in codes and len(set(codes)) > 1:
        problems.add(name, f"Puerto Rico ({PUERTO_RICO}) is a run of its own: write it alone.")
    return tuple(sorted(set(codes)))


def _taus(draft: HouseholdDraft, prefix: str, problems: Problems) -> dict[str, int]:
    found = {}
    for table, text in draft.tau.items():
        name = f"{prefix}.tau.{table}"
        plain = text.strip()
        if not (plain.isascii() and plain.isdigit() and len(plain) <= 6 and 1 <= int(plain) <= _MOST_TAU):
            problems.add(name, f"{plain[:20]!r} is no threshold. Write a whole number of persons, 1 or more.")
            continue
        found[table] = int(plain)
    return found


def _values(
    draft: HouseholdDraft,
    prefix: str,
    mechanism: Mechanism,
    sensitivity: Sensitivity,
    tau: Mapping[str, int],
    problems: Problems,
) -> tuple[dict[str, dict[Level, Fraction]], dict[tuple[str, str], int]]:
    budgets: dict[str, dict[Level, Fraction]] = {}
    targets: dict[tuple[str, str], int] = {}
    for table in TABLES:
        for level in table.levels:
            text = draft.values[table.name, level.name]
            if level.name not in draft.on or not text.strip():
                continue
            name = value_field(prefix, table.name, level.name)
            answers = Answers.of(table, level, tau.get(table.name))
            if draft.mode == "target":
                target = _target(text, name, problems)
                if target is None:
                    continue
                targets[table.name, level.name] = target
                budget: Fraction | None = _for_target(target, answers, sensitivity, mechanism, draft.rule)
                if budget == 0:
                    problems.add(name, "The formula rounds the budget of so wide a margin to 0.")
                    continue
            else:
                budget = _budget(text, name, answers, sensitivity, mechanism, problems)
            if budget:
                budgets.setdefault(table.name, {})[level] = budget
    return budgets, targets


def _target(text: str, name: str, problems: Problems) -> int | None:
    target = read_number(text, name, problems)
    if target is not None and (target.denominator != 1 or not 1 <= target <= _MOST_TARGET):
        problems.add(name, f"A margin is a whole number of counts from 1 to {_MOST_TARGET:,}.")
        return None
    return None if target is None else int(target)


def _for_target(
    target: int, answers: Answers, sensitivity: Sensitivity, mechanism: Mechanism, rule: str
) -> Fraction:
    if rule == "published":
        width = answers.l2_squared(sensitivity, Neighbours.UNBOUNDED)
        return formula_budget(target, width, PUBLISHED_Z["table"])
    return least_budget(target, answers, sensitivity, mechanism)


def _budget(
    text: str,
    name: str,
    answers: Answers,
    sensitivity: Sensitivity,
    mechanism: Mechanism,
    problems: Problems,
) -> Fraction | None:
    budget = read_number(text, name, problems)
    if budget is None or budget == 0:
        return budget
    if decimal_text(budget, _DECIMALS) is None:
        problems.add(name, "PHSafe reads budgets as decimals. Write one, such as 0.3333.")
        return None
    if budget > 10**9:
        problems.add(name, "A loss above 1e9 protects nobody.")
        return None
    law = noise_for(answers, budget, mechanism, sensitivity)
    if law.variance > float(_WIDEST):
        problems.add(name, "Too small: the noise would be wider than a margin is worked out for.")
        return None
    return budget


def converted(draft: HouseholdDraft, mode: str) -> HouseholdDraft:
    """Return the draft with budgets turned into the margins they reach, or targets into their budgets.

    A draft with something wrong stays as it is, so that nothing typed is lost.
    """
    everything = replace(draft, on=frozenset(level.name for level in LEVELS))
    planned = read_households(everything, "x", Problems()) or read_households(draft, "x", Problems())
    if mode not in MODES or mode == draft.mode or planned is None:
        return draft
    values = dict(draft.values)
    for table, level, budget in planned.config.measured:
        assert isinstance(budget, Fraction)
        key = (table.name, level.name)
        values[key] = _budget_text(budget)
        if mode == "target":
            values[key] = str(_reached(table, level, budget, planned))
    return replace(draft, mode=mode, values=values)


def _reached(table: Table, level: Level, budget: Fraction, planned: Planned) -> int:
    answers = Answers.of(table, level, planned.config.tau.get(table.name))
    assert planned.config.mechanism is not None
    law = noise_for(answers, budget, planned.config.mechanism, planned.sensitivity)
    return max(1, margin(law))
