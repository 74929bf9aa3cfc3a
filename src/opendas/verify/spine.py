"""The certified description of the spine is that of the spine and the frame on file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opendas.files.release_folder import ReleasedProduct
from opendas.geography.summary import SpineSummary, summarise
from opendas.verify.check import require

__all__ = ["check_spine"]


def check_spine(run: Mapping[str, Any], released: ReleasedProduct) -> str:
    """Geounits and children of every level, and the distances of every entity category, as certified."""
    stated = run.get("spine")
    if stated is None:
        return "not described: certified by an earlier version"
    certified = SpineSummary.from_dict(stated)
    found = summarise(released.spine, released.frame)
    require(
        [level.geolevel for level in certified.levels] == list(released.spine.names),
        "the certified levels are not those of the spine.",
    )
    for level, certified_level in zip(found.levels, certified.levels, strict=True):
        require(level == certified_level, f"level {level.geolevel!r} is not as certified.")
    categories = [entity.category for entity in found.entities]
    require(
        [entity.category for entity in certified.entities] == categories,
        "the certified entity categories are not those of the frame.",
    )
    for entity, certified_entity in zip(found.entities, certified.entities, strict=True):
        require(entity == certified_entity, f"the distances of {entity.category!r} are not as certified.")
    return f"{len(found.levels)} levels, distances of {len(categories)} entity categories"
