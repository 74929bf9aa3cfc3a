"""What a release says of its making: version, commit and date.

The version is read from the installed package's metadata: pyproject.toml is its one source.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path

from opendas.errors import ConfigError

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


def issue_date(environment: Mapping[str, str] = os.environ) -> str:
    """Return today's date in UTC, or the one that ``SOURCE_DATE_EPOCH`` fixes, as YYYY-MM-DD.

    Raises
    ------
    ConfigError
        If the variable holds no number of seconds.
    """
    fixed = environment.get("SOURCE_DATE_EPOCH")
    if fixed is None:
        return datetime.now(UTC).date().isoformat()
    try:
        return datetime.fromtimestamp(int(fixed), UTC).date().isoformat()
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigError(
            "SOURCE_DATE_EPOCH holds no number of seconds since 1970 that is a date; unset it, or give one."
        ) from error
