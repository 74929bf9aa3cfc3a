"""Readers ``ppmf``, ``mdf``, ``records`` and ``histogram``: files of rows, each with its leaf and its cell.

``records`` has one row per record and one column per attribute, ``histogram`` one row per leaf and
combination of levels, with a count. ``ppmf`` and ``mdf`` are the Bureau's published microdata, the production
layout, and our own files: one row per person or per unit, a census block in five columns, and the codes of
the production system. Neither of these holds a frame: it comes from ``units``, from ``frame``, or from the
records.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Codes, Floats, Ints
from opendas.errors import ConfigError, Finding, FormatError, SchemaError, nearest
from opendas.files.release_folder import tied_rows
from opendas.geography.frame import Frame
from opendas.readers.columns.coding import (
    Geocodes,
    attribute_keys,
    binned,
    coded_geocodes,
    codes_of,
    codes_or_other,
    takes_codes,
    unit_ids,
    whole_numbers,
)
from opendas.readers.columns.csv_parquet import Batch, column_names, is_parquet, read_batches, shown_name
from opendas.readers.columns.findings import FindingLog
from opendas.readers.columns.identifiers import seems_identifier, several_rows
from opendas.readers.counting.others import OtherLeaves
from opendas.readers.counting.tally import FileRows, Layout, Leaves, file_rows, read_rows
from opendas.readers.frame.frame_file import Hierarchy, frame_path, hierarchy
from opendas.readers.input.spec import (
    FRAME_FROM_RECORDS,
    InputData,
    Reader,
    ReaderSpec,
    Source,
)
from opendas.readers.microdata import Microdata, is_census
from opendas.schema.attributes import Attribute, Schema
from opendas.schema.pl94 import HHGQ_LEVELS
from opendas.schema.product import Product


@dataclass(frozen=True, slots=True)
class LongForm:
    """The layout of a table with one column per attribute."""

    schema: Schema
    geocode: str  # column of the leaf's geocode
    width: int | None  # characters of a geocode
    columns: tuple[str | None, ...]  # file column of each attribute; None where it is constant
    constants: tuple[int, ...]  # code of each constant attribute, 0 for the others
    count: str | None  # column of counts; None where each row is a record
    # For each attribute the label that every other label counts as; None where others are refused.
    other: tuple[str | None, ...] = ()
    # tuple of (float64 (k,) or None): for each attribute where its levels begin, in the order of its levels
    # without `other`; None where the column holds labels.
    bins: tuple[Floats | None, ...] = ()
    # Where rows belong whose leaf the frame does not list; None where they are refused.
    others: OtherLeaves | None = None
    # Columns that repeat what the frame says of a leaf, with what it says.
    upper: Mapping[str, Codes] = field(default_factory=dict)
    strict: bool = False  # whether a row that contradicts the frame there is an error
    # Of a product whose records have its attributes only where a second histogram says so.
    second: SecondHistogram | None = None

    @classmethod
    def of(cls, spec: ReaderSpec, width: int | None, *, counted: bool) -> LongForm:
        """Resolve the run file's part."""
        schema = spec.product.schema
        companion = spec.product.companion
        known = (*schema.names, *(() if companion is None else companion.schema.names))
        given_names: tuple[tuple[str, Mapping[str, object]], ...] = (
            ("columns", spec.columns),
            ("constants", spec.constants),
            ("other", spec.other),
            ("bins", spec.bins),
        )
        for option, given in given_names:
            for name in given:
                if name not in known:
                    raise ConfigError(
                        f"[input] {option}: product {spec.product.name!r} has no attribute {name!r}; "
                        f"{nearest(name, known)}"
                    )
        both = sorted(set(spec.columns) & set(spec.constants))
        if both:
            raise ConfigError(f"[input] {both[0]!r} is in columns and in constants; keep one.")
        constants = []
        for attribute in schema.attributes:
            label = spec.constants.get(attribute.name)
            keys = attribute_keys(attribute)
            if label is not None and str(label) not in keys:
                raise ConfigError(
                    f"[input] constants: {attribute.name!r} has no level {label!r}; it has "
                    f"{', '.join(attribute.levels[:12])}."
                )
            constants.append(0 if label is None else keys[str(label)])
        columns = tuple(
            None if name in spec.constants else spec.columns.get(name, name) for name in schema.names
        )
        for name, label in spec.other.items():
            if name not in schema.names:
                continue
            if name in spec.constants:
                raise ConfigError(f"[input] {name!r} is in other and in constants; keep one.")
            if label not in schema.attribute(name).levels:
                raise ConfigError(
                    f"[input] other: {label!r} is not a level of {name!r}; its levels are "
                    f"{', '.join(schema.attribute(name).levels[:12])}."
                )
        others = None
        if spec.other_leaf is not None:
            others = OtherLeaves(spec.other_leaf, spec.geocode, spec.levels[:-1])
        return cls(
            schema,
            spec.geocode,
            width,
            columns,
            tuple(constants),
            spec.count if counted else None,
            tuple(spec.other.get(name) for name in schema.names),
            tuple(_edges(spec, attribute) for attribute in schema.attributes),
            others,
            second=None if companion is None else SecondHistogram.of(spec, companion, width),
        )

    def beside(self, frame: Frame, spec: ReaderSpec) -> LongForm:
        """Return the layout with what a frame file says of the leaves, where every file repeats it.

        A record whose region is another than its ward's in the frame was coded wrongly in one of the two.
        """
        if spec.frame in (None, FRAME_FROM_RECORDS) or self.others is not None:
            return self
        taken = {self.geocode, self.count, *self.columns}
        wanted = {str(rule.column): rule.name for rule in spec.levels if rule.column not in {None, *taken}}
        for path in spec.paths if wanted else ():
            there = column_names(path)
            wanted = {column: name for column, name in wanted.items() if column in there}
        upper = {column: frame.codes(name) for column, name in wanted.items()}
        return replace(self, upper=upper, strict=spec.strict)

    @property
    def leaf_columns(self) -> Sequence[str]:
        """The geocode column, and those of levels above where they decide."""
        return (self.geocode,) if self.others is None else self.others.columns

    @property
    def leaf_field(self) -> str:
        """The geocode column."""
        return self.geocode

    @property
    def cell_columns(self) -> Sequence[str]:
        """The attributes' columns, and that of counts."""
        names = [name for name in self.columns if name is not None]
        names += [] if self.count is None else [self.count]
        return names if self.second is None else [*names, *self.second.layout.cell_columns]

    def leaves(self, batch: Batch, log: FindingLog) -> Geocodes:
        """Return the geocode of each row."""
        return coded_geocodes(batch, self.geocode, self.width, log)

    def cells(self, batch: Batch, log: FindingLog) -> Ints:
        """Return the cell of each row, -1 where a level is unknown, -2 where the row has no attributes."""
        cells = np.zeros(batch.rows, dtype=np.int64)
        wrong = np.zeros(batch.rows, dtype=bool)
        there = None if self.second is None else self.second.rows(batch, log)
        asked = None if there is None else there >= 0
        for attribute, column, constant, other, bins in zip(
            self.schema.attributes, self.columns, self.constants, self.other, self.bins, strict=True
        ):
            cells *= len(attribute)
            if column is None:
                cells += constant
                continue
            if bins is not None:
                codes = binned(batch, column, bins, attribute.levels, other, log)
                wrong |= codes < 0
                cells += codes
                continue
            if other is not None:
                cells += codes_or_other(batch, column, attribute.levels, other)
                continue
            rule = _level_rule(attribute.levels)
            codes = codes_of(batch, column, attribute_keys(attribute), rule, log, asked)
            wrong |= codes < 0
            cells += codes
        if self.second is not None and there is not None and asked is not None:
            wrong |= self.second.unlike(batch, np.where(wrong | ~asked, -1, cells), there, log)
        if wrong.any():
            cells[wrong] = -1
        if asked is not None:
            cells[~asked] = -2
        return cells

    def counts(self, batch: Batch, log: FindingLog) -> Ints | None:
        """Return the count of each row."""
        return None if self.count is None else whole_numbers(batch, self.count, log)


@dataclass(frozen=True, slots=True)
class SecondHistogram:
    """What the second histogram of a product says of its rows, by the tie between the two."""

    layout: LongForm  # of the second histogram, which counts every row
    query: str  # query group of the product whose rows both count
    row_here: npt.NDArray[np.int32]  # (n,): row of each cell of the product
    # (cells there,): row of each cell of the second histogram; -1 where a record has none of the product's
    # attributes.
    row_there: Ints

    @classmethod
    def of(cls, spec: ReaderSpec, companion: Product, width: int | None) -> SecondHistogram:
        """Resolve the run file's part."""
        product = spec.product
        if product.tie is None or product.tie.product != companion.name:
            raise ConfigError(f"product {product.name!r} has no [tie] to its companion {companion.name!r}.")
        columns, constants, other = (
            {name: text for name, text in given.items() if name in companion.schema.names}
            for given in (spec.columns, spec.constants, spec.other)
        )
        bins = {name: edges for name, edges in spec.bins.items() if name in companion.schema.names}
        theirs = replace(
            spec,
            product=companion,
            columns=columns,
            constants=constants,
            other=other,
            bins=bins,
            other_leaf=None,
        )
        query = product.workload.group(product.tie.query)
        there = tied_rows(product.tie, query, companion)
        return cls(LongForm.of(theirs, width, counted=False), query.name, query.row_of_cell, there)

    def rows(self, batch: Batch, log: FindingLog) -> Ints:
        """Return the row that each record counts in, int64 (rows,); -1 where it has no attributes."""
        cells = self.layout.cells(batch, log)
        return np.where(cells >= 0, self.row_there[cells], -1)

    def unlike(self, batch: Batch, cells: Ints, there: Ints, log: FindingLog) -> Bools:
        """Find records whose attributes contradict the second histogram, bool (rows,); -1 is no cell."""
        apart = (cells >= 0) & (self.row_here[cells] != there)
        rule = f"expected a value that agrees with {self.query} of the same record"
        batch.report(apart, self.layout.cell_columns[0], rule, log, SchemaError)
        return np.asarray(apart)


def _edges(spec: ReaderSpec, attribute: Attribute) -> Floats | None:
    """Return where the levels of an attribute begin; None where its column holds labels."""
    if attribute.name not in spec.bins:
        return None
    if attribute.name in spec.constants:
        raise ConfigError(f"[input] {attribute.name!r} is in bins and in constants; keep one.")
    edges = spec.bins[attribute.name]
    levels = [label for label in attribute.levels if label != spec.other.get(attribute.name)]
    if len(edges) != len(levels):
        raise ConfigError(
            f"[input] bins: {attribute.name!r} has {len(levels)} levels and {len(edges)} numbers: give one "
            "for each level, where it begins (the label under [input] other has none)."
        )
    if any(low >= high for low, high in itertools.pairwise(edges)):
        raise ConfigError(f"[input] bins: the numbers of {attribute.name!r} do not ascend.")
    return np.array(edges, dtype=np.float64)


def _level_rule(levels: Sequence[str]) -> str:
    few = len(levels) <= 8
    listed = ", ".join(levels) if few else f"{len(levels)} level labels ({levels[0]}, {levels[1]}, ...)"
    codes = f", or a code from 0 to {len(levels) - 1}" if takes_codes(levels) else ""
    return f"expected one of {listed}{codes}"


class RowReader(Reader):
    """Reads files of rows, in the layout that ``spec.reader`` names."""

    __slots__ = ()

    def file_rows(self) -> FileRows | None:
        """Return what it takes to count the rows elsewhere; None where that cannot be."""
        layout, levels, leaves = self._layout()
        found = file_rows(self.spec, layout, levels, leaves)
        path = self.spec.paths[0]
        if found is None or not isinstance(path, Path) or not path.is_file():  # at an address
            return found
        findings = (*self._unlike(layout), *self.identifiers())
        return replace(found, data=replace(found.data, findings=findings))

    def _read(self, cache: Path | None, *, planning: bool) -> InputData:
        layout, levels, leaves = self._layout()
        # That everybody lives in households is declared, not found in the data. A constant type of group
        # quarters is not enough: where its facilities are would still come from the records.
        declared = leaves == "frame" and self.spec.constants.get("hhgq") == HHGQ_LEVELS[0]
        declared = declared and self.spec.reader in _LONG_FORM
        unlike = () if planning else self._unlike(layout)
        data = read_rows(
            self.spec, layout, levels, leaves, cache, planning=planning, residence_is_declared=declared
        )
        if planning:
            return data
        return replace(data, findings=(*data.findings, *unlike, *self.identifiers()))

    def _unlike(self, layout: Layout) -> tuple[Finding, ...]:
        """Say which files have other columns than most: tables of several kinds may lie in one folder."""
        wanted = {*layout.leaf_columns, *layout.cell_columns}
        findings, lacking = _unlike_files(self.spec.paths, wanted)
        if lacking or (findings and self.spec.strict):
            raise FormatError(
                "the input holds tables of several kinds. Keep those of one kind in a folder of their own, "
                "or name them in [input] path.",
                findings,
            )
        return findings

    def identifiers(self) -> tuple[Finding, ...]:
        """Say which columns seem to say whose a record is, where the run counts records of nobody.

        Opens the records.
        """
        if self.spec.reader != "records" or self.spec.contribution is not None:
            return ()
        layout, levels, _ = self._layout()
        read = {*layout.leaf_columns, *layout.cell_columns, *levels.columns}
        return tuple(_unread_identifiers(self.spec.paths[0], read))

    def _layout(self) -> tuple[Layout, Hierarchy, Leaves]:
        spec, levels = self.spec, hierarchy(self.spec)
        if spec.reader in _LONG_FORM:
            layout = LongForm.of(spec, levels.width, counted=spec.reader == "histogram")
            return layout, levels, "records" if frame_path(spec) is None else "frame"
        leaves: Leaves = "records" if spec.units is None else "units"
        if spec.frame not in (None, FRAME_FROM_RECORDS):
            leaves = "frame"
        if is_census(spec.product):
            return Microdata.of(spec.product, column_names(spec.paths[0])), levels, leaves
        if spec.reader == "mdf":  # a user's own product: geocode and one label column per attribute
            return LongForm.of(spec, levels.width, counted=False), levels, leaves
        raise ConfigError(
            f'reader "{spec.reader}" reads only for census products and products with the same attributes, '
            f'not for {spec.product.name!r}; try reader = "records".'
        )


def _unlike_files(paths: Sequence[Source], wanted: Set[str]) -> tuple[tuple[Finding, ...], bool]:
    """Return of each kind of columns but the most frequent an example, and whether one lacks wanted columns.

    Names of a text file's columns are not quoted, unless they are wanted: without its header, its first line
    is a record.
    """
    kinds: dict[frozenset[str], list[Source]] = {}
    for path in paths if len(paths) > 1 else ():
        kinds.setdefault(frozenset(column_names(path)), []).append(path)
    if len(kinds) < 2:
        return (), False
    usual = max(kinds, key=lambda columns: (wanted <= columns, len(kinds[columns])))
    findings = []
    for columns, files in kinds.items():
        if columns == usual:
            continue
        public = (
            columns | usual if is_parquet(files[0]) and is_parquet(kinds[usual][0]) else frozenset(wanted)
        )
        said = [
            f"{where}: {', '.join(sorted(names & public)[:_NAMED])}"
            for where, names in (("missing here", usual - columns), ("only here", columns - usual))
            if names & public
        ]
        here = f"{len(files):,} files like this one have" if len(files) > 1 else "this file has"
        many = len(kinds[usual])
        most = f"{many:,} files like" if many > 1 else "the file"
        has = "have" if many > 1 else "has"
        rule = f"{here} {len(columns)} columns; {most} {_file_name(kinds[usual][0])} {has} {len(usual)}"
        findings.append(Finding(_file_name(files[0]), None, None, "; ".join([rule, *said])))
    return tuple(findings), any(not wanted <= columns for columns in kinds)


def _file_name(path: Source) -> str:
    """Return a file's name behind its folder's: parts of several tables may have one name."""
    shown = shown_name(path)
    return shown if "/" in shown or not isinstance(path, Path) else f"{path.parent.name}/{shown}"


def _unread_identifiers(path: Source, read: Collection[str]) -> Iterator[Finding]:
    """Say of the columns that are not read which seem to say whose a record is, where some have several."""
    for name in column_names(path):
        if name in read or not seems_identifier(name):
            continue
        log = FindingLog()
        with contextlib.suppress(FormatError):  # lists, say, which nothing reads
            batch = next(read_batches(path, [name], log, rows=_LOOKED_AT), None)
            if batch and several_rows(len(np.unique(unit_ids(batch, name, log))), batch.rows):
                rule = (
                    "this column seems to identify a person or other unit, and some values have several "
                    "rows; this run protects one row. To protect all rows of one value, set "
                    f'[input] unit_id = "{name}" and at_most'
                )
                yield Finding(shown_name(path), None, name, rule)


_LOOKED_AT = 1 << 17
"""Rows of the first file in which identifiers are looked for."""

_NAMED = 12
"""Columns that a message names."""

_LONG_FORM = ("records", "histogram")
