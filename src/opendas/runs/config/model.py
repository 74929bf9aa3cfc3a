"""The run file as types: every documented key, its default and its form.

Only form is judged here. What a value means together with a product, a reader or a budget is decided in
:mod:`opendas.runs.config.resolve`. Exact numbers become :class:`~fractions.Fraction` when they are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError, PydanticKnownError

from opendas.errors import ConfigError
from opendas.files.storage.remote import RemoteAddress
from opendas.geography.frame import CENSUS_GEOLEVELS, ENTITY_CATEGORIES
from opendas.geography.recipe import BLOCK_GROUP_RULES, NAMED_SPINES, SpineStep
from opendas.geography.tract_groups import METHODS
from opendas.parts import ESTIMATORS, MECHANISMS, names_of_parts
from opendas.privacy.exact import parse_fraction
from opendas.readers.input.paths import expanded
from opendas.readers.input.spec import FRAME_FROM_RECORDS, MemoryTable
from opendas.runs.config.words import LONGEST, is_one_line, not_one_of
from opendas.sampling.mechanisms import OWN_MECHANISMS
from opendas.schema.declarations import ContributionBound, Distinct
from opendas.schema.product import Product
from opendas.schema.provenance import Discovery, Provenance
from opendas.topdown.family_data import Estimator
from opendas.topdown.model import OWN_ESTIMATORS, TOPDOWN

BUILT_IN_PRODUCTS = ("pl94-persons", "pl94-units", "dhc-persons", "dhc-units", "dhc-units-tenvacgq")
"""Products that need no product file."""

CENSUS_READERS = ("pl94-2010", "pl94-2020", "ppmf", "mdf", "cef")
"""Readers whose leaves are census blocks, so that the geolevels are known beforehand."""

LONGEST_GEOCODE = 10_000
"""Characters of a geocode that a run file may speak of: arrays of codes are that wide."""

RESERVED_GEOLEVELS = frozenset({"root", "leaf", "spine", "constraints", "tie", "prior", *ENTITY_CATEGORIES})
"""Names that no geolevel has: they stand for others in run files, or for files beside its measurements."""

_GEOLEVEL = re.compile(r"[^\W_]([\w .-]{0,62}[^\W_])?")

_STEP_KEYS: Mapping[str, tuple[str, ...]] = {
    "aian": ("areas", "codes", "level"),
    "split": ("level", "name", "entities"),
    "intersect": ("level", "name", "entities"),
    "group": ("level", "name", "entities", "fanout_cutoff", "off_by_one"),
    "block_groups": ("name", "entities", "rule", "fanout_cutoff", "off_by_one"),
    "tract_groups": ("level", "name", "entities", "method", "fanout_cutoff", "entity_threshold"),
    "prims": ("level", "name"),
    "tract_subsets": ("level", "name"),
    "tract_subset_groups": ("level", "name", "fanout_cutoff", "off_by_one"),
    "bypass": ("largest_family",),
}


def _exact(value: object) -> Fraction:
    try:
        return parse_fraction(value)
    except ConfigError as error:
        rule = str(error).removeprefix("value: ")
        raise PydanticCustomError("exact_number", "{rule}", {"rule": rule}) from None


def _one_line(value: str) -> str:
    """Words that stand in a certificate: one line, neither empty nor a page."""
    if not is_one_line(value):
        raise PydanticCustomError(
            "words", "expected one line of 1 to {most} printable characters", {"most": LONGEST}
        )
    return value.strip()


def _geolevel(value: str) -> str:
    """A geolevel's name is that of its file of measurements, too."""
    if not _GEOLEVEL.fullmatch(value):
        raise PydanticCustomError(
            "geolevel",
            "the name of a geolevel has at most 64 characters: letters, digits, spaces and _ - . ; it begins "
            "and ends with a letter or digit",
        )
    return value


def _source(value: object, info: ValidationInfo) -> Path | RemoteAddress | MemoryTable:
    """Keep an address, and a table in memory; anything else is a path."""
    if isinstance(value, MemoryTable):
        return value
    address = RemoteAddress.of(value) if isinstance(value, str) else None
    return _path(value, info) if address is None else address


def _path(value: object, info: ValidationInfo) -> Path:
    if not isinstance(value, str) or not value:
        raise PydanticCustomError("path", "expected a path in quotes, not empty")
    folder = (info.context or {}).get("folder", Path())
    return Path(folder) / expanded(value)


def _as_tuple(value: object) -> object:
    return (value,) if isinstance(value, str | MemoryTable) else value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise PydanticKnownError("string_type")
    return value


def _product(value: object, info: ValidationInfo) -> str | Product:
    """Keep a product, and the name of a built-in one; anything else is the path of a product file."""
    if isinstance(value, Product):
        return value
    name = _text(value)
    if not name:
        raise PydanticKnownError("string_too_short", {"min_length": 1})
    return name if name in BUILT_IN_PRODUCTS else str(_path(name, info))


def _estimator(value: object) -> str | Estimator:
    """Keep an estimator of a program, and a name that is known; other packages are not loaded for it."""
    if not isinstance(value, str) and callable(getattr(value, "fit", None)):
        return cast(Estimator, value)
    return _part(_text(value), ESTIMATORS, OWN_ESTIMATORS)


def _mechanism(value: object) -> str:
    return _part(_text(value), MECHANISMS, tuple(OWN_MECHANISMS))


def _part(name: str, group: str, own: Sequence[str]) -> str:
    """Return the name of a part, ours or of another package; packages are looked for where it is not ours."""
    if name in own or name in (others := names_of_parts(group, own)):
        return name
    raise PydanticCustomError("part", "{rule}", {"rule": not_one_of(name, (*own, *others))})


def _frame(value: object, info: ValidationInfo) -> str | MemoryTable:
    """Keep the word for a frame taken from the records, a table, and an address; else it is a file's path."""
    if isinstance(value, MemoryTable) or value == FRAME_FROM_RECORDS:
        return value
    return str(_source(_text(value), info))


def _provenance(value: object) -> Provenance:
    try:
        return Provenance(_text(value))
    except ValueError:
        rule = not_one_of(str(value), [each.value for each in Provenance])
        raise PydanticCustomError("provenance", "{rule}", {"rule": rule}) from None


def _provenances(value: object) -> Provenance | dict[str, Provenance]:
    """Read where parts of the domain come from: one word for all of them, or one for each."""
    if isinstance(value, Mapping):
        return {str(name): _provenance(of) for name, of in value.items()}
    return _provenance(value)


Exact = Annotated[Fraction, PlainValidator(_exact)]
GeolevelName = Annotated[str, AfterValidator(_geolevel)]
Origin = Annotated[Provenance, PlainValidator(_provenance)]
Origins = Annotated[Provenance | Mapping[str, Provenance], PlainValidator(_provenances)]
RunPath = Annotated[Path, PlainValidator(_path)]
RunSource = Annotated[Path | RemoteAddress | MemoryTable, PlainValidator(_source)]
Name = Annotated[str, Field(min_length=1)]
Edges = Annotated[tuple[int | Annotated[float, Field(allow_inf_nan=False)], ...], Field(min_length=1)]
Words = Annotated[str, AfterValidator(_one_line)]
PassTable = Mapping[str, tuple[tuple[str, ...], ...]]


class Section(BaseModel):
    """Common form of all sections: strict types, nothing unknown, nothing changed afterwards."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class RunSection(Section):
    """``[run]``: what is released, and how."""

    product: Annotated[str | Product, PlainValidator(_product)]
    mechanism: Annotated[str, PlainValidator(_mechanism)] = "discrete-gaussian"
    neighbours: Literal["bounded", "unbounded"] = "bounded"
    estimator: Annotated[str | Estimator, PlainValidator(_estimator)] = TOPDOWN
    drop_invariants: tuple[Name, ...] = ()
    failsafe: bool = False


class UnitsSection(Section):
    """``[input] units``: public counts of housing units and facilities per leaf; ``cef``: unit records."""

    path: Annotated[tuple[RunSource, ...], BeforeValidator(_as_tuple), Field(min_length=1)]
    geocode: Name = "geocode"
    columns: Mapping[str, Name] = Field(default_factory=dict)
    provenance: Origin | None = None


class DiscoverySection(Section):
    """``discovery``: the act that found what is private, as ``opendas init table --rho`` writes it."""

    act: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    rho: Annotated[Exact, Field(gt=0)]
    delta: Annotated[Exact, Field(ge=0, lt=1)]

    @property
    def discovery(self) -> Discovery:
        """The act."""
        return Discovery(self.act, self.rho, self.delta)


class InputSection(Section):
    """``[input]``: where the confidential table lies."""

    reader: Literal["pl94-2010", "pl94-2020", "ppmf", "mdf", "cef", "records", "histogram"]
    path: Annotated[tuple[RunSource, ...], BeforeValidator(_as_tuple), Field(min_length=1)]
    geocode: Name = "geocode"
    count: Name = "count"
    columns: Mapping[str, Name] = Field(default_factory=dict)
    constants: Mapping[str, Name] = Field(default_factory=dict)
    other: Mapping[str, Name] = Field(default_factory=dict)
    bins: Mapping[str, Edges] = Field(default_factory=dict)
    units: UnitsSection | None = None
    unit_id: Name | None = None
    unit: Name | None = None
    at_most: Annotated[int, Field(ge=1)] | None = None
    distinct: Literal["leaf", "cell", "record"] | None = None

    @property
    def contribution(self) -> ContributionBound | None:
        """What is counted of a unit that may have several records."""
        if self.unit_id is None or self.at_most is None:
            return None
        distinct = None if self.distinct is None else Distinct(self.distinct)
        return ContributionBound(self.unit_id, self.at_most, distinct)


class StepSection(Section):
    """One step of a spine recipe; which keys belong to it depends on ``step``."""

    step: Literal[
        "aian",
        "split",
        "intersect",
        "group",
        "block_groups",
        "tract_groups",
        "prims",
        "tract_subsets",
        "tract_subset_groups",
        "bypass",
    ]
    areas: Literal[ENTITY_CATEGORIES] | None = None  # type: ignore[valid-type]
    codes: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    fanout_cutoff: Annotated[int, Field(ge=1)] | None = None
    entity_threshold: Annotated[int, Field(ge=0)] | None = None
    off_by_one: bool | None = None
    level: Name | None = None
    name: GeolevelName | None = None
    entities: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    rule: Literal[BLOCK_GROUP_RULES] | None = None  # type: ignore[valid-type]
    method: Literal[METHODS] | None = None  # type: ignore[valid-type]
    largest_family: Annotated[int, Field(ge=2)] | None = None

    @model_validator(mode="after")
    def _keys_of_the_step(self) -> StepSection:
        allowed = _STEP_KEYS[self.step]
        for key in sorted(self.model_fields_set - {"step"} - set(allowed)):
            known = ", ".join(allowed) or "no further key"
            raise PydanticCustomError(
                "step_key",
                "step {step} has no key {key}; it takes {known}",
                {"step": self.step, "key": key, "known": known},
            )
        return self

    @property
    def step_of_recipe(self) -> SpineStep:
        """The step with its defaults."""
        given = self.model_dump(exclude_none=True)
        return SpineStep(**given)


class SpineSection(Section):
    """A spine by name, or as steps from the standard spine."""

    name: Literal["standard", "aian", "optimized", "dhc"] | None = None
    steps: tuple[StepSection, ...] = ()

    @property
    def recipe_steps(self) -> tuple[SpineStep, ...]:
        """The steps, those of a named spine included."""
        if self.name is not None:
            return NAMED_SPINES[self.name]
        return tuple(step.step_of_recipe for step in self.steps)


def _recipe(value: object) -> object:
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, tuple):
        return {"steps": value}
    if isinstance(value, SpineSection):
        return value
    raise PydanticCustomError("spine", "expected the name of a spine or a list of steps")


class LevelSection(Section):
    """One geolevel of a user's own hierarchy: a code prefix or a column."""

    name: GeolevelName
    prefix: Annotated[int, Field(ge=0, le=LONGEST_GEOCODE)] | None = None
    column: Name | None = None

    @model_validator(mode="after")
    def _one_rule(self) -> LevelSection:
        if self.prefix is not None and self.column is not None:
            raise PydanticCustomError("level", "a geolevel is found by prefix or by column, not by both")
        return self


class GeographySection(Section):
    """``[geography]``: the hierarchy and the public list of leaves."""

    spine: Annotated[SpineSection, BeforeValidator(_recipe)] = SpineSection(name="standard")
    root: Literal["us", "state"] = "state"
    entities: tuple[Literal[ENTITY_CATEGORIES], ...] | None = None  # type: ignore[valid-type]
    levels: tuple[LevelSection, ...] = ()
    frame: Annotated[str | MemoryTable, PlainValidator(_frame)] | None = None
    other: Name | None = None
    provenance: Origins | None = None
    discovery: DiscoverySection | None = None
    block_assignment: Annotated[tuple[RunPath, ...], BeforeValidator(_as_tuple)] = ()

    @model_validator(mode="after")
    def _levels_are_usable(self) -> GeographySection:
        names = [level.name for level in self.levels]
        if len({name.casefold() for name in names}) != len(names):
            raise PydanticCustomError(
                "levels", "two levels have the same name; upper and lower case are the same"
            )
        reserved = RESERVED_GEOLEVELS & {name.lower() for name in names}
        if reserved:
            raise PydanticCustomError(
                "levels", "levels: {name} is a reserved word", {"name": sorted(reserved)[0]}
            )
        for level in self.levels[:-1]:
            if level.prefix is None and level.column is None:
                raise PydanticCustomError(
                    "levels",
                    "levels: {name} needs a prefix or a column (only the last, the leaf, may do without)",
                    {"name": level.name},
                )
        prefixes = [level.prefix for level in self.levels if level.prefix is not None]
        if prefixes != sorted(set(prefixes)):
            raise PydanticCustomError(
                "levels", "list the levels from the top down: each prefix is longer than the one before it"
            )
        return self


class BudgetSection(Section):
    """``[budget]``: a preset, or exact numbers, or a preset with parts replaced."""

    preset: Name | None = None
    rho: Exact | None = None
    epsilon: Exact | None = None
    geolevels: Mapping[str, Exact] | None = None
    delta: Exact | None = None
    normalise: bool | None = None
    source: Words | None = None
    queries: Mapping[str, Mapping[str, Exact]] | None = None


class StageSection(Section):
    """``[[passes.earlier]]``: a stage before the last one."""

    least_squares: PassTable | None = None
    rounder: PassTable = Field(min_length=1)


class PassesSection(Section):
    """``[passes]``: the order of estimation."""

    least_squares: PassTable | None = None
    rounder: PassTable | None = None
    earlier: tuple[StageSection, ...] | None = None
    slack: Annotated[Exact, Field(ge=0, le=1 << 40)] = Fraction(0)  # more than any count
    milp: bool = False


class TieSection(Section):
    """``[tie]``: the release that this one agrees with."""

    release: RunPath


class PriorSection(Section):
    """``[prior]``: a public table of leaves that the estimator ``posterior`` starts from."""

    path: RunPath
    name: Words
    query: Name
    geocode: Name = "geocode"
    count: Name = "count"


class RunFile(Section):
    """A run file."""

    run: RunSection
    input: InputSection
    geography: GeographySection = GeographySection()
    budget: BudgetSection = BudgetSection()
    passes: PassesSection = PassesSection()
    tie: TieSection | None = None
    prior: PriorSection | None = None

    @property
    def geolevels(self) -> tuple[str, ...]:
        """Official geolevels of the run, top first, the leaf last."""
        if self.input.reader in CENSUS_READERS:
            return CENSUS_GEOLEVELS[CENSUS_GEOLEVELS.index(self.geography.root) :]
        return tuple(level.name for level in self.geography.levels)


def freeze(value: Any) -> Any:
    """Return TOML data with its lists made tuples, as the strict models expect."""
    if isinstance(value, dict):
        return {key: freeze(item) for key, item in value.items()}
    return tuple(freeze(item) for item in value) if isinstance(value, list) else value
