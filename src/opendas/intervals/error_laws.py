"""Which estimates have errors that are not normal, and what their laws are.

An estimate puts the weight ``w_q Q_q Cov(x_u, f)`` on the answers of a query group at geounit ``u``. The
draws looked at one by one are those of the geounit itself and of the geounits in one chain with it, which
have the same leaves; all others stand farther away, enter with the draws of many others, and are taken as
normal.

Axes: ``g`` geounits, ``c`` classes of geounits (equal covariance, equal noise in their chain), ``r`` kinds of
rows, ``n`` cells, ``U`` different covariances.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opendas.intervals.laws import NoiseLaw, NoiseSum, fourth_cumulant, noise_sum
from opendas.intervals.noisy_tree import NoisyTree
from opendas.intervals.rows import Rows
from opendas.whole_tree.down import Estimates
from opendas.whole_tree.kernels import margins
from opendas.whole_tree.model import LEAST_VARIANCE

__all__ = ["ErrorLaws"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_CHUNK = 4_000_000

_STEPS_GONE = 0.35
"""A normal rest with this part of a squared weight leaves less than a thousandth of that draw's steps."""


class ErrorLaws:
    """Laws of the errors of a tree's estimates, standardised to variance 1, equal ones kept once.

    Parameters
    ----------
    tree : NoisyTree
    """

    def __init__(self, tree: NoisyTree) -> None:
        self._tree = tree
        self._number: dict[NoiseSum, int] = {}

    @property
    def kinds(self) -> tuple[NoiseSum, ...]:
        """The laws found so far."""
        return tuple(self._number)

    def classes(self, level: int, first: int, covariance: Ints) -> tuple[Ints, Ints]:
        """Number geounits that have the same covariance, and the same noise in their chain.

        Parameters
        ----------
        level, first : int
        covariance : int64 (g,)
            Covariance of each of consecutive geounits.

        Returns
        -------
        own : int64 (g,)
            Class of each geounit.
        which : int64 (c,)
            Covariance of each class.
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
        self, level: int, run: Estimates, rows: Rows, own: Ints, covariance: Ints, variance: Floats
    ) -> Ints:
        """Return the law of each class of geounits and kind of row, int64 (c, r); -1 for the normal one.

        Parameters
        ----------
        level : int
        run : Estimates
        rows : Rows
        own, covariance
            From :meth:`classes`.
        variance : float64 (c, r)
        """
        found = np.full(variance.shape, -1, dtype=np.int64)
        _, where = np.unique(own, return_index=True)
        chain = self._chain(level, run.first + where)
        members = rows.kinds.astype(np.float64)
        step = max(1, _CHUNK // max(1, members.size))
        for start in range(0, len(covariance), step):
            some = slice(start, min(start + step, len(covariance)))
            here = {number: place[some] for number, place in chain.items()}
            self._some(run, members, covariance[some], here, variance[some], found[some])
        return found

    def _some(
        self,
        run: Estimates,
        members: Floats,
        covariance: Ints,
        chain: dict[int, Ints],
        variance: Floats,
        found: Ints,
    ) -> None:
        classes, kinds = variance.shape
        operators = type(run.covariance)(
            run.covariance.domain, run.covariance.stacks, np.repeat(covariance, kinds)
        )
        pulled = operators.apply(np.tile(members, (classes, 1)))
        answers: list[tuple[Floats, Floats, list[NoiseLaw | None]]] = []
        for number, place in chain.items():
            level = self._tree.levels[number]
            for column, query in enumerate(level.queries):
                sums = np.zeros((len(pulled), query.size))
                margins(pulled, query.row_of_cell, sums)
                noise = np.where(place >= 0, level.which[np.maximum(place, 0)], -1)
                laws = [level.laws[k][column] if k >= 0 else None for k in noise.tolist()]
                each = np.array(
                    [np.inf if law is None else max(law.variance, LEAST_VARIANCE) for law in laws]
                )
                weights = sums.reshape(classes, kinds, -1) / each[:, None, None]
                answers.append((weights, each, laws))
        for i, k in np.argwhere(self._unusual(answers, variance)).tolist():
            laws_here = [laws[i] for _, _, laws in answers]
            given = [
                (weights[i, k], law) for (weights, _, _), law in zip(answers, laws_here, strict=True) if law
            ]
            found[i, k] = self._law(given, float(variance[i, k]))

    @staticmethod
    def _unusual(
        answers: list[tuple[Floats, Floats, list[NoiseLaw | None]]], variance: Floats
    ) -> npt.NDArray[np.bool_]:
        """Return where steps or tails of single draws may be seen in the sum, bool (c, r)."""
        rest = variance.copy()
        largest = np.zeros_like(variance)
        heavy = np.zeros_like(variance)
        for weights, each, laws in answers:
            square = weights * weights
            finite = np.where(np.isfinite(each), each, 0.0)
            rest -= square.sum(axis=2) * finite[:, None]
            largest = np.maximum(largest, square.max(axis=2, initial=0.0))
            fourth = np.array([0.0 if law is None else abs(fourth_cumulant(law)) for law in laws])
            heavy += (square * square).sum(axis=2) * fourth[:, None]
        some = np.isfinite(variance) & (variance > 0)
        steps = rest < _STEPS_GONE * largest
        with np.errstate(invalid="ignore"):
            tails = heavy > 0.005 * variance * variance
        return np.asarray(some & (steps | tails) & (largest > 0))

    def _law(self, given: list[tuple[Floats, NoiseLaw]], variance: float) -> int:
        spread = variance**0.5
        law = noise_sum([weights / spread for weights, _ in given], [law for _, law in given], 1.0)
        if law.is_normal:
            return -1
        return self._number.setdefault(law, len(self._number))
