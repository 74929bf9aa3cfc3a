"""The pages over HTTP, on this machine's loopback address.

An answer follows from its request alone; two routes write files. Other pages and other machines are kept
out: one host name, one origin, no foreign content.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import webbrowser
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import parse_qsl

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from opendas.custody.folders import new_file, write_atomic
from opendas.errors import ConfigError, EnvironmentFailure, OpendasError
from opendas.explore.fields import Typed
from opendas.explore.household_page import bound_words, level_words, table_words
from opendas.explore.page import PREFIXES, Answer, Page, read_link, write_link
from opendas.explore.session import Session
from opendas.explore.table_page import TablePage
from opendas.report.html import templates
from opendas.runs.starting.guess import Use

ADDRESS: Final = "127.0.0.1"
"""Only programs on this machine reach it."""

_HEADERS: Final = {
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
_MOST_FIELDS: Final = 2000
_LONGEST_REQUEST: Final = 256 * 1024
_NAMES: Final = (("budget", "Budget of a release"), ("phsafe", "Household tables"))
_KINDS: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Pages:
    """The routes of a session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.templates = templates("opendas.explore")
        self.templates.filters.update(
            bound_words=bound_words, level_words=level_words, table_words=table_words
        )
        names = _NAMES if session.table is None else (*_NAMES, ("table", "Your own table"))
        self.templates.globals.update(base="", pages=names)

    @property
    def routes(self) -> list[Route]:
        """Where they answer."""
        found = [Route("/", self.home)]
        for page in self.session.pages:
            found += [
                Route(f"/{page.key}", self._typed(partial(self.page, page))),
                Route(f"/{page.key}/answers", self._typed(partial(self.answers, page)), methods=["POST"]),
                Route(f"/{page.key}/{page.file[0]}", self._typed(partial(self.saved, page))),
            ]
        return [
            *found,
            Route("/budget/write", self.write, methods=["POST"]),
            Route("/table", self.table, methods=["GET", "POST"]),
            Route("/budget/state.json", self._typed(_state_file)),
            Route("/open", self._typed(self.open), methods=["POST"]),
            Route("/static/{name}", _static),
        ]

    @staticmethod
    def _typed(answer: Callable[[Typed], Response]) -> Callable[[Request], Awaitable[Response]]:
        """Answer the fields of a form in another thread."""

        async def answered(request: Request) -> Response:
            return await run_in_threadpool(answer, await _read_form(request))

        return answered

    async def home(self, request: Request) -> Response:
        """Lead to the page to begin with, and let who has the token write, and see the table."""
        session = self.session
        start = "/budget" if session.table is None else "/table"
        answer = RedirectResponse(start if session.state is None else session.address(session.state), 303)
        if secrets.compare_digest(request.query_params.get("token", "").encode(), session.token.encode()):
            # The page with the table is reached from another one: the file that the browser is started with.
            strict = session.table is None
            answer.set_cookie(
                _cookie(request),
                session.token,
                path="/budget/write" if strict else "/table",
                httponly=True,
                samesite="strict" if strict else "lax",
            )
        return answer

    def page(self, page: Page[Any], form: Typed) -> Response:
        """Show a page, from a link, a form, or the start."""
        try:
            state = page.requested_state(form)
        except ConfigError as error:
            return self.render(page, page.answer(page.started()), banner=str(error))
        return self.render(page, page.answer(state, form.get("action", "")))

    def render(self, page: Page[Any], found: Answer[Any], *, wrong: str = "", **messages: str) -> Response:
        """Return a whole page.

        - `wrong`: what is wrong with what was pasted.
        - `messages`: ``banner``, something wrong at the top; ``notice``, something done; ``opened``, what was
          pasted.
        """
        packed = write_link(found.state.to_document())
        errors = found.problems.by_field | ({"text": wrong} if wrong else {})
        save_to = self.session.save_to
        context = {
            **page.answer_context(found),
            **page.form_context(found),
            "page": page.key,
            "file": page.file[0],
            "state": found.state,
            "errors": errors,
            "errors_in": {prefix: found.problems.under(f"{prefix}.") for prefix in PREFIXES},
            "status": page.summary(found),
            "link": f"/{page.key}?s={packed}",
            "packed": packed,
            "starts": page.starts,
            "save_to": None if save_to is None or page is not self.session.budgets else save_to.name,
            **{name: messages.get(name, "") for name in ("banner", "notice", "opened")},
        }
        text = self.templates.get_template(f"{page.key}.html.j2").render(**context)
        return HTMLResponse(text, 422 if context["banner"] or errors else 200)

    def answers(self, page: Page[Any], form: Typed) -> Response:
        """Answer a form as it is typed."""
        action = form.get("action", "")
        before = page.from_form(form)
        found = page.answer(page.after_action(before, action), action)
        template = self.templates.get_template(f"{page.key}_answers.html.j2")
        content = {
            "status": page.summary(found),
            **page.updates(before, found),
            "packed": write_link(found.state.to_document()),
            "answers": template.render(**page.answer_context(found)),
        }
        return JSONResponse(content, 200 if found.is_complete else 422)

    def saved(self, page: Page[Any], form: Typed) -> Response:
        """Give the plan that a form names as a file to keep."""
        text, answer = self._plan_text(page, form)
        return answer if text is None else _download(text, *page.file)

    def _plan_text(self, page: Page[Any], form: Typed) -> tuple[str | None, Response]:
        """Return a plan as its file, or the page that says what is wrong."""
        try:
            state = page.requested_state({**form, "action": ""})
        except ConfigError as error:
            return None, self.render(page, page.answer(page.started()), banner=str(error))
        found = page.answer(state)
        chosen = found.plan(form.get("action", ""))
        if chosen is None:
            return None, self.render(page, found, banner="The plan is not complete yet.")
        return page.saved(state, chosen), Response()

    async def write(self, request: Request) -> Response:
        """Write a plan to the file that was named on the command line."""
        if not self._has_token(request):
            return _plain("Open the address that the program printed: only that may write the file.", 403)
        return await run_in_threadpool(self._write, await _read_form(request))

    def _has_token(self, request: Request) -> bool:
        given = request.cookies.get(_cookie(request), "")
        return secrets.compare_digest(given.encode(), self.session.token.encode())

    async def table(self, request: Request) -> Response:
        """Show a table of the user's own, and write its files; both only where the token is known."""
        if self.session.table is None:
            raise HTTPException(404, "No table was named on the command line.")
        if not self._has_token(request):
            return _plain("Open the address that the program printed: only that may see the table.", 403)
        return await run_in_threadpool(
            self._table, self.session.table, await _read_form(request), request.method
        )

    def _table(self, page: TablePage, form: Typed, method: str) -> Response:
        answer = page.answer(form, form.get("action", "") if method == "POST" else "")
        text = self.templates.get_template("table.html.j2").render(
            page="table",
            title=page.files.data.name,
            folder=page.files.folder.resolve(),
            uses=list(Use),
            answer=answer,
            banner=answer.problem,
            errors=answer.errors,
            notice="",
        )
        return HTMLResponse(text, 422 if answer.problem else 200)

    def _write(self, form: Typed) -> Response:
        path, page = self.session.save_to, self.session.budgets
        if path is None:
            raise HTTPException(404, "No file was named on the command line (--save).")
        text, answer = self._plan_text(page, form)
        if text is None:
            return answer
        found = page.answer(page.requested_state({**form, "action": ""}))
        try:
            write_atomic(path, text.encode())
        except EnvironmentFailure as error:
            return self.render(page, found, banner=str(error))
        name = form["action"].partition(":")[2].upper()
        which = f"Plan {name}" if len(found.plans) > 1 else "The plan"
        return self.render(page, found, notice=f"{which} was written to {path.name}.")

    def open(self, form: Typed) -> Response:
        """Lead to what was pasted, or say what is wrong with it."""
        text = form.get("text", "")
        try:
            return RedirectResponse(self.session.address(self.session.open_text(text)), 303)
        except OpendasError as error:
            page = self.session.budgets
            return self.render(page, page.answer(page.started()), opened=text[:20_000], wrong=str(error))


def make_app(session: Session, hosts: frozenset[str]) -> Starlette:
    """Return the application.

    `hosts`: accepted ``Host`` headers, with the port.
    """
    return Starlette(
        routes=Pages(session).routes,
        middleware=[Middleware(Guard, hosts=hosts)],
        exception_handlers={HTTPException: _failed, OpendasError: _failed, Exception: _failed},
    )


async def _failed(request: Request, error: Exception) -> Response:
    """Say what is wrong; of an internal error, that something failed, without saying with what."""
    if isinstance(error, HTTPException):
        return _plain(error.detail, error.status_code)
    if isinstance(error, OpendasError):
        return _plain(str(error), 422)
    return _plain(f"internal error: {type(error).__name__}. Please report it with the link of the page.", 500)


async def _read_form(request: Request) -> Typed:
    """Return the fields of a form: of the body, or of the address."""
    text = request.url.query
    if request.method == "POST":
        text = (await request.body()).decode("utf-8", "replace")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError:
        raise HTTPException(413, "The form has too many fields.") from None


def _state_file(form: Typed) -> Response:
    """Give a state as a file to keep."""
    document = read_link(form.get("s", ""))
    return _download(json.dumps(document, indent=1) + "\n", "opendas-explore.json", "application/json")


def _cookie(request: Request) -> str:
    """Name the cookie of who may write a file; browsers share cookies between the ports of a machine."""
    return f"opendas-explore-{request.url.port}"


def _plain(text: str, status: int) -> Response:
    return Response(f"{text}\n", status, media_type="text/plain")


def _download(text: str, name: str, kind: str) -> Response:
    """Return a file to keep."""
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(text, media_type=kind, headers=headers)


async def _static(request: Request) -> Response:
    """Return a file of the page; only what lies in the folder has a name here."""
    name = request.path_params["name"]
    found = next((f for f in (files("opendas.explore") / "static").iterdir() if f.name == name), None)
    if found is None:
        raise HTTPException(404)
    return Response(found.read_bytes(), media_type=_KINDS.get(Path(name).suffix, "text/plain"))


class Guard:
    """Refuse requests that were not meant for this program.

    A page elsewhere may have its name resolved to this machine (DNS rebinding): the ``Host`` it then sends is
    its own name. And it may send a form here: its ``Origin`` is not ours.

    `hosts`: accepted ``Host`` headers, with the port.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        await (self._refusal(scope) or self.app)(scope, receive, guarded)

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


def loopback_socket(port: int = 0) -> socket.socket:
    """Return a socket that listens on the loopback address; port 0 is any free one."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((ADDRESS, port))
        found.listen()  # from here on callers wait, so that the address may be told
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

    `port`: 0 for any free one.
    """
    listener = loopback_socket(port)
    number = int(listener.getsockname()[1])
    address = f"http://{ADDRESS}:{number}/"
    if session.save_to is not None or session.table is not None:
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
    with TemporaryDirectory(prefix="opendas-explore-") as folder, listener, suppress(KeyboardInterrupt):
        if browser:
            threading.Timer(0.5, _open, [address, Path(folder)]).start()
        uvicorn.Server(config).run(sockets=[listener])


def _open(address: str, folder: Path) -> None:
    """Open an address in the browser; one with a token by a page that leads there, for its owner alone.

    Every user of the machine sees the command line that the browser is started with.
    """
    if "token=" in address:
        page = folder / "opendas.html"
        with new_file(page, 0o600) as file:
            file.write(f'<meta http-equiv="refresh" content="0;url={address}">'.encode())
        address = page.as_uri()
    with suppress(webbrowser.Error):
        webbrowser.open(address)
