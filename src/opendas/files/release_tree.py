"""Noisy measurement files of a release, as one tree: nothing confidential is opened.

It needs ``measurements/<product>`` and ``geography/<product>.parquet``, and no run file, input or key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from opendas.arrays import Bools, Codes, Floats, Ints
from opendas.constraints.table import ConstraintTable, InvariantAnswers, LevelConstraints, bound_cells
from opendas.errors import BudgetError, ConfigError, FormatError
from opendas.files.geography_files import read_constraint_table
from opendas.files.nmf.product_json import product_to_json
from opendas.files.nmf.reading import MeasurementFile
from opendas.files.release_folder import ReleasedProduct
from opendas.geography.spine import Spine
from opendas.intervals.laws import NoiseLaw
from opendas.intervals.margins import Margin, MarginQuery
from opendas.intervals.noisy_tree import NoisyLevel, NoisyTree
from opendas.sampling.mechanisms import StatedNoise
from opendas.schema.product import Product
from opendas.schema.query_groups import QueryGroup

RUN = 512
"""Geounits that are read together where few are asked for."""

_CLOSE = 1e-9

_PLAN = ("mechanism", "neighbours", "rho", "epsilon", "product")
"""What the files of all geolevels of a run say alike."""


class FolderAnswers:
    """Answers read from the measurement files of a release; an ``AnswerSource``.

    - `files`: per geolevel; None where nothing was measured.
    - `place` (g,): row in the file of each geounit of the spine, -1 where it is not there.
    - `variance` (g, q): what the plan says, for a check of what the file says.
    """

    def __init__(
        self,
        files: tuple[MeasurementFile | None, ...],
        queries: tuple[tuple[QueryGroup, ...], ...],
        place: tuple[Ints, ...],
        variance: tuple[Floats, ...],
    ) -> None:
        self._files = files
        self._queries = queries
        self._place = place
        self._variance = variance
        self._last: tuple[int, int, list[Ints]] | None = None

    def full(self, level: int, first: int, geounits: int) -> list[Ints]:
        """Return all noisy answers of consecutive geounits.

        A few geounits at a time come from a run of them that is kept, as files are read in runs.
        """
        start = first // RUN * RUN
        if first + geounits > start + RUN:
            return self.read(level, first, geounits)
        if self._last is None or self._last[:2] != (level, start):
            stop = min(start + RUN, len(self._place[level]))
            self._last = (level, start, self.read(level, start, stop - start))
        return [values[first - start : first - start + geounits].copy() for values in self._last[2]]

    def read(self, level: int, first: int, geounits: int) -> list[Ints]:
        """Return the same, and keep nothing."""
        file = self._files[level]
        found = [np.zeros((geounits, query.size), dtype=np.int64) for query in self._queries[level]]
        if file is None:
            return found
        place = self._place[level][first : first + geounits]
        inside = place >= 0
        if not inside.any():
            return found
        start = int(place[inside][0])
        read = file.read(start, start + int(inside.sum()))
        for column, (query, values) in enumerate(zip(self._queries[level], found, strict=True)):
            answers = read[query.name]
            self._check(file, query.name, answers.variance, level, first, inside, column)
            wrong = np.diff(answers.offsets) != query.size
            if answers.cells is None and bool(wrong.any()):
                raise FormatError(
                    f"{file.path.name}: values in query {query.name!r}: found "
                    f"{int(np.diff(answers.offsets)[wrong][0])}, expected {query.size}."
                )
            values[inside] = answers.dense()
        return found

    def _check(
        self,
        file: MeasurementFile,
        query: str,
        variance: Floats,
        level: int,
        first: int,
        inside: Bools,
        column: int,
    ) -> None:
        planned = self._variance[level][first : first + len(inside), column][inside]
        # The variance of noise that is nothing but zeros is zero in double precision: no mistake in the file.
        if not bool(np.all((variance > 0) | ((variance == 0) & (planned == 0)))):
            raise FormatError(f"{file.path.name}: query {query!r} has a variance that is not above zero.")
        if not bool(np.all(np.abs(variance - planned) <= _CLOSE * planned)):
            raise FormatError(
                f"{file.path.name}: query {query!r} has a variance that is not that of the file's own plan."
            )


class FolderMargins:
    """Answers of a release summed to a margin, one geounit at a time, and then held; an ``AnswerSource``.

    - `queries`: per geolevel, in the order of the answers.
    - `geounits`: per geolevel.
    """

    def __init__(
        self,
        answers: FolderAnswers,
        queries: tuple[tuple[MarginQuery, ...], ...],
        geounits: tuple[int, ...],
    ) -> None:
        self._answers = answers
        self._queries = queries
        self._geounits = geounits
        self._sums: dict[int, list[Ints]] = {}

    def full(self, level: int, first: int, geounits: int) -> list[Ints]:
        """Return the sums of all noisy answers of consecutive geounits; the first call reads the level."""
        if level not in self._sums:
            size = self._geounits[level]
            sums = [np.zeros((size, query.query.size), dtype=np.int64) for query in self._queries[level]]
            for geounit in range(size):
                read = self._answers.read(level, geounit, 1)
                for into, query, values in zip(sums, self._queries[level], read, strict=True):
                    known = query.row >= 0
                    np.add.at(into[geounit], query.row[known], values[0, known])
            self._sums[level] = sums
        return [values[first : first + geounits] for values in self._sums[level]]


def noisy_tree(released: ReleasedProduct, margin: Margin | None = None) -> NoisyTree:
    """Open the measurements of one product of a release.

    Parameters
    ----------
    released : ReleasedProduct
    margin : Margin, optional
        Of the product: answers are summed to it. Of what is exact, totals are used then.

    Raises
    ------
    FormatError
        If a file is missing, holds only what an estimate used, or is of another plan.
    ConfigError
        If the release holds no measurements of the product at all.
    """
    folder = released.measurements
    if not (folder / "spine.parquet").is_file():
        raise ConfigError(
            f"this release holds no noisy measurements of {released.name}: measurements/{released.name}/ is "
            "not there."
        )
    spine, product = released.spine, released.product
    levels, places, variances = [], [], []
    files = [released.measurement(name) for name in spine.names]
    if not any(files):
        raise FormatError(f"measurements/{folder.name}: there is no measurement file of any geolevel.")
    for number, level in enumerate(spine.levels):
        multiples, which = spine.multiples(number)
        asked = np.array([multiple > 0 for multiple in multiples])[which]
        file = files[number]
        if file is None:
            levels.append(NoisyLevel(level.name, (), ((),), np.zeros(len(level), dtype=np.int64)))
            places.append(np.full(len(level), -1, dtype=np.int64))
            variances.append(np.zeros((len(level), 0)))
            continue
        _check_file(file, level.name, product, level.geocodes[asked])
        queries = tuple(product.workload.group(name) for name in file.queries)
        _check_queries(file, queries)
        laws = tuple(
            tuple(_law(file, query.name, multiple) if multiple > 0 else None for query in queries)
            for multiple in multiples
        )
        levels.append(NoisyLevel(level.name, queries, laws, which))
        places.append(np.where(asked, np.cumsum(asked) - 1, -1).astype(np.int64))
        variances.append(levels[-1].variances[which])
    _check_complete(files, spine, folder)
    answers = FolderAnswers(
        tuple(files), tuple(level.queries for level in levels), tuple(places), tuple(variances)
    )
    constraints = folder / "constraints.parquet"
    if margin is None:
        table = read_constraint_table(constraints, product, spine)
        return NoisyTree(product, released.frame, spine, tuple(levels), table, answers)
    margins = tuple(tuple(margin.query(query) for query in level.queries) for level in levels)
    summed = tuple(
        dataclasses.replace(level, queries=tuple(query.query for query in queries))
        for level, queries in zip(levels, margins, strict=True)
    )
    sums = FolderMargins(answers, margins, tuple(map(len, levels)))
    table = _totals(constraints, margin, spine)
    return NoisyTree(margin.product, released.frame, spine, summed, table, sums)


def _totals(path: Path, margin: Margin, spine: Spine) -> ConstraintTable:
    """Read the totals that are exact, as constraints of a margin. A tie is to published counts: unused."""
    untied = dataclasses.replace(margin.whole, tie=None, bounds=())
    product, levels = margin.product, []
    for level in read_constraint_table(path, untied, spine).levels:
        totals = tuple(
            InvariantAnswers(each.name, product.workload.group("total"), each.answers)
            for each in level.invariants
            if each.query.name == "total"
        )
        levels.append(LevelConstraints(level.lower, level.upper, totals, level.joint))
    return ConstraintTable((), bound_cells(product), product.possible, tuple(levels))


def _check_complete(files: Sequence[MeasurementFile | None], spine: Spine, folder: Path) -> None:
    """Refuse a folder of several runs, or one that lacks a geolevel: shares of the budget sum to one."""
    there = [file for file in files if file is not None]
    for file in there[1:]:
        other = [name for name in _PLAN if file.metadata.get(name) != there[0].metadata.get(name)]
        if other:
            raise FormatError(
                f"measurements/{folder.name}: {file.path.name} and {there[0].path.name} are of different "
                f"runs: they differ in {', '.join(other)}."
            )
    missing = [name for name, file in zip(spine.names, files, strict=True) if file is None]
    shares = [
        Fraction(0) if file is None else Fraction(str(file.metadata["geolevel_share"])) for file in files
    ]
    try:
        spine.check_paths(shares)
    except BudgetError as error:
        absent = f"; there is no file of {', '.join(missing)}" if missing else ""
        raise FormatError(
            f"measurements/{folder.name}: the budget shares of the files do not sum to one{absent}."
        ) from error


def _check_file(file: MeasurementFile, geolevel: str, product: Product, geocodes: Codes) -> None:
    name, untied = file.path.name, product.tie is None
    if file.geolevel != geolevel:
        raise FormatError(f"{name}: it holds geolevel {file.geolevel!r}, expected {geolevel!r}.")
    if file.metadata.get("stored") != "full":
        raise FormatError(
            f"{name}: it holds only the noisy answers that the estimate used, and least squares needs all of "
            "them. opendas measure RUN.toml --out OUT --resume writes them and spends nothing, if the run "
            "kept its key (--keep-key). Without the key nobody can"
            + ("; opendas replicates OUT, then opendas margin OUT, take no more than this release" * untied)
            + ". A run with --measurements full spends the budget again."
        )
    theirs = _declared(product_to_json(file.product))
    if theirs != _declared(product_to_json(product)):
        raise FormatError(f"{name}: it holds measurements of another product than {product.name}.")
    codes = file.geocodes
    if len(np.unique(codes)) != len(codes):
        raise FormatError(f"{name}: a geocode appears twice.")
    if not np.array_equal(codes, geocodes):
        raise FormatError(f"{name}: its geounits are not those of spine.parquet.")


def _declared(product: Mapping[str, Any]) -> dict[str, Any]:
    """Return what measurements depend on: invariants may have been dropped, bounds do not matter."""
    return {name: product[name] for name in ("name", "attributes", "recodes")}


def _check_queries(file: MeasurementFile, queries: tuple[QueryGroup, ...]) -> None:
    for query in queries:
        if file.size(query.name) != query.size:
            raise FormatError(
                f"{file.path.name}: query {query.name!r} with {file.size(query.name)} rows, expected "
                f"{query.size}."
            )


def _law(file: MeasurementFile, query: str, multiple: Fraction) -> NoiseLaw:
    """Return the noise of a geounit with a multiple of its level's share."""
    noise = file.noise(query, multiple)
    if isinstance(noise, StatedNoise):
        raise ConfigError(
            f"{file.path.name}: measured with {noise.mechanism}, which states a variance and no law of its "
            "noise: neither intervals nor the Census Bureau's layout are possible."
        )
    return noise
