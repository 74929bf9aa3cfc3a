"""``opendas make-nation``: made data of any size, to try a machine or a cluster on."""

from __future__ import annotations

import time
from pathlib import Path

import click

from opendas.cli.output import message
from opendas.cli.progress import Progress, duration
from opendas.errors import ConfigError

__all__ = ["command"]


@click.command("make-nation")
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder, new or empty.",
)
@click.option(
    "--blocks",
    type=click.IntRange(min=100),
    required=True,
    help="Size, empty blocks included; the real nation has 8,130,000.",
)
@click.option("--seed", type=click.IntRange(min=0), default=2020, show_default=True, help="Another nation.")
@click.option(
    "--states",
    type=click.IntRange(min=1),
    default=None,
    help="Number of states. Default: one for every thousand blocks, at most 51.",
)
@click.option(
    "--people",
    type=click.FloatRange(min=1.0, max=1000.0),
    default=41.0,
    show_default=True,
    help="People a block, on average and about.",
)
@click.option(
    "--only",
    "only",
    metavar="SS",
    multiple=True,
    help="Write this state only, one of the codes 01, 02 ...; may be given several times.",
)
def command(
    folder: Path, blocks: int, seed: int, states: int | None, people: float, only: tuple[str, ...]
) -> None:
    """Make a nation up and write it county by county, with run files for persons and units.

    Nobody's data are in it. The same numbers give the same files, state by state.

    Example: opendas make-nation --to nation --blocks 100000
    """
    from opendas.demo import write_nation

    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; give a new folder with --to.")
    started = time.monotonic()
    with Progress() as progress:
        made = write_nation(folder, blocks, seed, states, people=people, only=only or None, progress=progress)
    message(f"made in {duration(time.monotonic() - started)}")
    click.echo(
        f"{made.people:,} people and {made.housing_units:,} housing units in {made.blocks:,} blocks, "
        f"{made.leaves:,} of them with homes: {made.states} states, {made.counties:,} counties, "
        f"{made.tracts:,} tracts, {made.block_groups:,} block groups"
    )
    click.echo(f"\nNext, try\n  opendas plan {made.runs[0]}\n  opendas run {made.runs[0]} --out {folder}-out")
