"""Words in a run file: lines that stand in its certificate, and those of a list."""

from __future__ import annotations

from collections.abc import Sequence

from opendas.errors import ConfigError, nearest

LONGEST = 300
"""Characters of one line of words."""


def is_one_line(text: str) -> bool:
    """Whether a text is one printable line, neither empty nor a page."""
    return 0 < len(text.strip()) <= LONGEST and text.isprintable()


def checked_line(text: str, what: str) -> str:
    """Return a line of words without the spaces around it."""
    if not is_one_line(text):
        raise ConfigError(f"{what}: expected one line of 1 to {LONGEST} printable characters.")
    return text.strip()


def not_one_of(word: str, allowed: Sequence[str]) -> str:
    """Return the rule that a word of no list breaks, with the nearest word of the list, if one is near.

    Examples
    --------
    >>> not_one_of("informd", ["topdown", "informed"])
    "expected one of topdown, informed; found 'informd'; did you mean informed?"
    """
    rule = f"expected one of {', '.join(allowed)}; found {word!r}"
    hint = nearest(word, allowed, "")
    return f"{rule}; {hint}" if hint else rule
