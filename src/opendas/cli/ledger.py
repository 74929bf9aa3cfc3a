"""The command ``ledger``: the account of a data set, made and shown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from opendas.cli.options import PATH, json_option
from opendas.cli.output import emit_json, message, text_table

__all__ = ["ledger_command"]


class _Ledger(click.Group):
    """A group whose first argument is a book, unless it is a subcommand."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            args = ["show", *args]
        return super().resolve_command(ctx, args)


@click.group("ledger", cls=_Ledger)
def ledger_command() -> None:
    """Create or show the account of a data set: opendas ledger BOOK [--json].

    A book holds every act on the data: measurements, readings without noise, keys destroyed, publications.
    Given to a run by --ledger BOOK, or found by a run on the same input, it refuses the act that would pass
    its limit before anything is drawn.

    Example: opendas ledger create patients.book --limit-rho 3 --unit patient

    Example: opendas ledger patients.book
    """


@ledger_command.command("create")
@click.argument("book", metavar="BOOK", type=PATH)
@click.option("--limit-rho", metavar="R", default=None, help="Limit, as the rho of zCDP.")
@click.option("--limit-epsilon", metavar="E", default=None, help="Limit, as an epsilon; with --delta.")
@click.option("--delta", metavar="D", default=None, help="Where the epsilon of the limit is meant.")
@click.option(
    "--unit", metavar="NAME", required=True, help="What is protected: person, housing-unit, patient, ..."
)
@click.option(
    "--neighbours",
    type=click.Choice(["bounded", "unbounded"]),
    default="bounded",
    show_default=True,
    help="The limit is about one unit replaced, or one added or removed.",
)
@json_option
def create_command(
    book: Path,
    limit_rho: str | None,
    limit_epsilon: str | None,
    delta: str | None,
    unit: str,
    neighbours: str,
    as_json: bool,
) -> None:
    """Create the account of a data set: a new file BOOK, and BOOK.key beside it.

    The key tags the inputs, so that a run on the same data finds the book by itself (OPENDAS_BOOKS names the
    folder where it looks). Keep both like the input.

    Example: opendas ledger create patients.book --limit-epsilon 10 --delta 1e-10 --unit patient
    """
    import opendas

    if (limit_rho is None) == (limit_epsilon is None) or (limit_epsilon is None) != (delta is None):
        raise click.UsageError("give --limit-rho R, or --limit-epsilon E with --delta D.")
    answer = opendas.create_ledger(
        book, unit, rho=limit_rho, epsilon=limit_epsilon, delta=delta, neighbours=neighbours
    )
    if as_json:
        emit_json(answer)
    else:
        click.echo(f"{book}: {_limit(answer)}")
        click.echo(f"give it to the first run: opendas run RUN.toml --ledger {book}")


@ledger_command.command("add")
@click.argument("book", metavar="BOOK", type=PATH)
@click.option("--rho", metavar="R", required=True, help="What it cost one protected unit of the book.")
@click.option("--note", metavar="TEXT", required=True, help="What was released, where and when.")
def add_command(book: Path, rho: str, note: str) -> None:
    """Enter a loss that was spent elsewhere: by another program, or before BOOK was made.

    Example: opendas ledger add patients.book --rho 1/2 --note "annual report 2029"
    """
    import opendas

    answer = opendas.add_to_ledger(book, rho, note)
    click.echo(f"spent: rho {answer['spent']['rho']}; left: rho {answer['left']['rho']}")


@ledger_command.command("show")
@click.argument("book", metavar="BOOK", type=PATH)
@json_option
def show_command(book: Path, as_json: bool) -> None:
    """Show what a data set has spent, for each change, and every act on it.

    Example: opendas ledger show patients.book
    """
    import opendas

    answer = opendas.ledger(book)
    if as_json:
        emit_json(answer)
        return
    click.echo(_limit(answer))
    click.echo(f"spent: rho {answer['spent']['rho']}; left: rho {answer['left']['rho']}")
    click.echo()
    columns = ["change", "neighbours", "rho", "acts", "uncovered"]
    click.echo(text_table(answer["totals"], columns))
    click.echo()
    acts = [{"n": number, **act} for number, act in enumerate(answer["acts"], start=1)]
    click.echo(text_table(acts, ["n", "act", "product", "unit", "rho", "run"]))
    if any(total["uncovered"] for total in answer["totals"]):
        message("uncovered: acts on the same units whose loss under that relation was not derived.")


def _limit(answer: Mapping[str, Any]) -> str:
    limit = answer["limit"]
    declared = f" (epsilon {limit['epsilon']} at delta {limit['delta']})" if "epsilon" in limit else ""
    return f"limit: rho {limit['rho']}{declared} for {answer['change']}, {answer['neighbours']} neighbours"
