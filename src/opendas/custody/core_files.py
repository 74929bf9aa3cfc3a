"""No core files: a process that crashes leaves none of its memory, which holds records and keys."""

from __future__ import annotations

import contextlib
import resource

__all__ = ["forbid_core_files"]

_NONE_AND_NO_PIPE = 1
"""Bytes. Less than any core file, and the one limit under which Linux hands none to a program either: with 0
it still would, where ``core_pattern`` names a program (core(5))."""


def forbid_core_files() -> None:
    """Let this process, and those it starts, leave no core file, whatever the shell allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    wanted = _NONE_AND_NO_PIPE if hard == resource.RLIM_INFINITY or hard > 0 else 0
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (wanted, hard))
