"""Files of a run for executors that do not see them: those that are for them, and no others."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from opendas.engines.checkpoint import Checkpoints
from opendas.engines.spark import channel, run_files
from opendas.engines.spark.channel import Ticket
from opendas.engines.spark.key_service import KeyService, KeyTicket
from opendas.engines.spark.run_files import FileService, RunFiles, SentFiles, SharedFiles
from opendas.errors import EnvironmentFailure, PrivacyError


@pytest.fixture(name="out")
def _out(tmp_path: Path) -> Path:
    for name in ("state/work", "confidential"):
        (tmp_path / "out" / name).mkdir(parents=True)
    (tmp_path / "out" / "state" / "work" / "1.item").write_bytes(b"item")
    (tmp_path / "out" / "state" / "run.json").write_bytes(b"{}")
    (tmp_path / "out" / "confidential" / "run.key").write_bytes(b"secret")
    return tmp_path / "out"


@pytest.fixture(name="service")
def _service(out: Path) -> Iterator[FileService]:
    state = out / "state"
    with FileService({state / "work": ".item"}, {state: ".part", state / "work": ".done"}, "127.0.0.1") as it:
        yield it


@pytest.fixture(name="sent")
def _sent(service: FileService) -> SentFiles:
    found: SentFiles = pickle.loads(pickle.dumps(service.files))
    return found


@pytest.mark.parametrize("how", ["shared", "sent"])
def test_what_is_written_is_what_is_read(how: str, out: Path, service: FileService) -> None:
    files: RunFiles = SharedFiles() if how == "shared" else service.files
    assert files.read(out / "state" / "work" / "1.item") == b"item"
    for data in (b"", b"x", os.urandom(3_000_000)):
        files.write(out / "state" / "1.part", data)
        assert (out / "state" / "1.part").read_bytes() == data
    assert sorted(path.name for path in (out / "state").iterdir()) == ["1.part", "run.json", "work"]


def test_a_folder_is_made_and_no_more_than_one(out: Path, sent: SentFiles) -> None:
    sent.write(out / "state" / "work" / "new" / "1.done", b"x")
    assert (out / "state" / "work" / "new" / "1.done").read_bytes() == b"x"
    with pytest.raises(EnvironmentFailure, match=r"could not write 1\.done"):
        sent.write(out / "state" / "work" / "a" / "b" / "1.done", b"x")


@pytest.mark.parametrize(
    "path",
    [
        "confidential/run.key",
        "state/run.json",
        "state/work/../run.json",
        "state/work/../../confidential/run.key",
        "state/link/run.key",
        "state/1.item",
        "",
    ],
)
def test_other_files_are_refused(path: str, out: Path, sent: SentFiles) -> None:
    (out / "state" / "link").symlink_to(out / "confidential")
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    with pytest.raises(PrivacyError, match="refused"):
        sent.read(out / path)
    with pytest.raises(PrivacyError, match="refused"):
        sent.write(out / path, b"x")
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before


def test_what_may_be_read_may_not_be_written_and_the_other_way_round(out: Path, sent: SentFiles) -> None:
    (out / "state" / "work" / "1.done").write_bytes(b"done")
    with pytest.raises(PrivacyError, match="refused"):
        sent.read(out / "state" / "work" / "1.done")
    with pytest.raises(PrivacyError, match="refused"):
        sent.write(out / "state" / "work" / "1.item", b"x")


def test_a_link_in_the_place_of_a_file_leads_nowhere(out: Path, sent: SentFiles) -> None:
    (out / "state" / "1.part").symlink_to(out / "confidential" / "run.key")
    with pytest.raises(PrivacyError, match="refused"):
        sent.write(out / "state" / "1.part", b"x")
    assert (out / "confidential" / "run.key").read_bytes() == b"secret"


def test_what_is_missing_is_told(out: Path, sent: SentFiles) -> None:
    with pytest.raises(EnvironmentFailure, match=r"2\.item \(FileNotFoundError\)"):
        sent.read(out / "state" / "work" / "2.item")


def test_two_attempts_at_the_same_task_leave_one_whole_file(out: Path, sent: SentFiles) -> None:
    data = os.urandom(500_000)
    failed: list[Exception] = []

    def write() -> None:
        try:
            for _ in range(5):
                sent.write(out / "state" / "1.part", data)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert (out / "state" / "1.part").read_bytes() == data
    assert not list((out / "state").glob("*.partial"))


def question(ticket: Ticket, path: Path, data: bytes) -> bytes:
    """Return a question to write, as it crosses the network."""
    own = X25519PrivateKey.generate()
    public, name = own.public_key().public_bytes_raw(), str(path).encode()
    between = channel._Exchange(own, ticket.public, ticket.purpose, public + ticket.public)
    asked = run_files._HEAD.pack(b"w", len(name)) + name + data
    return public + channel._sealed(between.question(), ticket.token, asked)


def test_what_was_recorded_is_not_written_again(out: Path, service: FileService) -> None:
    """Another result may stand there meanwhile."""
    path, ticket = out / "state" / "1.part", service.files.driver
    before, now = (question(ticket, path, data) for data in (b"before", b"now"))
    for asked in (before, now, before):
        with socket.create_connection((ticket.host, ticket.port)) as connection:
            connection.sendall(asked)
            channel._receive(connection, 1000)
    assert path.read_bytes() == b"now"


def talks() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "(_talk)" in thread.name]


def until_there_is_one() -> threading.Thread:
    until = time.monotonic() + 20
    while not talks() and time.monotonic() < until:
        time.sleep(0.01)
    (thread,) = talks()
    return thread


def test_nothing_is_written_when_the_run_has_ended(out: Path) -> None:
    """An executor that was given up may be in the middle of a question."""
    path = out / "state" / "1.part"
    with FileService({}, {out / "state": ".part"}, "127.0.0.1") as service:
        ticket = service.files.driver
        asked = question(ticket, path, bytes(1000))
        connection = socket.create_connection((ticket.host, ticket.port))
        connection.sendall(asked[:-1])
        thread = until_there_is_one()
    with connection, contextlib.suppress(OSError):
        connection.sendall(asked[-1:])
        channel._receive(connection, 1000)
    thread.join(20)
    assert not path.exists()


def test_what_is_being_written_when_the_run_ends_is_waited_for(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, goes_on = out / "state" / "1.part", threading.Event()
    write = run_files.write_here

    def slowly(path: Path, data: bytes) -> None:
        goes_on.wait(20)
        write(path, data)

    monkeypatch.setattr(run_files, "write_here", slowly)
    with FileService({}, {out / "state": ".part"}, "127.0.0.1") as service:
        ticket = service.files.driver
        with socket.create_connection((ticket.host, ticket.port)) as connection:
            connection.sendall(question(ticket, path, b"x"))
            until_there_is_one()
            threading.Timer(0.3, goes_on.set).start()
            service._listener.__exit__(None, None, None)
            assert path.read_bytes() == b"x"
            assert talks() == []
        service._listener._socket = None


def test_links_in_a_circle_are_refused(out: Path, sent: SentFiles) -> None:
    (out / "state" / "one").symlink_to(out / "state" / "two")
    (out / "state" / "two").symlink_to(out / "state" / "one")
    with pytest.raises((PrivacyError, EnvironmentFailure)):
        sent.write(out / "state" / "one" / "1.part", b"x")


def test_a_full_disk_is_that_of_the_driver(
    out: Path, sent: SentFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentFailure, match=r"the driver could not write 1\.part \(No space left"):
        sent.write(out / "state" / "1.part", b"x")
    assert sorted(path.name for path in (out / "state").iterdir()) == ["run.json", "work"]


def test_a_ticket_for_files_gets_no_keys(service: FileService) -> None:
    with KeyService("127.0.0.1") as keys:
        keys.offer({"noise": bytes(32)})
        with pytest.raises(PrivacyError, match="refused"):
            KeyTicket(service.files.driver).fetch("noise")


def test_too_much_at_once_is_refused_before_it_is_sent(
    out: Path, sent: SentFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "LARGEST", 1000)
    with pytest.raises(EnvironmentFailure, match="more than 1,000 at once"):
        sent.write(out / "state" / "1.part", bytes(1000))


def test_a_question_without_a_head_is_refused(service: FileService) -> None:
    for question in (b"", b"r", b"x\1\0/"):
        with pytest.raises(PrivacyError, match="refused"):
            service.files.driver.ask(question)


def test_results_are_written_with_another_writer(tmp_path: Path) -> None:
    written: list[Path] = []
    files = Checkpoints(tmp_path, "run", lambda *_: None)
    other = files.written_with(lambda path, _: written.append(path))
    assert other.path(1, 2) == files.path(1, 2)
    other._write(other.path(1, 2), b"")
    assert written == [files.path(1, 2)]
