"""Bias, variance and error by simulation, each with a Monte Carlo error, and the downstream task.

The square of a mean error over R runs overestimates the squared bias by the variance over R: here the bias
is small and the sum runs over 25,000 blocks, so that the noise of the estimate is all that one would see.
Squared bias is estimated without it: the sum over geounits of (sum of errors)^2 - (sum of squares), over
R (R - 1). Monte Carlo errors are a jackknife over batches of runs, because errors within a family hang
together.

The noise is Laplace in floating point, as in the paper. Nothing here is a release.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from allocation_trees import Tree

from opendas.allocation.post_processing_8 import post_process
from opendas.solvers.simplex import project

Floats = npt.NDArray[np.float64]
BATCHES = 20


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and its Monte Carlo standard error."""

    value: float
    error: float

    def __str__(self) -> str:
        """Write with as many digits as the error leaves."""
        digits = 0 if self.error <= 0 else max(0, 1 - math.floor(math.log10(self.error)))
        digits = min(digits, 8)
        return f"{self.value:,.{digits}f} ± {self.error:,.{digits}f}"


@dataclass(slots=True)
class Errors:
    """Errors of many runs in batches, summed over geounits at the end.

    Parameters
    ----------
    size : int
        Number of geounits.
    """

    size: int
    sums: Floats = field(init=False)
    squares: Floats = field(init=False)
    runs: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.sums = np.zeros((BATCHES, self.size))
        self.squares = np.zeros((BATCHES, self.size))
        self.runs = np.zeros(BATCHES)

    def add(self, batch: int, errors: Floats) -> None:
        """Add the errors of one run, (size,), or of several, (runs, size)."""
        several = errors.reshape(-1, self.size)
        self.sums[batch] += several.sum(axis=0)
        self.squares[batch] += (several**2).sum(axis=0)
        self.runs[batch] += len(several)

    def bias2(self, part: slice = slice(None)) -> Estimate:
        """Return the sum of squared biases, without the part that is noise of the estimate."""
        return self._jackknife(lambda s, q, r: float((s[part] ** 2 - q[part]).sum()) / (r * (r - 1)))

    def naive_bias2(self, part: slice = slice(None)) -> float:
        """Return the sum of squared mean errors, as it is commonly computed."""
        return float((self.sums.sum(axis=0)[part] ** 2).sum()) / self.runs.sum() ** 2

    def variance(self, part: slice = slice(None)) -> Estimate:
        """Return the sum of variances."""
        return self._jackknife(lambda s, q, r: float((q[part] - s[part] ** 2 / r).sum()) / (r - 1))

    def mse(self, part: slice = slice(None)) -> Estimate:
        """Return the sum of mean squared errors."""
        return self._jackknife(lambda _, q, r: float(q[part].sum()) / r)

    def _jackknife(self, statistic: Callable[[Floats, Floats, float], float]) -> Estimate:
        s, q, r = self.sums.sum(axis=0), self.squares.sum(axis=0), float(self.runs.sum())
        without = np.array(
            [statistic(s - self.sums[b], q - self.squares[b], r - self.runs[b]) for b in range(BATCHES)]
        )
        spread = (BATCHES - 1) / BATCHES * float(((without - without.mean()) ** 2).sum())
        return Estimate(statistic(s, q, r), math.sqrt(spread))


VARIANTS: dict[str, dict[str, int | bool]] = {
    "top-down": {},
    "raw first": {"clamp": False},
    "bottom-up": {"anchor": -1},
}
"""Ways of post-processing, beside none: arguments of ``post_processing_8.post_process``."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """Errors per variant, all levels one after the other, and where each level stands."""

    errors: dict[str, Errors]
    levels: tuple[slice, ...]


def simulate(
    tree: Tree, budgets: Sequence[float], runs: int, seed: int, variants: Sequence[str] = ("top-down",)
) -> Simulated:
    """Add noise to every count, set negative ones to zero (``none``), and post-process what came out."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum([0, *tree.hierarchy.sizes])
    true = np.concatenate(tree.counts).astype(np.float64)
    scale = np.repeat(1.0 / np.array(budgets, dtype=np.float64), tree.hierarchy.sizes)
    found = {name: Errors(len(true)) for name in ("none", *variants)}
    for run in range(runs):
        batch = run * BATCHES // runs
        noisy = true + rng.laplace(0.0, 1.0, len(true)) * scale
        found["none"].add(batch, np.maximum(noisy, 0.0) - true)
        parts = [noisy[start:stop] for start, stop in itertools.pairwise(ends)]
        for name in variants:
            options = VARIANTS[name]
            counts = post_process(
                tree.hierarchy,
                parts,
                anchor=int(options.get("anchor", 0)),
                clamp=bool(options.get("clamp", True)),
            )
            found[name].add(batch, np.concatenate(counts) - true)
    return Simulated(found, tuple(slice(int(a), int(b)) for a, b in itertools.pairwise(ends)))


WEIGHTS: dict[str, Callable[[Floats], Floats]] = {
    "log": np.log1p,
    "linear": lambda p: p,
    "quadratic": np.square,
}
"""Weight functions of the allocation task: what a region of this share of the people counts for."""


def allocated(counts: Floats, weight: Callable[[Floats], Floats]) -> Floats:
    """Return the percentage that each region gets, (runs, regions); equal parts where nobody lives."""
    total = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)
    weights = weight(shares)
    sums = weights.sum(axis=1, keepdims=True)
    return 100.0 * np.divide(weights, sums, out=np.full_like(weights, 1.0 / weights.shape[1]), where=sums > 0)


def downstream(tree: Tree, parent: int, budgets: Sequence[float], runs: int, seed: int) -> dict[str, Errors]:
    """Allocate money among the leaves below one geounit, the last but one level's number `parent`.

    Counts are post-processed from the top down with the whole tree; then shares, weights and percentages.
    """
    rng = np.random.default_rng(seed)
    inside = np.flatnonzero(tree.hierarchy.parents[-1] == parent)
    true = tree.counts[-1][inside].astype(np.float64)
    exact = {name: allocated(true[None], weight) for name, weight in WEIGHTS.items()}
    found = {name: Errors(len(true)) for name in WEIGHTS}
    for batch in range(BATCHES):
        counts = np.zeros((max(1, runs // BATCHES), 1))
        above = _noisy(tree.counts[0], budgets[0], len(counts), rng)
        for level in range(1, len(tree.names)):
            last = level + 1 == len(tree.names)
            # Above the leaves all geounits have one parent, the root; of the leaves only one family counts.
            mine = inside if last else np.arange(tree.hierarchy.sizes[level])
            counts = _families(_noisy(tree.counts[level][mine], budgets[level], len(counts), rng), above)
            above = counts if last else counts[:, [parent]]
        for name, weight in WEIGHTS.items():
            found[name].add(batch, allocated(counts, weight) - exact[name])
    return found


def _noisy(counts: npt.NDArray[np.int64], budget: float, runs: int, rng: np.random.Generator) -> Floats:
    """Return clamped noisy counts, (runs, counts)."""
    return np.maximum(counts + rng.laplace(0.0, 1.0 / budget, (runs, len(counts))), 0.0)


def _families(noisy: Floats, totals: Floats) -> Floats:
    """Project every run's family onto its total: each run is a family of its own."""
    runs, size = noisy.shape
    family = np.repeat(np.arange(runs, dtype=np.int64), size)
    return project(noisy.ravel(), family, np.ascontiguousarray(totals[:, 0])).reshape(runs, size)
