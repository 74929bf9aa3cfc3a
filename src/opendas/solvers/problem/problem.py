"""The least-squares problem of one family, and its answer.

Letters: ``n`` cells, ``C`` children, ``K`` groups, ``J`` joint totals. The problem is equation (7.2), and
with held margins (7.5), of the TopDown paper, written for any family of nested tables:

    minimise    sum_c (1/2 x_c' A_c x_c - b_c' x_c)
    subject to  x >= 0, x_cj = 0 where not mask_cj,
                sum_c x_c = parent,
                lower_ck <= sum_{j in group k} x_cj <= upper_ck,
                sum_{c in part s} sum_j x_cj = T_s,
                sum_{j: fixed_row(j) = r} x_cj = fixed_cr,

where ``A_c = scale_c H``, ``b_c = scale_c linear_c`` and ``H = sum_q weight_q [row_q(i) == row_q(j)]`` (every
cell lies in exactly one row of every term) if the children agree in their Hessian up to a multiple, and
``A_c`` is the child's own and ``b_c = linear_c`` if they do not. The last line but one are joint totals: what
the parts of a divided geounit hold together, each child in at most one. The last line are fixed answers to a
query group: an equality on every row of a partition of the cells, of which there may be as many as cells.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opendas.arrays import Bools, Floats, Ints
from opendas.errors import EstimationError
from opendas.solvers.problem.curvature import Curvature, SharedCurvature, Terms

_NO_JOINT: tuple[Ints, Floats] = (np.zeros(0, np.int64), np.zeros(0))
"""Writable, as compiled code is specialised on it; there is nothing to write to."""
_NO_PARENT: Floats = np.empty(0)
_NO_PARENT.flags.writeable = False  # as a parent of a problem is
REPEATS = 1e-9
"""Difference of a joint total from what other rows say, relative to the total, that is rounding."""


class Status(Enum):
    """What a solver found."""

    OPTIMAL = "optimal"
    """An optimum, certified by :func:`opendas.solvers.problem.certificate.certify`."""
    INFEASIBLE = "infeasible"
    """No point satisfies the constraints: proved, see :attr:`Solution.conflict`."""
    FAILED = "failed"
    """No certified optimum and no proof: `x` is the best point reached."""


@dataclass(frozen=True, slots=True)
class ConstraintRow:
    """One scalar constraint, as named in a conflict."""

    kind: str  # ``"parent"``, ``"lower"``, ``"upper"``, ``"joint"`` or ``"fixed"``
    child: int  # index of the child, -1 for a parent row and for a joint total
    index: int  # cell for a parent row, joint total, fixed row, or group
    name: str = ""  # name of the group or joint total where the problem names them, else ``""``

    def __str__(self) -> str:
        if self.kind == "parent":
            return f"parent total of cell {self.index}"
        if self.kind == "joint":
            return self.name or f"joint total {self.index}"
        if self.kind == "fixed":
            return f"fixed row {self.index} of child {self.child}"
        group = self.name or f"group {self.index}"
        return f"{self.kind} bound of {group} in child {self.child}"


class Objective(NamedTuple):
    """The terms of a family one above the other, as compiled code takes them."""

    rows: NDArray[np.int32]  # (Q, n)
    weights: Floats  # (Q,)
    linear: Floats  # (C, n)


class Constraints(NamedTuple):
    """The constraints of a family as compiled code takes them; fields as in :class:`FamilyProblem`."""

    parent: Floats  # (n,), or (0,) where there is none
    mask: Bools  # (C, n)
    groups: Bools  # (K, n)
    lower: Floats  # (C, K)
    upper: Floats  # (C, K)
    joint: Ints  # (C,) joint total that each child has a part in, -1 for none; (0,) where there are none
    joint_total: Floats  # (J,)


def _frozen(value: Any, dtype: type, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    array: NDArray[Any] = np.ascontiguousarray(value, dtype=dtype)
    if array.shape != shape:
        raise EstimationError(f"{name} has shape {array.shape}, expected {shape}")
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


@dataclass(frozen=True, slots=True)
class FamilyProblem:
    """Constrained non-negative least squares of one family."""

    # (float, ndarray): weight (> 0, inverse squared counts) and compact row index, int32 of shape ``(n,)``,
    # of each query group in the objective. Where children have Hessians of their own: of a metric that is
    # near them, of use where these are too large to be written out, without a part in the answer.
    terms: Terms
    # (C, n): the weighted answers, ``sum_q weight_q answer_q[row_q(j)]``; ``b`` where children have Hessians
    # of their own.
    linear: Floats
    # (n,): counts of the parent. None: a root, or roots that share no more than joint totals.
    parent: Floats | None = None
    # (C, n): cells a child may use. Default: all.
    mask: Bools = None  # type: ignore[assignment]
    # (K, n): sets of cells with bounded sums. Default: none.
    groups: Bools = None  # type: ignore[assignment]
    # lower, upper (C, K): bounds in counts; infinite where absent; equal for an equality.
    lower: Floats = None  # type: ignore[assignment]
    upper: Floats = None  # type: ignore[assignment]
    # (C,): multiplier of each child's objective (> 0). Default: 1.
    scale: Floats = None  # type: ignore[assignment]
    group_names: tuple[str, ...] = ()  # for messages
    # (C,): joint total that each child has a part in, -1 for none. Default: none.
    joint: NDArray[np.int32] | None = None
    joint_total: Floats | None = None  # (J,): counts in all cells of the children of each joint total
    joint_names: tuple[str, ...] = ()  # for messages
    hessians: Curvature | None = None  # ``A_c`` of every child. Default: ``scale_c H``.
    # (n,): row of each cell in a partition whose sums are given. Default: none.
    fixed_rows: NDArray[np.int32] | None = None
    fixed: Floats | None = None  # (C, R): sum of the cells of each row of the partition, in each child
    stacked: Objective = field(init=False, repr=False, compare=False)  # made from terms and linear

    def __post_init__(self) -> None:
        put = object.__setattr__
        if np.ndim(self.linear) != 2:
            raise EstimationError(f"linear has {np.ndim(self.linear)} axes, expected (children, cells)")
        C, n = np.shape(self.linear)
        K = 0 if self.groups is None else len(self.groups)
        linear = _frozen(self.linear, np.float64, "linear", (C, n))
        put(self, "linear", linear)
        terms = tuple(_term(weight, rows, n) for weight, rows in self.terms)
        put(self, "terms", terms)
        rows = np.array([rows for _, rows in terms], np.int32).reshape(len(terms), n)
        put(self, "stacked", Objective(rows, np.array([weight for weight, _ in terms], np.float64), linear))
        finite = [linear]
        if self.parent is not None:
            put(self, "parent", _frozen(self.parent, np.float64, "parent", (n,)))
            finite.append(self.parent)
        for name, dtype, shape, default in (
            ("mask", np.bool_, (C, n), True),
            ("groups", np.bool_, (K, n), False),
            ("lower", np.float64, (C, K), -np.inf),
            ("upper", np.float64, (C, K), np.inf),
            ("scale", np.float64, (C,), 1.0),
        ):
            given = getattr(self, name)
            put(self, name, _frozen(np.full(shape, default) if given is None else given, dtype, name, shape))
        if self.group_names and len(self.group_names) != K:
            raise EstimationError(f"{len(self.group_names)} group names for {K} groups")
        if self.joint is not None:
            self._freeze_joint(C)
        elif self.joint_total is not None:
            raise EstimationError("joint totals without the children that share them (joint)")
        if self.fixed_rows is not None or self.fixed is not None:
            self._freeze_fixed(C, n)
        if not all(np.isfinite(array).all() for array in finite):
            raise EstimationError("linear and parent must be finite")
        if K and (np.isnan(self.lower).any() or np.isnan(self.upper).any()):
            raise EstimationError("a bound is not a number; use -inf or inf where there is none")
        if C and not (np.isfinite(self.scale).all() and self.scale.min() > 0.0):
            raise EstimationError("scale must be finite and > 0")
        if self.hessians is not None:
            diagonal = self.hessians.diagonal()
            if diagonal.shape != (C, n):
                raise EstimationError(
                    f"the diagonal of the Hessians has shape {diagonal.shape}, expected {(C, n)}"
                )
            if not np.isfinite(diagonal).all():
                raise EstimationError("the diagonal of the Hessians must be finite")

    def _freeze_joint(self, children: int) -> None:
        J = 0 if self.joint_total is None else len(self.joint_total)
        joint = _frozen(self.joint, np.int32, "joint", (children,))
        total = _frozen(np.zeros(0) if J == 0 else self.joint_total, np.float64, "joint_total", (J,))
        object.__setattr__(self, "joint", joint)
        object.__setattr__(self, "joint_total", total)
        if children and not (joint.min() >= -1 and joint.max() < J):
            raise EstimationError(
                f"joint totals are numbered from {joint.min()} to {joint.max()}, there are {J}"
            )
        if not np.isfinite(total).all():
            raise EstimationError("joint totals must be finite")
        if self.joint_names and len(self.joint_names) != J:
            raise EstimationError(f"{len(self.joint_names)} names for {J} joint totals")

    def _freeze_fixed(self, children: int, cells: int) -> None:
        if self.fixed_rows is None or self.fixed is None:
            raise EstimationError(
                "fixed answers need both the row of each cell (fixed_rows) and sums (fixed)"
            )
        if np.ndim(self.fixed) != 2:
            raise EstimationError(f"fixed has {np.ndim(self.fixed)} axes, expected (children, rows)")
        R = np.shape(self.fixed)[1]
        rows = _frozen(self.fixed_rows, np.int32, "fixed_rows", (cells,))
        fixed = _frozen(self.fixed, np.float64, "fixed", (children, R))
        object.__setattr__(self, "fixed_rows", rows)
        object.__setattr__(self, "fixed", fixed)
        if cells and not (rows.min() >= 0 and rows.max() < R):
            raise EstimationError(f"fixed rows are numbered from {rows.min()} to {rows.max()}, there are {R}")
        if not np.isfinite(fixed).all():
            raise EstimationError("fixed answers must be finite")

    @property
    def joint_rows(self) -> tuple[Ints, Floats]:
        """``joint`` and ``joint_total`` as new arrays, both empty where there is no joint total."""
        if self.joint is None or self.joint_total is None or not len(self.joint_total):
            return _NO_JOINT
        return self.joint.astype(np.int64), self.joint_total.copy()

    @property
    def constraints(self) -> Constraints:
        """What every answer has to obey, for compiled code."""
        parent = _NO_PARENT if self.parent is None else self.parent
        return Constraints(parent, self.mask, self.groups, self.lower, self.upper, *self.joint_rows)

    @property
    def curvature(self) -> Curvature:
        """``A_c`` of every child."""
        return SharedCurvature(self.terms, self.scale) if self.hessians is None else self.hessians

    @property
    def top(self) -> float:
        """Largest count of the parent, at least 1: what residuals are relative to."""
        return 1.0 if self.parent is None else max(1.0, float(self.parent.max(initial=0.0)))

    def magnitude(self, counts: Floats) -> float:
        """Return what residuals of `counts` are relative to: the parent, or at a root `counts` themselves."""
        return self.top if self.parent is not None else max(1.0, float(counts.max(initial=0.0)))

    @property
    def children(self) -> int:
        """Number of children."""
        return int(self.linear.shape[0])

    @property
    def cells(self) -> int:
        """Number of cells."""
        return int(self.linear.shape[1])

    @property
    def weight(self) -> float:
        """Sum of the weights: the diagonal of H."""
        return float(sum(weight for weight, _ in self.terms))

    @property
    def unit(self) -> float:
        """Unit of the multipliers: the sum of the weights; 1 where children have Hessians of their own."""
        return self.weight if self.terms and self.hessians is None else 1.0

    def hessian(self) -> Floats:
        """H, shape (n, n): the slow, plain definition."""
        H = np.zeros((self.cells, self.cells))
        for weight, rows in self.terms:
            H += weight * (rows[:, None] == rows[None, :])
        return H

    def objective(self, x: Floats) -> float:
        """Value of the objective at `x`, shape (C, n); constant terms left out."""
        if self.hessians is not None:
            return float(np.einsum("cj,cj->", 0.5 * self.hessians.apply(x) - self.linear, x))
        value = -np.einsum("c,cj,cj->", self.scale, self.linear, x)
        for weight, rows in self.terms:
            for c in range(self.children):
                margin = np.bincount(rows, x[c])
                value += 0.5 * weight * self.scale[c] * (margin @ margin)
        return float(value)


def _term(weight: float, rows: NDArray[np.int32], n: int) -> tuple[float, NDArray[np.int32]]:
    if not (np.isfinite(weight) and weight > 0.0):
        raise EstimationError(f"a term has weight {weight}, expected a finite number > 0")
    rows = _frozen(rows, np.int32, "rows of a term", (n,))
    if n and rows.min() < 0:
        raise EstimationError("rows of a term must be >= 0")
    return float(weight), rows


GENERAL_SOLVER = ("clarabel", "clarabel twice")
"""Steps of the ladder that are a general solver: once, and corrected by its answer to what is left."""


@dataclass(frozen=True, slots=True)
class Solution:
    """Answer to a :class:`FamilyProblem`."""

    x: Floats  # (C, n): counts; exactly 0 outside the mask and never negative
    status: Status  # see there
    residual: float  # relative Karush-Kuhn-Tucker residual, from an independent check
    iterations: int  # of the last method of the chain
    # Step of the ladder: ``"pdas"``, those of ``GENERAL_SOLVER``; ``"parent"`` of an only child, ``"steps"``
    # where Hessians are too large to be written out, ``"transport"`` of detailed cells with fixed sums,
    # ``"structured"`` where queries are nested.
    method: str
    conflict: tuple[ConstraintRow, ...] = ()  # where infeasible: rows that cannot hold together

    @property
    def by_general_solver(self) -> bool:
        """Whether none of our own methods got there, and a general solver was needed."""
        return self.method in GENERAL_SOLVER

    @property
    def constraints(self) -> tuple[str, ...]:
        """The rows in conflict, in words."""
        return tuple(str(row) for row in self.conflict)


def independent_joint(problem: FamilyProblem) -> Bools:
    """Mark the joint totals that do not follow from other rows.

    A joint total follows from the totals of its children where all of them are fixed, for instance held from
    an earlier pass; and one of them from the parent and the others, where all children have a part in one or
    a fixed total. Left in, they make active sets degenerate and cost interior points digits. A total that
    contradicts the other rows is kept.
    """
    joint, total = problem.joint_rows
    kept = np.ones(len(total), np.bool_)
    fixed = np.zeros(problem.children, np.bool_)
    value = np.zeros(problem.children)
    usable = problem.mask if problem.parent is None else problem.mask & (problem.parent > 0.0)
    for k, group in enumerate(problem.groups):
        whole = (problem.lower[:, k] == problem.upper[:, k]) & ~usable[:, ~group].any(axis=1)
        value[whole] = problem.lower[whole, k]
        fixed |= whole
    for s in range(len(total)):
        inside = joint == s
        repeated = bool(fixed[inside].all()) and _nearly_equal(float(value[inside].sum()), float(total[s]))
        kept[s] = not repeated
    used = np.flatnonzero(kept & (total != 0.0))
    if problem.parent is None or not len(used) or not (fixed | (joint >= 0)).all():
        return kept
    rest = fixed & ~((joint >= 0) & kept[joint])
    if _nearly_equal(float(total[kept].sum() + value[rest].sum()), float(problem.parent.sum())):
        kept[used[-1]] = False
    return kept


def _nearly_equal(one: float, other: float) -> bool:
    return abs(one - other) <= REPEATS * max(1.0, abs(other))
