"""Questions of executors, answered by the driver over encrypted connections while a run lasts.

Whatever Spark is given (functions, broadcasts, rows, settings) may reach a disk, a log or a shuffle file. So
functions carry a ticket: where to ask, the driver's public key, and a token that means nothing once the
driver has stopped listening. Argument: docs/proofs/keys.md.

A connection carries one question and one answer, each a header of fixed length and a body whose length the
header tells. Nothing is read of a body before its header has opened and shown the token, and a question that
was put once is not answered again.
"""

from __future__ import annotations

import hmac
import logging
import math
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
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

__all__ = ["LARGEST", "Listener", "Ticket"]

_log = logging.getLogger(__name__)

_PURPOSE: Final = b"opendas driver and executors, format 2"
_PUBLIC = 32
_TOKEN = 32
_FRESH = 32
_TAG = 16
_LENGTH = struct.Struct("<Q")
_HEADER: Final = bytes(12)
_BODY: Final = bytes(11) + b"\1"
"""Nonces: a key encrypts the header and the body of one message, and nothing else."""
LARGEST: Final = 1 << 30
"""Bytes of a body."""
_PATIENCE_S = 60.0
_TRIES = 4
_GREETING_S = 20.0
"""From connecting to the token."""
_CONNECTIONS = 256
"""Talked to at a time; others wait. Each takes a thread and a file descriptor of the driver."""
_PAUSE_S = 0.1
_DRAIN_S = 1.0
_DRAIN: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Ticket:
    """What an executor needs to ask the driver. Worthless when that has stopped listening.

    Parameters
    ----------
    host : str
    port : int
    purpose : bytes
        Of the service; a question put to another one does not open.
    public : bytes
        The driver's ephemeral public key: an answer from anybody else does not open.
    token : bytes
        Random; shows that the asker was sent by the driver.
    """

    host: str
    port: int
    purpose: bytes
    public: bytes = field(repr=False)
    token: bytes = field(repr=False)

    def ask(self, question: bytes) -> bytes:
        """Return the driver's answer.

        Raises
        ------
        EnvironmentFailure
            If the driver cannot be reached, or the question is longer than a body can be.
        PrivacyError
            If it refuses, or somebody else answers.
        """
        if len(question) > LARGEST:
            raise EnvironmentFailure(
                f"an executor has {len(question):,} bytes for the driver, more than {LARGEST:,} at once: let "
                "--out be a folder that all executors see."
            )
        for attempt in range(_TRIES):
            try:
                return self._ask(question)
            except OSError as error:
                if attempt + 1 == _TRIES:
                    raise EnvironmentFailure(
                        f"an executor cannot reach the driver at {self.host}:{self.port} "
                        f"({type(error).__name__}): executors must be able to connect to spark.driver.host."
                    ) from None
                time.sleep(0.2 * 2**attempt)
        raise AssertionError("the loop ends by returning or raising")

    def _ask(self, question: bytes) -> bytes:
        own = X25519PrivateKey.generate()
        public = own.public_key().public_bytes_raw()
        between = _Exchange(own, self.public, self.purpose, public + self.public)
        with socket.create_connection((self.host, self.port), timeout=_PATIENCE_S) as connection:
            connection.sendall(public + _sealed(between.question(), self.token, question))
            start = _receive(connection, _FRESH + _LENGTH.size + _TAG)
            if len(start) != _FRESH + _LENGTH.size + _TAG:
                raise PrivacyError("the driver refused to answer an executor: the job that asked has ended.")
            answering, header = between.answer(start[:_FRESH]), start[_FRESH:]
            try:
                (length,) = _LENGTH.unpack(answering.decrypt(_HEADER, header, None))
                body = _receive(connection, length + _TAG)
                if len(body) != length + _TAG:
                    raise ConnectionResetError
                return answering.decrypt(_BODY, body, None)
            except InvalidTag:
                raise PrivacyError(
                    "something other than the driver of this run answered an executor."
                ) from None


class _Exchange:
    """The ciphers of a connection, each for one message.

    Parameters
    ----------
    own : X25519PrivateKey
    other : bytes
        Public key.
    purpose : bytes
    publics : bytes
        Of the executor and of the driver.
    """

    def __init__(self, own: X25519PrivateKey, other: bytes, purpose: bytes, publics: bytes) -> None:
        self._shared = own.exchange(X25519PublicKey.from_public_bytes(other))
        self._purpose, self._publics = purpose, publics

    def question(self) -> AESGCM:
        """Return the cipher of the question."""
        return self._cipher(b"question", b"")

    def answer(self, fresh: bytes) -> AESGCM:
        """Return the cipher of an answer. Its random bytes give a repeated question another one."""
        return self._cipher(b"answer", fresh)

    def _cipher(self, message: bytes, fresh: bytes) -> AESGCM:
        info = b", ".join((_PURPOSE, self._purpose, message))
        derive = HKDF(algorithm=hashes.SHA256(), length=32, salt=self._publics + fresh, info=info)
        return AESGCM(derive.derive(self._shared))


class Listener:
    """Answers executors as long as the block lasts.

    Use it as a context manager.

    Parameters
    ----------
    purpose : bytes
        What is asked here, a few words.
    answer : callable(question)
        Returns the answer; an exception refuses. It runs in threads, several at a time.
    largest : int
        Bytes that a question may have.
    host : str
        Address that executors reach the driver at; it listens on this one alone.
    bind : str, optional
        Address to listen on instead, where `host` is another machine's name for this one.
    """

    def __init__(
        self,
        purpose: bytes,
        answer: Callable[[bytes], bytes],
        largest: int,
        host: str,
        bind: str | None = None,
    ) -> None:
        self._purpose, self._answer_to, self._largest = purpose, answer, largest
        self._host, self._bind = host, bind
        self._private = X25519PrivateKey.generate()
        self._token = token_bytes(_TOKEN)
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._free = threading.Semaphore(_CONNECTIONS)
        self._lock = threading.Lock()
        self._talks: dict[threading.Thread, socket.socket] = {}
        self._put: set[bytes] = set()

    def __repr__(self) -> str:
        return "Listener()"

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
        """End: what an executor sends from here on, or was about to send, has no effect any more."""
        self._ended.set()
        if self._socket is not None:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
            self._socket.close()
        self._hang_up()  # wakes it if it waits for one of these
        if self._thread is not None:
            self._thread.join(_PATIENCE_S)
        for thread in self._hang_up():
            thread.join(_PATIENCE_S)

    def _hang_up(self) -> list[threading.Thread]:
        with self._lock:
            for connection in self._talks.values():
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            return list(self._talks)

    @property
    def ticket(self) -> Ticket:
        """What to send to executors."""
        if self._socket is None:
            raise RuntimeError("the service is not running")
        port = int(self._socket.getsockname()[1])
        public = self._private.public_key().public_bytes_raw()
        return Ticket(self._host, port, self._purpose, public, self._token)

    def _serve(self, listening: socket.socket) -> None:
        while True:
            self._free.acquire()
            try:
                connection, _ = listening.accept()
            except OSError:
                self._free.release()
                if self._ended.wait(_PAUSE_S):
                    return
                continue  # out of file descriptors: that passes
            thread = threading.Thread(target=self._talk, args=(connection,), daemon=True)
            with self._lock:
                self._talks[thread] = connection
            try:
                thread.start()
            except RuntimeError:  # out of threads
                self._forget(thread, connection)

    def _talk(self, connection: socket.socket) -> None:
        """Answer one connection. Whatever is wrong with it, it is closed without a word."""
        try:
            question, between = self._hear(connection)
            fresh = token_bytes(_FRESH)
            connection.sendall(fresh + _sealed(between.answer(fresh), b"", self._answer_to(question)))
        except Exception:  # nothing of it belongs on a terminal
            _log.warning("a connection to the driver was refused")
            with suppress(OSError):  # closed with something unread, it would seem broken to who asked
                connection.shutdown(socket.SHUT_WR)
                _receive(connection, _DRAIN, time.monotonic() + _DRAIN_S)
        finally:
            self._forget(threading.current_thread(), connection)

    def _forget(self, thread: threading.Thread, connection: socket.socket) -> None:
        with self._lock:
            del self._talks[thread]
            connection.close()
        self._free.release()

    def _hear(self, connection: socket.socket) -> tuple[bytes, _Exchange]:
        until = time.monotonic() + _GREETING_S
        public = _receive(connection, _PUBLIC, until)
        own = self._private.public_key().public_bytes_raw()
        between = _Exchange(self._private, public, self._purpose, public + own)
        asking = between.question()
        header = asking.decrypt(_HEADER, _receive(connection, _TOKEN + _LENGTH.size + _TAG, until), None)
        (length,) = _LENGTH.unpack(header[_TOKEN:])
        if not hmac.compare_digest(header[:_TOKEN], self._token) or length > self._largest:
            raise PrivacyError("an executor without a valid ticket asked the driver.")
        with self._lock:
            again = public in self._put
            self._put.add(public)
        if again:  # recorded by somebody: what it writes may have been written anew since
            raise PrivacyError("a question to the driver is put once.")
        return asking.decrypt(_BODY, _receive(connection, length + _TAG), None), between


def _sealed(cipher: AESGCM, token: bytes, body: bytes) -> bytes:
    header = cipher.encrypt(_HEADER, token + _LENGTH.pack(len(body)), None)
    return header + cipher.encrypt(_BODY, body, None)


def _receive(connection: socket.socket, wanted: int, until: float = math.inf) -> bytes:
    """Return so many bytes, or fewer where the other side closes before.

    Each piece may take a minute, and all of them until a time of the monotonic clock. What is there already
    is taken even later: a machine may stand still for a while.
    """
    found = bytearray()
    while len(found) < wanted:
        connection.settimeout(min(_PATIENCE_S, max(until - time.monotonic(), 0.001)))
        more = connection.recv(min(wanted - len(found), 1 << 20))
        if not more:
            break
        found += more
    return bytes(found)
