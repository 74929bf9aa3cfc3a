"""Accuracy targets: what a release has to get right, where, and how often.

A target speaks of the geounits of one geolevel, or the areas of one entity category, in a range of true
population. TopDown paper, sections 6.3 and 8.1: the share of the largest race or ethnicity group within five
percentage points in 95 % of the areas off the spine with 500 people or more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from opendas.arrays import Bools
from opendas.errors import ConfigError, Finding, nearest
from opendas.metrics.errors import LevelErrors, project
from opendas.metrics.race_groups import adults, at_most, group_counts, has_groups, largest_group_holds
from opendas.privacy.exact import format_fraction
from opendas.runs.config.load import config_error, parse_toml, read_text
from opendas.runs.config.model import Exact, Name, Section
from opendas.schema.product import Product


class _TargetSection(Section):
    geolevel: Name
    measure: Literal["largest-group", "absolute-error", "relative-error", "mean-absolute-error"]
    query: Name | None = None
    base: Literal["total", "18plus"] = "total"
    within: Annotated[Exact, Field(ge=0)] | None = None
    share: Annotated[Exact, Field(gt=0, le=1)] = Fraction(19, 20)
    at_most: Annotated[Exact, Field(ge=0)] | None = None
    population: Annotated[tuple[int, ...], Field(min_length=1, max_length=2)] = (0,)


class _TargetsFile(Section):
    targets: tuple[_TargetSection, ...]


@dataclass(frozen=True, slots=True)
class Tally:
    """How a target did in one run or, added up, in several."""

    units: int = 0  # areas in the target's range of population, once a run
    held: int = 0  # of these, how many hold
    error: int = 0  # sum of absolute errors, for a mean

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.units + other.units, self.held + other.held, self.error + other.error)


@dataclass(frozen=True, slots=True)
class Target:
    """One accuracy target."""

    geolevel: str  # official geolevel or entity category
    # ``largest-group``: the share, in the area's people, of the group that is largest in the truth moves by
    # at most `within` percentage points. ``absolute-error``, ``relative-error``: the error of a query group,
    # summed over its rows, is at most `within` counts, or per cent of the area's people.
    # ``mean-absolute-error``: its mean over areas is at most `within`.
    measure: str
    # Query group; None with ``largest-group``: the race and ethnicity groups of the TopDown paper.
    query: str | None
    base: str  # with ``largest-group``: of all people (``total``) or of those of voting age (``18plus``)
    within: Fraction
    share: Fraction  # of the areas that have to hold. Means nothing with ``mean-absolute-error``.
    least: int = 0  # True population of the areas: at least, and at `most`
    most: int | None = None

    def __str__(self) -> str:
        """Say the target in words."""
        many = f"{self.least:,} to {self.most:,}" if self.most is not None else f"{self.least:,} or more"
        where = f"{self.geolevel}, {many} records"
        amount = format_fraction(self.within)
        if self.measure == "mean-absolute-error":
            return f"{where}: mean absolute error of {self.query} at most {amount}"
        part = f"{float(100 * self.share):g} % of the areas"
        if self.measure == "largest-group":
            base = " among those of voting age" if self.base == "18plus" else ""
            return f"{where}: share of the largest group{base} within {amount} points in {part}"
        unit = "counts" if self.measure == "absolute-error" else "%"
        return f"{where}: error of {self.query} within {amount} {unit} in {part}"

    def tally(self, level: LevelErrors, product: Product) -> Tally:
        """Count where the target holds in one estimate.

        `level`: of the target's geolevel or category.
        """
        population = level.population
        inside = population >= self.least
        if self.most is not None:
            inside &= population <= self.most
        if self.measure == "largest-group":
            held, counted = self._largest_group(level, product)
            inside &= counted
            return Tally(int(inside.sum()), int((held & inside).sum()))
        rows = abs(project(level.error, product.workload.group(self.query or "total")))
        error = np.asarray(rows.sum(axis=1), dtype=np.int64).ravel()
        units = int(inside.sum())
        if self.measure == "mean-absolute-error":
            return Tally(units, 0, int(error[inside].sum()))
        over = population if self.measure == "relative-error" else np.ones_like(population)
        allowed = self.within / (100 if self.measure == "relative-error" else 1)
        held = at_most(error, over, allowed)
        return Tally(units, int((held & inside).sum()))

    def _largest_group(self, level: LevelErrors, product: Product) -> tuple[Bools, Bools]:
        schema = product.schema
        if self.query is None:
            keep = adults(schema) if self.base == "18plus" else None
            truth = group_counts(level.truth, schema, keep)
            estimate = truth + group_counts(level.error, schema, keep)
        else:
            group = product.workload.group(self.query)
            truth = np.asarray(project(level.truth, group).toarray(), dtype=np.int64)
            estimate = truth + np.asarray(project(level.error, group).toarray(), dtype=np.int64)
        return largest_group_holds(truth, estimate, self.within / 100)

    def passes(self, tally: Tally) -> bool:
        """Whether a tally meets the target; one without areas does."""
        if self.measure == "mean-absolute-error":
            return tally.error <= self.within * tally.units
        return tally.held >= self.share * tally.units

    def lost(self, tally: Tally, remaining: int) -> bool:
        """Whether the target fails already, whatever `remaining` more areas do."""
        if self.measure == "mean-absolute-error":
            return tally.error > self.within * (tally.units + remaining)
        return tally.held + remaining < self.share * (tally.units + remaining)

    def value(self, tally: Tally) -> float | None:
        """Return the share of areas that hold, or the mean error; None without areas."""
        if not tally.units:
            return None
        part = tally.error if self.measure == "mean-absolute-error" else tally.held
        return part / tally.units


def load_targets(path: Path, product: Product, geolevels: Sequence[str]) -> tuple[Target, ...]:
    """Read a file of targets.

    - `path`: TOML with a list ``[[targets]]``; docs/explanation/tuning.md shows one.
    - `geolevels`: geolevels and entity categories of the stand-in data.

    Raises `ConfigError` naming file, line, field and rule of everything that is wrong.
    """
    text = read_text(path, "file of targets")
    document, lines = parse_toml(text, _TargetsFile, path.name, path.resolve().parent)
    findings: list[Finding] = []
    if not document.targets:
        findings.append(Finding(path.name, None, "targets", "expected at least one [[targets]]"))
    found = []
    for number, section in enumerate(document.targets):
        target, wrong = _target(section, product, geolevels)
        where = next((lines[key] for key in (("targets", number),) if key in lines), None)
        findings += [Finding(path.name, where, f"targets.{number}.{field}", rule) for field, rule in wrong]
        found.append(target)
    if findings:
        raise config_error(path.name, findings)
    return tuple(found)


def _target(
    section: _TargetSection, product: Product, geolevels: Sequence[str]
) -> tuple[Target, list[tuple[str, str]]]:
    wrong: list[tuple[str, str]] = []
    mean, largest = section.measure == "mean-absolute-error", section.measure == "largest-group"
    wanted, other = ("at_most", "within") if mean else ("within", "at_most")
    within = section.at_most if mean else section.within
    if within is None:
        wrong.append((wanted, f"{section.measure} needs {wanted}"))
    if getattr(section, other) is not None:
        wrong.append((other, f"{section.measure} takes {wanted}, not {other}"))
    if section.geolevel not in geolevels:
        wrong.append(
            ("geolevel", f"the data have no {section.geolevel!r}; {nearest(section.geolevel, geolevels)}")
        )
    query = section.query
    if query is not None:
        try:
            query = product.workload.canonical(query)
        except ConfigError as error:
            wrong.append(("query", str(error)))
    elif not largest:
        query = "total"
    elif not has_groups(product):
        wrong.append(("query", "the product has no race and ethnicity groups: name the query group"))
    meant = largest and section.query is None and adults(product.schema) is not None
    if section.base == "18plus" and not meant:
        wrong.append(("base", "18plus goes with the race and ethnicity groups of largest-group only"))
    least, most = section.population[0], section.population[1] if len(section.population) > 1 else None
    if least < 0 or (most is not None and most < least):
        wrong.append(("population", "expected [least] or [least, most], from 0 up"))
    target = Target(
        section.geolevel,
        section.measure,
        query,
        section.base,
        within if within is not None else Fraction(0),
        section.share,
        least,
        most,
    )
    return target, wrong
