"""What runs cost: coefficients that ``python benchmarks/forecast.py fit`` found, for forecasts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["COSTS", "MACHINE", "RECORDS_A_LEAF", "SECOND_WORKER", "TASK_LEAVES", "TOLERANCE", "Costs"]

MACHINE = "one of two shared cores of an AMD EPYC server, November 2026"
"""Where the coefficients were measured."""

TOLERANCE = 1.5
"""Within this factor, either way, forecasts of time were on that machine for states of other sizes."""

RECORDS_A_LEAF = "about 45 persons, or 20 housing units, a leaf, as in the made states"

TASK_LEAVES = 16_384
"""A worker holds about so many leaves at a time, see :mod:`opendas.engines.tasks`."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured costs of one estimator with a product of `cells` cells.

    Parameters
    ----------
    cells : int
    start : float
        Seconds of any run: start of the program, certificate and report.
    reading, planning, gathering, writing : float
        Microseconds a leaf.
    child : tuple of float
        Microseconds a geounit, by its height above the leaves: leaves first; the last is that of all above.
    answer : float
        Microseconds a noisy answer, where all are written.
    main_mb, main_leaf : float
        Resident set of the main process: constant in MB, and bytes a leaf.
    worker_mb, worker_leaf : float
        Of a worker process: constant in MB, and bytes a leaf of its task.
    output_mb, output_leaf : float
        Files that stay: constant in MB, and bytes a leaf.
    scratch_leaf : float
        Files that are removed when the run is finished: bytes a leaf.
    answer_bytes : float
        Bytes a noisy answer, where all are written.
    full_mb : float
        MB that the main process has more, where all noisy answers are written.
    """

    cells: int
    start: float
    reading: float
    planning: float
    gathering: float
    child: tuple[float, ...]
    writing: float
    answer: float
    main_mb: float
    main_leaf: float
    worker_mb: float
    worker_leaf: float
    output_mb: float
    output_leaf: float
    scratch_leaf: float
    answer_bytes: float
    full_mb: float = 0.0


SECOND_WORKER = 0.9
"""What each further worker process adds to the speed of the first, where it has a core of its own."""

COSTS: Mapping[str, tuple[Costs, Costs]] = {
    "topdown": (
        Costs(
            cells=2,
            start=7.42,
            reading=18.7,
            planning=0.0,
            gathering=0.0,
            child=(615.0, 615.0, 615.0, 615.0),
            writing=0.0,
            answer=0.0,
            main_mb=336.0,
            main_leaf=3720.0,
            worker_mb=0.0,
            worker_leaf=0.0,
            output_mb=0.0898,
            output_leaf=28.5,
            scratch_leaf=48.0,
            answer_bytes=0.0,
        ),
        Costs(
            cells=2016,
            start=5.86,
            reading=39.7,
            planning=568.0,
            gathering=0.0,
            child=(1260.0, 1260.0, 1260.0, 1260.0),
            writing=640.0,
            answer=0.0,
            main_mb=355.0,
            main_leaf=6940.0,
            worker_mb=0.0,
            worker_leaf=0.0,
            output_mb=0.172,
            output_leaf=206.0,
            scratch_leaf=355.0,
            answer_bytes=0.0,
        ),
    ),
    "informed": (
        Costs(
            cells=2,
            start=8.83,
            reading=24.4,
            planning=0.0,
            gathering=0.0,
            child=(886.0, 886.0, 886.0, 886.0),
            writing=35.0,
            answer=0.0,
            main_mb=357.0,
            main_leaf=3930.0,
            worker_mb=0.0,
            worker_leaf=0.0,
            output_mb=0.0899,
            output_leaf=28.5,
            scratch_leaf=1.54,
            answer_bytes=0.0,
        ),
        Costs(
            cells=2016,
            start=6.55,
            reading=23.8,
            planning=0.0,
            gathering=0.0,
            child=(778.0, 778.0, 778.0, 778.0),
            writing=0.0,
            answer=0.0,
            main_mb=367.0,
            main_leaf=11000.0,
            worker_mb=0.0,
            worker_leaf=0.0,
            output_mb=0.17,
            output_leaf=210.0,
            scratch_leaf=1760.0,
            answer_bytes=0.0,
        ),
    ),
}
"""By estimator: costs of a product of few cells and of one of many."""
