"""Arrow without pandas, in the processes that are ours alone.

Where pandas is installed, Arrow imports it with the first array that it makes, to ask whether that was a
series. No command and no worker has series, and each would wait a quarter of a second for the answer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["spare_pandas"]


class _Hiding(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is hidden while Arrow looks for it", name=fullname)
        return None


def spare_pandas() -> None:
    """Let Arrow look for pandas now, and not find it.

    Not for processes with code of others, who may hand series to Arrow. Everybody who imports pandas later
    gets it, ``to_pandas`` of an Arrow table included.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow  # here, for who imports this module need not have a use for Arrow

    hiding = _Hiding()
    sys.meta_path.insert(0, hiding)
    try:
        pyarrow.array([0])
    finally:
        sys.meta_path.remove(hiding)
