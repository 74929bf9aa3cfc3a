"""What is compared: releases, official redistricting files, microdata, the truth; brought onto one frame.

Axes: ``l`` leaves of the frame that all sources share.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from opendas.arrays import Bools, Codes
from opendas.errors import ConfigError
from opendas.files.official_areas import OfficialAreas
from opendas.files.release_folder import ReleasedProduct, ReleaseFolder
from opendas.files.storage.addresses import RemotePath, copied, located
from opendas.geography.frame import Frame, Grouping
from opendas.readers.columns.csv_parquet import column_names
from opendas.readers.frame.official import official_areas
from opendas.readers.input.spec import InputData, ReaderSpec
from opendas.readers.microdata import products_of, public_microdata
from opendas.readers.pl94.reader import official_reader
from opendas.readers.registry import make_reader
from opendas.schema.histogram import Histogram
from opendas.schema.pl94 import pl94_persons, pl94_units
from opendas.schema.product import Product

RELEASE, SWAPPED, OFFICIAL = "release", "swapped microdata", "official file"
MICRODATA, TRUTH = "microdata", "truth"

SWAPPING = "swapping.json"
"""File beside swapped microdata that says how they were made."""

NO_GUARANTEE = "NO FORMAL GUARANTEE"
"""Stamp of counts that no noise protects."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Counts:
    """One product of a source."""

    product: Product
    frame: Frame
    estimate: Histogram
    reader: str = ""  # what the input was read with, as run files name it; empty where that is not known
    # Where the counts are those of a release, which may know their margins.
    released: ReleasedProduct | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Source:
    """Something that counts the same places as others do."""

    name: str  # of the file or folder; never its whole path
    kind: str  # ``release``, ``swapped microdata``, ``official file``, ``microdata`` or ``truth``
    counts: tuple[Counts, ...]
    stamps: tuple[str, ...] = ()  # what must be said wherever its counts are shown
    path: Path | None = None  # None for the truth
    # Returns the official areas that it comes with: their names, and where they lie.
    header: Callable[[], OfficialAreas | None] | None = None
    certified: bool = False  # a release with a certificate, hence with an account

    @property
    def vintage(self) -> str | None:
        """Year of the census whose blocks it counts, where it says so."""
        years = {each.reader[-4:] for each in self.counts if each.reader.startswith("pl94-")}
        return years.pop() if len(years) == 1 else None

    @property
    def official(self) -> OfficialAreas | None:
        """The official areas of its geographic header; None where it has none."""
        areas = None if self.header is None else self.header()
        return None if areas is None or not areas.census else areas

    def product(self, like: Product) -> Counts | None:
        """Return its counts over the attributes of a product."""
        return next((found for found in self.counts if found.product.schema == like.schema), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "name": self.name,
            "kind": self.kind,
            "stamps": list(self.stamps),
            "vintage": self.vintage,
            "products": {
                found.product.name: {"leaves": len(found.frame), "records": found.estimate.total()}
                for found in self.counts
            },
        }


def open_source(path: Path) -> Source:
    """Open a release, an official redistricting file, or microdata of its layout.

    `path`: output folder or ``release/`` in it; official zip file of 2010 or 2020; file, zip or folder of
    microdata (our own, PPMF, MDF of the redistricting files or the DHC): leaves are those with records.
    Microdata may stand at an address.

    Raises `ConfigError` if it is none of these; `DataError` with what is wrong in a file.
    """
    place = located(path)
    if isinstance(place, RemotePath):
        with copied(place) as here:
            return replace(_microdata(here), path=None)
    if not path.exists():
        raise ConfigError(f"{path}: no such file or folder.")
    if path.is_dir() and any((path / place).is_dir() for place in ("geography", "release/geography")):
        return _release(path)
    if path.suffix.lower() == ".zip" and not _holds_a_table(path):
        return _official(path)
    return _microdata(path)


def _holds_a_table(path: Path) -> bool:
    """Return whether a zip file has one text with a line of names in it, as microdata are published."""
    try:
        with zipfile.ZipFile(path) as archive:
            return not any(name.lower().endswith(".pl") for name in archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return False


def _official(path: Path) -> Source:
    reader = official_reader(path)
    specs = [ReaderSpec(reader, (path,), product) for product in (pl94_persons(), pl94_units())]
    counts = tuple(_counts(spec, make_reader(spec).read()) for spec in specs)
    header = cache(lambda: official_areas(specs[0], counts[0].frame))
    return Source(path.name, OFFICIAL, counts, (), path, header)


def _release(path: Path) -> Source:
    folder = ReleaseFolder(path)
    found = [each for each in map(folder.__getitem__, folder.names) if each.mdf.is_dir()]
    if not found:
        raise ConfigError(f"{path}: it was measured but not estimated; run opendas estimate first.")
    counts = tuple(Counts(each.product, each.frame, each.estimate, each.reader, each) for each in found)
    stamps = dict.fromkeys(stamp for each in found for stamp in each.stamps)
    swapped = (folder.path / SWAPPING).is_file()
    if swapped:
        stamps[NO_GUARANTEE] = None
    certified = (folder.path / "certificate.json").is_file()

    def header() -> OfficialAreas | None:
        return found[0].official

    kind = SWAPPED if swapped else RELEASE
    return Source(path.resolve().name, kind, counts, tuple(stamps), path, header, certified)


def _microdata(path: Path) -> Source:
    files: tuple[Path, ...] = (path,)
    if path.is_dir():
        files = tuple(sorted(file for file in path.iterdir() if file.is_file() and file.name[0] not in "._"))
    if not files:
        raise ConfigError(f"{path}: an empty folder; expected a release, or files of microdata.")
    known = column_names(files[0])
    products = products_of(known)
    if not products:
        raise ConfigError(
            f"{path}: no release, no official redistricting file (.zip), and no microdata of persons "
            "(VOTING_AGE, or QAGE of the DHC) or units (HH_STATUS, or THHLDRAGE of the DHC); its columns are "
            f"{', '.join(known[:8])}."
        )
    specs = [public_microdata(files, product) for product in products]
    counts = tuple(_counts(spec, make_reader(spec).read()) for spec in specs)
    return Source(path.name, MICRODATA, counts, path=path)


def _counts(spec: ReaderSpec, data: InputData) -> Counts:
    return Counts(spec.product, data.frame, data.histogram, spec.reader)


def truth_source(spec: ReaderSpec, data: InputData) -> Source:
    """Return the confidential table as something to compare with."""
    return Source("truth", TRUTH, (_counts(spec, data),))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Common:
    """The counts of one product that all sources have, on one frame."""

    product: Product
    counts: tuple[Counts, ...]  # as the sources hold them
    frame: Frame  # every leaf that one of them has. One that another lacks is empty there.
    estimates: tuple[Histogram, ...]  # over these leaves
    shared: Bools  # bool (l,). Leaves in geounits that every source covers.

    def grouping(self, geolevel: str) -> Grouping:
        """Return the geounits of a geolevel or category that all sources cover, with all their leaves."""
        found = self.frame.grouping(geolevel)
        if self.shared.all():
            return found
        inside = found.of_leaf >= 0
        whole = np.ones(len(found), dtype=np.bool_)
        whole[found.of_leaf[inside & ~self.shared]] = False
        number = np.append(np.cumsum(whole) - 1, -1)
        kept = np.append(whole, False)[found.of_leaf]
        return Grouping(geolevel, found.geocodes[whole], np.where(kept, number[found.of_leaf], -1))


def common_counts(sources: Sequence[Source]) -> tuple[Common, ...]:
    """Return the products that all sources have."""
    found = []
    for first in sources[0].counts:
        counts = [source.product(first.product) for source in sources]
        there = tuple(each for each in counts if each is not None)
        if len(there) == len(counts):
            found.append(_common_counts(first.product, there))
    if not found:
        held = "; ".join(
            f"{source.name} has "
            + ", ".join(f"{c.product.name} ({', '.join(c.product.schema.names)})" for c in source.counts)
            for source in sources
        )
        raise ConfigError(f"no table has the same attributes and levels in every source: {held}.")
    return tuple(found)


def _common_counts(product: Product, counts: tuple[Counts, ...]) -> Common:
    frames = [each.frame for each in counts]
    frame = frames[0] if all(_same_leaves(frames[0], each) for each in frames) else _union(frames)
    shared = _covered_by_all(frame, frames)
    if not shared.any():
        level = _level_below_the_root(frame) or frame.leaf
        raise ConfigError(
            f"{product.name}: no {level} has a {frame.leaf} in every source. Give sources of the same places."
        )
    estimates = tuple(_moved(each.estimate, each.frame, frame) for each in counts)
    return Common(product, counts, replace(frame, names=_names(frames)), estimates, shared)


def _same_leaves(one: Frame, other: Frame) -> bool:
    return np.array_equal(one.geocodes, other.geocodes) and set(other.entities) <= set(one.entities)


def _union(frames: Sequence[Frame]) -> Frame:
    """Return the leaves of all frames, with the levels that all of them have; each leaf as the first says."""
    geocodes = np.unique(np.concatenate([frame.geocodes for frame in frames]))
    leaf = frames[0].leaf
    if any(frame.leaf != leaf for frame in frames):
        lowest = " and ".join(sorted({frame.leaf for frame in frames}))
        raise ConfigError(f"the sources have different lowest geolevels: {lowest}. Give sources with one.")
    levels = [name for name in frames[0].levels if all(name in frame.levels for frame in frames)]
    categories = dict.fromkeys(name for frame in frames for name in frame.entities)
    return Frame(
        geocodes,
        {name: _filled(geocodes, frames, [frame.levels[name] for frame in frames]) for name in levels},
        leaf,
        {},
        {
            name: _filled(geocodes, frames, [frame.entities.get(name) for frame in frames])
            for name in categories
        },
    )


def _filled(geocodes: Codes, frames: Sequence[Frame], columns: Sequence[Codes | None]) -> Codes:
    """Return one column over all leaves: what the first frame with a code for a leaf says of it."""
    width = max(column.dtype.itemsize for column in columns if column is not None)
    found = np.zeros(len(geocodes), dtype=f"S{width}")
    for frame, column in reversed(list(zip(frames, columns, strict=True))):
        if column is not None:
            there = column != b""
            found[np.searchsorted(geocodes, frame.geocodes[there])] = column[there]
    return found


def _names(frames: Sequence[Frame]) -> Mapping[str, Mapping[str, str]]:
    names: dict[str, dict[str, str]] = {}
    for frame in reversed(frames):
        for kind, known in frame.names.items():
            names.setdefault(kind, {}).update(known)
    return names


def _moved(estimate: Histogram, own: Frame, frame: Frame) -> Histogram:
    """Return counts over the leaves of a larger frame."""
    if len(own) == len(frame):
        return estimate
    lengths = np.zeros(len(frame), dtype=np.int64)
    lengths[np.searchsorted(frame.geocodes, own.geocodes)] = np.diff(estimate.indptr)
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return Histogram(indptr, estimate.cells, estimate.counts, estimate.size)


def _level_below_the_root(frame: Frame) -> str | None:
    """Return the geolevel of counties, else the second from the top; None where there is none."""
    above = list(frame.levels)
    return "county" if "county" in above else above[1] if len(above) > 1 else None


def _covered_by_all(frame: Frame, frames: Sequence[Frame]) -> Bools:
    """Mark the leaves of counties, or of geounits below another root, that every source has leaves in."""
    shared = np.ones(len(frame), dtype=np.bool_)
    level = _level_below_the_root(frame)
    if level is None:
        return shared
    codes = frame.levels[level]
    for own in frames:
        shared &= np.isin(codes, np.unique(own.levels[level]))
    return shared
