"""Keys for executors: asked for over an encrypted connection while a job runs, and written down nowhere.

Whatever Spark is given (functions, broadcasts, rows, settings) may reach a disk, a log or a shuffle file. So
a key stays in the driver's memory, and functions carry a ticket instead: where to ask, the driver's public
key, and a token that means nothing once the service has ended. Argument: docs/spark.md.
"""

from __future__ import annotations

import hmac
import logging
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from secrets import token_bytes
from types import TracebackType
from typing import Final, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from opendas.errors import EnvironmentFailure, PrivacyError

__all__ = ["KeyService", "KeyTicket"]

_log = logging.getLogger(__name__)

_PURPOSE: Final = b"opendas keys for executors, format 1"
_PUBLIC = 32
_TOKEN = 32
_TAG = 16
_NAME = 32
"""Bytes that a name is padded to: requests have one length, whatever they ask for."""
_KEY = 32
_NONCE: Final = bytes(12)
"""Every key of a connection encrypts a single message, so that the nonce may be the same."""
_PATIENCE_S = 20.0
_TRIES = 4


@dataclass(frozen=True, slots=True)
class KeyTicket:
    """What an executor needs to ask for keys. Worthless when the service has ended.

    Parameters
    ----------
    host : str
    port : int
    public : bytes
        The driver's ephemeral public key: an answer from anybody else does not open.
    token : bytes
        Random; shows that the asker was sent by the driver.
    """

    host: str
    port: int
    public: bytes = field(repr=False)
    token: bytes = field(repr=False)

    def fetch(self, name: str) -> bytes:
        """Return a key.

        Raises
        ------
        EnvironmentFailure
            If the driver cannot be reached.
        PrivacyError
            If it refuses, or somebody else answers.
        """
        for attempt in range(_TRIES):
            try:
                return self._ask(_padded(name))
            except OSError as error:
                if attempt + 1 == _TRIES:
                    raise EnvironmentFailure(
                        f"an executor cannot reach the driver at {self.host}:{self.port} "
                        f"({type(error).__name__}): executors must be able to connect to spark.driver.host."
                    ) from None
                time.sleep(0.2 * 2**attempt)
        raise AssertionError("the loop ends by returning or raising")

    def _ask(self, name: bytes) -> bytes:
        own = X25519PrivateKey.generate()
        public = own.public_key().public_bytes_raw()
        asking, answering = _ciphers(own, self.public, public, self.public)
        with socket.create_connection((self.host, self.port), timeout=_PATIENCE_S) as connection:
            connection.sendall(public + asking.encrypt(_NONCE, self.token + name, _PURPOSE))
            answer = _receive(connection, _KEY + _TAG)
        if len(answer) != _KEY + _TAG:
            raise PrivacyError(
                "the driver refused to give a key to an executor: the job that it asked for has ended."
            )
        try:
            return answering.decrypt(_NONCE, answer, _PURPOSE)
        except InvalidTag:
            raise PrivacyError("something other than the driver of this run answered an executor.") from None


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
        self._host, self._bind = host, bind
        self._private = X25519PrivateKey.generate()
        self._token = token_bytes(_TOKEN)
        self._keys: dict[bytes, bytes] = {}
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return "KeyService()"

    def __enter__(self) -> Self:
        address = self._bind or self._host
        try:
            family, kind, *_, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
            listening = socket.socket(family, kind)
            try:
                listening.bind(place)
                listening.listen(128)
            except OSError:
                listening.close()
                raise
        except OSError as error:
            raise EnvironmentFailure(
                f"engine spark: no connection can be taken at {address} ({error.strerror}); let "
                "spark.driver.host (and spark.driver.bindAddress) be an address of this machine that "
                "executors reach."
            ) from None
        self._socket = listening
        self._thread = threading.Thread(target=self._serve, args=(listening,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._keys.clear()
        if self._socket is not None:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
            self._socket.close()
        if self._thread is not None:
            self._thread.join(_PATIENCE_S)

    @property
    def ticket(self) -> KeyTicket:
        """What to send to executors."""
        if self._socket is None:
            raise RuntimeError("the service is not running")
        port = int(self._socket.getsockname()[1])
        return KeyTicket(self._host, port, self._private.public_key().public_bytes_raw(), self._token)

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

    def _serve(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        """Answer one connection. Whatever is wrong with it, it is closed without a word."""
        with connection:
            try:
                connection.settimeout(_PATIENCE_S)
                request = _receive(connection, _PUBLIC + _TOKEN + _NAME + _TAG)
                key, answering = self._open(request)
                connection.sendall(answering.encrypt(_NONCE, key, _PURPOSE))
            except (OSError, InvalidTag, ValueError, PrivacyError):
                _log.warning("a connection that asked for a key was refused")

    def _open(self, request: bytes) -> tuple[bytes, AESGCM]:
        public, sealed = request[:_PUBLIC], request[_PUBLIC:]
        own = self._private.public_key().public_bytes_raw()
        asking, answering = _ciphers(self._private, public, public, own)
        asked = asking.decrypt(_NONCE, sealed, _PURPOSE)
        with self._lock:
            key = self._keys.get(asked[_TOKEN:])
        if not hmac.compare_digest(asked[:_TOKEN], self._token) or key is None:
            raise PrivacyError("an executor without a valid ticket asked for a key.")
        return key, answering


def _padded(name: str) -> bytes:
    text = name.encode()
    if not 0 < len(text) <= _NAME:
        raise ValueError(f"a key's name has 1 to {_NAME} bytes")
    return text.ljust(_NAME, b"\0")


def _ciphers(own: X25519PrivateKey, other: bytes, asker: bytes, driver: bytes) -> tuple[AESGCM, AESGCM]:
    """Return the ciphers of a connection's two directions: each for one message."""
    shared = own.exchange(X25519PublicKey.from_public_bytes(other))
    both = HKDF(algorithm=hashes.SHA256(), length=64, salt=asker + driver, info=_PURPOSE).derive(shared)
    return AESGCM(both[:32]), AESGCM(both[32:])


def _receive(connection: socket.socket, wanted: int) -> bytes:
    """Return so many bytes, or fewer where the other side closes before."""
    found = b""
    while len(found) < wanted:
        more = connection.recv(wanted - len(found))
        if not more:
            break
        found += more
    return found
