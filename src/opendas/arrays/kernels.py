# mypy: disallow-subclassing-any = false
"""Compiled functions that only compiled functions call: a sixth less to compile before a first run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, cast

from numba import njit
from numba.core.registry import CPUDispatcher

Function = TypeVar("Function", bound=Callable[..., Any])

_WITHOUT_ENTRY: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


class _Inner(CPUDispatcher):
    """A compiled function without an entry from Python, where a call would end the process."""

    def __call__(self, *_: object, **__: object) -> NoReturn:
        name = self.py_func.__name__
        raise TypeError(f"{name} is called by compiled functions only: decorate it with numba.njit")


def inner(function: Function) -> Function:
    """Compile a function for other compiled functions to call: the entry from Python is left out.

    That entry unpacks every array of every argument, and is compiled again into each caller.

    Raises
    ------
    TypeError
        Where Python calls the function.
    """
    compiled: Any = njit(function, cache=True, nogil=True, **_WITHOUT_ENTRY)
    if isinstance(compiled, CPUDispatcher):  # not where NUMBA_DISABLE_JIT leaves all to Python
        compiled.__class__ = _Inner
    return cast(Function, compiled)
