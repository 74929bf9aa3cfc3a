"""Optimal allocation of a budget: closed forms of clamped errors, and the programs that divide the budget."""

from opendas.allocation.clamped_error import clamped_moments
from opendas.allocation.histogram import CountHistogram, Level, unknown_counts
from opendas.allocation.noise_kinds import NoiseKind
from opendas.allocation.per_node import allocate_per_node
from opendas.allocation.post_processing_8 import post_process
from opendas.allocation.programs_6_7 import (
    Allocation,
    allocate_target,
    allocate_total,
    errors_at,
)
from opendas.allocation.solver import power_rule

__all__ = [
    "Allocation",
    "CountHistogram",
    "Level",
    "NoiseKind",
    "allocate_per_node",
    "allocate_target",
    "allocate_total",
    "clamped_moments",
    "errors_at",
    "post_process",
    "power_rule",
    "unknown_counts",
]
