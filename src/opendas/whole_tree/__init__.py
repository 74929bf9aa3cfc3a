"""Least squares over a whole tree: estimates and variances from measurements and public facts alone."""
