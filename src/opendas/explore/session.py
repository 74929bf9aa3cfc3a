"""What one start of the explorer is about."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opendas.errors import ConfigError
from opendas.explore.stand_ins import STAND_INS, stand_in
from opendas.explore.subjects import Subject

__all__ = ["Session"]


@dataclass
class Session:
    """What one start of the explorer is about.

    Parameters
    ----------
    run : Subject, optional
        The subject of a run file.
    save_to : Path, optional
        Where the page may write a plan; named on the command line.
    state : mapping, optional
        A kept state to begin with.
    token : str
        Who has it may write to `save_to`; it is in the address that the program prints, and nowhere else.
    """

    run: Subject | None = None
    save_to: Path | None = None
    state: Mapping[str, Any] | None = None
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    def __post_init__(self) -> None:
        self._made: dict[str, Subject] = {} if self.run is None else {self.run.key: self.run}

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the subjects, the run file's first."""
        return (*(("run",) if self.run is not None else ()), *STAND_INS)

    @property
    def first(self) -> Subject:
        """The subject to begin with."""
        return self.subject(self.keys[0])

    def subject(self, key: str) -> Subject:
        """Return a subject by name.

        Raises
        ------
        ConfigError
            If there is none.
        """
        if key == "run" and self.run is None:
            raise ConfigError(
                "This is a plan for a run file: start opendas explore with it, and open it there."
            )
        if key not in self.keys:
            raise ConfigError(f"There is nothing to explore under the name {key[:40]!r} here.")
        if key not in self._made:
            self._made[key] = stand_in(key)
        return self._made[key]

    def starts(self) -> list[tuple[str, str]]:
        """Return what a plan can start from: subject and preset."""
        found = []
        for key in self.keys:
            subject = self.subject(key)
            if key == "run":
                found.append(("run:", f"{subject.title}, as it is"))
            found += [(f"{key}:{name}", f"{subject.title}: {name}") for name in subject.presets()]
        return found
