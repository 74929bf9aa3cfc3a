"""Allocate by numbers of nodes alone: for when no public counts exist.

Before clamping, every node of a level has the error ``V(b)``, whatever its count, and clamping divides it
by something between 1 and 2. Where ``V = c / b**q`` the optimum of ``sum w n V(b)`` has
``b ~ (w n)**(1 / (q + 1))``: the cube root of the number of nodes for epsilon, the square root for rho.

How much is lost by not knowing the counts: the objective lies between half of ``sum w n V(b)`` and the
whole, so that the allocation is never worse than twice the optimum, for all four kinds. On hierarchies of
real places it loses about one per cent (docs/explanation/allocation.md).

Noise on the integers has ``V = c / b**q`` for small budgets only: at large ones it is mostly 0, and V falls
exponentially. Levels made by :func:`~opendas.allocation.histogram.unknown_counts` are allocated by the
exact V; the power rule below is its limit for small budgets, and for continuous noise the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from opendas.allocation.histogram import unknown_counts
from opendas.allocation.noise_kinds import NoiseKind, noise_kind
from opendas.allocation.programs_6_7 import Allocation, allocate_total
from opendas.errors import BudgetError
from opendas.privacy.relations import Mechanism, Neighbours

__all__ = ["allocate_by_nodes", "power_rule"]


def power_rule(
    nodes: Sequence[float],
    mechanism: str | Mechanism | NoiseKind,
    total: float = 1.0,
    weights: Sequence[float] | None = None,
) -> tuple[float, ...]:
    """Budgets in proportion to a power of the weighted numbers of nodes.

    Parameters
    ----------
    nodes : sequence of number, >= 0
        Released counts of each level.
    mechanism : str or NoiseKind
        Powers are 1/3 for the Laplace kinds and 1/2 for the Gaussian kinds.
    total : float
    weights : sequence of float, optional

    Returns
    -------
    tuple of float
        They sum to the total. The neighbour relation makes no difference.

    Raises
    ------
    BudgetError
        If nothing has a weight.

    Examples
    --------
    >>> power_rule([1, 8, 27], "laplace", total=6)
    (1.0, 2.0, 3.0)
    """
    kind = noise_kind(mechanism)
    n = np.asarray(nodes, dtype=np.float64)
    w = np.ones(len(n)) if weights is None else np.asarray(weights, dtype=np.float64)
    if len(w) != len(n):
        raise BudgetError(f"weights: {len(w)} were given for {len(n)} levels; give one for each.")
    products = w * n
    if not (bool(np.all(products >= 0)) and bool(np.isfinite(products).all()) and float(products.sum()) > 0):
        raise BudgetError("nodes and weights are finite and not negative, and at least one level has both.")
    roots = np.cbrt(products) if kind.order == 2 else np.sqrt(products)
    return tuple((total * roots / roots.sum()).tolist())


def allocate_by_nodes(
    nodes: Mapping[str, int],
    mechanism: str | Mechanism | NoiseKind,
    total: Fraction | int | str,
    weights: Sequence[float] | None = None,
    neighbours: str | Neighbours = Neighbours.UNBOUNDED,
) -> Allocation:
    """Program (6) for the error before clamping, by the exact variance of the noise.

    Parameters
    ----------
    nodes : mapping of str to int
        Level -> number of released counts; public.
    mechanism, total, weights, neighbours
        As :func:`~opendas.allocation.programs_6_7.allocate_total`, and so are the errors raised.

    Examples
    --------
    >>> [round(float(budget), 6) for budget in allocate_by_nodes({"a": 1, "b": 4}, "gaussian", 3).exact]
    [1.0, 2.0]
    """
    levels = [unknown_counts(name, number) for name, number in nodes.items()]
    return allocate_total(levels, mechanism, total, weights, neighbours)
