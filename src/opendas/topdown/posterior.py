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
import itertools
import math

import numpy as np
import numpy.typing as npt

from opendas.arrays import Floats, Ints
from opendas.measurement.family import FamilyMeasurement
from opendas.solvers.rounding.unbiased import round_unbiased
from opendas.topdown.constraint_groups import Groups
from opendas.topdown.family_data import FamilyData, LevelRules
from opendas.topdown.informed import Informed
from opendas.topdown.model import POSTERIOR, Family
from opendas.topdown.posterior_kernels import (
    CONCENTRATION,
    GROWTH,
    Likelihood,
    Moments,
    Tree,
    run_chain,
    state_of,
)
from opendas.topdown.posterior_rounding import least_error
from opendas.topdown.rounding import round_estimate

SKIPPED, KEPT, TABLES = 50, 64, 32
"""Sweeps of each of two chains before its first half, sweeps of each half, and how many tables of a half are
looked at; halves are averaged."""
DOUBLINGS = 3
"""How often chains that disagree go on, each time twice as long."""
DISAGREEMENT = 0.21
"""Variance between the halves' means of children's totals, in variances within: the rule ``R < 1.1``."""
LEAST_VARIANCE = 0.5
"""With less noise an answer is all but exact, and single moves of a chain would not get past it."""
MAY_BE_EMPTY, MORE = 0.05, 1
"""A child that is empty with this probability or a greater one is rounded to nobody, or to so many more than
the mean of what it has if it is not empty, rounded up."""
RELEVANCE = 0.5
"""How many present records a record of a prior table is worth as evidence of a child's composition."""
BY_UNITS, BY_EVEN_SHARES = 0.5, 0.1
"""With a prior table, the weight of public units in what is expected of a child; without units, that of the
parent's counts shared out evenly. The rest has the table."""
LEAST_WEIGHT = 1e-9
LEADING = 2
"""Nodes of most records that are divided from their siblings first, one after the other."""


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
        found = posterior_table(family, data.rules, data.measurement, data.groups, start)
        if found is None:
            data.progress.methods.append("least squares kept")
            data.progress.fallback = True
            return fitted
        data.progress.methods.append(POSTERIOR)
        table, draws = found
        self.keep(data, draws)
        return table.astype(np.float64)

    def keep(self, data: FamilyData, draws: npt.NDArray[np.int32]) -> None:
        """Keep tables drawn from the posterior of a family, int32 (k, C, s): here nowhere."""


def posterior_table(
    family: Family, rules: LevelRules, measurement: FamilyMeasurement, groups: Groups, start: Ints
) -> tuple[Ints, npt.NDArray[np.int32]] | None:
    """Return a table of the children, and tables drawn from their posterior.

    Totals of classes have, on average over the rounding, their posterior means; cells are such that
    the expected absolute error is small.

    - `start` (C, s): a table that keeps every constraint; one of the two chains starts there, the other at a
      draw from the prior.
    - Returns (C, s): None where the two chains do not agree, or where answers are all but exact.

    Notes
    -----
    Gelman et al. (2013), section 11.4: variances between and within halves of chains, here of all totals
    together.
    """
    if min(query.variance for query in measurement.queries) < LEAST_VARIANCE * measurement.precision.max():
        return None
    tree, likelihood = tree_of(family, rules, groups), likelihood_of(measurement)
    seed = _seed(family, measurement)
    first, second = (state_of(tree, likelihood, start, np.uint64(seed ^ k)) for k in (1, 2))
    flat = likelihood._replace(weight=np.zeros_like(likelihood.weight))
    run_chain(tree, flat, second, 10, 0, 0, False)
    skipped, kept = SKIPPED, KEPT
    for _ in range(1 + DOUBLINGS):
        halves = [
            run_chain(tree, likelihood, chain, sweeps, kept, TABLES, True)
            for chain in (first, second)
            for sweeps in (skipped + kept, kept)
        ]
        if _agree(halves, kept):
            totals = _totals(tree, halves, kept, seed)
            draws = np.concatenate([half.draws for half in halves])
            cells = tree.mask.shape[1]
            table = least_error(first.counts[:, -cells:], totals, tree.path, draws)
            return table, draws[:, :, -cells:]
        skipped, kept = 0, 2 * kept
    return None


def _agree(halves: list[Moments], kept: int) -> bool:
    means = np.array([half.totals for half in halves]) / kept
    squares = np.array([half.squares for half in halves]) / kept
    within = float((squares - means**2).mean(axis=0).sum())
    return float(means.var(axis=0, ddof=1).sum()) <= DISAGREEMENT * within


def _totals(tree: Tree, halves: list[Moments], kept: int, seed: int) -> Ints:
    """Round the mean of each class's total in each child, int64 (C, G), without bias.

    Where a child may be empty it becomes nothing, or a little more than the mean of what is not nothing; the
    largest of the other children takes the difference. Else it is rounded up or down.
    """
    draws = len(halves) * kept
    sizes, empty = (np.sum([getattr(half, name) for half in halves], axis=0) for name in ("sizes", "empty"))
    totals: Ints = np.zeros_like(sizes)
    for g in range(sizes.shape[1]):
        mean, none = sizes[:, g], empty[:, g]
        lower, upper = mean // draws, -(-mean // draws)
        populated = -(-mean // np.maximum(draws - none, 1)) + MORE
        either = (none >= MAY_BE_EMPTY * draws) & (populated <= tree.upper[:, g]) & (mean > 0)
        lower[either], upper[either] = 0, populated[either]
        turn = np.where(either, 0, 2)
        if either.any() and not either.all():
            largest = np.argmax(np.where(either, -1, mean))
            turn[largest] = 1
            lower[largest], upper[largest] = tree.lower[largest, g], tree.upper[largest, g]
        order = np.argsort(turn, kind="stable")
        totals[order, g] = round_unbiased(mean[order], draws, lower[order], upper[order], seed ^ (3 + g))
    return totals


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
    maps = [rows[support] for queries in rules.rounder for _, rows in queries]
    for rows in (*maps, np.arange(len(support), dtype=np.int32)):
        finer = _refinement(levels[-1], rows)
        if finer.max() > levels[-1].max():
            levels += _one_by_one(levels[-1], finer, parent)
    if len(levels) == 1:
        levels.append(np.arange(len(support)))
    levels[-1] = np.arange(len(support))
    firsts = np.cumsum([0, *(int(level.max()) + 1 for level in levels)])
    path = np.stack([level + first for level, first in zip(levels, firsts, strict=False)])
    total = np.zeros(firsts[-1], np.int64)
    above = np.full(firsts[-1], -1, np.int64)
    for depth, nodes in enumerate(path):
        np.add.at(total, nodes, parent)
        if depth:
            above[nodes] = path[depth - 1]
    units, lower, upper = _sizes(family, bounds, total)
    expected = total[: len(bounds)] * (units / np.maximum(units.sum(axis=0), 1.0))
    before = _as_before(family, groups, expected[:, path[0]])
    if before is not None:
        divided, counted = (_on_nodes(path, cells) for cells in before)
        by_units = np.where(bounds < 0, BY_EVEN_SHARES, BY_UNITS)
        expected = by_units * expected + (1.0 - by_units) * divided[:, : len(bounds)]
    kinds, kind = np.unique(np.rint(np.log2(np.maximum(expected, 1.0))), axis=0, return_inverse=True)
    kind = kind.reshape(-1)
    root = np.arange(firsts[-1])
    root[path] = path[0]
    scale = (2.0 ** kinds[:, root] * total / np.maximum(total[root], 1)) ** GROWTH
    share = np.tile(np.where(above < 0, 1.0, total / np.maximum(total[above], 1)), (len(scale), 1))
    if before is not None:
        scale, share, kind = scale[kind], share[kind], np.arange(len(kind))
        known = RELEVANCE / math.exp(CONCENTRATION[0]) * counted
        share = np.where(above < 0, 1.0, (scale[:, above] * share + known) / (scale + known)[:, above])
        scale += known
    return Tree(
        path,
        above,
        np.repeat(np.arange(len(levels)), np.diff(firsts)),
        share,
        total,
        units,
        expected,
        kind,
        np.ascontiguousarray(scale),  # compiled once, with a prior table and without
        lower,
        upper,
        groups.mask,
    )


def _on_nodes(path: Ints, cells: Floats) -> Floats:
    """Return the sums of cells, float64 (C, s), at every node, (C, V)."""
    nodes = np.zeros((len(cells), int(path.max()) + 1))
    for level in path:
        np.add.at(nodes.T, level, cells.T)
    return nodes


def _as_before(family: Family, groups: Groups, expected: Floats) -> tuple[Floats, Floats] | None:
    """Return the parent's counts divided as in a prior table, float64 (C, s), and what of them it counts.

    What the table counts together is divided as the parent has it now. One record more is divided as
    expected without the table, so that all go there of which it counts nobody. None where it counts nobody.
    """
    prior, parent = family.constraints.prior, family.parent
    if prior is None or parent is None:
        return None
    rows, compact = np.unique(prior.query.row_of_cell[family.support], return_inverse=True)
    counted = np.where(groups.mask, prior.on(rows.astype(np.int32))[:, compact.reshape(-1)], 0)
    if not counted.any():
        return None
    one = np.where(groups.mask, expected, 0.0)
    one /= np.maximum(one.sum(axis=0), LEAST_WEIGHT)
    each = parent / (counted.sum(axis=0) + 1.0)
    return each * (counted + one), each * counted


def _one_by_one(coarse: Ints, finer: Ints, parent: Ints) -> list[Ints]:
    """Return partitions from a coarse to a finer one: the largest nodes are divided from the others first."""
    total = np.bincount(finer, weights=parent)
    above = np.zeros(len(total), np.int64)
    above[finer] = coarse
    order = np.lexsort((-total, above))
    rank = np.empty(len(total), np.int64)
    rank[order] = np.arange(len(total)) - np.searchsorted(above[order], above[order])
    leading = (
        _refinement(coarse, np.minimum(rank[finer], k).astype(np.int32)) for k in range(1, LEADING + 1)
    )
    return [new for old, new in itertools.pairwise([coarse, *leading, finer]) if new.max() > old.max()]


def _refinement(coarse: Ints, rows: npt.NDArray[np.int32]) -> Ints:
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
