"""Workloads: many query groups from one declaration, such as all prefixes of an ordered attribute.

A workload is a list of partitions of the levels of one attribute. Each becomes a recode and a query group, so
its sensitivity is that of every query group, and its noise, account and proof are, too
(docs/proofs/composition.md, section 2). Nothing is measured that is not a partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints
from opendas.errors import ConfigError, nearest
from opendas.parts import WORKLOADS, Origin, outside_part
from opendas.schema.attributes import Attribute, Recode, label_runs

MOST = 1 << 16
"""Noise addresses have 16 bits for a query group."""


class LevelPartitions(Protocol):
    """A workload: which partitions of an ordered list of levels are measured."""

    @property
    def name(self) -> str:
        """Its name in product files, as ``kind``."""
        ...

    def partitions(self, levels: int, /) -> Sequence[npt.ArrayLike]:
        """Return the partitions of so many levels.

        Returns
        -------
        sequence of int (levels,)
            For each partition, the group of every level: 0, 1, ..., none left out.
        """
        ...


class Prefixes:
    """All prefixes: the first level and the rest, the first two and the rest, and so on."""

    name = "prefixes"

    def partitions(self, levels: int) -> list[Ints]:
        """Return ``levels - 1`` partitions into two."""
        return [(np.arange(levels) > last).astype(np.int64) for last in range(levels - 1)]


class Dyadic:
    """A tree of ranges: halves, quarters, and so on down to ranges of two levels."""

    name = "dyadic"

    def partitions(self, levels: int) -> list[Ints]:
        """Return one partition for each depth of the tree, coarsest first."""
        depth = max(levels - 1, 1).bit_length()
        found = [np.arange(levels) >> bits for bits in range(depth - 1, 0, -1)]
        return [each for each in found if each[-1] > 0]


OWN_WORKLOADS: Mapping[str, LevelPartitions] = MappingProxyType(
    {each.name: each for each in (Prefixes(), Dyadic())}
)


def find_workload(kind: str) -> tuple[LevelPartitions, Origin | None]:
    """Return a workload by name and, if it is not ours, where it comes from."""
    if kind in OWN_WORKLOADS:
        return OWN_WORKLOADS[kind], None
    part, origin = outside_part(WORKLOADS, kind, OWN_WORKLOADS)
    if not callable(getattr(part, "partitions", None)):
        raise ConfigError(f"{kind!r} is not a workload: it needs a method partitions(levels).")
    return part, origin


def partitions_of(kind: str, levels: int) -> Sequence[npt.ArrayLike]:
    """Return the partitions of a workload; what another package does wrong is a `ConfigError`."""
    try:
        return tuple(find_workload(kind)[0].partitions(levels))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the workload {kind!r} failed with {type(error).__name__} for {levels} levels: its method "
            "partitions must return a list of partitions."
        ) from error


def inside_or_out(labels: Sequence[str], order: Sequence[str]) -> Ints:
    """Return the partition of levels into those that are listed and the rest."""
    for label in labels:
        if label not in order:
            raise ConfigError(f"{label!r} is not a level; {nearest(label, order)}")
    return np.array([int(level not in set(labels)) for level in order], dtype=np.int64)


def recodes_of(name: str, attribute: Attribute, partitions: Sequence[npt.ArrayLike]) -> tuple[Recode, ...]:
    """Return a recode for each partition, ``name 1``, ``name 2``, ...; groups are named by their levels."""
    found = []
    for number, given in enumerate(partitions, start=1):
        rows = np.asarray(given)
        groups = np.unique(rows) if rows.shape == (len(attribute),) and rows.dtype.kind in "iu" else None
        if groups is None or not np.array_equal(groups, np.arange(len(groups))):
            raise ConfigError(
                f"partition {number} of {name!r} does not divide the {len(attribute)} levels of "
                f"{attribute.name!r}: expected one whole number for each level, 0, 1, ... without a gap."
            )
        members = [
            tuple(level for level, row in zip(attribute.levels, rows.tolist(), strict=True) if row == group)
            for group in groups.tolist()
        ]
        labelled = tuple((" ".join(label_runs(levels, attribute.levels)), levels) for levels in members)
        found.append(Recode(f"{name} {number}", attribute.name, labelled))
    if not 0 < len(found) < MOST:
        raise ConfigError(f"{name!r} has {len(found)} partitions; expected 1 to {MOST - 1}.")
    return tuple(found)
