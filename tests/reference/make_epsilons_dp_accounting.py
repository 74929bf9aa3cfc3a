"""Write ``epsilons_dp_accounting.csv``: conversions by a peer library.

Run with dp-accounting 0.6.0 installed (it is no dependency of the project)::

    python tests/reference/make_epsilons_dp_accounting.py

The Renyi curve of a rho-zCDP mechanism is ``order -> order * rho``; the peer takes the best of a list of
orders.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta, compute_epsilon

RHOS = (
    "1e-6",
    "0.001",
    "0.0035",
    "0.0749437",
    "0.1885",
    "0.5",
    "1",
    "1.05",
    "2.5562256",
    "10",
    "100",
    "10000",
)
DELTAS = ("1e-12", "1e-10", "1e-6", "1e-2")
COARSE = 1.0 + np.logspace(-4, 10, 4001)


def refined(rho: float, best: float) -> np.ndarray:
    """Orders close to the best of the coarse grid."""
    return 1.0 + (best - 1.0) * np.logspace(-0.01, 0.01, 4001)


def main() -> None:
    """Compute and write the table."""
    with Path(__file__).with_name("epsilons_dp_accounting.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["rho", "delta", "epsilon", "delta_at_epsilon"])
        for rho_text in RHOS:
            rho = float(rho_text)
            for delta_text in DELTAS:
                delta = float(delta_text)
                _, best = compute_epsilon(COARSE, COARSE * rho, delta)
                orders = refined(rho, best)
                epsilon, _ = compute_epsilon(orders, orders * rho, delta)
                back, _ = compute_delta(orders, orders * rho, epsilon)
                writer.writerow([rho_text, delta_text, repr(float(epsilon)), repr(float(back))])


if __name__ == "__main__":
    main()
