"""The cases behind the figures on allocations: what is compared, simulated and tabulated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np
from allocation_monte_carlo import Errors, Estimate, Simulated, downstream, simulate
from allocation_trees import Tree
from experiment import markdown, note

from opendas.allocation import (
    allocate_target,
    allocate_total,
    clamped_moments,
    errors_at,
    unknown_counts,
)

TOTALS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
SMALL_TOTALS = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
TARGETS = (5_000, 10_000, 15_000, 20_000, 30_000, 40_000, 60_000, 80_000, 100_000)
WEIGHTS = (0.05, 0.1, 0.2, 1 / 3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
KIND = "laplace"

Json = dict[str, object]


def exactly(number: float) -> str:
    """Write a number of the grids above as an exact decimal."""
    return f"{number:.6f}"


def budgets_of(tree: Tree, total: float, weights: Sequence[float] | None = None) -> tuple[float, ...]:
    """Return the solution of program (6)."""
    return allocate_total(tree.levels, KIND, exactly(total), weights).budgets


def summed(tree: Tree, budgets: Sequence[float]) -> tuple[float, float]:
    """Return bias^2 and variance by the closed forms, over all levels."""
    rows = errors_at(tree.levels, KIND, budgets)
    return math.fsum(row.bias2 or 0.0 for row in rows), math.fsum(row.variance or 0.0 for row in rows)


def targets(tree: Tree) -> list[tuple[float, ...]]:
    """Figures 2 and 10: program (7) over targets scaled to the tree."""
    return [allocate_target(tree.levels, KIND, str(target)).budgets for target in targets_of(tree)]


def targets_of(tree: Tree) -> list[int]:
    """Return the paper's targets; for a small tree, in proportion to its geounits."""
    scale = min(1.0, sum(tree.hierarchy.sizes) / 20_000)
    return [max(1, round(target * scale)) for target in TARGETS]


def figure(value: float) -> str:
    """Write a number for a table."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"


class Comparison:
    """Figures 3 and 8 on one tree: uniform and optimal, closed form, with and without hierarchy."""

    def __init__(self, tree: Tree, totals: Sequence[float], runs: int, seed: int) -> None:
        self.tree, self.totals = tree, totals
        self.closed: dict[str, list[tuple[float, float]]] = {"uniform": [], "optimal": [], "count-only": []}
        self.simulated: dict[str, list[Simulated]] = {"uniform": [], "optimal": []}
        for number, total in enumerate(totals):
            even = (total / len(tree.names),) * len(tree.names)
            best = budgets_of(tree, total)
            levels = [unknown_counts(*level) for level in zip(tree.names, tree.hierarchy.sizes, strict=True)]
            public = allocate_total(levels, KIND, exactly(total)).budgets
            for name, budgets in (("uniform", even), ("optimal", best), ("count-only", public)):
                self.closed[name].append(summed(tree, budgets))
            self.simulated["uniform"].append(simulate(tree, even, runs, seed + number))
            self.simulated["optimal"].append(simulate(tree, best, runs, seed + 100 + number))
        note(f"{tree.name}: done")

    def points(self, what: str) -> dict[str, dict[str, list[Estimate]]]:
        """Return the simulated bias^2, variance or MSE by allocation and variant."""
        return {
            name: {
                variant: [getattr(one.errors[variant], what)() for one in several]
                for variant in ("none", "top-down")
            }
            for name, several in self.simulated.items()
        }

    def table(self) -> str:
        """Return everything as Markdown."""
        bias, variance = self.points("bias2"), self.points("variance")
        rows = []
        for k, total in enumerate(self.totals):
            for name in ("uniform", "optimal"):
                closed = self.closed[name][k]
                naive = self.simulated[name][k].errors["none"].naive_bias2()
                several = (bias[name]["none"][k], figure(naive), bias[name]["top-down"][k])
                others = (variance[name]["none"][k], variance[name]["top-down"][k])
                rows.append((f"{total:g}", name, figure(closed[0]), *several, figure(closed[1]), *others))
        header = (
            "ε", "allocation", "bias²", "simulated", "naive", "with hierarchy",
            "variance", "simulated", "with hierarchy",
        )  # fmt: skip
        return markdown(header, rows)

    def ratios(self) -> str:
        """Return how much worse the uniform allocation is, and one from numbers of geounits."""
        rows = []
        for k, total in enumerate(self.totals):
            uniform, best, public = (self.closed[name][k] for name in ("uniform", "optimal", "count-only"))
            parts = [figure(uniform[part] / best[part]) for part in (0, 1)]
            above = sum(public) / sum(best) - 1
            rows.append((f"{total:g}", *parts, figure(sum(uniform) / sum(best)), f"{100 * above:.2g} %"))
        header = (
            "ε",
            "bias², uniform / optimal",
            "variance",
            "MSE",
            "MSE of node counts only, above optimal",
        )
        return markdown(header, rows)

    def naive(self) -> dict[str, list[float]]:
        """Return squared mean errors, as they are commonly computed, by allocation."""
        return {
            name: [one.errors["none"].naive_bias2() for one in several]
            for name, several in self.simulated.items()
        }

    def plain(self) -> Json:
        """Return the figures for JSON."""
        return {
            "tree": self.tree.name,
            "totals": list(self.totals),
            "closed": {name: [list(pair) for pair in pairs] for name, pairs in self.closed.items()},
            "simulated": {what: _plain(self.points(what)) for what in ("bias2", "variance", "mse")},
        }


def _plain(found: Mapping[str, Mapping[str, Sequence[Estimate]]]) -> Json:
    return {
        name: {variant: [asdict(point) for point in points] for variant, points in one.items()}
        for name, one in found.items()
    }


def bottom_up_mse(tree: Tree, budgets: Sequence[float]) -> float:
    """Return the exact error of all levels where the counts above are sums of the clamped leaves."""
    leaves = clamped_moments(KIND, budgets[-1], tree.counts[-1])
    variance, bias = tree.hierarchy.totals(leaves.variance), tree.hierarchy.totals(leaves.bias)
    return math.fsum(float((v + b**2).sum()) for v, b in zip(variance, bias, strict=True))


class Ablation:
    """Figure 5 and appendix C: weights of the lowest level, and from where to post-process."""

    def __init__(self, tree: Tree, total: float, runs: int, seed: int) -> None:
        self.tree = tree
        self.budgets = [budgets_of(tree, total, ((1 - w) / 2, (1 - w) / 2, w)) for w in WEIGHTS]
        self.mse: list[dict[str, float]] = []
        for budgets in self.budgets:
            rows = {row.name: row.mse or 0.0 for row in errors_at(tree.levels, KIND, budgets)}
            self.mse.append({**rows, "total": math.fsum(rows.values())})
        self.simulated = [
            simulate(tree, budgets, runs, seed + number, ("top-down", "raw first", "bottom-up"))
            for number, budgets in enumerate(self.budgets)
        ]
        self.bottom_up = [bottom_up_mse(tree, budgets) for budgets in self.budgets]
        note(f"{tree.name}: weights done")

    def curves(self) -> dict[str, list[float]]:
        """Return the MSE by way of post-processing: closed forms but for the projection."""
        return {
            "none": [row["total"] for row in self.mse],
            "top-down (simulated)": [one.errors["top-down"].mse().value for one in self.simulated],
            "bottom-up": self.bottom_up,
        }

    def plain(self) -> Json:
        """Return the figures for JSON."""
        return {
            "tree": self.tree.name,
            "weights": list(WEIGHTS),
            "budgets": [list(row) for row in self.budgets],
            "closed": self.mse,
            "bottom_up": self.bottom_up,
            "simulated": [
                {name: asdict(errors.mse()) for name, errors in one.errors.items()} for one in self.simulated
            ],
        }

    def table(self) -> str:
        """Return errors by weight as Markdown."""
        header = ("w₃", *(f"ε {name}" for name in self.tree.names), *self.tree.names, "total")
        header += ("simulated", "top-down", "raw first", "bottom-up", "its closed form")
        rows = []
        points = zip(WEIGHTS, self.budgets, self.mse, self.simulated, self.bottom_up, strict=True)
        for w, budgets, mse, one, bottom in points:
            kinds = [one.errors[name].mse() for name in ("none", "top-down", "raw first", "bottom-up")]
            shares = [f"{budget:.4f}" for budget in budgets]
            rows.append((f"{w:.2f}", *shares, *map(figure, mse.values()), *kinds, figure(bottom)))
        return markdown(header, rows)


class Task:
    """Figures 6, 9 and 11: allocating money among the children of one geounit."""

    def __init__(self, tree: Tree, parent: int, totals: Sequence[float], runs: int, seed: int) -> None:
        self.tree, self.totals = tree, totals
        self.children = int(tree.hierarchy.children(len(tree.names) - 2)[parent])
        self.found: dict[str, list[dict[str, Errors]]] = {"uniform": [], "optimal": []}
        for number, total in enumerate(totals):
            even = (total / len(tree.names),) * len(tree.names)
            for name, budgets in (("uniform", even), ("optimal", budgets_of(tree, total))):
                self.found[name].append(downstream(tree, parent, budgets, runs, seed + number))
        note(f"{tree.name}: downstream task done")

    @property
    def title(self) -> str:
        """What is shared out among whom."""
        return f"{self.tree.name}, {self.children} {self.tree.names[-1]}s"

    def points(self, what: str) -> dict[str, dict[str, list[Estimate]]]:
        """Return bias^2 or variance by allocation and weight function."""
        return {
            name: {w: [getattr(one[w], what)() for one in several] for w in ("log", "linear", "quadratic")}
            for name, several in self.found.items()
        }

    def plain(self) -> Json:
        """Return the figures for JSON."""
        found = {what: _plain(self.points(what)) for what in ("bias2", "variance")}
        return {"tree": self.tree.name, "children": self.children, "totals": list(self.totals), **found}

    def table(self) -> str:
        """Return bias^2 and variance, in squared per cent, and their ratios."""
        bias, variance = self.points("bias2"), self.points("variance")
        rows = []
        for k, total in enumerate(self.totals):
            for name in ("log", "linear", "quadratic"):
                b = [bias[allocation][name][k] for allocation in ("uniform", "optimal")]
                v = [variance[allocation][name][k] for allocation in ("uniform", "optimal")]
                rows.append((f"{total:g}", name, *b, ratio(*b), *v, ratio(*v)))
        header = (
            "ε",
            "weights",
            "bias², uniform",
            "optimal",
            "ratio",
            "variance, uniform",
            "optimal",
            "ratio",
        )
        return markdown(header, rows)


def ratio(one: Estimate, other: Estimate) -> str:
    """Return a quotient with its standard error, or a dash where the denominator is all noise."""
    if other.value < 3 * other.error:
        return "–"
    value = one.value / other.value
    error = abs(value) * math.hypot(one.error / one.value if one.value else 0.0, other.error / other.value)
    return f"{value:.2f} ± {error:.2f}"


def several_tracts(tree: Tree, total: float, count: int, runs: int, seed: int) -> str:
    """Return the spread of ratios over geounits chosen by chance, each allocating on its own."""
    enough = np.flatnonzero((tree.hierarchy.children(len(tree.names) - 2) >= 10) & (tree.counts[-2] > 0))
    chosen = np.random.default_rng(seed).choice(enough, count, replace=False)
    jobs = [Task(tree.below(int(parent)), 0, (total,), runs, seed) for parent in chosen]
    rows = []
    for what, words in (("bias2", "bias²"), ("variance", "variance")):
        for name in ("log", "linear", "quadratic"):
            pairs = [[job.points(what)[a][name][0] for a in ("uniform", "optimal")] for job in jobs]
            clear = sorted(
                a.value / b.value for a, b in pairs if min(a.value - 3 * a.error, b.value - 3 * b.error) > 0
            )
            middle = (
                [figure(clear[0]), figure(float(np.median(clear))), figure(clear[-1])]
                if clear
                else [None] * 3
            )
            rows.append((words, name, len(clear), *middle))
    return markdown(("uniform / optimal", "weights", "clear of noise", "least", "median", "largest"), rows)


SPLITS = {
    2: {"50/50": (50, 50), "70/30": (70, 30), "90/10": (90, 10), "100/0": (100, 0)},
    3: {"33/33/34": (33, 33, 34), "50/30/20": (50, 30, 20), "80/10/10": (80, 10, 10), "100/0/0": (100, 0, 0)},
}
SKEW_BUDGETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0)


def skew(regions: int, what: str) -> dict[str, list[float]]:
    """Figure 7: the sum of bias, or of error, when 100 people are shared out evenly or not."""
    return {
        name: [
            float(getattr(clamped_moments(KIND, epsilon, np.array(counts)), what).sum())
            for epsilon in SKEW_BUDGETS
        ]
        for name, counts in SPLITS[regions].items()
    }


def skew_table() -> str:
    """Return Figure 7 as Markdown."""
    rows = []
    for regions, what, words in (
        (2, "bias", "bias"),
        (2, "mse", "MSE"),
        (3, "bias", "bias"),
        (3, "mse", "MSE"),
    ):
        for name, values in skew(regions, what).items():
            rows.append((f"sum of {words}", name, *(f"{value:,.4g}" for value in values)))
    return markdown(("", "100 people as", *(f"ε {epsilon:g}" for epsilon in SKEW_BUDGETS)), rows)


def budget_table(tree: Tree, label: str, x: Sequence[float], budgets: Sequence[Sequence[float]]) -> str:
    """Return an allocation over a grid as Markdown."""
    rows = [
        (f"{at:,g}", *(f"{budget:.4f}" for budget in row), f"{sum(row):.4f}")
        for at, row in zip(x, budgets, strict=True)
    ]
    return markdown((label, *(f"ε {name}" for name in tree.names), "total"), rows)
