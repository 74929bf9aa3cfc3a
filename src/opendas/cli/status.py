"""``opendas status``: how far the runs in an output folder are."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from opendas.cli.options import json_option, out_argument
from opendas.cli.output import emit_json
from opendas.cli.progress import duration
from opendas.errors import PrivacyError

__all__ = ["command"]

WATCH_SECONDS = 2.0


@click.command("status")
@out_argument
@click.option("--watch", is_flag=True, help="Show it again every two seconds until no run is at work.")
@json_option
def command(out: Path, watch: bool, as_json: bool) -> None:
    """Show the runs in OUT: how far they are, how long they will take, and what they have spent.

    Reads only, so that it can be asked while a run is at work in OUT.

    Example: opendas status out --watch
    """
    import opendas

    rows = opendas.status(out)
    while True:
        _show(out, rows, as_json, again=watch)
        if not watch or not any(row.get("state") == "running" for row in rows):
            break
        time.sleep(WATCH_SECONDS)
        rows = opendas.status(out)
    problems = [row["problem"] for row in rows if row.get("problem")]
    if problems:
        raise PrivacyError("\n  ".join(problems))


def _show(out: Path, rows: Sequence[Mapping[str, Any]], as_json: bool, *, again: bool) -> None:
    # A script that reads JSON is not handed an answer without content beside an error.
    if all(row.get("phase") == "damaged" for row in rows):
        return
    if as_json:
        emit_json({"out": out, "runs": rows})
        return
    if again and sys.stdout.isatty():
        click.clear()
    click.echo("\n".join(line for row in rows for line in _lines(row)))


def _lines(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is said about a run."""
    if row.get("state") == "finished":
        yield f"{row['product']}: {row['phase']}"
    else:
        yield f"{row['product']}: {row.get('state') or 'unknown'}, phase {row['phase']}"
    for said in (_stage(row), _work(row), _times(row), _spent(row)):
        if said:
            yield f"  {said}"
    for name in ("error", "advice"):
        if row.get(name):
            yield f"  {row[name]}"


def _stage(row: Mapping[str, Any]) -> str:
    if row.get("stage") is None or row.get("state") == "finished":
        return ""
    done, total = row.get("done") or 0, row.get("total") or 0
    text = str(row["stage"])
    if total > 1:
        text += f": {done:,} of {total:,} ({100 * done // total} %)"
    if row.get("rate"):
        text += f", {row['rate']:,.3g} a second"
    if row.get("stage_left") is not None:
        text += f", {duration(row['stage_left'])} left"
    return text


def _work(row: Mapping[str, Any]) -> str:
    parts = []
    if row.get("state") != "finished" and row.get("workers") is not None:
        parts.append(f"{row['workers']} worker{'s' * (row['workers'] != 1)} ({row.get('engine')})")
    if row.get("memory_mb") is not None:
        parts.append(f"{row['memory_mb']:,.0f} MB of memory in all")
    if row.get("peak_rss_mb") is not None:
        parts.append(f"largest process {row['peak_rss_mb']:,.0f} MB")
    return ", ".join(parts)


def _times(row: Mapping[str, Any]) -> str:
    if row.get("started") is None:
        return ""
    text = f"since {_moment(row['started'])}"
    if row.get("attempts", 1) > 1:
        text += f", attempt {row['attempts']}"
    if row.get("elapsed") is not None:
        text += f", {duration(row['elapsed'])}"
    if row.get("updated") is not None:
        text += f"; last event {row.get('last_event')} at {_moment(row['updated'])}"
    return text


def _moment(timestamp: str) -> str:
    return timestamp.replace("T", " ").partition(".")[0].removesuffix("Z") + " UTC"


def _spent(row: Mapping[str, Any]) -> str:
    parts = [f"{name} {row[name]} spent" for name in ("rho", "epsilon") if row.get(name) is not None]
    if row.get("seeded"):
        parts.append("noise from a seed")
    if "key" in row:
        parts.append("key there" if row["key"] else "no key")
    if row.get("tasks_finished"):
        parts.append(f"{row['tasks_finished']} tasks kept")
    if row.get("version") is not None:
        parts.append(f"version {row['version']}")
    return ", ".join(parts)
