"""A task: one part of the spine, from given parents down to a lower geolevel.

Families below different parents are independent, so that a part of the spine can run anywhere and in any
order; noise is a function of its address, so that it comes out the same.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from opendas.arrays import Codes, Ints
from opendas.constraints.table import LevelConstraints
from opendas.errors import InfeasibleFamily
from opendas.measurement.family import FamilyMeasurement, MeasurementSource, PartialSource, UsedAnswers
from opendas.schema.histogram import Histogram
from opendas.topdown.failsafe import relax_parent
from opendas.topdown.family import estimate_family
from opendas.topdown.family_data import Information, LevelRules
from opendas.topdown.model import Family, FamilyEstimate, FamilyRecord

Integers = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True, eq=False)
class UsedColumns:
    """Noisy answers of many families: what a result file holds of them.

    Letters: ``f`` pairs of family and query group, ``r`` rows that a family used, ``g`` geounits.
    """

    names: tuple[str, ...]  # query groups
    numbers: Ints  # (f, 5): level, first geounit, geounits, query group (its place in `names`) and rows used
    rows: Integers  # rows used, one pair after the other
    values: Integers  # answers, one pair after the other, geounit by geounit

    @classmethod
    def of(cls, used: Sequence[UsedAnswers]) -> UsedColumns:
        """Collect what families used."""
        names = sorted({each.query for each in used})
        numbers = np.array(
            [[u.level, u.first, u.children, names.index(u.query), len(u.rows)] for u in used], dtype=np.int64
        ).reshape(-1, 5)
        empty = np.zeros(0, np.int64)
        return cls(
            tuple(names),
            numbers,
            np.concatenate([empty, *(each.rows for each in used)]),
            np.concatenate([empty, *(each.values.ravel() for each in used)]),
        )

    def of_query(self, level: int, query: str, first: int, geounits: int) -> tuple[Ints, Ints, Ints]:
        """Return what was used of one query group, geounit by geounit.

        - `first`, `geounits`: consecutive geounits of the level, all that were used among them.
        - Returns `offsets` (g + 1,): geounit ``i`` has the entries ``offsets[i]:offsets[i + 1]`` of what
          follows.
        - Returns `rows`, `values` (entries,).
        """
        lengths = np.zeros(geounits, dtype=np.int64)
        _, starts, children, name, used = self.numbers.T
        chosen = np.flatnonzero(self.numbers[:, 0] == level)
        chosen = chosen[name[chosen] == (self.names.index(query) if query in self.names else -1)]
        chosen = chosen[np.argsort(starts[chosen], kind="stable")]
        own, count = children[chosen], used[chosen]
        geounit = np.repeat(starts[chosen] - first - (np.cumsum(own) - own), own) + np.arange(own.sum())
        lengths[geounit] = np.repeat(count, own)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        entries = np.arange(offsets[-1])
        blocks = own * count
        values = np.repeat(_before(children * used)[chosen] - _before(blocks), blocks) + entries
        rows = np.repeat(np.repeat(_before(used)[chosen], own) - offsets[:-1][geounit], lengths[geounit])
        return offsets, self.rows[rows + entries].astype(np.int64), self.values[values].astype(np.int64)


def _before(sizes: Ints) -> Ints:
    """Return how much lies before each of consecutive pieces."""
    return np.asarray(np.cumsum(sizes) - sizes)


@dataclass(frozen=True, slots=True, eq=False)
class PartLevel:
    """Consecutive geounits of one geolevel."""

    level: int  # number of the geolevel, 0 at the top
    first: int  # index of the first geounit in its level
    geocodes: Codes  # (g,)
    # (g + 1,): children of geounit ``i`` are ``child_starts[i]:child_starts[i + 1]`` of the next level of the
    # part; None at the bottom.
    child_starts: Ints | None
    constraints: LevelConstraints


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The public side of a task."""

    # Top first. With `parents`, the top level is already estimated; without, its geounits are roots.
    levels: tuple[PartLevel, ...]
    # Fixed integer estimates of the top level; its constraints then have no meaning.
    parents: Histogram | None


@dataclass(frozen=True, eq=False)
class PartResult:
    """What a task gives, on its way down: formally private, but for the seconds."""

    estimates: Histogram  # one row per geounit of the part's bottom level
    used: UsedColumns  # noisy answers that families read
    records: tuple[FamilyRecord, ...]  # how each family was solved
    # (families,): wall time of each family; not a number where it is not known. Confidential.
    seconds: npt.NDArray[np.float32]


def tie_keys(geocodes: Codes) -> npt.NDArray[np.uint64]:
    """Return the public tie-breaking key of each geounit: 64 bits of the SHA-256 of its geocode."""
    return np.array(
        [int.from_bytes(hashlib.sha256(bytes(code)).digest()[:8], "big") for code in geocodes],
        dtype=np.uint64,
    )


def estimate_part(
    part: Part,
    rules: Sequence[LevelRules],
    source: MeasurementSource,
    *,
    failsafe: bool = False,
    keep_used: bool = True,
    information: Mapping[int, Information] | None = None,
) -> PartResult:
    """Estimate every family of a part, level by level from the top.

    - `rules`: by level number of the whole spine.
    - `failsafe`: relax the parent equality of an infeasible family, and record it.
    - `keep_used`: return the noisy answers of the cells that families could use.
    - `information`, level number -> Information: what is known of the geounits of some levels of the part,
      with all that was measured below them; families of these are estimated from it.
    """
    used: list[UsedAnswers] = []
    shown: list[_Read] = []
    records: list[FamilyRecord] = []
    seconds: list[float] = []
    informed = information or {}

    def read(family: Family, level: int, first: int, children: int) -> FamilyMeasurement | None:
        if level in informed:
            return None
        if children == 1 and family.parent is not None:
            return FamilyMeasurement((), np.ones(1))  # an only child is its parent, whatever was measured
        return source.family(level, first, children, family.support)

    def solve(
        family: Family, level: int, first: int, children: int, measurement: FamilyMeasurement | None
    ) -> FamilyEstimate:
        known = informed[level].of(first, children) if level in informed else None
        answers = FamilyMeasurement((), np.ones(children)) if measurement is None else measurement
        return estimate_family(family, rules[level], answers, known)

    def run(
        family: Family, level: PartLevel, start: int, children: int
    ) -> tuple[FamilyEstimate, npt.NDArray[np.int32]]:
        first = level.first + start
        begun = time.perf_counter()
        measurement = read(family, level.level, first, children)
        try:
            estimate = solve(family, level.level, first, children, measurement)
        except InfeasibleFamily as error:
            if not failsafe or family.parent is None:
                raise
            tried = family.support
            family, note = relax_parent(family, rules[level.level], error)
            # The new parent has other cells: the same measurements, read at them.
            measurement = read(family, level.level, first, children)
            estimate = solve(family, level.level, first, children, measurement)
            estimate = replace(estimate, record=replace(estimate.record, failsafe=note))
            # Both attempts read: repeating this from the answers kept needs those of both.
            known = np.union1d(tried, family.support).astype(np.int32)
            measurement = read(replace(family, support=known), level.level, first, children)
        else:
            known = family.support
        if keep_used and (children > 1 or family.parent is None):
            if measurement is None:
                shown.append((first, children, known))
            else:
                used.extend(_answers(level.level, first, children, measurement))
        records.append(estimate.record)
        seconds.append(time.perf_counter() - begun)
        return estimate, family.support

    def show(level: PartLevel) -> None:
        # What is known of a geounit holds its own measurements: they are read again only to be shown.
        used.extend(_read_families(source, level.level, shown))
        shown.clear()

    top = part.levels[0]
    if part.parents is None:
        current = _roots(top, rules, run)
        show(top)
    else:
        current = part.parents
    for above, level in zip(part.levels, part.levels[1:], strict=False):
        current = _estimate_level(above, level, current, run)
        show(level)
    return PartResult(current, UsedColumns.of(used), tuple(records), np.array(seconds, np.float32))


_Read = tuple[int, int, npt.NDArray[np.int32]]
"""First geounit, geounits and support of a family whose answers are to be read."""


def _answers(level: int, first: int, children: int, measurement: FamilyMeasurement) -> Iterator[UsedAnswers]:
    """Yield what a family read."""
    for query in measurement.queries:
        yield UsedAnswers(level, first, children, query.name, query.rows, query.values)


def _read_families(source: MeasurementSource, level: int, families: Sequence[_Read]) -> list[UsedAnswers]:
    """Read the answers of many families, together where the source can."""
    if isinstance(source, PartialSource):
        return source.used(level, families)
    found: list[UsedAnswers] = []
    for first, children, support in families:
        found += _answers(level, first, children, source.family(level, first, children, support))
    return found


_Run = Callable[[Family, PartLevel, int, int], tuple[FamilyEstimate, npt.NDArray[np.int32]]]
"""Estimates a family; returns also its support, which the failsafe may have changed."""


def _roots(level: PartLevel, rules: Sequence[LevelRules], run: _Run) -> Histogram:
    """Estimate roots, each by itself but for those that hold a total together."""
    rule = rules[level.level]
    keys = tie_keys(level.geocodes)
    joint = level.constraints.joint
    group = np.arange(len(level.geocodes)) if joint is None else joint.group
    cuts = [*np.flatnonzero(np.diff(group, prepend=-1)).tolist(), len(group)]
    parts = []
    for start, stop in itertools.pairwise(cuts):
        constraints = level.constraints.slice(start, stop)
        closed = np.all([rule.bound_cells[upper == 0].any(axis=0) for upper in constraints.upper], axis=0)
        support = np.flatnonzero(rule.possible & ~closed).astype(np.int32)
        codes = level.geocodes[start:stop]
        family = Family(_root_label(codes), support, None, constraints, keys[start:stop], codes)
        estimate, support = run(family, level, start, stop - start)
        parts.append(_sparse(estimate.counts, support, len(rule.possible)))
    return Histogram.concatenate(parts)


def _root_label(geocodes: Codes) -> str:
    """Return a root's geocode; of several, what is left without the character that distinguishes parts."""
    codes = [bytes(geocode).decode() for geocode in geocodes]
    if len(codes) == 1:
        return codes[0]
    rest = {code[1:] for code in codes}
    return rest.pop() if len(rest) == 1 and rest != {""} else f"{codes[0]}+"


def _estimate_level(above: PartLevel, level: PartLevel, parents: Histogram, run: _Run) -> Histogram:
    starts = above.child_starts
    if starts is None:
        raise ValueError("a part's inner level needs child_starts")
    keys = tie_keys(level.geocodes)
    parts = []
    for i, geocode in enumerate(above.geocodes):
        low, high = int(parents.indptr[i]), int(parents.indptr[i + 1])
        start, stop = int(starts[i]), int(starts[i + 1])
        support = parents.cells[low:high]
        family = Family(
            bytes(geocode).decode(),
            support,
            parents.counts[low:high],
            level.constraints.slice(start, stop),
            keys[start:stop],
            level.geocodes[start:stop],
        )
        estimate, support = run(family, level, start, stop - start)
        parts.append(_sparse(estimate.counts, support, parents.size))
    return Histogram.concatenate(parts)


def _sparse(counts: Ints, support: npt.NDArray[np.int32], size: int) -> Histogram:
    row, column = np.nonzero(counts)
    indptr = np.searchsorted(row, np.arange(counts.shape[0] + 1)).astype(np.int64)
    return Histogram(indptr, support[column], counts[row, column], size)
