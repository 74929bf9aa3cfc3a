"""Noisy measurement files: what a file holds, and reading it back.

Axes: ``g`` geounits of one geolevel in spine order, ``Q`` measured query groups, ``m`` rows of a group.
A file has ``g * Q`` rows, geounit by geounit, the query groups of each in address order. ``values`` holds
either all ``m`` noisy answers, or those of the rows listed in ``cells``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opendas.arrays import Bools, Codes, Floats, Ints
from opendas.errors import FormatError
from opendas.files.nmf.product_json import MOST_LISTED, product_from_json, product_to_json
from opendas.files.storage.parquet import one_array, open_parquet, read_metadata, reading, to_bytes
from opendas.measurement.plan import MeasurementPlan
from opendas.privacy.relations import Mechanism, noise_of
from opendas.sampling.mechanisms import AnyNoise
from opendas.schema.product import Product

FORMAT = "opendas measurements 1"


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """Noisy answers of one query group for consecutive geounits."""

    values: Ints  # (entries,): geounit ``i`` has ``values[offsets[i]:offsets[i + 1]]``
    offsets: Ints  # (g + 1,)
    # (entries,): row of the query group that each value answers; None where every geounit has all rows in
    # order.
    cells: Ints | None
    variance: Floats  # (g,): variance of the noise of each geounit's answers, in squared counts

    def __post_init__(self) -> None:
        if len(self.offsets) != len(self.variance) + 1 or self.offsets[-1] != len(self.values):
            raise FormatError("noisy answers: the numbers of values, offsets and variances do not agree.")
        if self.cells is not None and len(self.cells) != len(self.values):
            raise FormatError("noisy answers need one cell per value.")

    def __len__(self) -> int:
        return len(self.variance)

    @classmethod
    def full(cls, values: Ints, variance: Floats | float) -> Answers:
        """Make full answers from values, int64 (g, m), and a variance for all or for each geounit."""
        g, m = values.shape
        each = np.broadcast_to(np.asarray(variance, dtype=np.float64), (g,))
        return cls(np.ascontiguousarray(values).ravel(), np.arange(g + 1, dtype=np.int64) * m, None, each)

    def slice(self, start: int, stop: int) -> Answers:
        """Return the answers of geounits ``start:stop``."""
        low, high = int(self.offsets[start]), int(self.offsets[stop])
        return Answers(
            self.values[low:high],
            self.offsets[start : stop + 1] - low,
            None if self.cells is None else self.cells[low:high],
            self.variance[start:stop],
        )

    def select(self, keep: Bools) -> Answers:
        """Return the answers of the geounits where `keep`, bool (g,), is true."""
        if bool(keep.all()):
            return self
        lengths = np.diff(self.offsets)
        inside = np.repeat(keep, lengths)
        return Answers(
            self.values[inside],
            np.concatenate([[0], np.cumsum(lengths[keep])]).astype(np.int64),
            None if self.cells is None else self.cells[inside],
            self.variance[keep],
        )

    def dense(self) -> Ints:
        """Return full answers, int64 (g, m)."""
        if self.cells is not None:
            raise FormatError(
                "this file holds only the answers that the estimate used; opendas measure --resume writes "
                "all of them, if the run kept its key."
            )
        return self.values.reshape(len(self), int(self.offsets[1]) if len(self) else 0)

    @staticmethod
    def concatenate(parts: Sequence[Answers]) -> Answers:
        """Return the answers of several runs of geounits one after the other."""
        if len(parts) == 1:
            return parts[0]
        lengths = [np.diff(part.offsets) for part in parts]
        cells = None
        if any(part.cells is not None for part in parts):
            cells = np.concatenate([part.listed_cells() for part in parts])
        return Answers(
            np.concatenate([part.values for part in parts]),
            np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64),
            cells,
            np.concatenate([part.variance for part in parts]),
        )

    def listed_cells(self) -> Ints:
        """Return the row of every value, also where it is implied."""
        if self.cells is not None:
            return self.cells
        lengths = np.diff(self.offsets)
        return np.arange(len(self.values), dtype=np.int64) - np.repeat(self.offsets[:-1], lengths)


def measurement_metadata(plan: MeasurementPlan, level: int, *, stored: str) -> dict[str, object]:
    """Return the file metadata of one geolevel: everything needed to use the values, exactly.

    - `level`: number of the geolevel, 0 at the top.
    - `stored`, "full" or "used".
    """
    zcdp = plan.budget.mechanism.is_zcdp
    queries: dict[str, object] = {}
    for planned in plan.levels[level].queries:
        noise = plan.distribution(level, planned)
        parameter = noise.parameter
        queries[planned.query.name] = {
            "share": str(planned.share),
            "sigma2" if zcdp else "scale": str(parameter),
            "rows": planned.query.size,
            "factors": list(planned.query.factors),
            "labels": [
                list(labels) if len(labels) <= MOST_LISTED else None for labels in planned.query.labels
            ],
        }
    product = plan.product
    if product.companion is not None:  # measured before, or beside, what it is tied to
        product = replace(product, tie=None)
    return {
        "format": FORMAT,
        "geolevel": plan.levels[level].geolevel,
        "geolevel_share": str(plan.levels[level].share),
        "mechanism": plan.budget.mechanism.value,
        "neighbours": plan.budget.neighbours.value,
        plan.budget.mechanism.loss_name: str(plan.budget.total),
        "order": [planned.query.name for planned in plan.levels[level].queries],
        "product": product_to_json(product),
        "queries": queries,
        "stored": stored,
    }


def _check_metadata(metadata: Mapping[str, Any]) -> None:
    """Look at all that is read later; what is missing or of another type raises an error of Python."""
    for name in ("geolevel", "mechanism", "neighbours", "order", "product", "stored"):
        if metadata[name] in (None, []):
            raise ValueError(name)
    Fraction(str(metadata["geolevel_share"]))
    for query in metadata["order"]:
        entry = metadata["queries"].get(query)
        if entry is not None:  # a query group without an entry is named when it is asked for
            int(entry["rows"])
            Fraction(entry["sigma2"] if "sigma2" in entry else entry["scale"])


class MeasurementFile:
    """One geolevel's noisy measurements, read by row group from a memory-mapped file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: Mapping[str, Any] = read_metadata(path)
        if self.metadata.get("format") != FORMAT:
            raise FormatError(f"{path.name}: format {self.metadata.get('format')!r}, expected {FORMAT!r}.")
        try:
            _check_metadata(self.metadata)
        except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
            raise FormatError(f"{path.name}: its metadata are incomplete or damaged.") from error
        self.geolevel = str(self.metadata["geolevel"])
        self.queries: tuple[str, ...] = tuple(self.metadata["order"])
        self._file = open_parquet(path, memory_map=True)
        sizes = [self._file.metadata.row_group(i).num_rows for i in range(self._file.metadata.num_row_groups)]
        if any(size % len(self.queries) for size in sizes):
            raise FormatError(
                f"{path.name}: expected in a row group a row for every query group of its geounits."
            )
        geounits = np.array(sizes, dtype=np.int64) // len(self.queries)
        self._starts = np.concatenate([[0], np.cumsum(geounits)]).astype(np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def geocodes(self) -> Codes:
        """Geocode of each measured geounit, bytes (g,), in spine order."""
        with reading(self.path):
            column = self._file.read(columns=["geocode"]).column(0)
            if column.null_count:
                raise FormatError(f"{self.path.name}: a row without a geocode.")
            rows = to_bytes(column).reshape(-1, len(self.queries))
            if not bool(np.all(rows == rows[:, :1])):
                raise FormatError(
                    f"{self.path.name}: expected the rows of a geounit together, one for every query group."
                )
            return np.ascontiguousarray(rows[:, 0])

    def check_words(self) -> None:
        """Check that every row names its geolevel and its query group."""
        with reading(self.path):
            for group in range(self._file.metadata.num_row_groups):
                table = self._file.read_row_group(group, columns=["geolevel", "query"])
                geolevel = pc.index_in(table.column("geolevel"), pa.array([self.geolevel]))
                query = pc.index_in(table.column("query"), pa.array(self.queries))
                wanted = np.arange(len(self.queries))
                if geolevel.null_count or not np.all(np.asarray(query).reshape(-1, len(wanted)) == wanted):
                    raise FormatError(
                        f"{self.path.name}: a row names another geolevel or query group than expected."
                    )

    @cached_property
    def product(self) -> Product:
        """The product that was measured."""
        with reading(self.path):
            return product_from_json(self.metadata["product"])

    def size(self, query: str) -> int:
        """Return the number of rows ``m`` of a query group."""
        return int(self._query(query)["rows"])

    def parameter(self, query: str) -> tuple[str, Fraction]:
        """Return (``sigma2`` or ``scale``, value) of a geounit with its level's own share."""
        entry = self._query(query)
        name = "sigma2" if "sigma2" in entry else "scale"
        return name, Fraction(entry[name])

    def noise(self, query: str, multiple: Fraction) -> AnyNoise:
        """Return the noise of a geounit with a multiple of its level's share."""
        name, value = self.parameter(query)
        if value <= 0:
            raise FormatError(
                f"{self.path.name}: query {query!r} with {name} {value}; expected more than zero."
            )
        return noise_of(Mechanism(self.metadata["mechanism"]), value / multiple)

    def _query(self, query: str) -> Mapping[str, Any]:
        if query not in self.metadata["queries"]:
            raise FormatError(
                f"{self.path.name}: the metadata do not describe query group {query!r}, only "
                f"{', '.join(self.metadata['queries']) or 'none'}."
            )
        entry: Mapping[str, Any] = self.metadata["queries"][query]
        return entry

    def read(self, start: int = 0, stop: int | None = None) -> dict[str, Answers]:
        """Return the answers of geounits ``start:stop`` for every query group."""
        stop = len(self) if stop is None else stop
        if not 0 <= start <= stop <= len(self):
            raise FormatError(f"{self.path.name}: geounits {start}:{stop} are needed; it has {len(self)}.")
        with reading(self.path):
            return self._read(start, stop)

    def _read(self, start: int, stop: int) -> dict[str, Answers]:
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        last = int(np.searchsorted(self._starts, max(stop, start + 1), side="left"))
        pieces: list[dict[str, Answers]] = []
        for group in range(first, min(last, self._file.metadata.num_row_groups)):
            table = self._file.read_row_group(group, columns=["query", "values", "cells", "variance"])
            low = max(start - int(self._starts[group]), 0)
            high = min(stop, int(self._starts[group + 1])) - int(self._starts[group])
            pieces.append(self._split(table, low, high))
        if not pieces:
            empty = np.zeros(0, dtype=np.int64)
            return {q: Answers(empty, np.zeros(1, np.int64), None, np.zeros(0)) for q in self.queries}
        return {query: Answers.concatenate([piece[query] for piece in pieces]) for query in self.queries}

    def _split(self, table: Any, low: int, high: int) -> dict[str, Answers]:
        """Divide the rows of geounits ``low:high`` of one row group by query."""
        width = len(self.queries)
        rows = table.slice(low * width, (high - low) * width).combine_chunks()
        names = rows.column("query").to_pylist()[:width]
        if high > low and tuple(names) != self.queries:
            raise FormatError(f"{self.path.name}: query groups are not in the order of the metadata.")
        values, offsets = _list_parts(rows.column("values"), self.path.name)
        cells, cell_offsets = _list_parts(rows.column("cells"), self.path.name)
        listed = np.asarray(rows.column("cells").is_valid()).reshape(-1, width)
        variance = np.asarray(rows.column("variance"), dtype=np.float64).reshape(-1, width)
        found = {}
        for k, query in enumerate(self.queries):
            own = _Rows(offsets[:-1][k::width], offsets[1:][k::width])
            partial = listed[:, k]
            picked = None
            if bool(partial.all()) and len(partial):
                picked = _Rows(cell_offsets[:-1][k::width], cell_offsets[1:][k::width]).take(cells)
            elif bool(partial.any()):
                raise FormatError(
                    f"{self.path.name}: query {query!r} is full in some geounits and partial in others."
                )
            found[query] = Answers(own.take(values), own.offsets(), picked, variance[:, k].copy())
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Ranges ``starts[i]:stops[i]`` of a flat array."""

    starts: Ints
    stops: Ints

    def offsets(self) -> Ints:
        return np.concatenate([[0], np.cumsum(self.stops - self.starts)]).astype(np.int64)

    def take(self, flat: Ints) -> Ints:
        lengths = self.stops - self.starts
        offsets = self.offsets()
        if len(lengths) > 1 and bool(np.all(lengths == lengths[0])):
            step = int(self.starts[1] - self.starts[0])
            if bool(np.all(np.diff(self.starts) == step)) and lengths[0]:
                view = np.lib.stride_tricks.as_strided(
                    flat[int(self.starts[0]) :],
                    (len(lengths), int(lengths[0])),
                    (step * flat.itemsize, flat.itemsize),
                    writeable=False,
                )
                return np.ascontiguousarray(view).ravel()
        shift = np.repeat(self.starts - offsets[:-1], lengths)
        return np.asarray(flat[shift + np.arange(offsets[-1])])


def _list_parts(column: Any, file: str) -> tuple[Ints, Ints]:
    """Return (flat values, offsets) of an Arrow list column; a null list is an empty one."""
    array = one_array(column)
    offsets = np.asarray(array.offsets, dtype=np.int64)
    if array.values.null_count:
        raise FormatError(f"{file}: a list with a number missing.")
    flat = np.asarray(array.values, dtype=np.int64)
    if array.null_count:
        valid = np.asarray(array.is_valid())
        lengths = np.where(valid, np.diff(offsets), 0)
        if not bool(np.all(lengths == np.diff(offsets))):
            raise FormatError(f"{file}: a null list with content.")
    return flat, offsets
