"""The spine: the hierarchy that measurements are taken on, as arrays.

Axes: level ``l`` counted from the top; ``g`` geounits of a level. The geounits of a level are ordered so
that the children of one parent, and hence the leaves below any geounit, are consecutive.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from opendas.errors import BudgetError, Finding, GeographyError
from opendas.geography.frame import Frame

__all__ = ["Spine", "SpineLevel", "standard_spine"]


@dataclass(frozen=True, slots=True, eq=False)
class SpineLevel:
    """One geolevel of a spine.

    Parameters
    ----------
    name : str
        Geolevel.
    geocodes : bytes array (g,)
        Code of each geounit, unique within the level.
    parent : int64 (g,)
        Index of each geounit's parent in the level above, non-decreasing; zeros at the top.
    """

    name: str
    geocodes: npt.NDArray[np.bytes_]
    parent: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.geocodes)


@dataclass(frozen=True, slots=True, eq=False)
class Spine:
    """Geolevels from the top down to the leaves.

    Parameters
    ----------
    levels : tuple of SpineLevel
        Top first. The top level may have several geounits, each a root of its own.
    leaf_order : int64 (leaves,)
        Position in the frame of each leaf of the spine.
    shares : tuple of (None or tuple of Fraction)
        Per level, the geounits' own multiples of the level's budget share; ``None`` means one each. Along
        every path from a root to a leaf, level share times multiple sums to one.
    """

    levels: tuple[SpineLevel, ...]
    leaf_order: npt.NDArray[np.int64]
    shares: tuple[tuple[Fraction, ...] | None, ...]

    def __post_init__(self) -> None:
        for above, level in zip(self.levels, self.levels[1:], strict=False):
            parent = level.parent
            if (
                len(parent) == 0
                or parent[0] != 0
                or parent[-1] != len(above) - 1
                or np.any(np.diff(parent) > 1)
            ):
                raise GeographyError(f"geolevel {level.name!r}: a geounit above has no child on the spine.")
            if np.any(np.diff(parent) < 0):
                raise GeographyError(f"geolevel {level.name!r}: children of one parent are not consecutive.")

    @property
    def names(self) -> tuple[str, ...]:
        """Geolevel names, top first."""
        return tuple(level.name for level in self.levels)

    @property
    def leaf(self) -> SpineLevel:
        """The leaf level."""
        return self.levels[-1]

    def index(self, name: str) -> int:
        """Return the position of a geolevel, 0 at the top."""
        if name not in self.names:
            raise GeographyError(f"the spine has no geolevel {name!r}; it has {', '.join(self.names)}.")
        return self.names.index(name)

    def child_starts(self, level: int) -> npt.NDArray[np.int64]:
        """Return int64 (g + 1,): geounit ``i`` of `level` has children ``starts[i]:starts[i + 1]``."""
        below = self.levels[level + 1]
        return np.searchsorted(below.parent, np.arange(len(self.levels[level]) + 1)).astype(np.int64)

    def leaf_starts(self, level: int) -> npt.NDArray[np.int64]:
        """Return int64 (g + 1,): below geounit ``i`` of `level` lie leaves ``starts[i]:starts[i + 1]``."""
        starts = np.arange(len(self.leaf) + 1, dtype=np.int64)
        for upper in range(len(self.levels) - 2, level - 1, -1):
            starts = starts[self.child_starts(upper)]
        return starts

    def share(self, level: int, geounit: int) -> Fraction:
        """Return the geounit's own multiple of its level's budget share."""
        shares = self.shares[level]
        return Fraction(1) if shares is None else shares[geounit]

    def check_paths(self, level_shares: Sequence[Fraction]) -> None:
        """Check that the shares along every path from root to leaf sum to exactly one.

        Raises
        ------
        BudgetError
            Naming the first leaf whose path does not.
        """
        if all(shares is None for shares in self.shares):
            if sum(level_shares, Fraction(0)) != 1:
                raise BudgetError(f"the geolevel shares sum to {sum(level_shares, Fraction(0))}, not to 1.")
            return
        sums = [level_shares[0] * self.share(0, i) for i in range(len(self.levels[0]))]
        for number, level in enumerate(self.levels[1:], start=1):
            sums = [
                sums[int(parent)] + level_shares[number] * self.share(number, i)
                for i, parent in enumerate(level.parent)
            ]
        for code, total in zip(self.leaf.geocodes, sums, strict=True):
            if total != 1:
                raise BudgetError(f"the shares on the path to leaf {code.decode()} sum to {total}, not to 1.")

    def canonical_bytes(self) -> Iterator[bytes]:
        """Yield a canonical serialisation of the (public) spine, for the plan digest."""
        for level, shares in zip(self.levels, self.shares, strict=True):
            yield level.name.encode() + b"\0"
            yield np.array([len(level), level.geocodes.dtype.itemsize], dtype="<i8").tobytes()
            yield level.geocodes.tobytes()
            yield level.parent.astype("<i8", copy=False).tobytes()
            yield b"equal" if shares is None else ",".join(str(share) for share in shares).encode()

    def digest(self) -> str:
        """Return the SHA-256 of the canonical serialisation, in hexadecimal."""
        digest = hashlib.sha256()
        for part in self.canonical_bytes():
            digest.update(part)
        return digest.hexdigest()


def standard_spine(frame: Frame) -> Spine:
    """Build the spine of the official geolevels.

    Raises
    ------
    GeographyError
        If a geounit lies in two parents.
    """
    names = frame.geolevels
    columns = [frame.codes(name) for name in names]
    order = np.lexsort(tuple(reversed(columns)))
    levels: list[SpineLevel] = []
    above: npt.NDArray[np.int64] = np.zeros(len(order), dtype=np.int64)
    for name, column in zip(names, columns, strict=True):
        codes = column[order]
        new = np.concatenate([[True], (codes[1:] != codes[:-1]) | (above[1:] != above[:-1])])
        first = np.flatnonzero(new)
        geocodes = codes[first]
        unique, counts = np.unique(geocodes, return_counts=True)
        if len(unique) != len(geocodes):
            raise GeographyError(
                f"a geounit of level {name!r} lies in one parent.",
                [
                    Finding("frame", None, name, f"{code.decode()} lies in more than one parent")
                    for code in unique[counts > 1][:20]
                ],
            )
        parent = above[first] if levels else np.zeros(len(first), dtype=np.int64)
        levels.append(SpineLevel(name, geocodes, parent))
        above = np.cumsum(new) - 1
    return Spine(tuple(levels), order.astype(np.int64), (None,) * len(levels))
