"""Keep the output of compiled solvers away from standard output, where a program's answers go."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def chatter_to_stderr() -> Iterator[None]:
    """Send what compiled code writes to file descriptor 1 to standard error instead.

    Notes
    -----
    HiGHS prints a line of its own in some branches of its mixed-integer solver, whatever its options say. The
    C library holds such lines back until its buffer is full, so that it is emptied before the descriptors are
    changed, and before they are changed back. Without the C library or the descriptors nothing is done.
    """
    try:
        flush = ctypes.CDLL(None).fflush
        kept = os.dup(1)
    except (OSError, AttributeError, TypeError):
        yield
        return
    try:
        flush(None)
        try:
            os.dup2(2, 1)
        except OSError:  # no standard error
            yield
            return
        try:
            yield
        finally:
            flush(None)
            os.dup2(kept, 1)
    finally:
        os.close(kept)
