"""The spine of a run, described before anything is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from opendas.geography.spine import Spine
from opendas.geography.summary import SpineSummary, summarise
from opendas.run import Run

__all__ = ["SpineTable", "describe_spine"]


@dataclass(frozen=True, slots=True)
class SpineTable:
    """What ``opendas spine`` says.

    Parameters
    ----------
    spine : Spine
    summary : SpineSummary
    expected : tuple of mapping
        Expected errors by the noise alone; see :mod:`opendas.uncertainty`.
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
    return SpineTable(run.spine, summary, (), tuple(_warnings(run, summary)))


def _warnings(run: Run, summary: SpineSummary) -> Iterator[str]:
    """Say what an expert would look at twice."""
    for level in summary.levels[:-1]:
        if level.single_child_parents and run.resolved.recipe.bypass is None:
            yield (
                f"{level.single_child_parents:,} geounits of {level.geolevel!r} have one child: the same is asked "
                'twice there. The step { step = "bypass" } gives the child\'s share to its parent.'
            )
    chosen = run.resolved.recipe.entities or ()
    for entity in summary.entities:
        if entity.category in chosen and entity.mean_distance > entity.standard_mean:
            yield (
                f"the spine brings {entity.category!r} no closer: mean distance {entity.mean_distance:.1f}, "
                f"{entity.standard_mean:.1f} from the official levels."
            )
