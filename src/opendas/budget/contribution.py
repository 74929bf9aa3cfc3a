"""How far the records of one protected unit can move the answers of a query group.

With ``k`` records of a unit, at most ``m`` of them in one row of a group at a geolevel, its records give that
group a vector of counts whose squared length is at most ``k m``. Argument: ``docs/proofs/units.md``.
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
    """What one protected unit contributes at most.

    Parameters
    ----------
    bound : ContributionBound or None
        As the run file declares it; None: a unit is one record.
    leaf : str
        The lowest geolevel, where records in different leaves are in different geounits.
    cells : mapping of str to int
        Query group -> most cells of the schema that one of its rows counts.
    """

    bound: ContributionBound | None = None
    leaf: str = ""
    cells: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, bound: ContributionBound | None, product: Product, leaf: str) -> Contribution:
        """Return what units of a product contribute; `leaf` is the lowest geolevel of the run."""
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
        """In what they differ."""
        return None if self.bound is None else self.bound.distinct

    def together(self, geolevel: str, query: str) -> int:
        """Return how many records of one unit a row of a query group counts at most, in one geounit."""
        if self.distinct is None or (self.distinct is not Distinct.CELL and geolevel != self.leaf):
            return self.records
        return 1 if self.distinct is Distinct.LEAF else min(self.records, self.cells[query])

    def of_one_record(self, geolevel: str, query: str, *, gaussian: bool) -> Fraction:
        """Return the part of a unit's loss by one query group that the change of one record makes up.

        One record of a unit is replaced in the input. Where records may be alike, then at most one of those
        that are counted is replaced. Where they must differ, up to two are: the new one may stand in the way
        of another.
        """
        replaced = min(self.records, 1 if self.distinct is None else 2)
        if not gaussian:
            return Fraction(replaced, self.records)
        together = self.together(geolevel, query)
        return Fraction(replaced * min(replaced, together), self.records * together)

    def plain(self) -> dict[str, object]:
        """Return what it adds to a digest: nothing where a unit is one record."""
        if self.records == 1:
            return {}
        return {"unit_records": self.records, "distinct": self.distinct and self.distinct.value}


ONE_RECORD = Contribution()
"""A protected unit is one record."""
