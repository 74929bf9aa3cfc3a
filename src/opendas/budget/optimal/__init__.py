"""Optimal allocation of a budget: closed forms of clamped errors, and the programs that share it out."""

from opendas.budget.optimal.clamped import Moments, clamped_curvature, clamped_moments, clamped_slope
from opendas.budget.optimal.kinds import NoiseKind

__all__ = [
    "Moments",
    "NoiseKind",
    "clamped_curvature",
    "clamped_moments",
    "clamped_slope",
]
