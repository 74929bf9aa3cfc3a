"""Define regions, iterations and population group levels of the tables.

Notes
-----
Sexton et al. (2024), sections 2.1 to 2.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from opendas.geography.states import STATES
from opendas.privacy.relations import Mechanism

PUERTO_RICO = "72"
"""FIPS code of Puerto Rico, which needs a separate run."""

STATE_CODES = frozenset(state.fips for state in STATES)
"""FIPS codes allowed in a state filter: the states, the District of Columbia and Puerto Rico."""


class Geography(StrEnum):
    """The two kinds of regions; the value starts the name of a level."""

    USA = "usa"
    STATE = "state"

    @property
    def region_type(self) -> str:
        """Value of the column REGION_TYPE."""
        return self.value.upper()


class Iteration(StrEnum):
    """The three families of population groups; the value ends the name of a level."""

    RACE = "A-G"
    ORIGIN = "H,I"
    ALL = "*"

    @property
    def codes(self) -> tuple[str, ...]:
        """Iteration codes of the family, in order."""
        return {"A-G": tuple("ABCDEFG"), "H,I": ("H", "I"), "*": ("*",)}[self.value]


@dataclass(frozen=True, slots=True)
class Level:
    """A population group level, for instance ``state_H,I``."""

    geography: Geography
    iteration: Iteration

    @property
    def name(self) -> str:
        """Name in the configuration."""
        return f"{self.geography}_{self.iteration}"

    def __str__(self) -> str:
        return self.name


LEVELS: tuple[Level, ...] = tuple(
    Level(geography, iteration) for geography in Geography for iteration in Iteration
)
"""All six levels, in the order of the published program."""


def find_level(name: str) -> Level | None:
    """Return the level of a name; None if there is none."""
    return next((level for level in LEVELS if level.name == name), None)


def regions(geography: Geography, state_filter: Iterable[str]) -> tuple[str, ...]:
    """Return the REGION_ID of each region of a run, in order, from the configuration alone.

    Returns: ``"1"`` for the nation, two digits for a state.

    Examples
    --------
    >>> regions(Geography.STATE, ["44", "06"])
    ('06', '44')
    """
    return ("1",) if geography is Geography.USA else tuple(sorted(state_filter))


class NoiseDistribution(StrEnum):
    """Values of the column NOISE_DISTRIBUTION."""

    GAUSSIAN = "Discrete Gaussian"
    GEOMETRIC = "Two-Sided Geometric"

    @classmethod
    def of(cls, mechanism: Mechanism) -> NoiseDistribution:
        """Return the noise distribution of a mechanism."""
        return cls.GAUSSIAN if mechanism.is_zcdp else cls.GEOMETRIC
