"""Made products, spines, noise, masks and answers, and least squares with the matrix written out."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from opendas.constraints.table import (
    ConstraintTable,
    InvariantAnswers,
    JointTotal,
    LevelConstraints,
)
from opendas.geography.spine import Spine, SpineLevel
from opendas.gls.downward import Estimates
from opendas.gls.model import TreeModel
from opendas.gls.operators import Operators
from opendas.intervals.rows import Rows
from opendas.schema.attributes import Attribute, Recode, Schema
from opendas.schema.declarations import StructuralZero
from opendas.schema.product import PassPlan, Product
from opendas.schema.query_groups import QueryGroup

Floats = npt.NDArray[np.float64]

A = Attribute("a", ("a0", "a1", "a2"))
B = Attribute("b", ("b0", "b1"))
C = Attribute("c", ("c0", "c1", "c2", "c3", "c4"))
UNEQUAL = Recode("r", "c", (("r0", ("c0",)), ("r1", ("c1", "c2", "c3")), ("r2", ("c4",))))
EQUAL = Recode("h", "a", (("h0", ("a0", "a2")), ("h1", ("a1",))))


def make_product(
    attributes: tuple[Attribute, ...], recodes: tuple[Recode, ...], zeros: tuple[StructuralZero, ...] = ()
) -> Product:
    names = [attribute.name for attribute in attributes]
    return Product(
        name="made",
        schema=Schema(attributes),
        recodes=recodes,
        query_names=("total", *names, "detailed"),
        invariants=(),
        bounds=(),
        structural_zeros=zeros,
        protected_unit="record",
        layout="made",
        passes=PassPlan({}, {}),
    )


#: name -> product, measured query groups per level kind
PRODUCTS: dict[str, tuple[Product, tuple[str, ...]]] = {
    "one attribute": (make_product((C,), ()), ("total", "detailed")),
    "two attributes": (make_product((A, B), ()), ("total", "a", "detailed")),
    "unequal recode": (make_product((C, B), (UNEQUAL,)), ("total", "r", "r * b", "detailed")),
    "zeros": (
        make_product((A, B, C), (UNEQUAL, EQUAL), (StructuralZero({"a": ("a1",), "b": ("b0",)}),)),
        ("total", "h", "a", "b * c", "r", "detailed"),
    ),
    "zeros in the middle": (
        make_product((C, A, B), (UNEQUAL,), (StructuralZero({"a": ("a0",)}),)),
        ("total", "r", "b", "a * b", "detailed"),
    ),
    "all dense": (
        make_product((A, B), (EQUAL,), (StructuralZero({"a": ("a1",), "b": ("b0",)}),)),
        ("total", "h", "b", "detailed"),
    ),
}

TREES: dict[str, list[list[int]]] = {
    "leaves only": [[0]],
    "pairs": [[0], [0, 0], [0, 0, 1, 1]],
    "uneven": [[0], [0, 0, 0], [0, 1, 1, 1, 2, 2]],
    "chains": [[0], [0], [0, 0], [0, 1], [0, 0, 1]],
    "two roots": [[0, 0], [0, 0, 1], [0, 1, 1, 2]],
    "flat": [[0, 0, 0]],
}


def make_spine(parents: list[list[int]], whole: dict[int, list[int]] | None = None) -> Spine:
    levels = []
    for number, parent in enumerate(parents):
        codes = np.array([f"{number}{i:03d}" for i in range(len(parent))], dtype="S4")
        groups = (whole or {}).get(number)
        levels.append(
            SpineLevel(
                f"level{number}",
                codes,
                np.array(parent, dtype=np.int64),
                groups is None,
                None if groups is None else np.array(groups, dtype=np.int64),
            )
        )
    leaves = len(parents[-1])
    return Spine(tuple(levels), np.arange(leaves), (None,) * len(parents))


@dataclass
class Made:
    """A tree with everything known about it, and the truth that its answers come from."""

    product: Product
    spine: Spine
    queries: tuple[QueryGroup, ...]
    measured: list[tuple[str, ...]]
    weights: list[tuple[Floats, npt.NDArray[np.int64]]]
    closed: npt.NDArray[np.bool_]
    constraints: ConstraintTable
    truth: list[npt.NDArray[np.int64]]
    answers: list[list[npt.NDArray[np.int64]]]
    exact: list[tuple[int, QueryGroup, npt.NDArray[np.int64]]] = field(default_factory=list)
    whole: dict[int, list[int]] = field(default_factory=dict)

    @property
    def model(self) -> TreeModel:
        return TreeModel.build(
            self.product, self.spine, self.queries, self.measured, self.weights, self.constraints
        )

    def full(self, level: int, first: int, geounits: int) -> list[npt.NDArray[np.int64]]:
        return [values[first : first + geounits] for values in self.answers[level]]


def random_product(seed: int) -> tuple[Product, tuple[str, ...]]:
    """Make a product of up to three attributes with recodes and structural zeros, and choose query groups."""
    rng = np.random.default_rng([seed, 1])
    sizes = [int(size) for size in rng.integers(1, 5, rng.integers(1, 4))]
    attributes = tuple(
        Attribute(name, tuple(f"{name}{i}" for i in range(size)))
        for name, size in zip("xyz", sizes, strict=False)
    )
    recodes = []
    for number in range(int(rng.integers(0, 3))):
        of = attributes[rng.integers(len(attributes))]
        groups = rng.integers(0, 2, len(of))
        kept = [[label for label, g in zip(of.levels, groups, strict=True) if g == k] for k in (0, 1)]
        parts = tuple((f"r{number}{k}", tuple(part)) for k, part in enumerate(kept) if part)
        recodes.append(Recode(f"r{number}", of.name, parts))
    zeros = []
    if len(attributes) > 1 and rng.random() < 0.6:
        zeros.append(StructuralZero({a.name: a.levels[-1:] for a in attributes[:2] if len(a) > 1}))
        if not zeros[0].levels:
            zeros = []
    product = make_product(attributes, tuple(recodes), tuple(zeros))
    names = [product.workload.canonical("total")]
    for _ in range(int(rng.integers(0, 4))):
        factors = []
        for attribute in attributes:
            choice = rng.integers(0, 3)
            own = [r.name for r in recodes if r.attribute == attribute.name]
            if choice == 1:
                factors.append(attribute.name)
            elif choice == 2 and own:
                factors.append(own[rng.integers(len(own))])
        name = product.workload.canonical(" * ".join(factors) or "total")
        if name not in names:
            names.append(name)
    if "detailed" not in names:
        names.append("detailed")
    return product, tuple(names)


def random_parents(seed: int) -> list[list[int]]:
    """Make a tree of two to four levels with a few leaves."""
    rng = np.random.default_rng([seed, 2])
    parents = [[0] * int(rng.integers(1, 3))]
    for _ in range(int(rng.integers(1, 4))):
        parents.append([i for i in range(len(parents[-1])) for _ in range(int(rng.integers(1, 3)))])
    return parents if len(parents[-1]) <= 6 else parents[:-1]


def made(
    product: str | tuple[Product, tuple[str, ...]],
    tree: str | list[list[int]],
    seed: int,
    *,
    masks: bool = True,
    exact: tuple[str, int] | None = None,
    joint: int | None = None,
    bypass: float = 0.0,
    thin: bool = False,
) -> Made:
    """Make a tree.

    `exact` = (query, level) is published exactly; `joint` = level at which pairs of geounits hold a total;
    `bypass` = chance that a class of noise of an inner level measures nothing; `thin` = the leaves measure
    the first query group only.
    """
    rng = np.random.default_rng(seed)
    declared, names = PRODUCTS[product] if isinstance(product, str) else product
    parents = TREES[tree] if isinstance(tree, str) else tree
    whole = {}
    if joint is not None:
        groups, last = [], (-1, -1)
        for i, parent in enumerate(parents[joint]):
            groups.append(groups[-1] + (last != (parent, i // 2)) if groups else 0)
            last = (parent, i // 2)
        whole[joint] = groups
    spine = make_spine(parents, whole)
    queries = declared.workload.groups(names)
    n = declared.schema.size
    weights, measured = [], []
    for number, parent in enumerate(parents):
        table = rng.uniform(0.05, 3.0, (3, len(names)))
        here = names
        if number == len(parents) - 1 and thin:
            here = names[:1]
        elif number < len(parents) - 1:
            table[rng.random(3) < bypass] = 0.0
            if rng.random() < 0.3:
                here = names[:-1]
        table[:, [name not in here for name in names]] = 0.0
        weights.append((table, rng.integers(0, 3, len(parent))))
        measured.append(tuple(here))
    leaves = len(parents[-1])
    # One bound a level of the first attribute closes it in some leaves.
    first = declared.schema.attributes[0]
    group = declared.workload.group(first.name)
    cells = np.stack([group.row_of_cell == level for level in range(len(first))])
    closed = rng.random((leaves, len(first))) < (0.4 if masks else 0.0)
    closed[:, 0] &= rng.random(leaves) < 0.3
    possible = declared.possible & ~(closed.astype(int) @ cells.astype(int) > 0)
    truth = [rng.poisson(2.0, (leaves, n)) * possible]
    for number in range(len(parents) - 1, 0, -1):
        above = np.zeros((len(parents[number - 1]), n), dtype=np.int64)
        np.add.at(above, parents[number], truth[0])
        truth.insert(0, above)
    answers = [
        [
            query.answers(counts) + rng.integers(-5, 6, (len(counts), query.size))
            for query in (declared.workload.group(name) for name in level)
        ]
        for counts, level in zip(truth, measured, strict=True)
    ]
    held: list[tuple[int, QueryGroup, npt.NDArray[np.int64]]] = []
    if exact is not None:
        held.append((exact[1], declared.workload.group(exact[0]), np.zeros(0)))
    levels = []
    upper = np.where(closed, 0, 99)
    for number in range(len(parents)):
        invariants = tuple(
            InvariantAnswers(f"{query.name}@level{at}", query, query.answers(truth[number]))
            for at, query, _ in held
            if number <= at
        )
        shared = None
        if joint == number:
            groups = np.array(whole[joint], dtype=np.int32)
            totals = np.bincount(groups, truth[number].sum(axis=1)).astype(np.int64)
            shared = JointTotal("total@joint", groups, totals)
        elif joint is not None and number < joint:
            total = declared.workload.group("total")
            invariants += (InvariantAnswers("total@joint", total, total.answers(truth[number])),)
        bounds = upper if number == len(parents) - 1 else np.full((len(parents[number]), len(first)), 99)
        levels.append(LevelConstraints(np.zeros_like(bounds), bounds, invariants, shared))
    names_of = tuple(f"bound{i}" for i in range(len(first)))
    table = ConstraintTable(names_of, cells, declared.possible, tuple(levels))
    return Made(declared, spine, queries, measured, weights, possible, table, truth, answers, held, whole)


class DenseTree:
    """Least squares over the allowed cells of all leaves, the matrix written out.

    The exact answers leave a set of solutions ``base + free z``; among the directions of `free` some are
    measured (`root`) and others not (`unknown`).
    """

    def __init__(self, tree: Made) -> None:
        n = tree.product.schema.size
        parents = [level.parent for level in tree.spine.levels]
        leaves = len(parents[-1])
        self.n = n
        self.areas = [np.eye(leaves)]
        for number in range(len(parents) - 1, 0, -1):
            gather = np.zeros((len(parents[number - 1]), len(parents[number])))
            gather[parents[number], np.arange(len(parents[number]))] = 1.0
            self.areas.insert(0, gather @ self.areas[0])
        allowed = np.flatnonzero(tree.closed.ravel())
        size = len(allowed)
        information, linear = np.zeros((size, size)), np.zeros(size)
        held, values = [np.zeros((0, size))], [np.zeros(0)]
        names = [query.name for query in tree.queries]
        for number, areas in enumerate(self.areas):
            table, own = tree.weights[number]
            for name, answers in zip(tree.measured[number], tree.answers[number], strict=True):
                matrix = self.matrix(tree.product.workload.group(name))
                for i, area in enumerate(areas):
                    asked = np.kron(area, matrix)[:, allowed]
                    weight = table[own[i], names.index(name)]
                    information += weight * asked.T @ asked
                    linear += weight * asked.T @ answers[i]
            constraints = tree.constraints.levels[number]
            for invariant in constraints.invariants:
                for i, area in enumerate(areas):
                    held.append(np.kron(area, self.matrix(invariant.query))[:, allowed])
                    values.append(invariant.answers[i])
            if constraints.joint is not None:
                for j, total in enumerate(constraints.joint.totals):
                    area = areas[constraints.joint.group == j].sum(axis=0)
                    held.append(np.kron(area, np.ones((1, n)))[:, allowed])
                    values.append([total])
        exact = np.vstack(held)
        base = np.zeros(size)
        free = np.eye(size)
        if len(exact) and size:
            _, lengths, right = np.linalg.svd(exact)
            free = right[np.count_nonzero(lengths > 1e-9 * lengths[0]) :].T
            base = np.linalg.lstsq(exact, np.concatenate(values), rcond=1e-10)[0]
        eigen, vectors = np.linalg.eigh(free.T @ information @ free)
        known = eigen > 1e-11 * np.trace(information)
        root = free @ vectors[:, known] / np.sqrt(eigen[known])
        mean = base + root @ (root.T @ (linear - information @ base))
        self.root = np.zeros((leaves * n, root.shape[1]))
        self.root[allowed] = root
        self.unknown = np.zeros((leaves * n, int((~known).sum())))
        self.unknown[allowed] = free @ vectors[:, ~known]
        self.mean = np.zeros(leaves * n)
        self.mean[allowed] = mean

    @staticmethod
    def matrix(query: QueryGroup) -> Floats:
        found = np.zeros((query.size, len(query.row_of_cell)))
        found[query.row_of_cell, np.arange(len(query.row_of_cell))] = 1.0
        return found

    def estimate(self, weights: Floats, query: QueryGroup) -> tuple[Floats, Floats]:
        """Return estimate and variance of each row of a query group, over leaves with these weights."""
        asked = np.kron(weights, self.matrix(query))
        variance = ((asked @ self.root) ** 2).sum(axis=1)
        variance[((asked @ self.unknown) ** 2).sum(axis=1) > 1e-9] = np.inf
        return asked @ self.mean, variance


def every(model: TreeModel) -> dict[int, tuple[int, int]]:
    """All geounits of a model."""
    return {number: (0, len(level)) for number, level in enumerate(model.levels)}


def answers(estimates: Estimates, query: QueryGroup) -> tuple[Floats, Floats]:
    """Estimate and variance of every answer of a query group; nan and infinite where nothing is said."""
    rows = Rows.build(estimates.covariance.domain, query.members)
    kinds, which = rows.variances(estimates)
    variances = kinds[which][:, rows.of_row]
    return np.where(np.isinf(variances), np.nan, rows.values(estimates.mean)), variances


def written_out(operators: Operators, i: int, support: npt.NDArray[np.integer] | None = None) -> Floats:
    """One operator as a matrix over some cells."""
    cells = np.arange(operators.domain.cells) if support is None else np.asarray(support)
    unit = np.zeros((len(cells), operators.domain.cells))
    unit[np.arange(len(cells)), cells] = 1.0
    return np.ascontiguousarray(operators.take(np.full(len(cells), i)).apply(unit)[:, cells])
