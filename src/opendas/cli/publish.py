"""``opendas publish``: a finished release to a Hadoop-compatible address."""

from __future__ import annotations

from pathlib import Path

import click

from opendas.cli.options import json_option, out_argument
from opendas.cli.output import emit_json

__all__ = ["command"]


@click.command("publish")
@out_argument
@click.argument("address", metavar="ADDRESS")
@click.option(
    "--master",
    metavar="URL",
    default=None,
    help="Spark master. Default: the Spark of this process, else a local one.",
)
@click.option("--allow-seeded", is_flag=True, help="Accept a release whose noise came from a seed.")
@json_option
def command(out: Path, address: str, master: str | None, allow_seeded: bool, as_json: bool) -> None:
    """Verify OUT and copy its release to ADDRESS, a folder such as hdfs://host/path.

    Nothing but OUT/release is copied. Every file is read back before it gets its name, certificate.json as
    the last. A copy that was interrupted is finished by the same command; a folder that holds anything else
    is refused.

    Example: opendas publish out hdfs://namenode/releases/2030
    """
    import opendas

    done = opendas.publish_to(out, address, master=master, allow_seeded=allow_seeded)
    if as_json:
        emit_json({"address": done.address, "files": done.files, "copied": done.copied})
    else:
        click.echo(f"{done.address}: {done.files} files of the release, {done.copied} of them copied now")
