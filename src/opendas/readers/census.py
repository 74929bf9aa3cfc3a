"""Which table of the census a product counts."""

from __future__ import annotations

from typing import Literal

from opendas.schema.pl94 import pl94_persons, pl94_units
from opendas.schema.product import Product

__all__ = ["CensusKind", "census_kind"]

CensusKind = Literal["persons", "units"]


def census_kind(product: Product) -> CensusKind | None:
    """Return the table that a product counts, by its attributes; None if it is none of the census."""
    if product.schema == pl94_persons().schema:
        return "persons"
    return "units" if product.schema == pl94_units().schema else None
