"""Optimised block groups: Algorithm 2, first part, and other levels of groups of geounits that are alike.

A file of its own so that the algorithm is found by its name. Axes: ``b`` leaves in the order of the frame.
"""

from __future__ import annotations

import itertools
from math import isqrt

import numpy as np

from opendas.arrays import Ints, rank_in_run
from opendas.errors import ConfigError
from opendas.geography.frame import numbered
from opendas.geography.partitions import Partition, Partitions, combine, insert_groups


def largest_group(members: int, fanout_cutoff: int, *, off_by_one: bool = False) -> int:
    """Return how many of a geounit's `members` one group may hold: ``sqrt(members) + fanout_cutoff``.

    The smallest possible largest fan-out of a geounit and its groups is the square root, rounded up (section
    4 of the paper). Production let groups of blocks grow to one more; `off_by_one` reproduces it.

    Notes
    -----
    Cumings-Menon et al. (2024), Algorithm 2: of blocks in a tract, and of tracts in a county.
    """
    return isqrt(members) + fanout_cutoff + int(off_by_one)


def group(
    partitions: Partitions,
    level: str,
    key: Ints,
    name: str,
    *,
    fanout_cutoff: int,
    off_by_one: bool = False,
) -> Partitions:
    """Insert a level of groups above `level`: geounits of one parent whose key is the same, in order.

    - `key` (b,): geounits of `level` are alike if they hold the same set of keys.
    - `fanout_cutoff`, >= 1.

    Notes
    -----
    Cumings-Menon et al. (2024), Algorithm 2, of any level: groups are filled in order of geocode up to
    :func:`largest_group`, and never hold geounits that are not alike.
    """
    position = partitions.index(level, f"the step that makes {name}")
    if position == 0:
        raise ConfigError(f"[geography] spine: {level!r} is the topmost level and cannot be grouped.")
    if fanout_cutoff < 1:
        raise ConfigError("[geography] spine: fanout_cutoff must be at least 1.")
    partition, parent = partitions.levels[position], partitions.levels[position - 1]
    alike, first = _kinds(partition, key)
    above = parent.label[first]
    order = np.lexsort((alike, above))  # stable: geounits that are alike stay in order
    rank = rank_in_run(above[order] * (int(alike.max()) + 1) + alike[order])
    members = np.bincount(above, minlength=len(parent))
    largest = np.array(
        [largest_group(n, fanout_cutoff, off_by_one=off_by_one) for n in members.tolist()], dtype=np.int64
    )
    new = rank % largest[above[order]] == 0  # runs begin at rank 0
    number = np.empty(len(partition), dtype=np.int64)
    number[order] = np.cumsum(new) - 1
    return insert_groups(partitions, level, number, name)


def block_groups(
    partitions: Partitions,
    key: Ints,
    *,
    name: str = "block_group",
    fanout_cutoff: int = 12,
    off_by_one: bool = False,
) -> Partitions:
    """Replace the level `name` above the leaves by groups of leaves with the same key.

    The key numbers the combinations of off-spine entities, int64 (b,).

    Notes
    -----
    Cumings-Menon et al. (2024), Algorithm 2: its block groups.
    """
    if name in partitions.names:
        position = partitions.names.index(name)
        if position != len(partitions.levels) - 2:
            raise ConfigError(
                f"[geography] spine: block_groups makes the level directly above the leaves, and {name!r} "
                "is the name of another level; give the step another name."
            )
        partitions = partitions.without(position)
    leaf = partitions.levels[-1].name
    return group(partitions, leaf, key, name, fanout_cutoff=fanout_cutoff, off_by_one=off_by_one)


def _kinds(partition: Partition, key: Ints) -> tuple[Ints, Ints]:
    """Number the geounits' sets of keys in order, int64 (k,); and return one leaf of each geounit."""
    if len(partition) == len(key):  # leaves
        leaf = np.argsort(partition.label)
        return combine([key[leaf]]), leaf
    width = int(key.max()) + 1
    pairs = numbered(partition.label * width + key)[0]
    geounit, value = pairs // width, pairs % width
    starts = np.searchsorted(geounit, np.arange(len(partition) + 1))
    sets = [tuple(value[a:b].tolist()) for a, b in itertools.pairwise(starts)]
    position = {keys: number for number, keys in enumerate(sorted(set(sets)))}
    first = np.empty(len(partition), dtype=np.int64)
    first[partition.label] = np.arange(len(key))  # any leaf of the geounit
    return np.array([position[keys] for keys in sets], dtype=np.int64), first
