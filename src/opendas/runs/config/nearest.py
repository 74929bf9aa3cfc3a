"""The nearest known word, for messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint that names the nearest known word, or all of them.

    Examples
    --------
    >>> nearest("mechansim", ["mechanism", "product"])
    'did you mean mechanism?'
    """
    words = list(known)
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(words) or 'none'}."
