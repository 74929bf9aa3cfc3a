"""Keys for executors: who has the ticket gets them, and nobody else; nothing of them crosses in clear."""

from __future__ import annotations

import contextlib
import errno
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from secrets import token_bytes
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from opendas.engines.spark import channel
from opendas.engines.spark.key_service import KeyService, KeyTicket
from opendas.errors import EnvironmentFailure, PrivacyError

KEY, OTHER = token_bytes(32), token_bytes(32)


@pytest.fixture(name="service")
def _service() -> Iterator[KeyService]:
    with KeyService("127.0.0.1") as service:
        service.offer({"noise": KEY, "tag": OTHER})
        yield service


def changed(service: KeyService, **what: Any) -> KeyTicket:
    """Return the ticket of a service with something else in it."""
    return KeyTicket(replace(service.ticket.driver, **what))


def test_a_ticket_gets_each_key_by_its_name_as_often_as_it_asks(service: KeyService) -> None:
    ticket = pickle.loads(pickle.dumps(service.ticket))
    assert [ticket.fetch(name) for name in ("noise", "tag", "noise")] == [KEY, OTHER, KEY]


def test_many_ask_at_once(service: KeyService) -> None:
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(service.ticket.fetch("noise"))) for _ in range(40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [KEY] * 40


def test_another_token_another_name_or_a_withdrawn_key_is_refused(service: KeyService) -> None:
    token = service.ticket.driver.token
    with pytest.raises(PrivacyError, match="refused"):
        changed(service, token=bytes([token[0] ^ 1]) + token[1:]).fetch("noise")
    with pytest.raises(PrivacyError, match="refused"):
        changed(service, purpose=b"files").fetch("noise")
    with pytest.raises(PrivacyError, match="refused"):
        service.ticket.fetch("run")
    service.withdraw("noise")
    with pytest.raises(PrivacyError, match="refused"):
        service.ticket.fetch("noise")
    assert service.ticket.fetch("tag") == OTHER


def test_who_does_not_have_the_private_key_cannot_answer(service: KeyService) -> None:
    """An executor that is led to another server refuses what that says, and does not show it the token."""
    mine = X25519PrivateKey.generate().public_key().public_bytes_raw()
    with pytest.raises(PrivacyError, match="refused"):  # sealed for another public key
        changed(service, public=mine).fetch("noise")
    heard: list[bytes] = []

    def pretend(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            heard.append(connection.recv(4096))
            connection.sendall(bytes(104))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=pretend, args=(listening,))
        thread.start()
        with pytest.raises(PrivacyError, match="other than the driver"):
            changed(service, port=listening.getsockname()[1]).fetch("noise")
        thread.join()
    assert service.ticket.driver.token not in heard[0]


def test_no_key_and_no_token_crosses_in_clear(service: KeyService) -> None:
    heard = bytearray()
    ticket = service.ticket.driver

    def relay(listening: socket.socket) -> None:
        asker, _ = listening.accept()
        with asker, socket.create_connection((ticket.host, ticket.port)) as driver:
            for source, sink, length in ((asker, driver, 136), (driver, asker, 104)):
                said = channel._receive(source, length)
                assert len(said) == length
                heard.extend(said)
                sink.sendall(said)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=relay, args=(listening,))
        thread.start()
        assert changed(service, port=listening.getsockname()[1]).fetch("noise") == KEY
        thread.join()
    assert len(heard) == 240
    for secret in (KEY, ticket.token):
        assert not any(secret[at : at + 4] in heard for at in range(0, 32, 4))


def test_a_question_is_answered_once(service: KeyService) -> None:
    """Who records a question can put it again."""
    ticket = service.ticket.driver
    own = X25519PrivateKey.generate()
    public = own.public_key().public_bytes_raw()
    between = channel._Exchange(own, ticket.public, ticket.purpose, public + ticket.public)
    question = public + channel._sealed(between.question(), ticket.token, b"noise".ljust(32, b"\0"))
    answers = []
    for _ in range(2):
        with socket.create_connection((ticket.host, ticket.port)) as connection:
            connection.sendall(question)
            answers.append(channel._receive(connection, 104))
    assert [len(answer) for answer in answers] == [104, 0]


def test_answers_to_one_question_are_under_keys_of_their_own() -> None:
    """Two answers under one key and nonce would tell of both."""
    own, other = X25519PrivateKey.generate(), X25519PrivateKey.generate().public_key().public_bytes_raw()
    between = channel._Exchange(own, other, b"keys", bytes(64))
    sealed = [channel._sealed(between.answer(bytes([n]) * 32), b"", bytes(32)) for n in range(2)]
    assert sealed[0] != sealed[1]
    with pytest.raises(InvalidTag):
        between.answer(bytes(32)).decrypt(channel._HEADER, sealed[1][:24], None)


# Points of order 1, 2, 4 and 8, and those that are not reduced: what is agreed upon is no secret.
SMALL = [
    *(0, 1, 2**255 - 20, 2**255 - 19, 2**255 - 18),
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
]


@pytest.mark.parametrize("point", SMALL)
def test_a_public_key_of_small_order_is_refused(service: KeyService, point: int) -> None:
    ticket = service.ticket.driver
    public = point.to_bytes(32, "little")
    with socket.create_connection((ticket.host, ticket.port)) as connection:
        connection.sendall(public + bytes(104))
        assert connection.recv(1) == b""
    with pytest.raises(ValueError, match="shared key"):
        channel._Exchange(X25519PrivateKey.generate(), public, b"keys", b"")


@pytest.mark.parametrize("length", [0, 31, 32, 60, 87, 88, 100, 135])
def test_a_question_that_is_cut_off_is_not_answered(service: KeyService, length: int) -> None:
    ticket = service.ticket.driver
    own = X25519PrivateKey.generate()
    public = own.public_key().public_bytes_raw()
    between = channel._Exchange(own, ticket.public, ticket.purpose, public + ticket.public)
    question = public + channel._sealed(between.question(), ticket.token, b"noise".ljust(32, b"\0"))
    assert len(question) == 136
    with socket.create_connection((ticket.host, ticket.port)) as connection:
        connection.sendall(question[:length])
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


def talks() -> int:
    """Return how many connections are talked to."""
    return sum("(_talk)" in thread.name for thread in threading.enumerate())


def closed(connection: socket.socket, sent: bytes, pieces: int) -> bool:
    """Send something again and again; return whether the other side closes."""
    try:
        for _ in range(pieces):
            connection.sendall(sent)
            time.sleep(0.05)
    except OSError:
        return True
    return False


def test_who_is_silent_or_slow_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_GREETING_S", 0.2)
    monkeypatch.setattr(channel, "_DRAIN_S", 0.1)
    with KeyService("127.0.0.1") as service:
        service.offer({"noise": KEY})
        where = service.ticket.driver.host, service.ticket.driver.port
        with socket.create_connection(where) as silent:
            assert silent.recv(1) == b""
        with socket.create_connection(where) as before_the_token:
            assert closed(before_the_token, b"x", 60)
        with socket.create_connection(where) as refused:
            refused.sendall(bytes(200))
            assert closed(refused, b"x", 60)
        assert service.ticket.fetch("noise") == KEY


def test_few_connections_are_talked_to_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a thread and a file descriptor, and whoever reaches the driver can make them."""
    monkeypatch.setattr(channel, "_CONNECTIONS", 2)
    monkeypatch.setattr(channel, "_GREETING_S", 1.0)
    before = talks()
    with KeyService("127.0.0.1") as service, contextlib.ExitStack() as stack:
        service.offer({"noise": KEY})
        where = service.ticket.driver.host, service.ticket.driver.port
        for _ in range(6):
            stack.enter_context(socket.create_connection(where))
        time.sleep(0.3)
        assert talks() - before <= 2
        assert service.ticket.fetch("noise") == KEY


def test_being_out_of_descriptors_or_threads_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_PATIENCE_S", 10.0)
    accept, start = socket.socket.accept, threading.Thread.start
    refusals = [OSError(errno.EMFILE, "Too many open files")] * 2

    def scarce(listening: socket.socket) -> Any:
        if refusals:
            raise refusals.pop()
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", scarce)
    with KeyService("127.0.0.1") as service:
        service.offer({"noise": KEY})
        assert service.ticket.fetch("noise") == KEY
        assert refusals == []
        none = [True]

        def refuse(thread: threading.Thread) -> None:
            if none:
                none.clear()
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)
        with socket.create_connection((service.ticket.driver.host, service.ticket.driver.port)) as connection:
            assert connection.recv(1) == b""
        assert none == []
        assert service.ticket.fetch("noise") == KEY


@pytest.mark.parametrize("noise", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(112), b"\xff" * 5000])
def test_anything_else_that_connects_is_closed_without_a_word(service: KeyService, noise: bytes) -> None:
    # Closed with something unread, a connection is reset.
    where = service.ticket.driver.host, service.ticket.driver.port
    with contextlib.suppress(OSError), socket.create_connection(where) as connection:
        connection.sendall(noise)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    assert service.ticket.fetch("noise") == KEY


def test_a_ticket_is_worthless_when_the_service_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_TRIES", 1)
    with KeyService("127.0.0.1") as service:
        service.offer({"noise": KEY})
        old: KeyTicket = service.ticket
    with pytest.raises(EnvironmentFailure, match="cannot reach the driver"):
        old.fetch("noise")
    with KeyService("127.0.0.1") as again:
        again.offer({"noise": KEY})
        with pytest.raises(PrivacyError, match="refused"):
            KeyTicket(replace(old.driver, port=again.ticket.driver.port)).fetch("noise")


def test_nothing_of_a_key_is_shown(service: KeyService) -> None:
    for shown in (repr(service), str(service), repr(service.ticket)):
        assert KEY.hex() not in shown
        assert repr(KEY) not in shown
        assert repr(service.ticket.driver.token) not in shown
    assert KEY not in pickle.dumps(service.ticket)
    with pytest.raises(TypeError):
        pickle.dumps(service)


def test_only_whole_keys_and_short_names_are_offered(service: KeyService) -> None:
    with pytest.raises(PrivacyError, match="32 bytes"):
        service.offer({"short": KEY[:31]})
    with pytest.raises(ValueError, match="name"):
        service.offer({"x" * 33: KEY})


def test_an_address_that_is_not_ours_is_an_environment_failure() -> None:
    with pytest.raises(EnvironmentFailure, match=r"spark\.driver\.host"), KeyService("192.0.2.1"):
        pass
