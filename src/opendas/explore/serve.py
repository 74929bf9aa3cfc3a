"""Starts the program's own server on this machine's loopback address, and opens the page."""

from __future__ import annotations

import socket
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress

import uvicorn

from opendas.errors import EnvironmentFailure
from opendas.explore.app import Session, make_app

__all__ = ["ADDRESS", "bound", "hosts_of", "serve"]

ADDRESS = "127.0.0.1"
"""Only programs on this machine reach it."""

_LONGEST_REQUEST = 256 * 1024


def bound(port: int = 0) -> socket.socket:
    """Return a socket that listens on the loopback address; port 0 is any free one.

    Raises
    ------
    EnvironmentFailure
        If the port is taken or may not be used.
    """
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((ADDRESS, port))
        found.listen()  # from here on whoever calls waits, so that the address may be told
    except OSError as error:
        found.close()
        reason = error.strerror or "unknown reason"
        raise EnvironmentFailure(
            f"port {port} of {ADDRESS} cannot be used: {reason}. Give another --port, or none for a free one."
        ) from None
    return found


def hosts_of(port: int) -> frozenset[str]:
    """Return the ``Host`` headers that mean this server."""
    return frozenset({f"{ADDRESS}:{port}", f"localhost:{port}"})


def serve(session: Session, *, port: int = 0, browser: bool = True, say: Callable[[str], None]) -> None:
    """Serve the pages until interrupted.

    Parameters
    ----------
    session : Session
    port : int
        0 for any free one.
    browser : bool
        Open the page.
    say : callable of str
        Where the address goes.
    """
    listener = bound(port)
    number = int(listener.getsockname()[1])
    address = f"http://{ADDRESS}:{number}/"
    if session.save_to is not None:
        address += f"?token={session.token}"
    config = uvicorn.Config(
        make_app(session, hosts_of(number)),
        log_level="critical",
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=_LONGEST_REQUEST,
        http="h11",
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=2,
    )
    say(f"{address}  (this machine only; stop with Ctrl-C)")
    if browser:
        threading.Timer(0.5, _open, [address]).start()
    with listener, suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])


def _open(address: str) -> None:
    with suppress(webbrowser.Error):
        webbrowser.open(address)
