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
    """A family as contiguous arrays, in the order the compiled driver takes them."""

    x: Floats  # (C, n): estimate
    total: Ints  # (n,): parent, zeros where there is none
    has_total: bool  # whether there is a parent
    mask: Bools  # (C, n): cells that may be non-zero
    maps: NDArray[np.int32]  # (maps, n): row of each cell in each map, -1 for none
    map_pass: Ints  # (maps,): pass of each map
    passes: int  # number of passes
    groups: Bools  # (K, n): constraint groups
    # lower, upper (C, K): their bounds.
    lower: Ints
    upper: Ints
    # child_keys, cell_keys (C,), (n,): public tie keys.
    child_keys: NDArray[np.uint64]
    cell_keys: NDArray[np.uint64]
    joint: Ints  # (C,): joint total that each child has a part in, -1 for none
    joint_total: Ints  # (J,): joint totals


@dataclass(frozen=True, slots=True)
class RoundingResult:
    """A rounded family."""

    values: Ints  # (C, n), read-only: rounded estimate, in counts
    # For each pass, the sum over children and rows of |Q(x - values)| in counts, with x as snapped.
    objective: tuple[float, ...]
    method: str  # ``"flow"``, ``"milp"`` or ``"milp, not next to the estimate"``

    def __post_init__(self) -> None:
        self.values.flags.writeable = False


@dataclass(frozen=True, slots=True)
class RoundingNames:
    """Names for error messages."""

    family: str = "?"  # geocode of the parent
    passes: tuple[tuple[str, ...], ...] = ()  # query group of each row map
    groups: tuple[str, ...] = ()  # constraint of each group
    joint: tuple[str, ...] = ()  # name of each joint total
    fixed: str = "the fixed partition"  # query group of the fixed partition

    def group(self, number: int) -> str:
        """Return the name of a group, its number where it has none."""
        return self.groups[number] if number < len(self.groups) else f"group {number}"

    def joint_total(self, number: int) -> str:
        """Return the name of a joint total, its number where it has none."""
        return self.joint[number] if number < len(self.joint) else f"joint total {number}"
