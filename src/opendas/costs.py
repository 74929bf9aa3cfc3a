"""What runs cost: coefficients that ``python benchmarks/forecast.py fit`` found, for forecasts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["COSTS", "MACHINE", "RECORDS_A_LEAF", "SECOND_WORKER", "TASK_LEAVES", "TOLERANCE", "Costs"]

MACHINE = "one core of an AMD EPYC server, November 2026"
"""Where the coefficients were measured, in processor time: on a machine with other work, runs take longer."""

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


SECOND_WORKER = 0.8
"""What each further worker process adds to the speed of the first, where it has a core of its own."""

COSTS: Mapping[str, tuple[Costs, Costs]] = {
    "topdown": (
        Costs(
            cells=2,
            start=3.87,
            reading=2.56,
            planning=20.3,
            gathering=0.0,
            child=(11.3, 47.4, 21.0, 6640.0),
            writing=0.524,
            answer=0.0687,
            main_mb=343.0,
            main_leaf=927.0,
            worker_mb=170.0,
            worker_leaf=169.0,
            output_mb=0.0998,
            output_leaf=28.1,
            scratch_leaf=29.7,
            answer_bytes=0.138,
            full_mb=3.85,
        ),
        Costs(
            cells=2016,
            start=4.14,
            reading=3.66,
            planning=9.92,
            gathering=0.0,
            child=(72.0, 499.0, 324.0, 16200.0),
            writing=20.3,
            answer=0.0267,
            main_mb=360.0,
            main_leaf=1520.0,
            worker_mb=190.0,
            worker_leaf=388.0,
            output_mb=0.201,
            output_leaf=209.0,
            scratch_leaf=362.0,
            answer_bytes=0.838,
            full_mb=155.0,
        ),
    ),
    "block-by-block": (
        Costs(
            cells=2,
            start=2.93,
            reading=3.5,
            planning=0.0,
            gathering=0.0,
            child=(454.0, 0.0, 0.0, 0.0),
            writing=114.0,
            answer=0.0687,
            main_mb=339.0,
            main_leaf=927.0,
            worker_mb=170.0,
            worker_leaf=191.0,
            output_mb=0.0723,
            output_leaf=30.6,
            scratch_leaf=235.0,
            answer_bytes=0.138,
            full_mb=3.85,
        ),
        Costs(
            cells=2016,
            start=2.2,
            reading=2.35,
            planning=0.0,
            gathering=0.0,
            child=(2360.0, 0.0, 0.0, 0.0),
            writing=249.0,
            answer=0.0267,
            main_mb=381.0,
            main_leaf=1520.0,
            worker_mb=190.0,
            worker_leaf=1210.0,
            output_mb=0.162,
            output_leaf=715.0,
            scratch_leaf=4110.0,
            answer_bytes=0.838,
            full_mb=155.0,
        ),
    ),
    "informed": (
        Costs(
            cells=2,
            start=3.73,
            reading=2.58,
            planning=0.0,
            gathering=9.54,
            child=(26.7, 197.0, 31.9, 17500.0),
            writing=11.2,
            answer=0.0687,
            main_mb=357.0,
            main_leaf=927.0,
            worker_mb=170.0,
            worker_leaf=1290.0,
            output_mb=0.0988,
            output_leaf=29.1,
            scratch_leaf=33.5,
            answer_bytes=0.138,
            full_mb=3.85,
        ),
        Costs(
            cells=2016,
            start=3.87,
            reading=5.0,
            planning=29.0,
            gathering=33.0,
            child=(63.3, 582.0, 226.0, 22000.0),
            writing=29.9,
            answer=0.0267,
            main_mb=371.0,
            main_leaf=1520.0,
            worker_mb=190.0,
            worker_leaf=1640.0,
            output_mb=0.215,
            output_leaf=209.0,
            scratch_leaf=601.0,
            answer_bytes=0.838,
            full_mb=155.0,
        ),
    ),
}
"""By estimator: costs of a product of few cells and of one of many."""
