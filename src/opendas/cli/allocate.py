"""``opendas allocate``: share a budget out over the levels of a hierarchy, or over a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from opendas.cli.options import json_option
from opendas.cli.output import emit_json, message, text_table

__all__ = ["command"]

_PATH: click.Path = click.Path(path_type=Path)
_MECHANISMS = "laplace|gaussian|discrete-laplace|discrete-gaussian"


@click.command("allocate")
@click.argument("source_file", metavar="INPUT.json|RUN.toml", type=_PATH)
@click.option(
    "--mechanism", metavar=_MECHANISMS, default=None, help="Noise; a run file brings its own mechanism."
)
@click.option("--total", metavar="B", default=None, help="Total epsilon or rho, an exact number.")
@click.option("--mse", metavar="T", default=None, help="Least total whose weighted squared error is T.")
@click.option(
    "--weights",
    metavar="W,...",
    default=None,
    help='One per level, or by name: "block=2,total=1/2". By default 1 each; not normalised.',
)
@click.option(
    "--neighbours",
    metavar="unbounded|bounded",
    default=None,
    help="A record is added or removed (default), or replaced. A run file brings its own.",
)
@click.option("--prior", metavar="INPUT.json", type=_PATH, default=None, help="RUN.toml: public counts.")
@click.option(
    "--stand-in", metavar="RUN.toml", type=_PATH, default=None, help="RUN.toml: a run on public data."
)
@click.option("--source", metavar="TEXT", default=None, help="Where the counts come from; is published.")
@click.option(
    "--after-least-squares",
    is_flag=True,
    help="RUN.toml: count errors after least squares over the whole tree, not those of each measurement.",
)
@click.option("--to", metavar="FILE", type=_PATH, default=None, help="RUN.toml: write it with this [budget].")
@json_option
def command(
    source_file: Path,
    mechanism: str | None,
    total: str | None,
    mse: str | None,
    weights: str | None,
    neighbours: str | None,
    prior: Path | None,
    stand_in: Path | None,
    source: str | None,
    after_least_squares: bool,
    to: Path | None,
    as_json: bool,
) -> None:
    """Find the allocation of a budget with the least squared error.

    INPUT.json holds the counts of each level, or only how many nodes it has. RUN.toml is allocated over
    geolevels and query groups, from the public numbers of geounits and cells; the answer is a [budget].
    An allocation is published: never compute it from the counts that it is to protect.

    Example: opendas allocate INPUT.json --mechanism laplace --total 2

    Example: opendas allocate run.toml --weights block=2 --to allocated.toml
    """
    if (total is not None) and (mse is not None):
        raise click.UsageError("give --total or --mse, not both.")
    if source_file.suffix == ".toml":
        _refuse(source_file, {"--mechanism": mechanism, "--neighbours": neighbours})
        if after_least_squares:
            alone = {"--mse": mse, "--prior": prior, "--stand-in": stand_in, "--source": source}
            _refuse(source_file, alone, "--after-least-squares, which uses no counts")
        _run(source_file, total, mse, weights, prior, stand_in, source, after_least_squares, to, as_json)
        return
    levels = {"--prior": prior, "--stand-in": stand_in, "--to": to}
    _refuse(source_file, levels | {"--after-least-squares": after_least_squares or None})
    if mechanism is None:
        raise click.UsageError(f"--mechanism is missing: {_MECHANISMS}.")
    if total is None and mse is None:
        raise click.UsageError("give --total, or --mse.")
    _levels(source_file, mechanism, total, mse, weights, neighbours or "unbounded", source, as_json)


def _refuse(source_file: Path, options: Mapping[str, object], kind: str = "") -> None:
    kind = kind or ("a run file" if source_file.suffix == ".toml" else "counts of levels")
    for name, value in options.items():
        if value is not None:
            raise click.UsageError(f"{name} does not go with {kind} ({source_file.name}).")


def _levels(
    source_file: Path,
    mechanism: str,
    total: str | None,
    mse: str | None,
    weights: str | None,
    neighbours: str,
    source: str | None,
    as_json: bool,
) -> None:
    import opendas
    from opendas.allocation.level_counts import read_level_counts

    counts = read_level_counts(source_file)
    names = [level.name for level in counts.levels]
    found = opendas.allocate(
        counts.levels,
        mechanism,
        total=total,
        mse=mse,
        weights=_level_weights(weights, names),
        neighbours=neighbours,
    )
    said = source or counts.source
    if said is None and counts.known:
        message(
            f"warning: nothing says where the counts in {source_file.name} come from (--source). If they are "
            "the counts to be released, the allocation must not be used: it would give some of them away."
        )
    answer = {**found.to_dict(), "source": said or ("not stated" if counts.known else "numbers of nodes")}
    if as_json:
        emit_json(answer)
        return
    loss = found.kind.loss_name
    click.echo(f"total {loss} {float(found.total):.6g}, {found.kind}, {found.neighbours} neighbours")
    click.echo(f"objective {found.objective:.6g}; an even split has {found.uniform_objective:.6g}")
    click.echo()
    columns = ["level", loss, "share", "bias2", "variance", "mse", "mse_even"]
    whole = sum(found.budgets)
    rows = []
    for level, even, budget in zip(found.levels, found.uniform, found.budgets, strict=True):
        row = level.to_dict() | {"level": level.name, loss: budget, "share": budget / whole}
        rows.append(row | {"mse_even": even.mse})
    click.echo(text_table(rows, columns))
    click.echo()
    click.echo("exact: " + ", ".join(answer["exact"]))
    for level in found.levels:
        if level.unbounded:
            click.echo(f"{level.name} gets nothing: its error is unbounded.")
    if any(not level.known for level in found.levels):
        click.echo("errors are those before clamping where only numbers of nodes are known.")


def _run(
    source_file: Path,
    total: str | None,
    mse: str | None,
    weights: str | None,
    prior: Path | None,
    stand_in: Path | None,
    source: str | None,
    after_least_squares: bool,
    to: Path | None,
    as_json: bool,
) -> None:
    import opendas
    from opendas.allocation.level_counts import read_level_counts

    if to is not None and to.resolve().parent != source_file.resolve().parent:
        raise click.UsageError(
            f"--to: paths in {source_file.name} are relative to its folder; write the new one beside it."
        )
    if to is not None and to.exists() and to.resolve() != source_file.resolve():
        raise click.UsageError(f"{to} exists already; name another file with --to.")
    found = opendas.allocate_run(
        opendas.load(source_file),
        total=total,
        mse=mse,
        weights=_named_weights(weights) if weights is not None else None,
        prior=None if prior is None else read_level_counts(prior),
        stand_in=None if stand_in is None else opendas.load(stand_in),
        source=source,
        after_least_squares=after_least_squares,
    )
    if to is not None:
        found.write(source_file, to)
    answer: dict[str, Any] = found.to_dict()
    if as_json:
        emit_json(answer)
        return
    message(
        text_table(answer["levels"], ["geolevel", "query", "counts", "weight", "share", "variance", "mse"])
    )
    message(f"objective {answer['objective']:.6g}; even shares have {answer['uniform']['objective']:.6g}")
    if any("before_clamping" in row for row in answer["levels"]):
        message("errors are those before clamping where only numbers of nodes are known.")
    for row in answer["levels"]:
        if row["unbounded"]:
            message(f"{row['geolevel']}/{row['query']} gets nothing: its error is unbounded.")
    click.echo(answer["toml"], nl=False)


def _level_weights(text: str | None, names: list[str]) -> list[float] | None:
    """Return one weight a level, given in order or by name."""
    from opendas.errors import BudgetError

    if text is None:
        return None
    if "=" not in text:
        return [_number(part) for part in text.split(",")]
    given = _named_weights(text)
    for name in given:
        if name not in names:
            raise BudgetError(f"--weights: there is no level {name!r}; levels are {', '.join(names)}.")
    return [given.get(name, 1.0) for name in names]


def _named_weights(text: str) -> dict[str, float]:
    from opendas.errors import BudgetError

    given: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.rpartition("=")
        if not equals or not name.strip():
            raise BudgetError(
                f'--weights: {part.strip()!r} is no weight; write NAME=NUMBER, for instance "block=2".'
            )
        if name.strip() in given:
            raise BudgetError(f"--weights: {name.strip()!r} is there twice.")
        given[name.strip()] = _number(value)
    return given


def _number(text: str) -> float:
    """Return an exact number as a float; only budgets need be exact."""
    from opendas.privacy.exact import parse_fraction

    value = parse_fraction(text, "--weights")
    return float(value) if abs(value) < 10**300 else float("inf")
