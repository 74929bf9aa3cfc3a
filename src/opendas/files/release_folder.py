"""What lies under ``release/``, opened from the folder alone: no run file, no input, no key."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path

import numpy as np

from opendas.constraints.table import ConstraintTable
from opendas.errors import ConfigError, DataError, FormatError
from opendas.files.atomic import sha256_file
from opendas.files.geography_files import (
    ConstraintRows,
    read_constraint_table,
    read_constraints,
    read_frame,
    read_product,
    read_spine,
)
from opendas.files.mdf.reading import read_mdf
from opendas.files.nmf.reading import MeasurementFile
from opendas.geography.frame import Frame
from opendas.geography.spine import Spine
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product

__all__ = ["ReleaseFolder", "ReleasedProduct", "microdata_digest", "release_path", "tied_counts"]


def release_path(path: Path) -> Path:
    """Return the folder ``release/`` of an output folder, or `path` itself if it is one.

    Raises
    ------
    ConfigError
        If neither is there.
    """
    for folder in (path / "release", path):
        if (folder / "geography").is_dir():
            return folder
    raise ConfigError(
        f"{path} holds no release of opendas: expected a folder release/ with geography/ in it."
    )


class ReleasedProduct:
    """One product of a release; everything is read when it is first asked for.

    Parameters
    ----------
    release : Path
        The folder ``release/``.
    name : str
        Product name.
    """

    def __init__(self, release: Path, name: str) -> None:
        self.release = release
        self.name = name

    @property
    def geography(self) -> Path:
        """File with frame and declaration."""
        return self.release / "geography" / f"{self.name}.parquet"

    @property
    def measurements(self) -> Path:
        """Folder of the measurement files."""
        return self.release / "measurements" / self.name

    @property
    def mdf(self) -> Path:
        """Folder of the microdata."""
        return self.release / "mdf" / self.product.layout

    @cached_property
    def product(self) -> Product:
        """The declaration, with the invariants that this run held."""
        return read_product(self.geography)

    @cached_property
    def frame(self) -> Frame:
        """The leaves."""
        return read_frame(self.geography)

    @cached_property
    def spine(self) -> Spine:
        """The hierarchy that was measured."""
        return read_spine(self.measurements / "spine.parquet", self.frame)

    @cached_property
    def estimate(self) -> Histogram:
        """The estimate over the leaves of the frame, read from the microdata."""
        return read_mdf(self.mdf, self.product, self.frame)

    @cached_property
    def constraints(self) -> tuple[ConstraintRows, ...]:
        """Bounds and invariant answers."""
        return read_constraints(self.measurements / "constraints.parquet")

    @cached_property
    def constraint_table(self) -> ConstraintTable:
        """Bounds and invariant answers of every geounit."""
        return read_constraint_table(self.measurements / "constraints.parquet", self.product, self.spine)

    def measurement(self, geolevel: str) -> MeasurementFile | None:
        """Return a geolevel's measurement file; None where nothing was measured."""
        path = self.measurements / f"{geolevel}.parquet"
        if geolevel in ("spine", "constraints", "tie") or not path.is_file():
            return None
        return MeasurementFile(path)


class ReleaseFolder:
    """The products of a release.

    Parameters
    ----------
    path : Path
        The output folder, or ``release/`` in it.

    Raises
    ------
    ConfigError
        If there is no release.
    """

    def __init__(self, path: Path) -> None:
        self.path = release_path(path)
        names = sorted(file.stem for file in (self.path / "geography").glob("*.parquet"))
        self._products = {name: ReleasedProduct(self.path, name) for name in names if name[0] != "."}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the products that were run."""
        return tuple(self._products)

    def __contains__(self, name: str) -> bool:
        return name in self._products

    def __getitem__(self, name: str) -> ReleasedProduct:
        if name not in self._products:
            raise ConfigError(
                f"this release holds {', '.join(self.names) or 'no product'}; run {name} into it first."
            )
        return self._products[name]

    def with_layout(self, layout: str) -> ReleasedProduct | None:
        """Return the product with a microdata layout, if it was run."""
        for product in self._products.values():
            if product.product.layout == layout:
                return product
        return None

    def only(self) -> ReleasedProduct:
        """Return the one product of the release.

        Raises
        ------
        FormatError
            If there are several.
        """
        if len(self._products) != 1:
            raise FormatError(f"this release holds {', '.join(self.names)}; name one of them.")
        return next(iter(self._products.values()))


def _certified_microdata(release: Path, product: str) -> tuple[ReleasedProduct, dict[str, str]]:
    """Return a product of a release and the certified SHA-256 of each of its microdata files.

    Raises
    ------
    ConfigError
        If the release has no such product, no microdata of it, or no certificate.
    """
    released = ReleaseFolder(release)[product]
    folder = f"mdf/{released.product.layout}/"
    try:
        listed = json.loads((release / "certificate.json").read_bytes())["files"]
        files = {e["path"]: str(e["sha256"]) for e in listed if str(e["path"]).startswith(folder)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{release}: no certificate that lists its files; opendas verify says more."
        ) from error
    if not files:
        raise ConfigError(f"{release}: {product} was measured but not estimated; run opendas estimate first.")
    return released, files


def microdata_digest(release: Path, product: str) -> str:
    """Return the SHA-256 of the names and digests of a product's microdata files, as they are certified."""
    _, files = _certified_microdata(release, product)
    text = "\n".join(f"{digest} {name}" for name, digest in sorted(files.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def tied_counts(release: Path, product: Product, frame: Frame) -> Histogram:
    """Return the counts of the release that `product` is tied to, over the rows of the tie's query group.

    Parameters
    ----------
    release : Path
        ``release/`` of the earlier release.
    product : Product
        With a tie.
    frame : Frame
        Of this product.

    Returns
    -------
    Histogram
        One row per leaf of `frame`. Public.

    Raises
    ------
    DataError
        If a file is not as certified, or the release has other leaves.
    ConfigError
        If the earlier product's cells are not the rows of the tie's query group.
    """
    tie = product.tie
    if tie is None:
        raise ValueError("the product is not tied")
    released, files = _certified_microdata(release, tie.product)
    wrong = [name for name, digest in files.items() if not _is_certified(release / name, digest)]
    if wrong:
        raise DataError(
            f"[tie] {release}: {wrong[0]} is missing or not as certified; opendas verify says more."
        )
    query = product.workload.group(tie.query)
    if query.size != released.product.schema.size:
        raise ConfigError(
            f"[tie] {query.name!r} has {query.size:,} rows, and {tie.product} in {release} has "
            f"{released.product.schema.size:,} cells: they cannot be the same counts."
        )
    here, there = frame.geocodes, released.frame.geocodes
    if not np.array_equal(here, there):
        unlike = sorted(set(here.tolist()) ^ set(there.tolist()))
        first = unlike[0].decode("utf-8", "replace")
        raise DataError(
            f"[tie] {release} is a release of another frame: {len(there):,} leaves there, {len(here):,} "
            f"here; {len(unlike):,} are in one of them only, the first {first}."
        )
    return released.estimate


def _is_certified(path: Path, digest: str) -> bool:
    return path.is_file() and sha256_file(path) == digest
