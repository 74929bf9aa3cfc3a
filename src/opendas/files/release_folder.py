"""The contents of ``release/``, opened from the folder alone: no run file, no input, no key."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from opendas.arrays import Bools, Ints, refines
from opendas.constraints.table import ConstraintTable, bound_cells
from opendas.custody.folders import sha256_file
from opendas.custody.stamps import CHOSEN_WITH_TRUTH, NOT_FOR_RELEASE
from opendas.errors import ConfigError, DataError, FormatError
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
from opendas.files.official_areas import OfficialAreas, official_areas_path, read_official_areas
from opendas.geography.frame import Frame, Grouping
from opendas.geography.spine import Spine
from opendas.privacy.exact import parse_fraction
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.schema.declarations import EarlierAct, Invariant, Tie, TiedBound
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product
from opendas.schema.provenance import Domain
from opendas.schema.query_groups import QueryGroup, to_ranges


def release_path(path: Path) -> Path:
    """Return the folder ``release/`` of an output folder, or `path` itself if it is one."""
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
    def _plan(self) -> Mapping[str, Any]:
        path = self.release / "run" / f"{self.name}.toml"
        return tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}

    @property
    def reader(self) -> str:
        """Name of the reader of the run's input, empty where the plan does not tell."""
        return str(self._plan.get("input", {}).get("reader", ""))

    @property
    def domain(self) -> Domain:
        """Where labels, levels, frame and units come from, by the plan."""
        return Domain.from_dict(self._plan.get("domain", {}))

    @cached_property
    def stamps(self) -> tuple[str, ...]:
        """Stamps that the run has had since it was measured; none before it is certified."""
        path = self.release / "certificate.json"
        runs = json.loads(path.read_bytes())["runs"] if path.is_file() else ()
        found = (run["stamps"] for run in runs if run["product"] == self.name)
        return tuple(stamp for stamps in found for stamp in stamps if stamp != CHOSEN_WITH_TRUTH)

    @cached_property
    def official(self) -> OfficialAreas | None:
        """The official areas, those without a leaf too; None where the leaves are all that is known."""
        path = official_areas_path(self.release, self.name)
        return read_official_areas(path) if path.is_file() else None

    def grouping(self, geolevel: str) -> Grouping:
        """Return the leaves by geounit or area, with the official ones that have no leaf beside them."""
        own = self.frame.grouping(geolevel)
        return own if self.official is None else own.with_areas(self.official.geocodes(geolevel))

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
        if geolevel in ("spine", "constraints", "tie", "prior") or not path.is_file():
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
            raise ConfigError(f"this release holds {', '.join(self.names) or 'no product'}, not {name}.")
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
    """Return a product of a release, the certified SHA-256 of its microdata files, and its certified run."""
    released = ReleaseFolder(release)[product]
    folder = f"mdf/{released.product.layout}/"
    try:
        certificate = json.loads((release / "certificate.json").read_bytes())
        listed = {str(entry["path"]): str(entry["sha256"]) for entry in certificate["files"]}
        run = next(run for run in certificate["runs"] if run["product"] == product)
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise ConfigError(
            f"{release}: the certificate is missing or damaged, or does not list {product}; opendas verify "
            "says more."
        ) from error
    files = {path: digest for path, digest in listed.items() if path.startswith(folder)}
    if not files:
        raise ConfigError(
            f"{release}: the certificate lists no microdata of {product}. If it was measured and not "
            "estimated, run opendas estimate first."
        )
    return released, files, run


def check_outside(to: Path) -> None:
    """Refuse a folder for other things that is, or lies in, a release."""
    for place in (to.resolve(), *to.resolve().parents):
        if (place / "certificate.json").is_file() or (place / "geography").is_dir():
            raise ConfigError(
                f"--to {to}: a release holds what is certified, and nothing else. {place} looks like one: it "
                "holds certificate.json or geography/. Name another folder."
            )


def is_estimated(release: Path, product: str) -> bool:
    """Whether a release holds certified microdata of a product."""
    path = release / "certificate.json"
    listed = json.loads(path.read_bytes())["runs"] if path.is_file() else ()
    return any(run["product"] == product and run["families"] for run in listed)


def digest_of_files(files: Mapping[str, str]) -> str:
    """Return one SHA-256 of files, given by path and SHA-256 of each: of the microdata of a product."""
    text = "\n".join(f"{digest} {name}" for name, digest in sorted(files.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def list_of_files(folder: Path, files: Iterable[Path]) -> tuple[str, str]:
    """Return digest and path of each file in a folder, as ``sha256sum`` lists them, and the digest of it."""
    named = sorted((path.relative_to(folder).as_posix(), sha256_file(path)) for path in files)
    text = "".join(f"{digest}  {name}\n" for name, digest in named)
    return text, hashlib.sha256(text.encode()).hexdigest()


def tie_to(release: Path, product: Product, geolevels: Sequence[str]) -> Tie:
    """Return the tie of a product to a release: which it is, what it cost, and what it holds exactly.

    - `release`: ``release/`` of the earlier release.
    - `product`: with the tie that its product file declares, and the invariants of its run.
    - `geolevels`: official ones of the run, top first.
    """
    tie = product.tie
    if tie is None:
        raise ValueError("the product is not tied")
    released, files, run = _certified_microdata(release, tie.product)
    earlier, query = released.product, product.workload.group(tie.query)
    row_of_cell = tied_rows(tie, query, earlier)
    for invariant in earlier.invariants:
        if not _holds_too(product, query, row_of_cell, earlier, invariant, geolevels):
            raise ConfigError(
                f"[tie] {tie.product} in {release} publishes {invariant.name} exactly. {product.name} "
                "agrees with it, and would publish it without declaring it. Declare this invariant, or do "
                "not drop it."
            )
    known = [
        (TiedBound(f"{bound.name} ({tie.product})", bound.column, bound.lower, bound.upper, ()), held)
        for bound, held in zip(earlier.bounds, bound_cells(earlier), strict=True)
    ]
    impossible = ~earlier.possible
    before = earlier.tie
    if before is not None:  # what that release is tied to holds here, too
        rows = earlier.workload.group(before.query)
        known += [(bound, rows.cells_of(bound.rows)) for bound in before.bounds]
        impossible |= rows.cells_of(before.impossible)
    bounds = []
    for bound, held in known:
        inside = _rows_inside(held, row_of_cell, query.size)
        whole = bool((inside[row_of_cell] & (row_of_cell >= 0))[held].all())
        if inside.any():  # of some of its cells, a bound says no more than the most
            bounds.append(replace(bound, lower=bound.lower if whole else 0, rows=to_ranges(inside)))
    microdata = digest_of_files(files)
    return replace(
        tie,
        microdata=microdata,
        acts=_acts(run, microdata) + (() if before is None else before.acts),
        bounds=tuple(bounds),
        impossible=to_ranges(_rows_inside(impossible, row_of_cell, query.size)),
        stamps=tuple(stamp for stamp in run["stamps"] if stamp != NOT_FOR_RELEASE),  # which its acts say
        linear=bool(earlier.linear) or (before is not None and before.linear),
    )


def _rows_inside(held: Bools, row_of_cell: Ints, rows: int) -> Bools:
    """Return which rows of a tie count some of the earlier product's cells and no other, bool (rows,)."""
    inside, outside = (np.zeros(rows, dtype=bool) for _ in range(2))
    tied = row_of_cell >= 0
    inside[row_of_cell[tied & held]] = True
    outside[row_of_cell[tied & ~held]] = True
    return inside & ~outside


def _holds_too(
    product: Product,
    query: QueryGroup,
    row_of_cell: Ints,
    earlier: Product,
    invariant: Invariant,
    geolevels: Sequence[str],
) -> bool:
    """Whether some invariant of a product says all that an invariant of the earlier product says.

    Of that one, rows that count a cell which the tie leaves open say nothing here.
    """
    order = {"root": 0, **{name: number for number, name in enumerate(geolevels)}, "leaf": len(geolevels) - 1}
    there, tied = earlier.workload.group(invariant.query).row_of_cell, row_of_cell >= 0
    of_row = np.full(query.size, -1, dtype=np.int64)
    of_row[row_of_cell[tied]] = there[tied]
    of_row[np.isin(of_row, there[~tied])] = -1
    if (of_row < 0).all():
        return True
    known = of_row[query.row_of_cell[product.possible]]
    for own in product.invariants:
        rows = product.workload.group(own.query).row_of_cell[product.possible]
        if refines(rows, known) and order[own.geolevel] >= order.get(invariant.geolevel, len(order)):
            return True
    return False


def _acts(run: Mapping[str, Any], microdata: str) -> tuple[EarlierAct, ...]:
    """Return what a certified run cost: itself, and each act by which its domain was found."""
    unit, neighbours = str(run["protected_unit"]), Neighbours(run["neighbours"])
    mechanism = Mechanism(run["mechanism"])
    stated = run["rho"] if mechanism.is_zcdp else run.get("pure_epsilon")
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

    - `product`: with a tie to it.
    - `frame`: of this product.
    - Returns: one row per leaf of `frame`. Public.
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
    return counts_of_tie(product, released.product, released.estimate, frame)


def counts_of_tie(product: Product, earlier: Product, counts: Histogram, frame: Frame) -> Histogram:
    """Return what the rows of a product's tie count at each leaf of `frame`.

    - `product`: with a tie.
    - `counts`: of the earlier product, one row per leaf of `frame`.
    """
    tie = product.tie
    if tie is None:
        raise ValueError("the product is not tied")
    if not (tie.rows or tie.columns):
        return counts
    query = product.workload.group(tie.query)
    return _counts_of_rows(tie, query, tied_rows(tie, query, earlier), counts, frame)


def tied_rows(tie: Tie, query: QueryGroup, earlier: Product) -> Ints:
    """Return the row that each cell of the earlier product counts in, int64 (cells there,); -1: in none."""
    if not (tie.rows or tie.columns):
        if query.size != earlier.schema.size:
            raise ConfigError(
                f"[tie] {query.name!r} has {query.size:,} rows, and {tie.product} has "
                f"{earlier.schema.size:,} cells: they cannot be the same counts."
            )
        return np.arange(query.size)
    rows = {query.row_label(row): row for row in range(query.size)}
    given = (*tie.rows, *tie.columns)
    if sorted(given) != sorted(rows):
        unlike = sorted(set(given) ^ set(rows)) or [label for label in tie.rows if label in tie.columns]
        raise ConfigError(
            f"[tie] rows and columns must name each row of {query.name!r} once; see {unlike[0]!r}."
        )
    there = earlier.workload.group("detailed")
    cells = {there.row_label(cell): cell for cell in range(there.size)}
    found = np.full(there.size, -1, dtype=np.int64)
    for label, counted in tie.rows.items():
        for cell in counted:
            if cell not in cells or found[cells[cell]] >= 0:
                raise ConfigError(
                    f"[tie] rows: {cell!r} of {label!r} is not a cell of {tie.product}, or is named twice."
                )
            found[cells[cell]] = rows[label]
    return found


def _counts_of_rows(
    tie: Tie, query: QueryGroup, row_of_cell: Ints, earlier: Histogram, frame: Frame
) -> Histogram:
    """Return what the rows of a tie count at each leaf: microdata of the earlier release, and the frame."""
    leaves = earlier.row_of_entries()
    rows, counts = row_of_cell[earlier.cells], earlier.counts
    known = rows >= 0
    parts = [(leaves[known], rows[known], counts[known])]
    of_label = {query.row_label(row): row for row in range(query.size)} if tie.columns else {}
    for label, column in tie.columns.items():
        if column not in frame.units:
            raise DataError(
                f"[tie] {label!r} needs the unit column {column!r}; the frame has "
                f"{', '.join(frame.units) or 'none'}. Give it in the frame file."
            )
        there = np.flatnonzero(frame.units[column])
        parts.append((there, np.full(len(there), of_label[label]), frame.units[column][there]))
    leaf, row, count = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Histogram.from_entries(leaf, row, count, shape=(len(frame), query.size))


def _is_certified(path: Path, digest: str) -> bool:
    return path.is_file() and sha256_file(path) == digest
