"""Shares of one rho, moved to where least squares over the whole tree makes most of them.

    python experiments/equal_rho.py --what derive
    python experiments/equal_rho.py [DATA] [--seeds 10] [--to FOLDER] [--blocks BLOCKS.csv]

The first prints the shares of two presets: ``opendas2026-persons`` (every geolevel keeps the production's
share, so that no loss within a geography changes) and ``opendas2026-blocks-persons`` (geolevels are free).
Nothing but sizes that any earlier census publishes goes in: children of a geounit, cells that have people.

Non-negativity makes cells that nobody has harmless. What is left behaves like least squares on an *effective
domain*: voting age 2 x Hispanic 2 x ``r`` races at each geolevel, ``4 r`` of the order of the cells that have
people. On a product of attributes every query group is diagonal in the same subspaces, one for each set of
attributes, so that a tree of equal families is a scalar recursion in each of them, and the expected error of
all query groups at all geolevels follows in microseconds. Where a geounit has group quarters is no product:
the shares of ``hhgq`` and ``hhinstlevels`` are set beforehand.

The second releases Rhode Island 2010 with the production's shares (``topdown`` and ``informed``) and with
both plans (``informed``), seed by seed, and prints the change of every error from the first. ``--blocks``
takes another state instead (see ``experiment.another_state``), from whose sizes no plan was made.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
from experiment import (
    LEVELS,
    Figures,
    another_state,
    arguments,
    deliver,
    figures_of,
    load,
    markdown,
    note,
    rhode_island,
)
from scipy.optimize import minimize

import opendas as od
from opendas.budget.presets import preset
from opendas.metrics.evaluate import evaluate

Floats = npt.NDArray[np.float64]

CHILDREN = (1.0, 5.0, 48.0, 3.4, 22.0)
"""Children of a geounit of the geolevel above, Rhode Island 2010."""
CELLS = (45.0, 30.0, 12.0, 7.0, 1.6)
"""A quarter of the cells of voting age, Hispanic and race that have people, of a geounit of each geolevel."""
ATTRIBUTES = ("votingage", "hispanic", "cenrace")
SUBSETS = tuple(set(s) for k in range(4) for s in itertools.combinations(ATTRIBUTES, k))
QUERIES = {
    "total": set(),
    "votingage": {"votingage"},
    "hispanic": {"hispanic"},
    "cenrace": {"cenrace"},
    "votingage * hispanic": {"votingage", "hispanic"},
    "hispanic * cenrace": {"hispanic", "cenrace"},
    "votingage * cenrace": {"votingage", "cenrace"},
    "detailed": set(ATTRIBUTES),
}
SCORED = ("total", "votingage", "hispanic", "cenrace", "hispanic * cenrace", "detailed")
GROUP_QUARTERS = {
    "hhinstlevels": (Fraction(1, 1000),) * 5,
    "hhgq": tuple(Fraction(share, 1000) for share in (120, 40, 15, 5, 5)),
}
"""Shares of a geolevel's rho that are set beforehand."""
UNIT = 10_000
"""Shares are multiples of one in so many."""


@dataclass(frozen=True)
class Domain:
    """What a query group weighs in each subspace of the effective domain of a geolevel, and back.

    Parameters
    ----------
    information : float64 (subspaces, queries)
        Precision of a subspace for one unit of a query group's precision.
    error : float64 (scored queries, subspaces)
        Variance of one row of a query group for one unit of a subspace's variance.
    """

    information: Floats
    error: Floats

    @classmethod
    def of(cls, races: float) -> Domain:
        """Return that of an effective number of races."""
        size = {"votingage": 2.0, "hispanic": 2.0, "cenrace": races}

        def outside(query: set[str]) -> float:
            return math.prod(size[a] for a in ATTRIBUTES if a not in query)

        information = [
            [outside(query) if subset <= query else 0.0 for query in QUERIES.values()] for subset in SUBSETS
        ]
        error = [
            [
                outside(QUERIES[name])
                * math.prod((size[a] - 1) / size[a] if a in subset else 1 / size[a] for a in QUERIES[name])
                if subset <= QUERIES[name]
                else 0.0
                for subset in SUBSETS
            ]
            for name in SCORED
        ]
        return cls(np.array(information), np.array(error))


DOMAINS = tuple(Domain.of(races) for races in CELLS)


def standard_errors(rho: Floats, *, whole_tree: bool = True) -> Floats:
    """Return the expected standard error of a row of each scored query group at each geolevel.

    Parameters
    ----------
    rho : float64 (levels, queries)
        Inverse variances of the noise.
    whole_tree : bool
        Least squares over the whole tree, else from the top down, level by level.
    """
    own = [domain.information @ share for domain, share in zip(DOMAINS, rho, strict=True)]
    known = list(own)
    if whole_tree:
        for level in range(len(own) - 2, -1, -1):
            known[level] = own[level] + known[level + 1] / CHILDREN[level + 1]
    variance = 1 / known[0]
    variance[0] = 0.0  # the total of the root is an invariant
    out = [np.sqrt(DOMAINS[0].error @ variance)]
    for level in range(1, len(own)):
        children = CHILDREN[level]
        variance = (1 - 1 / children) / known[level] + variance / children**2
        out.append(np.sqrt(DOMAINS[level].error @ variance))
    return np.array(out)


def production() -> Floats:
    """Return the rho of every query group in the production run of one state, float64 (levels, queries)."""
    found = preset("pr2020-persons")
    rho = np.zeros((len(LEVELS), len(QUERIES)))
    for number, level in enumerate(LEVELS):
        for position, query in enumerate(QUERIES):
            # of the people of a household voting age x Hispanic x race is all that detailed asks
            names = (query, "votingage * hispanic * cenrace") if query == "detailed" else (query,)
            share = sum(found.queries[level].get(name, Fraction(0)) for name in names)
            rho[number, position] = float(share * found.geolevels[level] * found.rho)
    return rho


def best_shares(*, free: bool, most: float, weights: Mapping[str, float]) -> tuple[Floats, Floats]:
    """Return shares of the geolevels, and of the query groups of each, with the least weighted log error.

    Parameters
    ----------
    free : bool
        Whether geolevels may change their shares.
    most : float
        Largest error of a query group beside that of the production's shares.
    weights : mapping of geolevel to float
        What an error of a geolevel counts.

    Notes
    -----
    With free geolevels the production's errors are those of top-down least squares, which it used.
    """
    start = production()
    level_rho = start.sum(axis=1)
    before = standard_errors(start, whole_tree=not free)
    used = before > 0
    weight = np.array([weights[level] for level in LEVELS])[:, None] * used
    allowed = np.ones(start.shape, dtype=bool)
    allowed[0, 0] = False

    def split(z: Floats) -> tuple[Floats, Floats]:
        levels = level_rho / level_rho.sum()
        if free:
            levels = np.exp(z[: len(LEVELS)] - z[: len(LEVELS)].max())
            levels, z = levels / levels.sum(), z[len(LEVELS) :]
        each = np.where(allowed, np.exp(np.clip(z.reshape(start.shape), -30, 30)), 0.0)
        return levels, each / each.sum(axis=1, keepdims=True)

    def cost(z: Floats) -> float:
        levels, shares = split(z)
        after = standard_errors(level_rho.sum() * levels[:, None] * shares)
        ratio = np.log(np.maximum(after, 1e-12) / np.maximum(before, 1e-12)) * used
        worse = np.maximum(0.0, ratio - math.log(most)) * (weight > 0)
        return float((weight * ratio).sum() + 1000 * (worse**2).sum())

    first = np.log(np.maximum(start / level_rho[:, None], 3e-3)).ravel()
    if free:
        first = np.concatenate([np.log(level_rho / level_rho.sum()), first])
    starts = [first, *(first + np.random.default_rng(s).normal(0, 0.5, len(first)) for s in (1, 2))]
    found = [minimize(cost, z, method="L-BFGS-B", options={"maxiter": 400, "maxfun": 40_000}) for z in starts]
    return split(min(found, key=lambda one: one.fun).x)


def exact(shares: Floats, fixed: Sequence[Fraction] = ()) -> list[Fraction]:
    """Return shares as multiples of one in :data:`UNIT` that add up to one together with fixed ones."""
    left = UNIT * (1 - sum(fixed))
    parts = np.floor(shares * float(left)).astype(int)
    rest = np.argsort(-(shares * float(left) - parts), kind="stable")[: int(left) - parts.sum()]
    parts[rest] += 1
    return [Fraction(int(part), UNIT) for part in parts]


def derived(*, free: bool) -> tuple[list[Fraction], list[dict[str, Fraction]]]:
    """Return a plan: shares of geolevels, and of the query groups of each."""
    weights = dict.fromkeys(LEVELS, 1.0) | ({"state": 0.1, "block": 3.0} if free else {})
    levels, shares = best_shares(free=free, most=1.0 if free else 1.03, weights=weights)
    queries = []
    for number in range(len(LEVELS)):
        fixed = {name: share[number] for name, share in GROUP_QUARTERS.items()}
        own = exact(shares[number], tuple(fixed.values()))
        queries.append({q: s for q, s in zip(QUERIES, own, strict=True) if s} | fixed)
    kept = preset("pr2020-persons").geolevels
    return exact(levels) if free else [kept[level] for level in LEVELS], queries


def table_of(levels: Sequence[Fraction], queries: Sequence[Mapping[str, Fraction]]) -> str:
    """Return a plan as ``budget/presets.py`` holds it."""
    names = [*QUERIES, *GROUP_QUARTERS]
    rows = [("(geolevel)", *(_fraction(share) for share in levels))]
    rows += [
        (q.replace(" ", ""), *(_fraction(each[q]) if q in each else "-" for each in queries)) for q in names
    ]
    table = [(".", *LEVELS), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = ("  ".join(text.ljust(w) for text, w in zip(row, widths, strict=True)).rstrip() for row in table)
    return "\n".join(lines)


def _fraction(share: Fraction) -> str:
    """Return a share in parts of :data:`UNIT` where it is a multiple of one, for easy comparison."""
    return f"{share * UNIT}/{UNIT}" if (share * UNIT).denominator == 1 else str(share)


SETTINGS = {
    "TopDown, production": ("pr2020-persons", "topdown"),
    "informed, production": ("pr2020-persons", "informed"),
    "opendas2026-persons": ("opendas2026-persons", "informed"),
    "opendas2026-blocks-persons": ("opendas2026-blocks-persons", "informed"),
}
SHOWN = ("total", "votingage", "hispanic", "cenrace", "hhgq", "hispanic * cenrace", "detailed")
AREAS = ("place", "sldl", "cousub", "vtd")


def measured(data: Path, seeds: Sequence[int], blocks: Path | None) -> dict[str, list[Figures]]:
    """Release Rhode Island, or another state, with every setting and seed, and compare with the truth."""
    found: dict[str, list[Figures]] = {name: [] for name in SETTINGS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        truth = None
        for setting, (budget, estimator) in SETTINGS.items():
            lines = (f'preset = "{budget}"', f'estimator = "{estimator}"')
            if blocks is None:
                run = load(rhode_island(data, lines[0], run=lines[1]), folder)
            else:
                run = another_state(blocks, folder, *lines)
            truth = truth or run.read()
            for seed in seeds:
                with tempfile.TemporaryDirectory() as out:
                    estimate = od.release(run, Path(out) / "out", seed=seed).estimate(run.product.name)
                compared = evaluate(truth.histogram, estimate, truth.frame, run.product, entities=True)
                found[setting].append(figures_of(compared))
                note(f"{setting}, seed {seed} done")
    return found


def changes(found: Mapping[str, Sequence[Figures]], metric: str) -> str:
    """Return the mean of a figure for the first setting, and what the others change, in per cent."""
    first, *others = found
    rows: list[tuple[object, ...]] = []
    for level in (*LEVELS, *AREAS):
        for query in SHOWN:
            key = (level, query, "", metric)
            if key not in found[first][0]:
                continue
            base = np.array([figures[key] for figures in found[first]])
            cells: list[object] = []
            for other in others:
                difference = np.array([figures[key] for figures in found[other]]) - base
                spread = difference.std(ddof=1) / math.sqrt(len(base)) if len(base) > 1 else 0.0
                scale = 100 / base.mean() if base.any() else math.nan
                cells.append(
                    f"{scale * difference.mean():+.0f} ± {scale * spread:.0f}" if base.any() else None
                )
            rows.append((level, query, float(base.mean()), *cells))
    return markdown(("Geolevel", "Query", first, *(f"{other}, %" for other in others)), rows)


def bias(found: Mapping[str, Sequence[Figures]], leaf: str = "block") -> str:
    """Return the mean signed error of totals of leaves by class of population."""
    keys = [k for k in found[next(iter(found))][0] if k[0] == leaf and k[2] and k[3] == "mean_signed_error"]
    rows = [
        (key[2], *(float(np.mean([figures[key] for figures in several])) for several in found.values()))
        for key in keys
        if key[1] == "total"
    ]
    return markdown(("Blocks", *found), rows)


def main() -> None:
    """Derive the plans, or measure them."""
    parser = arguments(__doc__, seeds=10)
    parser.add_argument("--what", choices=("derive", "measure"), default="measure")
    parser.add_argument("--blocks", type=Path, help="CSV of the blocks of another state")
    given = parser.parse_args()
    if given.what == "derive":
        for free in (False, True):
            deliver("blocks" if free else "kept", table_of(*derived(free=free)), None, None)
        return
    found = measured(given.data, range(1, given.seeds + 1), given.blocks)
    text = "\n\n".join(
        [
            f"{given.blocks or 'Rhode Island'}, mean absolute error and its change, {given.seeds} seeds",
            changes(found, "mean_abs_error"),
            "Mean signed error of block totals",
            bias(found),
        ]
    )
    deliver("equal_rho", text, None, given.to)


if __name__ == "__main__":
    main()
