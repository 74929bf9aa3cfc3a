"""Estimates and intervals as tables: for geolevels, entities and sets of leaves that someone drew.

Made from published files alone: noisy measurements, public geography, and the microdata where they are there.

Axes: ``a`` areas, ``t`` columns of the table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opendas.arrays import Ints
from opendas.budget.presets import preset, preset_names
from opendas.errors import ConfigError
from opendas.files.area_files import AreaWeights
from opendas.files.mdf.reading import read_mdf
from opendas.files.nmf.bureau import Progress, is_bureau_folder
from opendas.files.nmf.bureau_tree import BureauFile
from opendas.files.nmf.public_totals import PublicTotals
from opendas.files.nmf.summary import summary_of_file, summary_of_tree
from opendas.files.official_areas import OfficialAreas
from opendas.files.release_folder import ReleasedProduct, ReleaseFolder
from opendas.files.release_tree import noisy_tree
from opendas.files.storage.addresses import RemotePath, located
from opendas.files.storage.parquet import text_column
from opendas.geography.frame import Grouping
from opendas.intervals.answers import (
    LAWS,
    Areas,
    EstimateSource,
    Intervals,
    area_intervals,
    batches,
    selected_intervals,
)
from opendas.intervals.combined import CombinedEstimates, OtherMeasurements, common_rows
from opendas.intervals.laws import confidence_level
from opendas.intervals.margins import Margin, levels_told_apart
from opendas.intervals.noisy_tree import NoisyTree
from opendas.intervals.tree_estimates import TreeEstimates
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product
from opendas.tables.cells import (
    PL94_TABLES,
    Table,
    check_geolevel,
    find_table,
    product_table,
    published_tables,
    table_layout,
)
from opendas.tables.counting import count_areas, count_table

DEFAULT_CONFIDENCE = Fraction(9, 10)

MOST_CELLS = 10_000
"""Measurements of products with more cells are summed to the margin that a question needs."""

MOST_RELEASED = 1 << 16
"""The same of a release's own: up to so many cells its bounds are used, too."""

INTERVAL_SCHEMA = pa.schema(
    [
        ("geocode", pa.string()),
        ("cell", pa.string()),
        ("estimate", pa.float64()),
        ("variance", pa.float64()),
        ("lower", pa.float64()),
        ("upper", pa.float64()),
        ("margin", pa.float64()),
        ("law", pa.string()),
        ("count", pa.float64()),
    ]
)
"""One row for each area and cell. Null: variance, margin and estimate where the measurements say nothing,
`upper` where nothing bounds a count, `count` where there are no microdata."""


@dataclass(eq=False)
class MeasuredProduct:
    """One product's noisy measurements, ready to be asked."""

    tree: NoisyTree
    released: ReleasedProduct | None = None  # the release they are in; None for measurements on their own
    # What the measurements were summed to, where the product has more cells than are looked at.
    margin: Margin | None = None
    other: OtherMeasurements | None = None  # of the same truth

    @property
    def key(self) -> bytes:
        """What tells measurements of one file apart: the product, and what they were summed to."""
        groups = () if self.margin is None else self.margin.groups
        return b"/".join([self.tree.product.name.encode(), *(group.tobytes() for group in groups)])

    @property
    def official(self) -> OfficialAreas | None:
        """The official areas, those without a leaf too, where the release lists them."""
        return None if self.released is None else self.released.official

    @cached_property
    def estimates(self) -> EstimateSource:
        """Least-squares estimates; the answers are read when the first is asked for."""
        own = TreeEstimates(self.tree)
        return own if self.other is None else CombinedEstimates(own, self.other)

    @cached_property
    def microdata(self) -> Histogram | None:
        """Published counts, one row for each leaf of the frame; None where there are none."""
        if self.released is None or not self.released.mdf.is_dir():
            return None
        if self.margin is None:
            return read_mdf(self.released.mdf, self.tree.product, self.tree.frame)
        whole = read_mdf(self.released.mdf, self.margin.whole, self.tree.frame)
        return whole.recoded(self.margin.cells, self.tree.product.schema.size)

    def table(self, name: str) -> Table:
        """Return the columns of a redistricting table or of a query group."""
        if self.margin is not None:
            whole = product_table(self.margin.whole, name)
            classes = self.margin.classes(whole.class_of_cell).astype(np.int32)
            return dataclasses.replace(whole, class_of_cell=classes)
        layout = self.tree.product.layout
        if name in PL94_TABLES and name not in published_tables(layout):
            raise ConfigError(
                f"table {name} is made from pl94-{table_layout(name)}, and these are measurements of "
                f"{self.tree.product.name}."
            )
        return product_table(self.tree.product, name)

    def grouping(self, geolevel: str) -> Grouping:
        """Return the areas of an official geolevel or entity category.

        Raises `ConfigError` if the frame has no such codes.
        """
        check_geolevel(self.tree.frame, geolevel)
        if self.released is not None:
            return self.released.grouping(geolevel)
        return self.tree.frame.grouping(geolevel)

    def batches(
        self, table: Table, grouping: Grouping, level: float | Fraction
    ) -> Iterator[tuple[int, Intervals]]:
        """Yield (first area, intervals) for the areas of a grouping."""
        return batches(
            self.tree, self.estimates, grouping.of_leaf, len(grouping), table.members, confidence_level(level)
        )

    def at(
        self,
        query: str,
        geolevel: str,
        level: float | Fraction = DEFAULT_CONFIDENCE,
        *,
        selected: bool = False,
    ) -> pa.Table:
        """Return the intervals of a query at a geolevel or entity category (:data:`INTERVAL_SCHEMA`).

        `selected`: only counts whose interval excludes zero, with intervals that allow for the choice:
        :func:`~opendas.intervals.answers.selected_intervals`.
        """
        confidence_level(level)
        table, grouping = self.table(query), self.grouping(geolevel)

        def ask(confidence: float) -> Intervals:
            found = [part for _, part in self.batches(table, grouping, confidence)]
            return Intervals.joined(found, confidence, len(table.columns))

        counts = None if self.microdata is None else count_table(self.microdata, table, grouping)
        names = [bytes(code).decode() for code in grouping.geocodes]
        return _rows(names, table, ask, float(level), counts, selected)

    def of_areas(
        self,
        query: str,
        areas: AreaWeights,
        level: float | Fraction = DEFAULT_CONFIDENCE,
        *,
        selected: bool = False,
    ) -> pa.Table:
        """Return the intervals of a query in sets of leaves, as :meth:`at`."""
        confidence_level(level)
        table = self.table(query)
        position = self.tree.spine.place_of_leaf
        number = len(areas.names)
        members = Areas(number, areas.which, position[areas.leaf], areas.weight)

        def ask(confidence: float) -> Intervals:
            return area_intervals(self.tree, self.estimates, members, table.members, confidence)

        data, frame = self.microdata, self.tree.frame
        counts = None if data is None else count_areas(data, table, frame, areas)
        return _rows(list(areas.names), table, ask, float(level), counts, selected)


def _rows(
    names: list[str],
    table: Table,
    ask: Callable[[float], Intervals],
    level: float,
    counts: npt.NDArray[np.number] | None,
    selected: bool,
) -> pa.Table:
    if not selected:
        return interval_rows(names, table, ask(level), counts)
    found, picked = selected_intervals(ask, level)
    return interval_rows(names, table, found, counts).filter(pa.array(picked.ravel()))


def interval_rows(
    names: list[str], table: Table, found: Intervals, counts: npt.NDArray[np.number] | None
) -> pa.Table:
    """Return intervals in long form, area by area."""
    areas, columns = found.estimate.shape
    unknown = ~np.isfinite(found.variance).ravel()
    upper = found.upper.ravel()
    none = pa.nulls(areas * columns, pa.float64())
    geocode = text_column(np.repeat(np.arange(areas, dtype=np.int32), columns), names)
    cell = text_column(np.tile(np.arange(columns, dtype=np.int32), areas), table.columns)
    law = text_column(found.law.ravel(), LAWS)
    return pa.Table.from_arrays(
        [
            geocode.cast(pa.string()),
            cell.cast(pa.string()),
            *(
                pa.array(np.where(unknown, 0.0, x.ravel()), mask=unknown)
                for x in (found.estimate, found.variance)
            ),
            pa.array(found.lower.ravel(), mask=np.isinf(found.lower.ravel())),
            pa.array(upper, mask=np.isinf(upper)),
            pa.array(np.where(unknown, 0.0, found.margin.ravel()), mask=unknown),
            law.cast(pa.string()),
            none if counts is None else pa.array(counts.ravel().astype(np.float64)),
        ],
        schema=INTERVAL_SCHEMA,
    )


def open_measured(
    path: Path,
    query: str,
    product: str | None = None,
    state: str | None = None,
    progress: Progress | None = None,
) -> tuple[MeasuredProduct, str]:
    """Open what a query is asked of: a release, or a noisy measurement file of the Bureau's layout or ours.

    - `path`: output folder, ``release/`` in it, ``measurements/<product>`` in that, or a folder with
      ``State.parquet`` and so on.
    - `query`: a redistricting table, a query group, or ``PRODUCT:QUERY`` where a release has it in several.
    - `product`: the product, where the path does not decide.
    - `state`: two digits: the only state that is read of a file of the Bureau's layout.
    - `progress`: told what is read of such a file.
    - Returns: `query`: its name without a product.

    Raises `ConfigError` if nothing is there, or the query is unknown; `FormatError` if the files are damaged,
    or hold only what an estimate used.
    """
    path = located(path)
    if is_bureau_folder(path):
        return _of_file(BureauFile.open(path, state, progress=progress), query), query
    if state is not None:
        raise ConfigError(
            f"{path}: only a noisy measurement file of the Bureau's layout can be read for one state; this "
            "is none."
        )
    if isinstance(path, RemotePath):
        raise ConfigError(f"{path}: no noisy measurement file: no folder State.parquet and so on is there.")
    lower = sorted(inside.name for inside in path.iterdir() if inside.is_dir() and is_bureau_folder(inside))
    if lower:
        raise ConfigError(
            f"{path}: the noisy measurement files lie one folder lower, in {', '.join(lower)}; give one of "
            "them, or several that are one set of measurements."
        )
    if (path / "spine.parquet").is_file():
        path, product = path.parent.parent, path.name
    released, query, _ = find_table(ReleaseFolder(path), query, product)
    if released.product.schema.size <= MOST_RELEASED:
        return MeasuredProduct(noisy_tree(released), released), query
    kinds = product_table(released.product, query).class_of_cell
    margin = Margin(released.product, levels_told_apart(released.product, kinds))
    return MeasuredProduct(noisy_tree(released, margin), released, margin), query


def _of_file(file: BureauFile, query: str) -> MeasuredProduct:
    """Return what a question is asked of, of one file of the Bureau's layout."""
    if file.product.schema.size <= MOST_CELLS:
        return MeasuredProduct(file.tree())
    if _is_of_companion(file.product, query):
        return MeasuredProduct(file.companion())
    asked = product_table(file.product, query)
    margin = Margin(file.product, levels_told_apart(file.product, asked.class_of_cell))
    return MeasuredProduct(file.tree(margin), None, margin)


def describe_measurements(
    path: Path, state: str | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Return what is in a noisy measurement file, the Bureau's or ours; no answer is read.

    - `path`: a folder with ``State.parquet`` and so on, or ``measurements/<product>`` of a release.
    - `state`: two digits: the only state of a file of the Bureau's layout that is looked at.

    Raises `ConfigError` if it is neither; `FormatError` if it is damaged.
    """
    path = located(path)
    if is_bureau_folder(path):
        found = summary_of_file(path, state, progress)
    elif (path / "spine.parquet").is_file():
        found = summary_of_tree(noisy_tree(ReleaseFolder(path.parent.parent)[path.name]))
    else:
        raise ConfigError(
            f"{path}: no noisy measurement file: neither a folder with State.parquet and so on, nor "
            "measurements/PRODUCT of a release. The published files lie one folder lower, in "
            "US_Person_PL_PROD and the like."
        )
    product = found.product
    budgets = {}
    for name in preset_names():
        known = preset(name)
        if known.product == product.name:
            here = [share for level, share in known.geolevels.items() if level in found.spine.names]
            budgets[name] = known.rho * sum(here, Fraction(0))
    layouts = [product.layout, *([] if product.companion is None else [product.companion.layout])]
    return found.to_dict([table for layout in layouts for table in published_tables(layout)], budgets)


def _is_of_companion(product: Product, query: str) -> bool:
    """Return whether a question is about all units, and not about the households among them."""
    if product.companion is None:
        return False
    if query in published_tables(product.companion.layout):
        return query not in published_tables(product.layout)
    return query.strip() in product.companion.workload.positions


def open_together(
    paths: Sequence[Path],
    query: str,
    state: str | None = None,
    totals: PublicTotals | None = None,
    progress: Progress | None = None,
) -> tuple[MeasuredProduct, str]:
    """Open several files of the Bureau's layout as one set of measurements.

    - `paths`: in any order: redistricting and DHC, persons and units. Files that say nothing about the
      question are left out.
    - `query`, `state`: as for :func:`open_measured`; ``PRODUCT:QUERY`` where persons and units both have it.
    - `totals`: what the files leave out.

    Raises `ConfigError` if a product is there twice, or the question is of none of them, or of persons and
    units; `FormatError` if files are damaged, or totals contradict them. That files contradict each other is
    found with the first answer.
    """
    files: dict[str, BureauFile] = {}
    for path in map(located, paths):
        if not is_bureau_folder(path):
            raise ConfigError(
                f"{path}: this is not a noisy measurement file of the Bureau's layout; only such files can "
                "be combined."
            )
        file = BureauFile.open(path, state, totals, progress)
        if file.product.name in files:
            raise ConfigError(
                f"{path}: measurements of {file.product.name} appear twice, and one set holds them once. "
                "Ask files of two censuses, or of two vintages, one at a time."
            )
        files[file.product.name] = file
    name, _, rest = query.partition(":")
    asked = rest.strip() if name.strip() in files else query
    answering = [one for one in files.values() if _answers(one.product, asked)]
    if asked != query:
        answering = [files[name.strip()]]
    if not answering:
        raise ConfigError(f"{query} is neither a table nor a query group of {', '.join(files)}.")
    families = {_family(one.product) for one in answering}
    if len(families) > 1:
        choice = ", ".join(f"{one.product.name}:{asked}" for one in answering)
        raise ConfigError(f"several products have {asked}; write one of {choice}.")
    first = min(answering, key=lambda file: file.product.schema.size)
    measured = _of_file(first, asked)
    others = [
        one for one in files.values() if one is not first and _family(one.product) == _family(first.product)
    ]
    if not others or _is_of_companion(first.product, asked):
        return measured, asked
    return dataclasses.replace(measured, other=_other_file(measured, asked, first.product, others[0])), asked


def _family(product: Product) -> str:
    """Return what a product counts: persons or units."""
    return "units" if product.companion is not None or product.layout == "units" else "persons"


def _answers(product: Product, query: str) -> bool:
    """Return whether a product has a table or a query group of that name."""
    if _is_of_companion(product, query):
        return True
    try:
        product_table(product, query)
    except ConfigError:
        return False
    return True


def _other_file(measured: MeasuredProduct, query: str, first: Product, file: BureauFile) -> OtherMeasurements:
    """Return what another product says: on the margin that the question needs, or on its own cells.

    The common rows are the finest sums that both count: connected components of pairs of a cell of the one
    and a cell of the other that count a person together.
    """
    fine, coarse = (
        (file.product, first) if file.product.schema.size > first.schema.size else (first, file.product)
    )
    cell = _tied_cells(fine, coarse)
    if file.product is fine:  # a coarse product is asked: of the fine one, the margin of the question
        kinds = measured.table(query).class_of_cell[cell]
        margin = Margin(fine, levels_told_apart(fine, kinds))
        tree, mine, theirs = file.tree(margin), cell, margin.cells
    else:
        tree = file.tree()
        mine = np.arange(fine.schema.size) if measured.margin is None else measured.margin.cells
        theirs = cell
    counted = fine.possible
    common, own = common_rows(
        mine[counted], theirs[counted], measured.tree.product.schema.size, tree.product.schema.size
    )
    return OtherMeasurements(TreeEstimates(tree), common, own, measured.tree.product.possible)


def _tied_cells(fine: Product, coarse: Product) -> Ints:
    """Return the cell of a redistricting product that counts what each cell of a DHC product counts.

    Households are occupied units.
    """
    if fine.companion is not None:
        occupied = coarse.schema.attributes[0].levels.index("occupied")
        return np.full(fine.schema.size, occupied, dtype=np.int64)
    if fine.tie is None or fine.tie.product != coarse.name:
        raise ConfigError(f"{fine.name} and {coarse.name} count nothing in common.")
    return fine.workload.group(fine.tie.query).row_of_cell.astype(np.int64)
