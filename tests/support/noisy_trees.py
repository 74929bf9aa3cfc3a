"""Noisy trees in memory: a plan, a truth, and draws from ordinary random numbers, as often as wanted."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from opendas.budget.allocation import Budget
from opendas.constraints.table import bound_table
from opendas.geography.partitions import standard_spine
from opendas.intervals.laws import probabilities
from opendas.intervals.noisy_tree import NoisyLevel, NoisyTree
from opendas.measurement.invariants import declared_invariants
from opendas.measurement.plan import MeasurementPlan
from opendas.sampling.laws import DiscreteGaussian

SHARES = {"total": Fraction(1, 4), "kind * minor": Fraction(1, 4), "detailed": Fraction(1, 2)}


class Draw:
    """Answers of a truth with noise of one seed; an ``AnswerSource``."""

    def __init__(self, counts, spine, levels, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.values = []
        for number, level in enumerate(levels):
            exact = counts.aggregate(spine.leaf_starts(number))
            dense = np.stack([exact.dense(i) for i in range(len(level))])
            answers = []
            for k, query in enumerate(level.queries):
                found = query.answers(dense)
                for c, laws in enumerate(level.laws):
                    here = level.which == c
                    if laws[k] is None:
                        found[here] = 0
                        continue
                    found[here] += _noise(rng, laws[k], query.draws, found[here].shape)
                answers.append(found)
            self.values.append(answers)

    def full(self, level: int, first: int, geounits: int):
        return [values[first : first + geounits] for values in self.values[level]]


def _noise(rng, law, draws, shape):
    """Return noise, int64 `shape`; of each row the sum of as many draws as it says."""
    found = np.zeros(shape, dtype=np.int64)
    for column in range(shape[1]):
        number = 1 if draws is None else int(draws[column])
        if number > 1 and isinstance(law, DiscreteGaussian):
            # Sums of discrete Gaussians with variances above one are discrete Gaussians but for 1e-8.
            one, number = probabilities(DiscreteGaussian(law.sigma2 * number)), 1
        else:
            one = probabilities(law)
        drawn = rng.choice(len(one), (shape[0], number), p=one) - len(one) // 2
        found[:, column] = drawn.sum(axis=1)
    return found


def noisy_levels(plan: MeasurementPlan) -> tuple[NoisyLevel, ...]:
    levels = []
    for number, level in enumerate(plan.levels):
        shares = plan.spine.shares[number]
        multiples = (Fraction(1),) if shares is None else shares.multiples
        size = len(plan.spine.levels[number])
        which = np.zeros(size, dtype=np.int64) if shares is None else shares.which
        laws = tuple(
            tuple(plan.distribution(number, p, m) if m > 0 else None for p in level.queries)
            for m in multiples
        )
        levels.append(NoisyLevel(level.geolevel, tuple(p.query for p in level.queries), laws, which))
    return tuple(levels)


class MadeTree:
    """A truth and a plan, from which noisy trees are drawn."""

    def __init__(
        self,
        product,
        frame,
        counts,
        *,
        spine=None,
        rho=Fraction(2),
        mechanism="discrete-gaussian",
        shares=None,
        queries=None,
    ) -> None:
        self.product, self.frame = product, frame
        self.spine = spine or standard_spine(frame)
        self.counts = counts.take(self.spine.leaf_order)
        names = self.spine.names
        geolevels = shares or {name: Fraction(1, len(names)) for name in names}
        neighbours = "bounded" if product.invariants else "unbounded"
        budget = Budget(mechanism, neighbours, rho, geolevels, queries or {"*": SHARES})
        self.plan = MeasurementPlan(product, self.spine, budget)
        self.levels = noisy_levels(self.plan)
        self.table = bound_table(
            product, frame, self.spine, declared_invariants(product, self.counts, self.spine)
        )

    def draw(self, seed: int) -> NoisyTree:
        answers = Draw(self.counts, self.spine, self.levels, seed)
        return NoisyTree(self.product, self.frame, self.spine, self.levels, self.table, answers)

    def truth(self, level: int, members: np.ndarray) -> np.ndarray:
        exact = self.counts.aggregate(self.spine.leaf_starts(level))
        return np.stack([exact.dense(i) for i in range(exact.rows)]) @ members.T
