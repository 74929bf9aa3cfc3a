"""Write the tables of docs/products/*.md from the products themselves, or check them with --check.

A page is prose with tables between two marks, ``<!-- table NAME -->`` and ``<!-- end -->``; only what lies
between the marks is written here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from opendas.budget.allocation import Budget
from opendas.budget.noise import plan_rows
from opendas.budget.presets import preset, preset_names
from opendas.budget.resolve import BudgetSpec, resolve_budget
from opendas.files.mdf.layout import mdf_layout
from opendas.geography.frame import Frame
from opendas.privacy.exact import format_fraction
from opendas.privacy.zcdp import Account
from opendas.schema.attributes import label_runs
from opendas.schema.dhc_persons import dhc_persons
from opendas.schema.dhc_units import dhc_units, dhc_units_tenvacgq
from opendas.schema.pl94 import pl94_persons, pl94_units, race_combinations
from opendas.schema.product import Passes, Product

FOLDER = Path(__file__).with_name("products")
PRODUCTS: dict[str, Callable[[], Product]] = {
    "pl94-persons": pl94_persons,
    "pl94-units": pl94_units,
    "dhc-persons": dhc_persons,
    "dhc-units": dhc_units,
    "dhc-units-tenvacgq": dhc_units_tenvacgq,
}
MOST_LEVELS = 42
"""Attributes with more levels are not listed."""
MOST_LISTED = 20
"""Groups of a recode beyond these are counted, not listed."""
MOST_RUNS = 4
"""Likewise the runs of levels that a structural zero or a group names."""
MARK = re.compile(r"(<!-- table (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
RACE_LETTERS = {
    "white": "White",
    "black": "Black",
    "aian": "AIAN",
    "asian": "Asian",
    "nhpi": "NHPI",
    "sor": "SOR",
}


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def code(text: str) -> str:
    """Return `text` as code."""
    return f"`{text}`"


def attributes(product: Product) -> str:
    """List the levels of every attribute but the long ones, with their codes here and in the microdata."""
    columns = _microdata_codes(product) if product.layout in ("persons", "units") else None
    rows = []
    for attribute in product.schema.attributes:
        if len(attribute) > MOST_LEVELS:
            continue
        row = [
            code(attribute.name),
            ", ".join(f"{n} {code(text)}" for n, text in enumerate(attribute.levels)),
        ]
        if columns is not None:
            values = columns[attribute.name]
            row.append(f"{values[0].split()[0]} {', '.join(value.split()[1] for value in values)}")
        rows.append(row)
    return table(("attribute", "codes and labels", *(() if columns is None else ("microdata",))), rows)


def _microdata_codes(product: Product) -> dict[str, list[str]]:
    """Return, per attribute and level, the column and value that its records carry."""
    name = {
        "hhgq": "GQTYPE_PL",
        "votingage": "VOTING_AGE",
        "hispanic": "CENHISP",
        "cenrace": "CENRACE",
        "occupancy": "HH_STATUS",
    }
    frame = Frame(np.array([b"990010001001000"]), {}, "block")
    layout = mdf_layout(product, frame)
    columns = {column.name: column for column in layout.columns}
    # Occupied units are the first kind of record in the units layout, vacant ones the second.
    kind_of_cell = np.array([1, 0]) if product.layout == "units" else np.arange(product.schema.size)
    codes = product.schema.codes(np.arange(product.schema.size))
    found = {}
    for attribute, code_of_cell in zip(product.schema.attributes, codes, strict=True):
        column = columns[name[attribute.name]]
        first = [int(np.flatnonzero(code_of_cell == level)[0]) for level in range(len(attribute))]
        found[attribute.name] = [
            f"{column.name} {column.values[column.index[kind_of_cell[c]]]}" for c in first
        ]
    return found


def races(product: Product) -> str:
    """List the 63 combinations of races by their number of races."""
    values = [text.split()[-1] for text in _microdata_codes(product)["cenrace"]]
    rows = []
    for count, group in groupby(enumerate(race_combinations()), key=lambda item: len(item[1])):
        members = list(group)
        listed = ", ".join(f"{values[k]} {'-'.join(RACE_LETTERS[r] for r in names)}" for k, names in members)
        rows.append((count, f"{members[0][0]} to {members[-1][0]}", listed))
    return table(("races", "codes", "microdata code and races"), rows)


def queries(product: Product) -> str:
    """List the query groups."""
    rows = []
    for name in product.query_names:
        group = product.workload.group(name)
        shape = " x ".join(map(str, group.shape)) or "1"
        rows.append((code(name), shape, f"{group.size:,}"))
    return table(("query group", "shape", "rows"), rows)


def recodes(product: Product) -> str:
    """List the recodes."""
    rows = []
    for recode in product.recodes:
        listed = f"{len(recode.groups)} groups"
        if len(recode.groups) <= MOST_LISTED:
            listed = "; ".join(
                code(label)
                if list(members) == [label]
                else f"{code(label)}: {_named(product, recode.attribute, members)}"
                for label, members in recode.groups
            )
        rows.append((code(recode.name), code(recode.attribute), listed))
    return table(("recode", "of", "groups and their levels"), rows)


def _named(product: Product, attribute: str, labels: Sequence[str]) -> str:
    text = _alternatives(product, attribute, labels)
    return text if text.endswith(" levels") else code(text)


def constraints(product: Product) -> str:
    """List invariants, bounds and structural zeros."""
    rows = [
        ("invariant", code(item.name), f"{code(item.query)} exact at every {item.geolevel}")
        for item in product.invariants
    ]
    for bound in product.bounds:
        what = f"{bound.lower} to {bound.upper:,} records for each of {code(bound.column)}"
        rows.append(("bound", code(bound.name), what))
    for zero in product.structural_zeros:
        name = " and ".join(f"{a} = {_alternatives(product, a, of)}" for a, of in zero.levels.items())
        cells = int(product.schema.box(zero.levels).sum())
        rows.append(("structural zero", code(name), f"{cells:,} cells"))
    return table(("kind", "name", "what it says"), rows)


def _alternatives(product: Product, attribute: str, labels: Sequence[str]) -> str:
    """Write levels as runs of the attribute's order, or as their number where the runs are many."""
    runs = label_runs(labels, product.schema.attribute(attribute).levels)
    return "/".join(runs) if len(runs) <= MOST_RUNS else f"{len(labels)} levels"


def passes(product: Product) -> str:
    """List the passes, geolevel by geolevel."""
    rows = []
    stages = (*product.passes.earlier, product.passes)
    for number, plan in enumerate(stages, 1):
        given = [
            [
                label,
                _pass_text(plan.least_squares.get(where, plan.least_squares.get("*", (("rest",),)))),
                _pass_text(plan.rounder.get(where, plan.rounder["*"])),
            ]
            for where, label in (("root", "topmost geolevel"), ("*", "in between"), ("leaf", "leaves"))
        ]
        merged = alike(given)
        if len(merged) == 1:
            merged[0][0] = "all geolevels"
        rows += [[row[0] if len(stages) == 1 else f"{row[0]}, stage {number}", *row[1:]] for row in merged]
    return table(("geolevel of the children", "least squares", "rounder"), rows)


def alike(rows: Iterable[Sequence[object]]) -> list[list[object]]:
    """Return each row that differs from the others by more than its first cell, with those cells in one."""
    found: dict[tuple[object, ...], list[object]] = {}
    for first, *rest in rows:
        found.setdefault(tuple(rest), []).append(first)
    return [[", ".join(map(str, firsts)), *rest] for rest, firsts in found.items()]


def _pass_text(given: Passes) -> str:
    return "; ".join(
        f"{number}. "
        + ", ".join(f"{code(name)} twice" if count > 1 else code(name) for name, count in counts(names))
        for number, names in enumerate(given, start=1)
    )


def counts(names: Sequence[str]) -> list[tuple[str, int]]:
    """Return each name once, in order, with how often it is there."""
    return [(name, len(list(group))) for name, group in groupby(names)]


def _budgets(product: Product) -> dict[str, Budget]:
    second = {} if product.companion is None else product.companion.workload.positions

    def canonical(name: str) -> str:
        return name if name in second else product.workload.canonical(name)

    found = {}
    for name in preset_names():
        if preset(name).product == product.name:
            geolevels = list(preset(name).geolevels)
            found[name] = resolve_budget(BudgetSpec(preset=name), geolevels, canonical)
    return found


def _measured(product: Product) -> dict[str, int]:
    """Return the rows of every query group that a budget of the product may name."""
    sizes = {name: product.workload.group(name).size for name in product.query_names}
    if product.companion is not None:
        second = product.companion
        sizes |= {name: second.workload.group(name).size for name in second.schema.names}
    return sizes


def losses(product: Product) -> str:
    """List the rho of every query group at every geolevel, in units of 1/10,000."""
    parts = []
    for name, budget in _budgets(product).items():
        geolevels = list(budget.geolevels)
        rows = []
        for query in _measured(product):
            given = [
                budget.query_shares(level).get(query) and budget.share(level, query) for level in geolevels
            ]
            if any(given):
                rho = ("-" if share is None else 10_000 * budget.total * share for share in given)
                rows.append([code(query), *rho])
        sums = (10_000 * budget.total * share for share in budget.geolevels.values())
        header = ("rho x 10,000", *geolevels)
        parts.append(f"`{name}`\n\n" + table(header, [*alike(rows), ["*sum*", *sums]]))
    return "\n".join(parts)


def presets(product: Product) -> str:
    """List the presets with their totals."""
    rows = []
    for name, budget in _budgets(product).items():
        account = Account(budget.total, budget.delta)
        epsilon = f"{account.epsilon('cks'):.2f}, {account.epsilon('bun-steinke'):.2f}"
        rows.append((code(name), preset(name).description, format_fraction(budget.total), epsilon))
    return table(("preset", "used for", "rho", "epsilon at 1e-10: cks, bun-steinke"), rows)


def shares(product: Product) -> str:
    """List geolevel and query shares of every preset; presets that share them stand together."""
    parts: dict[str, list[str]] = {}
    for name, budget in _budgets(product).items():
        levels = list(budget.geolevels)
        rows: list[list[str]] = [["*geolevel*", *(format_fraction(s) for s in budget.geolevels.values())]]
        for query in product.query_names:
            given = [budget.query_shares(level).get(query) for level in levels]
            if any(given):
                rows.append([code(query), *("-" if s is None else format_fraction(s) for s in given)])
        parts.setdefault(table(("share of", *levels), alike(rows)), []).append(code(name))
    return "\n".join(f"{', '.join(names)}\n\n{text}" for text, names in parts.items())


def noise(product: Product) -> str:
    """List the variance and margin of error of every answer, but for presets of demonstration data."""
    parts = []
    sizes = _measured(product)
    for name, budget in _budgets(product).items():
        if "demonstration" in preset(name).description:
            continue
        levels = list(budget.geolevels)
        found = {(r.query, r.geolevel): r for r in plan_rows(budget, dict.fromkeys(levels, 1), sizes)}
        rows = []
        for query in sizes:
            cells = [found.get((query, level)) for level in levels]
            if any(cells):
                texts = ["-" if r is None else f"{r.variance:.4g} ({r.moe90})" for r in cells]
                rows.append([code(query), *texts])
        parts.append(f"`{name}`\n\n" + table(("variance (margin)", *levels), alike(rows)))
    return "\n".join(parts)


TABLES: dict[str, Callable[[Product], str]] = {
    "attributes": attributes,
    "races": races,
    "queries": queries,
    "recodes": recodes,
    "constraints": constraints,
    "passes": passes,
    "presets": presets,
    "shares": shares,
    "losses": losses,
    "noise": noise,
}


def page(name: str) -> str:
    """Return the page of a product with its tables written again."""
    product = PRODUCTS[name]()
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    return MARK.sub(lambda m: f"{m[1]}\n{TABLES[m[2]](product)}\n{m[4]}", text)


def main(arguments: list[str]) -> int:
    """Write the tables, or compare them."""
    stale = 0
    for name in PRODUCTS:
        path = FOLDER / f"{name}.md"
        text = page(name)
        if path.read_text(encoding="utf-8") == text:
            continue
        if "--check" in arguments:
            stale = 1
            sys.stderr.write(f"{path} is out of date: run python {Path(__file__).name}\n")
        else:
            path.write_text(text, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
