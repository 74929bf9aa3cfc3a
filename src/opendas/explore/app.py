"""The pages as an ASGI application. An answer follows from its request alone; one route writes a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from opendas.errors import ConfigError, EnvironmentFailure, OpendasError
from opendas.explore import budget_page, saving
from opendas.explore.budget_page import BudgetAnswer, acted, answered, error_of, from_form, margin_of
from opendas.explore.drafts import draft_of
from opendas.explore.guard import Guard
from opendas.explore.states import BudgetState, differences, read_link, write_link
from opendas.explore.subjects import STAND_INS, Subject, stand_in
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.report import views
from opendas.version import __version__

__all__ = ["Session", "make_app"]

_MOST_FIELDS = 2000
_PAGES = (("budget", "Budget of a release"), ("phsafe", "Household tables"))
_MECHANISMS = (
    (Mechanism.DISCRETE_GAUSSIAN.value, "discrete Gaussian (zCDP)"),
    (Mechanism.DISCRETE_LAPLACE.value, "discrete Laplace (pure)"),
)
_RELATIONS = (
    (Neighbours.BOUNDED.value, "bounded: one record replaced"),
    (Neighbours.UNBOUNDED.value, "unbounded: one record more or fewer"),
)


@dataclass
class Session:
    """What one start of the explorer is about.

    Parameters
    ----------
    run : Subject, optional
        The subject of a run file.
    save_to : Path, optional
        Where the page may write a plan; named on the command line.
    state : mapping, optional
        A kept state to begin with.
    """

    run: Subject | None = None
    save_to: Path | None = None
    state: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self._made: dict[str, Subject] = {} if self.run is None else {self.run.key: self.run}

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the subjects, the run file's first."""
        return (*(("run",) if self.run is not None else ()), *STAND_INS)

    def subject(self, key: str) -> Subject:
        """Return a subject by name.

        Raises
        ------
        ConfigError
            If there is none.
        """
        if key not in self.keys:
            raise ConfigError(f"There is nothing to explore under the name {key[:40]!r} here.")
        if key not in self._made:
            self._made[key] = stand_in(key)
        return self._made[key]

    def starts(self) -> list[tuple[str, str]]:
        """Return what a plan can start from: subject and preset."""
        found = []
        for key in self.keys:
            subject = self.subject(key)
            if key == "run":
                found.append(("run:", f"{subject.title}, as it is"))
            found += [(f"{key}:{name}", f"{subject.title}: {name}") for name in subject.presets()]
        return found


def make_app(session: Session, hosts: frozenset[str]) -> Starlette:
    """Return the application.

    Parameters
    ----------
    session : Session
    hosts : frozenset of str
        Accepted ``Host`` headers, with the port.
    """
    pages = Pages(session)
    routes = [
        Route("/", pages.home),
        Route("/budget", pages.budget),
        Route("/budget/answers", pages.budget_answers, methods=["POST"]),
        Route("/budget/plan.toml", pages.budget_plan),
        Route("/budget/write", pages.budget_write, methods=["POST"]),
        Route("/budget/state.json", pages.budget_state),
        Route("/open", pages.open, methods=["POST"]),
        Route("/static/{name}", pages.static),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, hosts=hosts)],
        exception_handlers={HTTPException: pages.failed, Exception: pages.broken},
    )


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("opendas.explore", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters.update(
        words=views.words,
        query_words=views.query_words,
        percent=views.percent,
        decimal=views.decimal,
        margin_of=margin_of,
        error_of=error_of,
    )
    environment.globals.update(base="", version=__version__, pages=_PAGES)
    return environment


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form: of the body, or of the address."""
    text = (
        (await request.body()).decode("utf-8", "replace") if request.method == "POST" else request.url.query
    )
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError:
        raise HTTPException(413, "The form has too many fields.") from None


class Pages:
    """The handlers of the routes."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.templates = _environment()

    async def home(self, request: Request) -> Response:
        """Lead to the first page."""
        start = "/budget"
        if self.session.state is not None:
            page = "phsafe" if self.session.state.get("page") == "phsafe" else "budget"
            start = f"/{page}?s={write_link(self.session.state)}"
        return RedirectResponse(start, 303)

    async def budget(self, request: Request) -> Response:
        """Show the budget page, from a link, a form, or the start."""
        form = await _form(request)
        return await run_in_threadpool(self._budget, form)

    def _budget(self, form: Mapping[str, str]) -> Response:
        banner = ""
        try:
            state, subject = self._state(form)
        except ConfigError as error:
            banner = str(error)
            subject = self.session.subject(self.session.keys[0])
            state = budget_page.start_state(subject)
        found = answered(state, subject)
        return self._budget_page(subject, found, banner=banner)

    def _state(self, form: Mapping[str, str]) -> tuple[BudgetState, Subject]:
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
            state = budget_page.start_state(subject, (draft_of(budget, subject),))
        else:
            subject = self.session.subject(form.get("subject", self.session.keys[0]))
            state = from_form(form, subject)
        return acted(state, form.get("action", "")), subject

    def _budget_page(
        self, subject: Subject, found: BudgetAnswer, *, banner: str = "", opened: str = "", wrong: str = ""
    ) -> Response:
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
            errors_in={p: found.problems.under(f"{p}.") for p in budget_page.PREFIXES},
            errors_groups={name.rpartition(".")[0] for name in errors} | set(errors),
            mechanisms=_MECHANISMS,
            relations=_RELATIONS,
            status=found.status,
            banner=banner,
            link=f"/budget?s={packed}",
            packed=packed,
            starts=self.session.starts(),
            save_to=None if self.session.save_to is None else self.session.save_to.name,
            opened=opened,
        )
        return HTMLResponse(page, 422 if banner or errors else 200)

    async def budget_answers(self, request: Request) -> Response:
        """Answer a form as it is typed."""
        form = await _form(request)
        return await run_in_threadpool(self._budget_answers, form)

    def _budget_answers(self, form: Mapping[str, str]) -> Response:
        subject = self.session.subject(form.get("subject", self.session.keys[0]))
        before = from_form(form, subject)
        state = acted(before, form.get("action", ""))
        found = answered(state, subject)
        changed = {
            name: value
            for prefix, old, new in zip(budget_page.PREFIXES, before.plans, state.plans, strict=False)
            for name, value in new.fields(prefix).items()
            if value != old.fields(prefix)[name]
        }
        content: dict[str, Any] = {
            "status": found.status,
            "errors": found.problems.by_field,
            "sums": {group: {"text": s.sentence, "off": s.value != 1} for group, s in found.sums.items()},
            "fields": changed,
            "packed": write_link(state.to_document()),
        }
        template = self.templates.get_template("budget_answers.html.j2")
        content["answers"] = template.render(**found.context(subject))
        return JSONResponse(content, 200 if found.is_complete else 422)

    async def budget_plan(self, request: Request) -> Response:
        """Give a plan as a run file to keep."""
        form = await _form(request)
        return await run_in_threadpool(self._budget_plan, form)

    def _budget_plan(self, form: Mapping[str, str]) -> Response:
        text, answer = self._plan_text(form)
        if text is None:
            return answer
        return _download(text, "plan.toml", "application/toml")

    def _plan_text(self, form: Mapping[str, str]) -> tuple[str | None, Response]:
        """Return the run file of the plan that a form names, or the page that says what is wrong."""
        try:
            state, subject = self._state({**form, "action": ""})
        except ConfigError as error:
            return None, Response(f"{error}\n", 422, media_type="text/plain")
        found = answered(state, subject)
        wanted = form.get("action", "").partition(":")[2] or form.get("plan", "a")
        chosen = next((answers for name, answers in found.plans if name.lower() == wanted), None)
        if chosen is None:
            return None, self._budget_page(subject, found, banner="The plan is not complete yet.")
        return saving.run_file(subject, chosen.budget), Response()

    async def budget_write(self, request: Request) -> Response:
        """Write a plan to the file that was named on the command line."""
        form = await _form(request)
        return await run_in_threadpool(self._budget_write, form)

    def _budget_write(self, form: Mapping[str, str]) -> Response:
        path = self.session.save_to
        if path is None:
            raise HTTPException(404, "No file was named on the command line (--save).")
        text, answer = self._plan_text(form)
        if text is None:
            return answer
        try:
            saving.write(path, text)
        except EnvironmentFailure as error:
            raise HTTPException(500, str(error)) from None
        state, subject = self._state({**form, "action": ""})
        return self._budget_page(subject, answered(state, subject), banner="")

    async def budget_state(self, request: Request) -> Response:
        """Give a state as a file to keep."""
        form = await _form(request)
        try:
            document = read_link(form.get("s", ""))
        except ConfigError as error:
            return Response(f"{error}\n", 422, media_type="text/plain")
        return _download(json.dumps(document, indent=1) + "\n", "opendas-explore.json", "application/json")

    async def open(self, request: Request) -> Response:
        """Open a link, a kept state or a run file that somebody pasted."""
        form = await _form(request)
        return await run_in_threadpool(self._open, form.get("text", ""))

    def _open(self, text: str) -> Response:
        subject = self.session.subject(self.session.keys[0])
        try:
            document = saving.opened(text, subject)
            if document.get("page") == "budget":
                self._state({"s": write_link(document)})
        except OpendasError as error:
            found = answered(budget_page.start_state(subject), subject)
            return self._budget_page(subject, found, opened=text[:20_000], wrong=str(error))
        page = "phsafe" if document.get("page") == "phsafe" else "budget"
        return RedirectResponse(f"/{page}?s={write_link(document)}", 303)

    async def static(self, request: Request) -> Response:
        """Give a file of the page."""
        kinds = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
        name = request.path_params["name"]
        folder = files("opendas.explore") / "static"
        found = next((item for item in folder.iterdir() if item.name == name), None)
        if found is None:
            raise HTTPException(404)
        return Response(found.read_bytes(), media_type=kinds.get(Path(name).suffix, "text/plain"))

    async def failed(self, request: Request, error: Exception) -> Response:
        """Say what is wrong with a request."""
        assert isinstance(error, HTTPException)
        return Response(f"{error.detail}\n", error.status_code, media_type="text/plain")

    async def broken(self, request: Request, error: Exception) -> Response:
        """Say that something failed, without saying with what."""
        if isinstance(error, OpendasError):
            return Response(f"{error}\n", 422, media_type="text/plain")
        text = f"internal error: {type(error).__name__}. Please report it with the link of the page.\n"
        return Response(text, 500, media_type="text/plain")


def _download(text: str, name: str, kind: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(text, media_type=kind, headers=headers)
