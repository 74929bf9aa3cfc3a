"""PH1_num by state and race beside tmlt.analytics on the same synthetic households: exact counts, and noise.

    python experiments/phsafe_beside_tumult.py --peer-python PEER/bin/python

PEER is an environment of its own with ``tmlt.analytics`` and Java. Without noise, and with a tau above every
household, both must count the same in all 714 cells. With the production budget, the variance that OpenDAS
writes must be the parameter of the other's noise, and the spread of both around the counts must be that of
this variance: the sum of squares over sigma squared is chi-squared with 714 degrees of freedom.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from scipy.stats import chi2

from opendas.phsafe.run import HouseholdOptions, run_private

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support.made_phsafe import write_made

PEER_SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "phsafe_peer.py"
TABLE, LEVEL = "PH1_num", "state_A-G"
PRODUCTION_RHO, PRODUCTION_TAU = "0.141622", 10

Counts = dict[tuple[str, str, str], int]


def peer(python: Path, folder: Path, tau: int, rho: str) -> tuple[Counts, float]:
    """Return the other's counts by state, group and cell, and the parameter of its noise."""
    out = folder / "peer.csv"
    command = [str(python), str(PEER_SCRIPT), str(folder), str(out), "--tau", str(tau), "--rho", rho]
    text = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder).stdout
    (noise,) = json.loads(text.strip().splitlines()[-1])["noise"]
    rows = [line.split("|") for line in out.read_text().splitlines()]
    return {(state, group, cell): int(count) for state, group, cell, count in rows}, float(
        noise["noise_parameter"]
    )


def ours(folder: Path, scratch: Path, tau: int, rho: str) -> tuple[Counts, float]:
    """Return our counts, and the variance that stands beside them."""
    document = json.loads((folder / "config.json").read_text())
    for table, levels in document["privacy_budget"].items():
        for level in levels:
            levels[level] = 0
            if (table, level) == (TABLE, LEVEL):
                levels[level] = math.inf if rho == "inf" else float(rho)
    document["tau"][TABLE] = tau
    config, out = scratch / f"{rho}.json", scratch / f"out-{rho}"
    config.write_text(json.dumps(document))
    run_private(config, folder, out, HouseholdOptions(seed=1))
    with next((out / TABLE).glob("*.csv")).open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="|"))
    counts = {
        (row["REGION_ID"], row["ITERATION_CODE"], row["PH1_NUM_DATA_CELL"]): int(row["COUNT"]) for row in rows
    }
    (variance,) = {float(row["VARIANCE"]) for row in rows}
    return counts, variance


def spread(noisy: Counts, exact: Counts, variance: float) -> tuple[float, float]:
    """Return the mean square of the noise over its variance, and how likely one so far from 1 is."""
    squares = np.array([(noisy[key] - exact[key]) ** 2 for key in exact], dtype=float)
    statistic, cells = squares.sum() / variance, len(squares)
    tail = min(chi2.cdf(statistic, cells), chi2.sf(statistic, cells))
    return float(statistic / cells), float(2 * tail)


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer-python", type=Path, required=True)
    parser.add_argument("--households", type=int, default=20_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        scratch, folder = Path(name), Path(name) / "made"
        made = write_made(folder, given.households, seed=3)
        exact, _ = ours(folder, scratch, 99, "inf")
        theirs, _ = peer(given.peer_python, folder, 99, "inf")
        differing = sum(exact[key] != theirs[key] for key in exact)
        print(f"{made.persons:,} persons; without noise: {differing} of {len(exact)} cells differ")
        assert exact.keys() == theirs.keys()
        assert differing == 0
        # Either truncation at 10 takes some persons off these counts: few beside a noise of 41.
        noisy, variance = ours(folder, scratch, PRODUCTION_TAU, PRODUCTION_RHO)
        other, parameter = peer(given.peer_python, folder, PRODUCTION_TAU, PRODUCTION_RHO)
        print(f"variance: {variance!r} written by OpenDAS, {parameter!r} the parameter of tmlt.analytics")
        assert math.isclose(variance, parameter, rel_tol=1e-12)
        for who, counts in (("OpenDAS", noisy), ("tmlt.analytics", other)):
            ratio, chance = spread(counts, exact, variance)
            print(f"{who}: mean square of the noise over the variance {ratio:.3f} (p {chance:.2f})")


if __name__ == "__main__":
    main()
