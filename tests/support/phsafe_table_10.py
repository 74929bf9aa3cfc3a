"""Table 10 of the PHSafe paper, recomputed, beside what exact margins and the tight bound need.

The published budgets are the ones of the production run. They follow from the published margin targets
with z = 1.645 (the paper's text says 1.64), rounded to six decimals; every bounded loss there is twice the
rounded unbounded one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from opendas.phsafe.inputs.levels import Level
from opendas.phsafe.margins import (
    PRODUCTION_TAU,
    PUBLISHED_Z,
    formula_budget,
    formula_margin,
    least_budget,
    margin,
    published_row,
)
from opendas.phsafe.tables import TABLES, Kind, Table
from opendas.phsafe.tables.sensitivity import Answers, Sensitivity, noise_for
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.sampling.laws import DiscreteGaussian

__all__ = ["Row", "budget_totals", "markdown", "table_10"]

_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Row:
    """One row of Table 10, and what it could be.

    Parameters
    ----------
    table, level : str
    tau : int or None
    target : int
        Published margin.
    published : Fraction
        Published unbounded loss: the budget of the production run.
    by_table_constant, by_text_constant : Fraction
        The formula with z = 1.645 and 1.64, rounded to six decimals.
    sigma2 : Fraction
        Of the published budget under the published sensitivity.
    exact_margin, formula_margin : int
        Margin of that noise: exact, and by the paper's ``floor(1.64 sigma)``.
    published_bounded, tight_unbounded, tight_bounded : Fraction
        Further losses of that noise.
    least_paper, least_tight : Fraction
        Least budget (unbounded loss, eight decimals) whose exact margin meets the target, under each bound.
    least_paper_bounded, least_tight_bounded : Fraction
        The same noise's bounded loss, under the same bound.
    """

    table: str
    level: str
    tau: int | None
    target: int
    published: Fraction
    by_table_constant: Fraction
    by_text_constant: Fraction
    sigma2: Fraction
    exact_margin: int
    formula_margin: int
    published_bounded: Fraction
    tight_unbounded: Fraction
    tight_bounded: Fraction
    least_paper: Fraction
    least_paper_bounded: Fraction
    least_tight: Fraction
    least_tight_bounded: Fraction


@lru_cache(maxsize=1)
def table_10() -> tuple[Row, ...]:
    """Return the 46 rows, in the order of the published program."""
    return tuple(_row(table, level) for table in TABLES for level in table.levels)


def _row(table: Table, level: Level) -> Row:
    tau = None if table.kind is Kind.UNITS else PRODUCTION_TAU[table.name]
    target, published = published_row(table, level)
    answers = Answers.of(table, level, tau)
    sensitive = answers.l2_squared(Sensitivity.PAPER, Neighbours.UNBOUNDED)
    law = _gaussian(answers, published, Sensitivity.PAPER)
    least = {kind: least_budget(target, answers, kind, digits=_DIGITS) for kind in Sensitivity}
    bounded = {
        kind: answers.loss(_gaussian(answers, rho, kind), kind, Neighbours.BOUNDED)
        for kind, rho in least.items()
    }
    return Row(
        table=table.name,
        level=level.name,
        tau=tau,
        target=target,
        published=published,
        by_table_constant=formula_budget(target, sensitive, PUBLISHED_Z["table"]),
        by_text_constant=formula_budget(target, sensitive, PUBLISHED_Z["text"]),
        sigma2=law.sigma2,
        exact_margin=margin(law),
        formula_margin=formula_margin(law),
        published_bounded=answers.loss(law, Sensitivity.PAPER, Neighbours.BOUNDED),
        tight_unbounded=answers.loss(law, Sensitivity.TIGHT, Neighbours.UNBOUNDED),
        tight_bounded=answers.loss(law, Sensitivity.TIGHT, Neighbours.BOUNDED),
        least_paper=least[Sensitivity.PAPER],
        least_paper_bounded=bounded[Sensitivity.PAPER],
        least_tight=least[Sensitivity.TIGHT],
        least_tight_bounded=bounded[Sensitivity.TIGHT],
    )


def _gaussian(answers: Answers, rho: Fraction, sensitivity: Sensitivity) -> DiscreteGaussian:
    law = noise_for(answers, rho, Mechanism.DISCRETE_GAUSSIAN, sensitivity)
    assert isinstance(law, DiscreteGaussian)
    return law


def budget_totals(rows: Iterable[Row] | None = None) -> dict[str, dict[str, Fraction]]:
    """Return the sums of every budget and loss: per table, and overall under ``"all"``.

    Parameters
    ----------
    rows : iterable of Row, optional
        All of them by default. The run of Puerto Rico has the rows of the state levels.
    """
    names = (
        "published",
        "published_bounded",
        "tight_unbounded",
        "tight_bounded",
        "by_table_constant",
        "by_text_constant",
        "least_paper",
        "least_paper_bounded",
        "least_tight",
        "least_tight_bounded",
    )
    totals: dict[str, dict[str, Fraction]] = {}
    for row in table_10() if rows is None else rows:
        for key in (row.table, "all"):
            sums = totals.setdefault(key, dict.fromkeys(names, Fraction(0)))
            for name in names:
                sums[name] += getattr(row, name)
    return {**{key: sums for key, sums in totals.items() if key != "all"}, "all": totals["all"]}


def markdown() -> str:
    """Return the rows and totals as the table of ``docs/explanation/phsafe-margins.md``.

    Levels of a table with equal figures share a row, and so do tables whose rows are then equal.
    """
    levels: dict[tuple[str, str], list[str]] = {}
    for row in table_10():
        figures = (
            f"{row.tau or ''} | {row.target} | {_decimal(row.published, 6)} | {row.exact_margin} "
            f"| {_decimal(row.tight_unbounded, _DIGITS)} "
            f"| {_decimal(row.least_paper, _DIGITS)} | {_decimal(row.least_tight, _DIGITS)} |"
        )
        levels.setdefault((row.table, figures), []).append(f"`{row.level}`")
    tables: dict[tuple[str, str], list[str]] = {}
    for (name, figures), given in levels.items():
        tables.setdefault((", ".join(given), figures), []).append(name)
    lines = [
        "| Tables | Levels | tau | Target | Published | Exact margin "
        "| Tight loss | Least, paper | Least, tight |",
        "|---|---|---|---|---|---|---|---|---|",
        *(f"| {', '.join(names)} | {given} | {figures}" for (given, figures), names in tables.items()),
    ]
    sums = budget_totals()["all"]
    lines.append(
        f"| **All 46** | | | | {_decimal(sums['published'], 6)} | "
        f"| {_decimal(sums['tight_unbounded'], _DIGITS)} "
        f"| {_decimal(sums['least_paper'], _DIGITS)} | {_decimal(sums['least_tight'], _DIGITS)} |"
    )
    return "\n".join(lines) + "\n"


def _decimal(value: Fraction, digits: int) -> str:
    """Write a loss, rounded up: what is printed is still an upper bound."""
    scaled = value * 10**digits
    return f"{-(-scaled.numerator // scaled.denominator) / 10**digits:.{digits}f}"
