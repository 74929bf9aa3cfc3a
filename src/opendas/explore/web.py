"""What the routes share: templates, forms, downloads, files of the page."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from urllib.parse import parse_qsl

from jinja2 import Environment
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from opendas.explore.budget_page import PREFIXES, error_of, margin_of
from opendas.explore.household_words import bound_words, level_words, table_words
from opendas.explore.problems import share_text
from opendas.report.html import templates
from opendas.version import __version__

__all__ = ["PREFIXES", "download", "environment", "may_write", "plain", "read_form", "static_file"]

_MOST_FIELDS = 2000
_PAGES = (("budget", "Budget of a release"), ("phsafe", "Household tables"))
_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def environment() -> Environment:
    """Return the templates."""
    made = templates("opendas.explore")
    made.filters.update(
        margin_of=margin_of,
        error_of=error_of,
        share_of=lambda share: share_text(share) if share else "\u2013",
        bound_words=bound_words,
        level_words=level_words,
        table_words=table_words,
    )
    made.globals.update(base="", version=__version__, pages=_PAGES)
    return made


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form: of the body, or of the address."""
    text = request.url.query
    if request.method == "POST":
        text = (await request.body()).decode("utf-8", "replace")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError:
        raise HTTPException(413, "The form has too many fields.") from None


def may_write(request: Request) -> str:
    """Name the cookie of who may write a file; browsers share cookies between the ports of a machine."""
    return f"opendas-explore-{request.url.port}"


def plain(text: str, status: int = 422) -> Response:
    """Return a sentence."""
    return Response(f"{text}\n", status, media_type="text/plain")


def download(text: str, name: str, kind: str) -> Response:
    """Return a file to keep."""
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(text, media_type=kind, headers=headers)


def static_file(name: str) -> Response:
    """Return a file of the page; only what lies in the folder has a name here."""
    folder = files("opendas.explore") / "static"
    found = next((item for item in folder.iterdir() if item.name == name), None)
    if found is None:
        raise HTTPException(404)
    return Response(found.read_bytes(), media_type=_KINDS.get(Path(name).suffix, "text/plain"))
