"""A product as a JSON object, so that a release can be read without its run file.

Of an attribute with more than 64 levels, what recodes and structural zeros say of levels stands as their
positions, for instance ``"0-17,20"``: a release of DHC units would else list 522 household types dozens of
times in every file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opendas.errors import ConfigError, FormatError
from opendas.parts import Origin
from opendas.schema.attributes import Attribute, Recode, Schema
from opendas.schema.declarations import (
    Bound,
    Invariant,
    LinearConstraint,
    PriorTable,
    StructuralZero,
    Tie,
)
from opendas.schema.product import PassPlan, Product

MOST_LISTED = 64
"""Levels that are listed by name wherever they occur."""


def _levels_to_json(labels: Sequence[str], attribute: Attribute) -> list[str] | str:
    """Return labels, or in their order the runs of their positions, such as ``"0-17,20"``."""
    if len(attribute) <= MOST_LISTED:
        return list(labels)
    place = {label: position for position, label in enumerate(attribute.levels)}
    runs: list[list[int]] = []
    for position in map(place.__getitem__, labels):
        if runs and position == runs[-1][-1] + 1:
            runs[-1][1:] = [position]
        else:
            runs.append([position])
    return ",".join("-".join(map(str, run)) for run in runs)


def _levels_from_json(value: Sequence[str] | str, attribute: Attribute) -> tuple[str, ...]:
    """Return the labels that :func:`_levels_to_json` described."""
    if not isinstance(value, str):
        return tuple(value)
    found: list[str] = []
    for run in value.split(","):
        first, _, last = run.partition("-")
        stop = int(last or first) + 1
        if not int(first) < stop <= len(attribute):
            raise ValueError(run)
        found += attribute.levels[int(first) : stop]
    return tuple(found)


def product_to_json(product: Product) -> dict[str, Any]:
    """Return the declaration of `product`; passes and default budget belong to the run and stay out."""
    attribute = product.schema.attribute
    further: dict[str, Any] = {}
    if product.linear:
        further["constraints"] = [one.to_dict() for one in product.linear]
    if product.tied is not None:
        further["tie"] = product.tied.to_dict()
    if product.prior is not None:
        further["prior"] = product.prior.to_dict()
    if product.companion is not None:
        further["companion"] = product_to_json(product.companion)
    if product.parts:
        further["parts"] = [part.to_dict() for part in product.parts]
    return {
        "name": product.name,
        "protected_unit": product.protected_unit,
        "layout": product.layout,
        "attributes": [[a.name, list(a.levels)] for a in product.schema.attributes],
        "recodes": [
            {
                "name": r.name,
                "attribute": r.attribute,
                "groups": [[label, _levels_to_json(m, attribute(r.attribute))] for label, m in r.groups],
            }
            for r in product.recodes
        ],
        "queries": list(product.query_names),
        "invariants": [[i.query, i.geolevel] for i in product.invariants],
        "bounds": [[b.query, b.cell, b.column, b.lower, b.upper] for b in product.bounds],
        "structural_zeros": [
            {name: _levels_to_json(labels, attribute(name)) for name, labels in zero.levels.items()}
            for zero in product.structural_zeros
        ],
        **further,
    }


def product_from_json(value: Mapping[str, Any]) -> Product:
    """Return the product that :func:`product_to_json` described."""
    try:
        attributes = tuple(Attribute(name, tuple(levels)) for name, levels in value["attributes"])
        attribute = {each.name: each for each in attributes}
        return Product(
            name=value["name"],
            schema=Schema(attributes),
            recodes=tuple(
                Recode(
                    r["name"],
                    r["attribute"],
                    tuple(
                        (label, _levels_from_json(m, attribute[r["attribute"]])) for label, m in r["groups"]
                    ),
                )
                for r in value["recodes"]
            ),
            query_names=tuple(value["queries"]),
            invariants=tuple(Invariant(query, geolevel) for query, geolevel in value["invariants"]),
            bounds=tuple(Bound(*bound) for bound in value["bounds"]),
            structural_zeros=tuple(
                StructuralZero(
                    {name: _levels_from_json(labels, attribute[name]) for name, labels in zero.items()}
                )
                for zero in value["structural_zeros"]
            ),
            protected_unit=value["protected_unit"],
            layout=value["layout"],
            passes=PassPlan({}, {}),
            tie=Tie.from_dict(value["tie"]) if "tie" in value else None,
            prior=PriorTable.from_dict(value["prior"]) if "prior" in value else None,
            companion=product_from_json(value["companion"]) if "companion" in value else None,
            linear=tuple(LinearConstraint(**one) for one in value.get("constraints", ())),
            parts=tuple(map(Origin.from_dict, value.get("parts", ()))),
        )
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise FormatError(
            "the description of the product in the file's metadata is incomplete or wrong."
        ) from error
