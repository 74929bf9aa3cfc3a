"""The spine: the hierarchy that measurements are taken on, as arrays.

Axes: level ``l`` counted from the top; ``g`` geounits of a level. The geounits of a level are ordered so
that the children of one parent, and hence the leaves below any geounit, are consecutive.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import mul

import numpy as np

from opendas.arrays import Codes, Ints
from opendas.errors import BudgetError, GeographyError


@dataclass(frozen=True, slots=True, eq=False)
class SpineLevel:
    """One geolevel of a spine."""

    name: str  # geolevel
    geocodes: Codes  # (g,): code of each geounit, unique within the level
    parent: Ints  # (g,): index of each geounit's parent in the level above, non-decreasing; zeros at the top
    official: bool = True  # its geounits are those of the published geography, undivided
    # (g,): where official geounits are divided here and nowhere above: number of the one that each geounit is
    # a part of, counted in order. The parts of one lie side by side and have one parent.
    whole: Ints | None = None

    def __post_init__(self) -> None:
        whole = self.whole
        if whole is not None and len(whole) and (whole[0] != 0 or np.any(np.diff(whole) < 0)):
            raise GeographyError(f"geolevel {self.name!r}: the parts of one geounit do not lie side by side.")

    def __len__(self) -> int:
        return len(self.geocodes)


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """What the geounits of one level get of the budget, as multiples of the level's share."""

    multiples: tuple[Fraction, ...]  # distinct multiples, ascending, >= 0
    which: Ints  # (g,): index into `multiples` of each geounit

    def __post_init__(self) -> None:
        if list(self.multiples) != sorted(set(self.multiples)) or (self.multiples and self.multiples[0] < 0):
            raise BudgetError("multiples of a budget share are distinct, ascending and not negative.")
        if len(self.which) and not 0 <= self.which.min() <= self.which.max() < len(self.multiples):
            raise BudgetError("a geounit has no multiple of its level's budget share.")

    @classmethod
    def of(cls, multiples: Sequence[Fraction], which: Ints) -> Shares | None:
        """Return the shares of geounits with ``multiples[which]``; None if each is one.

        `multiples` may repeat and be in any order.
        """
        used = {multiples[k] for k in np.unique(which)}
        if used == {Fraction(1)}:
            return None
        distinct = sorted(used)
        position = {multiple: i for i, multiple in enumerate(distinct)}
        number = np.array([position.get(multiple, -1) for multiple in multiples], dtype=np.int64)
        return cls(tuple(distinct), number[which])

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Shares)
            and self.multiples == other.multiples
            and np.array_equal(self.which, other.which)
        )

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, eq=False)
class Spine:
    """Geolevels from the top down to the leaves."""

    # Top first. The top level may have several geounits, each a root of its own.
    levels: tuple[SpineLevel, ...]
    leaf_order: Ints  # (leaves,): position in the frame of each leaf of the spine
    # Per level, the geounits' own multiples of the level's budget share; ``None`` means one each. Along every
    # path from a root to a leaf, level share times multiple sums to one.
    shares: tuple[Shares | None, ...]

    def __repr__(self) -> str:
        return f"Spine({', '.join(f'{len(level):,} {level.name}' for level in self.levels)})"

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
            whole = level.whole
            if whole is not None and np.any((np.diff(whole) == 0) & (np.diff(parent) != 0)):
                raise GeographyError(f"geolevel {level.name!r}: the parts of one geounit have two parents.")

    @property
    def names(self) -> tuple[str, ...]:
        """Geolevel names, top first."""
        return tuple(level.name for level in self.levels)

    @property
    def leaf(self) -> SpineLevel:
        """The leaf level."""
        return self.levels[-1]

    @property
    def place_of_leaf(self) -> Ints:
        """Position on the spine of each leaf of the frame, int64 (leaves,): the inverse of `leaf_order`."""
        position = np.empty(len(self.leaf_order), dtype=np.int64)
        position[self.leaf_order] = np.arange(len(position))
        return position

    def index(self, name: str) -> int:
        """Return the position of a geolevel, 0 at the top."""
        if name not in self.names:
            raise GeographyError(f"the spine has no geolevel {name!r}; it has {', '.join(self.names)}.")
        return self.names.index(name)

    def child_starts(self, level: int) -> Ints:
        """Return int64 (g + 1,): geounit ``i`` of `level` has children ``starts[i]:starts[i + 1]``."""
        below = self.levels[level + 1]
        return np.searchsorted(below.parent, np.arange(len(self.levels[level]) + 1)).astype(np.int64)

    def starts_at(self, level: int, below: int) -> Ints:
        """Return int64 (g + 1,): geounit ``i`` of `level` has ``starts[i]:starts[i + 1]`` at `below`."""
        starts = np.arange(len(self.levels[below]) + 1, dtype=np.int64)
        for upper in range(below - 1, level - 1, -1):
            starts = starts[self.child_starts(upper)]
        return starts

    def leaf_starts(self, level: int) -> Ints:
        """Return int64 (g + 1,): below geounit ``i`` of `level` lie leaves ``starts[i]:starts[i + 1]``."""
        return self.starts_at(level, len(self.levels) - 1)

    def same_leaves(self, level: int, area: Ints, areas: int) -> Ints:
        """Return the geounit of a level that has the same leaves as each area, int64 (areas,); -1 for none.

        `area` (leaves,): area of each leaf of the frame; -1 for none.
        """
        starts = self.leaf_starts(level)
        sizes = np.diff(starts)
        of_leaf = np.repeat(np.arange(len(sizes)), sizes)[self.place_of_leaf]
        inside = area >= 0
        lowest = np.full(areas, len(sizes), dtype=np.int64)
        highest = np.full(areas, -1, dtype=np.int64)
        np.minimum.at(lowest, area[inside], of_leaf[inside])
        np.maximum.at(highest, area[inside], of_leaf[inside])
        whole = sizes[np.minimum(lowest, len(sizes) - 1)] == np.bincount(area[inside], minlength=areas)
        return np.where((lowest == highest) & whole, lowest, -1)

    def multiples(self, level: int) -> tuple[tuple[Fraction, ...], Ints]:
        """Return the distinct multiples of a level's share, and which of them each geounit has, (g,)."""
        shares = self.shares[level]
        if shares is None:
            return (Fraction(1),), np.zeros(len(self.levels[level]), dtype=np.int64)
        return shares.multiples, shares.which

    def check_paths(self, level_shares: Sequence[Fraction]) -> None:
        """Check that the shares along every path from root to leaf sum to exactly one.

        Notes
        -----
        Cumings-Menon et al. (2024), Theorem 3: what bypassing does not change.
        """
        kinds, path = self.paths()
        sums = [sum(map(mul, level_shares, multiples), Fraction(0)) for multiples in kinds]
        wrong = np.flatnonzero(np.array([total != 1 for total in sums])[path])
        if len(wrong):
            code, total = self.leaf.geocodes[wrong[0]], sums[int(path[wrong[0]])]
            raise BudgetError(f"the shares on the path to leaf {code.decode()} sum to {total}, not to 1.")

    def path_kinds(self) -> tuple[tuple[Fraction, ...], ...]:
        """Return the distinct multiples of the levels' shares along the paths from a root to a leaf.

        Returns: one multiple per level, top first; in descending order.
        """
        return tuple(sorted(self.paths()[0], reverse=True))

    def paths(self) -> tuple[list[tuple[Fraction, ...]], Ints]:
        """Return the distinct multiples of shares along paths, top first, and the path of each leaf, (L,)."""
        found: list[tuple[Fraction, ...]] = [()]
        path = np.zeros(1, dtype=np.int64)  # index into `found` of each geounit of the level above
        for number, level in enumerate(self.levels):
            above = path[level.parent] if number else np.zeros(len(level), dtype=np.int64)
            multiples, which = self.multiples(number)
            pairs, path = np.unique(above * len(multiples) + which, return_inverse=True)
            kinds = [divmod(pair, len(multiples)) for pair in pairs.tolist()]
            found = [(*found[before], multiples[own]) for before, own in kinds]
        return found, path

    def canonical_bytes(self) -> Iterator[bytes]:
        """Yield a canonical serialisation of the (public) spine, for the plan digest.

        The width in which a level's codes are held is part of it, and kept by ``spine.parquet``: codes of
        divided geounits are held wider than they are long, and noise was derived from such digests.
        """
        for level, shares in zip(self.levels, self.shares, strict=True):
            yield level.name.encode() + b"\0"
            yield np.array([len(level), level.geocodes.dtype.itemsize], dtype="<i8").tobytes()
            yield level.geocodes.tobytes()
            yield level.parent.astype("<i8", copy=False).tobytes()
            if not level.official:
                yield b"made"
            if level.whole is not None:
                yield b"whole" + level.whole.astype("<i8", copy=False).tobytes()
            if shares is None:
                yield b"equal"
            else:
                yield ",".join(str(multiple) for multiple in shares.multiples).encode() + b"\0"
                yield shares.which.astype("<i8", copy=False).tobytes()

    def digest(self) -> str:
        """Return the SHA-256 of the canonical serialisation, in hexadecimal."""
        digest = hashlib.sha256()
        for part in self.canonical_bytes():
            digest.update(part)
        return digest.hexdigest()
