"""The posterior of a family against enumeration, against draws of its own prior, and what it does to counts.

The twin writes the model out as probabilities of whole tables: sizes of children, Dirichlet-multinomial
divisions, discrete Gaussian noise. Families are small enough that all tables can be gone through.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.random import Generator, default_rng
from scipy.special import gammaln
from scipy.stats import chisquare, nbinom

from opendas.constraints.table import LevelConstraints, PublicCounts
from opendas.measurement.family import FamilyMeasurement, QueryAnswers
from opendas.solvers.rounding.unbiased import round_unbiased
from opendas.topdown.family_data import LevelRules
from opendas.topdown.model import Family
from opendas.topdown.posterior import (
    BY_UNITS,
    RELEVANCE,
    _totals,
    likelihood_of,
    posterior_table,
    tree_of,
)
from opendas.topdown.posterior_kernels import CONCENTRATION, GROWTH, SIZES, run_chain, state_of
from opendas.topdown.posterior_rounding import least_error

# A family of four cells: three of one group, one of another. Queries: total, group, detailed.
GROUP = np.array([0, 0, 0, 1])
CELLS = len(GROUP)
MAPS = {
    "total": np.zeros(CELLS, np.int32),
    "group": GROUP.astype(np.int32),
    "detailed": np.arange(CELLS, dtype=np.int32),
}
DIVISIONS = (((0, 1, 2), (3,)), ((0,), (1, 2)), ((1,), (2,)))
"""What is divided from what, with a concentration of its own: the groups, then the first cell from the others
of its group, where the parent has most."""


def rules(bounds: np.ndarray) -> LevelRules:
    names = ("total", "group", "detailed")
    return LevelRules(
        "block",
        tuple(f"bound {k}" for k in range(len(bounds))),
        bounds,
        np.ones(CELLS, dtype=bool),
        (names,),
        (tuple((name, MAPS[name]) for name in names),),
    )


def family(parent: list[int], lower: np.ndarray, upper: np.ndarray) -> Family:
    support = np.arange(CELLS, dtype=np.int32)
    constraints = LevelConstraints(lower, upper, ())
    return Family("made", support, np.array(parent), constraints, np.arange(len(lower), dtype=np.uint64))


def answers(table: np.ndarray, rng: Generator, variance: float) -> FamilyMeasurement:
    found = []
    for name, compact in MAPS.items():
        exact = np.zeros((len(table), compact.max() + 1), np.int64)
        np.add.at(exact.T, compact, table.T)
        support = np.arange(-40, 41)
        law = np.exp(-(support**2) / (2 * variance))
        noise = rng.choice(support, exact.shape, p=law / law.sum())
        found.append(QueryAnswers(name, np.unique(compact), compact, exact + noise, variance))
    return FamilyMeasurement(tuple(found), np.ones(len(table)))


def tables(parent: list[int], children: int) -> list[np.ndarray]:
    """All tables of some children that add up to a parent."""

    def splits(n: int) -> list[tuple[int, ...]]:
        return [s for s in itertools.product(range(n + 1), repeat=children) if sum(s) == n]

    return [np.array(columns).T for columns in itertools.product(*(splits(n) for n in parent))]


def log_dirichlet_multinomial(counts: np.ndarray, alpha: np.ndarray) -> float:
    n, a = counts.sum(), alpha.sum()
    return float(
        gammaln(n + 1) - gammaln(counts + 1).sum()
        + gammaln(a) - gammaln(a + n) + (gammaln(alpha + counts) - gammaln(alpha)).sum()
    )  # fmt: skip


def summed(counts, parts) -> np.ndarray:
    return np.array([sum(counts[s] for s in part) for part in parts])


def alphas(parent, parts, a: float, part: float) -> np.ndarray:
    """Of a division in a child that expects this part of the parent's records."""
    totals, size = summed(parent, parts), 2 ** round(math.log2(max(1, part * sum(parent))))
    return a * (size * totals.sum() / sum(parent)) ** GROWTH * totals / totals.sum()


def size_law(most: int, mean: float, units: float, shape: np.ndarray) -> np.ndarray:
    """Probabilities of 0 to `most` records: of a child that has some, of an empty one, of one of any size."""
    weight = np.array([1.0, math.exp(shape[2]) / units, math.exp(shape[3])])
    r = 1 / (1 / (math.exp(shape[0]) * units) + math.exp(shape[1]))
    n = np.arange(most + 1)
    law = nbinom.pmf(n, r, r / (r + mean)) / nbinom.sf(0, r, r / (r + mean))
    law[0] = weight[1]
    law[1:] += weight[2] / (n[1:] * (math.log(most) + 0.5772156649 + 0.5 / most))
    return law / weight.sum()


def as_before(parent: list[int], units: list[int], prior: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The parent's counts, divided as children had each group before, and one record more by units."""
    counted, rest = np.zeros((2, len(units), CELLS))
    for s, count in enumerate(parent):
        group = prior[:, GROUP[s]]
        whole = sum(group[np.array(units) > 0]) + 1
        for c, own in enumerate(units):
            if own:
                counted[c, s] = count * group[c] / whole
                rest[c, s] = count * own / sum(units) / whole
    return counted + rest, counted


def log_posterior(table, tree, parent, measurement, concentration, shape, before=None) -> float:
    """Without its constant; one class of cells, with :data:`GROUP` below it.

    `before`, float (C, 4) twice: the parent's counts divided as in a prior table, and what of them it
    counts.
    """
    total, value = sum(parent), 0.0
    for c, counts in enumerate(table):
        n = int(counts.sum())
        if n < tree.lower[c, 0] or n > tree.upper[c, 0]:
            return -math.inf
        units = tree.units[:, 0]
        if units[c] == 0.0:  # closed: nobody, for certain
            continue
        part = units[c] / units.sum()
        if before is not None:
            part = BY_UNITS * part + (1 - BY_UNITS) * before[0][c].sum() / total
        value += math.log(size_law(total, total * part, units[c], shape)[n])
        for a, parts in zip(concentration, DIVISIONS, strict=True):
            alpha = alphas(parent, parts, a, part)
            if before is not None:
                alpha += a * RELEVANCE / math.exp(CONCENTRATION[0]) * summed(before[1][c], parts)
            value += log_dirichlet_multinomial(summed(counts, parts), alpha)
    for query in measurement.queries:
        exact = np.zeros(query.values.shape)
        np.add.at(exact.T, query.compact, table.T)
        value -= float(((query.values - exact) ** 2).sum()) / (2 * query.variance)
    return value


def made(parent: list[int], units: list[int], rng: Generator, *, variance: float = 2.0, lower: int = 0):
    """A family with one bound on all cells, and its tree."""
    bounds = np.ones((1, CELLS), dtype=bool)
    units_ = np.array(units)
    one = family(parent, np.full((len(units), 1), lower), 9 * units_[:, None])
    groups = SimpleNamespace(mask=np.tile(units_[:, None] > 0, CELLS))
    return one, rules(bounds), groups, tree_of(one, rules(bounds), groups)


@pytest.mark.parametrize(
    ("lower", "units", "prior"),
    [
        (0, [1, 2, 5], None),
        (1, [1, 1, 1], None),
        (0, [2, 0, 3], None),
        (0, [1, 2, 5], [[9, 0], [2, 1], [1, 6]]),
        (0, [2, 0, 3], [[0, 0], [7, 7], [4, 0]]),
    ],
)
def test_the_mean_is_that_of_all_tables_weighed(
    lower: int, units: list[int], prior: list[list[int]] | None
) -> None:
    parent, rng = [3, 2, 1, 2], default_rng(5)
    one, level, groups, tree = made(parent, units, rng, lower=lower)
    before = None
    if prior is not None:
        counted = np.array(prior)
        rows, counts = np.tile([0, 1], 3).astype(np.int32), counted.ravel()
        query = SimpleNamespace(row_of_cell=MAPS["group"])
        table = PublicCounts("earlier", query, np.arange(0, 7, 2), rows, counts)
        one = replace(one, constraints=replace(one.constraints, prior=table))
        tree, before = tree_of(one, level, groups), as_before(parent, units, counted)
    open_ = np.array(units) > 0
    every = [table for table in tables(parent, 3) if not table[~open_].any()]
    shape = np.array([mean for mean, _ in SIZES])
    concentration = np.full(len(DIVISIONS), math.exp(CONCENTRATION[0]))
    start = next(table for table in every if (table.sum(axis=1) >= lower).all())
    measurement = answers(start, rng, 2.0)
    likelihood = likelihood_of(measurement)
    log = np.array([
        log_posterior(t, tree, parent, measurement, concentration, shape, before) for t in every
    ])  # fmt: skip
    weight = np.exp(log - log.max())
    exact = np.tensordot(weight / weight.sum(), np.array(every), axes=1)
    state = state_of(tree, likelihood, start, np.uint64(1))
    sums = run_chain(tree, likelihood, state, 80_000, 79_000, 79_000, False)
    assert np.abs(sums.draws[:, :, -CELLS:].mean(axis=0) - exact).max() < 0.03
    assert np.abs(sums.sizes[:, 0] / 79_000 - exact.sum(axis=1)).max() < 0.03
    none = weight @ np.array([table.sum(axis=1) == 0 for table in every]) / weight.sum()
    assert np.abs(sums.empty[:, 0] / 79_000 - none).max() < 0.02
    assert np.abs(exact - start).max() > 0.1, "the data say too much for this to be a test"


def test_a_chain_keeps_the_parent_the_mask_and_its_own_sums() -> None:
    rng = default_rng(2)
    *_, tree = made([30, 9, 4, 2], [3, 0, 4, 5], rng)
    start = np.array([[30, 9, 4, 2], [0] * 4, [0] * 4, [0] * 4])
    likelihood = likelihood_of(answers(start, rng, 3.0))
    state = state_of(tree, likelihood, start, np.uint64(3))
    for _ in range(20):
        run_chain(tree, likelihood, state, 20, 1, 0, True)
        cells = state.counts[:, -CELLS:]
        assert (cells.sum(axis=0) == [30, 9, 4, 2]).all()
        assert (cells >= 0).all()
        assert not cells[1].any()
        fresh = state_of(tree, likelihood, cells.copy(), np.uint64(3))
        assert np.array_equal(fresh.counts, state.counts)
        assert np.array_equal(fresh.residual, state.residual)


def forward(tree, parent: list[int], rng: Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw hyperparameters and tables from the prior until they add up to the parent."""
    total, units = sum(parent), tree.units[:, 0]
    while True:
        a = np.exp(rng.normal(*CONCENTRATION, size=len(DIVISIONS)))
        shape = np.array([rng.normal(mean, spread) for mean, spread in SIZES])
        table = np.zeros((len(units), CELLS), np.int64)
        for c in range(len(units)):
            # Sizes above the parent's total are possible, and refused with the sums.
            law = size_law(total, total * units[c] / units.sum(), units[c], shape)
            n = rng.choice(total + 2, p=[*law, max(0.0, 1 - law.sum())])
            if n > total:
                break
            for a_, parts in zip(a, DIVISIONS, strict=True):
                counts = rng.multinomial(n, rng.dirichlet(alphas(parent, parts, a_, units[c] / units.sum())))
                for part, count in zip(parts, counts, strict=True):
                    table[c, part[0]] = count  # of a part of several cells: until it is divided itself
                n = int(counts[0 if len(parts[0]) > 1 else 1])
        else:
            if (table.sum(axis=0) == parent).all():
                return table, np.concatenate([np.log(a), shape])


@pytest.mark.slow
def test_simulation_based_calibration() -> None:
    """Of data made by the prior, the truth's rank among posterior draws is uniform (Talts et al., 2018)."""
    rng, parent = default_rng(11), [2, 1, 1, 1]
    *_, tree = made(parent, [1, 2, 2], rng)
    ranks: dict[str, list[int]] = {"cell": [], "total": [], "concentration": [], "shape": [], "empty": []}
    draws = 7
    for replicate in range(400):
        table, hyper = forward(tree, parent, rng)
        likelihood = likelihood_of(answers(table, rng, 4.0))
        state = state_of(tree, likelihood, table, np.uint64(replicate))
        truth = {
            "cell": table[0, 0], "total": table[2].sum(), "concentration": hyper[0],
            "shape": hyper[len(DIVISIONS) + 1], "empty": hyper[len(DIVISIONS) + 2],
        }  # fmt: skip
        found: dict[str, list[float]] = {name: [] for name in ranks}
        for _ in range(draws):
            run_chain(tree, likelihood, state, 800, 1, 0, True)
            found["cell"].append(state.counts[0, -CELLS])
            found["total"].append(state.counts[2, 0])
            found["concentration"].append(state.concentration[0])
            found["shape"].append(state.sizes[0, 1])
            found["empty"].append(state.sizes[0, 2])
        for name, values in found.items():
            below, ties = np.sum(np.array(values) < truth[name]), np.sum(np.array(values) == truth[name])
            ranks[name].append(int(below + rng.integers(ties + 1)))
    for name, several in ranks.items():
        counts = np.bincount(several, minlength=draws + 1)
        assert chisquare(counts).pvalue > 1e-3, (name, counts)


def test_totals_are_right_on_average_and_keep_their_sum() -> None:
    parts = np.array([30, 7, 55, 24, 3, 25])
    lower, upper = np.array([0, 0, 2, 1, 0, 0]), np.array([3, 1, 3, 1, 4, 2])
    rounded = np.array([round_unbiased(parts, 24, lower, upper, seed) for seed in range(4000)])
    assert (rounded.sum(axis=1) == 6).all()
    assert ((rounded >= lower) & (rounded <= upper)).all()
    assert (((rounded == lower) | (rounded == upper)).sum(axis=1) >= 5).all()
    for some in ([0], [4], [1, 3], [0, 2, 4]):  # sums of any set of children
        sums = rounded[:, some].sum(axis=1)
        spread = sums.std() / math.sqrt(len(sums))
        assert abs(sums.mean() - parts[some].sum() / 24) < 5 * spread + 1e-9
    for wrong in (parts + 1, -parts):
        with pytest.raises(ValueError, match="whole counts"):
            round_unbiased(wrong, 24, lower, upper, 1)


def test_a_child_that_may_be_empty_is_empty_as_often_as_leaves_the_mean() -> None:
    """Five draws of four children: never empty, empty in two, empty in all, and one that cannot hold more."""
    tree = SimpleNamespace(lower=np.zeros((4, 1), int), upper=np.array([[99], [99], [99], [2]]))
    sizes, empty = np.array([[83], [9], [0], [8]]), np.array([[0], [2], [5], [1]])
    found = np.array([
        _totals(tree, [SimpleNamespace(sizes=sizes, empty=empty)], 5, seed)[:, 0] for seed in range(3000)
    ])  # fmt: skip
    assert set(found[:, 1]) == {0, 4}, "nine in three draws that are not empty, and one more"
    assert abs(found[:, 1].mean() - 1.8) < 0.2
    assert not found[:, 2].any()
    assert set(found[:, 3]) == {1, 2}
    assert (found.sum(axis=1) == 20).all()


def test_no_exchange_of_records_lessens_the_expected_error() -> None:
    """Against all tables of the same margins: no more expected error than any of them."""
    rng = default_rng(8)
    *_, tree = made([3, 2, 1, 2], [1, 1, 1], rng)
    every = np.array(tables([3, 2, 1, 2], 3))
    draws = every[rng.integers(len(every), size=16)]
    nodes = np.zeros((*draws.shape[:2], len(tree.parent)), np.int32)
    for level in tree.path:
        for s, v in enumerate(level):
            nodes[:, :, v] += draws[:, :, s]

    def error(table: np.ndarray) -> float:
        exact = np.zeros(nodes.shape[1:])
        for level in tree.path:
            np.add.at(exact.T, level, table.T)
        return float(np.abs(nodes - exact)[:, :, 1:].mean(axis=0).sum())

    for start in draws[:6]:
        totals = draws[0].sum(axis=1)
        found = least_error(start, totals[:, None], tree.path, nodes)
        assert (found.sum(axis=0) == [3, 2, 1, 2]).all()
        assert (found.sum(axis=1) == totals).all()
        least = min(error(t) for t in every if (t.sum(axis=1) == totals).all())
        assert error(found) <= 1.1 * least


def test_bounds_hold_and_the_same_answers_give_the_same_table() -> None:
    rng = default_rng(4)
    one, level, groups, _ = made([38, 11, 3, 8], [1, 2, 4], rng, lower=1)
    start = np.array([[2, 2, 0, 1], [10, 2, 1, 3], [26, 7, 2, 4]])
    measurement = answers(start, rng, 6.0)
    found = posterior_table(one, level, measurement, groups, start)
    assert found is not None
    for table in (found[0], *found[1]):
        assert (table.sum(axis=0) == one.parent).all()
        assert (table.sum(axis=1) >= 1).all()
        assert (table.sum(axis=1) <= [9, 18, 36]).all()
    again = posterior_table(one, level, measurement, groups, start)
    assert again is not None
    assert all(np.array_equal(a, b) for a, b in zip(found, again, strict=True))


def test_all_but_exact_answers_are_left_to_least_squares() -> None:
    rng = default_rng(4)
    one, level, groups, _ = made([40, 12, 5, 8], [1, 2, 4], rng)
    start = np.array([[2, 2, 0, 1], [10, 2, 1, 3], [28, 8, 4, 4]])
    assert posterior_table(one, level, answers(start, rng, 0.1), groups, start) is None
    # One child has a share of the budget twenty times as large.
    precise = replace(answers(start, rng, 2.0), precision=np.array([1.0, 1.0, 20.0]))
    assert posterior_table(one, level, precise, groups, start) is None


def test_chains_that_do_not_agree_are_left_to_least_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = default_rng(4)
    one, level, groups, _ = made([40, 12, 5, 8], [1, 2, 4], rng)
    start = np.array([[2, 2, 0, 1], [10, 2, 1, 3], [28, 8, 4, 4]])
    for name, value in (("SKIPPED", 0), ("KEPT", 1), ("TABLES", 1), ("DOUBLINGS", 0)):
        monkeypatch.setattr(f"opendas.topdown.posterior.{name}", value)
    assert posterior_table(one, level, answers(start, rng, 50.0), groups, start) is None


def dormitory(variance: float) -> tuple[int, int, int]:
    """Twenty blocks with twenty units each, of which one houses 3,000: its truth, start and estimate."""
    rng = default_rng(9)
    table = rng.multinomial(50, [0.3, 0.1, 0.1, 0.5], size=20).astype(np.int64)
    table[7] = [2400, 500, 50, 50]
    units = np.full(20, 400)
    one, level, groups, _ = made(list(table.sum(axis=0)), units.tolist(), rng)
    measurement = answers(table, rng, variance)
    start = np.zeros_like(table)  # nobody's estimate: everything evenly
    for s, n in enumerate(table.sum(axis=0)):
        start[:, s] = n // 20
        start[: n % 20, s] += 1
    found = posterior_table(one, level, measurement, groups, start)
    assert found is not None
    return int(table[7].sum()), int(start[7].sum()), int(found[0][7].sum())


def test_a_block_of_students_is_seen_where_the_answers_say_so() -> None:
    """The prior expects fifty people there; one child in fifty may be anything."""
    truth, start, found = dormitory(10.0)
    assert start < 300
    assert abs(found - truth) < 30
