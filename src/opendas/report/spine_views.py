"""The spine of a run as rows for PDF and HTML."""

from __future__ import annotations

from collections.abc import Sequence

from opendas.geography.summary import PERCENTS, EntitySummary, LevelSummary, SpineSummary
from opendas.report.views import words

__all__ = ["ENTITY_HEAD", "LEVEL_HEAD", "entity_rows", "entity_words", "level_rows", "spine_sentence"]

LEVEL_HEAD = ("Geolevel", "Geounits", "Official", "Children (median)", "Parents of one child", "Bypassed")
ENTITY_HEAD = ("Areas", "Number", "Mean distance", "before", "Largest distance", "before")

_MEDIAN = PERCENTS.index(50)
_ENTITIES = {
    "cousub": "county subdivisions",
    "place": "places",
    "aianhh": "AIAN areas",
    "cd": "congressional districts",
    "sldu": "upper state districts",
    "sldl": "lower state districts",
    "vtd": "voting districts",
    "sdelm": "elementary school districts",
    "sdsec": "secondary school districts",
    "sduni": "unified school districts",
}


def entity_words(category: str) -> str:
    """Write an entity category in words, for instance ``cousub`` as "county subdivisions"."""
    return _ENTITIES.get(category, words(category))


def _children(level: LevelSummary) -> str:
    if not level.fanouts:
        return "\u2013"
    low, middle, high = level.fanouts[0], level.fanouts[_MEDIAN], level.fanouts[-1]
    return f"{low:,}" if low == high else f"{low:,} to {high:,} ({middle:,})"


def level_rows(levels: Sequence[LevelSummary]) -> list[tuple[str, ...]]:
    """Return a row for each level, under :data:`LEVEL_HEAD`."""
    return [
        (
            words(level.geolevel),
            f"{level.geounits:,}",
            "yes" if level.official else "no",
            _children(level),
            f"{level.single_child_parents:,}" if level.fanouts else "\u2013",
            f"{level.bypassed:,}",
        )
        for level in levels
    ]


def entity_rows(entities: Sequence[EntitySummary]) -> list[tuple[str, ...]]:
    """Return a row for each entity category, under :data:`ENTITY_HEAD`."""
    return [
        (
            entity_words(entity.category),
            f"{entity.count:,}",
            f"{entity.mean_distance:,.2f}",
            f"{entity.standard_mean:,.2f}",
            f"{entity.max_distance:,}",
            f"{entity.standard_max:,}",
        )
        for entity in entities
    ]


def spine_sentence(spine: SpineSummary) -> str:
    """Say in one sentence what was measured: official geounits, or others."""
    made = [words(level.geolevel) for level in spine.levels if not level.official]
    if not made:
        return "Measurements were taken on the official geography."
    listed = made[0] if len(made) == 1 else f"{', '.join(made[:-1])} and {made[-1]}"
    return (
        "Measurements were taken on a spine made for this run from public information: at the "
        f"level{'s' if len(made) > 1 else ''} {listed} its geounits are not the official ones. "
        "Tables are of official areas all the same."
    )
