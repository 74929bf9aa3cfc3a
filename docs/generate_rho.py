"""Write the figures of docs/what-rho-means.md, or check with --check.

They are computed from two runs of the production plan for persons of the United States on a synthetic nation:
on the AIAN spine with optimised block groups, as in production, and on the spine of the official geolevels. A
page is prose with marks: tables between ``<!-- table NAME -->`` and ``<!-- end -->`` on lines of their own,
and single figures between ``<!-- figure NAME -->`` and ``<!-- end -->``. Only what lies between is written.
"""

from __future__ import annotations

import math
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from statistics import NormalDist

import opendas as od
from opendas.budget.noise import within_rho
from opendas.demo.nation import write_nation
from opendas.measurement.account import PlanAccount
from opendas.measurement.loss import attribute_loss, attribute_losses, plan_loss, within_loss
from opendas.measurement.official_losses import AreaLoss
from opendas.privacy.attacker import Attacker, gaussian_power, loss_tail, posterior, zcdp_power_bound
from opendas.privacy.composition import WorstLoss
from opendas.privacy.zcdp import epsilon_bun_steinke, epsilon_cks

DOCS = Path(__file__).parent
PAGES = (DOCS / "what-rho-means.md",)
TABLE = re.compile(r"(<!-- table (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
FIGURE = re.compile(r"(<!-- figure (\S+) -->)(.*?)(<!-- end -->)")

BLOCKS, STATES = 3000, 3
DELTA = "1e-10"
WHOLE = "The whole record, anywhere"
TOGETHER = "Place, within one block group of the spine"
PARTS = {
    "cenrace": "Race only",
    "hispanic": "Hispanic origin only",
    "votingage": "Voting age only",
    "hhgq": "Household or group-quarters type only",
}
KINDS = {
    "state": "one state",
    "county": "one county",
    "tract": "one tract",
    "block_group": "one block group",
    "place": "one place",
    "aianhh": "one AIAN area",
}


@cache
def account(spine: str) -> PlanAccount:
    """Return the account of the run of persons on the ``aian`` or the ``standard`` spine."""
    with tempfile.TemporaryDirectory() as folder:
        write_nation(folder, BLOCKS, states=STATES)
        name = "persons.toml" if spine == "aian" else "persons-standard.toml"
        return od.account(od.load(Path(folder) / name), DELTA)


@cache
def changes() -> dict[str, tuple[Fraction, Callable[[], WorstLoss]]]:
    """Return what can change on the AIAN spine, with its rho and its loss by the noise."""
    plan = account("aian").plan
    found: dict[str, tuple[Fraction, Callable[[], WorstLoss]]] = {
        WHOLE: (plan.budget.total, partial(plan_loss, plan))
    }
    for level, rho in within_rho(plan.budget).items():
        if rho:
            where = "anywhere" if level == "us" else f"within {KINDS[level]} of the spine"
            found[f"Place, {where}"] = rho, partial(within_loss, plan, level)
    for name, words in PARTS.items():
        found[words] = attribute_losses(plan)[name], partial(attribute_loss, plan, name)
    return found


def whole() -> Fraction:
    """Return the rho of the plan."""
    return changes()[WHOLE][0]


def block_groups() -> AreaLoss:
    """Return the losses within official block groups on the AIAN spine."""
    return next(row for row in account("aian").within_official if row.kind == "block_group")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, ["---"] * len(header), *rows))


def percent(value: float) -> str:
    """Write a probability."""
    return f"{100 * value:.1f} %"


def three(rho: Fraction) -> str:
    """Write a rho with three digits."""
    return f"{float(rho):.3f}"


def best_guess(rho: Fraction) -> tuple[float, float]:
    """Chance of a right guess between two equally likely worlds: by Gaussian noise, and at most."""

    @cache
    def at_level(per_cent: int) -> float:
        return (1 - per_cent / 100 + zcdp_power_bound(rho, per_cent / 100)) / 2

    low, high = 1, 99
    while low < high:  # concave in the level
        middle = (low + high) // 2
        low, high = (middle + 1, high) if at_level(middle) < at_level(middle + 1) else (low, middle)
    return NormalDist().cdf(math.sqrt(2 * float(rho)) / 2), at_level(low)


def odds() -> str:
    """List how likely large factors are, by rho alone."""
    rho = changes()[TOGETHER][0]
    rows = []
    for factor in (2, 3, 5, 10):
        chance = loss_tail(rho, factor)
        digits = 1 - math.floor(math.log10(chance))
        becomes = (percent(posterior(prior, factor)) for prior in (0.01, 0.5))
        rows.append((str(factor), f"{chance:.{digits}f}", *becomes))
    return table(("Odds multiplied by more than", "Chance at most", "1 % becomes", "50 % becomes"), rows)


def tests() -> str:
    """List what a test can tell, by rho alone."""
    powers = ("Power at 0.1 %", "at most", "Power at 5 %", "at most")
    rows = []
    for name, (rho, _) in changes().items():
        found = [power(rho, level) for level in (0.001, 0.05) for power in (gaussian_power, zcdp_power_bound)]
        rows.append((name, three(rho), *map(percent, (*found, *best_guess(rho)))))
    return table(("What changes", "rho", *powers, "Guess right", "at most"), rows)


def places() -> str:
    """List the losses within official areas, on both spines."""
    head = ("A move within", "Areas", "rho at most", "in half at most", "More than stated", "Official spine")
    official = {row.kind: row for row in account("standard").within_official}
    rows = []
    for row in account("aian").within_official:
        if row.kind in KINDS:
            above = "" if row.above_spine is None else str(row.above_spine)
            figures = map(three, (row.largest, row.median))
            rows.append((KINDS[row.kind], str(row.areas), *figures, above, three(official[row.kind].largest)))
    return table(head, rows)


def noise() -> str:
    """List what the noise itself reveals. What the page says of power and guesses is checked."""
    head = ("What changes", "Epsilon by rho", "Epsilon by the noise", "1 % becomes", "50 % becomes")
    rows = []
    for name, (rho, worst) in changes().items():
        loss = worst()
        attacker = Attacker(loss)
        bounds = (attacker.power(0.001), attacker.power(0.05), attacker.guess())
        gaussian = (gaussian_power(rho, 0.001), gaussian_power(rho, 0.05), best_guess(rho)[0])
        if [*map(percent, bounds)] != [*map(percent, gaussian)]:
            raise ValueError(f"{name}: power and guess {bounds} differ from {gaussian} as shown.")
        epsilons = epsilon_cks(rho, DELTA), loss.epsilon(DELTA).upper
        beliefs = attacker.belief(0.01), attacker.belief(0.5)
        rows.append((name, *(f"{epsilon:.2f}" for epsilon in epsilons), *map(percent, beliefs)))
    return table(head, rows)


def held(spine: str) -> str:
    """Write the exact epsilon of a whole record between inputs that agree on the invariants."""
    return f"{account(spine).exact(hold_invariants=True).upper:.2f}"


TABLES: dict[str, Callable[[], str]] = {"odds": odds, "tests": tests, "places": places, "noise": noise}

FIGURES: dict[str, Callable[[], str]] = {
    "rho": lambda: str(whole()),
    "rho-whole": lambda: three(whole()),
    "rho-together": lambda: three(changes()[TOGETHER][0]),
    "tail-1000": lambda: f"{loss_tail(whole(), 1000):.2f}",
    "cks": lambda: f"{epsilon_cks(whole(), DELTA):.2f}",
    "bun-steinke": lambda: f"{epsilon_bun_steinke(whole(), DELTA):.2f}",
    "millions": lambda: f"{math.exp(round(epsilon_bun_steinke(whole(), DELTA), 2)) / 1e6:.0f}",
    "cks-1e-5": lambda: f"{epsilon_cks(whole(), '1e-5'):.2f}",
    "noise-whole": lambda: f"{account('aian').exact().upper:.2f}",
    "held-aian": partial(held, "aian"),
    "held-official": partial(held, "standard"),
    "areas": lambda: str(block_groups().areas),
    "areas-above": lambda: str(block_groups().above_spine),
    "areas-median": lambda: three(block_groups().median),
    "areas-largest": lambda: three(block_groups().largest),
}

SLOW = frozenset({"noise", "noise-whole", "held-aian", "held-official"})
"""What composes the noise of many answers: some minutes together."""


def marked(text: str) -> list[tuple[str, str]]:
    """Return the marks of a page: name, and what stands between."""
    return [(m[2], m[3]) for pattern in (TABLE, FIGURE) for m in pattern.finditer(text)]


def page(text: str) -> str:
    """Return a page with its tables and figures written again."""
    text = TABLE.sub(lambda m: f"{m[1]}\n{TABLES[m[2]]()}\n{m[4]}", text)
    return FIGURE.sub(lambda m: f"{m[1]}{FIGURES[m[2]]()}{m[4]}", text)


def main(arguments: list[str]) -> int:
    """Write the pages, or compare them."""
    stale = 0
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        new = page(text)
        if new == text:
            continue
        if "--check" in arguments:
            stale = 1
            sys.stderr.write(f"{path} is out of date: run python {Path(__file__).name}\n")
        else:
            path.write_text(new, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
