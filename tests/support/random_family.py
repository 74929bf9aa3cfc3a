"""Small random families, feasible by construction, with all the awkward features at once."""

from __future__ import annotations

import numpy as np

from opendas.solvers.problem.problem import FamilyProblem

KINDS = ("plain", "equal", "band", "bounded", "mixed")
STYLES = ("detailed", "margins", "total", "one")


def random_family(
    seed: int, kind: str | None = None, style: str | None = None, *, children: int = 0, cells: int = 0
) -> FamilyProblem:
    """Make a family.

    Parameters
    ----------
    seed : int
        Of the generator.
    kind : str
        Groups: none; an equality in every child; a band of +-tau; bounded cells; equalities and bounds.
    style : str
        Terms: with the detailed cells; several margins only; the total only; one margin only.
    children, cells : int
        C and n; random where 0.
    """
    rng = np.random.default_rng(seed)
    C = children or int(rng.integers(1, 12))
    n = cells or int(rng.integers(1, 25))
    kind = kind or str(rng.choice(KINDS))
    style = style or str(rng.choice(STYLES, p=[0.6, 0.2, 0.1, 0.1]))
    truth = rng.poisson(rng.lognormal(0.0, 1.5, (C, n)) * rng.choice([0.1, 1.0, 20.0]))
    mask = (truth > 0) | (rng.random((C, n)) < rng.choice([0.3, 0.8, 1.0]))
    groups, lower, upper = _groups(rng, kind, truth)
    terms = _terms(rng, style, n)
    linear = np.zeros((C, n))
    for weight, rows in terms:
        answers = np.stack([np.bincount(rows, truth[c], int(rows.max()) + 1) for c in range(C)])
        answers = answers + np.rint(rng.normal(0.0, rng.choice([1.0, 5.0]), answers.shape))
        linear += weight * answers[:, rows]
    return FamilyProblem(
        terms=tuple(terms),
        linear=linear,
        parent=truth.sum(0).astype(float) if rng.random() < 0.9 else None,
        mask=mask,
        groups=np.array(groups, dtype=bool).reshape(len(groups), n),
        lower=np.array(lower).reshape(len(groups), C).T,
        upper=np.array(upper).reshape(len(groups), C).T,
        scale=np.ones(C) if rng.random() < 0.6 else rng.lognormal(0.0, 1.0, C),
    )


def _groups(rng, kind, truth):
    C, n = truth.shape
    groups, lower, upper = [], [], []
    total = truth.sum(1).astype(float)
    if kind in ("equal", "mixed"):
        groups.append(np.ones(n, dtype=bool))
        lower.append(total)
        upper.append(total)
    if kind == "band":
        near = total + rng.normal(0.0, 0.01, C)
        near += (total.sum() - near.sum()) / C
        tau = np.abs(near - total).max() + 0.01
        groups.append(np.ones(n, dtype=bool))
        lower.append(near - tau)
        upper.append(near + tau)
    if kind in ("bounded", "mixed"):
        label = rng.integers(0, 4, n)
        for k in range(1, 4):
            inside = label == k
            if not inside.any():
                continue
            sums = truth[:, inside].sum(1)
            low = np.maximum(sums - rng.integers(0, 3, C), 0).astype(float)
            high = np.where(rng.random(C) < 0.5, np.inf, sums + rng.integers(0, 3, C))
            groups.append(inside)
            lower.append(np.where(rng.random(C) < 0.3, -np.inf, low))
            upper.append(high)
    return groups, lower, upper


def _terms(rng, style, n):
    def rows(most):
        return np.unique(rng.integers(0, most, n), return_inverse=True)[1].astype(np.int32)

    terms = []
    if style == "detailed":
        terms.append((float(rng.lognormal(-1.0, 1.0)), np.arange(n, dtype=np.int32)))
    if style in ("detailed", "margins"):
        terms += [
            (float(rng.lognormal(-1.0, 1.0)), rows(rng.integers(1, 6))) for _ in range(rng.integers(1, 4))
        ]
    if style == "total":
        terms.append((0.3, np.zeros(n, dtype=np.int32)))
    if style == "one":
        terms.append((0.3, rows(4)))
    return terms
