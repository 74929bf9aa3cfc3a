"""The routes of the budget page."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from opendas.errors import ConfigError, EnvironmentFailure, OpendasError
from opendas.explore import saving
from opendas.explore.budget_page import (
    PREFIXES,
    BudgetAnswer,
    acted,
    answered,
    from_form,
    start_state,
)
from opendas.explore.drafts import draft_of
from opendas.explore.session import Session
from opendas.explore.states import BudgetState, differences, read_link, write_link
from opendas.explore.subjects import Subject
from opendas.explore.web import download, environment, may_write, plain, read_form
from opendas.privacy.relations import Mechanism, Neighbours

__all__ = ["BudgetPages"]

_MECHANISMS = (
    (Mechanism.DISCRETE_GAUSSIAN.value, "discrete Gaussian (zCDP)"),
    (Mechanism.DISCRETE_LAPLACE.value, "discrete Laplace (pure)"),
)
_RELATIONS = (
    (Neighbours.BOUNDED.value, "bounded: one replaced"),
    (Neighbours.UNBOUNDED.value, "unbounded: one added"),
)


class BudgetPages:
    """The handlers of the budget page."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.templates = environment()

    @property
    def routes(self) -> list[Route]:
        """Where they answer."""
        return [
            Route("/budget", self.page),
            Route("/budget/answers", self.answers, methods=["POST"]),
            Route("/budget/plan.toml", self.plan),
            Route("/budget/write", self.write, methods=["POST"]),
            Route("/budget/state.json", self.state),
        ]

    async def page(self, request: Request) -> Response:
        """Show the page, from a link, a form, or the start."""
        return await run_in_threadpool(self._page, await read_form(request))

    def _page(self, form: Mapping[str, str]) -> Response:
        banner = ""
        try:
            state, subject = self.understood(form)
        except ConfigError as error:
            banner = str(error)
            subject = self.session.first
            state = start_state(subject)
        found = answered(state, subject, more=form.get("action", ""))
        return self.shown(subject, found, banner=banner)

    def understood(self, form: Mapping[str, str]) -> tuple[BudgetState, Subject]:
        """Return what a form or link asks for.

        Raises
        ------
        ConfigError
            If a link is damaged or of another plan.
        """
        if "s" in form:
            state = BudgetState.of_document(read_link(form["s"]))
            subject = self.session.subject(state.subject)
            why = differences(state, subject.product.name, subject.levels, subject.queries)
            if why:
                raise ConfigError(why)
        elif "start" in form:
            key, _, name = form["start"].partition(":")
            subject = self.session.subject(key)
            budget = subject.preset(name) if name else subject.start()
            state = start_state(subject, (draft_of(budget, subject),))
        else:
            subject = self.session.subject(form.get("subject", self.session.keys[0]))
            state = from_form(form, subject)
        return acted(state, form.get("action", "")), subject

    def shown(
        self,
        subject: Subject,
        found: BudgetAnswer,
        *,
        banner: str = "",
        said: str = "",
        opened: str = "",
        wrong: str = "",
    ) -> Response:
        """Return the whole page.

        Parameters
        ----------
        banner, said : str
            Something wrong, or done, at the top.
        opened, wrong : str
            What was pasted to be opened, and what is wrong with it.
        """
        packed = write_link(found.state.to_document())
        errors = dict(found.problems.by_field)
        if wrong:
            errors["text"] = wrong
        page = self.templates.get_template("budget.html.j2").render(
            **found.context(subject),
            title=subject.title,
            page="budget",
            state=found.state,
            sums=found.sums,
            errors=errors,
            errors_in={prefix: found.problems.under(f"{prefix}.") for prefix in PREFIXES},
            errors_groups={name.rpartition(".")[0] for name in errors} | set(errors),
            mechanisms=_MECHANISMS,
            relations=_RELATIONS,
            status=found.status,
            banner=banner,
            said=said,
            link=f"/budget?s={packed}",
            packed=packed,
            starts=self.session.starts(),
            save_to=None if self.session.save_to is None else self.session.save_to.name,
            opened=opened,
        )
        return HTMLResponse(page, 422 if banner or errors else 200)

    async def answers(self, request: Request) -> Response:
        """Answer a form as it is typed."""
        return await run_in_threadpool(self._answers, await read_form(request))

    def _answers(self, form: Mapping[str, str]) -> Response:
        subject = self.session.subject(form.get("subject", self.session.keys[0]))
        before = from_form(form, subject)
        state = acted(before, form.get("action", ""))
        found = answered(state, subject, more=form.get("action", ""))
        content: dict[str, Any] = {
            "status": found.status,
            "errors": found.problems.by_field,
            "sums": {group: {"text": s.sentence, "off": s.value != 1} for group, s in found.sums.items()},
            "fields": _changed(before, state),
            "packed": write_link(state.to_document()),
            "answers": self.templates.get_template("budget_answers.html.j2").render(**found.context(subject)),
        }
        return JSONResponse(content, 200 if found.is_complete else 422)

    async def plan(self, request: Request) -> Response:
        """Give a plan as a run file to keep."""
        return await run_in_threadpool(self._plan, await read_form(request))

    def _plan(self, form: Mapping[str, str]) -> Response:
        text, answer = self._plan_text(form)
        return answer if text is None else download(text, "plan.toml", "application/toml")

    def _plan_text(self, form: Mapping[str, str]) -> tuple[str | None, Response]:
        """Return the run file of the plan that a form names, or the page that says what is wrong."""
        try:
            state, subject = self.understood({**form, "action": ""})
        except ConfigError as error:
            return None, plain(str(error))
        found = answered(state, subject)
        wanted = form.get("action", "").partition(":")[2]
        chosen = next((answers for name, answers in found.plans if name.lower() == wanted), None)
        if chosen is None:
            return None, self.shown(subject, found, banner="The plan is not complete yet.")
        return saving.run_file(subject, chosen.budget), Response()

    async def write(self, request: Request) -> Response:
        """Write a plan to the file that was named on the command line."""
        given = request.cookies.get(may_write(request), "")
        if not secrets.compare_digest(given.encode(), self.session.token.encode()):
            return plain("Open the address that the program printed: only that may write the file.", 403)
        return await run_in_threadpool(self._write, await read_form(request))

    def _write(self, form: Mapping[str, str]) -> Response:
        path = self.session.save_to
        if path is None:
            raise HTTPException(404, "No file was named on the command line (--save).")
        text, answer = self._plan_text(form)
        if text is None:
            return answer
        state, subject = self.understood({**form, "action": ""})
        try:
            saving.write(path, text)
        except EnvironmentFailure as error:
            return self.shown(subject, answered(state, subject), banner=str(error))
        name = form["action"].partition(":")[2].upper()
        which = f"Plan {name}" if len(state.plans) > 1 else "The plan"
        return self.shown(subject, answered(state, subject), said=f"{which} was written to {path.name}.")

    async def state(self, request: Request) -> Response:
        """Give a state as a file to keep."""
        form = await read_form(request)
        try:
            document = read_link(form.get("s", ""))
        except ConfigError as error:
            return plain(str(error))
        return download(json.dumps(document, indent=1) + "\n", "opendas-explore.json", "application/json")

    def opened(self, text: str) -> tuple[dict[str, Any] | None, Response]:
        """Understand what was pasted: a state's document, or the page that says what is wrong."""
        subject = self.session.first
        try:
            document = saving.opened(text, subject)
            if document.get("page") == "budget":
                self.understood({"s": write_link(document)})
        except OpendasError as error:
            found = answered(start_state(subject), subject)
            return None, self.shown(subject, found, opened=text[:20_000], wrong=str(error))
        return document, Response()


def _changed(before: BudgetState, after: BudgetState) -> dict[str, str]:
    """Return the fields that an action changed."""
    found: dict[str, str] = {}
    for prefix, old, new in zip(PREFIXES, before.plans, after.plans, strict=False):
        had = old.fields(prefix)
        found |= {name: value for name, value in new.fields(prefix).items() if value != had[name]}
    return found
