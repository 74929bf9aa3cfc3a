"""An entry from Python into functions that only compiled ones call."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from numba import njit


@cache
def entry(function: Any) -> Callable[..., Any]:
    """Return an inner function, compiled once more with an entry from Python.

    Not kept in numba's cache, where the code of the inner function has the same name.
    """
    return njit(function.py_func)
