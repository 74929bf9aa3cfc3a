"""Estimation: from noisy measurements to non-negative integers, one family at a time.

Nothing in this package can see confidential counts: its inputs are measurements, invariants and public
geography.
"""
