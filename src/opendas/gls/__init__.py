"""Least squares over the whole tree: estimates and variances from all measurements of a plan."""
