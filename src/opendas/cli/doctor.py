"""``opendas doctor``: is this machine ready, and if not, what to do."""

from __future__ import annotations

import click

from opendas.cli.failures import EXIT_ENVIRONMENT
from opendas.cli.options import json_option
from opendas.cli.output import emit_json

__all__ = ["command"]


@click.command("doctor")
@json_option
def command(as_json: bool) -> None:
    """Check cores, memory, disk, Python, packages, permissions and compiler cache. Exit code 0 or 6.

    Example: opendas doctor
    """
    from opendas.cli.machine import examine

    findings = examine()
    ready = all(finding.level != "problem" for finding in findings)
    if as_json:
        rows = [
            {"name": f.name, "level": f.level, "detail": f.detail, "advice": f.advice or None}
            for f in findings
        ]
        emit_json({"ready": ready, "checks": rows})
    else:
        for finding in findings:
            click.echo(f"{finding.level:<8} {finding.name}: {finding.detail}")
            if finding.advice:
                click.echo(f"{'':<8}   -> {finding.advice}")
        click.echo("This machine is ready." if ready else "This machine is not ready: see above.")
    if not ready:
        click.get_current_context().exit(EXIT_ENVIRONMENT)
