"""Constrained non-negative least squares of one family (TopDown, equations 7.1, 7.2, 7.5)."""
