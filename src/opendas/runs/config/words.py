"""Words of configurations: lines that stand in a certificate, and the nearest known word for messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from opendas.errors import ConfigError

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


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint that names the nearest known word, or all of them.

    Examples
    --------
    >>> nearest("mechansim", ["mechanism", "product"])
    'did you mean mechanism?'
    """
    words = list(known)
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]}?"
    return f"the choices are {', '.join(words)}." if words else "there is none to choose."
