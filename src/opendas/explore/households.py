"""A plan of household tables as typed, the configuration that it means, and what it buys and costs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

from opendas.errors import ConfigError
from opendas.explore.budget import epsilons, margin
from opendas.explore.fields import Problems, Typed, read_choice, read_delta, read_number
from opendas.phsafe.config import Config
from opendas.phsafe.inputs.levels import LEVELS, PUERTO_RICO, STATE_CODES, Level
from opendas.phsafe.margins import (
    PRODUCTION_TAU,
    PUBLISHED_Z,
    formula_budget,
    formula_margin,
    least_budget,
    published_row,
)
from opendas.phsafe.tables import DERIVED, TABLES, Derived, Table
from opendas.phsafe.tables.sensitivity import Answers, LevelNoise, Sensitivity, noise_for, plan_noise
from opendas.privacy.exact import decimal_text
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.sampling.laws import DiscreteGaussian

DEFINITIONS: Final = {"zcdp": Mechanism.DISCRETE_GAUSSIAN, "puredp": Mechanism.DISCRETE_LAPLACE}
"""Privacy definitions of a configuration."""

MODES: Final = ("budget", "target")
"""What is typed for a level: its budget, or the margin it must meet."""

RULES: Final = ("exact", "published")
"""How a budget follows from a target: the least whose exact margin meets it, or the paper's formula."""

Bound = tuple[Sensitivity, Neighbours]
BOUNDS: Final[tuple[Bound, ...]] = tuple(
    (kind, relation) for kind in Sensitivity for relation in (Neighbours.UNBOUNDED, Neighbours.BOUNDED)
)
"""Every bound and relation, in the order of Table 10 of the PHSafe paper."""

TICKS: Final = tuple(f"on.{i}" for i in range(len(LEVELS)))
"""Fields that say whether a population group level is tabulated."""

_MOST_TARGET: Final = 1_000_000
_MOST_TAU: Final = 999_999
_WIDEST: Final = 1e12
_DECIMALS: Final = 30
_NUMBERS: Final = {level.name: number for number, level in enumerate(LEVELS)}
_STATES: Final = tuple(sorted(STATE_CODES - {PUERTO_RICO}))


def value_field(table: str, level: str) -> str:
    """Name the field of a table's level."""
    return f"v.{table}.{_NUMBERS[level]}"


@dataclass(frozen=True, slots=True)
class HouseholdPlan:
    """A plan of household tables, understood."""

    config: Config  # budgets are unbounded losses, as PHSafe reads them; levels that are off have none
    sensitivity: Sensitivity
    delta: Fraction
    # By table and level name: margins that were asked for; empty where budgets were typed.
    targets: Mapping[tuple[str, str], int]


def _fields(definition: str, mode: str, rule: str, states: str, reader: str) -> dict[str, str]:
    names = ("definition", "sensitivity", "mode", "rule", "delta", "states", "reader")
    texts = (definition, Sensitivity.PAPER.value, mode, rule, "1e-10", states, reader)
    return dict(zip(names, texts, strict=True))


def production(mode: str = "budget", rule: str = "published") -> Typed:
    """Return the production run of 2020 (Table 10 of the PHSafe paper), as budgets or as targets."""
    found = _fields("zcdp", mode, rule, "all", "csv")
    found |= {f"tau.{name}": str(tau) for name, tau in PRODUCTION_TAU.items()} | dict.fromkeys(TICKS, "1")
    for table in TABLES:
        for level in table.levels:
            target, budget = published_row(table, level)
            text = str(target) if mode == "target" else _budget_text(budget)
            found[value_field(table.name, level.name)] = text
    return found


def config_fields(config: Config) -> Typed:
    """Write a configuration into fields."""
    if config.mechanism is None:
        raise ConfigError("The configuration holds no budget to explore.")
    if config.is_infinite:
        raise ConfigError("The configuration has an infinite budget, which has no margin and no loss.")
    definition = next(name for name, mechanism in DEFINITIONS.items() if mechanism is config.mechanism)
    states = "all" if config.state_filter == _STATES else " ".join(config.state_filter)
    found = _fields(definition, "budget", "exact", states, config.reader)
    found |= {f"tau.{name}": str(config.tau[name]) for name in PRODUCTION_TAU}
    used = {level for levels in config.budgets.values() for level in levels}
    found |= {name: "1" if level in used else "" for name, level in zip(TICKS, LEVELS, strict=True)}
    for table in TABLES:
        for level in table.levels:
            budget = config.budgets.get(table.name, {}).get(level)
            text = _budget_text(budget) if isinstance(budget, Fraction) else ""
            found[value_field(table.name, level.name)] = text
    return found


def _budget_text(budget: Fraction) -> str:
    return decimal_text(budget, _DECIMALS) or str(budget)


def read_households(plan: Typed, prefix: str, problems: Problems) -> HouseholdPlan | None:
    """Understand the fields of a plan of household tables.

    - `plan`, field name -> str.
    - `prefix`: of field names in messages.
    - `problems`: what is wrong is added here, at the field where it was typed.
    - Returns: None where something is wrong.
    """

    def choice(name: str, known: Mapping[str, Any]) -> Any:
        return read_choice(plan[name], f"{prefix}.{name}", known, problems)

    mechanism = choice("definition", DEFINITIONS)
    sensitivity = choice("sensitivity", {kind.value: kind for kind in Sensitivity})
    mode = choice("mode", {name: name for name in MODES})
    rule = choice("rule", {name: name for name in RULES})
    reader = choice("reader", {"csv": "csv", "cef": "cef"})
    if mode == "target" and rule == "published" and mechanism is Mechanism.DISCRETE_LAPLACE:
        problems.add(f"{prefix}.rule", "The paper's formula is for the discrete Gaussian. Choose exact.")
    delta = read_delta(plan["delta"], f"{prefix}.delta", problems)
    states = _states(plan["states"], f"{prefix}.states", problems)
    tau = _taus(plan, prefix, problems)
    if not mechanism or not sensitivity or problems.under(f"{prefix}."):
        return None
    budgets: dict[str, dict[Level, Fraction]] = {}
    targets: dict[tuple[str, str], int] = {}
    for table in TABLES:
        for level in table.levels:
            name = value_field(table.name, level.name)
            if not plan[f"on.{_NUMBERS[level.name]}"] or not plan[name].strip():
                continue
            answers = Answers.of(table, level, tau.get(table.name))
            key, at = (table.name, level.name), f"{prefix}.{name}"
            if mode == "target":
                target = _target(plan[name], at, problems)
                budget = None
                if target is not None:
                    targets[key] = target
                    budget = _for_target(target, answers, sensitivity, mechanism, rule)
                if budget == 0:
                    problems.add(at, "The formula rounds the budget of so wide a margin to 0.")
            else:
                budget = _budget(plan[name], at, answers, sensitivity, mechanism, problems)
            if budget:
                budgets.setdefault(table.name, {})[level] = budget
    if not budgets and not problems.under(f"{prefix}."):
        problems.add(f"{prefix}.levels", "No table has a level with a budget: there is nothing to tabulate.")
    if problems.under(f"{prefix}.") or delta is None:
        return None
    return HouseholdPlan(Config(states, reader, mechanism, budgets, tau), sensitivity, delta, targets)


def _states(text: str, name: str, problems: Problems) -> tuple[str, ...]:
    if text.strip().lower() == "all":
        return _STATES
    codes = text.replace(",", " ").split()
    unknown = [code[:12] for code in codes if code not in STATE_CODES]
    if not codes or unknown:
        wrong = f"No state has the code {', '.join(unknown)}." if unknown else "No state is given."
        problems.add(name, f"{wrong} Write two-digit codes, or all.")
    if PUERTO_RICO in codes and len(set(codes)) > 1:
        problems.add(name, f"Puerto Rico ({PUERTO_RICO}) is a run of its own: write it alone.")
    return tuple(sorted(set(codes)))


def _taus(plan: Typed, prefix: str, problems: Problems) -> dict[str, int]:
    found = {}
    for table in PRODUCTION_TAU:
        text = plan[f"tau.{table}"].strip()
        if text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= _MOST_TAU:
            found[table] = int(text)
        else:
            message = f"{text[:20]!r} is no threshold. Write a whole number of persons, 1 or more."
            problems.add(f"{prefix}.tau.{table}", message)
    return found


def _target(text: str, name: str, problems: Problems) -> int | None:
    target = read_number(text, name, problems)
    if target is not None and (target.denominator != 1 or not 1 <= target <= _MOST_TARGET):
        problems.add(name, f"A margin is a whole number of counts from 1 to {_MOST_TARGET:,}.")
        return None
    return None if target is None else int(target)


@lru_cache(maxsize=4096)
def _for_target(
    target: int, answers: Answers, sensitivity: Sensitivity, mechanism: Mechanism, rule: str
) -> Fraction:
    if rule == "published":
        width = answers.l2_squared(sensitivity, Neighbours.UNBOUNDED)
        return formula_budget(target, width, PUBLISHED_Z["table"])
    return least_budget(target, answers, sensitivity, mechanism=mechanism)


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
    if noise_for(answers, budget, mechanism, sensitivity).variance > _WIDEST:
        problems.add(name, "Too small: the noise would be wider than a margin is worked out for.")
        return None
    return budget


def convert_mode(plan: Typed, mode: str) -> Typed:
    """Return the plan with budgets turned into the margins they reach, or targets into their budgets.

    A plan with something wrong stays as it is, so that nothing typed is lost.
    """
    everything = {**plan, **dict.fromkeys(TICKS, "1")}
    found = read_households(everything, "x", Problems()) or read_households(plan, "x", Problems())
    if mode not in MODES or mode == plan["mode"] or found is None:
        return plan
    config, values = found.config, dict(plan)
    assert config.mechanism is not None
    for table, level, budget in config.measured:
        assert isinstance(budget, Fraction)
        text = _budget_text(budget)
        if mode == "target":
            answers = Answers.of(table, level, config.tau.get(table.name))
            text = str(max(1, margin(noise_for(answers, budget, config.mechanism, found.sensitivity))))
        values[value_field(table.name, level.name)] = text
    return {**values, "mode": mode}


def config_json(config: Config) -> str:
    """Write a plan as the configuration that ``opendas phsafe`` reads, numbers exact."""
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


@dataclass(frozen=True, slots=True)
class HouseholdRow:
    """One table at one population group level."""

    noise: LevelNoise
    margin: int  # exact 90 % margin of a measured cell, in counts
    formula: int | None  # ``floor(1.64 sigma)`` of the paper; None for the discrete Laplace
    widest: int  # exact margin of the cell of the published table that sums most measured cells
    summed: int  # how many that are
    target: int | None

    @property
    def misses(self) -> bool:
        """Whether the exact margin is above the target."""
        return self.target is not None and self.margin > self.target


@dataclass(frozen=True, slots=True)
class HouseholdAnswers:
    """Everything that is shown of one plan."""

    plan: HouseholdPlan
    rows: tuple[HouseholdRow, ...]  # in the order of the published program
    # (name, source, summed) of each table that is computed from a measured one at no loss.
    derived: tuple[tuple[str, str, int], ...]
    sums: Mapping[str, Mapping[Bound, Fraction]]  # by table and bound: losses per table, and of ``all`` last
    # By formula and bound: of all; empty for the discrete Laplace, whose losses are epsilons.
    epsilon: Mapping[str, Mapping[Bound, float]]

    @property
    def is_gaussian(self) -> bool:
        """Whether losses are rho."""
        mechanism = self.plan.config.mechanism
        return mechanism is not None and mechanism.is_zcdp

    @property
    def spent(self) -> Mapping[Bound, Fraction]:
        """Losses of the whole plan."""
        return self.sums["all"]


def answer_households(plan: HouseholdPlan) -> HouseholdAnswers:
    """Work out what a plan of household tables buys and costs."""
    config = plan.config
    assert config.mechanism is not None
    noise = plan_noise(config.measured, config.tau, config.mechanism, plan.sensitivity)
    rows = []
    sums: dict[str, dict[Bound, Fraction]] = {}
    for (table, _, _), found in zip(config.measured, noise, strict=True):
        rows.append(_row(table, found, plan))
        for name in (found.table, "all"):
            losses = sums.setdefault(name, dict.fromkeys(BOUNDS, Fraction(0)))
            for bound in BOUNDS:
                loss = found.losses[bound]
                assert isinstance(loss, Fraction)
                losses[bound] += loss
    spent = sums["all"] = sums.pop("all")
    epsilon: dict[str, dict[Bound, float]] = {}
    if config.mechanism.is_zcdp:
        for bound in BOUNDS:
            for formula, value in epsilons(spent[bound], plan.delta).items():
                epsilon.setdefault(formula, {})[bound] = value
    derived = tuple((one.name, one.source, _most_summed(one)) for one in DERIVED if one.source in sums)
    return HouseholdAnswers(plan, tuple(rows), derived, sums, epsilon)


def _row(table: Table, noise: LevelNoise, plan: HouseholdPlan) -> HouseholdRow:
    law, summed = noise.law, _most_summed(table)
    assert law is not None
    formula = formula_margin(law) if isinstance(law, DiscreteGaussian) else None
    target = plan.targets.get((noise.table, noise.level))
    return HouseholdRow(noise, margin(law), formula, margin(law, summed), summed, target)


def _most_summed(table: Table | Derived) -> int:
    parts = table.cells.values() if isinstance(table, Derived) else table.shell.values()
    return max((len(part) for part in parts), default=1)
