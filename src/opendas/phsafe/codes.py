"""Code lists of the person and unit records, and population groups from race and Hispanic origin.

Sources: 2020 census edited file as used by the published program (RELSHIP, TEN, HHT, HHT2, CPLT, CENRACE);
population groups: PHSafe paper, section on the S-DHC tables.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opendas.phsafe.model import Iteration

__all__ = [
    "CHILDREN",
    "CPLT",
    "HHT",
    "HHT2",
    "NO_GROUP",
    "OUTSIDE",
    "RELATIVES",
    "RELSHIP",
    "TEN",
    "group_index",
    "lookup",
]

RELSHIP: Final = {
    20: "householder",
    21: "opposite-sex spouse",
    22: "opposite-sex unmarried partner",
    23: "same-sex spouse",
    24: "same-sex unmarried partner",
    25: "biological child",
    26: "adopted child",
    27: "stepchild",
    28: "sibling",
    29: "parent",
    30: "grandchild",
    31: "parent-in-law",
    32: "child-in-law",
    33: "other relative",
    34: "roommate or housemate",
    35: "foster child",
    36: "other nonrelative",
    37: "person in institutional group quarters",
    38: "person in other group quarters",
}
CHILDREN: Final = (25, 26, 27)
"""Own children of the householder."""
RELATIVES: Final = (20, 21, 23, *range(25, 34))
"""The householder and everybody related to the householder."""

TEN: Final = {
    0: "not in universe",
    1: "owned with a mortgage or loan",
    2: "owned free and clear",
    3: "rented",
    4: "occupied without payment of rent",
}
HHT: Final = {
    0: "not in universe",
    1: "married couple household",
    2: "other family, male householder",
    3: "other family, female householder",
    4: "nonfamily, male householder, alone",
    5: "nonfamily, male householder, not alone",
    6: "nonfamily, female householder, alone",
    7: "nonfamily, female householder, not alone",
}
HHT2: Final = {
    0: "not in universe",
    1: "married couple with own children under 18",
    2: "married couple without own children under 18",
    3: "cohabiting couple with own children under 18",
    4: "cohabiting couple without own children under 18",
    5: "female householder, no spouse or partner, alone",
    6: "female householder, no spouse or partner, with own children under 18",
    7: "female householder, no spouse or partner, with relatives, without own children under 18",
    8: "female householder, no spouse or partner, with nonrelatives only",
    9: "male householder, no spouse or partner, alone",
    10: "male householder, no spouse or partner, with own children under 18",
    11: "male householder, no spouse or partner, with relatives, without own children under 18",
    12: "male householder, no spouse or partner, with nonrelatives only",
}
CPLT: Final = {
    0: "not in universe",
    1: "opposite-sex married couple",
    2: "same-sex married couple",
    3: "opposite-sex unmarried couple",
    4: "same-sex unmarried couple",
    5: "all other households",
}

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

    Parameters
    ----------
    iteration : Iteration
    race : int (n,)
        1 to 63, 0 not in universe.
    hispanic : int (n,)
        1 no, 2 yes, 0 not in universe.

    Returns
    -------
    int8 (n,)
        ``A-G``: 0 to 5 for one race alone, 6 for two or more, :data:`OUTSIDE` for race 0. ``H,I``: 0 for
        Hispanic, 1 for White alone and not Hispanic, else :data:`NO_GROUP`. ``*``: 0.

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
