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
            start=3.3,
            reading=2.37,
            planning=9.4,
            gathering=0.0,
            child=(16.6, 81.4, 22.9, 6230.0),
            writing=4.22,
            answer=0.0687,
            main_mb=326.0,
            main_leaf=660.0,
            worker_mb=157.0,
            worker_leaf=1170.0,
            output_mb=0.0972,
            output_leaf=28.2,
            scratch_leaf=23.2,
            answer_bytes=0.138,
            full_mb=5.43,
        ),
        Costs(
            cells=2016,
            start=3.46,
            reading=6.82,
            planning=6.59,
            gathering=0.0,
            child=(56.8, 413.0, 356.0, 13700.0),
            writing=26.9,
            answer=0.0242,
            main_mb=342.0,
            main_leaf=1920.0,
            worker_mb=171.0,
            worker_leaf=547.0,
            output_mb=0.203,
            output_leaf=211.0,
            scratch_leaf=363.0,
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
            main_leaf=660.0,
            worker_mb=157.0,
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
            main_leaf=1920.0,
            worker_mb=171.0,
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
            start=3.21,
            reading=2.3,
            planning=0.0,
            gathering=3.23,
            child=(19.8, 86.3, 18.6, 8030.0),
            writing=5.53,
            answer=0.0687,
            main_mb=335.0,
            main_leaf=660.0,
            worker_mb=157.0,
            worker_leaf=1320.0,
            output_mb=0.0978,
            output_leaf=28.2,
            scratch_leaf=3.89,
            answer_bytes=0.138,
            full_mb=5.43,
        ),
        Costs(
            cells=2016,
            start=2.97,
            reading=3.06,
            planning=3.03,
            gathering=20.4,
            child=(70.3, 256.0, 320.0, 9050.0),
            writing=21.8,
            answer=0.0242,
            main_mb=355.0,
            main_leaf=1920.0,
            worker_mb=171.0,
            worker_leaf=753.0,
            output_mb=0.208,
            output_leaf=213.0,
            scratch_leaf=595.0,
            answer_bytes=0.841,
            full_mb=177.0,
        ),
    ),
}
"""By estimator: costs of a product of few cells and of one of many."""
