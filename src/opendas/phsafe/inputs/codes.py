"""Codes of person and unit records that tables are made from, and population groups of race and origin.

What each code stands for is listed in ``docs/formats/phsafe.md``.

Notes
-----
Sexton et al. (2024), section 2.2.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opendas.phsafe.inputs.levels import Iteration

CHILDREN: Final = (25, 26, 27)
"""Own children of the householder."""
RELATIVES: Final = (20, 21, 23, *range(25, 34))
"""The householder and everybody related to the householder."""

ADULT: Final = 18
"""Age in years from which a person is no minor."""

OUTSIDE: Final = -1
"""Cell or group of a row that is counted but has no place: an inconsistency of the input."""
NO_GROUP: Final = -2
"""Group of a row that a level does not count: neither Hispanic nor White alone, in ``H,I``."""

_WHITE = 1
_RACES_ALONE = 6
_RACES = 63
_NOT_HISPANIC, _HISPANIC = 1, 2


def lookup(values: dict[int, int], size: int) -> npt.NDArray[np.int8]:
    """Return a code table as an array: position to value, :data:`OUTSIDE` where there is none.

    Examples
    --------
    >>> lookup({1: 0, 2: 1}, 4).tolist()
    [-1, 0, 1, -1]
    """
    table = np.full(size, OUTSIDE, dtype=np.int8)
    for code, value in values.items():
        table[code] = value
    return table


_BY_RACE = lookup({race: min(race, _RACES_ALONE + 1) - 1 for race in range(1, _RACES + 1)}, 128)


def group_index(
    iteration: Iteration, race: npt.NDArray[Any], hispanic: npt.NDArray[Any]
) -> npt.NDArray[np.int8]:
    """Return each row's position among the codes of an iteration.

    - `race` (n,): 1 to 63, 0 not in universe.
    - `hispanic` (n,): 1 no, 2 yes, 0 not in universe.
    - Returns: ``A-G``: 0 to 5 for one race alone, 6 for two or more, :data:`OUTSIDE` for race 0. ``H,I``: 0
      for Hispanic, 1 for White alone and not Hispanic, else :data:`NO_GROUP`. ``*``: 0.

    Examples
    --------
    >>> group_index(Iteration.RACE, np.array([1, 6, 7, 63]), np.ones(4)).tolist()
    [0, 5, 6, 6]
    """
    if iteration is Iteration.ALL:
        return np.zeros(len(race), dtype=np.int8)
    if iteration is Iteration.RACE:
        return np.asarray(_BY_RACE[race])
    white = (race == _WHITE) & (hispanic == _NOT_HISPANIC)
    return np.where(hispanic == _HISPANIC, 0, np.where(white, 1, NO_GROUP)).astype(np.int8)
