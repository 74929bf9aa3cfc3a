"""What blocks gain, and what their people pay for it: block errors against the loss within a block group.

    python experiments/within_block_group.py [DATA] [--seeds 3] [--to FOLDER]

Rhode Island 2010, persons, estimator ``informed``. Two ways to give blocks more: more rho in all, with the
geolevels' shares of the production; or the same rho, moved between geolevels, from the preset
``opendas2026-persons`` to ``opendas2026-blocks-persons`` in four steps. Epsilon at delta 1e-10, by the
conversion of Canonne, Kamath and Steinke, of a record that moves within a block group, and of any change.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

from experiment import arguments, deliver, load, markdown, note, rhode_island

import opendas as od
from opendas.budget.presets import Preset, preset

WHERE = "2010 Census, P.L. 94-171, Rhode Island"
KEPT, MOVED = preset("opendas2026-persons"), preset("opendas2026-blocks-persons")
FACTORS = (Fraction(1, 2), Fraction(1), Fraction(2), Fraction(4))
STEPS = tuple(Fraction(step, 4) for step in range(5))
HEAD = ("Plan", "rho", "epsilon", "epsilon within a block group")
QUERIES = ("total", "votingage", "detailed")


def between(one: Preset, other: Preset, part: Fraction) -> dict[str, object]:
    """Return the plan that spends a part of rho as another preset does, and the rest as one."""
    spent: dict[str, dict[str, Fraction]] = {}
    for plan, weight in ((one, 1 - part), (other, part)):
        for level, share in plan.geolevels.items():
            for query, own in plan.queries[level].items():
                into = spent.setdefault(level, {})
                into[query] = into.get(query, Fraction(0)) + weight * share * own
    levels = {level: sum(queries.values(), Fraction(0)) for level, queries in spent.items()}
    return {
        "rho": one.rho,
        "geolevels": levels,
        "queries": {
            level: {query: each / levels[level] for query, each in queries.items() if each}
            for level, queries in spent.items()
        },
    }


def plans() -> dict[str, Mapping[str, object]]:
    """Return the plans by name."""
    found: dict[str, Mapping[str, object]] = {}
    for name, of in (("production", preset("pr2020-persons")), ("geolevels kept", KEPT)):
        found |= {
            f"{name}, rho x {factor}": {"preset": of.name, "rho": of.rho * factor} for factor in FACTORS
        }
    found |= {f"same rho, moved {float(step):.0%}": between(KEPT, MOVED, step) for step in STEPS}
    return found


def main() -> None:
    """Simulate every plan, and print its errors beside its losses."""
    given = arguments(__doc__, seeds=3).parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        run = load(rhode_island(given.data, run='estimator = "informed"'), Path(folder))
        errors = od.experiment(run, plans=plans(), seeds=given.seeds, source=WHERE, workers=1)
        chosen = errors[errors.metric.eq("mean_abs_error") & errors.geolevel.eq("block")]
        mean = chosen.groupby(["plan", "query"])["value"].mean()
        for name, plan in plans().items():
            account = od.account(run.with_(plan=plan))
            parts = account.as_json()["within"]["block_group"]["epsilon"]
            values = [float(mean[name, query]) for query in QUERIES]
            rows.append((name, float(account.loss), account.epsilon(), parts["cks"], *values))
            note(f"{name} done")
    text = markdown((*HEAD, *(f"block {query}" for query in QUERIES)), rows)
    deliver("within_block_group", text, rows, given.to)


if __name__ == "__main__":
    main()
