"""The spine of a run, described before anything is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from opendas.geography.partitions import standard_spine
from opendas.geography.spine import Spine
from opendas.geography.summary import SpineSummary, summarise
from opendas.gls.expected_error import ExpectedError, expected_rows
from opendas.measurement.plan import MeasurementPlan
from opendas.runs.run import Run

__all__ = ["SpineTable", "describe_spine"]


@dataclass(frozen=True, slots=True)
class SpineTable:
    """What ``opendas spine`` says.

    Parameters
    ----------
    spine : Spine
    summary : SpineSummary
    expected : tuple of mapping
        Standard errors of the least-squares estimate of the total, by noise alone, in counts: those of
        :func:`opendas.gls.expected_error.expected_rows`, and ``standard_mean_sd`` for the standard spine.
    warnings : tuple of str
    """

    spine: Spine
    summary: SpineSummary
    expected: tuple[dict[str, Any], ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the answer of ``opendas spine --json``."""
        return {
            **self.summary.to_dict(),
            "expected": [dict(row) for row in self.expected],
            "warnings": list(self.warnings),
        }


def describe_spine(run: Run) -> SpineTable:
    """Describe the spine of a run from public things: the run file and the frame."""
    summary = summarise(run.spine, run.frame)
    expected = tuple(_expected(run))
    return SpineTable(run.spine, summary, expected, tuple(_warnings(run, summary)))


def _expected(run: Run) -> Iterator[dict[str, Any]]:
    """Give the expected error of the total, and that of the standard spine where it has the same levels."""
    rows = expected_rows(ExpectedError.build(run.plan), run.frame)
    beside: dict[tuple[str, str], float] = {}
    if run.resolved.recipe.steps and run.spine.names == run.frame.geolevels:
        standard = MeasurementPlan(run.product, standard_spine(run.frame), run.budget)
        found = expected_rows(ExpectedError.build(standard), run.frame)
        beside = {(row.kind, row.name): row.mean_sd for row in found}
    for row in rows:
        yield {**row.to_dict(), "standard_mean_sd": beside.get((row.kind, row.name))}


def _warnings(run: Run, summary: SpineSummary) -> Iterator[str]:
    """Say what an expert would look at twice."""
    for level in summary.levels[:-1]:
        if level.single_child_parents and run.resolved.recipe.bypass is None:
            yield (
                f"{_counted(level.single_child_parents)} of {level.geolevel!r} with one child: asking twice "
                'is of no use. The step { step = "bypass" } gives the child\'s share to its parent.'
            )
    chosen = run.resolved.recipe.entities or ()
    found = {entity.category for entity in summary.entities}
    for category in chosen:
        if category not in found:
            yield (
                f"no leaf of the input lies in an area of {category!r}: the spine is built around none. "
                "Block assignment files bring areas: [geography] block_assignment."
            )
    for entity in summary.entities:
        if entity.category in chosen and entity.mean_distance > entity.standard_mean:
            yield (
                f"the spine brings {entity.category!r} no closer: mean distance {entity.mean_distance:.1f}, "
                f"{entity.standard_mean:.1f} from the official levels."
            )


def _counted(geounits: int) -> str:
    return "1 geounit" if geounits == 1 else f"{geounits:,} geounits"
