"""Totals of places and districts as query groups of their own, beside block groups built around places.

    python experiments/off_spine.py [DATA] [--seeds 3] [--to FOLDER]

Rhode Island 2010, persons, ``informed``, equal rho. Without such query groups all of the production's rho
goes to the release, on the standard spine and on one with block groups around places, with the same seeds.
With them the standard spine is released with 95 %, and 5 % measure the total of every area of some
categories. A person is in one area of a category, so that an answer costs what one of a geolevel costs. Then
block totals are corrected by least squares: those of a block group keep their sum but for its own small
error, and the error of a block is taken to have a variance like its count.

Corrected totals are fractions and may be negative: this is what such a design could give, not an estimator.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
from experiment import Figures, arguments, average, deliver, load, markdown, note, plain, rhode_island

import opendas as od
from opendas.budget.presets import preset
from opendas.geography.frame import Frame
from opendas.readers.input.spec import InputData

SHARE = Fraction(1, 20)
SPINES = {
    "none": "",
    "none; block groups around places": '[geography]\nspine = "optimized"\nentities = ["place"]',
}
MEASURED = (("place",), ("sldl",), ("place", "sldl"), ("place", "cousub", "sldl", "sldu"))
AREAS = ("place", "cousub", "sldl", "sldu", "block_group", "block")
LEAST = 5.0
"""Variance of the error of a block that is released as nearly empty, in squared people."""
BLOCK_GROUP = 1.6
"""Variance of the error of a block group's total, in squared people."""

Floats = npt.NDArray[np.float64]


def members(frame: Frame, category: str) -> Floats:
    """Return which blocks each area holds, (areas, blocks)."""
    codes, area = np.unique(frame.codes(category), return_inverse=True)
    return (area[None, :] == np.flatnonzero(codes != b"")[:, None]).astype(np.float64)


def corrected(
    estimate: Floats, block_group: npt.NDArray[np.int64], areas: Floats, answers: Floats, variance: float
) -> Floats:
    """Return block totals by least squares from a release and noisy totals of areas."""
    own = np.maximum(estimate, LEAST)
    all_ = np.bincount(block_group, own)
    inside = np.stack([np.bincount(block_group, area * own, len(all_)) for area in areas]) / all_
    covariance = areas * own - (inside * (1 - BLOCK_GROUP / all_))[:, block_group] * own
    noise = variance * np.eye(len(areas))
    return estimate + covariance.T @ np.linalg.solve(covariance @ areas.T + noise, answers - areas @ estimate)


def errors(frame: Frame, difference: Floats) -> Figures:
    """Return the mean absolute error of totals, for each of :data:`AREAS`."""
    found = {}
    for category in AREAS:
        codes, area = np.unique(frame.codes(category), return_inverse=True)
        off = np.abs(np.bincount(area, difference))[codes != b""]
        found[category, "total", "", "mean_abs_error"] = float(off.mean())
    return found


def released(data: Path, rho: Fraction, seed: int, more: str = "") -> tuple[Floats, InputData]:
    """Return the block totals of a release, and the truth."""
    budget = f'preset = "pr2020-persons"\nrho = "{rho}"'
    with tempfile.TemporaryDirectory() as folder:
        run = load(rhode_island(data, budget, run='estimator = "informed"', more=more), Path(folder))
        release = od.release(run, Path(folder) / "out", seed=seed, workers=1)
        return release.estimate(run.product.name).row_totals().astype(np.float64), run.read()


def measured(data: Path, seeds: Sequence[int]) -> dict[str, list[Figures]]:
    """Release with each seed, on other spines or with areas measured and block totals corrected."""
    rho = preset("pr2020-persons").rho
    found: dict[str, list[Figures]] = {}
    for seed in seeds:
        for name, more in SPINES.items():
            estimate, truth = released(data, rho, seed, more)
            totals = estimate - truth.histogram.row_totals()
            found.setdefault(name, []).append(errors(truth.frame, totals))
        estimate, truth = released(data, rho * (1 - SHARE), seed)
        frame, exact = truth.frame, truth.histogram.row_totals()
        block_group = np.unique(frame.codes("block_group"), return_inverse=True)[1]
        for categories in MEASURED:
            variance = float(
                len(categories) / (SHARE * rho)
            )  # of an answer to which a record's change adds two
            areas = np.concatenate([members(frame, category) for category in categories])
            rng = np.random.default_rng(seed)
            answers = areas @ exact + np.rint(rng.normal(0, variance**0.5, len(areas)))
            totals = corrected(estimate, block_group, areas, answers, variance)
            found.setdefault(", ".join(categories), []).append(errors(frame, totals - exact))
        note(f"seed {seed} done")
    return found


def main() -> None:
    """Print mean absolute errors of totals by what was measured."""
    given = arguments(__doc__, seeds=3).parse_args()
    found = measured(given.data, range(1, given.seeds + 1))
    means = {name: average(several) for name, several in found.items()}
    text = markdown(("Measured by themselves", *AREAS), [(name, *m.values()) for name, m in means.items()])
    deliver("off_spine", text, {name: plain(mean) for name, mean in means.items()}, given.to)


if __name__ == "__main__":
    main()
