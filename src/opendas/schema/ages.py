"""Ages by sex in five-year groups; apart, for what sees the truth and what does not."""

from __future__ import annotations

import numpy as np

from opendas.arrays import Ints
from opendas.schema.attributes import Schema
from opendas.schema.histogram import Histogram

OLDEST_GROUP = 85
"""Age from which five-year groups are one, open group."""

GROUP_STARTS = tuple(range(0, OLDEST_GROUP + 1, 5))
GROUP_NAMES = tuple(f"{age}+" if age == OLDEST_GROUP else f"{age}-{age + 4}" for age in GROUP_STARTS)


def has_ages(schema: Schema) -> bool:
    """Whether a schema has two sexes, and single years of age from 0."""
    levels = {attribute.name: attribute.levels for attribute in schema.attributes}
    ages = levels.get("age", ())
    return (
        len(levels.get("sex", ())) == 2
        and len(ages) > OLDEST_GROUP
        and ages == tuple(str(age) for age in range(len(ages)))
    )


def five_year_groups(schema: Schema, counts: Histogram) -> Ints:
    """Count people by sex and five-year group, int64 (2, 18), over all rows of a histogram."""
    codes = dict(zip(schema.names, schema.codes(counts.cells), strict=True))
    group = np.minimum(codes["age"] // 5, len(GROUP_STARTS) - 1)
    found = np.zeros((2, len(GROUP_STARTS)), dtype=np.int64)
    np.add.at(found, (codes["sex"], group), counts.counts)
    return found
