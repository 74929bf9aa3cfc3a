"""``opendas explore``: play with a budget in the browser. Draws nothing, spends nothing, asks nobody else."""

from __future__ import annotations

from pathlib import Path

import click

from opendas.cli.output import message
from opendas.errors import EnvironmentFailure

__all__ = ["command"]


@click.command("explore")
@click.argument("file", metavar="[FILE]", type=click.Path(path_type=Path), required=False)
@click.option(
    "--save", type=click.Path(path_type=Path), default=None, help="File that the page may write a plan to."
)
@click.option("--port", type=click.IntRange(min=0, max=65535), default=0, help="Port. Default: any free one.")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
def command(file: Path | None, save: Path | None, port: int, no_browser: bool) -> None:
    """Play with a budget in the browser, and see at once what it buys and costs.

    FILE is a run file, a PHSafe config.json, or a state that the page has kept. Without it, published numbers
    of geounits stand in. No confidential count is read.

    Example: opendas explore run.toml
    """
    try:
        from opendas.explore.serve import serve
        from opendas.explore.start import make_session
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "anyio", "h11"):
            raise
        raise EnvironmentFailure("opendas explore needs pip install 'opendas[explore]'.") from None
    serve(make_session(file, save), port=port, browser=not no_browser, say=message)
