"""The estimator ``posterior``, apart from others: leaves by the mean of a posterior, given their parent.

Least squares projects noisy answers on what counts can be; it does not know that most cells of a child are
empty and that a block of ten housing units has about twenty people. A prior does, and what it cannot know it
learns from the family's own noisy answers: how unequal children are in size, and in composition. The
measured answers and the parent's counts do the rest. Everything here is a function of noisy answers, of the
parent's estimate and of public bounds.

Letters: ``C`` children, ``s`` support cells, ``G`` classes of cells that the same bounds count.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from opendas.arrays import Floats, Ints
from opendas.measurement.family import FamilyMeasurement
from opendas.solvers.rounding.unbiased import round_unbiased
from opendas.topdown.constraint_groups import Groups
from opendas.topdown.family_data import FamilyData, LevelRules
from opendas.topdown.informed import Informed
from opendas.topdown.model import POSTERIOR, Family
from opendas.topdown.posterior_kernels import Likelihood, Moments, Tree, run_chain, state_of
from opendas.topdown.rounding import round_estimate

__all__ = ["Posterior", "likelihood_of", "posterior_table", "tree_of"]

SKIPPED, KEPT = 50, 55
"""Sweeps of each of two chains before its first half, and sweeps of each half; halves are averaged."""
DOUBLINGS = 3
"""How often chains that disagree go on, each time twice as long."""
DISAGREEMENT = 0.21
"""Variance between the halves' means of children's totals, in variances within: the rule ``R < 1.1``."""
LEAST_VARIANCE = 0.5
"""With less noise an answer is all but exact, and single moves of a chain would not get past it."""


class Posterior:
    """The estimator ``informed`` above the leaves; there the mean of a posterior, rounded without bias.

    Where two chains do not agree, least squares are kept, and the family's record says so.
    """

    name = POSTERIOR

    def fit(self, data: FamilyData) -> Floats:
        """Fit a family; for leaves, in whole counts."""
        fitted, family = Informed().fit(data), data.family
        if data.information is not None or family.parent is None or not data.measurement.queries:
            return fitted
        start = round_estimate(family, data.rules, data.groups, fitted)
        table = posterior_table(family, data.rules, data.measurement, data.groups, start)
        if table is None:
            data.progress.methods.append("least squares kept")
            data.progress.fallback = True
            return fitted
        data.progress.methods.append(POSTERIOR)
        return table.astype(np.float64)


def posterior_table(
    family: Family, rules: LevelRules, measurement: FamilyMeasurement, groups: Groups, start: Ints
) -> Ints | None:
    """Return the posterior mean of the children's tables, rounded at random without bias.

    Parameters
    ----------
    start : int64 (C, s)
        A table that keeps every constraint; one of the two chains starts there, the other at a draw from the
        prior.

    Returns
    -------
    int64 (C, s) or None
        None where the two chains do not agree, or where answers are all but exact.

    Notes
    -----
    Gelman et al. (2013), section 11.4: variances between and within halves of chains, here of all totals
    together.
    """
    if min(query.variance for query in measurement.queries) < LEAST_VARIANCE:
        return None
    tree, likelihood = tree_of(family, rules, groups), likelihood_of(measurement)
    seed = _seed(family, measurement)
    first, second = (state_of(tree, likelihood, start, np.uint64(seed ^ k)) for k in (1, 2))
    flat = likelihood._replace(weight=np.zeros_like(likelihood.weight))
    run_chain(tree, flat, second, 10, 0, False)
    skipped, kept = SKIPPED, KEPT
    for _ in range(1 + DOUBLINGS):
        halves = [
            run_chain(tree, likelihood, chain, sweeps, kept, True)
            for chain in (first, second)
            for sweeps in (skipped + kept, kept)
        ]
        if _agree(halves, kept):
            parts = np.sum([half.cells for half in halves], axis=0)
            return _rounded(parts, len(halves) * kept, tree.path[0], seed)
        skipped, kept = 0, 2 * kept
    return None


def _agree(halves: list[Moments], kept: int) -> bool:
    means = np.array([half.totals for half in halves]) / kept
    squares = np.array([half.squares for half in halves]) / kept
    within = float((squares - means**2).mean(axis=0).sum())
    return float(means.var(axis=0, ddof=1).sum()) <= DISAGREEMENT * within


def _rounded(parts: Ints, whole: int, classes: Ints, seed: int) -> Ints:
    """Round class by class: the total of each in each child is rounded up or down, to keep bounds."""
    table = np.zeros_like(parts)
    for g in np.unique(classes):
        here = classes == g
        table[:, here] = round_unbiased(parts[:, here], whole, seed ^ (3 + int(g)))
    return table


def _seed(family: Family, measurement: FamilyMeasurement) -> int:
    """Return 64 bits of the SHA-256 of the family's name and its noisy answers, all of them public."""
    digest = hashlib.sha256(family.label.encode())
    digest.update(np.ascontiguousarray(family.tie_keys).tobytes())
    for query in measurement.queries:
        digest.update(query.name.encode() + np.ascontiguousarray(query.values).tobytes())
    return int.from_bytes(digest.digest()[:8], "little")


def likelihood_of(measurement: FamilyMeasurement) -> Likelihood:
    """Return the noisy answers of all query groups as the compiled code takes them.

    The probabilities of discrete Gaussian noise are those of a Gaussian density at whole numbers, so that
    its likelihood is exactly that of squared residuals; its scale is the square root of its variance but for
    one part in ten thousand from :data:`LEAST_VARIANCE`, and one in ten million from 1.
    """
    rows, answers, first = [], [], 0
    for query in measurement.queries:
        rows.append(query.compact.astype(np.int64) + first)
        answers.append(query.values.astype(np.float64))
        first += len(query.rows)
    weights = np.array([1.0 / query.variance for query in measurement.queries])
    return Likelihood(
        np.array(rows), np.concatenate(answers, axis=1), measurement.precision[:, None] * weights[None, :]
    )


def tree_of(family: Family, rules: LevelRules, groups: Groups) -> Tree:
    """Return the prior of a family: public facts, the product's tree of cells, and the parent's counts.

    Cells that the same bound counts are a class, whose size in a child goes with what the bound allows: so
    many housing units, so many group quarters. Below a class, cells are divided as the query groups of the
    rounder's passes say, from coarse to fine.
    """
    if family.parent is None:
        raise ValueError("a posterior needs a parent")
    support, parent = family.support, family.parent.astype(np.int64)
    bound = np.full(len(support), -1)
    for k, inside in enumerate(rules.bound_cells[:, support]):
        bound[inside] = k
    bounds, classes = np.unique(bound, return_inverse=True)
    levels = [classes.astype(np.int64)]
    for queries in rules.rounder:
        for _, rows in queries:
            finer = _together(levels[-1], rows[support])
            if levels[-1].max() < finer.max() < len(support) - 1:
                levels.append(finer)
    levels.append(np.arange(len(support)))
    firsts = np.cumsum([0, *(int(level.max()) + 1 for level in levels)])
    path = np.stack([level + first for level, first in zip(levels, firsts, strict=False)])
    total = np.zeros(firsts[-1], np.int64)
    above = np.full(firsts[-1], -1, np.int64)
    for depth, nodes in enumerate(path):
        np.add.at(total, nodes, parent)
        if depth:
            above[nodes] = path[depth - 1]
    units, lower, upper = _sizes(family, bounds, total)
    return Tree(
        path,
        above,
        np.repeat(np.arange(len(levels)), np.diff(firsts)),
        np.where(above < 0, 1.0, total / np.maximum(total[above], 1)),
        total,
        units,
        lower,
        upper,
        groups.mask,
    )


def _together(coarse: Ints, rows: npt.NDArray[np.int32]) -> Ints:
    """Return the partition of cells by both, numbered from 0."""
    both: Ints = np.unique(coarse * (int(rows.max()) + 1) + rows, return_inverse=True)[1]
    return both


def _sizes(family: Family, bounds: Ints, total: Ints) -> tuple[Floats, Ints, Ints]:
    """Return units and bounds of each class in each child: one unit each where no bound speaks of a class."""
    shape = (len(family.tie_keys), len(bounds))
    units, lower, upper = np.ones(shape), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for g, k in enumerate(bounds.tolist()):
        upper[:, g] = total[g]
        if k >= 0:
            most = family.constraints.upper[:, k]
            lower[:, g] = family.constraints.lower[:, k]
            upper[:, g] = np.minimum(most, total[g])
            units[:, g] = most / max(1, int(np.gcd.reduce(most)))
    return units, lower, upper
