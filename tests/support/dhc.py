"""The schema of DHC persons, as far as microdata and tables need it: attributes without queries."""

from __future__ import annotations

from opendas.schema.attributes import Attribute, Schema
from opendas.schema.pl94 import race_combinations
from opendas.schema.product import PassPlan, Product

GQ_CODES = (
    101, 102, 103, 104, 105, 106, 201, 202, 203, 301, 401, 402, 403, 404, 405,
    501, 601, 602, 701, 801, 802, 900, 901, 997,
)  # fmt: skip


def dhc_persons_schema() -> Schema:
    """Return 42 x 2 x 116 x 2 x 63 cells."""
    return Schema(
        (
            Attribute("relgq", tuple(f"relgq {level}" for level in range(42))),
            Attribute("sex", ("male", "female")),
            Attribute("age", tuple(str(years) for years in range(116))),
            Attribute("hispanic", ("not_hispanic", "hispanic")),
            Attribute("cenrace", tuple("+".join(races) for races in race_combinations())),
        )
    )


def dhc_persons_product() -> Product:
    """Return the schema as a product, with the production layout."""
    queries = ("total", "sex", "detailed")
    passes = PassPlan({}, {})
    return Product(
        "dhc-persons", dhc_persons_schema(), (), queries, (), (), (), "person", "dhc-persons", passes
    )
