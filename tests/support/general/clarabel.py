"""Clarabel: interior point, of the package itself."""

from __future__ import annotations

from opendas.solvers.least_squares.clarabel import STATUSES as STATUS_MAP
from opendas.solvers.least_squares.clarabel import Form, RawAnswer, program, solve_program
from opendas.solvers.problem.problem import FamilyProblem

__all__ = ["STATUS_MAP", "solve", "solve_program"]


def solve(problem: FamilyProblem, *, form: Form = "nested", tolerance: float = 1e-12) -> RawAnswer:
    """Solve to `tolerance` (gaps and feasibility), or as tightly as the arithmetic allows."""
    return solve_program(program(problem, form), problem.linear.shape, tolerance)
