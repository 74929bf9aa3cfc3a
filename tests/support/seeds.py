"""How many cases a property is tried on, and which.

Five while one works; all with ``OPENDAS_SEEDS=all``, as in CI, where they are the same in every run; with
``OPENDAS_SEEDS=new`` all, and those that hypothesis draws are others each time.
"""

from __future__ import annotations

import os

__all__ = ["NEW_EXAMPLES", "examples", "seeds"]

FEW = 5

_WHICH = os.environ.get("OPENDAS_SEEDS")
NEW_EXAMPLES = _WHICH == "new"


def examples(count: int) -> int:
    """Return how many of `count` cases are tried now."""
    return count if _WHICH in ("all", "new") else min(count, FEW)


def seeds(count: int) -> range:
    """Return the seeds below `count` that are tried now."""
    return range(examples(count))
