"""What keeps other pages and other machines out: one host name, one origin, no foreign content."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["HEADERS", "Guard"]

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Sent with every answer."""

_MOST_BODY: Final = 2_000_000


class Guard:
    """Refuse requests that were not meant for this program.

    A page elsewhere may have its name resolved to this machine (DNS rebinding): the ``Host`` it then sends is
    its own name. And it may send a form here: its ``Origin`` is not ours.

    Parameters
    ----------
    app : ASGI application
    hosts : set of str
        Accepted ``Host`` headers, with the port.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        if refusal is not None:
            await refusal(scope, receive, guarded)
        else:
            await self.app(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        if headers.get("host", "") not in self.hosts:
            return PlainTextResponse("This program answers to its own address only.\n", 421)
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            # A link in a message may lead here; anything else that a page elsewhere starts may not.
            followed = scope["method"] == "GET" and headers.get("sec-fetch-dest") == "document"
            if not followed:
                return PlainTextResponse("A page elsewhere may not ask here.\n", 403)
        origin = headers.get("origin")
        if origin is not None and origin.removeprefix("http://") not in self.hosts:
            return PlainTextResponse("A page elsewhere may not ask here.\n", 403)
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > _MOST_BODY or "transfer-encoding" in headers:
            return PlainTextResponse("The request is too large.\n", 413)
        return None
