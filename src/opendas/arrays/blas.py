"""BLAS on one thread, for the few places that use it.

How a matrix product is split over threads changes the order of its sums, hence the last bits. The limit is a
setting of the whole process, so it is counted: the first to enter sets it, the last to leave restores it, and
families may be solved by several threads at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from threadpoolctl import ThreadpoolController


class _Gate:
    """Counts who is inside."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = 0
        self.limit: Any = None

    def enter(self) -> None:
        with self.lock:
            if self.inside == 0:
                # It knows what is loaded now: compiled code loads the BLAS of scipy beside that of numpy.
                self.limit = ThreadpoolController().limit(limits=1, user_api="blas")
            self.inside += 1

    def leave(self) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                self.limit.restore_original_limits()


_gate = _Gate()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Run the body with BLAS limited to one thread."""
    _gate.enter()
    try:
        yield
    finally:
        _gate.leave()
