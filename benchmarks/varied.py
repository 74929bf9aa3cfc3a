"""Time families whose children have Hessians of their own against the shared Hessian and general solvers.

    python benchmarks/varied.py [--sizes block_group,tract,county] [--seeds 5] [--json FILE]

CPU milliseconds on one thread, median over synthetic families with production weights (families.varied): what
the
step of informed TopDown costs, from the stated family to the certified answer; beside it, the same family in
plain TopDown, with the child's own measurements and one Hessian for all (families.family, all query groups in
one pass, the same group quarters), as the solver of both is judged: informed TopDown should be no slower.

General solvers get the same problem in two forms, and the loosest tolerance that reaches a residual of 1e-7:
plain (one dense block per child), and lifted (a variable per kind and child, which leaves small blocks per
place; our structure, found for them). A solver that does not end in 60 s is left out.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import multiprocessing as mp
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy import sparse

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parent))

from families import VariedFamily, family, varied
from least_squares import cpu_ms, machine
from support.dense_curvature import DenseCurvature
from support.general import load

from opendas.solvers.least_squares.clarabel import Program, program
from opendas.solvers.least_squares.direct import solve_direct
from opendas.solvers.least_squares.solve import LIMIT, PRECISION, solve
from opendas.solvers.problem.certificate import certify
from opendas.solvers.problem.problem import Status

SIZES = {  # level, level below, children, cells, population, grandchildren
    "block_group": ("block_group", "block", 7, 140, 4_500.0, (6, 20)),
    "tract": ("tract", "block_group", 60, 300, 250_000.0, (4, 12)),
    "county": ("county", "tract", 5, 1_800, 1.05e6, (20, 160)),
    "county_texas": ("county", "tract", 254, 1_500, 29e6, (5, 80)),
    "state": ("state", "county", 51, 2_016, 331e6, (5, 100)),
}
AGAINST = ("block_group", "tract")
SOLVERS = ("piqp", "clarabel")
FORMS = ("plain", "lifted")
TOLERANCES = (1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12)
RESIDUAL = 1e-7
TIMEOUT = 60.0
REPEATS = {"block_group": 30, "tract": 5}


def made(size: str, seed: int) -> VariedFamily:
    """Make one family of a size."""
    level, below, C, n, population, grandchildren = SIZES[size]
    return varied(level, below, C, n, population, seed, grandchildren=grandchildren)


def lifted(one: VariedFamily) -> Program:
    """State a family with a variable per kind and child: small blocks per place, and one block of kinds."""
    problem, curvature = one.problem, one.curvature
    K = curvature.alpha.shape[1]
    apart = curvature.place[:, None] == curvature.place[None, :]
    within = np.where(apart, curvature.beta[:, curvature.kind[:, None], curvature.kind[None, :]], 0.0)
    base = program(replace(one.stated, hessians=DenseCurvature(within)), "plain")
    unit = 1.0 / float(np.einsum("cii->ci", within).max())  # that of the program
    m, C = len(base.child), problem.children
    alpha = [sparse.csc_array(unit * A) for A in curvature.alpha]
    column = base.child * K + curvature.kind[base.cell]
    sums = sparse.csr_array((np.ones(m), (column, np.arange(m))), shape=(C * K, m))
    minus = sparse.diags_array(-np.ones(C * K), format="csr")
    rows = sparse.hstack([base.A, sparse.csr_array((base.A.shape[0], C * K))])
    zeros = np.zeros(C * K)
    return Program(
        P=sparse.csc_array(sparse.block_diag([base.P, *alpha], format="csc")),
        cost=np.concatenate([base.cost, zeros]),
        A=sparse.csr_array(sparse.vstack([sparse.hstack([sums, minus]), rows], format="csr")),
        row_lower=np.concatenate([zeros, base.row_lower]),
        row_upper=np.concatenate([zeros, base.row_upper]),
        child=base.child,
        cell=base.cell,
        label=np.concatenate([np.full(C * K, -1), base.label]),
        unit=base.unit,
    )


def general(size: str, seed: int, name: str, form: str, pipe) -> None:
    """Time one general solver, in a process of its own."""
    one = made(size, seed)
    multipliers = solve_direct(one.stated, LIMIT, PRECISION).multipliers
    solver = load(name)
    start = time.process_time()
    if form == "plain":
        qp = program(one.stated, "plain")
    else:
        qp = lifted(one)
    stating = (time.process_time() - start) * 1e3
    best = None
    for tolerance in TOLERANCES:
        start = time.process_time()
        answer = solver.solve_program(qp, one.linear.shape, tolerance)
        ms = (time.process_time() - start) * 1e3
        fine = answer.status is Status.OPTIMAL
        residual = certify(one.stated, answer.x, multipliers) if fine else np.inf
        if best is None or residual < best["residual"]:
            best = {"ms": ms, "stating_ms": stating, "residual": float(residual), "tolerance": tolerance}
        if residual <= RESIDUAL:
            break
        pipe.send(best)
    pipe.send(best | {"done": True})


def timed(size: str, seed: int, name: str, form: str) -> dict | None:
    """Run :func:`general` with a time limit; None where it did not end."""
    here, there = mp.Pipe(duplex=False)
    process = mp.Process(target=general, args=(size, seed, name, form, there))
    process.start()
    result, end = None, time.monotonic() + TIMEOUT
    while (time.monotonic() < end and process.is_alive()) or here.poll():
        if here.poll(0.1):
            result = here.recv()
            if result.get("done"):
                break
    process.terminate()
    process.join()
    return result


def measure(size: str, seeds: int) -> dict:
    """One row of the table."""
    level, _, C, n, population, _ = SIZES[size]
    ours, plain, methods, residual, iterations = [], [], set(), 0.0, []
    repeat = REPEATS.get(size, 1)
    for seed in range(seeds if size in REPEATS else 1):
        one = made(size, seed)
        stated = family(level, C, n, population, seed, held_total=False, group_quarters=True).problem
        answer = solve(one.stated)
        if answer.status is not Status.OPTIMAL or solve(stated).status is not Status.OPTIMAL:
            raise SystemExit(f"{size}, seed {seed}: not solved")
        ours.append(cpu_ms(lambda one=one: solve(one.stated), repeat))
        plain.append(cpu_ms(lambda stated=stated: solve(stated), repeat))
        methods.add(answer.method)
        residual = max(residual, answer.residual)
        iterations.append(answer.iterations)
    row = {
        "size": size, "children": C, "cells": n, "families": len(ours), "methods": sorted(methods),
        "residual": residual, "iterations": statistics.median(iterations),
        "ours_ms": statistics.median(ours), "plain_ms": statistics.median(plain), "others": {},
    }  # fmt: skip
    for name in SOLVERS if size in AGAINST else ():
        for form in FORMS:
            row["others"][f"{name} {form}"] = timed(size, 0, name, form)
    return row


def show(row: dict) -> None:
    """Print one size."""
    print(
        f"{row['size']}: {row['children']} x {row['cells']}, {row['families']} families; "
        f"{row['ours_ms']:.2f} ms, {row['iterations']:.0f} iterations, residual {row['residual']:.1e}, "
        f"{'/'.join(row['methods'])}; one Hessian for all {row['plain_ms']:.2f} ms "
        f"({row['ours_ms'] / row['plain_ms']:.2f} x)",
        flush=True,
    )
    for name, one in row["others"].items():
        if one is None:
            print(f"    {name:<16} not finished in {TIMEOUT:.0f} s", flush=True)
            continue
        reached = "" if one["residual"] <= RESIDUAL else f"   (residual {one['residual']:.1e}: not reached)"
        print(
            f"    {name:<16} {one['ms']:>10.1f} ms {one['ms'] / row['ours_ms']:>7.1f} x    "
            f"and {one['stating_ms']:.1f} ms to state it{reached}",
            flush=True,
        )


def main() -> None:
    """Parse, run, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="block_group,tract,county", help=f"of {', '.join(SIZES)}; or all")
    parser.add_argument("--seeds", type=int, default=5, help="families per small size")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    rows = []
    for size in SIZES if arguments.sizes == "all" else arguments.sizes.split(","):
        rows.append(measure(size, arguments.seeds))
        show(rows[-1])
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
