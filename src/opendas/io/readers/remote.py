"""Addresses of Hadoop-compatible file systems, such as ``hdfs://``, which Spark alone reads."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["RemoteAddress", "RemoteInput"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")  # two letters at least: one may be a drive


class RemoteAddress(str):
    """A text that begins with a scheme."""

    __slots__ = ()

    @classmethod
    def of(cls, text: str) -> RemoteAddress | None:
        """Return a text as an address; None where it is a path."""
        return cls(text) if _SCHEME.match(text) else None


@dataclass(frozen=True, slots=True)
class RemoteInput:
    """What of an input stands at addresses.

    Parameters
    ----------
    paths : tuple of RemoteAddress
        Files, folders or patterns of the data; empty where these are files of this machine.
    frame, units : RemoteAddress or None
    """

    paths: tuple[RemoteAddress, ...] = ()
    frame: RemoteAddress | None = None
    units: RemoteAddress | None = None

    def __bool__(self) -> bool:
        return bool(self.paths or self.frame or self.units)
