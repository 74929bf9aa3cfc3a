"""Count released people by sex and age, from the microdata alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from opendas.arrays import Ints
from opendas.geography.frame import Frame
from opendas.schema.ages import GROUP_NAMES, five_year_groups, has_ages
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product

MOST_AREAS = 12
"""Largest number of geounits of a geolevel that each get a pyramid."""


@dataclass(frozen=True, slots=True)
class Pyramid:
    """Released people of a geounit by sex and five-year age group."""

    geolevel: str
    geocode: str
    name: str
    sexes: tuple[str, ...]
    groups: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]  # for each sex, by group

    def to_dict(self) -> dict[str, object]:
        """Return plain values for JSON."""
        lists = {"sexes": list(self.sexes), "groups": list(self.groups)}
        return {**asdict(self), **lists, "counts": [list(side) for side in self.counts]}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote."""
        named = {key: str(record[key]) for key in ("geolevel", "geocode", "name")}
        sexes, groups = tuple(map(str, record["sexes"])), tuple(map(str, record["groups"]))
        counts = tuple(tuple(map(int, side)) for side in record["counts"])
        if len(counts) != len(sexes) or any(len(side) != len(groups) for side in counts):
            raise ValueError("a population pyramid is incomplete")
        return cls(**named, sexes=sexes, groups=groups, counts=counts)


def pyramids(product: Product, frame: Frame, parts: Iterable[tuple[Ints, Histogram]]) -> tuple[Pyramid, ...]:
    """Return pyramids of the two top official geolevels, of a level only if it has few geounits.

    - `parts`, iterable of (int64 (k,), Histogram): positions of leaves in the frame, each once, and the
      released counts of those leaves.
    - Returns: empty for a product without two sexes and single years of age.
    """
    if not has_ages(product.schema):
        return ()
    both = [frame.grouping(geolevel) for geolevel in frame.geolevels[:2]]
    groupings = [grouping for grouping in both if len(grouping) <= MOST_AREAS]
    counts = [np.zeros((len(grouping), 2, len(GROUP_NAMES)), dtype=np.int64) for grouping in groupings]
    for leaves, table in parts:
        for grouping, found in zip(groupings, counts, strict=True):
            unit = grouping.of_leaf[leaves]
            for number in np.unique(unit[unit >= 0]).tolist():
                here = table.take(np.flatnonzero(unit == number))
                found[number] += five_year_groups(product.schema, here)
    sexes = product.schema.attribute("sex").levels
    return tuple(
        Pyramid(
            grouping.geolevel,
            geocode.decode(),
            frame.names.get(grouping.geolevel, {}).get(geocode.decode(), ""),
            sexes,
            GROUP_NAMES,
            tuple(tuple(side) for side in table.tolist()),
        )
        for grouping, found in zip(groupings, counts, strict=True)
        for geocode, table in zip(grouping.geocodes, found, strict=True)
    )
