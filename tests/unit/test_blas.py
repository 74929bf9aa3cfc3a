"""One thread for every BLAS, also for one that is loaded late."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
from threadpoolctl import threadpool_info
import numpy
from opendas.arrays.blas import one_blas_thread

def threads():
    return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]

with one_blas_thread():
    print(set(threads()))
import scipy.linalg
before = threads()
with one_blas_thread(), one_blas_thread():
    print(set(threads()))
print(threads() == before)
"""


def test_a_library_that_is_loaded_late_has_one_thread_too() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    environment |= {"OPENBLAS_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["{1}", "{1}", "True"]
