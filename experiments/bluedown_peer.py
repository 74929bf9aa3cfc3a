"""Runs the reference implementation of BlueDown on a noisy measurement file; started by ``bluedown.py``.

    PYTHONPATH=CHECKOUT PY bluedown_peer.py NMF WHAT OUT.npz

`PY` has what the checkout requires; nothing of OpenDAS is needed. The state is the root of the tree. `WHAT`:

- ``plain``: least squares from the measurements alone;
- ``masks``: also given which group quarters types a geounit has, and that no minor lives in nursing homes;
- ``total``: also given the exact total of the state;
- ``constrained``: after ``total``, the passes from the top that make counts.

The peer solves its least-squares problems with Gurobi, or with SCIP, which does not finish the first of them:
``constrained`` hands each, as the peer states it, to Clarabel, and what is rounded to SCIP. ``scip`` leaves
everything to SCIP.

Writes, for each geolevel, geocodes, values and covariances (compressed, as the peer keeps them), and prints
seconds by step and the peak of memory as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from bluedown_memory import most_memory
from census_bluedown import block, constants, constrain, io
from census_bluedown import linear_postprocessing as linear

SHAPE = block.BlockShape(
    shape=(8, 2, 2, 63),
    num_asymmetric_features=3,
    asymmetric_queries=(block.AsymmetricQuery(num_features=4, sliced_feature=0, partition=(1, 4, 3)),),
)


COUNTS = ("constrained", "scip")


class Fitted:
    """Values of the variables of a model, asked for as those of the peer's solver are."""

    def __init__(self, values: dict[int, float]) -> None:
        self._values = values

    def variable_values(self, variable: Any) -> float:
        """Return the value of a variable."""
        return self._values[variable.id]


def convex(model: Any, otherwise: Callable[[Any], Any], most: int) -> Any:
    """Solve a model of continuous variables and convex squares; others are left to `otherwise`.

    Upper bounds of more than `most`, the number of people, say nothing, and would only hurt the scaling.

    Raises
    ------
    RuntimeError
        If there is no solution.
    """
    import clarabel
    from scipy import sparse

    given = model.export_model()
    variables, rows = given.variables, given.linear_constraints
    if any(variables.integers):
        return otherwise(model)
    ids, names = np.array(variables.ids), np.array(rows.ids)
    squares, matrix, line = (
        given.objective.quadratic_coefficients,
        given.linear_constraint_matrix,
        given.objective,
    )
    shape = (len(ids), len(ids))
    i, j = (np.searchsorted(ids, found) for found in (squares.row_ids, squares.column_ids))
    half = sparse.coo_array((np.array(squares.coefficients), (i, j)), shape)
    linear = np.zeros(len(ids))
    linear[np.searchsorted(ids, line.linear_coefficients.ids)] = line.linear_coefficients.values
    i, j = np.searchsorted(names, matrix.row_ids), np.searchsorted(ids, matrix.column_ids)
    of_rows = sparse.coo_array((np.array(matrix.coefficients), (i, j)), (len(names), len(ids))).tocsr()
    both = sparse.vstack([of_rows, sparse.eye_array(len(ids), format="csr")]).tocsr()
    low = np.concatenate([rows.lower_bounds, variables.lower_bounds])
    high = np.concatenate([rows.upper_bounds, variables.upper_bounds])
    high[high > most] = np.inf
    # A row of zeros says 0 = 0: the cells that are closed to all children.
    kept = np.diff(both.indptr) > 0
    both, low, high = both[kept], low[kept], high[kept]
    same, below, above = low == high, (low < high) & np.isfinite(high), (low < high) & np.isfinite(low)
    solver = clarabel.DefaultSolver(
        sparse.triu(half + half.T).tocsc(),
        linear,
        sparse.vstack([both[same], both[below], -both[above]]).tocsc(),
        np.concatenate([low[same], high[below], -low[above]]),
        [clarabel.ZeroConeT(int(same.sum())), clarabel.NonnegativeConeT(int(below.sum() + above.sum()))],
        _quiet(clarabel.DefaultSettings()),
    )
    found = solver.solve()
    if "Solved" not in str(found.status):
        raise RuntimeError(f"{len(ids)} variables: {found.status}")
    values = np.clip(np.array(found.x), variables.lower_bounds, variables.upper_bounds)
    return Fitted(dict(zip(ids.tolist(), values.tolist(), strict=True)))


def _quiet(settings: Any) -> Any:
    settings.verbose = False
    return settings


class Tree:
    """The measurements and constraints of one state, geolevel by geolevel."""

    def __init__(self, folder: Path) -> None:
        (below,) = (folder / "State.parquet" / "Constraint").iterdir()
        suffixes = (constants.NMF_PATH_SUFFIX, constants.CONSTRAINT_PATH_SUFFIX)
        measured, bound = (io.InputFormatIO(str(folder), below.name, True, suffix) for suffix in suffixes)
        self.measured = {level: measured.read(level) for level in constants.LEVELS}
        self.bounds = {level: bound.read(level) for level in constants.LEVELS}
        self.own: dict[str, Any] = {}
        self.lower: dict[str, Any] = {}

    def total(self) -> int:
        """Exact total of the state."""
        frame = self.bounds["State"]
        return int(frame.loc[frame["query_name"] == "total_con", "value"].item()[0])

    def up(self, what: str) -> None:
        """Estimate every geounit from itself, and from its subtree."""
        for level in constants.LEVELS:
            own = linear.process_blocks(SHAPE, self.measured[level])
            if what != "plain":
                own = constrain.constrain_blocks(SHAPE, own, self.bounds[level])
            self.own[level] = own
        self.own["State"] = self.held(self.own["State"], what)
        below = None
        for level in reversed(constants.LEVELS):
            own = self.own[level].copy()
            below = own if below is None else linear.bottom_up_step(SHAPE, below, own)
            self.lower[level] = below
        self.lower["State"] = self.held(self.lower["State"], what)

    def held(self, frame: Any, what: str) -> Any:
        """Hold the state's total, where it is given."""
        if what not in ("total", *COUNTS):
            return frame
        frame = frame.copy()
        frame["estimate"] = [
            constrain.apply_sum_constraint(SHAPE, estimate, self.total()) for estimate in frame["estimate"]
        ]
        return frame

    def down(self) -> dict[str, Any]:
        """Estimate every geounit from everything."""
        found = {"State": self.lower["State"]}
        above = self.own["State"].copy()
        for level in constants.LEVELS[1:]:
            above, found[level] = linear.top_down_step(
                SHAPE, self.own[level].copy(), self.lower[level].copy(), above
            )
        return found

    def counts(self) -> dict[str, Any]:
        """Make counts, from the top: squares, then rounding, one family after the other."""
        import pandas as pd
        from census_bluedown import estimate, nonlinear_postprocessing, root_optimization

        frame = self.bounds["State"]
        upper, lower = (
            frame.loc[frame["query_name"] == name, "value"].item()
            for name in (constants.FIRST_FEATURE_UB_CONSTRAINT, constants.FIRST_FEATURE_LB_CONSTRAINT)
        )
        kinds = constants.ObjectiveFunctionType
        value = self.lower["State"]["estimate"].item()
        whole: np.ndarray = np.zeros(SHAPE.length, dtype=int)
        for kind in (kinds.FULL, kinds.FULL_ROUNDER):
            variables, result = root_optimization.run_root_optimization(
                SHAPE, kind, "", value, upper, lower, self.total()
            )
            fitted = np.array([v if isinstance(v, float) else result.variable_values(v) for v in variables])
            if kind is kinds.FULL:
                whole = np.floor(fitted).astype(int)
                value = estimate.Estimate(val=fitted, cov=np.array(0))
            else:
                whole = whole + np.rint(fitted).astype(int)
        found = {"State": pd.DataFrame({"geocode": self.lower["State"]["geocode"], "value": [whole]})}
        for above, level in zip(constants.LEVELS, constants.LEVELS[1:], strict=False):
            start = time.process_time()
            found[level] = nonlinear_postprocessing.optimization_top_down_step(
                SHAPE, level, self.lower[level].copy(), found[above], self.bounds[level]
            )
            sys.stderr.write(f"{level}: {time.process_time() - start:.1f} s\n")
        return found


def saved(found: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return arrays to write."""
    out = {}
    for level, frame in found.items():
        frame = frame.sort_values("geocode")
        out[f"{level}/geocode"] = frame["geocode"].to_numpy(dtype="U")
        if "value" in frame.columns:
            out[f"{level}/value"] = np.stack([np.asarray(value) for value in frame["value"]])
            continue
        out[f"{level}/value"] = np.stack([estimate.val for estimate in frame["estimate"]])
        out[f"{level}/covariance"] = np.stack([estimate.cov for estimate in frame["estimate"]])
    return out


def main() -> None:
    """Run one problem."""
    folder, what, to = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    tree = Tree(folder)
    seconds = {}
    start = time.process_time()
    tree.up(what)
    seconds["up"] = time.process_time() - start
    if what in COUNTS:
        import census_bluedown.nonlinear_solver as solver

        solver.SOLVER = constants.SolverType.SCIP
        if what == "constrained":
            solver.do_solve = partial(convex, otherwise=solver.do_solve, most=tree.total())
    start = time.process_time()
    found = tree.counts() if what in COUNTS else tree.down()
    seconds["down"] = time.process_time() - start
    np.savez(to, **saved(found))  # type: ignore[arg-type]
    sys.stdout.write(json.dumps({"seconds": seconds, "peak": most_memory()}) + "\n")


if __name__ == "__main__":
    main()
