"""``opendas phsafe-post``: counts that are not negative, and averages with intervals."""

from __future__ import annotations

from pathlib import Path

import click

from opendas.cli.options import json_option, out_argument
from opendas.cli.output import emit_json, message

__all__ = ["command"]


@click.command("phsafe-post")
@out_argument
@click.option(
    "--published",
    is_flag=True,
    help="Fit every table by itself with continuous normal noise, as the Bureau's published step does.",
)
@click.option(
    "--most",
    type=float,
    default=10.0,
    show_default=True,
    help="Largest average household or family: the persons a household is truncated to.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Threads; same files with any.",
)
@json_option
def command(out: Path, published: bool, most: float, workers: int, as_json: bool) -> None:
    """Estimate the tables of a PHSafe output from its noisy counts.

    Counts become whole numbers, 0 or more; average household and family sizes lie within their bounds; both
    have 90 % credible intervals. Tables that share numbers (PH4 with PH5, PH7 with PH8) share one posterior.
    Written to OUT/PHx/estimates in the layout of the published step. Nothing but the noisy counts is read,
    so that no budget is spent.

    Example: opendas phsafe-post out
    """
    from opendas.phsafe.posterior.run import post_process
    from opendas.phsafe.posterior.tables import Model

    model = Model.PUBLISHED if published else Model.JOINT
    result = post_process(out, model=model, most=most, workers=workers)
    for note in result.notes:
        message(f"note: {note}")
    failed = [check for check in result.checks if not check.ok]
    if as_json:
        emit_json(
            {
                "ok": result.ok,
                "model": str(model),
                "rows": result.rows,
                "files": result.files,
                "notes": result.notes,
                "checks": [
                    {"file": c.file, "name": c.name, "ok": c.ok, "rows": c.rows, "failures": c.failures}
                    for c in result.checks
                ],
            }
        )
    else:
        for name in result.files:
            click.echo(f"{out}/{name}")
        for check in failed:
            message(f"FAILED  {check.file}: {check.name}: not in {check.failures:,} of {check.rows:,} rows")
        message(f"{result.rows:,} rows in {len(result.files)} files, {len(result.checks)} checks")
    if failed:
        click.get_current_context().exit(1)
