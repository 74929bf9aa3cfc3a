"""Estimates and intervals as tables: for geolevels, entities and sets of leaves that someone drew.

Made from published files alone: noisy measurements, public geography, and the microdata where they are there.

Axes: ``a`` areas, ``t`` columns of the table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opendas.errors import ConfigError
from opendas.files.area_files import AreaWeights
from opendas.files.mdf.reading import read_mdf
from opendas.files.nmf.bureau import is_bureau_folder
from opendas.files.nmf.bureau_tree import BureauFile
from opendas.files.nmf.release_tree import noisy_tree
from opendas.files.parquet import text_column
from opendas.files.release_folder import ReleasedProduct, ReleaseFolder
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
from opendas.intervals.combined import CombinedEstimates, OtherMeasurements
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

__all__ = ["DEFAULT_CONFIDENCE", "INTERVAL_SCHEMA", "MeasuredProduct", "open_measured"]

DEFAULT_CONFIDENCE = Fraction(9, 10)

MOST_CELLS = 10_000
"""Measurements of products with more cells are summed to the margin that a question needs."""

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
    """One product's noisy measurements, ready to be asked.

    Parameters
    ----------
    released : ReleasedProduct or None
        The release they are in; None for measurements on their own.
    margin : Margin or None
        What the measurements were summed to, where the product has more cells than are looked at.
    others : tuple of OtherMeasurements
        Of the same truth.
    """

    tree: NoisyTree
    released: ReleasedProduct | None = None
    margin: Margin | None = None
    others: tuple[OtherMeasurements, ...] = ()

    @property
    def key(self) -> bytes:
        """What tells measurements of one file apart: the product, and what they were summed to."""
        groups = () if self.margin is None else self.margin.groups
        return b"/".join([self.tree.product.name.encode(), *(group.tobytes() for group in groups)])

    @cached_property
    def estimates(self) -> EstimateSource:
        """Least-squares estimates; the answers are read when the first is asked for."""
        own = TreeEstimates(self.tree)
        return CombinedEstimates(own, self.others) if self.others else own

    @cached_property
    def microdata(self) -> Histogram | None:
        """Published counts, one row for each leaf of the frame; None where there are none."""
        if self.released is None or not self.released.mdf.is_dir():
            return None
        return read_mdf(self.released.mdf, self.tree.product, self.tree.frame)

    def table(self, name: str) -> Table:
        """Return the columns of a redistricting table or of a query group.

        Raises
        ------
        ConfigError
            If it is neither, or a table of another product.
        """
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

        Raises
        ------
        ConfigError
            If the frame has no such codes.
        """
        check_geolevel(self.tree.frame, geolevel)
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

        Parameters
        ----------
        selected : bool
            Only counts whose interval excludes zero, with intervals that allow for the choice:
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
    path: Path, query: str, product: str | None = None, state: str | None = None
) -> tuple[MeasuredProduct, str]:
    """Open what a query is asked of: a release, or a noisy measurement file of the Bureau's layout or ours.

    Parameters
    ----------
    path : Path
        Output folder, ``release/`` in it, ``measurements/<product>`` in that, or a folder with
        ``State.parquet`` and so on.
    query : str
        A redistricting table, a query group, or ``PRODUCT:QUERY`` where a release has it in several.
    product : str, optional
        The product, where the path does not decide.
    state : str, optional
        Two digits: the only state that is read of a file of the Bureau's layout.

    Returns
    -------
    measured : MeasuredProduct
    query : str
        Its name without a product.

    Raises
    ------
    ConfigError
        If nothing is there, or the query is unknown.
    FormatError
        If the files are damaged, or hold only what an estimate used.
    """
    if is_bureau_folder(path):
        file = BureauFile.open(path, state)
        if file.product.schema.size <= MOST_CELLS:
            return MeasuredProduct(file.tree()), query
        if _is_of_companion(file.product, query):
            return MeasuredProduct(file.companion()), query
        asked = product_table(file.product, query)
        margin = Margin(file.product, levels_told_apart(file.product, asked.class_of_cell))
        return MeasuredProduct(file.tree(margin), None, margin), query

    if state is not None:
        raise ConfigError(
            f"{path}: a state is chosen in noisy measurement files of the Bureau's layout; this is none."
        )
    if (path / "spine.parquet").is_file():
        path, product = path.parent.parent, path.name
    released, query, _ = find_table(ReleaseFolder(path), query, product)
    return MeasuredProduct(noisy_tree(released), released), query


def _is_of_companion(product: Product, query: str) -> bool:
    """Return whether a question is about all units, and not about the households among them."""
    if product.companion is None:
        return False
    if query in published_tables(product.companion.layout):
        return query not in published_tables(product.layout)
    return query.strip() in product.companion.workload.positions


def combined_with(
    measured: MeasuredProduct, query: str, path: Path, state: str | None = None
) -> MeasuredProduct:
    """Return measurements together with a file of another product's of the same truth.

    Parameters
    ----------
    measured : MeasuredProduct
        Of the product that the other one is tied to in production: its cells are sums of the other's.
    query : str
        What is asked: a table or query group of `measured`.
    path : Path
        Of the Bureau's layout.
    state : str, optional
        As for :func:`open_measured`.

    Raises
    ------
    ConfigError
        If the other product says nothing about the question.
    FormatError
        If its files are damaged. That they contradict each other is found with the first answer.
    """
    if not is_bureau_folder(path):
        raise ConfigError(f"{path}: this is no measurement file of the Bureau's layout, to be combined with.")
    file, name = BureauFile.open(path, state), measured.tree.product.name
    tie = file.product.tie
    if tie is None or tie.product != name:
        raise ConfigError(
            f"{path}: {file.product.name} is not combined with {name}: give pl94-persons first, dhc-persons "
            "--with it, and ask what the first can answer."
        )
    if any(other.product == file.product.name for other in measured.others):
        raise ConfigError(f"{path}: measurements of {file.product.name} are there twice; their noise is one.")
    cell = file.product.workload.group(tie.query).row_of_cell
    kinds = measured.table(query).class_of_cell[cell]
    margin = Margin(file.product, levels_told_apart(file.product, kinds))
    of_margin = np.zeros(margin.product.schema.size, dtype=np.int64)
    of_margin[margin.cells] = cell
    other = OtherMeasurements(file.product.name, TreeEstimates(file.tree(margin)), of_margin)
    return dataclasses.replace(measured, others=(*measured.others, other))
