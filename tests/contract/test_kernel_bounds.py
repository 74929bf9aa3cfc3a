"""Kernels stay inside their arrays: compiled code does not check, so the same code runs interpreted here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAM = """
import runpy, sys
import numpy as np
from opendas.solvers.problem.problem import FamilyProblem, Status
from opendas.solvers.rounding.rounding import round_family
from opendas.solvers.least_squares.solve import solve

make = runpy.run_path(sys.argv[1])["random_family"]

def redundant(seed):
    # Exact totals and exact answers of a partition that imply them: more groups than cells.
    rng = np.random.default_rng(seed)
    C, n = int(rng.integers(2, 5)), int(rng.integers(1, 4))
    truth = rng.poisson(3.0, (C, n)).astype(float)
    groups = np.vstack([np.ones((1, n), bool), np.eye(n, dtype=bool), np.ones((1, n), bool)])
    held = truth @ groups.T
    return FamilyProblem(
        terms=((1.0, np.zeros(n, np.int32)), (0.5, np.arange(n, dtype=np.int32))),
        linear=truth + rng.normal(0.0, 2.0, (C, n)),
        parent=truth.sum(0),
        groups=groups,
        lower=held,
        upper=held,
    )

done = 0
for problem in [redundant(seed) for seed in range(8)] + [make(seed, cells=6) for seed in range(25)]:
    answer = solve(problem)
    done += answer.status is Status.OPTIMAL
    if answer.status is Status.OPTIMAL and problem.parent is not None:
        sums = answer.x.sum(0)
        x = answer.x * np.divide(problem.parent, sums, out=np.ones_like(sums), where=sums > 0)
        each = np.arange(problem.cells, dtype=np.int32)
        whole = np.array_equal(problem.parent, np.rint(problem.parent))
        if whole and np.allclose(x.sum(0), problem.parent):
            round_family(
                x, problem.parent.astype(np.int64), problem.mask, ((np.zeros_like(each), each),),
                None, None, None, np.arange(problem.children, dtype=np.uint64),
            )
print(done)
"""


def test_kernels_stay_inside_their_arrays() -> None:
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(ROOT / "tests" / "support" / "random_family.py")],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) >= 20
