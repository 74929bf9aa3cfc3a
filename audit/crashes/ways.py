"""Ways to die, and which of them a life takes."""

from __future__ import annotations

import random
from dataclasses import dataclass

from audit.crashes.subjects import Subject

__all__ = ["WAYS", "Fate", "Way", "draw_fate"]


@dataclass(frozen=True, slots=True)
class Way:
    """A way to die.

    Parameters
    ----------
    name : str
    act : str
        ``kill``, ``cut``, ``full``, ``SIGINT`` or ``SIGTERM``.
    when : str
        ``moment``: a random time after the start; ``operation``: a random file operation; ``space``: when a
        small disk is full.
    who : str
        ``main``, ``worker``, or ``all`` processes.
    moved : bool
        The run is resumed on another machine: other path, other inputs' path, TMPDIR, umask, working
        directory.
    """

    name: str
    act: str
    when: str
    who: str = "main"
    moved: bool = False


WAYS = (
    Way("kill -9, at a moment", "kill", "moment"),
    Way("kill -9, at a file operation", "kill", "operation"),
    Way("kill -9 of all, at a moment", "kill", "moment", "all"),
    Way("kill -9 of a worker, at a moment", "kill", "moment", "worker"),
    Way("kill -9 of a worker, at a file operation", "kill", "operation", "worker"),
    Way("power cut, at a moment", "cut", "moment", "all"),
    Way("power cut, at a file operation", "cut", "operation"),
    Way("power cut, at a worker's file operation", "cut", "operation", "worker"),
    Way("full disk, small file system", "full", "space", "all"),
    Way("full disk, at a write", "full", "operation"),
    Way("SIGINT, at a moment", "SIGINT", "moment"),
    Way("SIGINT, at a file operation", "SIGINT", "operation"),
    Way("SIGTERM, at a moment", "SIGTERM", "moment"),
    Way("killed here, resumed on another machine", "kill", "moment", moved=True),
    Way("killed at a file operation, resumed on another machine", "kill", "operation", moved=True),
)

EDGE = 80
"""So many first and last file operations of a life are died at as often as all the others."""


@dataclass(frozen=True, slots=True)
class Fate:
    """How one life ends, or does not.

    Parameters
    ----------
    way : Way or None
        None: it is left alone.
    moment : float
        Share of an undisturbed life.
    at : int
        File operation.
    share : float
        Of the last write, how much reaches the file.
    loss : float
        Of a power cut; see :func:`audit.crashes.disk.power_cut`.
    space : float
        Share of what an undisturbed run needs that a small disk has.
    """

    way: Way | None = None
    moment: float = 0.0
    at: int = 0
    share: float = 0.0
    loss: float = 0.0
    space: float = 0.0


def draw_fate(rng: random.Random, subject: Subject, way: Way | None, operations: int) -> Fate:
    """Draw the details of a death.

    Parameters
    ----------
    operations : int
        File operations of an undisturbed life.
    """
    if way is not None and way.who == "worker" and subject.workers == 1:
        raise ValueError(f"{subject.name}: there is no worker to die")
    return Fate(
        way,
        moment=rng.uniform(0.0, 1.02),
        at=_operation(rng, max(operations, 1)),
        share=rng.choice((0.0, rng.random(), 1.0)),
        loss=rng.choice((1.0, 0.9, 0.5, rng.random(), 0.0)),
        space=rng.uniform(0.0, 1.0),
    )


def _operation(rng: random.Random, operations: int) -> int:
    """Draw an operation; most are of tasks, and few are where key, ledger and certificate are written."""
    first, last = rng.choice(
        ((1, min(EDGE, operations)), (1, operations), (max(operations - EDGE, 1), operations))
    )
    return rng.randint(first, last)
