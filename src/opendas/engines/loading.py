"""What a worker process does first: it loads, while the process that started it reads and plans.

Little is imported here, because everything else waits for its turn: workers that load all at once would take
the cores from that process, which is the one that everybody waits for.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

__all__ = ["load", "loads_at_once"]


def loads_at_once(cores: int) -> int:
    """Return how many workers may load at a time: all cores but the one that reads and plans."""
    return max(1, cores - 1)


def load(turns: AbstractContextManager[Any], modules: Sequence[str]) -> None:
    """Import what a worker will need, and practise.

    Parameters
    ----------
    turns : context manager
        A semaphore of the workers.
    modules : sequence of str
        What comes after the tasks.
    """
    threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()
    with turns:
        from opendas.engines.garbage import keep_modules
        from opendas.engines.practice import practise
        from opendas.pandas_spared import spare_pandas

        spare_pandas()
        with contextlib.suppress(Exception):  # it would fail in the first task, too, where errors are told
            practise()
        for module in modules:
            import_module(module)
        keep_modules()


def _follow(parent: int) -> None:
    """End this worker process soon after its parent: nobody else would, and it holds what is confidential."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
