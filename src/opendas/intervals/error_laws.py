"""Which estimates have errors that are not normal, and the laws of these errors.

An estimate puts the weight ``w_q Q_q Cov(x_u, f)`` on the answers of a query group at geounit ``u``. Two sets
of draws are examined one by one: those of the geounit itself and of geounits with the same leaves, and, where
the tree has noise with tails heavier than normal, those of all geounits below, if they are few. All other
draws have small weights beside many others and are taken as normal.

Axes: ``g`` geounits, ``c`` classes of geounits (equal covariance, equal noise in their chain), ``r`` kinds of
rows, ``n`` cells, ``U`` different covariances.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from opendas.arrays import Bools, Floats, Ints
from opendas.gls.downward import Estimates
from opendas.gls.kernels import margins
from opendas.gls.model import LEAST_VARIANCE
from opendas.gls.operators import Operators
from opendas.gls.upward import Sweep
from opendas.intervals.answers import Areas
from opendas.intervals.laws import NoiseLaw, NoiseSum, fourth_cumulant, noise_sum
from opendas.intervals.noisy_tree import NoisyTree
from opendas.intervals.rows import Rows
from opendas.schema.query_groups import QueryGroup

Answers = tuple[Floats, Ints, Floats, list[NoiseLaw | None]]
"""Weights (c, r, m) of each of the draws in the answers of a query group, their numbers (m,), and their
variance and law by class."""

OwnAnswers = tuple[Floats, Ints, NoiseLaw]
"""Weights (r, m) and numbers (m,) of the draws of a query group at one geounit, and their law."""

_CHUNK = 4_000_000

_HEAVY = 1e-3
"""Part of a squared variance from which a fourth cumulant is examined below a geounit."""

_SUBTREE = 200
"""With more geounits below, no few of them matter."""

_STEPS_GONE = 0.35
"""A normal rest with this part of a squared weight leaves less than a thousandth of that draw's steps."""


class ErrorLaws:
    """Laws of the errors of a tree's estimates, standardised to variance 1, equal ones kept once."""

    def __init__(self, tree: NoisyTree) -> None:
        self._tree = tree
        self._number: dict[NoiseSum, int] = {}

    @property
    def kinds(self) -> tuple[NoiseSum, ...]:
        """The laws found so far."""
        return tuple(self._number)

    def classes(self, level: int, first: int, covariance: Ints) -> tuple[Ints, Ints]:
        """Number geounits that have the same covariance, and the same noise in their chain.

        - `covariance` (g,): covariance of each of consecutive geounits.
        - Returns `own` (g,): class of each geounit.
        - Returns `which` (c,): covariance of each class.
        """
        geounits = np.arange(first, first + len(covariance), dtype=np.int64)
        columns = [covariance.astype(np.int64)]
        for number, place in self._chain(level, geounits).items():
            noise = self._tree.levels[number].which
            columns.append(np.where(place >= 0, noise[np.maximum(place, 0)], -1))
        _, where, own = np.unique(np.column_stack(columns), axis=0, return_index=True, return_inverse=True)
        return own.ravel().astype(np.int64), covariance[where].astype(np.int64)

    def _chain(self, level: int, geounits: Ints) -> dict[int, Ints]:
        """Return per geolevel the geounit with the same leaves as each of some geounits; -1 for none."""
        spine = self._tree.spine
        found = {level: geounits}
        place = geounits
        for number in range(level, 0, -1):
            above = spine.levels[number].parent[np.maximum(place, 0)]
            alone = np.diff(spine.child_starts(number - 1))[above] == 1
            place = np.where((place >= 0) & alone, above, -1)
            if not (place >= 0).any():
                break
            found[number - 1] = place
        place = geounits
        for number in range(level, len(spine.levels) - 1):
            starts = spine.child_starts(number)
            at = np.maximum(place, 0)
            alone = starts[at + 1] - starts[at] == 1
            place = np.where((place >= 0) & alone, starts[at], -1)
            if not (place >= 0).any():
                break
            found[number + 1] = place
        return found

    def of(
        self,
        sweep: Sweep,
        run: Estimates,
        rows: Rows,
        own: Ints,
        covariance: Ints,
        variance: Floats,
    ) -> Ints:
        """Return the law of each class of geounits and kind of row, int64 (c, r); -1 for the normal one.

        - `run`: of geounits of one level.
        - `own`, `covariance`: from :meth:`classes`.
        - `variance` (c, r).
        """
        level = run.level
        found = np.full(variance.shape, -1, dtype=np.int64)
        _, where = np.unique(own, return_index=True)
        geounits = run.first + where
        chain = self._chain(level, geounits)
        deep = self._looked_into(sweep, level)[geounits]
        for number in chain:
            if number > level:  # found again on the way down
                chain[number] = np.where(deep, -1, chain[number])
        members = rows.kinds.astype(np.float64)
        step = max(1, _CHUNK // max(1, members.size))
        for start in range(0, len(covariance), step):
            some = slice(start, min(start + step, len(covariance)))
            pulled = self._pulled(run, members, covariance[some])
            answers = self._answers(pulled, {number: place[some] for number, place in chain.items()})
            more = {
                int(i): self._below(sweep, level, int(geounits[start + i]), pulled[i])
                for i in np.flatnonzero(deep[some])
            }
            for i, k in np.argwhere(self._unusual(answers, more, variance[some])).tolist():
                given = [(weights[i, k], draws, laws[i]) for weights, draws, _, laws in answers]
                given += [(weights[k], draws, law) for weights, draws, law in more.get(i, [])]
                kept = [(weights, draws, law) for weights, draws, law in given if law is not None]
                found[start + i, k] = self._law(kept, float(variance[start + i, k]))
        return found

    def _looked_into(self, sweep: Sweep, level: int) -> Bools:
        """Return the geounits of a level whose whole subtree is examined, bool (g,)."""
        model = sweep.model
        plain = all(model.plain[level + 1 :]) and all(model.plain_below[level:-1])
        if not self._heavy(level + 1) or not plain:
            return np.zeros(len(model.levels[level]), dtype=bool)
        sizes = _subtree_sizes(sweep, level)
        return np.asarray((sizes > 0) & (sizes <= _SUBTREE))

    def _heavy(self, first: int) -> bool:
        """Return whether a level from `first` down has noise of other than normal tails."""
        return any(
            law is not None and abs(fourth_cumulant(law)) > _HEAVY * law.variance**2
            for noisy in self._tree.levels[first:]
            for laws in noisy.laws
            for law in laws
        )

    def of_areas(self, sweep: Sweep, roots: Operators, areas: Areas, rows: Rows, variance: Floats) -> Ints:
        """Return the law of each area and kind of row, int64 (a, r); -1 for the normal one.

        Draws of geounits that hold leaves of an area are examined where their noise has heavy tails, and
        these geounits are not many.
        """
        found = np.full(variance.shape, -1, dtype=np.int64)
        model = sweep.model
        plain = all(model.plain[1:]) and all(model.plain_below[:-1]) and len(model.levels) > 1
        if not plain or model.levels[0].joint is not None or not self._heavy(0):
            return found
        members = rows.kinds.astype(np.float64)
        for area in range(areas.number):
            mine = np.flatnonzero(areas.which == area)
            order = mine[np.argsort(areas.leaf[mine])]
            leaves = areas.leaf[order]
            if len(leaves) == 0 or sum(map(len, _geounits_with_leaves(sweep, leaves))) > _SUBTREE:
                continue
            given: list[OwnAnswers] = []
            for number, geounit, vectors in _answer_covariances(
                sweep, roots, leaves, areas.weight[order], members
            ):
                given += self._own(number, geounit, vectors)
            here = slice(area, area + 1)
            for _, k in np.argwhere(self._unusual([], {0: given}, variance[here])).tolist():
                kept = [(weights[k], draws, law) for weights, draws, law in given]
                found[area, k] = self._law(kept, float(variance[area, k]))
        return found

    @staticmethod
    def _pulled(run: Estimates, members: Floats, covariance: Ints) -> Floats:
        """Return the covariance of the cells of each class with each kind of row, float64 (c, r, n)."""
        own = run.covariance
        operators = type(own)(own.domain, own.stacks, np.repeat(covariance, len(members)))
        found = operators.apply(np.tile(members, (len(covariance), 1)))
        return found.reshape(len(covariance), *members.shape)

    def _answers(self, pulled: Floats, chain: dict[int, Ints]) -> list[Answers]:
        """Return the weights of the draws of geounits and of their chains."""
        classes, kinds, cells = pulled.shape
        flat = np.ascontiguousarray(pulled.reshape(-1, cells))
        found: list[Answers] = []
        for number, place in chain.items():
            level = self._tree.levels[number]
            noise = np.where(place >= 0, level.which[np.maximum(place, 0)], -1)
            for column, query in enumerate(level.queries):
                sums = np.zeros((len(flat), query.size))
                margins(flat, query.row_of_cell, sums)
                laws = [level.laws[k][column] if k >= 0 else None for k in noise.tolist()]
                each = np.array(
                    [np.inf if law is None else max(law.variance, LEAST_VARIANCE) for law in laws]
                )
                draws = _draws(query)
                found.append(
                    (sums.reshape(classes, kinds, -1) / draws / each[:, None, None], draws, each, laws)
                )
        return found

    def _below(self, sweep: Sweep, level: int, geounit: int, pulled: Floats) -> list[OwnAnswers]:
        """Return the draws of everything below a geounit."""
        found: list[OwnAnswers] = []
        for number, child, vectors in _covariances_below(sweep, level, geounit, pulled):
            found += self._own(number, child, vectors)
        return found

    def _own(self, level: int, geounit: int, vectors: Floats) -> list[OwnAnswers]:
        """Return the draws of one geounit, from its covariances."""
        found: list[OwnAnswers] = []
        noisy = self._tree.levels[level]
        for query, law in zip(noisy.queries, noisy.laws[int(noisy.which[geounit])], strict=True):
            if law is not None:
                sums = np.zeros((len(vectors), query.size))
                margins(np.ascontiguousarray(vectors), query.row_of_cell, sums)
                draws = _draws(query)
                found.append((sums / draws / max(law.variance, LEAST_VARIANCE), draws, law))
        return found

    @staticmethod
    def _unusual(answers: list[Answers], more: dict[int, list[OwnAnswers]], variance: Floats) -> Bools:
        """Return where steps or tails of single draws may be seen in the sum, bool (c, r)."""
        rest = variance.copy()
        largest = np.zeros_like(variance)
        heavy = np.zeros_like(variance)
        for weights, draws, each, laws in answers:
            square = weights * weights
            rest -= (square * draws).sum(axis=2) * np.where(np.isfinite(each), each, 0.0)[:, None]
            largest = np.maximum(largest, square.max(axis=2, initial=0.0))
            fourth = np.array([0.0 if law is None else abs(fourth_cumulant(law)) for law in laws])
            heavy += (square * square * draws).sum(axis=2) * fourth[:, None]
        for i, below in more.items():
            for weights_below, draws, law in below:
                square = weights_below * weights_below
                rest[i] -= (square * draws).sum(axis=1) * max(law.variance, LEAST_VARIANCE)
                largest[i] = np.maximum(largest[i], square.max(axis=1, initial=0.0))
                heavy[i] += (square * square * draws).sum(axis=1) * abs(fourth_cumulant(law))
        some = np.isfinite(variance) & (variance > 0)
        steps = rest < _STEPS_GONE * largest
        with np.errstate(invalid="ignore"):
            tails = heavy > 0.005 * variance * variance
        return np.asarray(some & (steps | tails) & (largest > 0))

    def _law(self, given: list[OwnAnswers], variance: float) -> int:
        spread = variance**0.5
        weights = [one / spread for one, _, _ in given]
        law = noise_sum(weights, [law for _, _, law in given], 1.0, numbers=[draws for _, draws, _ in given])
        if law.is_normal:
            return -1
        return self._number.setdefault(law, len(self._number))


def _draws(query: QueryGroup) -> Ints:
    """Return how many draws the answer of each row of a query group holds, int64 (m,)."""
    return np.ones(query.size, dtype=np.int64) if query.draws is None else query.draws


def _subtree_sizes(sweep: Sweep, level: int) -> Ints:
    """Return how many geounits lie below each geounit of a level, int64 (g,)."""
    levels = sweep.model.levels
    sizes = np.zeros(len(levels[-1]), dtype=np.int64)
    for number in range(len(levels) - 1, level, -1):
        sizes = np.bincount(levels[number].parent, sizes + 1.0, minlength=len(levels[number - 1])).astype(
            np.int64
        )
    return sizes


def _covariances_below(
    sweep: Sweep, level: int, geounit: int, covariance: Floats
) -> Iterator[tuple[int, int, Floats]]:
    """Yield (level, geounit, covariance) of everything below a geounit.

    Given the total of a geounit, its children depend on nothing else: ``Cov(x_c, f) = V_c S^-1 Cov(x_v, f)``,
    with the upward messages of :mod:`opendas.gls.upward`, and so on down to the leaves.

    - `sweep`: of the whole tree; below the geounit nothing may be exact or unknown.
    - `covariance` (r, n): of the geounit's cells with each function.
    """
    if level == len(sweep.model.levels) - 1:
        return
    pulled = _apply(_information(sweep, level, np.array([geounit])), covariance[None])
    children = np.arange(*sweep.model.child_starts(level, geounit, geounit + 1))
    found = _apply(_covariance(sweep, level + 1, children), np.repeat(pulled, len(children), axis=0))
    for child, vectors in zip(children.tolist(), found, strict=True):
        yield level + 1, child, vectors
        yield from _covariances_below(sweep, level + 1, child, vectors)


def _geounits_with_leaves(sweep: Sweep, leaves: Ints) -> list[Ints]:
    """Return per level, top first, the geounits that hold some of the leaves, ascending."""
    levels = sweep.model.levels
    found = [np.unique(leaves)]
    for number in range(len(levels) - 1, 0, -1):
        found.append(np.unique(levels[number].parent[found[-1]]))
    return found[::-1]


def _answer_covariances(
    sweep: Sweep, roots: Operators, leaves: Ints, weights: Floats, rows: Floats
) -> Iterator[tuple[int, int, Floats]]:
    """Yield (level, geounit, covariance) of the geounits that hold leaves of an area.

    - `sweep`: of the whole tree; below the top nothing may be exact or unknown, and the top must be no leaf.
    - `roots`: covariances of the top's geounits given everything.
    - `leaves` (p,): ascending.
    - `weights` (p,).
    - `rows` (r, n): functions of the cells; the area's are their weighted sums over the leaves.

    Notes
    -----
    Least squares itself: with ``b`` for the sum ``f`` in place of answers, the estimate is ``Var b``,
    which is the covariance of all cells with ``f``.
    """
    model = sweep.model
    places = _geounits_with_leaves(sweep, leaves)
    last = len(model.levels) - 1
    own: dict[int, Floats] = {}  # V b of each touched geounit, (g, r, n)
    below: dict[int, Floats] = {}  # their sum over the children
    linear = weights[:, None, None] * rows
    for number in range(last, 0, -1):
        own[number] = _apply(_covariance(sweep, number, places[number]), linear)
        parent = model.levels[number].parent[places[number]]
        below[number - 1] = np.add.reduceat(own[number], np.flatnonzero(np.diff(parent, prepend=-1)), axis=0)
        linear = _apply(_information(sweep, number - 1, places[number - 1]), below[number - 1])
    found = _apply(roots.take(places[0]), linear)
    for number in range(last + 1):
        if number:
            pulled = _apply(_information(sweep, number - 1, places[number - 1]), found - below[number - 1])
            up = np.searchsorted(places[number - 1], model.levels[number].parent[places[number]])
            found = own[number] + _apply(_covariance(sweep, number, places[number]), pulled[up])
        for geounit, vectors in zip(places[number].tolist(), found, strict=True):
            yield number, geounit, vectors


def _covariance(sweep: Sweep, level: int, geounits: Ints) -> Operators:
    """Return ``V`` of some geounits."""
    statistics, here = sweep.statistics[level], sweep.model.levels[level]
    allowed = here.patterns[here.pattern[geounits - here.first]]
    return statistics.precision.take(geounits - statistics.first).dual(allowed, plain=True)


def _information(sweep: Sweep, level: int, geounits: Ints) -> Operators:
    """Return ``S^-1`` of some geounits."""
    below, here = sweep.below[level], sweep.model.levels[level]
    allowed = here.patterns[here.pattern[geounits - here.first]]
    return below.covariance.take(geounits - below.first).dual(allowed, plain=True)


def _apply(operators: Operators, vectors: Floats) -> Floats:
    """Apply each geounit's operator to its vectors, float64 (g, r, n)."""
    count, rows, cells = vectors.shape
    several = operators.take(np.repeat(np.arange(count), rows))
    return several.apply(vectors.reshape(-1, cells)).reshape(vectors.shape)
