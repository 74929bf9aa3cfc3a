"""Words that stand in a certificate, such as the source of a budget."""

from __future__ import annotations

from opendas.errors import ConfigError

__all__ = ["LONGEST", "checked_line", "is_one_line"]

LONGEST = 300
"""Characters of one line of words."""


def is_one_line(text: str) -> bool:
    """Whether a text is one printable line, neither empty nor a page."""
    return 0 < len(text.strip()) <= LONGEST and text.isprintable()


def checked_line(text: str, what: str) -> str:
    """Return a line of words without the spaces around it.

    Raises
    ------
    ConfigError
        If it is no such line: a run file that has it could not be read again.
    """
    if not is_one_line(text):
        raise ConfigError(f"{what}: expected one line of 1 to {LONGEST} characters that can be printed.")
    return text.strip()
