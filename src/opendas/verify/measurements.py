"""The measurement files are those of the certified plan."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from threading import Event
from typing import Any

import numpy as np

from opendas.files.nmf.reading import MeasurementFile, measurement_metadata
from opendas.files.release_folder import ReleasedProduct
from opendas.measurement.plan import MeasurementPlan
from opendas.verify.budget import certified_plan
from opendas.verify.check import require

__all__ = ["check_measurements"]

_GEOUNITS = 1 << 12


def check_measurements(run: Mapping[str, Any], released: ReleasedProduct, stop: Event) -> str:
    """Every budgeted geolevel has its file: right geounits, query groups, parameters, variances, shapes."""
    plan = certified_plan(run, released)
    stored = run["measurements"]
    require(stored in ("used", "full"), f"measurements {stored!r}: expected used or full.")
    present = {path.stem for path in released.measurements.glob("*.parquet")} - {"spine", "constraints"}
    budgeted = {level.geolevel for level in plan.levels if level.queries}
    require(present == budgeted, "there is a measurement file too many or too few.")
    values = 0
    for number, level in enumerate(plan.levels):
        if level.queries:
            file = MeasurementFile(released.measurements / f"{level.geolevel}.parquet")
            wanted = _plain(measurement_metadata(plan, number, stored=stored))
            require(
                _without_invariants(file.metadata) == _without_invariants(wanted),
                f"{level.geolevel}: the metadata are not those of the certified plan.",
            )
            values += _check_rows(file, plan, number, stop, full=stored == "full")
    return f"{len(budgeted)} files with {values} noisy answers, {stored}"


def _plain(metadata: Mapping[str, object]) -> dict[str, Any]:
    return dict(metadata)


def _without_invariants(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is no part of the plan: a run may be measured with and estimated without invariants."""
    product = {
        key: value for key, value in metadata["product"].items() if key not in ("invariants", "bounds")
    }
    return {**metadata, "product": product}


def _check_rows(file: MeasurementFile, plan: MeasurementPlan, number: int, stop: Event, *, full: bool) -> int:
    spine = plan.spine
    level = spine.levels[number]
    shares = spine.shares[number]
    multiples = (Fraction(1),) if shares is None else shares.multiples
    which = np.zeros(len(level), dtype=np.int64) if shares is None else shares.which
    keep = np.array([multiple > 0 for multiple in multiples])[which]
    require(
        np.array_equal(file.geocodes, level.geocodes[keep]), f"{level.name}: other geounits than the spine."
    )
    which = which[keep]
    values = 0
    for start in range(0, len(file), _GEOUNITS):
        end = min(start + _GEOUNITS, len(file))
        require(not stop.is_set(), "interrupted.")
        answers = file.read(start, end)
        for planned in plan.levels[number].queries:
            each = [plan.distribution(number, planned, m).variance if m else 0.0 for m in multiples]
            wanted = np.array(each)[which[start:end]]
            found = answers[planned.query.name]
            where = f"{level.name}, {planned.query.name}"
            require(
                bool(np.allclose(found.variance, wanted, rtol=1e-9, atol=0)),
                f"{where}: a variance is not that of the plan.",
            )
            if full:
                lengths = np.diff(found.offsets)
                complete = found.cells is None and bool(np.all(lengths == planned.query.size))
                require(complete, f"{where}: not all answers are there.")
            elif found.cells is not None and len(found.cells):
                inside = found.cells.min() >= 0 and found.cells.max() < planned.query.size
                require(bool(inside), f"{where}: an answer to no row of the query group.")
            values += len(found.values)
    return values
