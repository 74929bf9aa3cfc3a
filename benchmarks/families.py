"""Synthetic families in the shape of the redistricting data: for benchmarks and tests, seeded, no real data.

The histogram has 8 x 2 x 2 x 63 cells (household or group-quarters type, voting age, Hispanic origin, race).
Cells have a fixed heavy-tailed popularity, children lognormal sizes, counts are Poisson, and the noise is a
rounded normal: good enough to time a solver, not to release anything. The weights are the production ones
(rho of 293764/114921 split over geolevels and query groups).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from opendas.solvers.least_squares.paired import PairedCurvature
from opendas.solvers.problem.problem import FamilyProblem

SHAPE = (8, 2, 2, 63)
CELLS = int(np.prod(SHAPE))
RHO = Fraction(293764, 114921)
LEVEL_SHARE = {
    "us": Fraction(104, 4099),
    "state": Fraction(1440, 4099),
    "county": Fraction(447, 4099),
    "tract": Fraction(687, 4099),
    "block_group": Fraction(1256, 4099),
    "block": Fraction(165, 4099),
}
QUERIES: dict[str, tuple[int, ...]] = {  # query group: axes it keeps
    "total": (),
    "race": (3,),
    "hispanic": (2,),
    "votingage": (1,),
    "hhgq": (0,),
    "hispanic*race": (2, 3),
    "votingage*race": (1, 3),
    "votingage*hispanic": (1, 2),
    "votingage*hispanic*race": (1, 2, 3),
    "detailed": (0, 1, 2, 3),
}
_SHARES = {
    "us": "0 52/4097 26/4097 26/4097 52/4097 130/4097 130/4097 26/4097 26/241 189/241",
    "state": "3773/4097 6/4097 6/4097 6/4097 12/4097 12/4097 12/4097 6/4097 2/241 230/4097",
    "county": "3126/4097 10/4097 10/4097 10/4097 20/4097 28/4097 28/4097 10/4097 101/4097 754/4097",
    "tract": "1567/4102 4/2051 5/4102 5/4102 10/4102 1933/4102 10/2051 5/4102 67/4102 241/2051",
    "block_group": "1705/4099 3/4099 3/4099 3/4099 6/4099 1055/4099 9/4099 3/4099 24/4099 1288/4099",
    "block": "5/4097 9/4097 5/4097 5/4097 10/4097 21/4097 21/4097 5/4097 71/4097 3945/4097",
}


def weights(level: str) -> dict[str, float]:
    """1/variance of each query group at a geolevel, in inverse squared counts."""
    shares = [Fraction(share) for share in _SHARES[level].split()]
    return {
        name: float(RHO * LEVEL_SHARE[level] * share)
        for name, share in zip(QUERIES, shares, strict=True)
        if share > 0
    }


def query_rows(name: str, support: NDArray[np.int64]) -> NDArray[np.int32]:
    """Compact row index of a query group on a support, shape ``(n,)``."""
    codes = np.unravel_index(support, SHAPE)
    key = np.zeros(len(support), dtype=np.int64)
    for axis in QUERIES[name]:
        key = key * SHAPE[axis] + codes[axis]
    return np.unique(key, return_inverse=True)[1].astype(np.int32)


def popularity(rng: np.random.Generator) -> NDArray[np.float64]:
    """Share of each histogram cell in a synthetic population, shape ``(2016,)``."""
    hhgq = np.array([0.97, 0.006, 0.001, 0.006, 0.002, 0.009, 0.001, 0.005])
    age = np.array([0.22, 0.78])
    hispanic = np.array([0.83, 0.17])
    race = np.concatenate([[0.64, 0.11, 0.012, 0.05, 0.003, 0.085], 0.1 / np.arange(1, 58) ** 1.7 / 2.0])
    share = np.einsum("a,b,c,d->abcd", hhgq, age, hispanic, race).ravel()
    share = share * rng.lognormal(0.0, 1.0, CELLS) + 1e-8
    return share / share.sum()


@dataclass(frozen=True, slots=True)
class MadeFamily:
    """A synthetic family: the problem, and the counts behind it."""

    problem: FamilyProblem
    truth: NDArray[np.int64]
    support: NDArray[np.int64]


def family(
    level: str,
    children: int,
    cells: int,
    population: float,
    seed: int,
    *,
    held_total: bool | None = None,
    slack: float = 0.01,
    group_quarters: bool = False,
) -> MadeFamily:
    """Make one family.

    Parameters
    ----------
    level : str
        Geolevel of the children.
    children, cells : int
        C and n.
    population : float
        Expected total of the parent.
    seed : int
        Of the generator.
    held_total : bool, optional
        Leave the total out of the objective and hold it within `slack` of a first-pass estimate. By default
        at the levels where production does so (county, tract, block group).
    slack : float
        In counts. 0 gives equalities.
    group_quarters : bool
        Add masks and lower bounds for seven bounded groups.
    """
    rng = np.random.default_rng(seed)
    if held_total is None:
        held_total = level in ("state", "county", "tract", "block_group")
    share = popularity(np.random.default_rng(20201))
    support = np.sort(np.argsort(-(np.log(share) + rng.gumbel(0.0, 0.7, CELLS)), kind="stable")[:cells])
    size = rng.lognormal(0.0, 0.9, children)
    rate = size[:, None] * share[support] * rng.lognormal(0.0, 0.6, (children, cells))
    truth = rng.poisson(rate * population / rate.sum())
    for j in np.flatnonzero(truth.sum(0) == 0):
        truth[rng.integers(children), j] += 1
    hhgq = np.unravel_index(support, SHAPE)[0]
    mask = np.ones((children, cells), dtype=bool)
    groups: list[NDArray[np.bool_]] = []
    lower: list[NDArray[np.float64]] = []
    upper: list[NDArray[np.float64]] = []
    if group_quarters:
        for k in range(1, 8):
            inside = hhgq == k
            present = truth[:, inside].sum(1) > 0
            mask[np.ix_(~present, inside)] = False
            if inside.any() and present.any():
                groups.append(inside)
                lower.append(present.astype(float))
                upper.append(np.full(children, np.inf))
    terms = []
    linear = np.zeros((children, cells))
    for name, weight in weights(level).items():
        rows = query_rows(name, support)
        answers = np.zeros((children, int(rows.max()) + 1))
        for c in range(children):
            answers[c] = np.bincount(rows, truth[c], answers.shape[1])
        answers += np.rint(rng.normal(0.0, weight**-0.5, answers.shape))
        if held_total and name == "total":
            total = box_simplex(answers[:, 0], float(truth.sum()), sum(lower, np.zeros(children)))
            groups.insert(0, np.ones(cells, dtype=bool))
            lower.insert(0, np.maximum(total - slack, 0.0))
            upper.insert(0, total + slack)
            continue
        terms.append((weight, rows))
        linear += weight * answers[:, rows]
    problem = FamilyProblem(
        terms=tuple(terms),
        linear=linear,
        parent=truth.sum(0).astype(float),
        mask=mask,
        groups=np.array(groups, dtype=bool).reshape(len(groups), cells),
        lower=np.array(lower).reshape(len(groups), children).T,
        upper=np.array(upper).reshape(len(groups), children).T,
    )
    return MadeFamily(problem, truth, support)


def root(population: float, seed: int, *, level: str = "state") -> MadeFamily:
    """Make a root: 2,016 cells, the total fixed, a lower bound for each type of group quarters."""
    rng = np.random.default_rng(seed)
    truth = rng.poisson(popularity(np.random.default_rng(20201)) * population)[None, :]
    support = np.arange(CELLS)
    terms = []
    linear = np.zeros((1, CELLS))
    for name, weight in weights(level).items():
        if name == "total":
            continue
        rows = query_rows(name, support)
        answers = np.bincount(rows, truth[0]) + np.rint(rng.normal(0.0, weight**-0.5, int(rows.max()) + 1))
        terms.append((weight, rows))
        linear += weight * answers[rows]
    hhgq = np.unravel_index(support, SHAPE)[0]
    groups = np.stack([np.ones(CELLS, dtype=bool), *(hhgq == k for k in range(1, 8))])
    sums = truth @ groups.T.astype(float)
    lower = np.where(np.arange(8) % 2, np.rint(1.02 * sums), sums // 2)  # half of them bind
    lower[0, 0] = sums[0, 0]
    upper = np.full((1, 8), np.inf)
    upper[0, 0] = sums[0, 0]
    problem = FamilyProblem(tuple(terms), linear, None, groups=groups, lower=lower, upper=upper)
    return MadeFamily(problem, truth, support)


def joint_roots(populations: tuple[float, ...], seed: int) -> MadeFamily:
    """Make roots that hold one total together: the parts of a divided state."""
    made = [root(population, len(populations) * seed + i) for i, population in enumerate(populations)]
    parts = [one.problem for one in made]
    lower = np.concatenate([part.lower for part in parts])
    problem = FamilyProblem(
        parts[0].terms,
        np.concatenate([part.linear for part in parts]),
        groups=parts[0].groups[1:],
        lower=lower[:, 1:],
        upper=np.full((len(parts), len(parts[0].groups) - 1), np.inf),
        joint=np.zeros(len(parts), np.int32),
        joint_total=lower[:, :1].sum(axis=0),
    )
    return MadeFamily(problem, np.concatenate([one.truth for one in made]), np.arange(CELLS))


def joint_pairs(children: int, cells: int, population: float, seed: int) -> MadeFamily:
    """Make a family in which every two children hold their total together."""
    made = family("tract", children, cells, population, seed)
    stated = made.problem
    keep = ~stated.groups.all(axis=1)
    pair = np.arange(children) // 2
    problem = FamilyProblem(
        stated.terms,
        stated.linear,
        stated.parent,
        stated.mask,
        stated.groups[keep],
        stated.lower[:, keep],
        stated.upper[:, keep],
        joint=pair,
        joint_total=np.bincount(pair, made.truth.sum(axis=1)),
    )
    return MadeFamily(problem, made.truth, made.support)


def first_pass(children: int, cells: int, seed: int) -> MadeFamily:
    """Make a first pass: only the total is measured, three groups are bounded and closed to some children."""
    rng = np.random.default_rng(seed)
    truth = rng.poisson(5.0, (children, cells))
    label = rng.integers(0, 4, cells)
    mask = np.ones((children, cells), dtype=bool)
    lower = np.zeros((children, 3))
    for k in range(3):
        present = rng.random(children) < 0.6
        truth[np.ix_(~present, label == k + 1)] = 0
        mask[np.ix_(~present, label == k + 1)] = False
        lower[:, k] = present & (label == k + 1).any()
    truth += ((label == 0) & (truth.sum(0) == 0)).astype(int)
    total = truth.sum(1) + np.rint(rng.normal(0.0, 2.0, children))
    problem = FamilyProblem(
        ((0.3, np.zeros(cells, dtype=np.int32)),),
        0.3 * np.repeat(total[:, None], cells, axis=1),
        truth.sum(0).astype(float),
        mask=mask,
        groups=np.stack([label == k for k in range(1, 4)]),
        lower=np.minimum(lower, np.stack([truth[:, label == k].sum(1) for k in range(1, 4)], axis=1)),
        upper=np.full((children, 3), np.inf),
    )
    return MadeFamily(problem, truth, np.arange(cells))


def box_simplex(value: NDArray[np.float64], total: float, lower: NDArray[np.float64]) -> NDArray[np.float64]:
    """Nearest point to `value` with the given total and ``x >= lower`` (bisection on the shift)."""
    low, high = -abs(value).max() - total - 1.0, abs(value).max() + total + 1.0
    for _ in range(200):
        shift = 0.5 * (low + high)
        if np.maximum(value + shift, lower).sum() > total:
            high = shift
        else:
            low = shift
    return np.maximum(value + 0.5 * (low + high), lower)


KINDS = 32
"""Household or group-quarters type x voting age x Hispanic origin; places are the 63 races."""


@dataclass(frozen=True, slots=True)
class VariedFamily:
    """A synthetic family in least squares over the whole tree: children come with what their children say."""

    problem: FamilyProblem
    linear: NDArray[np.float64]
    curvature: PairedCurvature
    truth: NDArray[np.int64]

    @property
    def stated(self) -> FamilyProblem:
        """The problem with these linear terms and Hessians."""
        return replace(self.problem, linear=self.linear, hessians=self.curvature)


def varied(
    level: str,
    below: str,
    children: int,
    cells: int,
    population: float,
    seed: int,
    *,
    grandchildren: tuple[int, int] = (4, 12),
) -> VariedFamily:
    """Make a family whose children have Hessians of their own.

    ``A_c = P + (sum over grandchildren of P_below^-1, on the types that each may have)^-1``, with the weights
    of the two geolevels; ``b_c = A_c truth_c`` plus noise of covariance A_c. The metric, the problem's terms,
    is what A would be with an average number of grandchildren and no masks. A type of group quarters that a
    child has is found in one to three grandchildren.
    """
    rng = np.random.default_rng(seed + 77)
    made = family(level, children, cells, population, seed, held_total=False, group_quarters=True)
    codes = np.unravel_index(made.support, SHAPE)
    kind, place = (codes[0] * 2 + codes[1]) * 2 + codes[2], codes[3]
    own, theirs = _rest_and_mean(level), _rest_and_mean(below)
    number = rng.integers(*grandchildren, children, endpoint=True)
    alpha, beta = np.zeros((children, KINDS, KINDS)), np.zeros((children, KINDS, KINDS))
    linear = np.zeros(made.problem.linear.shape)
    for c in range(children):
        allowed = np.zeros((number[c], SHAPE[0]), dtype=bool)
        allowed[:, 0] = True
        for k in range(1, SHAPE[0]):
            inside = codes[0] == k
            if made.problem.mask[c, inside].any():
                allowed[rng.integers(0, number[c], rng.integers(1, 4)), k] = True
        noise = rng.normal(size=(KINDS, SHAPE[3]))
        some = np.repeat(allowed.any(axis=0), KINDS // SHAPE[0])
        parts = []
        for mine, child in zip(own, theirs, strict=True):
            variance = np.zeros((KINDS, KINDS))
            for one in allowed:
                variance += _inverse_on(child, np.repeat(one, KINDS // SHAPE[0]))
            parts.append(np.where(np.outer(some, some), mine, 0.0) + _inverse_on(variance, some))
        beta[c], alpha[c] = parts[0], (parts[1] - parts[0]) / SHAPE[3]
        average = noise.mean(axis=1, keepdims=True)
        drawn = _root(parts[0]) @ (noise - average) + _root(parts[1]) @ average
        linear[c] = drawn[kind, place]
    curvature = PairedCurvature(alpha, beta, kind, place)
    linear += curvature.apply(made.truth.astype(float))
    near, mean = weights(below), float(number.mean())
    terms = tuple(
        (weight + near.get(name, 0.0) / mean, query_rows(name, made.support))
        for name, weight in weights(level).items()
    )
    stated = made.problem
    problem = FamilyProblem(
        terms, linear, stated.parent, stated.mask, stated.groups, stated.lower, stated.upper
    )
    return VariedFamily(problem, linear, curvature, made.truth)


def _rest_and_mean(level: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """``P`` of a geolevel over kinds, (K, K), on functions of race that sum to zero, and on constant ones."""
    codes = np.unravel_index(np.arange(KINDS), SHAPE[:3])
    rest, mean = np.zeros((KINDS, KINDS)), np.zeros((KINDS, KINDS))
    for name, weight in weights(level).items():
        axes = QUERIES[name]
        same = np.ones((KINDS, KINDS))
        for axis in axes:
            if axis < 3:
                same *= codes[axis][:, None] == codes[axis][None, :]
        mean += weight * same * (1.0 if 3 in axes else SHAPE[3])
        rest += weight * same * (1.0 if 3 in axes else 0.0)
    return rest, mean


def _inverse_on(matrix: NDArray[np.float64], some: NDArray[np.bool_]) -> NDArray[np.float64]:
    inverse = np.zeros(matrix.shape)
    inverse[np.ix_(some, some)] = np.linalg.inv(matrix[np.ix_(some, some)])
    return inverse


def _root(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    values, vectors = np.linalg.eigh(matrix)
    return vectors * np.sqrt(np.maximum(values, 0.0))
