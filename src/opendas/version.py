"""The version, read from the installed package's metadata: pyproject.toml is its one source."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

__all__ = ["__version__", "commit"]

__version__ = metadata.version("opendas")


@cache
def commit() -> str:
    """Return the commit of a source checkout, or ``"unknown"``.

    A checkout with uncommitted changes of the package is unknown: its commit would not be what ran.
    """
    package = Path(__file__).parent
    if not (package.parents[1] / ".git").exists():
        return "unknown"
    try:
        git = ["git", "-C", str(package)]
        environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}
        head = subprocess.run(
            [*git, "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
            env=environment,
        )
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--", "."],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
            env=environment,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return "unknown" if changed.stdout.strip() else head.stdout.strip()
