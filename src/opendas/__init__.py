"""OpenDAS: an open disclosure avoidance system.

Turns a confidential table in a hierarchy into a release that is formally private, consistent at every level
and made of non-negative whole records.

>>> import opendas as od
>>> run = od.load("run.toml")                      # doctest: +SKIP
>>> release = od.release(run, out="out")           # doctest: +SKIP
>>> release.verify()                               # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opendas.api import *  # noqa: F403
    from opendas.version import __version__ as __version__

    __all__: list[str]


def __getattr__(name: str) -> Any:
    """Import the public names when they are first used, so that ``import opendas`` stays fast."""
    if name == "__version__":
        return import_module("opendas.version").__version__
    api = import_module("opendas.api")
    if name == "__all__":
        return ["__version__", *api.__all__]
    if name in api.__all__:
        return getattr(api, name)
    raise AttributeError(f"module 'opendas' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__getattr__("__all__"))
