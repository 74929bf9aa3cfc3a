"""Intervals for true counts, from published noisy measurements alone."""
