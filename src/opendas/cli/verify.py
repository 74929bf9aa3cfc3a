"""``opendas verify``: check a release from its own files."""

from __future__ import annotations

from pathlib import Path

import click

from opendas.cli.options import json_option, out_argument
from opendas.cli.output import emit_json

__all__ = ["command"]


@click.command("verify")
@out_argument
@click.option("--allow-seeded", is_flag=True, help="Accept a release whose noise came from a seed.")
@json_option
def command(out: Path, allow_seeded: bool, as_json: bool) -> None:
    """Check a release from its own files: digests, budgets, microdata, constraints. Exit code 0 or 1.

    The output of `opendas phsafe` is checked row by row: folders, columns, the grid of regions, groups and
    cells, variances, and losses under every bound.

    Example: opendas verify out
    """
    import opendas
    from opendas.phsafe.verify import holds_household_tables, verify_output

    if holds_household_tables(out):
        checks = verify_output(out, allow_seeded=allow_seeded)
    else:
        checks = opendas.Release(out).verify(allow_seeded=allow_seeded)
    good = all(check.ok for check in checks)
    if as_json:
        rows = [{"name": check.name, "ok": check.ok, "detail": check.detail} for check in checks]
        emit_json({"ok": good, "checks": rows})
    else:
        for check in checks:
            click.echo(f"{'ok    ' if check.ok else 'FAILED'}  {check.name}: {check.detail}")
        click.echo(f"{len(checks)} checks, {sum(not check.ok for check in checks)} failed")
    if not good:
        click.get_current_context().exit(1)
