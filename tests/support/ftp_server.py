"""An FTP server on loopback: a file system that is elsewhere, which Hadoop's own client reaches."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

USER = "census"
PASSWORD = "marked-sword-fish"


@dataclass(frozen=True)
class FtpServer:
    """Where it is, and what a Spark session must know to use it."""

    address: str
    settings: dict[str, str]


@contextmanager
def start_ftp(folder: Path, fails: dict[str, int] | None = None) -> Iterator[FtpServer]:
    """Serve a folder.

    Names that begin with a dot are not listed, as with most servers. In a folder of `fails`, by its name, the
    n-th upload from 0 ends half-way, once.
    """
    pytest.importorskip("pyftpdlib", reason="needs the package pyftpdlib, which is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it stands on asyncore
        from pyftpdlib.authorizers import DummyAuthorizer
        from pyftpdlib.filesystems import AbstractedFS
        from pyftpdlib.handlers import FTPHandler
        from pyftpdlib.servers import FTPServer

    left = dict(fails or {})

    class Files(AbstractedFS):  # type: ignore[misc]
        def listdir(self, path: str) -> list[str]:
            return [name for name in super().listdir(path) if not name.startswith(".")]

    class Handler(FTPHandler):  # type: ignore[misc]
        authorizer = DummyAuthorizer()
        abstracted_fs = Files
        auth_failed_timeout = 0

        def ftp_STOR(self, file: str, mode: str = "w") -> Any:
            for name in left.keys() & set(Path(file).parts):
                left[name] -= 1
                if left[name] < 0:
                    del left[name]
                    Path(file).write_bytes(b"half of it")
                    self.respond("426 Connection closed; transfer aborted.")
                    return None
            return super().ftp_STOR(file, mode)

    Handler.authorizer.add_user(USER, PASSWORD, str(folder), perm="elradfmw")
    server = FTPServer(("127.0.0.1", 0), Handler)
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            server.serve_forever(timeout=0.1, blocking=False, handle_exit=False)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        host, port = server.address
        yield FtpServer(
            f"ftp://{host}:{port}",
            {
                f"spark.hadoop.fs.ftp.user.{host}": USER,
                f"spark.hadoop.fs.ftp.password.{host}": PASSWORD,
                "spark.hadoop.fs.ftp.data.connection.mode": "PASSIVE_LOCAL_DATA_CONNECTION_MODE",
            },
        )
    finally:
        stop.set()
        thread.join()
        server.close_all()
