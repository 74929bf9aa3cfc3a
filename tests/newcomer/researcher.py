"""A researcher: one part changed, twenty draws compared, noise by its exact law."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from steps import step

import opendas as od
from opendas.demo import write_demo

persons, _ = step("a synthetic state of 200 blocks", lambda: write_demo(Path("state"), 200))
run = od.load(persons)
frame = step(
    "an experiment: 3 seeds at two budgets, two estimators",
    lambda: od.experiment(
        run, rhos=["1/2", 2], seeds=3, estimators=["topdown", "informed"], source="synthetic", workers=1
    ),
)
print(frame.head(3).to_string())
draws = step(
    "100,000 draws of the discrete Gaussian",
    lambda: od.sample_discrete_gaussian(4, 100_000, np.random.default_rng(1)),
)
assert abs(draws.var() - od.discrete_gaussian(4).variance) < 0.1
other = run.with_(rho="1/4")
assert other.budget.total * 4 == 1
plan = step("a plan of another budget", lambda: od.plan(other))
assert max(row.variance for row in plan) > max(row.variance for row in od.plan(run.with_(rho=1)))
