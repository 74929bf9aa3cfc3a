"""The public frame of records and histograms: a list of leaves, their levels, units and areas.

Axes: ``l`` leaves.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Codes, Ints
from opendas.errors import ConfigError, GeographyError
from opendas.files.mdf.layout import PRODUCTION_LAYOUTS
from opendas.geography.frame import (
    CENSUS_GEOLEVELS,
    CENSUS_PREFIX,
    ENTITY_CATEGORIES,
    GQ_COLUMNS,
    Frame,
    LevelRule,
    official_codes,
)
from opendas.readers.columns.coding import geocodes_of, text_of, whole_numbers
from opendas.readers.columns.csv_parquet import PUBLIC_ROWS, column_names, no_rows, read_batches
from opendas.readers.columns.findings import FindingLog, Origin, joined, report_rows
from opendas.readers.frame.grfc import OID_COLUMN, read_blocks
from opendas.readers.input.spec import FRAME_FROM_RECORDS, ReaderSpec, Source, census_kind


@dataclass(slots=True, eq=False, repr=False)
class LeafColumns:
    """Leaves in ascending order of geocode, and their public columns, before they are a frame; not frozen.

    They are put in order, and leaves without any unit are taken out, one column at a time: for a nation a
    second frame beside the first is a gigabyte.
    """

    geocodes: Codes  # (l,)
    leaf: str  # name of the leaf geolevel
    # geolevel -> (l,): codes of levels above; empty where `root` is given.
    levels: dict[str, Codes] = field(default_factory=dict)
    # Topmost census geolevel, from which the levels of census blocks follow; None for other hierarchies.
    root: str | None = None
    units: dict[str, Ints] = field(default_factory=dict)  # column -> array (l,)
    entities: dict[str, Codes] = field(default_factory=dict)  # category -> (l,)

    def __len__(self) -> int:
        return len(self.geocodes)

    def take(self, chosen: npt.NDArray[Any]) -> None:
        """Keep the leaves at some positions, in their order, or those where a mask is true."""
        self.geocodes = self.geocodes[chosen]
        columns: dict[str, npt.NDArray[Any]]
        for columns in (self.levels, self.units, self.entities):
            for name in columns:
                columns[name] = columns[name][chosen]

    def frame(self) -> Frame:
        """Return the frame; it takes over the columns."""
        levels = self.levels if self.root is None else official_codes(self.geocodes, self.root)
        return Frame(self.geocodes, levels, self.leaf, self.units, self.entities)


CENSUS_UNITS = ("hu", *GQ_COLUMNS)
"""Unit columns of the census products."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """How the official codes of a leaf are found."""

    leaf: str  # name of the leaf geolevel
    width: int | None  # characters of a leaf geocode, where all have the same number
    above: tuple[LevelRule, ...]  # levels above the leaf, top first
    root: str | None = None  # topmost census geolevel for census blocks, None for other hierarchies

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the frame that hold codes of levels."""
        return tuple(rule.column for rule in self.above if rule.column is not None)


def hierarchy(spec: ReaderSpec) -> Hierarchy:
    """Return the levels of a run; the products of the census have official ones."""
    if not spec.levels:
        if spec.product.layout not in (*PRODUCTION_LAYOUTS, "tenvacgq") and census_kind(spec.product) is None:
            raise ConfigError(
                f"[geography] levels is missing: product {spec.product.name!r} has no official geolevels; "
                'give for instance levels = [{ name = "region", prefix = 2 }, { name = "ward", prefix = 5 }].'
            )
        return Hierarchy("block", CENSUS_PREFIX["block"], (), spec.root)
    names = [rule.name for rule in spec.levels]
    if len(set(names)) != len(names):
        raise ConfigError("[geography] levels: two levels have the same name; give each its own.")
    *above, leaf = spec.levels
    if leaf.column not in (None, spec.geocode):
        raise ConfigError(
            f"[geography] levels: the last level, {leaf.name!r}, is the leaf; its column is the geocode "
            f"column {spec.geocode!r}, not {leaf.column!r}."
        )
    prefixes = [rule.prefix for rule in spec.levels if rule.prefix is not None]
    if prefixes != sorted(set(prefixes)):
        raise ConfigError(
            "[geography] levels: each prefix must be longer than that of the level above, so that levels "
            "nest."
        )
    for rule in above:
        if (rule.prefix is None) == (rule.column is None):
            raise ConfigError(f"[geography] levels: {rule.name!r} needs either a prefix or a column.")
    if census_kind(spec.product) is not None and _are_official(spec.levels):
        return Hierarchy("block", CENSUS_PREFIX["block"], (), names[0])
    return Hierarchy(leaf.name, leaf.prefix, tuple(above))


def _are_official(levels: Sequence[LevelRule]) -> bool:
    """Return whether `levels` spell out the official geolevels, from some root to the block."""
    names = tuple(rule.name for rule in levels)
    if names != CENSUS_GEOLEVELS[-len(names) :]:
        return False
    prefixes = [rule.prefix for rule in levels]
    official = [CENSUS_PREFIX[name] for name in names]
    return prefixes[:-1] == official[:-1] and prefixes[-1] in (None, official[-1])


def arrange(
    geocodes: Codes,
    levels: Hierarchy,
    where: str,
    *,
    columns: Mapping[str, Codes] | None = None,
    units: dict[str, Ints] | None = None,
    entities: dict[str, Codes] | None = None,
    origins: Sequence[Origin] = (),
) -> LeafColumns:
    """Return the leaves `geocodes`, given in any order, with their columns in ascending order of geocode.

    `origins` say where in the file `where` they stand; without them, findings name no line.

    Raises `GeographyError` with every leaf that is listed twice, has an unusable geocode, or whose codes do
    not nest.
    """
    check = _Check(where, origins, FindingLog())
    order = None if bool(np.all(geocodes[1:] > geocodes[:-1])) else np.argsort(geocodes, kind="stable")
    if order is not None:
        repeated = np.zeros(len(order), dtype=bool)
        repeated[order[1:]] = geocodes[order[1:]] == geocodes[order[:-1]]
        check(repeated, levels.leaf, "expected each leaf once")
    codes = _level_codes(geocodes, levels, columns or {}, check)
    _check_nesting(codes, geocodes, levels, check)
    check.log.raise_if_any(UNUSABLE.format(where))
    arranged = LeafColumns(geocodes, levels.leaf, codes, levels.root, units or {}, entities or {})
    if order is not None:
        arranged.take(order)
    return arranged


UNUSABLE = "{}: the list of leaves is not usable."


class _Check(NamedTuple):
    """Records rows of leaves that are wrong, by their own lines."""

    where: str
    origins: Sequence[Origin]
    log: FindingLog

    def __call__(self, wrong: Bools, field: str, rule: str) -> None:
        if self.origins:
            report_rows(wrong, self.origins, field, rule, self.log, GeographyError)
        elif wrong.any():
            self.log.add(GeographyError, self.where, None, field, rule)


def _level_codes(
    geocodes: Codes, levels: Hierarchy, columns: Mapping[str, Codes], check: _Check
) -> dict[str, Codes]:
    """Return the codes of each leaf at the levels above; none for census blocks, whose digits tell them."""
    if levels.root is not None:
        wrong = ~np.strings.isdigit(geocodes) & (geocodes != b"")
        rule = "expected the 15 digits of a census block"
        check(wrong, levels.leaf, rule)
        return {}
    lengths = np.strings.str_len(geocodes)
    codes: dict[str, Codes] = {}
    for level in levels.above:
        if level.column is not None:
            code = columns[level.column]
            wrong = code == b""
            check(wrong, level.column, "expected a code")
        elif level.prefix == 0:
            code = np.full(len(geocodes), b"1", dtype="S1")
        else:
            wrong = (lengths < (level.prefix or 0)) & (lengths > 0)
            text = f"expected at least {level.prefix} characters, to have a {level.name}"
            check(wrong, levels.leaf, text)
            code = geocodes.astype(f"S{level.prefix}")
        codes[level.name] = code
    return codes


def _check_nesting(codes: Mapping[str, Codes], geocodes: Codes, levels: Hierarchy, check: _Check) -> None:
    """Record every leaf whose code at some level lies in another unit above than that code's first leaf.

    Codes that begin a longer code of the same leaf nest by their form.
    """
    known = [(level.name, codes.get(level.name), level.column is None) for level in levels.above]
    for (above, parents, begins), (name, own, follows) in itertools.pairwise(
        [*known, (levels.leaf, geocodes, True)]
    ):
        if (begins and follows) or parents is None or own is None:
            continue
        _, first, index = np.unique(own, return_index=True, return_inverse=True)
        wrong = parents != parents[first[index]]
        text = f"expected one {above} for each {name}: a geounit is a child of one parent"
        check(wrong, name, text)


class LeafRows(NamedTuple):
    """The rows of a public file about leaves, in its order."""

    geocodes: Codes
    codes: dict[str, Codes]  # column -> text
    counts: dict[str, Ints]
    origins: list[Origin]

    @classmethod
    def read(
        cls,
        path: Source,
        geocode: str,
        width: int | None,
        codes: Collection[str],
        counts: Mapping[str, str],
        message: str,
    ) -> LeafRows:
        """Read a file; refuse one that is not usable with `message`, and one without rows.

        `counts`: columns of counts, by the names that they get.
        """
        log = FindingLog()
        geocodes: list[Codes] = []
        texts: dict[str, list[Codes]] = {name: [] for name in codes}
        numbers: dict[str, list[Ints]] = {name: [] for name in counts}
        origins: list[Origin] = []
        wanted = list(dict.fromkeys((geocode, *codes, *counts.values())))
        for batch in read_batches(path, wanted, log, rows=PUBLIC_ROWS):
            geocodes.append(geocodes_of(batch, geocode, width, log))
            for name, parts in texts.items():
                parts.append(text_of(batch, name, log))
            for name, column in counts.items():
                numbers[name].append(whole_numbers(batch, column, log))
            origins.append(Origin(path.name, batch.first, batch.rows))
        log.raise_if_any(message.format(path.name))
        if not geocodes:
            raise no_rows(path)
        return cls(
            joined(geocodes),
            {name: joined(parts) for name, parts in texts.items()},
            {name: joined(parts) for name, parts in numbers.items()},
            origins,
        )


def read_frame_file(path: Source, spec: ReaderSpec, levels: Hierarchy) -> LeafColumns:
    """Read the public list of leaves.

    Beside the geocode and the columns that levels name, columns called as a unit column of the census
    (``hu``, ``gq1`` to ``gq7``), of the product, or as an entity category are taken; others are ignored. Of
    census blocks it may be a GRF-C, with its own names.
    """
    known = column_names(path)
    if levels.root is not None and spec.geocode not in known and OID_COLUMN in known:
        blocks = read_blocks([path])
        return arrange(blocks.geocodes, levels, path.name, entities=blocks.entities)
    kinds = [] if spec.units else [n for n in unit_names(spec) if n in known]
    entity_names = [name for name in ENTITY_CATEGORIES if name in known and name not in levels.columns]
    above = [name for name in levels.columns if name != spec.geocode]
    counts = {name: name for name in kinds}
    rows = LeafRows.read(path, spec.geocode, levels.width, [*above, *entity_names], counts, UNUSABLE)
    return arrange(
        rows.geocodes,
        levels,
        path.name,
        columns={name: rows.codes[name] for name in above} | {spec.geocode: rows.geocodes},
        units=rows.counts,
        entities={name: rows.codes[name] for name in entity_names},
        origins=rows.origins,
    )


def unit_names(spec: ReaderSpec) -> tuple[str, ...]:
    """Return the kinds of unit a run may have: those of the census and of the product."""
    return tuple(dict.fromkeys((*CENSUS_UNITS, *spec.product.unit_columns)))


def frame_path(spec: ReaderSpec) -> Source | None:
    """Return the path of the frame, or None for ``from-records``."""
    if spec.frame is None:
        raise ConfigError(
            f'reader "{spec.reader}" needs [geography] frame: the public list of leaf geocodes, empty leaves '
            f'included. frame = "{FRAME_FROM_RECORDS}" takes it from the input, and publishes which leaves '
            "are populated."
        )
    if spec.frame == FRAME_FROM_RECORDS:
        return None
    return Path(spec.frame) if isinstance(spec.frame, str) else spec.frame
