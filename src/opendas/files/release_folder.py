"""What lies under ``release/``, opened from the folder alone: no run file, no input, no key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from opendas.constraints.table import ConstraintTable, bound_cells
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
from opendas.privacy.exact import parse_fraction
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.schema.declarations import EarlierAct, Invariant, Tie, TiedBound
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product
from opendas.schema.provenance import Domain
from opendas.schema.query_groups import QueryGroup, to_ranges

__all__ = ["ReleaseFolder", "ReleasedProduct", "digest_of_files", "release_path", "tie_to", "tied_counts"]


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


def _certified_microdata(
    release: Path, product: str
) -> tuple[ReleasedProduct, Mapping[str, str], Mapping[str, Any]]:
    """Return a product of a release, the certified SHA-256 of its microdata files, and its certified run.

    Raises
    ------
    ConfigError
        If the release has no such product, no microdata of it, or no certificate.
    """
    released = ReleaseFolder(release)[product]
    folder = f"mdf/{released.product.layout}/"
    try:
        certificate = json.loads((release / "certificate.json").read_bytes())
        listed = {str(entry["path"]): str(entry["sha256"]) for entry in certificate["files"]}
        run = next(run for run in certificate["runs"] if run["product"] == product)
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise ConfigError(
            f"{release}: no certificate that lists its files; opendas verify says more."
        ) from error
    files = {path: digest for path, digest in listed.items() if path.startswith(folder)}
    if not files:
        raise ConfigError(f"{release}: {product} was measured but not estimated; run opendas estimate first.")
    return released, files, run


def digest_of_files(files: Mapping[str, str]) -> str:
    """Return one SHA-256 of files, given by path and SHA-256 of each: of the microdata of a product."""
    text = "\n".join(f"{digest} {name}" for name, digest in sorted(files.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def tie_to(release: Path, product: Product, geolevels: Sequence[str]) -> Tie:
    """Return the tie of a product to a release: which it is, what it cost, and what it holds exactly.

    Parameters
    ----------
    release : Path
        ``release/`` of the earlier release.
    product : Product
        With the tie that its product file declares, and the invariants of its run.
    geolevels : sequence of str
        Official ones of the run, top first.

    Raises
    ------
    ConfigError
        If the release has no such product or no certificate of it; if the earlier product's cells are not the
        rows of the tie's query group; or if it publishes exactly what this product does not declare.
    """
    tie = product.tie
    if tie is None:
        raise ValueError("the product is not tied")
    released, files, run = _certified_microdata(release, tie.product)
    earlier, query = released.product, product.workload.group(tie.query)
    if query.size != earlier.schema.size:
        raise ConfigError(
            f"[tie] {query.name!r} has {query.size:,} rows, and {tie.product} in {release} has "
            f"{earlier.schema.size:,} cells: they cannot be the same counts."
        )
    for invariant in earlier.invariants:
        if not _holds_too(product, query, earlier, invariant, geolevels):
            raise ConfigError(
                f"[tie] {tie.product} in {release} publishes {invariant.name} exactly, and {product.name}, "
                "which agrees with it, would too without saying so. Declare this invariant, or keep it."
            )
    cells = zip(earlier.bounds, bound_cells(earlier), strict=True)
    bounds = [
        TiedBound(f"{bound.name} ({tie.product})", bound.column, bound.lower, bound.upper, to_ranges(held))
        for bound, held in cells
    ]
    impossible = ~earlier.possible
    before = earlier.tie
    if before is not None:  # what that release is tied to holds here, too
        rows = earlier.workload.group(before.query)
        bounds += [replace(one, rows=to_ranges(rows.cells_of(one.rows))) for one in before.bounds]
        impossible |= rows.cells_of(before.impossible)
    microdata = digest_of_files(files)
    acts = _acts(run, microdata) + (() if before is None else before.acts)
    return replace(
        tie, microdata=microdata, acts=acts, bounds=tuple(bounds), impossible=to_ranges(impossible)
    )


def _holds_too(
    product: Product, query: QueryGroup, earlier: Product, invariant: Invariant, geolevels: Sequence[str]
) -> bool:
    """Whether some invariant of a product says all that an invariant of the earlier product says."""
    order = {"root": 0, **{name: number for number, name in enumerate(geolevels)}, "leaf": len(geolevels) - 1}
    known = earlier.workload.group(invariant.query).row_of_cell[query.row_of_cell[product.possible]]
    for own in product.invariants:
        rows = product.workload.group(own.query).row_of_cell[product.possible]
        first = np.zeros(int(rows.max(initial=0)) + 1, dtype=np.int64)
        first[rows] = known
        if np.array_equal(first[rows], known) and order[own.geolevel] >= order.get(
            invariant.geolevel, len(order)
        ):
            return True
    return False


def _acts(run: Mapping[str, Any], microdata: str) -> tuple[EarlierAct, ...]:
    """Return what a certified run cost: itself, and each act by which its domain was found."""
    unit, neighbours = str(run["protected_unit"]), Neighbours(run["neighbours"])
    mechanism = Mechanism(run["mechanism"])
    stated = run["rho"] if mechanism.is_gaussian else run.get("pure_epsilon")
    loss = parse_fraction(stated, mechanism.loss_name) if run["guaranteed"] else None
    found = Domain.from_dict(run["domain"]).discoveries
    return (
        EarlierAct(microdata, str(run["product"]), unit, mechanism, neighbours, loss),
        *(
            EarlierAct(
                act.act,
                "domain",
                unit,
                Mechanism.DISCRETE_GAUSSIAN,
                neighbours,
                act.loss(neighbours),
                act.delta,
            )
            for act in found
        ),
    )


def tied_counts(release: Path, product: Product, frame: Frame) -> Histogram:
    """Return the counts of the release that `product` is tied to, over the rows of the tie's query group.

    Parameters
    ----------
    release : Path
        ``release/`` of the earlier release.
    product : Product
        With a tie to it.
    frame : Frame
        Of this product.

    Returns
    -------
    Histogram
        One row per leaf of `frame`. Public.

    Raises
    ------
    DataError
        If a file is not as certified, or the release has other leaves, or other units.
    """
    tie = product.tie
    if tie is None:
        raise ValueError("the product is not tied")
    released, files, _ = _certified_microdata(release, tie.product)
    wrong = [name for name, digest in files.items() if not _is_certified(release / name, digest)]
    if wrong:
        raise DataError(
            f"[tie] {release}: {wrong[0]} is missing or not as certified; opendas verify says more."
        )
    here, there = frame.geocodes, released.frame.geocodes
    if not np.array_equal(here, there):
        unlike = sorted(set(here.tolist()) ^ set(there.tolist()))
        first = unlike[0].decode("utf-8", "replace")
        raise DataError(
            f"[tie] {release} is a release of another frame: {len(there):,} leaves there, {len(here):,} "
            f"here; {len(unlike):,} are in one of them only, the first {first}."
        )
    for bound in tie.bounds:
        known = frame.units.get(bound.column)
        if known is None or not np.array_equal(known, released.frame.units[bound.column]):
            raise DataError(
                f"[tie] {release} holds {bound.name}, by public units of a frame whose column "
                f"{bound.column!r} is not that of this frame. Give the same frame and units."
            )
    return released.estimate


def _is_certified(path: Path, digest: str) -> bool:
    return path.is_file() and sha256_file(path) == digest
