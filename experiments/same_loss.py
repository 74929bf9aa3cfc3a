"""Better shares of the production's rho, found on synthetic counts, and what they do to Rhode Island 2010.

    python experiments/same_loss.py [DATA] [--seeds 3] [--to FOLDER]

``opendas tune --same-loss`` looks for plans of the estimator ``informed`` that lower the errors of blocks and
raise no other beside those of ``topdown`` with the production's shares; those of the state, a single geounit,
may grow, and those of places may not. It sees the frame's public sizes alone. Its choice, its best plan that
keeps geolevels' shares, and two presets are then simulated on the counts of 2010.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from experiment import PUERTO_RICO, arguments, deliver, load, markdown, note, rhode_island

import opendas as od
from opendas.tuning.picture import improvement_svg
from opendas.tuning.same_loss import KEPT, Judged, best

WHERE = "2010 Census, P.L. 94-171, Rhode Island"
LEVELS = ("county", "tract", "block_group", "block", "place", "sldl")
QUERIES = ("total", "votingage", "hispanic", "hispanic * cenrace", "detailed", "hhgq")


def tell(plan: Judged) -> None:
    """Say what a plan did."""
    note(f"{plan.name}: {plan.aim:+.1%}, worst {plan.worst:+.1%}, within {plan.within:.2f}, {plan.worse}")


def main() -> None:
    """Tune, then simulate what was found on the true counts."""
    given = arguments(__doc__, seeds=3).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = load(rhode_island(given.data, PUERTO_RICO, run='estimator = "informed"'), Path(folder))
        started, worked = time.monotonic(), time.process_time()
        found = od.improve(run, against="topdown", may_worsen=("state",), areas=("place",), tell=tell)
        took = f"{time.monotonic() - started:.0f} s, {time.process_time() - worked:.0f} s of processor time"
        kept = next(plan for plan in best(found.found) if plan.kind == KEPT)
        mechanism = run.resolved.mechanism
        plans = {
            found.chosen.name: found.budget,
            kept.name: kept.candidate.budget(mechanism),
            **{name: {"preset": name} for name in ("opendas2026-persons", "opendas2026-blocks-persons")},
        }
        options = {"seeds": given.seeds, "source": WHERE, "entities": True, "workers": 1}
        before = od.experiment(run.with_(estimator="topdown"), **options)
        after = od.experiment(run, plans=plans, **options)
    rows = []
    for level in LEVELS:
        for query in QUERIES:
            before_here, after_here = (
                table[table.metric.eq("mean_abs_error") & table.geolevel.eq(level) & table["query"].eq(query)]
                for table in (before, after)
            )
            base = before_here["value"].mean()
            means = after_here.groupby("plan")["value"].mean()
            rows.append(
                (level, query, float(base), *(f"{100 * (means[name] / base - 1):+.0f}" for name in plans))
            )
    judged = [
        (
            plan.name,
            f"{100 * plan.aim:+.0f}",
            f"{100 * plan.worst:+.0f}",
            f"{plan.within:.2f}",
            len(plan.worse),
        )
        for plan in found.found
    ]
    text = "\n\n".join(
        (
            f"{len(judged)} plans in {took}; chosen: {found.chosen.name}, {found.confirmed.aim:+.1%}; "
            f"traded: {[str(change.row) for change in found.trades]}",
            markdown(("Plan", "Blocks, %", "Worst, %", "Epsilon within a block group", "Worse"), judged),
            markdown(("Geolevel", "Query", "TopDown, production", *(f"{name}, %" for name in plans)), rows),
        )
    )
    deliver("same_loss", text, found.to_dict(), given.to)
    if given.to is not None:
        (given.to / "same_loss.svg").write_text(improvement_svg(found), encoding="utf-8")
        (given.to / "same_loss.csv").write_text(found.csv(), encoding="utf-8")


if __name__ == "__main__":
    main()
