"""DHC persons for microdata and tables: the schema and no constraints, so that any count fits."""

from __future__ import annotations

import dataclasses

from opendas.schema.dhc_persons import dhc_persons
from opendas.schema.product import Product

GQ_CODES = (
    101, 102, 103, 104, 105, 106, 201, 202, 203, 301, 401, 402, 403, 404, 405,
    501, 601, 602, 701, 801, 802, 900, 901, 997,
)  # fmt: skip


def dhc_persons_product() -> Product:
    """Return the product without invariants, bounds and structural zeros."""
    return dataclasses.replace(dhc_persons(), invariants=(), bounds=(), structural_zeros=())
