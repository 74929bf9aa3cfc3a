"""How much better blocks could be estimated from the same measurements: by who knows more than anyone may.

    python experiments/oracle.py [DATA] [--seeds 1] [--to FOLDER]

Rhode Island 2010, persons, the production's shares, every sixteenth block group. Changes of a block's mean
absolute error, in percent of that of ``informed``, with standard errors over block groups.

``posterior`` is the release. ``oracle`` has the posterior's prior with the concentrations and sizes of the
true tables, which no estimator may know, and chooses another table for every query group: of each row the
same quantile in all blocks, such that they add up to the block group. Both on the ``census``, and on tables
``drawn`` from the oracle's prior and measured again. There no estimator does better than the oracle, but
for the number of its draws.

Beside them, how clustered the tables are: in how many blocks a row of Hispanic origin by race has anybody, by
the people that its block group has of it, and their variance over blocks around equal shares of all people.

Last, other forms of the prior, cell by cell. Every block's row of Hispanic origin by race is measured once,
with the standard error of least squares, and estimated by its posterior median, given the block group and
the block's people. With ``no spread`` blocks are exactly alike. With ``growth`` cells are
Dirichlet-multinomial, and the concentration grows with that power of the people: the posterior's, or one.
``by class`` has a concentration for each class of expected count and share, ``any form`` the distribution
that the other half of the blocks of its class has. Each form has the parameters that fit the truth best.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from experiment import arguments, deliver, markdown, note
from posterior import QUERIES, by_rows, exact_counts, runs_of
from scipy.special import gammaln

import opendas as od
from opendas.arrays import Floats, Ints
from opendas.readers.input.spec import InputData
from opendas.runs.context.run import Run
from opendas.topdown.family_data import FamilyData, Progress
from opendas.topdown.informed import Informed
from opendas.topdown.posterior import Posterior, likelihood_of, posterior_table, tree_of
from opendas.topdown.posterior_kernels import GROWTH, State, run_chain, state_of
from opendas.topdown.rounding import round_estimate

EVERY = 16
SWEEPS = 200
"""Of a chain before what it has learnt is taken. Of others as many are looked at, after half as many."""
ALMOST_EXACT = 1e-6
"""Variance of answers at which a chain stays at the table that it starts from."""
STANDARD_ERROR = 3.15
"""Of a row of Hispanic origin by race in a block, by least squares of all measurements."""
EXPECTED = (0.02, 0.05, 0.1, 0.2, 0.35, 0.6, 1, 1.6, 2.5, 4, 6, 9, 13, 20, 30, 45, 70, 110, 180, 300)
SHARES = (0.02, 0.1, 0.3, 0.6)
"""Classes of cells, by their expected count and by their share of the block group."""
MOST = 400
"""Counts above are left out: they are measured well whatever the prior is."""
CLUSTERED, WORLDS = "hispanic * cenrace", ("census", "drawn")
Errors = dict[tuple[str, str], list[float]]
"""By query group and estimate: sum of the absolute errors of a block group's blocks, each time."""
Clusters = dict[tuple[int, str], list[tuple[int, int, float]]]
"""By power of two of a row's people and kind of tables: people, blocks with them, squared deviations."""


def families(run: Run, seed: int) -> list[FamilyData]:
    """Return every sixteenth family of blocks of a release."""
    found: list[FamilyData] = []

    def fit(_: Posterior, data: FamilyData) -> Floats:
        if data.information is None and data.family.parent is not None:
            found.append(data)
        return Informed().fit(data)

    with tempfile.TemporaryDirectory() as out, patch.object(Posterior, "fit", fit):
        od.release(run, Path(out) / "out", seed=seed, workers=1)
    return found[::EVERY]


def by_least_squares(data: FamilyData) -> Ints:
    """Return the table of ``informed``."""
    fitted = Informed().fit(replace(data, progress=Progress()))
    return round_estimate(data.family, data.rules, data.groups, fitted)


def measured(data: FamilyData, table: Ints, rng: np.random.Generator | None) -> FamilyData:
    """Return the family of another table, int64 (C, s), with noise of the same variance, or almost none."""
    queries = []
    for query in data.measurement.queries:
        values = np.zeros(query.values.shape, np.int64)
        np.add.at(values.T, query.compact, table.T)
        if rng is None:
            queries.append(replace(query, values=values, variance=ALMOST_EXACT))
            continue
        spread = np.sqrt(query.variance / data.measurement.precision)[:, None]
        noise = np.rint(rng.normal(0, spread, values.shape)).astype(np.int64)
        queries.append(replace(query, values=values + noise))
    family = replace(data.family, parent=table.sum(axis=0))
    return replace(data, family=family, measurement=replace(data.measurement, queries=tuple(queries)))


def of_truth(data: FamilyData, table: Ints) -> State:
    """Return a chain that has learnt from its true table, int64 (C, s), and stays there."""
    again = measured(data, table, None)
    tree, likelihood = tree_of(again.family, data.rules, data.groups), likelihood_of(again.measurement)
    state: State = state_of(tree, likelihood, table, np.uint64(1))
    run_chain(tree, likelihood, state, SWEEPS, 0, 0, True)
    return state


def draws_of(data: FamilyData, start: Ints, known: State, *, prior: bool = False) -> Ints:
    """Return tables, (k, C, s), from the posterior of a family, or from its prior, with what is known."""
    tree, likelihood = tree_of(data.family, data.rules, data.groups), likelihood_of(data.measurement)
    if prior:
        likelihood = likelihood._replace(weight=np.zeros_like(likelihood.weight))
    state = state_of(tree, likelihood, start, np.uint64(2))
    state = state._replace(concentration=known.concentration.copy(), sizes=known.sizes.copy())
    found = run_chain(tree, likelihood, state, SWEEPS + SWEEPS // 2, SWEEPS, SWEEPS // 2, False)
    return np.asarray(found.draws[:, :, -start.shape[1] :])


def quantiles(draws: Ints, totals: Ints) -> Floats:
    """Return the same quantile of each child's draws, (k, C, r), such that they sum to totals, (r,)."""
    ordered = np.sort(draws, axis=0)
    found = np.zeros(draws.shape[1:])
    for row, total in enumerate(totals):
        at = np.interp(total, ordered[:, :, row].sum(axis=1), np.arange(len(draws)))
        low, part = int(at), at % 1
        high = min(low + 1, len(draws) - 1)
        found[:, row] = (1 - part) * ordered[low, :, row] + part * ordered[high, :, row]
    return found


def bounds(run: Run, truth: InputData, seed: int) -> tuple[Errors, Clusters]:
    """Return the errors of every estimate, and how clustered the tables are."""
    errors: Errors = defaultdict(list)
    clusters: Clusters = defaultdict(list)
    rng = np.random.default_rng(seed)
    maps = {query: run.product.workload.group(query) for query in QUERIES}
    for number, data in enumerate(families(run, seed)):
        exact = exact_counts(truth, data)
        inside = exact[:, data.cells]
        known, drawn = of_truth(data, inside), np.zeros_like(exact)
        again = measured(data, inside, rng)
        drawn[:, data.cells] = draws_of(again, inside, known, prior=True)[-1]
        for world, true, family in (
            ("census", exact, data),
            ("drawn", drawn, measured(data, drawn[:, data.cells], rng)),
        ):
            start = by_least_squares(family)
            result = posterior_table(family.family, family.rules, family.measurement, family.groups, start)
            draws = draws_of(family, start, known)
            for query, group in maps.items():
                rows = np.eye(group.size, dtype=np.int64)[group.row_of_cell]
                ours = rows[data.cells]
                for name, counts in (
                    ("informed", start @ ours),
                    ("posterior", (start if result is None else result[0]) @ ours),
                    ("oracle", quantiles(draws @ ours, start.sum(axis=0) @ ours)),
                ):
                    errors[query, f"{world}, {name}"].append(float(np.abs(counts - true @ rows).sum()))
            group = maps[CLUSTERED]
            people = true @ np.eye(group.size, dtype=np.int64)[group.row_of_cell]
            share = people.sum(axis=1) / people.sum()
            for row in people.T[people.sum(axis=0) > 0]:
                deviation = float(((row - share * row.sum()) ** 2).sum())
                size = int(row.sum()).bit_length() - 1
                clusters[size, world].append((int(row.sum()), int((row > 0).sum()), deviation))
        note(f"block group {number + 1} done")
    return errors, clusters


def change(errors: Sequence[float], beside: Sequence[float]) -> str:
    """Return the change of a sum in percent, and its standard error over block groups."""
    ours, theirs = np.array(errors), np.array(beside)
    ratio = ours.sum() / theirs.sum()
    spread = (ours - ratio * theirs).std(ddof=1) * len(ours) ** 0.5 / theirs.sum()
    return f"{100 * (ratio - 1):+.1f} ± {100 * spread:.1f}"


def medians(answers: Floats, log_prior: Floats) -> Ints:
    """Return posterior medians of counts 0 to n, whose log prior is (cells, n + 1) or (1, n + 1)."""
    counts = np.arange(log_prior.shape[1])
    found = np.zeros(len(answers), np.int64)
    for first in range(0, len(answers), 4096):
        here = slice(first, first + 4096)
        prior = log_prior[here] if len(log_prior) > 1 else log_prior
        weight = prior - (answers[here, None] - counts) ** 2 / (2 * STANDARD_ERROR**2)
        below = np.exp(weight - weight.max(axis=1, keepdims=True)).cumsum(axis=1)
        found[here] = np.argmax(below >= below[:, -1:] / 2, axis=1)
    return found


def log_spread(counts: Ints | Floats, mean: Floats, shape: Floats) -> Floats:
    """Return the log probability of counts of a negative binomial distribution."""
    rest = shape * np.log(shape / (shape + mean)) + counts * np.log(mean / (shape + mean))
    return np.asarray(gammaln(shape + counts) - gammaln(shape) - gammaln(counts + 1.0) + rest)


def forms(run: Run, truth: InputData, seed: int) -> list[tuple[str, float]]:
    """Return a block's mean absolute error over rows of Hispanic origin by race, for forms of the prior."""
    table = by_rows(truth.histogram, run.product.workload.group(CLUSTERED))
    above = np.unique(truth.frame.codes("block_group"), return_inverse=True)[1]
    group = np.zeros((above.max() + 1, table.shape[1]))
    np.add.at(group, above, table)
    people = table.sum(axis=1)
    portion = group[above] / np.maximum(group.sum(axis=1), 1)[above, None]
    block, row = np.nonzero((portion * people[:, None] > 0) & (table < MOST))
    count, share, size = table[block, row], portion[block, row], people[block].astype(float)
    mean, rng = share * size, np.random.default_rng(seed)
    answers = count + rng.normal(0, STANDARD_ERROR, len(count))
    every = np.arange(MOST + 1)

    def error(estimate: Ints) -> float:
        return float(np.abs(estimate - count).sum() / len(table))

    def best(shapes: Floats, of: npt.NDArray[np.intp]) -> float:
        """Return the factor of shapes under which some counts are most likely."""
        factors = np.exp(np.linspace(-4, 4, 33))
        fits = [log_spread(count[of], mean[of], factor * shapes[of]).sum() for factor in factors]
        return float(factors[np.argmax(fits)])

    def spread(shape: Floats) -> float:
        estimate = np.zeros(len(count), np.int64)
        for first in range(0, len(count), 1 << 15):
            here = slice(first, first + (1 << 15))
            estimate[here] = medians(answers[here], log_spread(every, mean[here, None], shape[here, None]))
        return error(estimate)

    all_ = np.arange(len(count))
    found = [("no spread", spread(np.full(len(count), 1e6)))]
    for growth in (GROWTH, 1.0):
        shape = share * size**growth / (1.0 - share + 1e-3)
        found.append((f"growth {growth:g}", spread(best(shape, all_) * shape)))
    classes = np.digitize(mean, EXPECTED) * (len(SHARES) + 1) + np.digitize(share, SHARES)
    shape, estimate, half = (
        np.ones(len(count)),
        np.zeros(len(count), np.int64),
        rng.integers(0, 2, len(count)),
    )
    for one in np.unique(classes):
        here = np.flatnonzero(classes == one)
        shape[here] = best(shape, here)
        for side in (0, 1):
            ours, other = here[half[here] == side], count[here[half[here] != side]]
            prior = np.full(MOST + 1, 1e-6)
            for value in other:  # smoothed by a seventh of itself
                width = int(value) // 7
                prior[max(value - width, min(value, 1)) : value + width + 1] += 1.0 / (2 * width + 1)
            estimate[ours] = medians(answers[ours], np.log(prior)[None, :])
    return [*found, ("by class", spread(shape)), ("any form", error(estimate))]


def main() -> None:
    """Print the changes by query group."""
    given = arguments(__doc__, seeds=1).parse_args()
    errors: Errors = defaultdict(list)
    clusters: Clusters = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        run = runs_of("production", given.data, Path(folder))["posterior"]
        truth = run.read()
        for seed in range(1, given.seeds + 1):
            more, clustered = bounds(run, truth, seed)
            for key, errors_of in more.items():
                errors[key] += errors_of
            for size, rows_of in clustered.items():
                clusters[size] += rows_of
    names = [f"{world}, {which}" for world in WORLDS for which in ("posterior", "oracle")]
    rows: list[tuple[str, ...]] = []
    for query in QUERIES:
        beside = (errors[query, name.partition(",")[0] + ", informed"] for name in names)
        rows.append((query, *(change(errors[query, n], b) for n, b in zip(names, beside, strict=True))))
    text = markdown(("Query", *names), rows)
    rows = []
    for power in sorted({power for power, _ in clusters}):
        sums = [np.sum(clusters[power, world], axis=0) for world in WORLDS]
        blocks = (f"{s[1] / len(clusters[power, w]):.1f}" for s, w in zip(sums, WORLDS, strict=True))
        spread = (f"{s[2] / s[0]:.2f}" for s in sums)
        rows.append((f"{2**power:,} to {2 ** (power + 1) - 1:,}", *blocks, *spread))
    head = ("People", *(f"blocks, {w}" for w in WORLDS), *(f"variance a person, {w}" for w in WORLDS))
    text += "\n\n" + markdown(head, rows)
    text += "\n\n" + markdown(("Form of the prior of a cell", "mean absolute error"), forms(run, truth, 1))
    deliver("oracle", text, [[*key, each] for key, each in errors.items()], given.to)


if __name__ == "__main__":
    main()
