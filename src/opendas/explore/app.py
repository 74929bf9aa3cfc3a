"""The pages as an ASGI application. An answer follows from its request alone; one route writes a file."""

from __future__ import annotations

import secrets

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from opendas.errors import OpendasError
from opendas.explore.budget_routes import BudgetPages
from opendas.explore.guard import Guard
from opendas.explore.household_routes import HouseholdPages
from opendas.explore.session import Session
from opendas.explore.states import write_link
from opendas.explore.web import may_write, plain, read_form, static_file

__all__ = ["Session", "make_app"]


def make_app(session: Session, hosts: frozenset[str]) -> Starlette:
    """Return the application.

    Parameters
    ----------
    session : Session
    hosts : frozenset of str
        Accepted ``Host`` headers, with the port.
    """
    budgets, households = BudgetPages(session), HouseholdPages()

    async def home(request: Request) -> Response:
        place = "/budget" if session.state is None else _place(session.state)
        answer = RedirectResponse(place, 303)
        if secrets.compare_digest(request.query_params.get("token", "").encode(), session.token.encode()):
            answer.set_cookie(
                may_write(request), session.token, path="/budget/write", httponly=True, samesite="strict"
            )
        return answer

    async def opened(request: Request) -> Response:
        form = await read_form(request)
        document, answer = await run_in_threadpool(budgets.opened, form.get("text", ""))
        return answer if document is None else RedirectResponse(_place(document), 303)

    async def static(request: Request) -> Response:
        return static_file(request.path_params["name"])

    return Starlette(
        routes=[
            Route("/", home),
            *budgets.routes,
            *households.routes,
            Route("/open", opened, methods=["POST"]),
            Route("/static/{name}", static),
        ],
        middleware=[Middleware(Guard, hosts=hosts)],
        exception_handlers={HTTPException: _failed, OpendasError: _refused, Exception: _broken},
    )


def _place(document: object) -> str:
    """Return the address of a state."""
    assert isinstance(document, dict)
    page = "phsafe" if document.get("page") == "phsafe" else "budget"
    return f"/{page}?s={write_link(document)}"


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return plain(error.detail, error.status_code)


async def _refused(request: Request, error: Exception) -> Response:
    return plain(str(error), 422)


async def _broken(request: Request, error: Exception) -> Response:
    """Say that something failed, without saying with what."""
    return plain(f"internal error: {type(error).__name__}. Please report it with the link of the page.", 500)
