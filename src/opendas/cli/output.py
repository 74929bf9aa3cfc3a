"""Answers on stdout: strict JSON, or plain text tables."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

__all__ = ["echo_protection", "emit_json", "message", "text_table"]


def _plain(value: Any) -> Any:
    """Return a value in JSON's types; what JSON has no number for becomes null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Fraction | Path):
        return str(value)
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, Iterable):
        return [_plain(item) for item in value]
    return str(value)


def emit_json(value: Any) -> None:
    """Write one strict JSON value (no NaN, no Infinity) to stdout."""
    click.echo(json.dumps(_plain(value), allow_nan=False, ensure_ascii=False))


def echo_protection(record: Mapping[str, Any]) -> None:
    """Write what the exact facts of a run leave protected, from its JSON."""
    from opendas.measurement.protected import Protection

    found = Protection.from_dict(record)
    known = f"with {', '.join(found.facts)} published exactly" if found.facts else "nothing published exactly"
    click.echo(textwrap.fill(f"what is protected of a record ({known}):", 100))
    click.echo(
        text_table([{"of a record": kind, "name": name, "is": text} for kind, name, text in found.rows()])
    )


def message(text: str) -> None:
    """Write a message to stderr."""
    click.echo(text, err=True)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else "-"
    return str(value)


def text_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """Return rows as aligned text: numbers to the right, words to the left.

    Parameters
    ----------
    rows : sequence of mapping
    columns : sequence of str, optional
        Which, in which order; by default those of the first row.
    """
    if not rows:
        return "(nothing)"
    names = list(columns or rows[0])
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    numeric = [all(isinstance(row.get(name), int | float | None) for row in rows) for name in names]
    widths = [max(len(name), *(len(row[i]) for row in cells)) for i, name in enumerate(names)]

    def line(values: Sequence[str]) -> str:
        parts = [
            value.rjust(width) if right else value.ljust(width)
            for value, width, right in zip(values, widths, numeric, strict=True)
        ]
        return "  ".join(parts).rstrip()

    return "\n".join([line(names), line(["-" * width for width in widths]), *(line(row) for row in cells)])
