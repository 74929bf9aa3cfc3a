"""A compiled function for compiled functions only refuses Python, which would else end without a word."""

from __future__ import annotations

import pytest
from numba import njit

from opendas.arrays.kernels import inner


@inner
def _double(x: int) -> int:
    return 2 * x


@njit
def _twice_double(x: int) -> int:
    return _double(_double(x))


def test_compiled_functions_call_it_and_python_is_refused() -> None:
    assert _twice_double(3) == 12
    with pytest.raises(TypeError, match="_double is called by compiled functions only"):
        _double(3)
