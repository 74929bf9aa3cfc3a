"""The exact account of the 2020 plans: figures, their gap, and time.

    OMP_NUM_THREADS=1 python benchmarks/accounting.py [--repeats R] [--json FILE]

Part 1: epsilon at delta = 1e-10 of every budget preset by both conversions of rho and exactly, and how much
of the variance of all noise could go with the exact account at the same (epsilon, delta). Part 2: seconds for
the persons plan of the United States. Best of the repeats, in processor time.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opendas.budget.allocation import Budget
from opendas.budget.noise import budget_loss
from opendas.budget.presets import preset, preset_names
from opendas.budget.resolve import BudgetSpec, resolve_budget
from opendas.measurement.account import spare_noise
from opendas.privacy.composition import ComposedLoss
from opendas.privacy.zcdp import epsilon_bun_steinke, epsilon_cks

DELTA = "1e-10"


def budget_of(name: str) -> Budget:
    """Return a preset as a budget."""
    return resolve_budget(BudgetSpec(preset=name), list(preset(name).geolevels))


def held(budget: Budget) -> list[tuple[str, str]]:
    """Answers that the invariants of the redistricting data fix: totals of the nation and of states."""
    return [(level, "total") for level in ("us", "state") if "total" in budget.queries.get(level, {})]


def figures(name: str) -> dict[str, Any]:
    """Compare the account of a preset by formula and exactly."""
    budget = budget_of(name)
    loss = budget_loss(budget)
    exact = loss.epsilon(DELTA)
    cks, simple = epsilon_cks(budget.total, DELTA), epsilon_bun_steinke(budget.total, DELTA)
    row = {
        "preset": name,
        "rho": float(budget.total),
        "bun-steinke": simple,
        "cks": cks,
        "exact": exact.upper,
        "gap": exact.gap,
        "saved at cks": float(spare_noise(loss, f"{cks:.9f}", DELTA).saved),
        "saved at bun-steinke": float(spare_noise(loss, f"{simple:.9f}", DELTA).saved),
        "invariants held": None,
    }
    if budget.total and held(budget):
        row["invariants held"] = budget_loss(budget, held(budget)).epsilon(DELTA).upper
    return row


def best_of(repeats: int, act: Callable[[], object]) -> float:
    """Return the shortest processor time of ``act`` in seconds."""
    best = math.inf
    for _ in range(repeats):
        start = time.process_time()
        act()
        best = min(best, time.process_time() - start)
    return best


def timings(repeats: int) -> dict[str, Any]:
    """Time the persons plan of the United States: one epsilon, and a curve of eight."""
    changes = dict(budget_loss(budget_of("us2020-persons")).changes[0])
    deltas = [f"1e-{digits}" for digits in range(2, 10)]
    found: dict[str, Any] = {"answers": sum(changes.values()), "distinct noises": len(changes)}
    for points in (1 << 13, 1 << 14, 1 << 15, 1 << 16):
        bounds = ComposedLoss(changes, points).epsilon(DELTA)
        found[f"{points} points"] = {
            "epsilon": bounds.upper,
            "gap": bounds.gap,
            "seconds": best_of(repeats, lambda points=points: ComposedLoss(changes, points).epsilon(DELTA)),
        }

    def curve() -> None:
        loss = ComposedLoss(changes)
        for delta in deltas:
            loss.epsilon(delta)

    found["curve of 8 deltas, seconds"] = best_of(1, curve)
    return found


def main() -> None:
    """Print both parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = [figures(name) for name in preset_names()]
    for row in rows:
        print(" | ".join(f"{v:.4f}" if isinstance(v, float) else str(v) for v in row.values()))
    found = timings(arguments.repeats)
    print(json.dumps(found, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps({"figures": rows, "timings": found}, indent=2))


if __name__ == "__main__":
    main()
