"""What runs cost: coefficients that ``python benchmarks/forecast.py fit`` found, for forecasts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "COSTS",
    "MACHINE",
    "MAPPED_LEAF",
    "MAPPED_LEAVES",
    "RECORDS_A_LEAF",
    "SECOND_WORKER",
    "TASK_LEAVES",
    "TOLERANCE",
    "Costs",
]

MACHINE = "one core of an AMD EPYC server, November 2026"
"""Where the coefficients were measured, in processor time: on a machine with other work, runs take longer."""

TOLERANCE = 1.5
"""Within this factor, either way, forecasts of time were on that machine for states of other sizes."""

RECORDS_A_LEAF = "about 45 persons, or 20 housing units, a leaf, as in the made states"

MAPPED_LEAVES = 1 << 18
MAPPED_LEAF = 640.0
"""Leaves beyond so many take so many bytes of the main process: counts stand on disk."""

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
        Resident set of the main process: constant in MB, and bytes a leaf, as long as all are in memory.
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
            start=1.78,
            reading=2.31,
            planning=1.51,
            gathering=0.0,
            child=(14.7, 74.8, 19.0, 22500.0),
            writing=4.37,
            answer=0.0687,
            main_mb=287.0,
            main_leaf=1180.0,
            worker_mb=86.0,
            worker_leaf=1190.0,
            output_mb=0.0969,
            output_leaf=28.4,
            scratch_leaf=22.2,
            answer_bytes=0.138,
            full_mb=5.43,
        ),
        Costs(
            cells=2016,
            start=1.93,
            reading=7.16,
            planning=2.88,
            gathering=0.0,
            child=(48.8, 365.0, 303.0, 40400.0),
            writing=23.5,
            answer=0.0242,
            main_mb=303.0,
            main_leaf=1000.0,
            worker_mb=91.2,
            worker_leaf=3030.0,
            output_mb=0.205,
            output_leaf=210.0,
            scratch_leaf=353.0,
            answer_bytes=0.841,
            full_mb=177.0,
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
            main_leaf=1180.0,
            worker_mb=86.0,
            worker_leaf=191.0,
            output_mb=0.0723,
            output_leaf=30.6,
            scratch_leaf=235.0,
            answer_bytes=0.138,
            full_mb=5.43,
        ),
        Costs(
            cells=2016,
            start=2.2,
            reading=2.35,
            planning=0.0,
            gathering=0.0,
            child=(2360.0, 0.0, 0.0, 0.0),
            writing=249.0,
            answer=0.0242,
            main_mb=381.0,
            main_leaf=1000.0,
            worker_mb=91.2,
            worker_leaf=1210.0,
            output_mb=0.162,
            output_leaf=715.0,
            scratch_leaf=4110.0,
            answer_bytes=0.841,
            full_mb=177.0,
        ),
    ),
    "informed": (
        Costs(
            cells=2,
            start=1.36,
            reading=2.64,
            planning=0.0,
            gathering=9.71,
            child=(22.1, 107.0, 25.1, 8640.0),
            writing=4.51,
            answer=0.0687,
            main_mb=299.0,
            main_leaf=1180.0,
            worker_mb=86.0,
            worker_leaf=1170.0,
            output_mb=0.0976,
            output_leaf=28.3,
            scratch_leaf=0.817,
            answer_bytes=0.138,
            full_mb=5.43,
        ),
        Costs(
            cells=2016,
            start=1.85,
            reading=3.65,
            planning=0.0,
            gathering=29.8,
            child=(41.6, 169.0, 174.0, 18900.0),
            writing=22.2,
            answer=0.0242,
            main_mb=321.0,
            main_leaf=1000.0,
            worker_mb=91.2,
            worker_leaf=4250.0,
            output_mb=0.211,
            output_leaf=211.0,
            scratch_leaf=580.0,
            answer_bytes=0.841,
            full_mb=177.0,
        ),
    ),
}
"""By estimator: costs of a product of few cells and of one of many."""
