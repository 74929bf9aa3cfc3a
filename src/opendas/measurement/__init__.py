"""Measurements: with the household tables, the only code that has both truth and key."""
