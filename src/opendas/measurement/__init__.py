"""Measurements: the one place where truth and key meet (with the household tables)."""
