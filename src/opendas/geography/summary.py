"""What a spine looks like: geounits and fan-outs by level, and how far entities lie from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from opendas.geography.frame import Frame
from opendas.geography.off_spine_distance import EntityDistances, entity_distances
from opendas.geography.partitions import standard_spine
from opendas.geography.spine import Spine

PERCENTS = (0, 10, 25, 50, 75, 90, 100)
"""Percentiles that stand for a distribution."""


@dataclass(frozen=True, slots=True)
class LevelSummary:
    """One level of a spine."""

    geolevel: str
    geounits: int
    max_fanout: int  # most children of one geounit; 0 for leaves
    single_child_parents: int  # geounits with one child
    bypassed: int  # geounits without budget, because their parent took over their share
    fanouts: tuple[int, ...]  # numbers of children at :data:`PERCENTS` of the geounits; empty for leaves
    official: bool = True  # the geounits are those of the published geography, undivided


@dataclass(frozen=True, slots=True)
class EntitySummary:
    """The off-spine distances of one entity category."""

    category: str
    count: int  # entities with at least one leaf
    mean_distance: float
    max_distance: int
    distances: tuple[int, ...]  # at :data:`PERCENTS` of the entities
    # standard_mean, standard_max, standard: the same from the spine of the official geolevels.
    standard_mean: float
    standard_max: int
    standard: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SpineSummary:
    """A spine in numbers; public."""

    levels: tuple[LevelSummary, ...]  # top first
    entities: tuple[EntitySummary, ...]  # categories of which the frame has at least one entity

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""

        def plain(row: LevelSummary | EntitySummary) -> dict[str, Any]:
            return {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in asdict(row).items()
            }

        return {
            "levels": [plain(level) for level in self.levels],
            "entities": [plain(entity) for entity in self.entities],
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Sequence[Mapping[str, Any]]]) -> Self:
        """Read what :meth:`to_dict` wrote."""

        def frozen(row: Mapping[str, Any]) -> dict[str, Any]:
            return {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}

        return cls(
            tuple(LevelSummary(**frozen(row)) for row in record["levels"]),
            tuple(EntitySummary(**frozen(row)) for row in record["entities"]),
        )


def summarise(spine: Spine, frame: Frame) -> SpineSummary:
    """Describe a spine: its levels, and the distance of every entity of the frame, before and after."""
    official = standard_spine(frame)
    return SpineSummary(
        tuple(_level(spine, number) for number in range(len(spine.levels))),
        tuple(
            _entity(*(entity_distances(one, frame.codes(category), category) for one in (spine, official)))
            for category in frame.categories
        ),
    )


def _percentiles(values: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[int, ...]:
    return tuple(int(value) for value in np.percentile(values, PERCENTS, method="lower"))


def _level(spine: Spine, number: int) -> LevelSummary:
    level, shares = spine.levels[number], spine.shares[number]
    bypassed = 0
    if shares is not None and shares.multiples[0] == 0:
        bypassed = int((shares.which == 0).sum())
    if number == len(spine.levels) - 1:
        return LevelSummary(level.name, len(level), 0, 0, bypassed, (), level.official)
    fanout = np.diff(spine.child_starts(number))
    alone = int((fanout == 1).sum())
    most, percentiles = int(fanout.max()), _percentiles(fanout)
    return LevelSummary(level.name, len(level), most, alone, bypassed, percentiles, level.official)


def _entity(found: EntityDistances, standard: EntityDistances) -> EntitySummary:
    return EntitySummary(
        found.category,
        len(found),
        found.mean,
        found.maximum,
        _percentiles(found.distance),
        standard.mean,
        standard.maximum,
        _percentiles(standard.distance),
    )
