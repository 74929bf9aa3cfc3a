"""What `opendas plan` finds on synthetic counts, beside the errors of simulated runs.

    python experiments/trial.py [DATA] [--seeds 3] [--to FOLDER]

Rhode Island 2010, persons and units, the plans of ``experiments/no_row_worse.py``. The trial sees public
sizes alone: housing units and facilities of the first 2,000 blocks. The runs are of the whole state, and
compared with its counts. Positive: the trial says more than the runs have.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from experiment import arguments, deliver, figures_of, load, markdown, note, rhode_island
from no_row_worse import SETTINGS

from opendas.metrics.evaluate import evaluate
from opendas.runs.simulated.simulation import Simulation
from opendas.runs.simulated.trial import Trial


def main() -> None:
    """Compare plan by plan."""
    given = arguments(__doc__, seeds=3).parse_args()
    rows: list[tuple[object, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        for product, settings in SETTINGS.items():
            for name, (budget, estimator) in settings.items():
                text = rhode_island(given.data, f'preset = "{budget}"', run=f'estimator = "{estimator}"')
                run = load(text.replace('"pl94-persons"', f'"pl94-{product}"'), Path(folder))
                truth = run.read()
                run = run.on_frame(truth.frame)
                trial = Trial.of(run)
                if trial is None:
                    raise AssertionError("both products are tried")
                simulation = Simulation.of(run, truth.histogram)
                found = []
                for seed in range(1, given.seeds + 1):
                    estimate = simulation.estimate(seed, "trial-beside-runs")
                    found.append(figures_of(evaluate(truth.histogram, estimate, truth.frame, run.product)))
                for row in trial.errors():
                    key = (row.geolevel, row.query, "", "mean_abs_error")
                    mean = float(np.mean([figures[key] for figures in found]))
                    if mean:
                        tried = row.mean_abs_error
                        rows.append((name, *key[:2], tried, mean, f"{100 * (tried / mean - 1):+.0f} %"))
                note(f"{name} done")
    text = markdown(("Plan", "Geolevel", "Query", "Tried", "Simulated runs", "Difference"), rows)
    deliver("trial", text, rows, given.to)


if __name__ == "__main__":
    main()
