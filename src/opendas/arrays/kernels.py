# mypy: disallow-subclassing-any = false
"""What compiled functions share: how inner ones are compiled, a public hash, rows without gaps and by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, cast

import numpy as np
from numba import njit, version_info
from numba.core.registry import CPUDispatcher
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., Any])

LINKED_WITH = (0, 61), (0, 68)
"""The oldest and newest numba with which :mod:`opendas.arrays.linking` was tried; with others functions are
compiled in numba's own way, which takes longer."""


def inner_options(numba: tuple[int, ...]) -> dict[str, Any]:
    """Return how a version of numba, as its first two numbers, compiles inner functions."""
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    oldest, newest = LINKED_WITH
    if oldest <= numba <= newest:
        from opendas.arrays.linking import InnerCompiler  # its bases may be missing in other versions

        options["pipeline_class"] = InnerCompiler
    return options


class _Inner(CPUDispatcher):
    """A compiled function without an entry from Python, where a call would end the process."""

    def __call__(self, *_: object, **__: object) -> NoReturn:
        name = self.py_func.__name__
        raise TypeError(f"{name} is called by compiled functions only: decorate it with numba.njit")


def inner(function: Function) -> Function:
    """Compile a function for other compiled functions to call: the entry from Python is left out.

    That entry unpacks every array of every argument, and is compiled again into each caller. Nor is the
    function made machine code by itself, see :mod:`opendas.arrays.linking`.

    Raises
    ------
    TypeError
        Where Python calls the function.
    """
    compiled: Any = njit(function, cache=True, nogil=True, **inner_options(version_info.short))
    if isinstance(compiled, CPUDispatcher):  # not where NUMBA_DISABLE_JIT leaves all to Python
        compiled.__class__ = _Inner
    return cast(Function, compiled)


GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


def mixed(z: Any) -> Any:
    """Return the output of splitmix64, uint64, one step after state z: a public bijection of 64-bit words.

    In numpy, for whole arrays: nothing is compiled. Compiled functions call ``mix``, the same.

    Notes
    -----
    Steele, Lea & Flood (2014), *Fast Splittable Pseudorandom Number Generators*, the variant of Java.
    """
    z = z + GOLDEN
    z = (z ^ (z >> _S30)) * _MIX_1
    z = (z ^ (z >> _S27)) * _MIX_2
    return z ^ (z >> _S31)


mix: Any = njit(mixed, cache=True, nogil=True)


@njit(cache=True, nogil=True)
def without_gaps(rows: NDArray[np.int32]) -> NDArray[np.int32]:
    """Number the different rows from 0, in their order: ``np.unique(rows, return_inverse=True)[1]``.

    `rows` (n,): not negative.
    """
    top = 0
    for j in range(len(rows)):
        top = max(top, rows[j])
    number = np.zeros(top + 1, np.int32)
    for j in range(len(rows)):
        number[rows[j]] = 1
    count = 0
    for r in range(top + 1):
        if number[r]:
            number[r] = count
            count += 1
    out = np.empty(len(rows), np.int32)
    for j in range(len(rows)):
        out[j] = number[rows[j]]
    return out


@njit(cache=True, nogil=True)
def cells_by_row(rows: NDArray[np.int32], count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sort cells by their row: ``np.argsort(rows, kind="stable")`` in linear time, and where each row begins.

    - `rows` (n,): from 0 to count - 1.
    - Returns `start` (count + 1,).
    - Returns `cells` (n,).
    """
    start = np.zeros(count + 1, np.int64)
    for r in rows:
        start[r + 1] += 1
    for r in range(count):
        start[r + 1] += start[r]
    following = start[:-1].copy()
    cells = np.empty(len(rows), np.int64)
    for j in range(len(rows)):
        cells[following[rows[j]]] = j
        following[rows[j]] += 1
    return start, cells
