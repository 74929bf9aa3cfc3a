"""Nested partitions of the leaves: what the steps of a recipe divide and regroup before it becomes a spine.

No step divides a leaf. Cumings-Menon et al. (2024), sections 1 (AIAN spine) and 6 (production settings).
Axes: ``b`` leaves in the order of the frame; ``k`` geounits of one level, numbered in the order in which they
will stand on the spine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Codes, Ints, rank_in_run
from opendas.errors import ConfigError, Finding, GeographyError
from opendas.geography.frame import Frame, numbered
from opendas.geography.spine import Spine, SpineLevel


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """One level: the leaves divided into geounits."""

    name: str  # geolevel
    label: Ints  # (b,): number of the geounit that each leaf lies in; every number from 0 occurs
    codes: Codes  # (k,): geocode of each geounit
    official: bool = True  # the geounits are those of the published geography, undivided
    # (k,): at the topmost level with parts of official geounits: number of the one that each is a part of.
    whole: Ints | None = None

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True, slots=True, eq=False)
class Partitions:
    """The levels of a spine to be, the top first and the leaves last."""

    frame: Frame
    levels: tuple[Partition, ...]  # the last one has one geounit a leaf

    @property
    def names(self) -> tuple[str, ...]:
        """Geolevel names, top first."""
        return tuple(partition.name for partition in self.levels)

    def index(self, name: str, why: str) -> int:
        """Return the place of a level."""
        if name not in self.names:
            raise ConfigError(
                f"[geography] spine: {why} needs the level {name!r}, which the spine does not have at that "
                f"step; it has {', '.join(self.names)}."
            )
        return self.names.index(name)

    def inserted(self, position: int, partition: Partition) -> Partitions:
        """Return the partitions with one more level at `position`."""
        if partition.name in self.names:
            raise ConfigError(
                f"[geography] spine: two levels would have the name {partition.name!r}; give the step "
                "another with name."
            )
        return replace(self, levels=(*self.levels[:position], partition, *self.levels[position:]))

    def changed(self, position: int, *levels: Partition) -> Partitions:
        """Return the partitions with the levels from `position` on replaced by `levels`, one for one."""
        rest = self.levels[position + len(levels) :]
        return replace(self, levels=(*self.levels[:position], *levels, *rest))

    def without(self, position: int) -> Partitions:
        """Return the partitions without the level at `position`."""
        return replace(self, levels=(*self.levels[:position], *self.levels[position + 1 :]))

    def spine(self) -> Spine:
        """Return the finished spine, every budget share its level's own.

        Raises `GeographyError` if a geounit lies in two parents.
        """
        order = np.lexsort(tuple(partition.label for partition in reversed(self.levels)))
        levels: list[SpineLevel] = []
        above = np.zeros(len(order), dtype=np.int64)
        for partition in self.levels:
            label = partition.label[order]
            new = np.concatenate([[True], (label[1:] != label[:-1]) | (above[1:] != above[:-1])])
            first = np.flatnonzero(new)
            found = label[first]
            if len(found) != len(partition):
                _refuse_two_parents(partition, found)
            parent = above[first] if levels else np.zeros(len(first), dtype=np.int64)
            whole = None if partition.whole is None else _side_by_side(partition.whole[found], parent)
            levels.append(
                SpineLevel(partition.name, partition.codes[found], parent, partition.official, whole)
            )
            above = np.cumsum(new) - 1
        return Spine(tuple(levels), order.astype(np.int64), (None,) * len(levels))


def _side_by_side(whole: Ints, parent: Ints) -> Ints | None:
    """Number divided geounits in order; None if the parts of one are apart or have several parents.

    A later step that regroups the levels above may have torn them apart: then no total is theirs together.
    """
    new = np.diff(whole, prepend=-1) != 0
    if int(new.sum()) > len(np.unique(whole)) or bool(np.any(~new[1:] & (np.diff(parent) != 0))):
        return None
    return (np.cumsum(new) - 1).astype(np.int64)


def _refuse_two_parents(partition: Partition, found: Ints) -> None:
    label, counts = np.unique(found, return_counts=True)
    codes = partition.codes[label[counts > 1][:20]]
    raise GeographyError(
        f"each geounit of level {partition.name!r} must lie in one parent.",
        [
            Finding("frame", None, partition.name, f"{bytes(code).decode()} lies in more than one parent")
            for code in codes
        ],
    )


def combine(columns: Sequence[npt.NDArray[Any]]) -> Ints:
    """Number the combinations of values of several columns, in lexicographic order.

    - `columns` (b,): integers or bytes.
    - Returns (b,): equal where all columns are equal; every number from 0 occurs.
    """
    found: Ints | None = None
    for column in columns:
        label = numbered(column)[1]
        if found is None:
            found = label
        else:
            found = numbered(found * (int(label.max()) + 1) + label)[1]
    if found is None:
        raise ValueError("there is no column to combine")
    return found


def official_partitions(frame: Frame) -> Partitions:
    """Return the partitions of the leaves by the official geolevels of a frame."""
    levels = []
    for name in frame.geolevels:
        codes, label = numbered(frame.codes(name))
        levels.append(Partition(name, label, codes.astype(frame.codes(name).dtype)))
    return Partitions(frame, tuple(levels))


def standard_spine(frame: Frame) -> Spine:
    """Build the spine of the official geolevels."""
    return official_partitions(frame).spine()


def _above_leaves(partitions: Partitions, level: str, why: str) -> int:
    """Return the place of a level that a step divides; leaves are not divided."""
    position = partitions.index(level, why)
    if position == len(partitions.levels) - 1:
        raise ConfigError(f"[geography] spine: {level!r} is the leaf level, and leaves are not divided.")
    return position


def divide_into_parts(partitions: Partitions, top: str, inside: Bools) -> Partitions:
    """Divide every geounit from the level `top` down, but no leaf, into a part inside and one outside.

    The AIAN spine (section 1 of the paper), where `inside` marks the leaves in AIAN areas. A geounit on one
    side only is that part;
    an empty part does not exist. Geocodes get ``1`` (inside) or ``0`` in front, as in production.

    `inside` (b,).
    """
    position = _above_leaves(partitions, top, "the division into parts")
    if any(partition.whole is not None for partition in partitions.levels):
        raise ConfigError(
            "[geography] spine: a spine can be divided into parts only once; it is divided already."
        )
    # What parts hold together may be exact: of official geounits only.
    if not partitions.levels[position].official:
        raise ConfigError(
            f"[geography] spine: the step aian comes before the steps that make or divide {top!r}, because "
            "it divides official geounits."
        )
    levels = []
    for number, partition in enumerate(partitions.levels[position:-1]):
        pair = 2 * partition.label + inside
        found, label = numbered(pair)
        mark = np.where(found % 2 == 1, b"1", b"0").astype("S1")
        codes = np.char.add(mark, partition.codes[found // 2])
        whole = (found // 2).astype(np.int64) if number == 0 else None
        levels.append(Partition(partition.name, label, codes, official=False, whole=whole))
    return partitions.changed(position, *levels)


def split(partitions: Partitions, level: str, key: Ints, name: str | None = None) -> Partitions:
    """Divide the geounits of a level, and of those between it and the leaves, where `key` differs.

    - `key` (b,): for instance :func:`combine` of entity codes.
    - `name`: new name of the level.
    """
    position = _above_leaves(partitions, level, "the step split")
    if name is not None and name != level and name in partitions.names:
        raise ConfigError(f"[geography] spine: two levels would have the name {name!r}; give another.")
    levels = [_divided(partition, key) for partition in partitions.levels[position:-1]]
    if name is not None:
        levels[0] = replace(levels[0], name=name)
    return partitions.changed(position, *levels)


def _divided(partition: Partition, key: Ints) -> Partition:
    """Divide a level's geounits by a key; divided ones are numbered ``.1``, ``.2`` ... behind their code.

    If such a code is there already, all are numbered.
    """
    pairs, label = numbered(partition.label * (int(key.max()) + 1) + key)
    old = pairs // (int(key.max()) + 1)
    if len(old) == len(partition):
        return partition
    number = rank_in_run(old) + 1
    alone = (number == 1) & np.append(number[1:] == 1, True)
    suffix = np.char.add(b".", number.astype("S10"))
    whole = None if partition.whole is None else partition.whole[old]
    with_number = np.char.add(partition.codes[old], suffix)
    codes = np.where(alone, partition.codes[old], with_number)
    if len(np.unique(codes)) < len(codes):
        codes = with_number
    return Partition(partition.name, label, codes, official=False, whole=whole)


def insert_intersections(partitions: Partitions, above: str, key: Ints, name: str) -> Partitions:
    """Insert a level above `above`: the intersections of the geounits there with the areas of `key`.

    Geounits from `above` down, but no leaf, are divided where they lie in several of the new ones, so that
    the levels nest. The DHC's *prims* and *tract subsets* are made this way (section 6 of the paper).
    """
    position = partitions.index(above, f"the step intersect ({name})")
    if position == 0:
        raise ConfigError(f"[geography] spine: {above!r} is the topmost level; no level can stand above it.")
    parent = partitions.levels[position - 1]
    label = combine([parent.label, key])
    made = _numbered_within(name, parent, label)
    lower = [_divided(partition, label) for partition in partitions.levels[position:-1]]
    return partitions.changed(position, *lower).inserted(position, made)


def insert_groups(partitions: Partitions, level: str, number: Ints, name: str) -> Partitions:
    """Insert a level above `level`, given the group of each of its geounits, int64 (k,).

    Geounits of different parents are never in one group, whatever their numbers.
    """
    position = partitions.index(level, f"the step that makes {name}")
    parent = partitions.levels[position - 1]
    label = combine([parent.label, number[partitions.levels[position].label]])
    return partitions.inserted(position, _numbered_within(name, parent, label))


def _numbered_within(name: str, parent: Partition, label: Ints) -> Partition:
    """Make a level whose geounits are coded as the parent's geocode, a dash, and a number from 1.

    `label` numbers the new geounits, those of one parent after those of the parents before it.
    """
    above = np.empty(int(label.max()) + 1, dtype=np.int64)
    above[label] = parent.label
    number = rank_in_run(above) + 1
    width = len(str(int(number.max())))
    text = np.char.zfill(number.astype(f"U{width}"), width).astype(f"S{width}")
    codes = np.char.add(np.char.add(parent.codes[above], b"-"), text)
    return Partition(name, label, codes, official=False)
