"""Inputs worth keeping: a line of hexadecimal digits each, one file a target, found and reduced by campaigns.

An input is a sequence of choices (:mod:`fuzz.choices`), not a file: it holds no data of anybody, and means
something else when the seeds or the edits change. Every defect that a campaign found also has a test of its
own, which does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

__all__ = ["corpus", "keep"]

FOLDER = Path(__file__).with_name("corpus")


def corpus(name: str) -> tuple[bytes, ...]:
    """Return the inputs kept for a target."""
    path = FOLDER / f"{name}.txt"
    return tuple(bytes.fromhex(line) for line in path.read_text().split()) if path.is_file() else ()


def keep(name: str, inputs: Iterable[bytes]) -> None:
    """Add inputs to those of a target, shortest first."""
    FOLDER.mkdir(exist_ok=True)
    every = sorted({*corpus(name), *inputs}, key=lambda data: (len(data), data))
    (FOLDER / f"{name}.txt").write_text("".join(f"{data.hex()}\n" for data in every))
