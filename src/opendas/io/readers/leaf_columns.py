"""The public leaves in the making: columns of which never two versions stand beside each other.

They are put in order, and leaves without any unit are taken out, one column at a time: for a nation a second
frame beside the first is a gigabyte.

Axes: ``l`` leaves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from opendas.geography.frame import Frame, official_codes

__all__ = ["LeafColumns"]

Codes = npt.NDArray[np.bytes_]
Counts = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False, repr=False)
class LeafColumns:
    """Leaves in ascending order of geocode, and their public columns; not frozen.

    Parameters
    ----------
    geocodes : bytes array (l,)
    leaf : str
        Name of the leaf geolevel.
    levels : dict of geolevel to bytes array (l,)
        Codes of levels above; empty where `root` is given.
    root : str or None
        Topmost census geolevel, from which the levels of census blocks follow; None for other hierarchies.
    units : dict of column to int64 array (l,)
    entities : dict of category to bytes array (l,)
    """

    geocodes: Codes
    leaf: str
    levels: dict[str, Codes] = field(default_factory=dict)
    root: str | None = None
    units: dict[str, Counts] = field(default_factory=dict)
    entities: dict[str, Codes] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.geocodes)

    def take(self, chosen: npt.NDArray[Any]) -> None:
        """Keep the leaves at some positions, in their order, or those where a mask is true."""
        self.geocodes = self.geocodes[chosen]
        columns: dict[str, npt.NDArray[Any]]
        for columns in (self.levels, self.units, self.entities):
            for name in columns:
                columns[name] = columns[name][chosen]

    def frame(self) -> Frame:
        """Return the frame; it takes over the columns."""
        levels = self.levels if self.root is None else official_codes(self.geocodes, self.root)
        return Frame(self.geocodes, levels, self.leaf, self.units, self.entities)
