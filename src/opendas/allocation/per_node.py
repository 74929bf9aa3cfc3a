"""A budget for every node of a public tree, for records that belong to one node of each level.

When a record is added or removed, one node of each level changes: the path from the root to the record's
leaf. Sibling nodes hold different records, so what one of them spends costs the records of another nothing,
and the guarantee is the *largest* sum of budgets along any path from root to leaf. Budgets of two subtrees
may differ: a node above few nodes can spend more.

With the error ``c / b**q`` of a node before clamping, q = 2 (epsilon) or 1 (rho), and p = 1 / (q + 1), the
best use of a budget B below and at node v has the error ``A / B**q`` with

    A(leaf) = c,        A(v) = (c(v)**p + (sum of A over children)**p)**(1 / p),

where v spends the part ``(c(v) / A(v))**p`` of what reaches it and passes the rest to *every* child: one pass
up and one down the tree. Argument: docs/proofs/allocation.md.

Axes: ``g`` nodes of a level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from opendas.allocation.noise_kinds import NoiseKind, noise_kind, relation
from opendas.allocation.solver import checked_total
from opendas.arrays import Floats, Ints
from opendas.errors import BudgetError, ConfigError, GeographyError, PrivacyError
from opendas.privacy.relations import Mechanism, Neighbours

_PARTS = 10**15
"""Exact budgets are multiples of the total over this."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeAllocation:
    """Budgets of the nodes of a tree."""

    kind: NoiseKind
    total: Fraction  # what every way from a root to a leaf spends, exactly
    units: tuple[Ints, ...]  # (g,): per level, top first: budget of each node, in units of ``total / parts``
    parts: int
    objective: float  # weighted sum of squared errors before clamping, at the optimum
    per_level: float  # the same for the best budgets that are equal within each level

    def budgets(self, level: int) -> Floats:
        """Return float64 (g,): budget of each node of a level."""
        return np.asarray(self.units[level] * (float(self.total) / self.parts), dtype=np.float64)

    def exact(self, level: int, node: int) -> Fraction:
        """Return the exact budget of a node."""
        return self.total * Fraction(int(self.units[level][node]), self.parts)


def allocate_per_node(
    parents: Sequence[npt.ArrayLike],
    mechanism: str | Mechanism | NoiseKind,
    total: Fraction | int | str,
    *,
    neighbours: str | Neighbours,
    costs: Sequence[npt.ArrayLike] | None = None,
) -> NodeAllocation:
    """Give every node of a public tree a budget of its own.

    - `parents`, int (g,): for each level from the top, the number of each node's parent in the level above;
      for the top level, any array of its size (its nodes are roots). The tree must be public: it shapes the
      budgets.
    - `total`, > 0: epsilon or rho.
    - `neighbours`: ``unbounded`` only. No default: it is the assumption that everything rests on.
    - `costs`, float (g,), >= 0: weight of each node's squared error, for instance the number of counts
      released there; 1 by default. Public. A node of cost 0 gets nothing.
    - Returns: exact budgets that sum to exactly the total on every way from a root to a leaf.

    Raises `PrivacyError` if neighbours are bounded: a replaced record leaves one node and enters another, so
    that two ways through the tree are touched, and budgets that differ between them add up to another sum;
    `GeographyError` if the arrays are no tree in which every node but the leaves has a child; `BudgetError`
    if the total is not positive, or a leaf has no cost.

    Examples
    --------
    >>> found = allocate_per_node([[0], [0, 0], [0, 1, 1, 1]], "laplace", 1, neighbours="unbounded")
    >>> [found.budgets(level).round(3).tolist() for level in range(3)]
    [[0.261], [0.369, 0.302], [0.369, 0.436, 0.436, 0.436]]
    """
    kind = noise_kind(mechanism)
    if relation(neighbours) is Neighbours.BOUNDED:
        raise PrivacyError(
            "budgets per node need unbounded neighbours. A record that is replaced moves from one node to "
            "another, and touches two paths of the tree: the loss is no longer the sum along one of "
            "them. Use budgets per level, or neighbours = unbounded."
        )
    whole = checked_total(total)
    tree = _tree(parents)
    cost = _costs(costs, tree)
    power = 1 / (kind.order + 1)
    roots = [each**power for each in cost]  # c**p
    value = _values(tree, roots, power)  # A**p
    left = np.ones(len(tree[0]))
    units: list[Ints] = []
    spent = np.zeros(len(tree[0]), dtype=np.int64)
    for number, parent in enumerate(tree):
        if number:
            left, spent = left[parent], spent[parent]
        if number == len(tree) - 1:
            units.append(_PARTS - spent)
            break
        part = left * (roots[number] / value[number])
        units.append(np.floor(part * _PARTS).astype(np.int64))
        left, spent = left - part, spent + units[-1]
    # V = 2 / epsilon**2 or 1 / (2 rho)
    scale = 2.0 if kind.order == 2 else 0.5
    budget = float(whole) ** kind.order
    even = sum(float(each.sum()) ** power for each in cost) ** (1 / power)
    return NodeAllocation(
        kind=kind,
        total=whole,
        units=tuple(units),
        parts=_PARTS,
        objective=scale * float(np.sum(value[0] ** (1 / power))) / budget,
        per_level=scale * even / budget,
    )


def _values(tree: Sequence[Ints], roots: Sequence[Floats], power: float) -> list[Floats]:
    """Return ``A**p`` of every node, level by level from the top."""
    value = [roots[-1]]
    for number in range(len(tree) - 2, -1, -1):
        below = np.bincount(tree[number + 1], weights=value[0] ** (1 / power), minlength=len(tree[number]))
        value.insert(0, roots[number] + below**power)
    return value


def _tree(parents: Sequence[npt.ArrayLike]) -> list[Ints]:
    if not parents:
        raise GeographyError("a tree has at least one level.")
    tree = [np.asarray(each) for each in parents]
    for number, level in enumerate(tree):
        if level.ndim != 1 or len(level) == 0 or level.dtype.kind not in "iu":
            raise GeographyError(f"level {number} of the tree: expected a list of node numbers.")
        if number and (level.min() < 0 or level.max() >= len(tree[number - 1])):
            raise GeographyError(f"level {number} of the tree: a parent is not a node of the level above.")
        if number and len(np.unique(level)) < len(tree[number - 1]):
            raise GeographyError(f"level {number - 1} of the tree: a node has no child.")
    return [level.astype(np.int64) for level in tree]


def _costs(costs: Sequence[npt.ArrayLike] | None, tree: Sequence[Ints]) -> list[Floats]:
    if costs is None:
        return [np.ones(len(level)) for level in tree]
    if len(costs) != len(tree):
        raise ConfigError(f"costs: {len(costs)} levels were given for {len(tree)}.")
    found = [np.asarray(each, dtype=np.float64) for each in costs]
    for number, (cost, level) in enumerate(zip(found, tree, strict=True)):
        if cost.shape != level.shape:
            raise ConfigError(f"costs: level {number} has {len(level)} nodes and {cost.size} costs.")
        if not bool(np.all((cost >= 0) & np.isfinite(cost))):
            raise BudgetError(f"costs: level {number} has one that is negative or not finite.")
    if not bool(np.all(found[-1] > 0)):
        raise BudgetError("costs: every leaf has a positive cost; what reaches it is spent there.")
    return found
