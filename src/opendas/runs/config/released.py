"""The released copy of a run file: everything that decides the release, nothing about the machine."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeGuard

from opendas.budget.allocation import Budget
from opendas.budget.resolve import BudgetSpec
from opendas.errors import FormatError
from opendas.files.storage.remote import RemoteAddress
from opendas.geography.recipe import NAMED_SPINES, Recipe, SpineStep, recipe_levels, stand_ins
from opendas.privacy.exact import format_fraction
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.readers.input.spec import FRAME_FROM_RECORDS, PUBLISHED, ReaderSpec, census_kind
from opendas.runs.config.model import BUILT_IN_PRODUCTS, StageSection, freeze
from opendas.runs.config.product_file import earlier_stages, pass_table
from opendas.runs.config.resolve import Resolved
from opendas.schema.declarations import ContributionBound, Invariant, PublishedFile, StructuralZero
from opendas.schema.product import PassPlan, Product
from opendas.schema.provenance import Domain

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def toml_text(value: str) -> str:
    """Write a TOML string."""
    escaped = "".join(
        _ESCAPES.get(char, f"\\u{ord(char):04x}" if ord(char) < 32 or ord(char) == 127 else char)
        for char in value
    )
    return f'"{escaped}"'


def toml_key(name: str) -> str:
    """Write a TOML key, bare where that is possible."""
    return name if _BARE.fullmatch(name) else toml_text(name)


def toml_value(value: object) -> str:
    """Write a TOML value; a fraction becomes text, a mapping an inline table."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Fraction):
        return toml_text(format_fraction(value))
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{toml_key(str(name))} = {toml_value(item)}" for name, item in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, str):
        return toml_text(value)
    if isinstance(value, Sequence):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    raise TypeError(f"no TOML form for {type(value).__name__}")


def _table(header: str, values: Mapping[str, object]) -> list[str]:
    return ["", header, *(f"{toml_key(name)} = {toml_value(item)}" for name, item in values.items())]


def toml_document(document: Mapping[str, Mapping[str, object]]) -> str:
    """Write a document of sections; a table of tables becomes a section of its own (``[budget.queries]``)."""
    lines: list[str] = []
    for name, section in document.items():
        nested = {key: value for key, value in section.items() if _is_table_of_tables(value)}
        lines += _table(f"[{toml_key(name)}]", {key: section[key] for key in section if key not in nested})
        for key, values in nested.items():
            lines += _table(f"[{toml_key(name)}.{toml_key(key)}]", values)
    return "\n".join(lines) + "\n"


def move_paths(document: dict[str, Any], old: Path, new: Path) -> None:
    """Let the relative paths of a run file in one folder mean the same files from another."""

    def moved(value: Any) -> Any:
        if isinstance(value, list):
            return [moved(item) for item in value]
        if RemoteAddress.of(value) is not None:
            return value
        place = Path(value).expanduser()
        return value if place.is_absolute() else os.path.relpath(old / place, new)

    product = document["run"]["product"]
    if product not in BUILT_IN_PRODUCTS:
        document["run"]["product"] = moved(product)
    for section, key in (
        ("input", "path"),
        ("geography", "frame"),
        ("geography", "block_assignment"),
        ("prior", "path"),
        ("tie", "release"),
    ):
        value = document.get(section, {}).get(key)
        if value is not None and value != FRAME_FROM_RECORDS:
            document[section][key] = moved(value)
    units = document["input"].get("units")
    if isinstance(units, dict) and "path" in units:
        units["path"] = moved(units["path"])


def _is_table_of_tables(value: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(value, Mapping) and any(isinstance(item, Mapping) for item in value.values())


def released_toml(resolved: Resolved, budget: Budget, domain: Domain | None = None) -> str:
    """Write the resolved plan for ``release/run/<product>.toml``.

    - `budget`: what :func:`opendas.budget.resolve.resolve_budget` made of the run's budget.
    - `domain`: where its parts come from, with what the reader derived; by default as declared.
    - Returns: TOML: the run, its geography, the exact budget at every geolevel, the passes and the product's
      declaration. The same text for the same plan: no path, engine, worker count, command or clock.
    """
    product, reader = resolved.product, resolved.reader
    run: dict[str, object] = {
        "product": product.name,
        "mechanism": resolved.mechanism.value,
        "neighbours": resolved.neighbours.value,
        "estimator": resolved.estimator,
        "drop_invariants": [invariant.name for invariant in resolved.dropped],
        "failsafe": resolved.failsafe,
    }
    steps = [step.to_dict() for step in resolved.recipe.steps]
    geography: dict[str, object] = {
        "spine": resolved.spine_name or steps or "standard",
        "geolevels": resolved.geolevels,
    }
    if resolved.published is not None:
        geography["spine"] = "published"
    if reader.frame == FRAME_FROM_RECORDS:
        geography["frame"] = FRAME_FROM_RECORDS
    if resolved.recipe.entities is not None:
        geography["entities"] = resolved.recipe.entities
    spent: dict[str, object] = {
        resolved.mechanism.loss_name: budget.total,
        "delta": budget.delta,
        "geolevels": budget.geolevels,
    }
    if resolved.budget.source is not None:
        spent["source"] = resolved.budget.source
    passes: dict[str, object] = {"slack": resolved.slack, "milp": resolved.milp}
    lines = [
        "# The plan of this release, with every default written out. Numbers in quotes are exact.",
        *_table("[run]", run),
        *_table("[input]", {"reader": reader.reader, **_input(resolved)}),
        *_table("[geography]", geography),
        *_table("[domain]", (domain or resolved.domain).to_dict()),
        *_table("[budget]", spent),
        *_table("[budget.queries]", budget.queries),
        *_table("[passes]", passes),
        *_stage("passes", product.passes),
        *(
            line
            for stage in product.passes.earlier
            for line in (*_table("[[passes.earlier]]", {}), *_stage("passes.earlier", stage))
        ),
        *_declaration(product),
    ]
    return "\n".join(lines) + "\n"


def _stage(name: str, plan: PassPlan) -> list[str]:
    """Write the passes of one stage."""
    return [
        *_table(f"[{name}.least_squares]", dict(sorted(plan.least_squares.items()))),
        *_table(f"[{name}.rounder]", dict(sorted(plan.rounder.items()))),
    ]


def _input(resolved: Resolved) -> dict[str, object]:
    """Write what is counted of a unit with several records, or whose measurements these are."""
    reader = resolved.reader
    if resolved.published is not None:
        return resolved.published.to_dict()
    declared = {} if reader.contribution is None else reader.contribution.to_dict()
    return {key: value for key, value in declared.items() if value is not None}


def _declaration(product: Product) -> list[str]:
    """Write the product as a product file would declare it."""
    attributes = {attribute.name: attribute.levels for attribute in product.schema.attributes}
    lines = [
        *_table("[product]", {"name": product.name, "protected_unit": product.protected_unit}),
        *_table("[attributes]", attributes),
    ]
    for recode in product.recodes:
        lines += _table(
            f"[recodes.{toml_key(recode.name)}]",
            {"attribute": recode.attribute, "levels": dict(recode.groups)},
        )
    lines += _table("[queries]", {"groups": product.query_names})
    for zero in product.structural_zeros:
        lines += _table("[[structural_zeros]]", dict(zero.levels))
    for invariant in product.invariants:
        lines += _table("[[invariants]]", asdict(invariant))
    for bound in product.bounds:
        lines += _table("[[bounds]]", asdict(bound))
    for one in product.linear:
        lines += _table("[[constraints]]", one.to_dict())
    if product.tied is not None:
        lines += _table("[tie]", product.tied.to_dict())
    if product.prior is not None:
        lines += _table("[prior]", product.prior.to_dict())
    return lines


def read_released(text: str, product: Product) -> Resolved:
    """Read back what :func:`released_toml` wrote.

    - `product`: as the file of the frame declares it: without passes.
    - Returns: what estimates, and makes the spine, as the run did. Of its input it knows only the kind of
      reader.
    """
    try:
        return _read(tomllib.loads(text), product)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(
            f"run/{product.name}.toml cannot be read: it is incomplete, was changed, or another version of "
            "OpenDAS wrote it. Restore it from the release, or use that version."
        ) from error


def _read(document: Mapping[str, Any], product: Product) -> Resolved:
    run, geography, passes = document["run"], document["geography"], document["passes"]
    spine, geolevels = geography["spine"], tuple(geography["geolevels"])
    named = isinstance(spine, str)
    given = document["input"]
    published = PublishedFile.from_dict(given) if given["reader"] == PUBLISHED else None
    if (published is not None) != (spine == "published"):
        raise ValueError("spine")
    if published is not None:
        spine = "standard"  # no steps lead to it: it was read
    steps = NAMED_SPINES[spine] if named else tuple(SpineStep(**_listed(step)) for step in spine)
    entities = geography.get("entities")
    budget = document["budget"]
    mechanism, neighbours = Mechanism(run["mechanism"]), Neighbours(run["neighbours"])
    plan = PassPlan(
        pass_table(passes["least_squares"], product.workload, "least_squares"),
        pass_table(passes["rounder"], product.workload, "rounder"),
        earlier_stages(
            [StageSection.model_validate(freeze(stage)) for stage in passes.get("earlier", ())],
            product.workload,
        ),
    )
    zeros = tuple(
        StructuralZero({name: tuple(labels) for name, labels in zero.items()})
        for zero in document.get("structural_zeros", ())
    )
    if zeros != product.structural_zeros:
        raise ValueError("structural_zeros")
    product = replace(product, passes=plan, structural_zeros=zeros)  # in the order of their declaration
    dropped = (name.rpartition("@") for name in run["drop_invariants"])
    return Resolved(
        product=product,
        dropped=tuple(Invariant(query, geolevel) for query, _, geolevel in dropped),
        reader=ReaderSpec(
            given["reader"],
            (),
            product,
            frame=geography.get("frame"),
            contribution=ContributionBound.from_dict({"distinct": None, **given})
            if "unit_id" in given
            else None,
        ),
        geolevels=geolevels,
        spine_name=spine if named else None,
        recipe=Recipe(
            steps,
            None if entities is None else tuple(entities),
            facilities=census_kind(product) != "units",
        ),
        levels=recipe_levels(geolevels, steps),
        stand_ins=stand_ins(geolevels, steps),
        budget=BudgetSpec(
            geolevels=budget["geolevels"],
            queries=budget["queries"],
            delta=budget["delta"],
            mechanism=mechanism,
            neighbours=neighbours,
            source=budget.get("source"),
            **{mechanism.loss_name: budget[mechanism.loss_name]},
        ),
        mechanism=mechanism,
        neighbours=neighbours,
        estimator=run["estimator"],
        failsafe=run["failsafe"],
        slack=Fraction(passes["slack"]),
        milp=passes["milp"],
        domain=Domain.from_dict(document["domain"]),
        published=published,
    )


def _listed(step: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in step.items()}
