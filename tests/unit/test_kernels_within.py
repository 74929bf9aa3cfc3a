"""A compiled function for compiled functions only refuses Python, which would else end without a word."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba import njit

from opendas.arrays.kernels import inner, inner_options


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


def test_a_numba_that_was_not_tried_compiles_in_its_own_way() -> None:
    tried = [
        version
        for version in ((0, 60), (0, 61), (0, 68), (0, 69), (1, 0))
        if "pipeline_class" in inner_options(version)
    ]
    assert tried == [(0, 61), (0, 68)]


MODULE = """
from numba import njit
from opendas.arrays.kernels import inner, inner_options

@inner
def sixth(x):
    return x % 6

@inner
def halved(x):
    return sixth(x) // 2

@njit(cache=True)
def both(x):
    return 10 * halved(x) + sixth(x)

print(both(11), *(sum(f.stats.cache_hits.values()) for f in (sixth, halved, both)))
"""


def test_callers_link_what_the_cache_holds(tmp_path: Path) -> None:
    (tmp_path / "linked.py").write_text(MODULE)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "compiled")}

    def printed() -> str:
        return subprocess.run(
            [sys.executable, "linked.py"],
            cwd=tmp_path,
            env=environment,
            text=True,
            capture_output=True,
            check=True,
        ).stdout

    assert printed() == "25 0 0 0\n"
    assert printed() == "25 0 0 1\n"
    for index in tmp_path.glob("compiled/**/linked.both-*.nbi"):
        index.unlink()
    assert printed() == "25 1 1 0\n"
