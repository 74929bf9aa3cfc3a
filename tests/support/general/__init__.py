"""General solvers behind one protocol, in order of preference."""

from __future__ import annotations

from support.general.protocol import ADAPTERS, Adapter, load

__all__ = ["ADAPTERS", "Adapter", "load"]
