"""One check and its outcome."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any, Self

from opendas.errors import CheckFailed, OpendasError

_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of one check; never holds a confidential value."""

    name: str  # for instance ``"pl94-persons: constraints"``
    ok: bool
    detail: str


def require(condition: bool, detail: str) -> None:
    """Fail the current check unless `condition` holds."""
    if not condition:
        raise CheckFailed(detail)


def first_few(names: Iterable[str], limit: int = 5) -> str:
    """Return the first few names, and how many more there are."""
    listed = list(names)
    text = ", ".join(listed[:limit])
    return text if len(listed) <= limit else f"{text} and {len(listed) - limit} more"


def differing(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """Yield the places where two JSON values differ; floats may differ in their last digits between machines.

    `where`: path of keys and list positions, separated by dots.
    """
    if isinstance(one, float) and isinstance(other, float):
        same = math.isclose(one, other, rel_tol=_TOLERANCE)
    elif isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            inside = f"{where}.{key}".lstrip(".")
            if key in one and key in other:
                yield from differing(one[key], other[key], inside)
            else:
                yield inside
        return
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, pair in enumerate(zip(one, other, strict=True)):
            yield from differing(*pair, f"{where}.{number}")
        return
    else:
        same = type(one) is type(other) and bool(one == other)
    if not same:
        yield where


def run_check(name: str, function: Callable[[], str]) -> Check:
    """Run one check; `function` returns details or raises."""
    try:
        return Check(name, True, function())
    except OpendasError as error:
        return Check(name, False, str(error))
    except Exception as error:  # a damaged file must give a failed check, not a traceback
        return Check(name, False, _unfinished(error))


def _unfinished(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "memory ran out before the check ended."
    if isinstance(error, OSError):
        return f"a file cannot be read ({error.strerror or type(error).__name__})."
    return f"a file is damaged or incomplete ({type(error).__name__})."


class BackgroundCheck:
    """A check in a thread beside the main one; use it as a context manager.

    Large checks spend most of their time reading and searching, which release Python's lock.

    `function`, callable(Event) -> str: returns details or raises; stops once the event is set, since its
    result is then not needed.
    """

    def __init__(self, name: str, function: Callable[[Event], str]) -> None:
        self._stop = Event()
        self._thread = ThreadPoolExecutor(1)
        self._check = self._thread.submit(run_check, name, partial(function, self._stop))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.shutdown()

    def outcome(self) -> Check:
        """Wait for the check and return its outcome."""
        return self._check.result()
