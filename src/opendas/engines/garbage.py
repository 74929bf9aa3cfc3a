"""Garbage collection in worker processes: what is loaded stays, and need not be searched."""

from __future__ import annotations

import gc

__all__ = ["keep_modules"]

_MANY_OBJECTS = 20_000
"""Objects that the garbage collector goes through in a few milliseconds."""


def keep_modules() -> None:
    """Take what is loaded out of the garbage collector's sight.

    Spark has a worker process collect garbage after every task, and loky once a second; with numerical
    packages loaded, that takes longer than many a task does.
    """
    if len(gc.get_objects()) > _MANY_OBJECTS:
        gc.collect()
        gc.freeze()
