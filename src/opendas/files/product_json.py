"""A product as a JSON object, so that a release can be read without its run file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opendas.errors import FormatError
from opendas.schema.attributes import Attribute, Recode, Schema
from opendas.schema.declarations import Bound, Invariant, StructuralZero, Tie
from opendas.schema.product import PassPlan, Product


def product_to_json(product: Product) -> dict[str, Any]:
    """Return the declaration of `product`; passes and default budget belong to the run and stay out."""
    further: dict[str, Any] = {}
    if product.tied is not None:
        further["tie"] = product.tied.to_dict()
    if product.companion is not None:
        further["companion"] = product_to_json(product.companion)
    return {
        "name": product.name,
        "protected_unit": product.protected_unit,
        "layout": product.layout,
        "attributes": [[a.name, list(a.levels)] for a in product.schema.attributes],
        "recodes": [
            {"name": r.name, "attribute": r.attribute, "groups": [[label, list(m)] for label, m in r.groups]}
            for r in product.recodes
        ],
        "queries": list(product.query_names),
        "invariants": [[i.query, i.geolevel] for i in product.invariants],
        "bounds": [[b.query, b.cell, b.column, b.lower, b.upper] for b in product.bounds],
        "structural_zeros": [
            {name: list(labels) for name, labels in zero.levels.items()} for zero in product.structural_zeros
        ],
        **further,
    }


def product_from_json(value: Mapping[str, Any]) -> Product:
    """Return the product that :func:`product_to_json` described.

    Raises
    ------
    FormatError
        If an entry is missing or of another form.
    """
    try:
        return Product(
            name=value["name"],
            schema=Schema(tuple(Attribute(name, tuple(levels)) for name, levels in value["attributes"])),
            recodes=tuple(
                Recode(r["name"], r["attribute"], tuple((label, tuple(m)) for label, m in r["groups"]))
                for r in value["recodes"]
            ),
            query_names=tuple(value["queries"]),
            invariants=tuple(Invariant(query, geolevel) for query, geolevel in value["invariants"]),
            bounds=tuple(Bound(*bound) for bound in value["bounds"]),
            structural_zeros=tuple(
                StructuralZero({name: tuple(labels) for name, labels in zero.items()})
                for zero in value["structural_zeros"]
            ),
            protected_unit=value["protected_unit"],
            layout=value["layout"],
            passes=PassPlan({}, {}),
            tie=Tie.from_dict(value["tie"]) if "tie" in value else None,
            companion=product_from_json(value["companion"]) if "companion" in value else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError("the description of the product in the file's metadata is incomplete.") from error
