"""Bound how far the records of one protected unit can change the answers of a query group.

If a unit has ``k`` records, at most ``m`` of them in one row of a group at a geolevel, their vector of counts
has squared length at most ``k m``. Argument: ``docs/proofs/units.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from opendas.schema.declarations import ContributionBound, Distinct
from opendas.schema.product import Product


@dataclass(frozen=True, slots=True)
class Contribution:
    """Largest contribution of one protected unit."""

    bound: ContributionBound | None = None  # as the run file declares it; None if a unit is one record
    leaf: str = ""  # the lowest geolevel, at which each leaf is a geounit
    # Query group -> largest number of schema cells in one of its rows.
    cells: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, bound: ContributionBound | None, product: Product, leaf: str) -> Contribution:
        """Return the contribution of a product's units; `leaf` is the lowest geolevel of the run."""
        if bound is None:
            return ONE_RECORD
        groups = {name: product.workload.group(name) for name in product.query_names}
        cells = {name: int(np.bincount(group.row_of_cell).max()) for name, group in groups.items()}
        return cls(bound, leaf, cells)

    @property
    def records(self) -> int:
        """Most records of one unit."""
        return 1 if self.bound is None else self.bound.at_most

    @property
    def distinct(self) -> Distinct | None:
        """How the records of a unit must differ."""
        return None if self.bound is None else self.bound.distinct

    def together(self, geolevel: str, query: str) -> int:
        """Return the most records of one unit in a row of a query group, in one geounit."""
        if self.distinct is None or (self.distinct is not Distinct.CELL and geolevel != self.leaf):
            return self.records
        return 1 if self.distinct is Distinct.LEAF else min(self.records, self.cells[query])

    def of_one_record(self, geolevel: str, query: str, *, gaussian: bool) -> Fraction:
        """Return the share of a unit's loss by one query group that a change of one record causes.

        One record of a unit is replaced in the input. If records may be alike, at most one counted record
        changes. If they must differ, up to two change, because the new one may displace another.
        """
        replaced = min(self.records, 1 if self.distinct is None else 2)
        if not gaussian:
            return Fraction(replaced, self.records)
        together = self.together(geolevel, query)
        return Fraction(replaced * min(replaced, together), self.records * together)

    def plain(self) -> dict[str, object]:
        """Return its part of a digest; empty if a unit is one record."""
        if self.records == 1:
            return {}
        return {"unit_records": self.records, "distinct": self.distinct and self.distinct.value}


ONE_RECORD = Contribution()
"""Contribution of a unit of one record."""
