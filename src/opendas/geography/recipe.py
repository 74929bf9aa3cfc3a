"""Spine recipes: a spine as a list of named steps from the official levels.

The steps are those of Cumings-Menon et al. (2024): :mod:`~opendas.geography.block_groups` and
:mod:`~opendas.geography.tract_groups` are Algorithm 2, :mod:`~opendas.geography.bypass` is Algorithm 3. A
recipe is checked twice: its level names before any data are read (:func:`recipe_levels`), and step by step
on the frame (:func:`build_spine`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Codes
from opendas.errors import ConfigError
from opendas.geography.block_groups import block_groups, group
from opendas.geography.bypass import LARGEST_FAMILY
from opendas.geography.frame import ENTITY_CATEGORIES, GQ_COLUMNS, Frame
from opendas.geography.partitions import (
    Partitions,
    combine,
    divide_into_parts,
    insert_groups,
    insert_intersections,
    official_partitions,
    split,
)
from opendas.geography.prims import prim_columns
from opendas.geography.spine import Spine
from opendas.geography.tract_groups import tract_groups_for

STRONG_MCD_STATES = ("09", "23", "25", "26", "27", "33", "34", "36", "42", "44", "50", "55")
"""FIPS codes of the states whose minor civil divisions are governments (section 6 of the paper)."""

PRODUCTION_AIAN = (
    "0001-4799",
    "4800-4989",
    "5000-5499",
    "5500-5899",
    "5900-5999",
    "6000-7999",
    "9000-9499",
)
"""AIANNH codes of the AIAN branch in 2020: all kinds but tribal and state designated statistical areas."""

_MADE_BY_DEFAULT = MappingProxyType(
    {
        "block_groups": "block_group",
        "tract_groups": "tract_group",
        "prims": "prim",
        "tract_subsets": "tract_subset",
        "tract_subset_groups": "tract_subset_group",
    }
)

_WORKS_ON_BY_DEFAULT = MappingProxyType(
    {"prims": "tract", "tract_subsets": "tract", "tract_subset_groups": "tract_subset"}
)

BLOCK_GROUP_RULES = ("redistricting", "dhc")
"""What keeps blocks apart in block groups where no entities are given, in the two production runs of 2020."""

_SCHOOL_DISTRICTS = ("sduni", "sdsec", "sdelm")


@dataclass(frozen=True, slots=True)
class SpineStep:
    """One step of a recipe; which parameters matter depends on `step`."""

    # ``aian``, ``split``, ``intersect``, ``group``, ``block_groups``, ``tract_groups``, ``prims``,
    # ``tract_subsets``, ``tract_subset_groups`` or ``bypass``.
    step: str
    # Level that the step works on: divided from there down (``aian``, ``split``), or grouped (``group``).
    level: str | None = None
    name: str | None = None  # name of the level that the step makes, or new name of the level that it splits
    areas: str | None = None  # ``aian``: entity category whose codes decide, by default ``aianhh``
    # ``aian``: codes and ranges of codes; by default those of production for ``aianhh``, any for others.
    codes: tuple[str, ...] | None = None
    # Entity categories, or official geolevels, whose combinations decide.
    entities: tuple[str, ...] | None = None
    fanout_cutoff: int = 12  # >= 1
    # >= 0: ``tract_groups``, method ``production``: distance from which an entity is brought closer.
    entity_threshold: int = 9
    off_by_one: bool = False  # groups may hold one more, as production's did
    rule: str = "redistricting"  # ``block_groups`` without entities: one of :data:`BLOCK_GROUP_RULES`
    method: str = "greedy"  # ``tract_groups``: one of :data:`opendas.geography.tract_groups.METHODS`
    # ``bypass`` under pure differential privacy: most siblings that it may leave.
    largest_family: int = LARGEST_FAMILY

    def to_dict(self) -> dict[str, object]:
        """Return the step as a run file writes it, without defaults."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in plain.items() if name == "step" or value != _DEFAULTS[name]}


_DEFAULTS = {field.name: field.default for field in fields(SpineStep)}


NAMED_SPINES: Mapping[str, tuple[SpineStep, ...]] = MappingProxyType(
    {
        "standard": (),
        "optimized": (SpineStep("block_groups"), SpineStep("bypass")),
        "aian": (SpineStep("aian"), SpineStep("block_groups"), SpineStep("bypass")),
        "dhc": (
            SpineStep("aian"),
            SpineStep("prims"),
            SpineStep("tract_subsets"),
            SpineStep("tract_subset_groups", off_by_one=True),
            SpineStep("block_groups", off_by_one=True, rule="dhc"),
            SpineStep("bypass"),
        ),
    }
)
"""Spines that a run file may name."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the spine of a run is made."""

    steps: tuple[SpineStep, ...]
    # Off-spine entities of steps that name none; None means the production rule.
    entities: tuple[str, ...] | None = None
    # The production rule keeps blocks with other kinds of group quarters apart; housing units do without.
    facilities: bool = True

    @property
    def bypass(self) -> SpineStep | None:
        """The step that bypasses parents, if there is one."""
        return next((step for step in self.steps if step.step == "bypass"), None)

    @property
    def by_governments(self) -> bool:
        """Whether functional statuses decide the spine."""
        return any(step.step in ("prims", "tract_subsets") for step in self.steps)


def _top_of_parts(step: SpineStep, names: Sequence[str]) -> str:
    if step.level is not None:
        return step.level
    return "state" if "state" in names else names[0]


def _grouped(step: SpineStep, names: Sequence[str]) -> str:
    """Return the level that a step groups or stands above."""
    if step.step == "block_groups":
        return names[-1]
    if step.level is not None:
        return step.level
    if step.step == "tract_groups":
        return "tract" if "tract" in names else names[-min(3, max(1, len(names) - 1))]
    if step.step in _WORKS_ON_BY_DEFAULT:
        return _WORKS_ON_BY_DEFAULT[step.step]
    raise ConfigError(f"[geography] spine: the step {step.step} needs level, the level that it works on.")


def _name_of_step(step: SpineStep) -> str:
    name = step.name or _MADE_BY_DEFAULT.get(step.step)
    if name is None:
        raise ConfigError(
            f"[geography] spine: the step {step.step} needs name, the name of the level it makes."
        )
    return name


def _walk(geolevels: Sequence[str], steps: Sequence[SpineStep]) -> tuple[list[str], dict[str, str]]:
    """Return the level names after all steps, and for every name that is new the level it came from."""
    names = list(geolevels)
    origin = {name: name for name in names}
    for number, step in enumerate(steps, start=1):
        where = f"[geography] spine, step {number} ({step.step})"
        if step.step == "bypass":
            if number != len(steps):
                raise ConfigError(f"{where}: bypass comes last, after all steps that make levels.")
            continue
        level = _top_of_parts(step, names) if step.step == "aian" else _grouped(step, names)
        if level not in names:
            raise ConfigError(
                f"{where}: there is no level {level!r} at that step; there are {', '.join(names)}."
            )
        if step.step == "aian":
            continue
        if step.step in ("split", "tract_subsets"):
            new = step.name if step.step == "split" else _name_of_step(step)
            if new is not None and new != level:
                _refuse_taken(where, new, (*names, *geolevels))
                origin[new] = origin[level]
                names[names.index(level)] = new
            continue
        name = _name_of_step(step)
        replaced = step.step == "block_groups" and name in names[:-1]
        if replaced:
            if names.index(name) != len(names) - 2:
                raise ConfigError(
                    f"{where}: {name!r} is not the level above the leaves; give the level another name with "
                    "name."
                )
            names.remove(name)
        _refuse_taken(where, name, names if replaced else (*names, *geolevels))
        if names.index(level) == 0:
            raise ConfigError(f"{where}: {level!r} is the topmost level; no level can stand above it.")
        origin.setdefault(name, origin[level])
        names.insert(names.index(level), name)
    return names, {name: origin[name] for name in names if origin[name] != name}


def _refuse_taken(where: str, name: str, names: Sequence[str]) -> None:
    """Refuse the name of another level, of an official one that was renamed, and words with a meaning."""
    if name in names or name in ("root", "leaf", "*", *ENTITY_CATEGORIES):
        raise ConfigError(f"{where}: the name {name!r} is taken; give the level another with name.")


def recipe_levels(geolevels: Sequence[str], steps: Sequence[SpineStep]) -> tuple[str, ...]:
    """Return the names of a recipe's levels, top first."""
    return tuple(_walk(geolevels, steps)[0])


def stand_ins(geolevels: Sequence[str], steps: Sequence[SpineStep]) -> dict[str, str]:
    """Return, for each level that a recipe adds, the official level whose query groups it may borrow."""
    return _walk(geolevels, steps)[1]


def build_spine(frame: Frame, recipe: Recipe, finish: Callable[[Spine], Spine]) -> Spine:
    """Make the spine of a run.

    `finish`: the rule of the step ``bypass``, which needs the budget of the levels.
    """
    partitions = official_partitions(frame)
    recipe_levels(partitions.names, recipe.steps)
    for step in recipe.steps:
        if step.step != "bypass":
            partitions = _applied(partitions, step, recipe)
    spine = partitions.spine()
    return spine if recipe.bypass is None else finish(spine)


def _applied(partitions: Partitions, step: SpineStep, recipe: Recipe) -> Partitions:
    frame = partitions.frame
    if step.step == "aian":
        return divide_into_parts(partitions, _top_of_parts(step, partitions.names), _in_areas(frame, step))
    level = _grouped(step, partitions.names)
    if step.step == "tract_groups":
        return _with_tract_groups(partitions, level, step, recipe)
    if step.step in ("prims", "tract_subsets"):
        key = combine(_prim_columns(frame, f"the step {step.step}"))
        if step.step == "tract_subsets":
            return split(partitions, level, key, _name_of_step(step))
        return insert_intersections(partitions, level, key, _name_of_step(step))
    if step.step == "tract_subset_groups":  # consecutive geounits of a parent, whatever lies in them
        key = np.zeros(len(frame), dtype=np.int64)
    elif step.step == "split" and step.entities is None:
        key = np.zeros(len(frame), dtype=np.int64)  # only the name changes
    else:
        key = combine(_columns(frame, step, recipe))
    if step.step == "split":
        return split(partitions, level, key, step.name)
    if step.step == "intersect":
        return insert_intersections(partitions, level, key, _name_of_step(step))
    most, more = step.fanout_cutoff, step.off_by_one
    if step.step == "block_groups":
        return block_groups(partitions, key, name=_name_of_step(step), fanout_cutoff=most, off_by_one=more)
    return group(partitions, level, key, _name_of_step(step), fanout_cutoff=most, off_by_one=more)


def _with_tract_groups(partitions: Partitions, level: str, step: SpineStep, recipe: Recipe) -> Partitions:
    """Insert a level of groups of the geounits of `level` that brings the step's entities closer."""
    place = partitions.index(level, f"the step {step.step}")
    spine = partitions.spine()
    found = tract_groups_for(
        [below.parent for below in spine.levels[1:]],
        place,
        [column[spine.leaf_order] for column in _columns(partitions.frame, step, recipe)],
        step.method,
        step.fanout_cutoff,
        step.entity_threshold,
    )
    # From the geounits of the spine to those of the partitions, by one leaf of each.
    leaf = spine.leaf_order[spine.leaf_starts(place)[:-1]]
    number = np.empty(len(found), dtype=np.int64)
    number[partitions.levels[place].label[leaf]] = found
    return insert_groups(partitions, level, number, _name_of_step(step))


def _area(frame: Frame, category: str, why: str) -> Codes:
    """Return the codes of an entity category, or of an official geolevel."""
    if category in frame.entities or category in frame.geolevels:
        return frame.codes(category)
    known = ", ".join((*frame.entities, *frame.geolevels))
    more = " Block assignment files may have them: [geography] block_assignment."
    raise ConfigError(
        f"[geography] spine: {why} needs the areas {category!r}, which the input does not have; it has "
        f"{known}.{more * (category in ENTITY_CATEGORIES)}"
    )


def in_ranges(codes: Codes, ranges: Sequence[str]) -> Bools:
    """Return which codes lie in ranges such as ``"0001-4799"``, or equal single codes.

    - `codes` (b,): the empty code lies in no range.
    - `ranges`: both ends included; compared as text of equal length.
    """
    inside = np.zeros(len(codes), dtype=np.bool_)
    lengths = np.char.str_len(codes)
    for text in ranges:
        first, dash, last = (part.strip().encode() for part in text.partition("-"))
        last = last if dash else first
        if not first or len(first) != len(last) or last < first:
            raise ConfigError(
                f'[geography] spine: {text!r} is no range of codes; write "0001-4799", or one code "2415".'
            )
        inside |= (lengths == len(first)) & (codes >= first) & (codes <= last)
    return inside


def _in_areas(frame: Frame, step: SpineStep) -> Bools:
    """Return which leaves lie in the areas of an ``aian`` step."""
    areas = step.areas or "aianhh"
    codes = _area(frame, areas, "the step aian")
    if step.codes is None and areas != "aianhh":
        return np.asarray(codes != b"")
    inside = in_ranges(codes, step.codes or PRODUCTION_AIAN)
    if step.codes is not None and not inside.any():
        raise ConfigError(
            f"[geography] spine: no leaf of the input lies in the codes {', '.join(step.codes)} of "
            f"{areas!r}. Correct codes, or leave the step out."
        )
    return inside


def _columns(frame: Frame, step: SpineStep, recipe: Recipe) -> list[npt.NDArray[Any]]:
    """Return the columns whose combinations distinguish groups."""
    chosen = step.entities if step.entities is not None else recipe.entities
    if chosen is not None:
        if not chosen:
            raise ConfigError(
                f"[geography] spine: the step {step.step} has an empty list of entities. Name some, or leave "
                "the list out for the production rule."
            )
        return [_area(frame, category, f"the step {step.step}") for category in chosen]
    if step.step == "block_groups" and step.rule == "dhc":
        return _dhc_columns(frame, recipe)
    return _production_columns(frame, step, recipe)


def _prim_columns(frame: Frame, why: str) -> list[Codes]:
    """Return the areas whose combinations within a county are its prims."""
    cousub, place = (_area(frame, category, why) for category in ("cousub", "place"))
    return prim_columns(frame, cousub, place, _strong(frame))


def _strong(frame: Frame) -> Bools:
    """Return which leaves lie in strong-MCD states."""
    return np.isin(frame.geocodes.astype("S2"), [code.encode() for code in STRONG_MCD_STATES])


def _kinds_of_quarters(frame: Frame) -> list[npt.NDArray[Any]]:
    """Return which leaves have each major type of group quarters; detailed types do not count."""
    return [frame.units[name] > 0 for name in frame.units if name in GQ_COLUMNS]


def _dhc_columns(frame: Frame, recipe: Recipe) -> list[npt.NDArray[Any]]:
    """Return the areas of the DHC's rule: AIAN area, kinds of group quarters, school districts, block group.

    Places and county subdivisions are left out: the prims above carry them. Kinds of school districts that
    the input does not have are left out.
    """
    why = 'the rule "dhc" of the step block_groups'
    divided = next((step for step in recipe.steps if step.step == "aian"), SpineStep("aian"))
    areas = _area(frame, divided.areas or "aianhh", why)
    districts = [name for name in _SCHOOL_DISTRICTS if name in frame.entities]
    return [
        np.where(_in_areas(frame, divided), areas, b""),
        *_kinds_of_quarters(frame),
        *(_area(frame, name, why) for name in districts or _SCHOOL_DISTRICTS),
        _area(frame, "block_group", why),
    ]


def _production_columns(frame: Frame, step: SpineStep, recipe: Recipe) -> list[npt.NDArray[Any]]:
    """Return the areas of the production rule: MCD or place, AIAN area, kinds of group quarters present.

    Section 6 of the paper: minor civil divisions count in the strong-MCD states outside of AIAN areas, places
    everywhere else.
    """
    why = f"the production rule of the step {step.step} (no entities are given)"
    divided = next((other for other in recipe.steps if other.step == "aian"), SpineStep("aian"))
    areas = _area(frame, divided.areas or "aianhh", why)
    inside = _in_areas(frame, divided)
    strong = _strong(frame)
    place = _area(frame, "place", why)
    cousub = _area(frame, "cousub", why) if bool((strong & ~inside).any()) else place
    columns: list[npt.NDArray[Any]] = [
        np.where(strong & ~inside, cousub, place),
        np.where(inside, areas, b""),
    ]
    if recipe.facilities and step.step == "block_groups":
        columns += _kinds_of_quarters(frame)
    return columns
