"""The comparison: one long table of every figure in every source, and what is written of it.

Axes: ``s`` sources, ``g`` geounits, ``t`` columns of a table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from opendas.arrays import Bools, Ints
from opendas.comparison.sources import TRUTH, Common, Counts, Source, common_counts
from opendas.comparison.summaries import summaries
from opendas.errors import ConfigError
from opendas.files.area_files import AreaWeights, plan_level
from opendas.files.official_areas import OfficialAreas
from opendas.files.release_folder import ReleasedProduct
from opendas.files.storage.parquet import text_column
from opendas.geography.frame import Frame, Grouping
from opendas.metrics.output import CONFIDENTIAL
from opendas.tables.cells import Table, check_geolevel, check_held, product_table, published_tables
from opendas.tables.counting import count_table
from opendas.tables.frames import Table as AnyTable
from opendas.tables.names import area_names
from opendas.tables.replicate_margins import Replicated, number_of_replicates, table_margins
from opendas.tables.tabulate import NO_MARGIN, margins

REPLICATES, MEASUREMENT, FRAME = "replicates", "measurement", "frame"
"""What a margin is from: of the published count; of the one noisy answer below it; none can live there."""

_HEADS: Mapping[str, int] = {"P1": 9, "P2": 11, "P3": 9, "P4": 11}
"""Columns before the combinations of races one by one."""

_UNIVERSES = {
    "P3": "Population 18 years and over",
    "P4": "Population 18 years and over",
    "H1": "Housing units",
}
_MOST_ROWS = 32
"""Columns of a query group that is compared unasked."""

_YEARS_APART = ("tract", "block_group", "block")
"""Geolevels whose codes mean other land in another census."""

_VALUES_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Figures:
    """A table at a geolevel, from all sources."""

    KINDS = ("", REPLICATES, MEASUREMENT, FRAME)

    geolevel: str
    units: Grouping
    names: tuple[str, ...]
    table: Table
    labels: tuple[str, ...]
    values: Ints  # int64 (s, g, t)
    # One per source: margin, int64 (g, t), and what it is from, int8 (g, t), as a place in :attr:`KINDS`.
    margins: tuple[tuple[Ints, Ints] | None, ...]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several counts of the same places.

    Parameters
    ----------
    sources : tuple of Source
        The last is what the others are compared with.
    geolevels : tuple of str
        Those wanted; empty for all that the sources have.
    tables : tuple of str
        Tables or query groups; empty for the usual ones.
    level : Fraction
        Of the margins.
    plan : callable(frame), optional
        Resolves a block assignment.
    """

    sources: tuple[Source, ...]
    geolevels: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    level: Fraction = Fraction(9, 10)
    plan: Callable[[Frame], AreaWeights] | None = None

    def __repr__(self) -> str:
        note = ", confidential" if self.confidential else ""
        return f"Comparison({' beside '.join(self.labels)}{note})"

    def __post_init__(self) -> None:
        if len(self.sources) < 2:
            raise ConfigError(
                "a comparison takes two sources or more. Give a second release or file, or --truth RUN.toml "
                "for the confidential input."
            )
        _ = self.common

    @property
    def confidential(self) -> bool:
        """Whether the truth is among the sources."""
        return any(source.kind == TRUTH for source in self.sources)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Names of the sources, told apart by number where two have one name."""
        names = [source.name for source in self.sources]
        return tuple(
            name if names.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names, 1)
        )

    @cached_property
    def common(self) -> tuple[Common, ...]:
        """Products that all sources have."""
        return common_counts(self.sources)

    @cached_property
    def official(self) -> OfficialAreas | None:
        """Names of areas and where they lie, from the first source that has them from a published header."""
        return next((areas for source in self.sources if (areas := source.official) is not None), None)

    @cached_property
    def left_out(self) -> tuple[str, ...]:
        """Geolevels that are not compared, as their codes mean other land in another census."""
        years = {source.vintage for source in self.sources} - {None}
        return _YEARS_APART if len(years) > 1 else ()

    def levels_of(self, common: Common) -> tuple[str, ...]:
        """Return the geolevels and categories of a product that are compared, districts of a plan last."""
        frame = common.frame
        for name in self.geolevels:
            check_geolevel(frame, name)
        wanted = self.geolevels or (*frame.geolevels, *frame.categories)
        found = [name for name in wanted if name not in self.left_out and len(common.grouping(name))]
        return (*found, *((plan_level(common.frame),) if self.plan is not None else ()))

    def units(self, common: Common, geolevel: str) -> Grouping:
        """Return the geounits of a geolevel, or the districts of the plan."""
        return common.grouping(geolevel) if common.frame.has(geolevel) else self._districts(common)[0]

    def _districts(self, common: Common) -> tuple[Grouping, int]:
        assert self.plan is not None
        areas = self.plan(common.frame)
        return areas.districts(common.frame), areas.skipped

    def tables_of(self, common: Common) -> tuple[Table, ...]:
        """Return the tables of a product that are compared."""
        product = common.product
        if self.tables:
            known = {*published_tables(product.layout), *product.workload.positions}
            every = {name for each in self.common for name in published_tables(each.product.layout)}
            asked = [name for name in self.tables if name in known or name not in every]
            found = tuple(product_table(product, name) for name in asked)
            for each in common.counts:
                for table in found:
                    check_held(each.reader, product, table)
            return found
        if product.layout == "persons":
            return tuple(_without_combinations(product_table(product, name)) for name in ("P2", "P4"))
        if product.layout == "units":
            return (product_table(product, "H1"),)
        groups = [group for group in product.workload.groups(product.query_names) if group.size <= _MOST_ROWS]
        return tuple(product_table(product, group.name) for group in groups)

    def figures(self, common: Common, geolevel: str) -> Iterator[Figures]:
        """Yield the tables of a product at a geolevel."""
        units = self.units(common, geolevel)
        names = place_names(common, self.official, units)
        for table in self.tables_of(common):
            values = np.stack([count_table(estimate, table, units) for estimate in common.estimates])
            found = tuple(
                None if each.released is None else _margins(each, table, units, self.level, self._own(each))
                for each in common.counts
            )
            yield Figures(geolevel, units, names, table, _labels(table), values, found)

    def _own(self, counts: Counts) -> Callable[[str], Grouping | None]:
        """Return how the geounits of a geolevel are found in the frame of one source; None if it has none."""

        def grouping(geolevel: str) -> Grouping | None:
            if counts.frame.has(geolevel):
                return counts.frame.grouping(geolevel) if geolevel in known else None
            if self.plan is None:
                return None
            common = Common(
                counts.product,
                (counts,),
                counts.frame,
                (counts.estimate,),
                np.ones(len(counts.frame), dtype=np.bool_),
            )
            return self._districts(common)[0]

        known = (*counts.frame.geolevels, *counts.frame.categories)
        return grouping

    def _urban(self, common: Common) -> Grouping | None:
        """Return the blocks by urban and rural; None where no header says it."""
        if self.official is None or common.frame.leaf != "block":
            return None
        rows = self.official.rows("block")
        known = dict(zip(self.official.field("geocode", rows), self.official.field("UR", rows), strict=True))
        if not any(known.values()):
            return None
        codes = [known.get(bytes(code).decode(), "").strip().encode() for code in common.frame.geocodes]
        return Grouping.of("urban_rural", np.where(common.shared, np.array(codes), b""))

    def _may_have_margins(self, number: int) -> bool:
        """Whether the long table has a column for margins of a source: of the first it has, in any case."""
        released = (each.released for each in self.sources[number].counts)
        return number == 0 or any(each is not None and _knows_margins(each) for each in released)

    @property
    def schema(self) -> pa.Schema:
        """Columns of the long table."""
        text = pa.string()
        fields = [(name, text) for name in ("geocode", "name", "geolevel", "variable", "label")]
        fields += [(f"value_{number}", pa.int64()) for number in range(1, len(self.sources) + 1)]
        for number in range(1, len(self.sources) + 1):
            end = "" if number == 1 else f"_{number}"
            if number < len(self.sources):
                fields += [(f"difference{end}", pa.int64()), (f"percent{end}", pa.float64())]
            if self._may_have_margins(number - 1):
                fields += [(f"margin{end}", pa.int64()), (f"margin_of{end}", text)]
        return pa.schema(fields)

    @property
    def metadata(self) -> dict[str, Any]:
        """What the long table says of itself."""
        last = len(self.sources)
        said: dict[str, Any] = {
            "format": "opendas comparison 1",
            "sources": {
                f"value_{number}": {"name": name, "kind": source.kind, "stamps": list(source.stamps)}
                for number, (name, source) in enumerate(zip(self.labels, self.sources, strict=True), 1)
            },
            "difference": f"value_1 less value_{last}; difference_2 is value_2 less value_{last}, and so on",
            "percent": f"100 difference / value_{last}; null where that is 0",
            "margin": f"{float(self.level):g} margin of value_1; margin_2 of value_2, and so on",
            "margin_of": "replicates: the error of the published count; measurement: the noise of the one "
            "answer below it, before post-processing; frame: nobody can live there",
        }
        return {"notice": CONFIDENTIAL, "confidential": True, **said} if self.confidential else said

    def batches(self) -> Iterator[pa.Table]:
        """Yield the long table in parts: a row for each geounit and variable."""
        for common in self.common:
            for geolevel in self.levels_of(common):
                for figures in self.figures(common, geolevel):
                    step = max(1, _VALUES_AT_ONCE // len(figures.table.columns))
                    for start in range(0, len(figures.units), step):
                        yield self._rows(figures, slice(start, min(start + step, len(figures.units))))

    def _rows(self, figures: Figures, part: slice) -> pa.Table:
        columns, values = figures.table.columns, figures.values[:, part].reshape(len(self.sources), -1)
        rows = part.stop - part.start
        unit = np.repeat(np.arange(rows, dtype=np.int32), len(columns))
        column = np.tile(np.arange(len(columns), dtype=np.int32), rows)
        codes = [bytes(code).decode() for code in figures.units.geocodes[part]]
        arrays = [
            text_column(unit, codes),
            text_column(unit, figures.names[part]),
            text_column(np.zeros_like(unit), [figures.geolevel]),
            text_column(column, columns),
            text_column(column, figures.labels),
            *map(pa.array, values),
        ]
        last = len(self.sources) - 1
        for number, found in enumerate(figures.margins):
            if number < last:
                difference = values[number] - values[last]
                empty = values[last] == 0
                percent = 100.0 * difference / np.where(empty, 1, values[last])
                arrays += [pa.array(difference), pa.array(percent, mask=empty)]
            if found is not None:
                margin, kind = (each[part].ravel() for each in found)
                arrays.append(pa.array(margin, mask=margin == NO_MARGIN))
                arrays.append(pa.array([Figures.KINDS[k] or None for k in kind.tolist()], pa.string()))
            elif self._may_have_margins(number):
                arrays += [pa.nulls(len(unit), pa.int64()), pa.nulls(len(unit), pa.string())]
        cast = [
            array.cast(field.type) if array.type != field.type else array
            for array, field in zip(arrays, self.schema, strict=True)
        ]
        return pa.Table.from_arrays(cast, schema=self.schema)

    @property
    def table(self) -> AnyTable:
        """The whole long table."""
        return AnyTable(pa.concat_tables([self.schema.empty_table(), *self.batches()]))

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What people argue about, as plain values for JSON."""
        head: dict[str, Any] = {"confidential": self.confidential}
        if self.confidential:
            head["notice"] = CONFIDENTIAL
        head |= {
            "sources": [
                {**source.to_dict(), "name": name}
                for name, source in zip(self.labels, self.sources, strict=True)
            ],
            "reference": self.labels[-1],
            "difference": f"{', '.join(self.labels[:-1])} less {self.labels[-1]}",
            "level": float(self.level),
            "left_out": list(self.left_out),
            "products": [],
        }
        for common in self.common:
            levels = self.levels_of(common)
            units = {name: self.units(common, name) for name in levels}
            names = {name: place_names(common, self.official, found) for name, found in units.items()}
            head["products"].append(
                {
                    "product": common.product.name,
                    "leaves": len(common.frame),
                    "leaves_compared": int(common.shared.sum()),
                    "geolevels": {name: len(found) for name, found in units.items()},
                    "tables": [table.name for table in self.tables_of(common)],
                    **({"blocks_unknown": self._districts(common)[1]} if self.plan is not None else {}),
                    **summaries(common, self.labels, units, names, self._urban(common)),
                }
            )
        return head


def _without_combinations(table: Table) -> Table:
    """Return a table of races without the combinations one by one."""
    most = _HEADS[table.name]
    return dataclasses.replace(
        table, columns=table.columns[:most], labels=table.labels[:most], classes=table.classes[:, :most]
    )


def _labels(table: Table) -> tuple[str, ...]:
    """Return the labels of a table with what it counts, where the label of a cell does not say it."""
    labels = table.labels
    if table.name in ("P2", "P4"):  # races of persons who are not Hispanic
        labels = (*labels[:3], *(f"{labels[2]}: {label}" for label in labels[3:]))
    universe = _UNIVERSES.get(table.name)
    return labels if universe is None else tuple(f"{universe}: {label}" for label in labels)


def place_names(common: Common, official: OfficialAreas | None, units: Grouping) -> tuple[str, ...]:
    """Return readable names of geounits, the code where there is none."""
    codes = [bytes(code).decode() for code in units.geocodes]
    names = area_names(common.frame, official, units) if common.frame.has(units.geolevel) else codes
    return tuple(name or code for name, code in zip(names, codes, strict=True))


def _knows_margins(released: ReleasedProduct) -> bool:
    return bool(number_of_replicates(released)) or released.measurements.is_dir()


def _margins(
    counts: Counts, table: Table, units: Grouping, level: Fraction, own: Callable[[str], Grouping | None]
) -> tuple[Ints, Ints] | None:
    """Return margins of a release's counts and what they are from, (g, t) each."""
    released = counts.released
    assert released is not None
    mine = own(units.geolevel)
    if mine is None:
        return None
    if number_of_replicates(released):
        margin = table_margins(Replicated.of(released), table, mine, level).margin.astype(np.int64)
        kind = np.full(margin.shape, Figures.KINDS.index(REPLICATES), dtype=np.int64)
    elif released.measurements.is_dir() and counts.frame.has(units.geolevel):
        margin = margins(released, table, mine, level)
        kind = np.where(margin == NO_MARGIN, 0, Figures.KINDS.index(MEASUREMENT))
    else:
        return None
    position = np.minimum(np.searchsorted(mine.geocodes, units.geocodes), len(mine) - 1)
    there: Bools = (mine.geocodes[position] == units.geocodes)[:, None]
    impossible = Figures.KINDS.index(FRAME)
    return np.where(there, margin[position], 0), np.where(there, kind[position], impossible)
