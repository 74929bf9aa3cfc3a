"""The routes of the page of household tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from opendas.errors import ConfigError
from opendas.explore.household_page import (
    DEFINITION_WORDS,
    RULE_WORDS,
    SENSITIVITIES,
    STARTS,
    HouseholdAnswer,
    HouseholdState,
    acted,
    answered,
    config_json,
    from_form,
    started,
)
from opendas.explore.states import read_link, write_link
from opendas.explore.web import PREFIXES, download, environment, read_form
from opendas.phsafe.model import LEVELS
from opendas.phsafe.tables import TABLES

__all__ = ["HouseholdPages"]


class HouseholdPages:
    """The handlers of the page of household tables."""

    def __init__(self) -> None:
        self.templates = environment()

    @property
    def routes(self) -> list[Route]:
        """Where they answer."""
        return [
            Route("/phsafe", self.page),
            Route("/phsafe/answers", self.answers, methods=["POST"]),
            Route("/phsafe/config.json", self.config),
        ]

    async def page(self, request: Request) -> Response:
        """Show the page, from a link, a form, or the start."""
        return await run_in_threadpool(self._page, await read_form(request))

    def _page(self, form: Mapping[str, str]) -> Response:
        try:
            state = self.understood(form)
        except ConfigError as error:
            return self.shown(answered(started("budgets")), banner=str(error))
        return self.shown(answered(state))

    def understood(self, form: Mapping[str, str]) -> HouseholdState:
        """Return what a form or link asks for.

        Raises
        ------
        ConfigError
            If a link is damaged or of another page.
        """
        if "s" in form:
            state = HouseholdState.of_document(read_link(form["s"]))
        elif "start" in form:
            state = started(form["start"])
        else:
            state = from_form(form)
        return acted(state, form.get("action", ""))

    def shown(self, found: HouseholdAnswer, *, banner: str = "") -> Response:
        """Return the whole page; `banner` says what is wrong at the top."""
        packed = write_link(found.state.to_document())
        errors = found.problems.by_field
        page = self.templates.get_template("phsafe.html.j2").render(
            **found.context(),
            title="Household tables (PHSafe)",
            page="phsafe",
            state=found.state,
            errors=errors,
            errors_in={prefix: found.problems.under(f"{prefix}.") for prefix in PREFIXES},
            tables=TABLES,
            levels=LEVELS,
            errors_at=lambda prefix, table: any(
                name.startswith((f"{prefix}.tau.{table}", f"{prefix}.v.{table}.")) for name in errors
            ),
            number_of={level.name: number for number, level in enumerate(LEVELS)},
            definitions=DEFINITION_WORDS,
            sensitivities=SENSITIVITIES,
            rules=RULE_WORDS,
            readers=(("csv", "csv"), ("cef", "cef")),
            status=found.status,
            banner=banner,
            said="",
            link=f"/phsafe?s={packed}",
            packed=packed,
            starts=[(name, title) for name, (title, _, _) in STARTS.items()],
            opened="",
        )
        return HTMLResponse(page, 422 if banner or errors else 200)

    async def answers(self, request: Request) -> Response:
        """Answer a form as it is typed."""
        return await run_in_threadpool(self._answers, await read_form(request))

    def _answers(self, form: Mapping[str, str]) -> Response:
        state = acted(from_form(form), form.get("action", ""))
        found = answered(state)
        content: dict[str, Any] = {
            "status": found.status,
            "errors": found.problems.by_field,
            "packed": write_link(state.to_document()),
            "answers": self.templates.get_template("phsafe_answers.html.j2").render(**found.context()),
        }
        return JSONResponse(content, 200 if found.is_complete else 422)

    async def config(self, request: Request) -> Response:
        """Give a plan as a PHSafe configuration to keep."""
        return await run_in_threadpool(self._config, await read_form(request))

    def _config(self, form: Mapping[str, str]) -> Response:
        try:
            found = answered(self.understood({**form, "action": ""}))
        except ConfigError as error:
            return self.shown(answered(started("budgets")), banner=str(error))
        wanted = form.get("action", "").partition(":")[2]
        chosen = next((answers for name, answers in found.plans if name.lower() == wanted), None)
        if chosen is None:
            return self.shown(found, banner="The plan is not complete yet.")
        return download(config_json(chosen), "config.json", "application/json")
