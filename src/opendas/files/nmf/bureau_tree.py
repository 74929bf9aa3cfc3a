"""A noisy measurement file of the Bureau's layout as one tree: spine, frame, noise and constraints.

Axes: ``g`` geounits of a geolevel in spine order, ``B`` bounds.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from opendas.arrays import Floats, Ints
from opendas.constraints.table import (
    ConstraintTable,
    InvariantAnswers,
    JointTotal,
    LevelConstraints,
    bound_cells,
)
from opendas.errors import ConfigError, FormatError
from opendas.files.nmf.bureau import (
    BureauLevel,
    Progress,
    classes_of,
    index_rows,
    name_geounit,
    read_bureau_levels,
)
from opendas.files.nmf.bureau_answers import BureauAnswers, BureauMargins, read_values
from opendas.files.nmf.public_totals import PublicTotals, check_states
from opendas.geography.frame import Frame, official_codes
from opendas.geography.spine import Spine, SpineLevel
from opendas.intervals.implied import UNBOUNDED
from opendas.intervals.margins import Margin, MarginQuery
from opendas.intervals.noisy_tree import AnswerSource, NoisyLevel, NoisyTree
from opendas.sampling.laws import DiscreteGaussian
from opendas.schema.declarations import MAX_PEOPLE_PER_UNIT, Bound, Invariant
from opendas.schema.dhc_persons import dhc_persons
from opendas.schema.dhc_units import dhc_units
from opendas.schema.pl94 import pl94_persons, pl94_units
from opendas.schema.product import Product
from opendas.schema.query_groups import QueryGroup

log = logging.getLogger(__name__)


SAME_LOSS = 1e-5
"""Part by which losses may differ: files state variances in single precision."""

_GEOCODE = 16
_COMPANION = "tenvacgq_dpq"
_OCCUPIED = (0, 1, 2, 2)
"""Tenure of households of each of the first answers about all units: the occupied ones."""

_USED = {f"hhgq_total_{side}_con" for side in ("lb", "ub")}
_USED |= {"total_con", "pl94_con", "nurse_nva_0_con", "gq_vect_con"}
"""Constraints that are read."""

_TOTALS_ARE_EXACT = ("US", "State")
_EXACT = {"total": "totals", "hhgq_vector": "numbers of housing units and group quarters"}
_STATES = 51
"""With fewer states below it, the measurements of the nation say nothing about what is there."""


@dataclass(frozen=True, slots=True, eq=False)
class BureauFile:
    """A noisy measurement file of the Bureau's layout, its values unread. Made by :meth:`open`.

    Parameters
    ----------
    levels : tuple of BureauLevel
        Of the spine, top first.
    product : Product
        As declared, whatever invariants the file holds.
    totals : PublicTotals or None
        Exact counts that the file leaves out.
    progress : callable(stage, done, total) or None
        Told what is read.
    """

    levels: tuple[BureauLevel, ...]
    product: Product
    frame: Frame
    spine: Spine
    totals: PublicTotals | None = None
    progress: Progress | None = None

    @classmethod
    def open(
        cls,
        path: Path,
        state: str | None = None,
        totals: PublicTotals | None = None,
        progress: Progress | None = None,
    ) -> BureauFile:
        """Open a noisy measurement file of the Bureau's layout.

        Parameters
        ----------
        path : Path
            Folder with ``State.parquet``, ``County.parquet`` and so on.
        state : str, optional
            Two digits: the only state whose files are read.
        totals : PublicTotals, optional
            Exact counts that the file leaves out.
        progress : callable(stage, done, total), optional
            Told what was read, now and when answers are.

        Raises
        ------
        FormatError
            Naming the geolevel, and the geocode or query, that is missing, there twice or of another form; or
            the state whose total is not what was measured.

        Notes
        -----
        The files of some states may come with those of the nation. The nation's measurements are then left
        out: they are about all states. That all are there is told by their number, or by exact totals.
        """
        levels = _without_nation(read_bureau_levels(path, state, progress), totals)
        found = cls(levels, _product(levels, path.name), *_frame(_spine(levels)), totals, progress)
        found._check_totals()
        return found

    def _check_totals(self) -> None:
        """Compare totals with measurements.

        Raises
        ------
        FormatError
            If they contradict each other by more than chance.
        """
        states = next((level for level in self.levels if level.folder == "State"), None)
        if self.totals is None or states is None:
            return
        if _counts_people(self.product):
            check_states(states, self.totals.people, "people", self.totals.source)
        elif self.product.layout == "units" and len(self.totals.blocks):
            housing = self.totals.housing_of(self.frame.geocodes)
            if housing is not None:
                sums = {
                    code.decode(): int(housing[self.frame.codes("state") == code].sum())
                    for code in np.unique(self.frame.codes("state"))
                }
                check_states(states, sums, "housing units", self.totals.source)

    def tree(self, margin: Margin | None = None) -> NoisyTree:
        """Return the measurements as one tree; summed to a margin of the product, if one is given.

        What is measured of a companion is left out, but for the tenure that both count.

        Raises
        ------
        FormatError
            As :meth:`open`, of queries and constraints.
        """
        noisy, rows, margins = [], [], []
        for level in self.levels:
            queries, companion = self._queries(level)
            if companion and margin is not None:
                queries[_COMPANION] = _tenure(self.product)
            groups, row, variance = index_rows(level, queries)
            if margin is not None:
                margins.append(
                    tuple(
                        _of_companion(margin, group) if name == _COMPANION else margin.query(group)
                        for name, group in queries.items()
                    )
                )
                groups = tuple(of_margin.query for of_margin in margins[-1])
            noisy.append(_noisy(level, groups, variance))
            rows.append(row)
        answers: AnswerSource
        if margin is None:
            queries_of = tuple(level.queries for level in noisy)
            answers = BureauAnswers(self.levels, queries_of, tuple(rows), self.progress)
        else:
            answers = BureauMargins(self.levels, tuple(margins), tuple(rows), self.progress)
        self._warn_of_losses(noisy)
        table, product = _constraints(self, margin)
        return NoisyTree(product, self.frame, self.spine, tuple(noisy), table, answers)

    def noise(self, level: BureauLevel) -> tuple[tuple[str, ...], NoisyLevel]:
        """Return what was asked of a level and with what noise, a companion's questions included, by name.

        Raises
        ------
        FormatError
            As :meth:`tree`, of queries.
        """
        queries, companion = self._queries(level)
        if companion and self.product.companion is not None:
            queries[_COMPANION] = self.product.companion.workload.group("detailed")
        groups, _, variance = index_rows(level, queries)
        names = ("tenvacgq" if name == _COMPANION else group.name for name, group in queries.items())
        return tuple(names), _noisy(level, groups, variance)

    def _warn_of_losses(self, noisy: Sequence[NoisyLevel]) -> None:
        """Say where the way from the top to a block has less noise than elsewhere, or more.

        One budget gives every way the same loss, whatever was bypassed; a part that is missing takes a piece.
        """
        for level in noisy:
            if not level.queries:
                log.warning("%s: the file has no answers of %s.", level.geolevel, self.product.name)
        uneven = uneven_losses(self.spine, [level.losses.sum(axis=1)[level.which] for level in noisy])
        if uneven is not None:
            leaf, number, least, most = uneven
            log.warning(
                "the noise of %s cannot come from one budget: rho above block %s is %.6g, and above others "
                "%.6g. See whether a part of %s.parquet/DPQuery is missing or variances were changed. "
                "opendas interval uses what is there.",
                self.product.name,
                self.frame.geocodes[self.spine.leaf_order[leaf]].decode(),
                least,
                most,
                self.levels[number].folder,
            )

    def companion(self) -> NoisyTree:
        """Return the measurements of the product's companion as one tree.

        Raises
        ------
        ConfigError
            If the product has none.
        """
        product = self.product.companion
        if product is None:
            raise ConfigError(f"{self.product.name} has no second histogram.")
        noisy, rows = [], []
        for level in self.levels:
            queries = {_COMPANION: product.workload.group("detailed")} if self._queries(level)[1] else {}
            groups, row, variance = index_rows(level, queries)
            noisy.append(_noisy(level, groups, variance))
            rows.append(row)
        queries_of = tuple(level.queries for level in noisy)
        answers = BureauAnswers(self.levels, queries_of, tuple(rows), self.progress)
        query = product.workload.group("hhgq_vector")
        told = ((i, _exact(level, "gq_vect_con", query.size)) for i, level in enumerate(self.levels))
        exact, invariants = _exact_answers(self, query, {i: units for i, units in told if units is not None})
        none = [np.zeros((len(level.geocodes), 0), dtype=np.int64) for level in self.levels]
        held = tuple(LevelConstraints(x, x, units) for x, units in zip(none, exact, strict=True))
        table = ConstraintTable((), bound_cells(product), product.possible, held)
        product = dataclasses.replace(product, invariants=invariants)
        return NoisyTree(product, self.frame, self.spine, tuple(noisy), table, answers)

    def _queries(self, level: BureauLevel) -> tuple[dict[str, QueryGroup], bool]:
        """Return the query groups of a level by their names in the files, and whether a companion's are."""
        rows = level.measured
        used = np.unique(np.column_stack([rows.name, rows.shape]), axis=0).tolist()
        queries: dict[str, QueryGroup] = {}
        companion = False
        for name, shape in used:
            text = rows.names[name]
            if text == _COMPANION and self.product.companion is not None:
                companion = True
            else:
                queries[text] = _query(self.product, text, rows.shapes[shape], level.folder)
        return queries, companion


def uneven_losses(spine: Spine, spent: Sequence[Floats]) -> tuple[int, int, float, float] | None:
    """Return where losses on the way from the top to a leaf differ by more than rounding; None if nowhere.

    - `spent` (g,): loss of each geounit, per geolevel.
    - Returns `leaf`: one with the least, by its place on the spine.
    - Returns `level`: where it differs most from one with the greatest.
    - Returns `least`, `most`.
    """
    place = np.arange(len(spine.leaf))
    places = [place]
    for number in range(len(spine.levels) - 1, 0, -1):
        place = spine.levels[number].parent[place]
        places.append(place)
    own = [level[there] for level, there in zip(spent, places[::-1], strict=True)]
    total = np.sum(own, axis=0)
    first, last = int(total.argmin()), int(total.argmax())
    if total[last] - total[first] <= SAME_LOSS * total[last]:
        return None
    apart = [float(level[last] - level[first]) for level in own]
    return first, int(np.argmax(apart)), float(total[first]), float(total[last])


def _noisy(level: BureauLevel, groups: tuple[QueryGroup, ...], variance: Floats) -> NoisyLevel:
    """Return what was asked of a level, and the law of each variance."""
    kinds, which = classes_of(variance)
    laws = tuple(
        tuple(DiscreteGaussian.of_variance(v) if np.isfinite(v) else None for v in kind)
        for kind in kinds.tolist()
    )
    return NoisyLevel(level.geolevel, groups, laws, which)


def _tenure(product: Product) -> QueryGroup:
    """Return the households by tenure that a companion counts, too."""
    return product.workload.group("hhtenshort_3lev")


def _of_companion(margin: Margin, tenure: QueryGroup) -> MarginQuery:
    """Return what the numbers of all units say about a margin of households: those of the occupied ones.

    Rented for cash and occupied without rent, two answers, are one tenure of households.
    """
    households = margin.query(tenure)
    companion = margin.whole.companion
    if companion is None:
        raise ConfigError(f"{margin.whole.name} has no second histogram.")
    row = np.full(companion.schema.size, -1, dtype=np.int64)
    row[: len(_OCCUPIED)] = households.row[list(_OCCUPIED)]
    draws = np.maximum(np.bincount(row[row >= 0], minlength=households.query.size), 1).astype(np.int64)
    return MarginQuery(dataclasses.replace(households.query, name="tenvacgq", draws=draws), row)


def _product(levels: Sequence[BureauLevel], name: str) -> Product:
    """Return the product that was measured, by the shape of its detailed query."""
    shapes: set[tuple[int, ...]] = set()
    for level in levels:
        rows = level.measured
        for number in np.unique(np.column_stack([rows.name, rows.shape]), axis=0).tolist():
            if rows.names[number[0]] == "detailed_dpq":
                shapes.add(rows.shapes[number[1]])
    known = (pl94_persons(), pl94_units(), dhc_persons(), dhc_units())
    for product in known:
        if shapes == {product.schema.shape}:
            return product
    raise FormatError(
        f"{name}: shape of query 'detailed_dpq': found {' and '.join(map(str, sorted(shapes))) or 'none'}, "
        f"expected that of one of {'; '.join(f'{product.name} {product.schema.shape}' for product in known)}."
    )


def _query(product: Product, name: str, shape: tuple[int, ...], level: str) -> QueryGroup:
    """Return the query group behind a row's name, after a look at its shape."""
    plain = re.sub(r"_dpq$", "", name)
    try:
        query = product.workload.group(plain)
    except ConfigError as error:
        raise FormatError(f"{level}.parquet: query {name!r} of {product.name}: {error}") from error
    sizes = dict(zip(query.factors, query.shape, strict=True))
    positions = product.workload.positions
    expected = [1] * len(product.schema.shape)
    for factor, size in sizes.items():
        expected[positions[factor]] = size
    if tuple(expected) != shape:
        raise FormatError(
            f"{level}.parquet: query {name!r} of shape {shape}, expected {tuple(expected)} of {product.name}."
        )
    return query


def _without_nation(levels: tuple[BureauLevel, ...], totals: PublicTotals | None) -> tuple[BureauLevel, ...]:
    if levels[0].folder != "US" or levels[1].folder != "State":
        return levels
    states = sorted({code[-2:].decode() for code in levels[1].geocodes.tolist()})
    if len(states) >= _STATES or _have_all_people(levels, states, totals):
        return levels
    log.warning(
        "State.parquet has %d of %d states (with DC): the nation's measurements are not used.",
        len(states),
        _STATES,
    )
    return levels[1:]


def _have_all_people(
    levels: Sequence[BureauLevel], states: Sequence[str], totals: PublicTotals | None
) -> bool:
    """Return whether exact totals of these states sum to that of the nation: then there is no other."""
    nation, own = (_exact(level, "total_con", 1) for level in levels[:2])
    exact = own if own is not None or totals is None else totals.states(states)
    return nation is not None and exact is not None and int(nation.sum()) == int(exact.sum())


def _spine(levels: Sequence[BureauLevel]) -> Spine:
    """Make the hierarchy: children lie in the order of their codes, which begin with their parent's."""
    found: list[SpineLevel] = []
    for number, level in enumerate(levels):
        codes = level.geocodes
        parent = np.zeros(len(codes), dtype=np.int64)
        if number:
            above = found[-1].geocodes
            width = above.dtype.itemsize
            if width >= codes.dtype.itemsize:
                raise FormatError(
                    f"{level.folder}.parquet: geocodes are not longer than those of "
                    f"{levels[number - 1].folder}.parquet."
                )
            if above[0]:  # all but the nation, whose code is empty
                prefix = codes.astype(f"S{width}")
                parent = levels[number - 1].places(prefix)
                lost = above[parent] != prefix
                if lost.any():
                    raise FormatError(
                        f"{level.folder}.parquet: geocode {codes[lost][0].decode()} is below no geounit of "
                        f"{levels[number - 1].folder}.parquet."
                    )
            childless = np.setdiff1d(np.arange(len(above)), parent)
            if len(childless):
                raise FormatError(
                    f"{levels[number - 1].folder}.parquet: geocode {above[childless[0]].decode()} has no "
                    f"geounit below it in {level.folder}.parquet."
                )
        found.append(SpineLevel(level.geolevel, codes, parent.astype(np.int64), official=False))
    leaves = np.arange(len(levels[-1].geocodes), dtype=np.int64)
    return Spine(tuple(found), leaves, (None,) * len(found))


def _frame(spine: Spine) -> tuple[Frame, Spine]:
    """Derive the official codes of the leaves, and with them the order of the frame."""
    codes = spine.leaf.geocodes
    width = codes.dtype.itemsize
    if width < _GEOCODE:
        raise FormatError(f"Block.parquet: geocodes of {width} characters, expected at least {_GEOCODE}.")
    tail = np.array([code[-_GEOCODE:] for code in codes.tolist()], dtype=f"S{_GEOCODE}")
    # A block's own code repeats the digit of its block group.
    geoid = np.array([code[:11] + code[12:] for code in tail.tolist()], dtype="S15")
    order = np.argsort(geoid, kind="stable")
    if len(np.unique(geoid)) != len(geoid):
        twice = geoid[order][1:][geoid[order][1:] == geoid[order][:-1]][0]
        raise FormatError(f"Block.parquet: two geocodes are of block {twice.decode()}.")
    leaf_order = np.empty(len(order), dtype=np.int64)
    leaf_order[order] = np.arange(len(order))
    states = len(np.unique(geoid.astype("S2")))
    frame = Frame(geoid[order], official_codes(geoid[order], "us" if states > 1 else "state"), "block")
    levels = tuple(
        dataclasses.replace(level, official=_is_official(spine, number, leaf_order, frame))
        for number, level in enumerate(spine.levels)
    )
    return frame, Spine(levels, leaf_order, spine.shares)


def _is_official(spine: Spine, level: int, leaf_order: Ints, frame: Frame) -> bool:
    """Return whether the geounits of a level are those of the official geolevel of that name."""
    name = spine.names[level]
    if name not in frame.geolevels:
        return False
    codes, own = np.unique(frame.codes(name)[leaf_order], return_inverse=True)
    starts = spine.leaf_starts(level)
    unit = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    pairs = np.unique(np.column_stack([unit, own.ravel()]), axis=0)
    return len(pairs) == len(codes) == len(starts) - 1


def _counts_people(product: Product) -> bool:
    return product.layout in ("persons", "dhc-persons")


def _constraints(file: BureauFile, margin: Margin | None) -> tuple[ConstraintTable, Product]:
    """Read bounds and exact totals; returns the product, or its margin, with what the file holds."""
    product, spine, levels, public = file.product, file.spine, file.levels, file.totals
    own, rows = _bounded(product, margin)
    housing = None
    if public is not None:
        housing = public.housing_of(file.frame.geocodes)
    at_leaf = None if housing is None else housing[spine.leaf_order]
    bounds = [
        _bounds(level, rows, at_leaf if number + 1 == len(levels) and _counts_people(product) else None)
        for number, level in enumerate(levels)
    ]
    totals: dict[int, Ints] = {}
    joint: dict[int, JointTotal] = {}
    for number, level in enumerate(levels):
        total = _exact(level, "total_con", 1)
        if total is not None:
            totals[number] = total
        tied = _tied_totals(level, product, public) if level.folder in _TOTALS_ARE_EXACT else None
        if isinstance(tied, JointTotal):
            joint[number] = tied
        elif tied is not None:
            if number in totals and not np.array_equal(totals[number], tied):
                other = f" or {public.source}" if public is not None else ""
                raise FormatError(
                    f"{level.folder}.parquet: exact totals of total_con are not those of pl94_con{other}."
                )
            totals[number] = tied
        _warn_unknown(level)
    if public is not None and at_leaf is not None and product.layout == "units":
        last = len(levels) - 1
        if last in totals and not np.array_equal(totals[last][:, 0], at_leaf):
            wrong = int(np.flatnonzero(totals[last][:, 0] != at_leaf)[0])
            raise FormatError(
                f"{public.source}: housing units of block "
                f"{file.frame.geocodes[spine.leaf_order[wrong]].decode()}: {at_leaf[wrong]} here, "
                f"{totals[last][wrong, 0]} in the measurement file. Both are exact: the two files do not "
                "belong together."
            )
        totals[last] = at_leaf[:, None]
    held, invariants = _exact_answers(file, own.workload.group("total"), totals)
    table = ConstraintTable(
        tuple(bound.name for bound in own.bounds),
        bound_cells(own),
        own.possible,
        tuple(
            LevelConstraints(*pair, exact, joint.get(number))
            for number, (pair, exact) in enumerate(zip(bounds, held, strict=True))
        ),
    )
    return table, dataclasses.replace(own, invariants=invariants)


def _exact_answers(
    file: BureauFile, query: QueryGroup, answers: Mapping[int, Ints]
) -> tuple[list[tuple[InvariantAnswers, ...]], tuple[Invariant, ...]]:
    """Return what is exact at every geolevel, and the invariant of the lowest where the file says it.

    `answers`: by number of the geolevel. Those above the lowest must be sums of it.
    """
    spine, levels = file.spine, file.levels
    held: list[tuple[InvariantAnswers, ...]] = [() for _ in levels]
    if not answers:
        return held, ()
    lowest = max(answers)
    invariant, sums = Invariant(query.name, spine.names[lowest]), answers[lowest]
    for number in range(lowest, -1, -1):
        if number in answers and not np.array_equal(answers[number], sums):
            other = "" if file.totals is None else f", or {file.totals.source} is of another census"
            raise FormatError(
                f"{levels[number].folder}: exact {_EXACT[query.name]} are not the sums of those of "
                f"{levels[lowest].folder}. See whether a part of the file is missing{other}."
            )
        held[number] = (InvariantAnswers(invariant.name, query, sums),)
        if number:
            sums = np.add.reduceat(sums, spine.child_starts(number - 1)[:-1], axis=0)
    return held, (invariant,)


def _bounded(product: Product, margin: Margin | None) -> tuple[Product, Ints]:
    """Return a product or its margin with bounds on its facilities, and the bound of each published value."""
    if margin is None:
        return product, np.arange(len(product.bounds), dtype=np.int64)
    if "gqlevels" not in margin.whole.workload.positions:
        return margin.product, np.zeros(0, dtype=np.int64)
    query, rows = margin.rows_of("gqlevels")
    bounds = tuple(
        Bound(query.name, query.row_label(row), f"facilities {row}", 0, MAX_PEOPLE_PER_UNIT)
        for row in range(query.size)
    )
    return dataclasses.replace(margin.product, bounds=bounds), rows


def _tied_totals(
    level: BureauLevel, product: Product, public: PublicTotals | None
) -> Ints | JointTotal | None:
    """Return the exact totals of states or the nation: published ones, or sums of the tied counts.

    Counts of the redistricting release are published and not true ones, so that nothing else of them is used;
    but totals of states are invariants of that release. Parts of a state hold its total together, where they
    follow each other.
    """
    states, group = np.unique([code[-2:] for code in level.geocodes.tolist()], return_inverse=True)
    counts = _exact(level, "pl94_con", pl94_persons().schema.size)
    whole = None
    if counts is not None:
        sums: Ints = counts.sum(axis=1, keepdims=True)
        if level.folder == "US":
            return sums
        whole = np.bincount(group, sums[:, 0]).astype(np.int64)
    if public is not None and level.folder == "State" and _counts_people(product):
        codes = [code.decode() for code in states.tolist()]
        given = public.states(codes)
        if given is not None and whole is not None and not np.array_equal(given, whole):
            wrong = int(np.flatnonzero(given != whole)[0])
            raise FormatError(
                f"{public.source}: people of state {codes[wrong]}: {given[wrong]:,} here, {whole[wrong]:,} "
                "in pl94_con of State.parquet. Both are exact: the two files do not belong together."
            )
        whole = given if given is not None else whole
    if whole is None:
        return None
    if len(states) == len(group):
        return whole[group][:, None]
    return JointTotal("total@state", group.astype(np.int32), whole)


def _bounds(level: BureauLevel, rows: Ints, housing: Ints | None) -> tuple[Ints, Ints]:
    """Return bounds, int64 (g, bounds), from those in the file, of each of which `rows` says the bound.

    `housing` (g,): housing units of blocks, published: nobody lives in a household where there are none.
    """
    shape = (len(level.geocodes), int(rows.max(initial=-1)) + 1)
    lower, upper = np.zeros(shape, dtype=np.int64), np.full(shape, UNBOUNDED, dtype=np.int64)
    if len(rows):
        found = [_values(level, f"hhgq_total_{side}_con", len(rows)) for side in ("lb", "ub")]
        if found[0] is not None:
            np.add.at(lower.T, rows, np.maximum(found[0], 0).T)
        if found[1] is not None:
            if housing is not None:
                found[1][:, 0] = np.where(housing == 0, 0, found[1][:, 0])
            upper[:] = 0
            np.add.at(upper.T, rows, found[1].T)
            upper[(found[1] < 0).any(axis=1)] = UNBOUNDED
    wrong = np.flatnonzero((lower > upper).any(axis=1))
    if len(wrong):
        none = housing is not None and housing[wrong[0]] == 0
        raise FormatError(
            f"{level.folder}.parquet: a lower bound above its upper bound at "
            f"{name_geounit(level.geocodes[wrong[0]])}"
            f"{', which the totals give no housing units' if none else ''}."
        )
    return lower, upper


def _values(level: BureauLevel, name: str, size: int) -> Ints | None:
    """Return a constraint's values, int64 (g, size), -1 where a geounit has none; None where none has any."""
    rows = level.constraints
    if name not in rows.names:
        return None
    chosen = np.flatnonzero(rows.name == rows.names.index(name))
    position = level.places(rows.geocode[chosen])
    if len(np.unique(position)) != len(position):
        twice = name_geounit(level.geocodes[np.bincount(position).argmax()])
        raise FormatError(f"{level.folder}.parquet: {twice} appears twice with constraint {name!r}.")
    found = np.full((len(level.geocodes), size), -1, dtype=np.int64)
    found[position] = read_values(rows, chosen, size, level.folder, f"constraint {name!r}")
    return found


def _exact(level: BureauLevel, name: str, size: int) -> Ints | None:
    """Return a constraint's values, int64 (g, size); None where not every geounit has them."""
    found = _values(level, name, size)
    return None if found is None or bool(np.any(found < 0)) else found


def _warn_unknown(level: BureauLevel) -> None:
    others = sorted(
        name
        for name in set(level.constraints.names) - _USED
        if not re.fullmatch(r"relgq\d+_.*_con", name)  # the edits of ages, which the product declares
    )
    if others:
        log.warning("%s.parquet/Constraint: not used: %s.", level.folder, ", ".join(others))
