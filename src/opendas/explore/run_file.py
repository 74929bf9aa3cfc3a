"""Plans as run files: what is saved, and what can be read again."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from opendas.budget.allocation import Budget
from opendas.budget.resolve import resolve_budget
from opendas.errors import ConfigError
from opendas.explore.subjects import Subject
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.runs.allocate import budget_section, with_budget
from opendas.runs.config.load import parse_toml, read_text
from opendas.runs.config.model import BUILT_IN_PRODUCTS, RunFile
from opendas.runs.config.released import toml_document, toml_value
from opendas.runs.config.resolve import budget_spec


def run_file(subject: Subject, budget: Budget) -> str:
    """Write a plan as a run file, with exact fractions.

    `subject`: with a run file, everything but the budget is that file's; without, what only the reader can
    know is marked CHANGE ME.
    """
    if subject.run_path is not None:
        return _replaced(read_text(subject.run_path, "run file"), subject.run_path.name, budget)
    nation = subject.levels[0] == "us"
    return f"""\
# OpenDAS run file, saved by opendas explore. CHANGE ME marks what only you can know.

[run]
product    = {toml_value(subject.product.name)}
mechanism  = {toml_value(budget.mechanism.value)}
neighbours = {toml_value(budget.neighbours.value)}

[input]
reader = "pl94-2020"
path   = "CHANGE-ME.pl.zip"          # CHANGE ME: the official files, one a state, or another reader

[geography]
root  = {toml_value(subject.levels[0])}
spine = {toml_value("aian" if nation else "standard")}

{budget_section(budget)}"""


def _replaced(text: str, name: str, budget: Budget) -> str:
    """Put a budget in place of that of a run file; everything else, comments included, stays."""
    old = tomllib.loads(text)
    run = {**old["run"], "mechanism": budget.mechanism.value, "neighbours": budget.neighbours.value}
    defaults = {"mechanism": Mechanism.DISCRETE_GAUSSIAN.value, "neighbours": Neighbours.BOUNDED.value}
    section = budget_section(budget, old.get("budget", {}).get("source"))
    wanted = {**old, "run": run, "budget": tomllib.loads(section)["budget"]}
    head = f"# From {name}, with a budget chosen in opendas explore. Keep it beside that file.\n"
    found = head + with_budget(_with_choices(text, run), section)
    try:
        parsed = tomllib.loads(found)
    except tomllib.TOMLDecodeError:  # the budget stood where no section is, as an inline table
        return head + toml_document(wanted)
    parsed["run"] = {**defaults, **parsed["run"]}
    return found if parsed == wanted else head + toml_document(wanted)


def _with_choices(text: str, run: Mapping[str, Any]) -> str:
    """Put mechanism and neighbours into the lines of ``[run]``, and leave their comments."""
    start = re.search(r"(?m)^\s*\[run\].*\n", text)
    if start is None:
        return text
    end = re.compile(r"(?m)^\s*\[").search(text, start.end())
    stop = len(text) if end is None else end.start()
    section = text[start.end() : stop]
    for name in ("mechanism", "neighbours"):
        line = re.compile(rf"(?m)^(\s*{name}\s*=\s*)(\"[^\"]*\"|'[^']*')")
        value = toml_value(run[name])
        if line.search(section):
            section = line.sub(rf"\g<1>{value}", section, count=1)
        else:
            section = f"{name} = {value}\n{section}"
    return text[: start.end()] + section + text[stop:]


def own_mechanism(name: str) -> Mechanism:
    """Return a mechanism of ours."""
    if name not in tuple(Mechanism):
        raise ConfigError(
            f"The mechanism {name} comes from another package, which states no law of its noise. This page "
            f"shows {' and '.join(Mechanism)}; opendas plan and account read such a run."
        )
    return Mechanism(name)


def read_run_file(text: str, subject: Subject) -> Budget:
    """Return the budget of a run file's text for a subject."""
    section, _ = parse_toml(text, RunFile, "run file", Path())
    product, mine = section.run.product, subject.product.name
    if product in BUILT_IN_PRODUCTS and product != mine:
        raise ConfigError(f"This is a plan of the product {product}; this page explores {mine}.")
    mechanism, neighbours = own_mechanism(section.run.mechanism), Neighbours(section.run.neighbours)
    spec = budget_spec(section.budget, subject.product, subject.levels, mechanism, neighbours)
    found = resolve_budget(spec, subject.levels, subject.canonical, subject.stand_ins)
    return replace(found, contribution=subject.contribution)
