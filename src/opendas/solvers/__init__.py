"""Numerical optimisation: constrained least squares and controlled rounding. Knows no census word."""
