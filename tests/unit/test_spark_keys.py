"""Keys for executors: who has the ticket gets them, and nobody else; nothing of them crosses in clear."""

from __future__ import annotations

import contextlib
import pickle
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from secrets import token_bytes
from typing import Any

import pytest
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


def test_a_question_that_is_repeated_gets_an_answer_under_another_key(service: KeyService) -> None:
    """Who records a question can put it again; two answers under one key and nonce would tell of both."""
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
    assert [len(answer) for answer in answers] == [104, 104]
    assert not {answer[at : at + 8] for answer in answers[:1] for at in range(0, 104, 8)} & {
        answers[1][at : at + 8] for at in range(0, 104, 8)
    }


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
