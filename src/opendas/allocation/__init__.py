"""Optimal allocation of a budget: closed forms of clamped errors, and the programs that share it out."""

from opendas.allocation.clamped_error import Moments, clamped_curvature, clamped_moments, clamped_slope
from opendas.allocation.count_only import allocate_by_nodes, power_rule
from opendas.allocation.histogram import CountHistogram, Level, unknown_counts
from opendas.allocation.noise_kinds import NoiseKind
from opendas.allocation.programs_6_7 import (
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
