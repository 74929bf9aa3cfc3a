"""``opendas phsafe-accuracy``: private household tables beside the truth. Confidential, for test data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opendas.cli.options import json_option
from opendas.cli.output import emit_json, message, text_table
from opendas.cli.progress import Progress

if TYPE_CHECKING:
    from opendas.phsafe.accuracy import AccuracyRow

__all__ = ["command"]

_PATH: click.Path = click.Path(path_type=Path)
_CONFIDENTIAL = (
    "CONFIDENTIAL: these figures compare with exact counts, and the tables behind them are charged to no "
    "ledger. Use data that need no protection, and do not publish them."
)


@click.command("phsafe-accuracy")
@click.argument("config", metavar="CONFIG.json", type=_PATH)
@click.argument("data", metavar="DATA", type=_PATH)
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="How often the private tables are made.",
)
@click.option("--out", type=_PATH, default=None, help="Folder for the report in the published layout.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the first trial.")
@click.option(
    "--truncation",
    type=click.Choice(["keyed", "tumult-0.12"]),
    default="keyed",
    show_default=True,
    help="As in opendas phsafe.",
)
@click.option(
    "--sensitivity",
    type=click.Choice(["paper", "tight"]),
    default="paper",
    show_default=True,
    help="As in opendas phsafe.",
)
@json_option
def command(
    config: Path,
    data: Path,
    trials: int,
    out: Path | None,
    seed: int,
    truncation: str,
    sensitivity: str,
    as_json: bool,
) -> None:
    """Measure the error of the tables that CONFIG.json gives, on data that need no protection.

    Makes the private tables several times in memory and compares them with the exact ones: 90th percentiles
    of the error beside the margins expected, and what truncation leaves out apart from the noise.

    Example: opendas phsafe-accuracy config.json testdata --trials 100
    """
    from opendas.phsafe.accuracy import run_accuracy, write_report
    from opendas.phsafe.run import HouseholdOptions
    from opendas.phsafe.sensitivity import Sensitivity
    from opendas.phsafe.truncation import Truncation

    message(_CONFIDENTIAL)
    with Progress() as progress:
        options = HouseholdOptions(
            sensitivity=Sensitivity(sensitivity),
            truncation=Truncation(truncation),
            seed=seed,
            progress=progress,
        )
        rows = run_accuracy(config, data, trials, options)
    if out is not None:
        message(f"written: {write_report(out, rows)}")
    if as_json:
        emit_json({"confidential": True, "trials": trials, "rows": [row.to_dict() for row in rows]})
    else:
        click.echo(text_table(_summary(rows)))


def _summary(rows: Sequence[AccuracyRow]) -> list[dict[str, Any]]:
    """Show groups and cells with the same noise as one row, with the mean of their figures."""
    alike: dict[tuple[Any, ...], list[AccuracyRow]] = {}
    for row in rows:
        family = row.iteration if row.iteration == "*" else "A-G" if row.iteration in "ABCDEFG" else "H,I"
        level = f"{row.region_type.lower()}_{family}"
        alike.setdefault((row.table, level, row.expected_moe, row.exact_moe), []).append(row)
    return [
        {
            "table": table,
            "level": level,
            "errors": sum(row.count for row in part),
            "expected": expected,
            "exact": exact,
            "noise (mean p90)": sum(row.noise_moe for row in part) / len(part),
            "error (mean p90)": sum(row.experimental_moe for row in part) / len(part),
            "truncation bias": sum(row.truncation_bias for row in part) / len(part),
        }
        for (table, level, expected, exact), part in alike.items()
    ]
