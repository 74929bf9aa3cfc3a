"""Write ``exact_loss_dp_accounting.csv``: compositions of discrete Gaussians by a peer library.

Run with dp-accounting 0.6.0 installed (it is no dependency of the project)::

    python tests/reference/make_exact_loss_dp_accounting.py

Each case is a list of ``count x sigma2``: that many answers, each off by one between the neighbours. The peer
rounds losses up to a grid of the given step: its epsilons are upper bounds of the true ones.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

from dp_accounting.pld import privacy_loss_distribution as pld

STEP = 5e-5
# The persons plan of 2020: two answers for every query group of every geolevel.
PERSONS = (
    "2x214437516707/177339451520 2x1930879772721/629089730720 2x1930879772721/475230248192 "
    "2x214437516707/45609211112 2x322048826043/65018345474 2x1930879772721/389260801120 "
    "2x322048826043/52707577526 2x214437516707/21246481300 2x643312550121/33003210344 "
    "2x12613971571/641580576 2x214437516707/10810515200 2x322048826043/16212541396 "
    "2x12613971571/94004480 2x322048826043/2253610526 2x113525744139/794337856 "
    "2x643312550121/4420854436 2x643626590907/2951740672 4x214437516707/564026880 "
    "2x322048826043/672719560 4x1929937650363/3971689280 4x643312550121/1225583408 "
    "2x643312550121/1147148420 2x214542196969/368967584 12x214437516707/282013440 "
    "2x322048826043/269087824 2x1929937650363/1588675712 12x643312550121/437708360 "
    "12x643626590907/368967584 4x214437516707/113099140 10x322048826043/168179890 "
    "10x1929937650363/794337856 2x214437516707/48471060 12x643312550121/80785100"
)
CASES = (
    "2x2",
    "1x1/2 1x3/2",
    "2x5 2x10 2x40",
    "10x9",
    "3x1/3 2x7/2 5x20",
    "64x100",
    "2x10.0898 2x74.4 2x118.2 2x560.8 2x33.7 2x21.4",
    PERSONS,
)
DELTAS = (1e-10, 1e-6, 1e-2)


def number(text: str) -> float:
    """Read a decimal or a fraction."""
    top, _, bottom = text.partition("/")
    return float(top) / float(bottom or 1)


def main() -> None:
    """Compute and write the table."""
    with Path(__file__).with_name("exact_loss_dp_accounting.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["answers", "delta", "epsilon", "step"])
        for case in CASES:
            composed = pld.identity(STEP)
            for part in case.split():
                count, _, sigma2 = part.partition("x")
                one = pld.from_discrete_gaussian_mechanism(
                    math.sqrt(number(sigma2)), value_discretization_interval=STEP
                )
                composed = composed.compose(one.self_compose(int(count)))
            for delta in DELTAS:
                writer.writerow([case, repr(delta), repr(composed.get_epsilon_for_delta(delta)), repr(STEP)])


if __name__ == "__main__":
    main()
