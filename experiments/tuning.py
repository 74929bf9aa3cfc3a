"""The two searches of ``opendas tune`` on the same targets: ours, and level by level as for the 2020 Census.

A synthetic state of some hundred blocks stands in. Targets: the share of the largest race or ethnicity group
is within five points in 95 % of the block groups with 200 people or more, and the mean error of tract totals
is at most five. Each search judges by the same seeds; its plan is confirmed by 25 others.

    python experiments/tuning.py [--blocks 600] [--runs 4] [--tolerance 0.15] [--to FOLDER]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from experiment import deliver, markdown, note

import opendas as od
from opendas.demo import write_demo

TARGETS = """\
[[targets]]
geolevel = "block_group"
measure = "largest-group"
within = "5"
share = "0.95"
population = [200]

[[targets]]
geolevel = "tract"
measure = "mean-absolute-error"
query = "total"
at_most = "5"
"""


def main() -> None:
    """Tune by both methods and print one line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=600)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--tolerance", type=float, default=0.15)
    parser.add_argument("--to", type=Path, default=None)
    options = parser.parse_args()
    rows, figures = [], {}
    with tempfile.TemporaryDirectory() as folder:
        persons, _ = write_demo(Path(folder), options.blocks)
        targets = Path(folder) / "targets.toml"
        targets.write_text(TARGETS, encoding="utf-8")
        for method in ("search", "level-by-level"):
            found = od.tune(
                od.load(persons),
                targets,
                source="a synthetic state",
                method=method,
                runs=options.runs,
                tolerance=options.tolerance,
                queries=False,
                tell=lambda step: note(f"{step.stage}: {float(step.candidate.total):.4g} {step.passed}"),
            )
            losses = {level: float(loss) for level, loss in found.candidate.levels.items()}
            rows.append(
                [
                    method,
                    f"{float(found.candidate.total):.3g}",
                    found.candidate.strategy.name,
                    *(f"{loss:.2g}" for loss in losses.values()),
                    found.made,
                    *(f"{confirmation.together:.3g}" for confirmation in found.confirmations),
                ]
            )
            figures[method] = found.to_dict()
    header = ["search", "rho", "strategy", *losses, "runs made", "largest group", "tract totals"]
    deliver("tuning", markdown(header, rows), figures, options.to)


if __name__ == "__main__":
    main()
