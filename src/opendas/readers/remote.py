"""Addresses of Hadoop-compatible file systems, such as ``hdfs://``, which Spark alone reads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["PASSWORD_RULE", "RemoteAddress", "RemoteInput", "holds_password"]

PASSWORD_RULE: Final = (
    "an address with a password would stand in logs; give the address without it, and the password in "
    "Hadoop's settings: core-site.xml, or spark.hadoop.* for one session"
)

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")  # two letters at least: one may be a drive
_PLACE = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:[0-9]*)?")
"""Host and port. Before a slash that a password holds, something else may stand."""


def holds_password(text: str) -> bool:
    """Return whether a text is an address with a password, or with what may be a part of one."""
    scheme = _SCHEME.match(text)
    if scheme is None:
        return False
    user, _, place = text[scheme.end() :].partition("/")[0].rpartition("@")
    return ":" in user or _PLACE.fullmatch(place) is None


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
