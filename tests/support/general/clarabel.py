"""Clarabel: interior point, of the package itself."""

from __future__ import annotations

from opendas.solvers.least_squares.clarabel import STATUSES as STATUS_MAP
from opendas.solvers.least_squares.clarabel import solve_clarabel as solve
from opendas.solvers.least_squares.clarabel import solve_program

__all__ = ["STATUS_MAP", "solve", "solve_program"]
