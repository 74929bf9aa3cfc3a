"""Counting on Spark: the same functions as in one process, on complete households in each partition."""
