"""Keys for executors: asked for over an encrypted connection while a job runs, and written down nowhere.

A key stays in the driver's memory, and functions that Spark is given carry a ticket instead. Argument:
docs/spark.md and docs/proofs/keys.md.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from opendas.engines.spark.channel import Listener, Ticket
from opendas.errors import PrivacyError

__all__ = ["KeyService", "KeyTicket"]

_NAME: Final = 32
"""Bytes that a name is padded to: questions have one length, whatever they ask for."""
_KEY: Final = 32


@dataclass(frozen=True, slots=True)
class KeyTicket:
    """What an executor needs to ask for keys. Worthless when the service has ended.

    Parameters
    ----------
    driver : Ticket
    """

    driver: Ticket

    def fetch(self, name: str) -> bytes:
        """Return a key.

        Raises
        ------
        EnvironmentFailure
            If the driver cannot be reached.
        PrivacyError
            If it refuses, or somebody else answers.
        """
        return self.driver.ask(_padded(name))


class KeyService:
    """Gives keys to executors, from memory, as long as the block lasts.

    Use it as a context manager.

    Parameters
    ----------
    host : str
        Address that executors reach the driver at; the service listens on this one alone.
    bind : str, optional
        Address to listen on instead, where `host` is another machine's name for this one.
    """

    def __init__(self, host: str, bind: str | None = None) -> None:
        self._keys: dict[bytes, bytes] = {}
        self._lock = threading.Lock()
        self._listener = Listener(b"keys", self._give, _NAME, host, bind)

    def __repr__(self) -> str:
        return "KeyService()"

    def __enter__(self) -> Self:
        self._listener.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._keys.clear()
        self._listener.__exit__(kind, error, trace)

    @property
    def ticket(self) -> KeyTicket:
        """What to send to executors."""
        return KeyTicket(self._listener.ticket)

    def offer(self, keys: Mapping[str, bytes]) -> None:
        """Give these keys, too, from now on.

        Raises
        ------
        PrivacyError
            If one is not 32 bytes.
        """
        if any(len(key) != _KEY for key in keys.values()):
            raise PrivacyError(f"a key for executors is {_KEY} bytes.")
        with self._lock:
            self._keys.update({_padded(name): key for name, key in keys.items()})

    def withdraw(self, name: str) -> None:
        """Give a key no longer."""
        with self._lock:
            self._keys.pop(_padded(name), None)

    def _give(self, name: bytes) -> bytes:
        with self._lock:
            key = self._keys.get(name)
        if key is None:
            raise PrivacyError("an executor asked for a key that is not given.")
        return key


def _padded(name: str) -> bytes:
    text = name.encode()
    if not 0 < len(text) <= _NAME:
        raise ValueError(f"a key's name has 1 to {_NAME} bytes")
    return text.ljust(_NAME, b"\0")
