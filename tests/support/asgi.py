"""Requests to an ASGI application without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx

__all__ = ["Client"]


class Client:
    """Asks an application, one request at a time."""

    def __init__(self, app: Any, base: str) -> None:
        self.transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        self.base = base

    def request(
        self, method: str, path: str, *, follow: bool = True, **parts: Mapping[str, str] | str | None
    ) -> httpx.Response:
        """Send one request; `parts` are ``params``, ``data``, ``headers``."""

        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(
                transport=self.transport, base_url=self.base, follow_redirects=follow
            ) as client:
                return await client.request(method, path, **parts)  # type: ignore[arg-type]

        return asyncio.run(ask())

    def get(self, path: str, **parts: Any) -> httpx.Response:
        """Send a GET."""
        return self.request("GET", path, **parts)

    def post(self, path: str, **parts: Any) -> httpx.Response:
        """Send a form."""
        return self.request("POST", path, **parts)
