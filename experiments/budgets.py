"""Errors of Rhode Island 2010 at five budgets, twenty seeds each, by one call of ``od.experiment``.

    python experiments/budgets.py [DATA] [--seeds 20] [--estimator topdown] [--state FILE] [--to FOLDER]

Prints the mean absolute error of blocks and tracts against rho, and the processor time that the call took.
With ``--state`` a stopped call goes on where it was; the frame is the same, whatever was kept.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from experiment import arguments, deliver, load, markdown, note, rhode_island

import opendas as od
from opendas.runs.context.run import Run

RHOS = ("1/4", "1", "293764/114921", "6", "12")
"""The third is that of the production run."""
QUERIES = ("total", "votingage", "hispanic", "detailed")
SHOWN = ("tract", "block")
WHERE = "2010 Census, P.L. 94-171, Rhode Island"


def table(errors: object) -> str:
    """Return a Markdown table of a frame of :func:`opendas.experiment`: mean over seeds, and its error."""
    curves = od.curves(errors[errors.metric.eq("mean_abs_error")])
    found = curves.set_index(["geolevel", "query", "loss"])[["mean", "standard_error"]]
    losses = sorted(curves["loss"].unique())
    rows = [
        [level, query]
        + ["{:.2f} ± {:.2f}".format(*found.loc[(level, query, rho)].fillna(0.0)) for rho in losses]
        for level in SHOWN
        for query in QUERIES
    ]
    return markdown(["Geolevel", "Query", *(f"rho {rho:.4g}" for rho in losses)], rows)


def simulated(run: Run, seeds: int, estimator: str, state: Path | None) -> tuple[object, float]:
    """Return the frame of errors and the processor seconds that it took, in one process."""
    began = time.process_time()
    errors = od.experiment(
        run,
        rhos=RHOS,
        seeds=seeds,
        estimators=[estimator],
        source=WHERE,
        state=state,
        workers=1,
        progress=lambda stage, done, total: note(f"{stage}: {done} of {total}"),
    )
    return errors, time.process_time() - began


def main() -> None:
    """Run the experiment."""
    parser = arguments(__doc__, seeds=20)
    parser.add_argument("--estimator", default="topdown")
    parser.add_argument("--state", type=Path, default=None, help="file of finished simulations")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = load(rhode_island(given.data), Path(folder))
        errors, seconds = simulated(run, given.seeds, given.estimator, given.state)
    count = len(errors[["rho", "seed"]].drop_duplicates())
    text = f"{table(errors)}\n\n{count} simulations, {seconds:,.0f} s of processor time."
    deliver("budgets", text, errors.to_dict("records"), given.to)


if __name__ == "__main__":
    main()
