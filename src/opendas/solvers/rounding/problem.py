"""The data of controlled rounding: problem, result, names for messages.

Axes: C children, n cells, K groups, J joint totals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opendas.arrays import Bools, Floats, Ints

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNBOUNDED = int(np.iinfo(np.int64).max // 4)
"""Upper bound of a group that has none."""


class RoundingProblem(NamedTuple):
    """A family as contiguous arrays, in the order the compiled driver takes them.

    Attributes
    ----------
    x : float64 array, (C, n)
        Estimate.
    total : int64 array, (n,)
        Parent, zeros where there is none.
    has_total : bool
        Whether there is a parent.
    mask : bool array, (C, n)
        Cells that may be non-zero.
    maps : int32 array, (maps, n)
        Row of each cell in each map, -1 for none.
    map_pass : int64 array, (maps,)
        Pass of each map.
    passes : int
        Number of passes.
    groups : bool array, (K, n)
        Constraint groups.
    lower, upper : int64 array, (C, K)
        Their bounds.
    child_keys, cell_keys : uint64 array, (C,) and (n,)
        Public tie keys.
    joint : int64 array, (C,)
        Joint total that each child has a part in, -1 for none.
    joint_total : int64 array, (J,)
        Joint totals.
    """

    x: Floats
    total: Ints
    has_total: bool
    mask: Bools
    maps: NDArray[np.int32]
    map_pass: Ints
    passes: int
    groups: Bools
    lower: Ints
    upper: Ints
    child_keys: NDArray[np.uint64]
    cell_keys: NDArray[np.uint64]
    joint: Ints
    joint_total: Ints


@dataclass(frozen=True, slots=True)
class RoundingResult:
    """A rounded family.

    Parameters
    ----------
    values : int64 array, (C, n), read-only
        Rounded estimate, in counts.
    objective : tuple of float
        For each pass, the sum over children and rows of |Q(x - values)| in counts, with x as snapped.
    method : str
        ``"flow"``, ``"milp"`` or ``"milp, not next to the estimate"``.
    """

    values: Ints
    objective: tuple[float, ...]
    method: str

    def __post_init__(self) -> None:
        self.values.flags.writeable = False


@dataclass(frozen=True, slots=True)
class RoundingNames:
    """Names for error messages.

    Parameters
    ----------
    family : str
        Geocode of the parent.
    passes : tuple of tuple of str
        Query group of each row map.
    groups : tuple of str
        Constraint of each group.
    joint : tuple of str
        Name of each joint total.
    fixed : str
        Query group of the fixed partition.
    """

    family: str = "?"
    passes: tuple[tuple[str, ...], ...] = ()
    groups: tuple[str, ...] = ()
    joint: tuple[str, ...] = ()
    fixed: str = "the fixed partition"

    def group(self, number: int) -> str:
        """Return the name of a group, its number where it has none."""
        return self.groups[number] if number < len(self.groups) else f"group {number}"

    def joint_total(self, number: int) -> str:
        """Return the name of a joint total, its number where it has none."""
        return self.joint[number] if number < len(self.joint) else f"joint total {number}"
