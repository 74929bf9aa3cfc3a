"""What structural zeros and closed categories are worth to least squares: Rhode Island 2010, persons.

    python experiments/masks.py [DATA] [--to FOLDER]

Standard errors of the least-squares estimate from all measurements of the plan, standard spine, production
budget of Puerto Rico, the state's total exact: without masks, with structural zeros, and with the categories
of group quarters that a block does not have. Mean over geounits and rows; closed rows are zero. Nothing
is drawn, and no count is read but for the frame.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from experiment import arguments, deliver, load, markdown, rhode_island

from opendas.constraints.table import bound_table
from opendas.gls.downward import down_pass
from opendas.gls.model import TreeModel
from opendas.gls.upward import up_sweep
from opendas.measurement.plan import MeasurementPlan
from opendas.runs.context.run import Run

QUERIES = ("total", "votingage", "hispanic", "cenrace", "hispanic * cenrace", "detailed")
MASKS = ("none", "structural zeros", "closed categories too")


def model_of(run: Run, masks: str) -> tuple[MeasurementPlan, TreeModel]:
    """Return the plan and the model with some masks."""
    product = run.product
    if masks != MASKS[2]:
        product = replace(product, bounds=())
    if masks == MASKS[0]:
        product = replace(product, structural_zeros=())
    plan = MeasurementPlan(product, run.spine, run.budget)
    total = np.full((len(run.spine.levels[0]), 1), 10**6)  # no variance depends on it
    return plan, TreeModel.of_plan(plan, bound_table(product, run.frame, run.spine, {"total": total}))


def mean_errors(plan: MeasurementPlan, model: TreeModel) -> dict[tuple[str, str], float]:
    """Return the mean standard error by geolevel and query group."""

    def nothing(level: int, first: int, geounits: int) -> list[np.ndarray]:
        return [np.zeros((geounits, q.query.size), np.int64) for q in plan.levels[level].queries]

    sums: dict[tuple[str, str], float] = {}
    for part in down_pass(up_sweep(model, nothing)):
        geolevel = plan.spine.names[part.level]
        for name in QUERIES:
            errors = np.sqrt(np.maximum(part.covariance.quadratic(plan.product.workload.group(name)), 0.0))
            key = (geolevel, name)
            sums[key] = sums.get(key, 0.0) + float(errors.mean(axis=1).sum())
    sizes = {level.name: len(level) for level in plan.spine.levels}
    return {key: value / sizes[key[0]] for key, value in sums.items()}


def main() -> None:
    """Run and print."""
    options = arguments(__doc__, seeds=0).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = load(rhode_island(options.data), Path(folder))
        found = {masks: mean_errors(*model_of(run, masks)) for masks in MASKS}
        levels = run.spine.names[1:]
    rows = [
        (level, name, *(f"{found[masks][level, name]:.2f}" for masks in MASKS))
        for level in levels
        for name in QUERIES
    ]
    text = markdown(("Geolevel", "Query group", *(f"masks: {masks}" for masks in MASKS)), rows)
    figures = [
        {"masks": masks, "geolevel": level, "query": name, "mean_sd": value}
        for masks, table in found.items()
        for (level, name), value in table.items()
    ]
    deliver("masks", text, figures, options.to)


if __name__ == "__main__":
    main()
