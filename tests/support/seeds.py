"""How many cases a property is tried on: five while one works, all with ``OPENDAS_SEEDS=all``, as in CI."""

from __future__ import annotations

import os

__all__ = ["examples", "seeds"]

FEW = 5


def examples(count: int) -> int:
    """Return how many of `count` cases are tried now."""
    return count if os.environ.get("OPENDAS_SEEDS") == "all" else min(count, FEW)


def seeds(count: int) -> range:
    """Return the seeds below `count` that are tried now."""
    return range(examples(count))
