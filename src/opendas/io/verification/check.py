"""One check and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from opendas.errors import CheckFailed, OpendasError

__all__ = ["Check", "require", "run_check", "some"]


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, whether it holds, and what was found. Never a confidential value.

    Parameters
    ----------
    name : str
        For instance ``"pl94-persons: constraints"``.
    ok : bool
    detail : str
    """

    name: str
    ok: bool
    detail: str


def require(condition: bool, detail: str) -> None:
    """Fail the check at work unless `condition` holds."""
    if not condition:
        raise CheckFailed(detail)


def some(names: Iterable[str], limit: int = 5) -> str:
    """Return the first few names, and how many more there are."""
    listed = list(names)
    text = ", ".join(listed[:limit])
    return text if len(listed) <= limit else f"{text} and {len(listed) - limit} more"


def run_check(name: str, function: Callable[[], str]) -> Check:
    """Run one check; `function` returns what it found, or raises."""
    try:
        return Check(name, True, function())
    except OpendasError as error:
        return Check(name, False, str(error))
    except Exception as error:  # a damaged file must give a failed check, not a traceback
        return Check(name, False, f"a file is damaged or incomplete ({type(error).__name__}).")
