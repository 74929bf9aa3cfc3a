"""Objects as notebooks show them: a small table in HTML, with everything escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(caption: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table for ``_repr_html_``.

    Parameters
    ----------
    caption : str
    header : sequence of str
    rows : iterable of sequence
        As many values as the header; numbers to six digits.
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    parts = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f"<table><caption>{escape(caption)}</caption>{parts}</table>"


def _cell(value: object) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    text = f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)
    align = ' style="text-align:right"' if number else ""
    return f"<td{align}>{escape(text)}</td>"
