"""Optimal allocation of a budget: closed forms of clamped errors, and the programs that share it out."""

from opendas.budget.optimal.clamped import Moments, clamped_curvature, clamped_moments, clamped_slope
from opendas.budget.optimal.count_only import allocate_by_nodes, power_rule
from opendas.budget.optimal.histogram import CountHistogram, Level, unknown_counts
from opendas.budget.optimal.kinds import NoiseKind
from opendas.budget.optimal.programs import (
    Allocation,
    LevelError,
    allocate_target,
    allocate_total,
    errors_at,
)

__all__ = [
    "Allocation",
    "CountHistogram",
    "Level",
    "LevelError",
    "Moments",
    "NoiseKind",
    "allocate_by_nodes",
    "allocate_target",
    "allocate_total",
    "clamped_curvature",
    "clamped_moments",
    "clamped_slope",
    "errors_at",
    "power_rule",
    "unknown_counts",
]
